package schedule

import "testing"

func TestTwins(t *testing.T) {
	for _, w := range []struct{ kernel, every int64 }{{40, 100}, {60, 100}, {70, 100}, {80, 100}, {90, 100}, {100, 100}} {
		for _, weight := range []uint32{100, 200, 1000} {
			run := func(native bool) (float64, float64, []float64) {
				c := newChip(t, Options{})
				c.native = native
				x := c.add(1, Params{Weight: weight}, w.kernel*us, 0, 0)
				y := c.add(2, Params{}, w.kernel*us, 0, 0)
				x.every, y.every = w.every*us, w.every*us
				c.run(3 * second)
				parts := c.seconds(20)
				return mean(parts[x]), mean(parts[y]), parts[x]
			}
			nx, ny, _ := run(true)
			x, y, all := run(false)
			t.Logf("%d of %d us, %d:100: %.1f + %.1f = %.1f; natively %.1f + %.1f = %.1f: %.1f %% %.1f", w.kernel, w.every, weight, x, y, x+y, nx, ny, nx+ny, 100*(x+y)/(nx+ny), all)
		}
	}
}
