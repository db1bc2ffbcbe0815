package schedule

import "cmp"

const (
	latest   int64 = 1 << 61 // the largest time or Busy, so that sums do not overflow
	sliceMin int64 = 2e6
	sliceMax int64 = 50e6

	// The next job is decided on this long before a slice ends: work in flight is shorter.
	lead int64 = 2_500_000
	// Close is sent this long after the end of a slice to a seat that has not closed by itself.
	grace int64 = 500e3
	// A slice is at least this many times as long as its job usually drains beyond it.
	perDrain int64 = 20
	// A Tick that comes so late was due while nobody kept the time.
	missed int64 = 100e6
	// All that take turns on a device without guests have had one after this many slices, or after one each.
	roundOfTurns int64 = 4
	// A seat that says Closed is all but drained. If it runs for longer than this afterwards, its work waits for something.
	early int64 = 1e6
)

// over returns o, with the fields of below where o has none.
func (o Options) over(below Options) Options {
	return Options{
		Slice:      cmp.Or(o.Slice, below.Slice),
		SliceMax:   cmp.Or(o.SliceMax, below.SliceMax),
		Quantum:    cmp.Or(o.Quantum, below.Quantum),
		Burst:      cmp.Or(o.Burst, below.Burst),
		DrainBound: cmp.Or(o.DrainBound, below.DrainBound),
		SeepAfter:  cmp.Or(o.SeepAfter, below.SeepAfter),
		Preempt:    o.Preempt || below.Preempt,
	}
}

// fit fills in defaults and brings every field into its range.
func (o Options) fit() Options {
	within := func(v, fallback, low, high int64) int64 { return max(low, min(cmp.Or(v, fallback), high)) }
	o.Slice = within(o.Slice, DefaultSlice, sliceMin, sliceMax)
	o.SliceMax = within(o.SliceMax, 5*o.Slice, o.Slice, 4*sliceMax)
	o.Quantum = within(o.Quantum, DefaultQuantum, 100e3, second)
	o.Burst = within(o.Burst, DefaultBurst, o.Quantum, second)
	o.DrainBound = within(o.DrainBound, 100e6, 1e6, 60*second)
	o.SeepAfter = within(o.SeepAfter, 500e3, 100e3, second)
	return o
}
