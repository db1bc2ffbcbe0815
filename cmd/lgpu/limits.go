package main

import (
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/internal/units"
	"github.com/lgpu/lgpu/policy/limits"
)

// limitFlags are what the user typed.
type limitFlags struct {
	typed      func(name string) bool // whether the option was given at all
	devices    []string
	memory     string
	compute    string
	min        string
	units      string
	weight     string
	priority   string
	hostMemory string
}

func (l *limitFlags) register(f *pflag.FlagSet) {
	l.typed = f.Changed
	f.StringArrayVar(&l.devices, "device", nil, "`DEVICE` to use: index, UUID or its beginning; repeat or use commas (default: all)")
	f.StringVar(&l.memory, "memory", "", "memory.max: a `SIZE` such as 8GiB, or a part such as 25%")
	f.StringVar(&l.compute, "compute", "", "compute.max: most of the device's time, in `PERCENT`, 1 to 100")
	f.StringVar(&l.min, "min", "", "compute.min: reserved part of the device's time, in `PERCENT`")
	f.StringVar(&l.units, "units", "", "`COUNT` of compute units (SMs) to see, with their share of time")
	f.StringVar(&l.weight, "weight", "", "lgpu.weight: `WEIGHT` against others, 1 to 10000 (default: 100)")
	f.StringVar(&l.priority, "priority", "", "lgpu.priority: `CLASS` is normal, high (goes before normal), or latency (gets the device next)")
	f.StringVar(&l.hostMemory, "host-memory", "", "host.max: most page-locked host memory, a `SIZE`")
}

// limitNames are the options that make limits.
var limitNames = []string{"memory", "compute", "min", "units", "weight", "priority", "host-memory"}

// Least and greatest of what can be typed.
const (
	minCompute = units.Whole / 100
	maxWeight  = 10000
)

var priorities = map[string]api.Priority{
	"normal": api.Priority_NORMAL, "high": api.Priority_HIGH, "latency": api.Priority_LATENCY,
}

// parse reads what was typed into a request. It knows nothing of the machine: whether a device can give it, the daemon
// says.
func (l limitFlags) parse() (*api.AttachRequest, error) {
	r := &api.AttachRequest{}
	p := &api.Limits{}
	for _, name := range limitNames {
		if !l.typed(name) {
			continue
		}
		r.Limits = p
		if err := l.set(r, name); err != nil {
			return nil, err
		}
	}
	if p.ComputeMin != nil && p.ComputeMax != nil && *p.ComputeMin > *p.ComputeMax {
		return nil, usage("", "--min %s: it is above --compute %s", l.min, l.compute)
	}
	return r, nil
}

// set reads one option.
func (l limitFlags) set(r *api.AttachRequest, name string) error {
	switch name {
	case "memory":
		return l.setMemory(r)
	case "compute":
		return l.setCompute(r)
	case "min":
		return l.setMin(r)
	case "units":
		return l.setUnits(r)
	case "weight":
		return l.setWeight(r)
	case "priority":
		return l.setPriority(r)
	}
	return l.setHostMemory(r)
}

// setMemory reads memory.max, or a part of the memory.
func (l limitFlags) setMemory(r *api.AttachRequest) error {
	if strings.Contains(l.memory, "%") {
		share, err := units.ParsePercent(l.memory)
		if err != nil {
			return usage("leave --memory out for no limit", "--memory: %w", err)
		}
		r.MemoryPart = &share
		return nil
	}
	size, err := typedSize("--memory", l.memory)
	if err != nil {
		return err
	}
	if size == 0 {
		return usage("leave --memory out for no limit", "--memory %s: a program needs some memory", l.memory)
	}
	r.Limits.MemoryMax = &size
	return nil
}

// setCompute reads compute.max.
func (l limitFlags) setCompute(r *api.AttachRequest) error {
	share, err := units.ParsePercent(l.compute)
	if err != nil {
		return usage("leave --compute out for no limit", "--compute: %w", err)
	}
	if share < minCompute {
		return usage("a quarter is --compute 25", "--compute %s: the smallest limit is 1%%", l.compute)
	}
	if share < units.Whole {
		r.Limits.ComputeMax = &share
	}
	return nil
}

// setMin reads compute.min.
func (l limitFlags) setMin(r *api.AttachRequest) error {
	share, err := units.ParsePercent(l.min)
	if err != nil {
		return usage("leave --min out to reserve nothing", "--min: %w", err)
	}
	r.Limits.ComputeMin = &share
	return nil
}

// setUnits reads the count of the file lgpu.
func (l limitFlags) setUnits(r *api.AttachRequest) error {
	count, err := strconv.ParseUint(l.units, 10, 31)
	if err != nil || count == 0 {
		return usage("", "--units %q: it must be a number of compute units, 1 or more", l.units)
	}
	n := uint32(count)
	r.Limits.Lgpu = &api.Units{Count: &n}
	return nil
}

// setWeight reads lgpu.weight.
func (l limitFlags) setWeight(r *api.AttachRequest) error {
	weight, err := strconv.ParseUint(l.weight, 10, 32)
	if err != nil || weight == 0 || weight > maxWeight {
		return usage("", "--weight %q: it must be a number from 1 to %d", l.weight, maxWeight)
	}
	n := uint32(weight)
	r.Limits.LgpuWeight = &n
	return nil
}

// setPriority reads lgpu.priority.
func (l limitFlags) setPriority(r *api.AttachRequest) error {
	class, ok := priorities[l.priority]
	if !ok {
		return usage("classes are normal, high and latency", "--priority %q: there is no such class", l.priority)
	}
	r.Limits.LgpuPriority = class
	return nil
}

// setHostMemory reads host.max.
func (l limitFlags) setHostMemory(r *api.AttachRequest) error {
	size, err := typedSize("--host-memory", l.hostMemory)
	if err != nil {
		return err
	}
	r.HostMax = &size
	return nil
}

// typedSize reads the size of an option: 0, or a number with a unit of at least limits.MinMemory.
func typedSize(option, text string) (uint64, error) {
	size, err := units.ParseSize(text)
	switch {
	case err != nil:
		return 0, usage("", "%s: %w", option, err)
	case size != 0 && units.Bare(text):
		return 0, usage(units.Guess(text), "%s %s: a size has a unit", option, text)
	case size != 0 && size < limits.MinMemory:
		return 0, usage("", "%s %s: the smallest limit is %s", option, text, units.FormatSize(limits.MinMemory))
	}
	return size, nil
}

// tokens are the devices that were typed.
func (l limitFlags) tokens() []string {
	var tokens []string
	for _, d := range l.devices {
		tokens = append(tokens, strings.Split(d, ",")...)
	}
	return tokens
}
