package main

import (
	"testing"

	"github.com/lgpu/lgpu/cheader"
)

func TestHeadersAreFresh(t *testing.T) {
	if err := cheader.Fresh("../../interpose", headers); err != nil {
		t.Error(err)
	}
}
