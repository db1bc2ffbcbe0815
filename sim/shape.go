// Package sim runs the software GPU: it says which devices a hardware process has, starts that process for the first
// tenant and lets it end after the last.
//
//	shape, err := sim.ParseShape("2x16GiB,sms=32")
//	hardware, err := sim.Start(shape, sim.StartOptions{Dir: dir, Command: []string{exe, "sim"}})
//	defer hardware.Close()
//	cmd.Env = append(cmd.Env, wire.Environment+"="+hardware.Socket)
//
// The device itself is in sim/hw, its driver in sim/driver, the protocol in sim/wire and the libraries that programs
// load in sim/client.
package sim

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lgpu/lgpu/internal/units"
	"github.com/lgpu/lgpu/sim/driver"
)

// Shape describes the devices of a hardware process. Two tenants with equal shapes share one process.
type Shape struct {
	Devices int             // 1 to 16
	Memory  uint64          // of each, bytes
	Units   int             // compute units (SMs) of each
	MHz     float64         // clock of a unit
	Slice   time.Duration   // turn of a context while others wait, unless it has set its own
	Link    uint64          // bandwidth between host and device, each way, bytes a second
	Context uint64          // device memory that a context costs, bytes
	Switch  time.Duration   // passes when units are taken from a context that could go on
	Slices  driver.Slices   // what becomes of a context's own slice
	MIG     driver.Division // the MIG instances of each device
}

// DefaultShape is what a shape's text does not mention: one device of 16 GiB with 32 units. Its clock is slow on
// purpose: a device must never be faster than the host can interpret (sim/hw).
var DefaultShape = Shape{Devices: 1, Memory: 16 << 30, Units: 32, MHz: 1, Slice: 2 * time.Millisecond, Link: 4e9, Context: 64 << 20}

// ErrShape is wrapped by every error about a shape's text.
var ErrShape = errors.New("no shape of devices")

// Bounds of a shape.
const (
	maxDevices = 16
	maxMemory  = 1 << 40
	minMemory  = 64 << 20
	maxUnits   = 1024
)

// ParseShape reads [COUNTx]MEMORY[,KEY=VALUE]..., such as 16GiB or 2x16GiB,sms=32. The empty text is DefaultShape. An
// error wraps ErrShape and names the part. The keys:
//
//	sms=N                      Units
//	clock=MHZ                  MHz
//	slice=DURATION             Slice, 100µs to 1s
//	link=BYTES/s               Link
//	context=BYTES              Context
//	switch=DURATION            Switch, 0 to 10ms
//	slices=set|refuse|ignore   Slices: one can be set, cannot be, or seems to be
//	mig=3g+1g+…                MIG: how many compute slices of seven each instance has
func ParseShape(text string) (Shape, error) {
	s := DefaultShape
	if text == "" {
		return s, nil
	}
	parts := strings.Split(text, ",")
	size := parts[0]
	if count, rest, ok := strings.Cut(size, "x"); ok {
		n, err := strconv.Atoi(count)
		if err != nil || n < 1 || n > maxDevices {
			return Shape{}, fmt.Errorf("%w: %q: the number of devices is 1 to %d", ErrShape, text, maxDevices)
		}
		s.Devices, size = n, rest
	}
	var err error
	if s.Memory, err = units.ParseSize(size); err != nil {
		return Shape{}, fmt.Errorf("%w: %q: %w", ErrShape, text, err)
	}
	for _, part := range parts[1:] {
		if err := s.set(part); err != nil {
			return Shape{}, fmt.Errorf("%w: %q: %w", ErrShape, text, err)
		}
	}
	if err := s.Check(); err != nil {
		return Shape{}, err
	}
	return s, nil
}

func (s *Shape) set(part string) error {
	key, value, ok := strings.Cut(part, "=")
	if !ok {
		return fmt.Errorf("%q is not KEY=VALUE", part)
	}
	var err error
	switch key {
	case "sms":
		s.Units, err = strconv.Atoi(value)
	case "clock":
		s.MHz, err = strconv.ParseFloat(strings.TrimSuffix(value, "MHz"), 64)
	case "slice":
		s.Slice, err = time.ParseDuration(value)
	case "link":
		s.Link, err = units.ParseSize(strings.TrimSuffix(value, "/s"))
	case "context":
		s.Context, err = units.ParseSize(value)
	case "switch":
		s.Switch, err = time.ParseDuration(value)
	case "slices":
		s.Slices, err = driver.ParseSlices(value)
	case "mig":
		s.MIG, err = driver.ParseDivision(value)
	default:
		return fmt.Errorf("unknown key %q; there are sms, clock, slice, link, context, switch, slices and mig", key)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// Check reports the first part of s that no device can have, wrapping ErrShape.
func (s Shape) Check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrShape, fmt.Sprintf(format, args...))
	}
	switch {
	case s.Devices < 1 || s.Devices > maxDevices:
		return bad("%d devices; there are 1 to %d", s.Devices, maxDevices)
	case s.Memory < minMemory || s.Memory > maxMemory:
		return bad("memory of %s; a device has %s to %s", units.FormatSize(s.Memory), units.FormatSize(minMemory), units.FormatSize(maxMemory))
	case s.Units < 1 || s.Units > maxUnits:
		return bad("%d units; a device has 1 to %d", s.Units, maxUnits)
	case !(s.MHz > 0 && s.MHz <= 10000):
		return bad("a clock of %g MHz", s.MHz)
	case s.Slice < 100*time.Microsecond || s.Slice > time.Second:
		return bad("slices of %v; they last 100µs to 1s", s.Slice)
	case s.Link < 1<<20 || s.Link > 1<<40:
		return bad("a link of %s/s", units.FormatSize(s.Link))
	case s.Switch < 0 || s.Switch > 10*time.Millisecond:
		return bad("a switch of %v; it takes 0s to 10ms", s.Switch)
	case s.Slices < driver.SlicesSet || s.Slices > driver.SlicesIgnore:
		return bad("%v; there are set, refuse and ignore", s.Slices)
	case s.Context >= s.Memory:
		return bad("a context of %s on a device of %s", units.FormatSize(s.Context), units.FormatSize(s.Memory))
	}
	if err := s.MIG.Check(s.Memory, s.Units, s.Context); err != nil {
		return fmt.Errorf("%w: %w", ErrShape, err)
	}
	return nil
}

// String returns the text that ParseShape reads s from, with what differs from DefaultShape.
func (s Shape) String() string {
	text := fmt.Sprintf("%dx%s,sms=%d", s.Devices, exact(s.Memory), s.Units)
	if s.MHz != DefaultShape.MHz {
		text += fmt.Sprintf(",clock=%g", s.MHz)
	}
	if s.Slice != DefaultShape.Slice {
		text += fmt.Sprintf(",slice=%v", s.Slice)
	}
	if s.Link != DefaultShape.Link {
		text += fmt.Sprintf(",link=%s", exact(s.Link))
	}
	if s.Context != DefaultShape.Context {
		text += fmt.Sprintf(",context=%s", exact(s.Context))
	}
	if s.Switch != DefaultShape.Switch {
		text += fmt.Sprintf(",switch=%v", s.Switch)
	}
	if s.Slices != DefaultShape.Slices {
		text += fmt.Sprintf(",slices=%v", s.Slices)
	}
	if s.MIG != DefaultShape.MIG {
		text += fmt.Sprintf(",mig=%v", s.MIG)
	}
	return text
}

// exact writes a size without rounding.
func exact(n uint64) string {
	for _, u := range []struct {
		size uint64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n%u.size == 0 {
			return strconv.FormatUint(n/u.size, 10) + u.name
		}
	}
	return strconv.FormatUint(n, 10)
}
