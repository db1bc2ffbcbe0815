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
