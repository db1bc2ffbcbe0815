package main

import (
	"bytes"
	"os"
	"testing"
)

func TestHeaderIsFresh(t *testing.T) {
	const path = "../../interpose/region.h"
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, header()) {
		t.Errorf("%s is not what package region gives; run: go generate ./region", path)
	}
}
