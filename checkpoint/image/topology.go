package image

import (
	"errors"
	"fmt"
	"slices"
)

// ErrTopology says that the devices of a machine cannot take the place of those of an image.
var ErrTopology = errors.New("the devices do not fit")

// Device is what a program sees of a device and may have remembered, so that it must be true after a restore.
type Device struct {
	UUID   string `json:"uuid"`
	Name   string `json:"name"`   // model
	Kind   string `json:"kind"`   // of hardware, such as "compute capability 9.0"
	Units  int    `json:"units"`  // compute units
	Memory int64  `json:"memory"` // bytes
}

// Match says which device takes the place of which: the UUIDs of the image's devices, each with that of a device of have.
// pairs says so for some of them; each other one stands for itself. An error wraps ErrTopology, and names the first device
// for which there is none, or what is different about it.
func (a *About) Match(have []Device, pairs map[string]string) (map[string]string, error) {
	named := func(list []Device, uuid string) int {
		return slices.IndexFunc(list, func(d Device) bool { return d.UUID == uuid })
	}
	for old := range pairs {
		if named(a.Topology, old) < 0 {
			return nil, fmt.Errorf("%w: %s is no device of the image", ErrTopology, old)
		}
	}
	all, taken := map[string]string{}, map[string]string{}
	for _, d := range a.Topology {
		to := pairs[d.UUID]
		if to == "" {
			to = d.UUID
		}
		i := named(have, to)
		switch {
		case i < 0:
			return nil, fmt.Errorf("%w: %s %s is not here", ErrTopology, d.Name, to)
		case taken[to] != "":
			return nil, fmt.Errorf("%w: %s is to take the place of both %s and %s", ErrTopology, to, taken[to], d.UUID)
		}
		if why := d.differs(have[i]); why != "" {
			return nil, fmt.Errorf("%w: %s cannot take the place of %s: %s", ErrTopology, to, d.UUID, why)
		}
		all[d.UUID], taken[to] = to, d.UUID
	}
	return all, nil
}

// differs says what of another device is not as it is here; empty if nothing is.
func (d Device) differs(o Device) string {
	switch {
	case o.Name != d.Name:
		return fmt.Sprintf("it is a %s, not a %s", o.Name, d.Name)
	case o.Kind != d.Kind:
		return fmt.Sprintf("it is of %s, not %s", o.Kind, d.Kind)
	case o.Units != d.Units:
		return fmt.Sprintf("it has %d compute units, not %d", o.Units, d.Units)
	case o.Memory != d.Memory:
		return fmt.Sprintf("it has %d bytes of memory, not %d", o.Memory, d.Memory)
	}
	return ""
}
