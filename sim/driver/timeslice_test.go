package driver

import (
	"math"
	"testing"
	"time"

	"github.com/lgpu/lgpu/sim/hw"
	"github.com/lgpu/lgpu/sim/wire"
)

// spin is a kernel that never ends.
var spin = []byte(`.version 6.0
.target sm_70
.address_size 64
.visible .entry spin()
{
again:
	bra again;
}
`)

// context makes a context of the device that is not the primary one.
func (c *client) context() wire.CUcontext {
	c.t.Helper()
	ctx, res := c.CtxCreate(c.call, 0, 0)
	c.want(res, success)
	return ctx
}

// slice checks what a context's slice is.
func (c *client) slice(ctx wire.CUcontext, want uint64) {
	c.t.Helper()
	got, res := c.CtxGetTimeslice(c.call, ctx)
	c.want(res, success)
	if got != want {
		c.t.Fatalf("the slice is %d µs, want %d", got, want)
	}
}

func TestTimeslice(t *testing.T) {
	b := newBenchOf(t, 1, hw.Config{Memory: 64 << 20, Slice: 3 * time.Millisecond}, Options{})
	c, other := b.connect(), b.connect()
	second := c.context()
	c.slice(c.ctx, 3000)
	for _, micros := range []uint64{50, 1, maxTimeslice} {
		c.want(c.CtxSetTimeslice(c.call, c.ctx, micros), success)
		c.slice(c.ctx, micros)
	}
	for _, micros := range []uint64{maxTimeslice + 1, 1 << 40, math.MaxUint64} {
		c.want(c.CtxSetTimeslice(c.call, c.ctx, micros), errInvalidValue)
		c.slice(c.ctx, maxTimeslice)
	}
	c.slice(second, 3000) // each context has its own
	other.slice(other.ctx, 3000)
	c.want(c.CtxSetTimeslice(c.call, c.ctx, 0), success)
	c.slice(c.ctx, 3000)

	// Contexts that are no contexts: none, a number, a stream, one that is gone, another process's.
	stream := wire.CUcontext(c.stream(0))
	c.want(c.CtxSetTimeslice(c.call, second, 20), success)
	c.want(c.CtxDestroy(c.call, second), success)
	foreign := other.context()
	for range 3 { // until it has a handle that c has not
		foreign = other.context()
	}
	for _, ctx := range []wire.CUcontext{0, 7, stream, second, foreign} {
		c.want(c.CtxSetTimeslice(c.call, ctx, 50), errInvalidContext)
		c.want(c.CtxSetTimeslice(c.call, ctx, maxTimeslice+1), errInvalidContext)
		_, res := c.CtxGetTimeslice(c.call, ctx)
		c.want(res, errInvalidContext)
	}

	// A slice ends with its context.
	c.slice(c.context(), 3000)
	c.want(c.CtxSetTimeslice(c.call, c.ctx, 50), success)
	c.want(c.DevicePrimaryCtxReset(c.call, 0), success)
	c.use(0)
	c.slice(c.ctx, 3000)
}

// TestTimesliceNotSet looks at the drivers on which slices cannot be set.
func TestTimesliceNotSet(t *testing.T) {
	for _, tc := range []struct {
		slices   Slices
		set, get Result
	}{{SlicesRefuse, errNotSupported, errNotSupported}, {SlicesIgnore, success, success}} {
		b := newBenchOf(t, 1, hw.Config{Memory: 64 << 20}, Options{Slices: tc.slices})
		c := b.connect()
		c.want(c.CtxSetTimeslice(c.call, c.ctx, 50), tc.set)
		c.want(c.CtxSetTimeslice(c.call, c.ctx, 0), tc.set)
		c.want(c.CtxSetTimeslice(c.call, c.ctx, maxTimeslice+1), errInvalidValue)
		c.want(c.CtxSetTimeslice(c.call, 0, 50), errInvalidContext)
		got, res := c.CtxGetTimeslice(c.call, c.ctx)
		c.want(res, tc.get)
		if res == success && got != 2000 {
			t.Errorf("%v: the slice is %d µs", tc.slices, got)
		}
		if own := b.m.Devices[0].Config.Slice; c.contexts[0].channel.Slice() != own {
			t.Errorf("%v: turns last %v", tc.slices, c.contexts[0].channel.Slice())
		}
	}
}

// TestUtilizationBySlices checks that a process's utilisation is the time in which its kernels were executed, when
// slices share the device: neither its waiting counts nor switches, which count for the device alone.
func TestUtilizationBySlices(t *testing.T) {
	for _, tc := range []struct {
		name   string
		slices Slices
		micros [2]uint64
		want   [2]uint32
		cost   time.Duration
	}{
		{"equal", SlicesSet, [2]uint64{0, 0}, [2]uint32{50, 50}, 0},
		{"one to three", SlicesSet, [2]uint64{1000, 3000}, [2]uint32{25, 75}, 0},
		{"one to three, with switches", SlicesSet, [2]uint64{1000, 3000}, [2]uint32{23, 68}, 200 * time.Microsecond}, // of 4.4 ms
		{"short, with switches", SlicesSet, [2]uint64{200, 200}, [2]uint32{25, 25}, 200 * time.Microsecond},
		{"ignored", SlicesIgnore, [2]uint64{1000, 3000}, [2]uint32{50, 50}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBenchOf(t, 1, hw.Config{Memory: 64 << 20, Switch: tc.cost}, Options{Slices: tc.slices})
			want := map[uint32]uint32{}
			for i, micros := range tc.micros {
				c := b.connect()
				c.want(c.CtxSetTimeslice(c.call, c.ctx, micros), success)
				c.want(c.launch(c.kernel(spin, "spin"), shape(4, 32), 0), success)
				want[uint32(c.pid)] = tc.want[i]
			}
			// Kernels run from now on for ever: look at a second that begins after now.
			clock := b.m.Devices[0].Clock
			for begin := clock.Now(); clock.Now() < begin+hw.Time(2*samplePeriod); {
				tick()
			}
			processes, _, res := b.d.DeviceProcesses(0, 10)
			info, _ := b.d.DeviceInfo(0)
			if res != success || len(processes) != len(want) || info.UtilizationGPU != 100 {
				t.Fatalf("result %d, %d processes, device %d %%", res, len(processes), info.UtilizationGPU)
			}
			for _, p := range processes {
				if d := int(p.UtilizationGPU) - int(want[p.PID]); d < -1 || d > 1 {
					t.Errorf("process %d has %d %%, want %d", p.PID, p.UtilizationGPU, want[p.PID])
				}
			}
		})
	}
}
