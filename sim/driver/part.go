package driver

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/lgpu/lgpu/internal/list"
	"github.com/lgpu/lgpu/sim/hw"
)

// part is what a process may use of a device's compute units at the same time as others use the rest: all of them
// unless its environment asks for less.
//
//	LGPU_SIM_UNITS=0-3,8                       these units, of every device that the program sees
//	LGPU_SIM_UNITS="0=0-3;GPU-6c67…=4-7"       these of a device (its number in the machine, or its UUID) and of another
//	CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30       so many percent of each device's units, rounded down to at least one
//
// Named units are a process's even if others have them too: those are shared by time. A percentage gets the units that
// the fewest processes have when the first context on the device is made, and keeps them. A device that LGPU_SIM_UNITS
// does not mention follows the percentage. Without any unit contexts can be made and launches answer
// CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES.
//
// The program sees the number of its units as the device's, real numbers in %smid, and in %nsmid the number of units
// that the device has, below which all numbers are.
type part struct {
	named bool
	units []int // where named, or once chosen
	count int   // where not named: units to choose; 0 is all
}

// portion is how many units a percentage is.
func (d *device) portion(percent float64) int {
	// What is a whole number of units must not become one less by rounding.
	return max(int(percent/100*float64(d.hw.Config.Units)+1e-9), 1)
}

// parseUnits reads LGPU_SIM_UNITS into parts, which are those of all devices. Entries without a device are for the visible.
func (d *Driver) parseUnits(text string, visible []*device, parts []part) error {
	for _, entry := range strings.Split(text, ";") {
		of := visible
		if name, rest, ok := strings.Cut(entry, "="); ok {
			dev := d.named(strings.TrimSpace(name))
			if dev == nil {
				return fmt.Errorf("no device %q", name)
			}
			of, entry = []*device{dev}, rest
		}
		for _, dev := range of {
			set, err := list.Parse(entry, dev.hw.Config.Units)
			if err != nil {
				return fmt.Errorf("units of device %d: %w", dev.index, err)
			}
			p := part{named: true}
			for unit := range dev.hw.Config.Units {
				if set.Has(unit) {
					p.units = append(p.units, unit)
				}
			}
			parts[dev.index] = p
		}
	}
	return nil
}

// unitCount is how many units of dev the process may use.
func (p *Process) unitCount(dev *device) int {
	if p.parts == nil {
		return dev.hw.Config.Units
	}
	switch part := p.parts[dev.index]; {
	case part.named:
		return len(part.units)
	case part.count > 0:
		return part.count
	}
	return dev.hw.Config.Units
}

// channel opens a channel for a new context on dev.
func (p *Process) channel(dev *device) *hw.Channel {
	c := p.openChannel(dev)
	c.Owner = p.pid
	return c
}

func (p *Process) openChannel(dev *device) *hw.Channel {
	if p.parts == nil {
		return dev.hw.NewChannel()
	}
	part := &p.parts[dev.index]
	switch {
	case part.named:
	case part.count == 0:
		return dev.hw.NewChannel()
	case part.units == nil:
		part.units = p.d.leastUsed(dev, part.count)
	}
	return dev.hw.NewChannelOn(part.units)
}

// leastUsed are the n units of dev that the fewest processes have, those with the lowest numbers first.
func (d *Driver) leastUsed(dev *device, n int) []int {
	users := make([]int, dev.hw.Config.Units)
	for p := range d.processes {
		if p.parts != nil && slices.ContainsFunc(p.contexts, func(c *context) bool { return c.dev == dev }) {
			for _, unit := range p.parts[dev.index].units {
				users[unit]++
			}
		}
	}
	all := make([]int, len(users))
	for i := range all {
		all[i] = i
	}
	slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(users[a], users[b]) })
	return all[:n]
}
