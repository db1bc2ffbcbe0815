package conformance

import "slices"

// rateOf fills in what kernels, in the order in which they ran, did in span ns, lead ns after the first began. Kernels that
// reach over an edge count in part.
func rateOf(m *Measurement, done []kernel, lead, span uint64) {
	if len(done) == 0 {
		return
	}
	first := done[0].start + lead
	last := min(first+span, done[len(done)-1].end)
	if last <= first {
		return
	}
	var work, busy float64
	lasted := make([]uint64, len(done))
	for i, k := range done {
		lasted[i] = k.end - k.start
		if k.end > first && k.start < last {
			in := float64(min(k.end, last) - max(k.start, first))
			work += in / float64(lasted[i])
			busy += in
			m.Kernels++
		}
	}
	slices.Sort(lasted)
	seconds := float64(last-first) / 1e9
	m.Rate, m.DeviceTime = work/seconds, busy/1e9/seconds
	m.KernelMS = float64(lasted[len(lasted)/2]) / 1e6
}

// pace is the rate while kernels ran: pauses between launches, which a busy host makes longer, left out.
func (m Measurement) pace() float64 { return m.Rate / m.DeviceTime }
