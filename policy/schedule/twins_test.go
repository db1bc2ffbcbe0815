package schedule

import (
	"fmt"
	"testing"
)

// Two programs that are bound by their launches do together what they do without gates, in the shares asked for: what one
// cannot use is the other's.
func TestTwins(t *testing.T) {
	for _, w := range []struct{ kernel, every int64 }{{40, 100}, {60, 100}, {70, 100}, {80, 100}, {90, 100}} {
		for _, tt := range []struct {
			weight uint32
			share  float64 // of what all do
		}{{100, 50}, {200, 66.7}, {1000, 90.9}} {
			t.Run(fmt.Sprintf("%d of %d us, %d:100", w.kernel, w.every, tt.weight), func(t *testing.T) {
				run := func(native bool) (mine, sum float64) {
					c := newChip(t, Options{})
					c.native = native
					x := c.add(1, Params{Weight: tt.weight}, w.kernel*us, 0, 0)
					y := c.add(2, Params{}, w.kernel*us, 0, 0)
					x.every, y.every = w.every*us, w.every*us
					c.run(3 * second)
					parts := c.seconds(20)
					if !native {
						t.Logf("%.1f + %.1f; %.1f", mean(parts[x]), mean(parts[y]), parts[x])
					}
					return mean(parts[x]), mean(parts[x]) + mean(parts[y])
				}
				_, natively := run(true)
				mine, sum := run(false)
				t.Logf("%.1f %% of the %.1f without gates", 100*sum/natively, natively)
				if 100*sum/natively < 98 {
					t.Errorf("both do %.1f %% of what they do without gates, want 98", 100*sum/natively)
				}
				// The hardware slices of one are at most eight times as long as those of the other.
				if want := min(100*float64(w.kernel)/float64(w.every), tt.share*natively/100) * 0.9; mine < want {
					t.Errorf("the first uses %.1f %%, want %.1f", mine, want)
				}
			})
		}
	}
}

// Gangs that are bound by their launches have what they are to have by weight, and lose nothing for it together: one that
// has less of its devices keeps the other's collectives waiting for no longer than natively.
func TestGangsByWeight(t *testing.T) {
	both := []Device{0, 1}
	for _, w := range []struct {
		name string
		run  program
		slow int
	}{
		{"few collectives, bound by launches", program{100 * us, 100 * us, 100 * us, -200 * us}, 8},
		{"few collectives", program{100 * us, 100 * us, 100 * us, -200 * us}, 3},
		{"many collectives", program{50 * us, 50 * us, 50 * us, 50 * us, -100 * us, -100 * us}, 8},
		{"half of it collectives", program{400 * us, -200 * us}, 3},
	} {
		for _, weight := range []uint32{200, 300, 1000} {
			made := func(native bool) (parts []float64) {
				r := newRig(t, Options{Preempt: true})
				r.chips, r.native, r.switching = map[Device]*turns{}, native, preemption
				var gangs [][]*worker
				for i, p := range []Params{{Weight: weight}, {}} {
					gangs = append(gangs, r.lgpu(ID(i+1), p, w.run, both...))
					for _, x := range gangs[i] {
						x.slow = w.slow
					}
				}
				r.run(second)
				parts = make([]float64, len(gangs))
				for _, second := range r.progress(4, gangs...) {
					for i, part := range second {
						parts[i] += part / 4
					}
				}
				return parts
			}
			native, parts := made(true), made(false)
			t.Logf("%s, %d:100: %.1f, natively %.1f", w.name, weight, parts, native)
			if sum, natively := parts[0]+parts[1], native[0]+native[1]; sum < 0.96*natively {
				t.Errorf("%s, %d:100: both do %.1f, natively %.1f", w.name, weight, sum, natively)
			}
			if parts[0] < 1.15*parts[1] || parts[0] < 1.15*native[0] {
				t.Errorf("%s, %d:100: %.1f, natively %.1f", w.name, weight, parts, native)
			}
		}
	}
}

// Programs that wait for each of their kernels leave the device idle in their turns, too, but would do less as guests: they
// go on in turns once that has been tried. Natively the device would be switched at each of their pauses.
func TestTwinsThatWait(t *testing.T) {
	for _, gap := range []int64{10, 20, 30, 40, 50} {
		do := func(n int) (parts []float64) {
			c := newChip(t, Options{})
			for i := range n {
				c.add(ID(i+1), Params{}, 200*us, 200*us, gap*us)
			}
			c.run(6 * second)
			all := c.seconds(60)
			for _, x := range c.programs {
				parts = append(parts, mean(all[x]))
			}
			return parts
		}
		alone, both := do(1), do(2)
		for i, p := range both {
			t.Logf("gaps of %d us: %d has %.2f %% of its native rate", gap, i+1, 100*p/alone[0])
			if of := 100 * p / alone[0]; of < 48 {
				t.Errorf("gaps of %d us: %d has %.2f %% of its native rate", gap, i+1, of)
			}
		}
	}
}
