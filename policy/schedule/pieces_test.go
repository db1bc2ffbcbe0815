package schedule

import (
	"math/rand/v2"
	"testing"
)

// pieces adds an lgpu that attaches to its devices one after the other, a while apart, while it runs: on each device it
// goes on where the ones before it are, so that collectives which they have launched wait for it.
func (r *rig) pieces(id ID, p Params, run program, while int64, devices ...Device) []*worker {
	r.t.Helper()
	group := r.lgpu(id, p, run, devices[0])
	for _, dev := range devices[1:] {
		r.run(while)
		if err := r.s.Attach(r.now, id, dev, 0); err != nil {
			r.t.Fatal(err)
		}
		w := &worker{id: id, dev: dev, program: run, slice: ownSlice, done: group[0].done, launched: group[0].done}
		r.workers = append(r.workers, w)
		group = append(group, w)
		for _, o := range group {
			o.group = group
		}
		r.decide()
	}
	return group
}

// A guest that attaches to a second device may hold half of a collective that waits for its first launch there. It cannot
// drain before that is let through, and its gang cannot have a grant before it has drained.
func TestGuestThatWaitsForItsGang(t *testing.T) {
	r := newRig(t, Options{Preempt: true})
	r.chips = map[Device]*turns{}
	r.lgpu(1, Params{}, program{2 * ms}, 1)
	half := map[Device]uint32{0: 5000, 1: 5000}
	gang := r.pieces(2, Params{Max: half}, program{-300 * us}, 100*ms, 0, 1)
	r.run(second)
	for _, parts := range r.progress(3, gang) {
		if parts[0] < 20 {
			t.Errorf("it made %.1f %% of its way, %d seeps", parts[0], r.seeps)
		}
	}
	if err := r.s.consistent(); err != nil {
		t.Error(err)
	}
}

// Gangs go on whenever their seats came, and whatever they did before.
func TestGangsThatComeInPieces(t *testing.T) {
	random := rand.New(rand.NewPCG(8, 8))
	for n := range 80 {
		r := newRig(t, Options{Preempt: n%2 == 0})
		groups := r.mixture(random, func(id ID, p Params, run program, devices []Device) []*worker {
			return r.pieces(id, p, run, random.Int64N(300)*ms, devices...)
		})
		r.goOn(groups, 1, 3)
	}
}
