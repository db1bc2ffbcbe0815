//go:build cgo

package main

import (
	"context"
	"testing"
)

// What callbacks are called through outlives a call that was abandoned, and no call comes after close.
func TestCalls(t *testing.T) {
	freed := 0
	c := calls{free: func() { freed++ }}
	if err := c.do(t.Context(), "barrier", func() {
		c.close()
		c.close()
		if freed != 0 {
			t.Error("it was freed under a call")
		}
		if err := c.do(t.Context(), "barrier", func() { t.Error("a call after close") }); err == nil {
			t.Error("a call after close, without an error")
		}
	}); err != nil {
		t.Error(err)
	}
	if freed != 1 {
		t.Errorf("it was freed %d times", freed)
	}
	idle := calls{free: func() { freed++ }}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := idle.do(ctx, "barrier", func() { t.Error("a call for a collective that is over") }); err == nil {
		t.Error("a call for a collective that is over, without an error")
	}
	if idle.close(); freed != 2 {
		t.Errorf("without calls it was freed %d times", freed-1)
	}
}
