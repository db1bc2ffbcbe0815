package schedule

import "testing"

// BenchmarkEvent is the cost of an event, its decisions and the question for the next time, with 16 lgpus that take
// turns on a device.
func BenchmarkEvent(b *testing.B) {
	for _, groups := range []bool{false, true} {
		name := "flat"
		if groups {
			name = "groups"
		}
		b.Run(name, func(b *testing.B) {
			s := New(Options{})
			now := second
			busy := [17]int64{}
			must := func(err error) {
				if err != nil {
					b.Fatal(err)
				}
			}
			for id := range ID(4) {
				must(s.Set(now, 100+id, Params{Weight: uint32(id+1) * 100}))
			}
			for id := ID(1); id <= 16; id++ {
				p := Params{Weight: uint32(id) * 10}
				if groups {
					p.Parent = 100 + id%4
					p.Max = on0(5000)
				}
				must(s.Set(now, id, p))
				must(s.Attach(now, id, 0, 0))
			}
			for id := ID(1); id <= 16; id++ {
				s.Want(now, id, 0, 0)
			}
			running := ID(0)
			take := func() {
				for _, d := range s.Decisions() {
					if d.Kind == Open {
						running = d.ID
					}
				}
			}
			take()
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				now += 2 * ms
				busy[running] += 2 * ms
				if i%5 == 4 {
					s.Closed(now, running, 0, busy[running], true)
				} else {
					s.Progress(now, running, 0, busy[running])
				}
				take()
				if next, ok := s.Next(); ok && next <= now {
					s.Tick(now)
					take()
				}
			}
		})
	}
}
