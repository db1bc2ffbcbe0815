package slot

import (
	"fmt"
	"testing"
	"time"
)

// Three servers, of which one fits, or two, are called in turn with pauses. Where one fits each call moves one server out and
// one in, and no more. That must not hang on whether the gates of idle ones stay open until their memory is to leave, as they
// do where the hardware preempts.
func TestServers(t *testing.T) {
	for _, pause := range []time.Duration{0, 50 * time.Millisecond, 1500 * time.Millisecond, 5 * time.Second, 20 * time.Second} {
		for _, keeps := range []bool{false, true} {
			for room, most := range map[uint64]float64{16: 24.2, 28: 19.4} {
				t.Run(fmt.Sprintf("%d GiB, %v, %v", room, pause, keeps), func(t *testing.T) {
					if each := servers(t, room*gib, pause, keeps); each > most {
						t.Errorf("%.1f GiB were moved for each call", each)
					}
				})
			}
		}
	}
}

// servers returns how much is moved for each call of three servers, in GiB.
func servers(t *testing.T, room uint64, pause time.Duration, keeps bool) float64 {
	const calls = 20
	w := newWorld(Options{}, 1, room)
	next, called, free := 0, 0, w.now
	for i := range 3 {
		g := w.add(0, 12*gib, func(g *guest, w *world) {
			if i == next && called == next && !w.now.Before(free) {
				g.work, called = 400*time.Millisecond, (next+1)%3
			}
		})
		g.tells, g.keeps = true, keeps
	}
	call := func() {
		before := w.now
		for at := called; called == at || w.guests[at].work != 0; {
			if w.step(t); w.now.Sub(before) > time.Minute {
				t.Fatal("a call has no end")
			}
		}
		next, free = called, w.now.Add(pause)
	}
	for range 6 { // in which it learns
		call()
	}
	moved := w.moved
	for range calls {
		call()
	}
	return float64(w.moved-moved) / calls / float64(gib)
}
