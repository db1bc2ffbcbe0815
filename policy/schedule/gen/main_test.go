package main

import (
	"testing"

	"github.com/lgpu/lgpu/internal/cheader"
)

func TestHeadersAreFresh(t *testing.T) {
	if err := cheader.Fresh("../../../tenant/liblgpu", headers); err != nil {
		t.Error(err)
	}
}
