package share

import (
	"math"
	"slices"
	"testing"
)

func on0(v uint32) map[Device]uint32 { return map[Device]uint32{0: v} }

var saturating = work{kernel: 200 * us}

func TestShares(t *testing.T) {
	type lgpu struct {
		p    Params
		w    work
		want float64
	}
	capped := func(percent uint32) lgpu { return lgpu{Params{Cap: on0(percent * 100)}, saturating, float64(percent)} }
	weighted := func(w uint32, want float64) lgpu { return lgpu{Params{Weight: w}, saturating, want} }
	eight := []lgpu{}
	for i := range 8 {
		eight = append(eight, weighted(uint32(i+1)*50, float64(i+1)*100/36))
	}
	tests := []struct {
		name string
		of   []lgpu
	}{
		{"alone", []lgpu{weighted(0, 100)}},
		{"10", []lgpu{capped(10)}},
		{"25", []lgpu{capped(25)}},
		{"50", []lgpu{capped(50)}},
		{"75", []lgpu{capped(75)}},
		{"90", []lgpu{capped(90)}},
		{"30 beside 60", []lgpu{capped(30), capped(60)}},
		{"10 beside 90", []lgpu{capped(10), capped(90)}},
		{"4 x 25", []lgpu{capped(25), capped(25), capped(25), capped(25)}},
		{"equal", []lgpu{weighted(0, 50), weighted(0, 50)}},
		{"90 to 10", []lgpu{weighted(900, 90), weighted(100, 10)}},
		{"8 weights", eight},
		{"capped beside open", []lgpu{capped(30), weighted(0, 70)}},
		{"cap above weight", []lgpu{{Params{Cap: on0(8000)}, saturating, 50}, weighted(0, 50)}},
		{"50 ms kernels beside 200 us", []lgpu{{Params{}, work{kernel: 50 * ms}, 50}, weighted(0, 50)}},
		{"50 ms kernels capped", []lgpu{{Params{Cap: on0(3000)}, work{kernel: 50 * ms}, 30}, capped(60)}},
		{"minimum", []lgpu{{Params{Weight: 100, Min: on0(4000)}, saturating, 40}, weighted(900, 60)}},
		{"minimum beside high", []lgpu{{Params{Min: on0(2500)}, saturating, 25}, {Params{Class: High}, saturating, 75}}},
		{"high", []lgpu{{Params{Class: High, Cap: on0(7000)}, saturating, 70}, weighted(1000, 30)}},
		{"latency-critical has no more", []lgpu{{Params{Latency: true}, saturating, 50}, weighted(0, 50)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t, Options{})
			var all []*tenant
			for i, l := range tt.of {
				all = append(all, m.add(ID(i+1), l.p, 0, l.w))
			}
			m.reports(5 * ms)
			m.run(second)
			parts := m.windows(10, second)
			for i, x := range all {
				want, within := tt.of[i].want, 2.0
				if x.work.kernel > 10*ms {
					within = 6 // a kernel is 5 % of a window
				}
				t.Logf("%d: want %.1f, got %.2f: %.1f", i, want, mean(parts[x]), parts[x])
				if got := mean(parts[x]); math.Abs(got-want) > 1 {
					t.Errorf("lgpu %d got %.2f %%, want %.1f", i, got, want)
				}
				for _, got := range parts[x] {
					if math.Abs(got-want) > within {
						t.Errorf("lgpu %d got %.2f %% in a window, want %.1f", i, got, want)
					}
				}
			}
			_ = slices.Max[[]float64]
		})
	}
}
