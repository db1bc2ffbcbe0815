package tenant

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lgpu/lgpu/tenant/region"
)

// memory is a counter with processes that behave as the interposer does.
type memory struct {
	granted atomic.Uint64
	used    atomic.Uint64
}

func (m *memory) Grant(bytes uint64) { m.granted.Store(bytes) }
func (m *memory) Used() uint64       { return m.used.Load() }

func (m *memory) free(bytes uint64) { m.used.Add(-bytes) }

// add is the interposer's: add, look again, take back. False: it may not.
func (m *memory) add(bytes uint64) bool {
	for {
		used := m.used.Load()
		if used+bytes > m.granted.Load() {
			return false
		}
		if m.used.CompareAndSwap(used, used+bytes) {
			break
		}
	}
	if m.used.Load() > m.granted.Load() {
		m.free(bytes)
		return false
	}
	return true
}

// world is a pool with what is true about it, told apart from what the pool believes.
type world struct {
	*pool
	t       *testing.T
	parents map[uint64]uint64 // of budgets
	most    map[uint64]uint64 // of budgets
	above   map[uint64]uint64 // budget above a quota
	memory  map[uint64]*memory
}

func newWorld(t *testing.T) *world {
	return &world{
		pool: newPool(), t: t, parents: map[uint64]uint64{}, most: map[uint64]uint64{}, above: map[uint64]uint64{},
		memory: map[uint64]*memory{},
	}
}

func (w *world) budget(id, parent, most uint64) {
	w.parents[id], w.most[id] = parent, most
	w.setBudgets(w.parents, w.most, w.above)
}

func (w *world) lgpu(id, parent, limit uint64) {
	w.above[id], w.memory[id] = parent, &memory{}
	w.add(&quota{id: id, limit: limit, most: maxMemory}, parent)
	w.attach(id, w.memory[id], false)
}

// alloc is a process's: what is granted, or else what can be had.
func (w *world) alloc(id, bytes uint64) bool {
	return w.memory[id].add(bytes) || w.need(id, bytes) && w.memory[id].add(bytes)
}

// under is the sum of what the shares below a budget use, or hold.
func (w *world) under(b uint64, of func(id uint64) uint64) (sum uint64) {
	for id, at := range w.above {
		for ; at != 0; at = w.parents[at] {
			if at == b {
				sum += of(id)
				break
			}
		}
	}
	return sum
}

func (w *world) used(id uint64) uint64 { return w.memory[id].Used() }

// need is whether the pool grants it.
func (w *world) need(id, bytes uint64) bool {
	by, ok := w.pool.need(id, bytes)
	if !ok && !w.stops(by, id, bytes) {
		w.t.Errorf("quota %d is refused %d more by %d, whose limit allows it", id, bytes, by)
	}
	return ok
}

// stops reports whether the limit of a quota or budget keeps a quota from getting so much more.
func (w *world) stops(by, id, bytes uint64) bool {
	if by == id {
		return plus(w.used(id), bytes) > min(w.quotas[id].limit, w.quotas[id].most)
	}
	_, is := w.most[by]
	held := func(id uint64) uint64 { return w.quotas[id].charged }
	return is && plus(w.under(by, held), bytes) > w.most[by]
}

// possible says whether so much more is possible for a quota: the definition that the pool must meet.
func (w *world) possible(id, bytes uint64) bool {
	if w.used(id)+bytes > w.quotas[id].limit {
		return false
	}
	for at := w.above[id]; at != 0; at = w.parents[at] {
		if w.under(at, w.used)+bytes > w.most[at] {
			return false
		}
	}
	return true
}

// check looks at everything that must always hold.
func (w *world) check(when string) {
	w.t.Helper()
	for id, s := range w.quotas {
		seen := w.memory[id].granted.Load()
		if s.granted > s.limit || s.granted != seen || s.charged < min(s.granted, s.most) || s.charged < w.used(id) {
			w.t.Fatalf("%s: quota %d: limit %d, granted %d (its clients see %d), charged %d, used %d", when, id, s.limit, s.granted,
				seen, s.charged, w.used(id))
		}
	}
	for id, b := range w.budgets {
		if held := w.under(id, func(s uint64) uint64 { return w.quotas[s].charged }); b.charged != held {
			w.t.Fatalf("%s: budget %d is charged %d, its quotas %d", when, id, b.charged, held)
		}
		granted := w.under(id, func(s uint64) uint64 { return min(w.quotas[s].granted, maxMemory) })
		if granted > b.max || granted > 0 && b.charged > b.max {
			w.t.Fatalf("%s: budget %d of %d: %d are granted, %d charged", when, id, b.max, granted, b.charged)
		}
	}
}

// TestPoolGrants: without pressure everybody has all that he may have, and is asked nothing.
func TestPoolGrants(t *testing.T) {
	w := newWorld(t)
	w.lgpu(1, 0, region.NoLimit)
	w.budget(10, 0, 100)
	w.budget(11, 10, 50)
	w.lgpu(2, 11, 30)
	w.lgpu(3, 11, 20)
	w.lgpu(4, 10, 50)
	for id, want := range map[uint64]uint64{1: region.NoLimit, 2: 30, 3: 20, 4: 50} {
		if got := w.memory[id].granted.Load(); got != want {
			t.Errorf("lgpu %d is granted %d, want %d", id, got, want)
		}
	}
	w.lgpu(5, 11, 40) // more than group 11 has, whose own limit keeps 10 out of it
	if got := w.memory[4].granted.Load(); got != 50 {
		t.Errorf("an lgpu beside a crowded group is granted %d, want 50", got)
	}
	w.check("crowded")
	if !w.alloc(5, 40) || !w.alloc(2, 10) || w.alloc(3, 1) || w.alloc(2, 1) {
		t.Error("the group's 50 are not what its members get")
	}
	w.budget(11, 10, 90)
	w.setLimit(4, 10)
	for id, want := range map[uint64]uint64{2: 30, 3: 20, 4: 10, 5: 40} {
		if got := w.memory[id].granted.Load(); got != want {
			t.Errorf("with room, lgpu %d is granted %d, want %d", id, got, want)
		}
	}
	w.remove(5)
	delete(w.above, 5)
	delete(w.memory, 5)
	w.check("removed")
}

// TestPoolLower: a limit set below what is used stops everything until it is enough, then lets exactly so much in.
func TestPoolLower(t *testing.T) {
	w := newWorld(t)
	w.budget(10, 0, 100)
	w.lgpu(1, 10, 80)
	w.lgpu(2, 10, 80)
	if !w.alloc(1, 60) || !w.alloc(2, 40) {
		t.Fatal("100 of 100 cannot be had")
	}
	w.budget(10, 0, 50)
	w.check("lowered")
	w.memory[1].free(30)
	if w.alloc(1, 1) || w.alloc(2, 1) {
		t.Error("70 of 50 are used, and more can be had")
	}
	w.memory[2].free(40)
	if !w.alloc(2, 20) || w.alloc(1, 1) {
		t.Error("30 of 50 were used, and not exactly 20 can be had")
	}
	w.setLimit(1, 10)
	if w.alloc(1, 1) {
		t.Error("more than its own limit can be had")
	}
	w.check("own limit lowered")
}

// TestPoolFrozen: what clients of the previous daemon may still allocate stays theirs until they see the new limits.
func TestPoolFrozen(t *testing.T) {
	w := newWorld(t)
	w.budget(10, 0, 100)
	w.above[1], w.memory[1] = 10, &memory{}
	w.add(&quota{id: 1, limit: 100, most: maxMemory, charged: 70}, 10)
	w.lgpu(2, 10, 100)
	if w.alloc(2, 31) || !w.alloc(2, 10) {
		t.Error("beside 70 that others may hold not 30 of 100 can be had")
	}
	w.memory[1].used.Store(50)
	w.attach(1, w.memory[1], true)
	w.check("frozen")
	if w.alloc(2, 21) || !w.alloc(2, 20) {
		t.Error("while they are frozen, not 30 of 100 can be had")
	}
	if !w.need(1, 20) || w.need(1, 21) {
		t.Error("a frozen quota cannot grow to what is charged")
	}
	w.setLimit(1, 60)
	w.check("frozen, with a lower limit")
	if w.need(1, 11) || w.alloc(2, 1) {
		t.Error("while they are frozen a lower limit makes room")
	}
	w.budget(10, 0, 80)
	w.budget(10, 0, 100)
	if !w.need(1, 5) || w.alloc(2, 1) {
		t.Error("while they are frozen a lower limit of the group makes room")
	}
	w.thaw(1)
	if w.alloc(2, 21) || !w.alloc(2, 20) {
		t.Error("after it, not 50 of 100 can be had")
	}
	w.check("thawed")
}

// TestPoolLies: a tenant that writes over its counter takes no more from the others than it was granted.
func TestPoolLies(t *testing.T) {
	w := newWorld(t)
	w.budget(10, 0, 100)
	w.lgpu(1, 10, 200)
	w.lgpu(2, 10, 200)
	if !w.alloc(1, 10) || !w.alloc(2, 70) { // which takes back from 1 what it does not use
		t.Fatal("80 of 100 cannot be had")
	}
	granted := w.memory[1].granted.Load()
	w.memory[1].used.Store(1 << 63)
	if !w.alloc(2, 100-70-granted) {
		t.Errorf("a lie takes more than the %d granted from the other", granted)
	}
	w.budget(10, 0, 99)
	w.budget(10, 0, 120)
	if !w.alloc(2, 20) {
		t.Error("after a change of the group's limit the lie is believed")
	}
	w.memory[1].used.Store(0)
	if w.need(1, 201) || w.need(1, 1<<64-1) {
		t.Error("more than the limit is granted")
	}
}

// TestPoolRandom: whatever happens, no budget is exceeded by what is granted, and what is asked for is granted exactly
// if it is possible.
func TestPoolRandom(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 7))
		w := newWorld(t)
		var next uint64
		fresh := func() uint64 { next++; return next }
		anyOf := func(m map[uint64]uint64) uint64 { // 0, or one of m
			if k := r.IntN(len(m) + 1); k > 0 {
				for id := uint64(1); id <= next; id++ {
					if _, is := m[id]; is {
						if k--; k == 0 {
							return id
						}
					}
				}
			}
			return 0
		}
		amount := func() uint64 {
			if r.IntN(8) == 0 {
				return region.NoLimit
			}
			return 100 * r.Uint64N(8)
		}
		for step := range 300 {
			when := fmt.Sprintf("seed %d, step %d", seed, step)
			id := anyOf(w.above)
			switch op := r.IntN(16); {
			case op == 0 && len(w.parents) < 8:
				w.budget(fresh(), anyOf(w.parents), amount())
			case op == 1 && len(w.parents) > 0:
				if b := anyOf(w.parents); b != 0 {
					w.budget(b, w.parents[b], amount())
				}
			case op == 2 && len(w.above) < 10:
				w.lgpu(fresh(), anyOf(w.parents), amount())
			case op <= 4 && id != 0 && r.IntN(2) == 0:
				w.setLimit(id, amount())
			case op == 4 && id != 0:
				w.remove(id)
				delete(w.above, id)
				delete(w.memory, id)
			case op < 9 && id != 0:
				if used := w.used(id); used > 0 {
					w.memory[id].free(r.Uint64N(used) + 1)
				}
			case id != 0:
				bytes := r.Uint64N(200) + 1
				possible := w.possible(id, bytes)
				if got := w.alloc(id, bytes); got != possible {
					t.Fatalf("%s: quota %d gets %d more: %v, possible: %v", when, id, bytes, got, possible)
				}
			}
			w.check(when)
		}
	}
}

// TestPoolRace: processes of several lgpus allocate and free at once, without a lock, while grants move and the group's
// limit stays: what they hold for certain never exceeds it.
func TestPoolRace(t *testing.T) {
	const limit, lgpus, rounds = 1000, 4, 3000
	w := newWorld(t)
	w.budget(10, 0, limit)
	for id := uint64(1); id <= lgpus; id++ {
		w.lgpu(id, 10, limit)
	}
	var mu sync.Mutex // of the pool
	var certain atomic.Int64
	var group sync.WaitGroup
	for id := uint64(1); id <= lgpus; id++ {
		for process := range uint64(2) {
			group.Go(func() {
				r := rand.New(rand.NewPCG(id, process))
				m := w.memory[id]
				var held []uint64
				for range rounds {
					if bytes := r.Uint64N(limit/2) + 1; r.IntN(2) == 0 {
						got := m.add(bytes)
						if !got {
							mu.Lock()
							_, asked := w.pool.need(id, bytes)
							mu.Unlock()
							got = asked && m.add(bytes)
						}
						if got {
							held = append(held, bytes)
							if now := certain.Add(int64(bytes)); now > limit {
								t.Errorf("%d of %d are held", now, limit)
							}
						}
					} else if len(held) > 0 {
						last := held[len(held)-1]
						held = held[:len(held)-1]
						certain.Add(-int64(last)) // before: others may have it as soon as it is free
						m.free(last)
					}
				}
			})
		}
	}
	group.Wait()
}

func BenchmarkNeed(b *testing.B) {
	for _, lgpus := range []uint64{2, 1000} {
		b.Run(fmt.Sprint(lgpus), func(b *testing.B) {
			w := newWorld(nil)
			w.budget(1, 0, 1<<20)
			for id := uint64(1); id <= lgpus; id++ {
				w.lgpu(id+1, 1, 1<<20)
			}
			for i := uint64(0); b.Loop(); i++ {
				id := i%lgpus + 2
				w.memory[id].used.Store(0)
				w.pool.need(id, 1<<20)
			}
		})
	}
}
