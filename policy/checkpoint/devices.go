package checkpoint

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// ErrDevices is wrapped by what Devices cannot do.
var ErrDevices = errors.New("the devices cannot take each other's places")

// Devices says which device takes the place of which, by their names: all of before, each once, and all of now. That is how
// drivers want it, also of devices that the program does not use. wanted says so for some; each other one stands for itself
// where it can, and else for one of those that are left, in their order. The result is nil where all stand for themselves:
// drivers refuse to be told that.
func Devices(before, now []string, wanted map[string]string) (map[string]string, error) {
	if len(before) != len(now) {
		return nil, fmt.Errorf("%w: there were %d, and there are %d", ErrDevices, len(before), len(now))
	}
	all, taken := map[string]string{}, map[string]bool{}
	take := func(old, new string) { all[old], taken[new] = new, true }
	for _, old := range slices.Sorted(maps.Keys(wanted)) {
		new := wanted[old]
		switch {
		case !slices.Contains(before, old):
			return nil, fmt.Errorf("%w: %s is none of the program's", ErrDevices, old)
		case !slices.Contains(now, new):
			return nil, fmt.Errorf("%w: %s is not here", ErrDevices, new)
		case taken[new]:
			return nil, fmt.Errorf("%w: %s cannot take the place of two", ErrDevices, new)
		}
		take(old, new)
	}
	for _, old := range before {
		if all[old] == "" && slices.Contains(now, old) && !taken[old] {
			take(old, old)
		}
	}
	left := slices.DeleteFunc(slices.Clone(now), func(d string) bool { return taken[d] })
	for _, old := range before {
		if all[old] != "" {
			continue
		}
		if len(left) == 0 {
			return nil, fmt.Errorf("%w: a device is named twice", ErrDevices)
		}
		take(old, left[0])
		left = left[1:]
	}
	for old, new := range all {
		if old != new {
			return all, nil
		}
	}
	return nil, nil
}
