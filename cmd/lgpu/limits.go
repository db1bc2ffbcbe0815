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

// parse reads what was typed. It knows nothing of the machine: whether a device can give it, the daemon says. Without
// any option the result is nil.
func (l limitFlags) parse() (*api.HoldLimits, error) {
	p, given := &api.HoldLimits{}, false
	for _, name := range limitNames {
		if !l.typed(name) {
			continue
		}
		given = true
		if err := l.set(p, name); err != nil {
			return nil, err
		}
	}
	if !given {
		return nil, nil
	}
	if p.ComputeMin != nil && p.ComputeMax != nil && *p.ComputeMin > *p.ComputeMax {
		return nil, usage("", "--min %s: it is above --compute %s", l.min, l.compute)
	}
	return p, nil
}

// set reads one option.
func (l limitFlags) set(p *api.HoldLimits, name string) error {
	switch name {
	case "memory":
		if strings.Contains(l.memory, "%") {
			share, err := units.ParsePercent(l.memory)
			if err != nil {
				return usage("leave --memory out for no limit", "--memory: %w", err)
			}
			p.MemoryPercent = &share
			return nil
		}
		size, err := typedSize("--memory", l.memory)
		if err != nil {
			return err
		}
		if size == 0 {
			return usage("leave --memory out for no limit", "--memory %s: a program needs some memory", l.memory)
		}
		p.MemoryMax = &size
	case "compute":
		share, err := units.ParsePercent(l.compute)
		if err != nil {
			return usage("leave --compute out for no limit", "--compute: %w", err)
		}
		if share < minCompute {
			return usage("a quarter is --compute 25", "--compute %s: the smallest limit is 1%%", l.compute)
		}
		if share < units.Whole {
			p.ComputeMax = &share
		}
	case "min":
		share, err := units.ParsePercent(l.min)
		if err != nil {
			return usage("leave --min out to reserve nothing", "--min: %w", err)
		}
		p.ComputeMin = &share
	case "units":
		count, err := strconv.ParseUint(l.units, 10, 31)
		if err != nil || count == 0 {
			return usage("", "--units %q: it must be a number of compute units, 1 or more", l.units)
		}
		n := uint32(count)
		p.Count = &n
	case "weight":
		weight, err := strconv.ParseUint(l.weight, 10, 32)
		if err != nil || weight == 0 || weight > maxWeight {
			return usage("", "--weight %q: it must be a number from 1 to %d", l.weight, maxWeight)
		}
		n := uint32(weight)
		p.Weight = &n
	case "priority":
		class, ok := priorities[l.priority]
		if !ok {
			return usage("classes are normal, high and latency", "--priority %q: there is no such class", l.priority)
		}
		p.Priority = class
	case "host-memory":
		size, err := typedSize("--host-memory", l.hostMemory)
		if err != nil {
			return err
		}
		p.HostMax = &size
	}
	return nil
}

// typedSize reads the size of an option: 0, or a number with a unit of at least tree.MinMemory.
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
