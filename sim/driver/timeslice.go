package driver

import (
	"fmt"
	"slices"
	"time"

	"github.com/lgpu/lgpu/sim/wire"
)

// Slices is what the driver does when a process sets the time slice of one of its contexts. Physical GPUs' drivers
// differ in it.
type Slices int

// The values of Slices.
const (
	SlicesSet    Slices = iota // the slice holds from now on
	SlicesRefuse               // nothing can be set or asked: CUDA_ERROR_NOT_SUPPORTED
	SlicesIgnore               // the call succeeds and changes nothing
)

var slicesNames = []string{SlicesSet: "set", SlicesRefuse: "refuse", SlicesIgnore: "ignore"}

// String is the name that ParseSlices reads.
func (s Slices) String() string {
	if s < 0 || int(s) >= len(slicesNames) {
		return fmt.Sprintf("slices(%d)", int(s))
	}
	return slicesNames[s]
}

// ParseSlices reads set, refuse or ignore. An error says what there is.
func ParseSlices(name string) (Slices, error) {
	i := slices.Index(slicesNames, name)
	if i < 0 {
		return 0, fmt.Errorf("%q is not one of set, refuse and ignore", name)
	}
	return Slices(i), nil
}

// maxTimeslice is the longest slice that a process may give a context, in microseconds.
const maxTimeslice = 1_000_000

// timesliced finds the context whose slice is set or asked for.
func (p *Process) timesliced(ctx wire.CUcontext) (*context, Result) {
	c := lookup[context](&p.handles, uint64(ctx))
	if c == nil {
		return nil, errInvalidContext
	}
	return c, c.fault
}

// CtxSetTimeslice sets the time slice of a context to so many microseconds, or to the device's own for 0. It holds from
// the turn on that is under way, and ends with the context.
func (p *Process) CtxSetTimeslice(_ *wire.Call, ctx wire.CUcontext, micros uint64) wire.CUresult {
	defer p.lock()()
	c, res := p.timesliced(ctx)
	switch {
	case res != success:
		return res
	case micros > maxTimeslice:
		return errInvalidValue
	case p.d.options.Slices == SlicesRefuse:
		return errNotSupported
	case p.d.options.Slices == SlicesSet:
		c.channel.SetSlice(time.Duration(micros) * time.Microsecond)
	}
	return success
}

// CtxGetTimeslice is the time slice of a context in microseconds: what holds, whatever was set.
func (p *Process) CtxGetTimeslice(_ *wire.Call, ctx wire.CUcontext) (uint64, wire.CUresult) {
	defer p.lock()()
	c, res := p.timesliced(ctx)
	switch {
	case res != success:
		return 0, res
	case p.d.options.Slices == SlicesRefuse:
		return 0, errNotSupported
	}
	return uint64(c.channel.Slice() / time.Microsecond), success
}
