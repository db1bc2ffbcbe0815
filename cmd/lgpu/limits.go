package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/region"
	"github.com/lgpu/lgpu/units"
)

// limitFlags are what the user typed.
type limitFlags struct {
	typed      func(name string) bool // whether the option was given at all
	devices    []string
	memory     string
	compute    string
	units      string
	hostMemory string
}

func (l *limitFlags) register(f *pflag.FlagSet) {
	l.typed = f.Changed
	f.StringArrayVar(&l.devices, "device", nil, "`DEVICE` to use, by UUID or index; repeat or use commas (default: all)")
	f.StringVar(&l.memory, "memory", "", "device memory: a `SIZE` such as 8GiB, or a part such as 25%")
	f.StringVar(&l.compute, "compute", "", "share of the device's time in `PERCENT`, 1 to 100")
	f.StringVar(&l.units, "units", "", "`COUNT` of compute units (SMs) to show, and their share of time")
	f.StringVar(&l.hostMemory, "host-memory", "", "page-locked host memory, a `SIZE`")
}

// given reports whether any limit was typed.
func (l *limitFlags) given() bool {
	for _, name := range []string{"device", "memory", "compute", "units", "host-memory"} {
		if l.typed(name) {
			return true
		}
	}
	return false
}

// limits are limitFlags that make sense on some machine.
type limits struct {
	tokens      []string // of --device; empty is all
	memory      uint64   // bytes, or NoLimit
	memoryShare uint32   // of each device in hundredths of a percent, in place of memory; 0 is not given
	compute     uint32   // hundredths of a percent
	units       uint32   // 0 is not given
	hostMemory  uint64   // bytes, or NoLimit
	memoryText  string   // as typed
}

// parse reads what was typed, before anything is known of the machine.
func (l limitFlags) parse() (limits, error) {
	p := limits{memory: region.NoLimit, compute: region.FullCompute, hostMemory: region.NoLimit, memoryText: l.memory}
	for _, d := range l.devices {
		p.tokens = append(p.tokens, strings.Split(d, ",")...)
	}
	var err error
	switch {
	case !l.typed("memory"):
	case strings.Contains(l.memory, "%"):
		if p.memoryShare, err = units.ParsePercent(l.memory); err != nil {
			return p, usage("leave --memory out for no limit", "--memory: %w", err)
		}
	default:
		if p.memory, err = units.ParseSize(l.memory); err != nil {
			return p, usage("", "--memory: %w", err)
		}
		if p.memory == 0 {
			return p, usage("leave --memory out for no limit", "--memory %s: a program needs more than that", l.memory)
		}
	}
	if l.typed("compute") {
		if p.compute, err = units.ParsePercent(l.compute); err != nil {
			return p, usage("leave --compute out for no cap", "--compute: %w", err)
		}
		if p.compute < region.FullCompute/100 {
			return p, usage("", "--compute %s: the smallest share is 1%%", l.compute)
		}
	}
	if l.typed("units") {
		count, err := strconv.ParseUint(l.units, 10, 31)
		if err != nil || count == 0 {
			return p, usage("", "--units %q: it must be a number of compute units, 1 or more", l.units)
		}
		p.units = uint32(count)
	}
	if l.typed("host-memory") {
		if p.hostMemory, err = units.ParseSize(l.hostMemory); err != nil {
			return p, usage("", "--host-memory: %w", err)
		}
	}
	return p, nil
}

// spec checks the limits against the devices that exist.
func (l *limits) spec(name string, have []gpu.Device) (region.Spec, error) {
	chosen, err := l.choose(have)
	if err != nil {
		return region.Spec{}, err
	}
	s := region.Spec{Name: name, HostMemory: l.hostMemory}
	for _, d := range chosen {
		limits := region.DeviceLimits{UUID: d.UUID, Physical: d.Memory, Units: l.units}
		if limits.Memory, err = l.memoryOf(d); err != nil {
			return region.Spec{}, err
		}
		if limits.Compute, err = l.computeOf(d); err != nil {
			return region.Spec{}, err
		}
		s.Devices = append(s.Devices, limits)
	}
	return s, nil
}

func (l *limits) choose(have []gpu.Device) ([]gpu.Device, error) {
	if len(have) == 0 {
		return nil, &exit{status: statusFailed, err: errors.New("this machine has no GPU"), hint: "a software GPU works on any machine: lgpu run --sim -- CMD"}
	}
	if len(l.tokens) == 0 {
		if len(have) > region.MaxDevices {
			return nil, usage("choose some by --device", "this machine has %d devices; one lgpu spans at most %d", len(have), region.MaxDevices)
		}
		return have, nil
	}
	chosen, err := gpu.Select(have, l.tokens)
	if errors.Is(err, gpu.ErrTwice) {
		return nil, usage("", "--device: %w", err)
	}
	if err != nil {
		var list []string
		for _, d := range have {
			list = append(list, fmt.Sprintf("%d (%s, %s)", d.Index, d.UUID, d.Name))
		}
		return nil, usage("there is "+strings.Join(list, "; "), "--device: %w", err)
	}
	if len(chosen) > region.MaxDevices {
		return nil, usage("", "--device: %d devices; one lgpu spans at most %d", len(chosen), region.MaxDevices)
	}
	return chosen, nil
}

// memoryOf returns the memory limit on d in bytes.
func (l *limits) memoryOf(d gpu.Device) (uint64, error) {
	if l.memoryShare != 0 {
		whole, share := uint64(units.Whole), uint64(l.memoryShare)
		return d.Memory/whole*share + d.Memory%whole*share/whole, nil
	}
	if l.memory != region.NoLimit && l.memory > d.Memory {
		return 0, usage("", "--memory %s: device %d (%s) has %s", l.memoryText, d.Index, d.UUID, units.FormatSize(d.Memory))
	}
	return l.memory, nil
}

// computeOf returns the share of d's time in hundredths of a percent. A unit is worth its part of it, so that --units
// promises the same on every device.
func (l *limits) computeOf(d gpu.Device) (uint32, error) {
	switch {
	case l.units == 0:
		return l.compute, nil
	case d.Units == 0:
		return 0, &exit{status: statusFailed, err: fmt.Errorf("--units: the driver does not say how many units device %d (%s) has", d.Index, d.UUID), hint: "use --compute"}
	case int(l.units) > d.Units:
		return 0, usage("", "--units %d: device %d (%s) has %d units", l.units, d.Index, d.UUID, d.Units)
	}
	worth := uint64(l.units) * uint64(region.FullCompute) / uint64(d.Units)
	return max(min(l.compute, uint32(worth)), 1), nil
}

// differ names the first difference between what an lgpu has and what was asked of it, or nothing.
func differ(has, asked region.Spec) string {
	if len(has.Devices) != len(asked.Devices) {
		return fmt.Sprintf("%d devices, not %d", len(has.Devices), len(asked.Devices))
	}
	if has.HostMemory != asked.HostMemory {
		return fmt.Sprintf("host memory %s, not %s", limitText(has.HostMemory), limitText(asked.HostMemory))
	}
	for i, h := range has.Devices {
		a := asked.Devices[i]
		switch {
		case h.UUID != a.UUID:
			return fmt.Sprintf("device %s, not %s", gpu.UUID(h.UUID), gpu.UUID(a.UUID))
		case h.Memory != a.Memory:
			return fmt.Sprintf("memory %s, not %s", limitText(h.Memory), limitText(a.Memory))
		case h.Units != a.Units:
			return fmt.Sprintf("%s compute units, not %s", unitsText(h.Units), unitsText(a.Units))
		case h.Compute != a.Compute:
			return fmt.Sprintf("compute %s%%, not %s%%", units.FormatPercent(h.Compute), units.FormatPercent(a.Compute))
		}
	}
	return ""
}

// limitText writes a limit in bytes for people.
func limitText(bytes uint64) string {
	if bytes == region.NoLimit {
		return "unlimited"
	}
	return units.FormatSize(bytes)
}

func unitsText(n uint32) string {
	if n == 0 {
		return "all"
	}
	return strconv.FormatUint(uint64(n), 10)
}
