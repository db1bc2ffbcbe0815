package daemon

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/internal/units"
	"github.com/lgpu/lgpu/policy/limits"
)

// Limits are asked for at the start of an lgpu, for each of its devices. A nil pointer is no limit of its own.
type Limits struct {
	MemoryMax     *uint64 // bytes
	MemoryPercent *uint32 // hundredths of a percent of each device's memory, instead of MemoryMax
	ComputeMax    *uint32 // hundredths of a percent
	ComputeMin    *uint32 // hundredths of a percent
	Count         *int    // compute units (bits)
	Weight        *uint32
	Priority      string // normal, high or latency; empty for none of its own
	HostMax       *uint64
}

// given reports whether any limit is there.
func (l Limits) given() bool { return l != Limits{} }

// writes are the texts of the files that say l for each of the devices.
func (l Limits) writes(devices []gpu.Device) ([]limits.Assignment, error) {
	if l.ComputeMin != nil && l.ComputeMax != nil && *l.ComputeMin > *l.ComputeMax {
		return nil, fmt.Errorf("--min %s%%: %w: the cap is below it", units.FormatPercent(*l.ComputeMin), ErrInvalid)
	}
	lines := map[string]*strings.Builder{}
	line := func(file string, d gpu.Device, format string, value any) {
		if lines[file] == nil {
			lines[file] = &strings.Builder{}
		}
		fmt.Fprintf(lines[file], "%s "+format+"\n", d.Key(), value)
	}
	for _, d := range devices {
		if memory, ok, err := l.memory(d); err != nil {
			return nil, err
		} else if ok {
			line("memory.max", d, "%d", memory)
		}
		if l.Count != nil {
			switch {
			case d.Units == 0:
				return nil, hinted{fmt.Errorf("--units: the driver does not say how many units device %s (%s) has%w",
					d.Ordinal(), d.Identity(), silent{ErrInvalid}), "use --compute"}
			case *l.Count > d.Units:
				return nil, fmt.Errorf("--units %d: device %s (%s) has %d units%w", *l.Count, d.Ordinal(), d.Identity(),
					d.Units, silent{ErrInvalid})
			}
			line("lgpu", d, "count=%d", *l.Count)
		}
		if l.ComputeMax != nil {
			line("compute.max", d, "%s", units.FormatPercent(*l.ComputeMax))
		}
		if l.ComputeMin != nil {
			line("compute.min", d, "%s", units.FormatPercent(*l.ComputeMin))
		}
		if l.Weight != nil {
			line("lgpu.weight", d, "%d", *l.Weight)
		}
		if l.Priority != "" {
			line("lgpu.priority", d, "%s", l.Priority)
		}
	}
	var writes []limits.Assignment
	for _, file := range slices.Sorted(maps.Keys(lines)) {
		writes = append(writes, limits.Assignment{File: file, Text: lines[file].String()})
	}
	if l.HostMax != nil {
		writes = append(writes, limits.Assignment{File: "host.max", Text: strconv.FormatUint(*l.HostMax, 10)})
	}
	return writes, nil
}

// memory is the limit on d in bytes, if there is one.
func (l Limits) memory(d gpu.Device) (uint64, bool, error) {
	var bytes uint64
	var asked string
	switch {
	case l.MemoryPercent != nil:
		whole, share := uint64(units.Whole), uint64(*l.MemoryPercent)
		bytes, asked = d.Memory/whole*share+d.Memory%whole*share/whole, units.FormatPercent(*l.MemoryPercent)+"%"
	case l.MemoryMax != nil:
		bytes, asked = *l.MemoryMax, strings.ReplaceAll(units.FormatSize(*l.MemoryMax), " ", "")
	default:
		return 0, false, nil
	}
	switch {
	case bytes > d.Memory:
		return 0, false, fmt.Errorf("--memory %s: device %s (%s) has %s%w", asked, d.Ordinal(), d.Identity(),
			units.FormatSize(d.Memory), silent{ErrInvalid})
	case bytes < limits.MinMemory:
		return 0, false, fmt.Errorf("--memory %s: of device %s (%s) that is %s; the least limit is %s%w", asked, d.Ordinal(),
			d.Identity(), units.FormatSize(bytes), units.FormatSize(limits.MinMemory), silent{ErrInvalid})
	}
	return bytes, true, nil
}

// outranked refuses a priority that the groups above the lgpu at a path do not let it have: the tree would lower it.
func (n *Node) outranked(at, priority string, devices []gpu.Device) error {
	var asked limits.Priority
	if priority == "" || asked.UnmarshalText([]byte(priority)) != nil { // what does not read, the tree refuses
		return nil
	}
	for _, d := range devices {
		for above := path.Dir(at); ; above = path.Dir(above) {
			group, err := n.tree.Node(above)
			if err != nil {
				return nil // the tree says that there is no such group
			}
			has := slices.IndexFunc(group.Devices, func(e limits.Effective) bool { return e.Device == d.Identity() })
			if has >= 0 && group.Requests[has].Priority != nil {
				if most := group.Devices[has].Priority; asked > most {
					return hinted{
						fmt.Errorf("--priority %s: the group %s has %s, and nothing in it goes before that%w", asked, above, most,
							silent{ErrInvalid}), "raise the group's lgpu.priority, or leave --priority out",
					}
				}
				break
			}
			if above == limits.Root {
				break
			}
		}
	}
	return nil
}

// differs names the first difference between what a node asks for and what spec does, or nothing. A spec without limits
// differs from none.
func (s HoldSpec) differs(node limits.Node, devices []gpu.Device) string {
	l := s.Limits
	if s.ID != 0 {
		return ""
	}
	if s.Gang != "" && s.Gang != node.Gang {
		return fmt.Sprintf("gang %q, not %q", node.Gang, s.Gang)
	}
	if !l.given() {
		return ""
	}
	if has, asked := node.HostMax, orNoLimit(l.HostMax); has != asked {
		return fmt.Sprintf("host memory %s, not %s", sizeText(has), sizeText(asked))
	}
	for i, e := range node.Devices {
		d := slices.IndexFunc(devices, func(d gpu.Device) bool { return d.Identity() == e.Device })
		if d < 0 {
			continue
		}
		has := node.Requests[i]
		memory, ok, _ := l.memory(devices[d])
		if !ok {
			memory = limits.NoLimit
		}
		switch {
		case orNoLimit(has.MemoryMax) != memory:
			return fmt.Sprintf("memory %s, not %s", sizeText(orNoLimit(has.MemoryMax)), sizeText(memory))
		case orZero(has.Count) != orZero(l.Count):
			return fmt.Sprintf("%s compute units, not %s", countText(has.Count), countText(l.Count))
		case orWhole(has.ComputeMax) != orWhole(l.ComputeMax):
			return fmt.Sprintf("compute %s%%, not %s%%", units.FormatPercent(orWhole(has.ComputeMax)),
				units.FormatPercent(orWhole(l.ComputeMax)))
		case orZero(has.ComputeMin) != orZero(l.ComputeMin):
			return fmt.Sprintf("a guarantee of %s%%, not %s%%", units.FormatPercent(orZero(has.ComputeMin)),
				units.FormatPercent(orZero(l.ComputeMin)))
		case l.Weight != nil && has.Weight != *l.Weight && e.Weight != *l.Weight:
			return fmt.Sprintf("weight %d, not %d", e.Weight, *l.Weight)
		case l.Priority != "" && (has.Priority == nil || has.Priority.String() != l.Priority):
			return fmt.Sprintf("another priority than %s", l.Priority)
		}
	}
	return ""
}

func orNoLimit(v *uint64) uint64 {
	if v == nil {
		return limits.NoLimit
	}
	return *v
}

func orWhole(v *uint32) uint32 {
	if v == nil {
		return units.Whole
	}
	return *v
}

func orZero[T int | uint32](v *T) T {
	if v == nil {
		return 0
	}
	return *v
}

// sizeText writes a limit in bytes for people.
func sizeText(bytes uint64) string {
	if bytes == limits.NoLimit {
		return "unlimited"
	}
	return units.FormatSize(bytes)
}

func countText(n *int) string {
	if n == nil {
		return "all"
	}
	return strconv.Itoa(*n)
}
