package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestHeadersAreFresh(t *testing.T) {
	for _, h := range headers {
		path := filepath.Join("../../liblgpu", h.File)
		have, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(have, h.Text()) {
			t.Errorf("%s is not what the Go types give; run: go generate ./tenant/region", path)
		}
	}
}
