package region

import (
	"errors"
	"testing"
)

func TestSpecRefuses(t *testing.T) {
	for what, change := range map[string]func(*Spec){
		"no device":        func(s *Spec) { s.Devices = nil },
		"too many devices": func(s *Spec) { s.Devices = make([]DeviceLimits, MaxDevices+1) },
		"too much compute": func(s *Spec) { s.Devices[0].Compute = FullCompute + 1 },
		"a device twice":   func(s *Spec) { s.Devices = append(s.Devices, s.Devices[0]) },
		"no name":          func(s *Spec) { s.Name = "" },
		"a path as name":   func(s *Spec) { s.Name = "../x" },
		"a hidden name":    func(s *Spec) { s.Name = ".x" },
		"a long name":      func(s *Spec) { s.Name = string(make([]byte, 64)) },
	} {
		spec := fourDevices("x")
		change(&spec)
		if l, err := spec.Limits(); !errors.Is(err, ErrSpec) || l != (Limits{}) {
			t.Errorf("%s: %v; want ErrSpec", what, err)
		}
		if r, err := New(spec); !errors.Is(err, ErrSpec) || r != nil {
			t.Errorf("a region of %s: %v, %v; want ErrSpec", what, r, err)
		}
	}
}
