package daemon

import (
	"testing"

	"github.com/lgpu/lgpu/gpu"
)

// TestReaches: a device without a file of its own is reached by everybody, and one whose file is not there by nobody.
func TestReaches(t *testing.T) {
	self := 1
	if !reaches(self, gpu.Device{}) || refit(self, []gpu.Device{{}}) != nil {
		t.Error("a software GPU has no file")
	}
	gone := gpu.Device{Node: "195:250"}
	if reaches(self, gone) || mayReach(self, gone) {
		t.Error("a device without a file is reached")
	}
	if refit(self, []gpu.Device{gone}) == nil {
		t.Error("a process is made to reach what is not there")
	}
}
