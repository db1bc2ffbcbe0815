package schedule

import (
	"cmp"
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

const (
	us = int64(1e3)
	ms = int64(1e6)
	// What tenants do, as measured: the first work of a grant comes so long after Open, the end of the last is seen
	// so long after it, an idle seat yields after so long, and so much is in flight.
	reopening = 30 * us
	noticing  = 30 * us
	yielding  = 60 * us
	inFlight  = 2 * ms
)

// work is what a tenant wants to run: bursts of device time with thinking in between, in kernels of some length.
type work struct {
	kernel int64
	burst  int64 // 0: without end
	think  int64
	random bool // burst and think vary between 0 and twice their values
}

// tenant is a seat's other end.
type tenant struct {
	id   ID
	dev  Device
	work work

	open, closing, wanted, free bool
	until                       int64
	busy                        int64 // at since
	since                       int64 // running from here on, when open; may be in the future
	left                        int64 // of the burst
	arrive                      int64 // of the next burst; 0: this one is not done
	event                       int64 // next; forever: none
	index                       int   // in the heap
	stopped                     bool
	opens, extends, closes      int
	arrived                     int64
	delays                      []int64 // from the arrival of a burst to Open
	slices                      []int64
	opened                      int64
}

type machine struct {
	t       testing.TB
	s       *Scheduler
	now     int64
	tenants map[ID]map[Device]*tenant
	list    []*tenant
	queue   events
	on      map[Device]*tenant // has an open grant within its bound
	random  *rand.Rand
	events  int
	trace   func(string)
	at      []action
}

type action struct {
	time int64
	do   func()
}

type events []*tenant

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].event < e[j].event }
func (e events) Swap(i, j int) {
	e[i], e[j] = e[j], e[i]
	e[i].index, e[j].index = i, j
}
func (e *events) Push(x any) {
	t := x.(*tenant)
	t.index = len(*e)
	*e = append(*e, t)
}
func (e *events) Pop() any {
	old := *e
	t := old[len(old)-1]
	*e = old[:len(old)-1]
	return t
}

func newMachine(t testing.TB, o Options) *machine {
	return &machine{t: t, s: New(o), now: second, tenants: map[ID]map[Device]*tenant{}, on: map[Device]*tenant{},
		random: rand.New(rand.NewPCG(1, 2))}
}

func (m *machine) set(id ID, p Params) {
	m.t.Helper()
	if err := m.s.Set(m.now, id, p); err != nil {
		m.t.Fatal(err)
	}
	m.decide()
}

// attach gives an lgpu a seat and work that begins now.
func (m *machine) attach(id ID, dev Device, w work) *tenant {
	m.t.Helper()
	x := &tenant{id: id, dev: dev, work: w, event: forever, arrive: m.now, since: m.now}
	if m.tenants[id] == nil {
		m.tenants[id] = map[Device]*tenant{}
	}
	m.tenants[id][dev] = x
	m.list = append(m.list, x)
	heap.Push(&m.queue, x)
	if err := m.s.Attach(m.now, id, dev, 0); err != nil {
		m.t.Fatal(err)
	}
	m.decide()
	m.plan(x)
	return x
}

// add is set and attach on one device.
func (m *machine) add(id ID, p Params, dev Device, w work) *tenant {
	m.t.Helper()
	m.set(id, p)
	return m.attach(id, dev, w)
}

func (m *machine) detach(x *tenant) {
	m.sync(x)
	x.stopped, x.open, x.event = true, false, forever
	heap.Fix(&m.queue, x.index)
	if m.on[x.dev] == x {
		delete(m.on, x.dev)
	}
	delete(m.tenants[x.id], x.dev)
	m.s.Detach(m.now, x.id, x.dev)
	m.decide()
}

// sync brings busy up to now.
func (m *machine) sync(x *tenant) {
	if x.open && m.now > x.since {
		ran := min(m.now-x.since, m.target(x)-x.busy)
		if ran > 0 {
			x.busy += ran
			if x.work.burst > 0 {
				x.left -= ran
			}
		}
		x.since = m.now
	}
	if x.since < m.now {
		x.since = m.now
	}
}

// target is where busy stops, if nothing new comes.
func (m *machine) target(x *tenant) int64 {
	until := x.until
	if x.work.burst > 0 && x.left < until-x.busy {
		return x.busy + max(x.left, 0)
	}
	// The kernel that reaches until is run to its end.
	if k := x.work.kernel; k > 0 && until < latest {
		return (until + k - 1) / k * k
	}
	return until
}

// plan sets the tenant's next event.
func (m *machine) plan(x *tenant) {
	next := forever
	switch {
	case x.stopped:
	case x.open && x.arrive == 0:
		if target := m.target(x); target < latest {
			next = x.since + target - x.busy + noticing
		}
	case x.open && x.closing:
		next = max(x.since, m.now)
	case x.open && x.wanted && !x.free:
		next = m.now + yielding
		next = min(next, max(x.arrive, m.now))
	case x.arrive > 0:
		next = max(x.arrive, m.now)
	}
	x.event = next
	heap.Fix(&m.queue, x.index)
}

func (m *machine) burst(w work) (burst, think int64) {
	if !w.random {
		return w.burst, w.think
	}
	return 1 + m.random.Int64N(2*w.burst), m.random.Int64N(2*w.think + 1)
}

// happen is the tenant's event.
func (m *machine) happen(x *tenant) {
	m.sync(x)
	switch {
	case x.arrive > 0 && m.now >= x.arrive:
		x.arrive, x.arrived = 0, m.now
		if x.work.burst > 0 {
			x.left, _ = m.burst(x.work)
		}
		if !x.open {
			x.since = m.now
			x.event = forever
			heap.Fix(&m.queue, x.index)
			m.others(x)
			m.s.Want(m.now, x.id, x.dev, x.busy)
			m.decide()
			return
		}
		if !x.free && !x.closing {
			m.delay(x)
		}
	case x.open && x.arrive == 0 && x.work.burst > 0 && x.left <= 0:
		_, think := m.burst(x.work)
		x.arrive = m.now + max(think, 1)
		if x.closing {
			m.closed(x, false)
			return
		}
	case x.open && x.arrive == 0:
		m.closed(x, true)
		return
	case x.open:
		m.closed(x, false)
		return
	}
	m.plan(x)
}

func (m *machine) delay(x *tenant) {
	if x.arrived > 0 {
		x.delays = append(x.delays, m.now-x.arrived)
		x.arrived = 0
	}
}

func (m *machine) closed(x *tenant, waiting bool) {
	x.open, x.closing, x.free = false, false, false
	x.slices = append(x.slices, m.now-x.opened)
	if m.on[x.dev] == x {
		delete(m.on, x.dev)
	}
	if m.trace != nil {
		m.trace(fmt.Sprintf("%d closed %d on %d busy %d waiting %v", m.now/us, x.id, x.dev, x.busy/us, waiting))
	}
	m.s.Closed(m.now, x.id, x.dev, x.busy, waiting)
	m.decide()
	m.plan(x)
}

// others reports the progress of those on x's device.
func (m *machine) others(x *tenant) {
	if y := m.on[x.dev]; y != nil && y != x {
		m.sync(y)
		m.s.Progress(m.now, y.id, y.dev, y.busy)
	}
}

func (m *machine) decide() {
	for _, d := range slices.Clone(m.s.Decisions()) {
		x := m.tenants[d.ID][d.Device]
		if x == nil {
			m.t.Fatalf("%v for a seat that is not there", d)
		}
		if m.trace != nil {
			m.trace(fmt.Sprintf("%d kind %d %d on %d until %d wanted %v", m.now/us, d.Kind, d.ID, d.Device, d.Until/us, d.Wanted))
		}
		m.sync(x)
		switch d.Kind {
		case Open, Free:
			if d.Kind == Open && x.open {
				m.t.Fatalf("opened %d on %d, which is open", x.id, x.dev)
			}
			if y := m.on[x.dev]; y != nil && y != x {
				m.t.Fatalf("at %d device %d given to %d and %d", m.now, x.dev, y.id, x.id)
			}
			m.on[x.dev] = x
			x.opens++
			if !x.open {
				x.since = m.now + reopening
				x.opened = m.now
				m.delay(x)
			}
			x.open, x.closing, x.free = true, false, d.Kind == Free
			x.until, x.wanted = d.Until, d.Wanted
			if x.free {
				x.until = NoLimit
			}
		case Extend:
			if !x.open {
				m.t.Fatalf("extended %d on %d, which is closed", x.id, x.dev)
			}
			x.extends++
			x.until, x.wanted, x.free = max(d.Until, x.busy), d.Wanted, false
			if d.Until < x.busy+inFlight {
				x.until = max(d.Until, min(x.until, x.busy+inFlight))
			}
		case Close:
			x.closes++
			x.closing, x.free = true, false
			x.until = min(x.until, x.busy+inFlight)
		case Seep:
			if x.open {
				m.t.Fatalf("let a launch through the open gate of %d on %d", x.id, x.dev)
			}
			x.since = m.now + reopening
			x.open, x.closing, x.until = true, true, x.busy+max(x.work.kernel, 1)
		case Overran:
			if m.on[x.dev] == x {
				delete(m.on, x.dev)
			}
		}
		m.plan(x)
	}
}

// run simulates for a while.
func (m *machine) run(length int64) {
	end := m.now + length
	for {
		next := end
		if len(m.at) > 0 {
			next = min(next, m.at[0].time)
		}
		if len(m.queue) > 0 {
			next = min(next, m.queue[0].event)
		}
		tick, ok := m.s.Next()
		if ok {
			next = min(next, tick)
		}
		if next < m.now {
			m.t.Fatalf("event at %d, before now, %d", next, m.now)
		}
		m.now = next
		m.events++
		switch {
		case len(m.at) > 0 && m.at[0].time == next:
			do := m.at[0].do
			m.at = m.at[1:]
			do()
		case len(m.queue) > 0 && m.queue[0].event == next:
			m.happen(m.queue[0])
		case ok && tick == next:
			m.s.Tick(m.now)
			m.decide()
			if again, ok := m.s.Next(); ok && again <= m.now {
				m.t.Fatalf("next tick at %d, not after %d", again, m.now)
			}
		default:
			for _, x := range m.list {
				m.sync(x)
			}
			return
		}
	}
}

// after has something done in a while.
func (m *machine) after(while int64, do func()) {
	m.at = append(m.at, action{m.now + while, do})
	slices.SortStableFunc(m.at, func(a, b action) int { return cmp.Compare(a.time, b.time) })
}

// windows runs for n windows and returns each tenant's busy part of each, in percent.
func (m *machine) windows(n int, length int64) map[*tenant][]float64 {
	parts := map[*tenant][]float64{}
	for range n {
		before := map[*tenant]int64{}
		for _, x := range m.list {
			before[x] = x.busy
		}
		m.run(length)
		for _, x := range m.list {
			parts[x] = append(parts[x], 100*float64(x.busy-before[x])/float64(length))
		}
	}
	return parts
}

// reports has Progress sent of all open grants from time to time.
func (m *machine) reports(every int64) {
	var report func()
	report = func() {
		for _, x := range m.list {
			if x.open && !x.stopped {
				m.sync(x)
				m.s.Progress(m.now, x.id, x.dev, x.busy)
			}
		}
		m.decide()
		m.after(every, report)
	}
	m.after(every, report)
}

func mean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}
