package schedule

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// consistent finds contradictions in the state.
func (s *Scheduler) consistent() error {
	for _, d := range s.tree.devices {
		if d == nil {
			continue
		}
		if d.next != nil && d.owner == nil {
			return fmt.Errorf("device %d has a next owner and none now", d.id)
		}
		if d.free != nil && d.owner != nil {
			return fmt.Errorf("device %d is free and owned", d.id)
		}
		for _, j := range []*job{d.owner, d.next} {
			if j != nil && !slices.ContainsFunc(j.granted, func(x *seat) bool { return x.dev == d }) {
				return fmt.Errorf("device %d is of a job without a seat on it", d.id)
			}
		}
		active := map[*account]int{}
		for _, x := range d.seats {
			if x.granted && d.owner != x.job && d.next != x.job {
				return fmt.Errorf("seat %d on %d is of a grant without the device", x.entity.id, d.id)
			}
			if x.guest && (x.granted || x.late || !x.open || d.free == x) {
				return fmt.Errorf("guest %d on %d: granted %v, late %v, open %v", x.entity.id, d.id, x.granted, x.late, x.open)
			}
			if j := x.job; x.granted && !j.here() && (j.phase == running || j.phase == reserving) || d.free == x && !j.here() {
				return fmt.Errorf("seat %d on %d has the device, and its memory is away", x.entity.id, d.id)
			}
			if x.granted != slices.Contains(x.job.granted, x) {
				return fmt.Errorf("seat %d on %d: granted %v, its job says otherwise", x.entity.id, d.id, x.granted)
			}
			if x.open && !x.granted && !x.late && !x.guest && d.free != x {
				return fmt.Errorf("seat %d on %d is open without a grant", x.entity.id, d.id)
			}
			a := x.account
			for range x.levels {
				active[a]++
				a = a.parent
			}
		}
		for _, x := range d.seats {
			for a := x.account; a.parent != nil; a = a.parent {
				if a.active != active[a] {
					return fmt.Errorf("account of seat %d on %d: %d active, counted %d", x.entity.id, d.id, a.active, active[a])
				}
			}
		}
	}
	for _, n := range s.tree.entities {
		for _, x := range n.seats {
			j, late := x.job, 0
			for _, y := range j.seats {
				if y.late {
					late++
				}
			}
			if j.late != late {
				return fmt.Errorf("job of seat %d: %d late, counted %d", n.id, j.late, late)
			}
			if j.phase == idle != (len(j.granted) == 0) {
				return fmt.Errorf("job of seat %d: phase %d with %d held", n.id, j.phase, len(j.granted))
			}
		}
	}
	return nil
}

// reader makes events out of fuzz data.
type reader struct{ data []byte }

func (r *reader) next() int {
	if len(r.data) == 0 {
		return 0
	}
	b := r.data[0]
	r.data = r.data[1:]
	return int(b)
}

// FuzzEvents feeds arbitrary events, sensible or not, and checks each decision against what a caller sees.
func FuzzEvents(f *testing.F) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 7))
		data := make([]byte, 3000)
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := drive(data, nil); err != nil {
			t.Fatal(err)
		}
	})
}

// drive carries out what data says. Each decision is given to seen.
func drive(data []byte, seen func(Decision)) error {
	type key struct {
		id  ID
		dev Device
	}
	const nodes, devices = 9, 4
	r := &reader{data}
	preempt := r.next()%2 == 0 // guests then have a device together with others
	s := New(Options{Preempt: preempt})
	now := int64(0)
	open := map[key]bool{} // true: within its bound
	busy := map[key]int64{}
	memory := map[key]Memory{}
	take := func() error {
		for _, d := range s.Decisions() {
			if seen != nil {
				seen(d)
			}
			k := key{d.ID, d.Device}
			_, is := open[k]
			switch d.Kind {
			case Prepare:
				if memory[k] == Here {
					return fmt.Errorf("memory of %v is asked for, which is there", k)
				}
			case Open, Free, Seep:
				if d.Kind != Seep && memory[k] != Here {
					return fmt.Errorf("kind %d for %v, whose memory is away", d.Kind, k)
				}
				if d.Kind != Free && is {
					return fmt.Errorf("kind %d for %v, which is open", d.Kind, k)
				}
				if d.Kind == Open && (d.Until < 0) {
					return fmt.Errorf("until %d", d.Until)
				}
				for id := ID(1); id <= nodes && d.Kind != Seep; id++ {
					if o := (key{id, d.Device}); o != k && open[o] && !preempt {
						return fmt.Errorf("device %d given to %d and %d", d.Device, id, d.ID)
					}
				}
				open[k] = d.Kind != Seep
			case Slice:
				if !preempt {
					return fmt.Errorf("kind %d for %v on a device that does not preempt", d.Kind, k)
				}
			case Extend, Close, Overran:
				if !is {
					return fmt.Errorf("kind %d for %v, which is closed", d.Kind, k)
				}
				if d.Kind == Overran {
					open[k] = false
				}
			default:
				return fmt.Errorf("unknown kind %d", d.Kind)
			}
		}
		return s.consistent()
	}
	limits := func() map[Device]uint32 {
		switch b := r.next(); b % 4 {
		case 0:
			return map[Device]uint32{Device(b / 4 % devices): uint32(r.next()*40 + 1)}
		case 1:
			return map[Device]uint32{0: uint32(r.next() * 39), 1: 10000}
		default:
			return nil
		}
	}
	odd := []int64{math.MinInt64, -1, 0, math.MaxInt64, 1 << 50}
	for len(r.data) > 0 {
		op := r.next()
		k := key{ID(r.next() % nodes), Device(r.next() % devices)}
		now += int64(r.next()) * int64(r.next()) * 1000
		at, b := now, busy[k]+int64(r.next())*100_000
		if op >= 250 {
			at = odd[r.next()%len(odd)]
			if at > now {
				at = now
			}
			b = odd[r.next()%len(odd)]
			k.dev = Device(odd[r.next()%len(odd)])
		}
		switch op % 16 {
		case 0:
			p := Params{Parent: ID(r.next() % nodes), Weight: uint32(r.next() * 50), Max: limits(), Min: limits(),
				Class: Class(r.next() % 2), Latency: r.next()%4 == 0}
			if g := r.next() % 6; g < 2 {
				p.Gang = string(rune('a' + g))
			}
			if r.next()%4 != 0 {
				p.Parent = 0
			}
			if r.next()%8 == 0 {
				p.Devices = []Device{Device(r.next() % devices)}
			}
			_ = s.Set(at, k.id, p)
		case 1:
			if r.next()%4 == 0 {
				s.Remove(at, k.id)
				for dev := range Device(devices) {
					delete(open, key{k.id, dev})
					delete(memory, key{k.id, dev})
				}
			} else {
				s.Detach(at, k.id, k.dev)
				delete(open, k)
				delete(memory, k)
			}
		case 2, 3, 4:
			if err := s.Attach(at, k.id, k.dev, b); err == nil {
				busy[k] = b
			}
		case 5, 6, 7:
			s.Want(at, k.id, k.dev, b)
		case 8, 9, 10:
			delete(open, k)
			s.Closed(at, k.id, k.dev, b, r.next()%2 == 0)
		case 11:
			s.Progress(at, k.id, k.dev, b)
			busy[k] = b
			s.Measured(at, k.dev, []Ran{{k.id, b / 2, int64(r.next()), int64(r.next())}, {ID(r.next()), at, 0, b}})
			s.Utilised(at, k.dev, r.next())
		case 12:
			_ = s.Shares(at, nil)
			_ = s.Order(at, k.dev, nil)
			if e := s.tree.entities[k.id]; e != nil && e.seat(k.dev) != nil {
				if err := take(); err != nil {
					return err
				}
				memory[k] = Memory(max(r.next()%6, 3) - 3)
				s.SetMemory(at, k.id, k.dev, memory[k])
			}
		case 13:
			_ = s.SetDevice(at, k.dev, Options{Slice: int64(r.next()) * 1e6, DrainBound: int64(r.next()) * 1e6,
				Preempt: preempt && r.next()%2 == 0})
		default:
			if next, ok := s.Next(); ok {
				now = max(now, next)
				s.Tick(now)
				if err := take(); err != nil {
					return err
				}
				if again, ok := s.Next(); ok && again <= now {
					return fmt.Errorf("after a tick at %d the next is at %d", now, again)
				}
			}
		}
		if err := take(); err != nil {
			return err
		}
	}
	return nil
}

func TestDeterminism(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	data := make([]byte, 20000)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	var first []Decision
	if err := drive(data, func(d Decision) { first = append(first, d) }); err != nil {
		t.Fatal(err)
	}
	if len(first) < 100 {
		t.Fatalf("only %d decisions", len(first))
	}
	for range 5 {
		var again []Decision
		if err := drive(data, func(d Decision) { again = append(again, d) }); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(first, again) {
			t.Fatal("the same events gave other decisions")
		}
	}
}
