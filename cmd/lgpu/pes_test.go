package main

import (
	"testing"

	"github.com/lgpu/lgpu/internal/assets"
)

// TestPEDevice: each PE is told its device, unless the user has said which, such as none.
func TestPEDevice(t *testing.T) {
	j := &job{count: 3, total: 3}
	for i, want := range []string{"0", "1", "0"} {
		if got := lookup(j.env([]string{"A=1"}, assets.Libraries{}, i, 2), "LSHMEM_DEVICE"); got != want {
			t.Errorf("PE %d: LSHMEM_DEVICE=%s, want %s", i, got, want)
		}
		if got := lookup(j.env([]string{"LSHMEM_DEVICE=none"}, assets.Libraries{}, i, 2), "LSHMEM_DEVICE"); got != "none" {
			t.Errorf("PE %d: the user's LSHMEM_DEVICE=none became %s", i, got)
		}
	}
}
