// Package dispatch carries out the schedule: it tells the policy what the gates of clients report, and the gates what
// the policy decides. It does not use devices and makes no decisions itself, except in which order the clients of one
// seat run.
package dispatch

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/schedule"
	"github.com/lgpu/lgpu/tenant/protocol"
)

// Config is what a Runner needs.
type Config struct {
	Options schedule.Options
	// Slice is called for every turn that has ended, and Overran for every drain past its bound. Both are called while
	// a lock is locked: they must be quick and must not call the Runner.
	Slice   func(Slice)
	Overran func(lgpu uint64, device gpu.UUID)
	// Resliced is called when a client has given itself a longer time slice than it was told to have.
	// The same holds as for Overran.
	Resliced func(lgpu uint64, device gpu.UUID, pid int, found time.Duration)
	// Stayed is called when an lgpu has kept a device for turns of such a length while others had work, although its
	// clients say that they have a shorter slice, and the hardware has been seen to keep to those; or when a client
	// has lengthened its slice again soon after it was put back. All lgpus take turns on the device for a while then.
	Stayed func(lgpu uint64, device gpu.UUID, turn, slice time.Duration)
	// Prepare is called when an lgpu whose memory is away is to have a device next, and Rested when the gates of one whose
	// memory is away have closed. The same holds as for Overran.
	Prepare func(lgpu uint64, device gpu.UUID)
	Rested  func(lgpu uint64)
	// Shared is called when a second lgpu comes to a device where lgpus can be guests. The same holds as for Overran.
	Shared func(device gpu.UUID)
	Log    *slog.Logger // nil: none
}

// Slice is a turn that an lgpu had on a device: from the opening of its gates until all its work was done.
type Slice struct {
	LGPU       uint64
	Device     gpu.UUID
	Start, End int64 // CLOCK_MONOTONIC ns
	Busy       int64 // device time used, ns
}

// Params are schedule.Params with devices by UUID. An lgpu has the ID that its clients' gates report; groups have IDs
// that no lgpu has.
type Params struct {
	Parent   uint64
	Weight   uint32
	Max, Min map[gpu.UUID]uint32
	Class    schedule.Class
	Latency  bool
	Gang     string
	Devices  []gpu.UUID // nil: all
}

// Share is schedule.Share with the device by UUID.
type Share struct {
	LGPU      uint64
	Device    gpu.UUID
	State     schedule.State
	Free      bool
	Asked     uint32 // hundredths of a percent
	Delivered uint32 // likewise, over the last second
}

// DrainBounds are the upper bounds of the buckets of Stats.Drains.
var DrainBounds = [...]time.Duration{
	20 * time.Microsecond, 50 * time.Microsecond, 100 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond,
}

// Stats only rise.
type Stats struct {
	Grants, Seeps, Overruns uint64
	// Drains counts the grants that were closed while they ran, by the time from there to the end of their work; the
	// last bucket has no bound. DrainTotal is the sum of those times.
	Drains     [len(DrainBounds) + 1]uint64
	DrainTotal time.Duration
}

// gate is what a Runner needs of a tenant.Gate.
type gate interface {
	LGPU() uint64
	UUID() [16]byte
	Peer() tenant.Peer
	Busy() uint64
	Launches() uint64
	Beat()
	Send(protocol.Message)
}

// client is a process of an lgpu on a device.
type client struct {
	gate       gate
	serial     uint64           // of its newest grant
	since      int64            // when that began, ns
	stopped    int64            // when it was told to stop, ns; 0: it was not told
	owesClosed bool             // it owes a Closed
	waiting    bool             // launches wait there
	told       protocol.Message // the last message with the terms of its grant
	slice      uint64           // time slice that it was told to have, µs; 0: the driver's own
	sliced     bool             // it has had that since it was told
	reported   int64            // when a longer slice was last reported, ns
	lengthened int64            // when one was last found, ns; 0: never
	refused    bool             // it says that its driver does not set that
	settled    int64            // when it began to say the one or the other, ns
	obeyed     bool             // it has had a slice that it was told to have
}

// phase of a seat.
type phase uint8

const (
	idle    phase = iota // no grant
	open                 // clients that ask may run, one after the other
	closing              // until the last has reported
	free                 // clients run without accounts
)

// seat is an lgpu on a device, as in the policy. Its clients run one after the other: a device loses time when it
// switches contexts, and a client that closes its gate then leaves the device soon.
type seat struct {
	id      uint64
	uuid    gpu.UUID
	device  schedule.Device
	clients []*client
	phase   phase
	until   int64 // of the open grant, like the next two
	wanted  bool
	beside  bool
	opened  int64  // when, ns
	busy    int64  // Busy then
	closed  int64  // when it was told to close, ns; 0: it was not told
	slice   uint64 // of the hardware, for its clients, µs; 0: the driver's own
	ran     int64  // device time, as the meter says, ns
	turns   int64
	judged  struct{ ran, turns, busy int64 } // as of when slices were last judged
	looked  tally                            // at its turns
	stays   int64                            // it is seen to keep the device beyond its slice, until then, ns; 0: it is not
	greedy  int64                            // its clients lengthen their slices again and again; until then, ns
	keeps   bool                             // one of these, as the policy knows it
	freed   int64                            // when it last became free, or was asked for since, ns
	free    int64                            // how long it has been free since it was last asked for, ns
	spent   int64                            // what it had been charged then, ns
}

// Runner is the policy at work. Its methods may be called by several goroutines. It implements tenant.GateHandler.
//
// The unexported methods are called with mu locked, except attach, want, closed, gone and keepTime, which lock it.
type Runner struct {
	*Memories
	config Config
	wake   int // eventfd: Next may have changed, or it is over

	mu      sync.Mutex // guards what follows
	over    bool
	asleep  int64 // keepTime sleeps until then
	policy  *schedule.Scheduler
	serial  uint64
	numbers map[gpu.UUID]schedule.Device
	devices []device // by schedule.Device
	seats   []*seat  // in the order in which they were attached
	clients map[gate]*client
	byID    map[uint64][]*seat
	shares  []schedule.Share
	stats   Stats
	ran     []schedule.Ran  // scratch
	used    []schedule.Used // scratch
}

type device struct {
	uuid    gpu.UUID
	spatial bool
	preempt bool
	metered metered
	watched bool            // somebody asks for Used
	left    map[uint64]Used // of seats that have gone since that was last asked
}

// New returns a Runner without lgpus. The caller ends it with Close.
func New(c Config) (*Runner, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create an eventfd: %w", err)
	}
	r := &Runner{
		config: c, wake: wake, policy: schedule.New(c.Options), numbers: map[gpu.UUID]schedule.Device{},
		clients: map[gate]*client{}, byID: map[uint64][]*seat{},
	}
	r.Memories = &Memories{runner: r, away: map[uint64]schedule.Memory{}}
	go r.keepTime()
	return r, nil
}

// Close ends the Runner. Gates stay as they are.
func (r *Runner) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over {
		r.over = true
		r.poke()
	}
}

// now is the time of the policy and of slices.
func now() int64 {
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // fails only for clocks that do not exist
	return t.Nano()
}

// number returns the policy's name of a device.
func (r *Runner) number(uuid gpu.UUID) schedule.Device {
	n, known := r.numbers[uuid]
	if !known {
		n = schedule.Device(len(r.devices))
		r.numbers[uuid] = n
		r.devices = append(r.devices, device{uuid: uuid})
	}
	return n
}

// SetDevice sets the options of one device; zero values are those of Config. On a device in spatial mode all gates are
// free: the hardware divides the device.
func (r *Runner) SetDevice(uuid gpu.UUID, spatial bool, o schedule.Options) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.number(uuid)
	for _, s := range r.seats {
		if s.device == n && r.devices[n].spatial != spatial {
			return fmt.Errorf("device %s: its mode cannot change while lgpus run there", uuid)
		}
	}
	t := now()
	r.progressOn(t, n)
	if err := r.policy.SetDevice(t, n, o); err != nil {
		return fmt.Errorf("device %s: %w", uuid, err)
	}
	r.devices[n].spatial, r.devices[n].preempt = spatial, o.Preempt
	r.share(n)
	r.decide(t)
	return nil
}

// Set creates an lgpu or a group, or changes it; a change has effect on running grants. Parents come before their
// children.
func (r *Runner) Set(id uint64, p Params) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := schedule.Params{
		Parent: schedule.ID(p.Parent), Weight: p.Weight, Class: p.Class, Latency: p.Latency, Gang: p.Gang,
		Max: make(map[schedule.Device]uint32, len(p.Max)), Min: make(map[schedule.Device]uint32, len(p.Min)),
	}
	for uuid, v := range p.Max {
		s.Max[r.number(uuid)] = max(v, 1) // a maximum of 0 is refused in the process itself
	}
	for uuid, v := range p.Min {
		s.Min[r.number(uuid)] = v
	}
	for _, uuid := range p.Devices {
		s.Devices = append(s.Devices, r.number(uuid))
	}
	t := now()
	r.progress(t)
	err := r.policy.Set(t, schedule.ID(id), s)
	r.decide(t) // progress may have had consequences in any case
	return err
}

// Remove ends an lgpu or a group.
func (r *Runner) Remove(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := now()
	for _, s := range r.byID[id] {
		r.leave(t, s)
	}
	r.policy.Remove(t, schedule.ID(id))
	for _, s := range r.byID[id] {
		for _, c := range s.clients {
			delete(r.clients, c.gate)
		}
		r.seats = slices.DeleteFunc(r.seats, func(q *seat) bool { return q == s })
	}
	delete(r.byID, id)
	delete(r.away, id)
	r.decide(t)
}

// Shares returns what every lgpu on every device is entitled to and gets.
func (r *Runner) Shares() []Share {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := now()
	r.progress(t)
	r.shares = r.policy.Shares(t, r.shares[:0])
	out := make([]Share, len(r.shares))
	for i, s := range r.shares {
		out[i] = Share{
			LGPU: uint64(s.ID), Device: r.devices[s.Device].uuid, State: s.State, Free: s.Free,
			Asked: s.Asked, Delivered: s.Delivered,
		}
	}
	r.decide(t)
	return out
}

// Stats returns what has been counted.
func (r *Runner) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}

// ---- what gates report

// Attach implements tenant.GateHandler.
func (r *Runner) Attach(g *tenant.Gate, m protocol.Message) { r.attach(g, m) }

// Want implements tenant.GateHandler.
func (r *Runner) Want(g *tenant.Gate, _ protocol.Message) { r.want(g) }

// Closed implements tenant.GateHandler.
func (r *Runner) Closed(g *tenant.Gate, m protocol.Message) { r.closed(g, m) }

// Gone implements tenant.GateHandler.
func (r *Runner) Gone(g *tenant.Gate) { r.gone(g) }

func (r *Runner) attach(g gate, m protocol.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.clients[g] != nil {
		return
	}
	t := now()
	n := r.number(g.UUID())
	c := &client{gate: g, owesClosed: m.Flags&protocol.FlagRunning != 0}
	r.clients[g] = c
	s := r.seatOf(g)
	if s == nil {
		s = &seat{id: g.LGPU(), uuid: g.UUID(), device: n}
		if r.devices[n].spatial {
			s.enter(t, free)
		} else if err := r.policy.Attach(t, schedule.ID(s.id), n, int64(g.Busy())); err != nil {
			// A gate that the policy does not know would stay closed for ever.
			r.config.Log.Error("gate left open: the policy does not accept the lgpu", "lgpu", s.id, "device", s.uuid, "error", err)
			s.enter(t, free)
		}
		r.policy.SetMemory(t, schedule.ID(s.id), n, r.away[s.id])
		r.seats = append(r.seats, s)
		r.byID[s.id] = append(r.byID[s.id], s)
		r.share(n)
	}
	s.clients = append(s.clients, c)
	r.shape(s)
	if s.phase == free {
		c.owesClosed = false
		g.Send(protocol.Message{Kind: protocol.Free})
	}
	r.decide(t)
}

func (r *Runner) seatOf(g gate) *seat {
	for _, s := range r.byID[g.LGPU()] {
		if s.uuid == g.UUID() {
			return s
		}
	}
	return nil
}

func (r *Runner) want(g gate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, s := r.clients[g], r.seatOf(g)
	if c == nil || s == nil {
		return
	}
	t := now()
	c.waiting = true
	g.Beat()
	switch s.phase {
	case free:
		g.Send(protocol.Message{Kind: protocol.Free})
	case open:
		if !c.owesClosed {
			r.next(t, s)
		}
	case idle:
		r.progressOn(t, s.device) // from now on the owner of the device is charged by the clock
		r.policy.Want(t, schedule.ID(s.id), s.device, int64(g.Busy()))
	}
	r.decide(t)
}

func (r *Runner) closed(g gate, m protocol.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, s := r.clients[g], r.seatOf(g)
	if c == nil || s == nil || !c.owesClosed || m.Serial != c.serial {
		return
	}
	t := now()
	c.owesClosed, c.waiting = false, m.Flags&protocol.FlagWaiting != 0
	if c.waiting {
		g.Beat()
	}
	if s.phase == idle { // what ran before a reconnect
		if c.waiting {
			r.policy.Want(t, schedule.ID(s.id), s.device, int64(g.Busy()))
		}
	} else {
		// A client that closes by itself while it has more to do has found that the grant is used up.
		r.ended(t, s, c.waiting && c.stopped == 0 || int64(g.Busy()) >= s.until)
	}
	r.rested(s.id)
	r.decide(t)
}

func (r *Runner) gone(g gate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, s := r.clients[g], r.seatOf(g)
	delete(r.clients, g)
	if c == nil || s == nil {
		return
	}
	t := now()
	r.progressOn(t, s.device) // what it used without a grant, while this daemon hung, is charged too
	s.clients = slices.DeleteFunc(s.clients, func(o *client) bool { return o == c })
	if len(s.clients) == 0 {
		r.turnOver(t, s)
		r.leave(t, s)
		r.policy.Detach(t, schedule.ID(s.id), s.device)
		r.seats = slices.DeleteFunc(r.seats, func(q *seat) bool { return q == s })
		r.byID[s.id] = slices.DeleteFunc(r.byID[s.id], func(q *seat) bool { return q == s })
		if len(r.byID[s.id]) == 0 {
			delete(r.byID, s.id)
		}
	} else if s.phase == open || s.phase == closing {
		r.ended(t, s, false)
	}
	r.rested(s.id)
	r.decide(t)
}

// ended notes that a client of s has stopped running: the next one runs, and after the last the grant is over.
func (r *Runner) ended(t int64, s *seat, spent bool) {
	if s.phase == open && spent {
		r.close(t, s)
	}
	if s.phase == open {
		r.next(t, s)
	}
	waiting := false
	for _, c := range s.clients {
		if c.owesClosed {
			return
		}
		waiting = waiting || c.waiting
	}
	r.turnOver(t, s)
	s.enter(t, idle)
	r.policy.Closed(t, schedule.ID(s.id), s.device, r.busy(s), waiting)
}

// next opens the gate of the client of an open seat that has waited longest for its turn, unless another client runs.
// That one is told to stop when it has had its turn or has nothing to do, and is not waited for beyond a bound.
func (r *Runner) next(t int64, s *seat) {
	var first, runs *client
	for _, c := range s.clients {
		if c.owesClosed && (c.stopped == 0 || t < c.stopped+ownBound) {
			runs = c
		}
		if c.waiting && !c.owesClosed && (first == nil || c.since < first.since) {
			first = c
		}
	}
	switch {
	case first == nil:
	case runs == nil:
		r.grant(t, s, first)
	case runs.stopped == 0 && t >= runs.since+ownTurn:
		r.stop(t, runs)
	case runs.stopped == 0:
		r.tell(s, runs)
	}
}

// Bounds among the clients of one lgpu, ns: a turn, and how long one that has been told to stop keeps others waiting.
const (
	ownTurn  = int64(schedule.ProcessTurn)
	ownBound = 100 * int64(time.Millisecond)
)

// turnOver reports the end of s's turn, if it has one.
func (r *Runner) turnOver(t int64, s *seat) {
	if s.opened == 0 {
		return
	}
	if s.closed != 0 {
		drained := time.Duration(t - s.closed)
		bucket := 0
		for bucket < len(DrainBounds) && drained > DrainBounds[bucket] {
			bucket++
		}
		r.stats.Drains[bucket]++
		r.stats.DrainTotal += drained
	}
	if r.config.Slice != nil {
		r.config.Slice(Slice{LGPU: s.id, Device: s.uuid, Start: s.opened, End: t, Busy: max(r.busy(s)-s.busy, 0)})
	}
	s.opened, s.closed = 0, 0
}

// busy is how far the lgpu's device time has come. Every client of it reads the same counter.
func (r *Runner) busy(s *seat) int64 {
	if len(s.clients) == 0 {
		return s.busy
	}
	return int64(min(s.clients[0].gate.Busy(), 1<<62))
}

// progress tells the policy the Busy of all seats, progressOn that of the seats on one device. Those that wait may have
// used the device, too: by their own credit, while this daemon hung.
func (r *Runner) progress(t int64) {
	r.progressOf(t, func(*seat) bool { return true })
}

func (r *Runner) progressOn(t int64, device schedule.Device) {
	r.progressOf(t, func(s *seat) bool { return s.device == device })
}

func (r *Runner) progressOf(t int64, which func(*seat) bool) {
	r.used = r.used[:0]
	for _, s := range r.seats {
		if s.phase != free && which(s) {
			r.used = append(r.used, schedule.Used{ID: schedule.ID(s.id), Device: s.device, Busy: r.busy(s)})
		}
	}
	if len(r.used) > 0 {
		r.policy.ProgressAll(t, r.used)
	}
}

// ---- what the policy decides

// decide carries out what has been decided, and wakes keepTime where it would sleep too long.
func (r *Runner) decide(t int64) {
	r.carryAllOut(t)
	if r.due(t) < r.asleep {
		r.poke()
	}
}

func (r *Runner) carryAllOut(t int64) {
	for decisions := r.policy.Decisions(); len(decisions) > 0; decisions = r.policy.Decisions() {
		for _, d := range slices.Clone(decisions) {
			i := slices.IndexFunc(r.byID[uint64(d.ID)], func(s *seat) bool { return s.device == d.Device })
			if i < 0 {
				continue
			}
			r.carryOut(t, r.byID[uint64(d.ID)][i], d)
		}
	}
}

func (r *Runner) carryOut(t int64, s *seat, d schedule.Decision) {
	if s.phase == idle && (d.Kind == schedule.Extend || d.Kind == schedule.Close) {
		return // the grant has ended as soon as it began: nobody wanted it
	}
	switch d.Kind {
	case schedule.Open:
		r.stats.Grants++
		s.enter(t, open)
		s.until, s.wanted, s.beside = d.Until, d.Wanted, d.Beside
		s.opened, s.busy, s.closed = t, r.busy(s), 0
		r.ended(t, s, false) // the client that wanted may have died
	case schedule.Extend:
		wasFree := s.phase == free
		s.enter(t, open)
		s.until, s.wanted, s.beside = d.Until, d.Wanted, d.Beside
		if wasFree {
			s.opened, s.busy, s.closed = t, r.busy(s), 0
		}
		for _, c := range s.clients {
			if wasFree {
				r.grant(t, s, c) // all run; what follows is one after the other
			} else if c.owesClosed && c.stopped == 0 {
				r.tell(s, c)
			}
		}
	case schedule.Close:
		r.close(t, s)
		r.ended(t, s, false)
	case schedule.Seep:
		r.stats.Seeps++
		s.enter(t, closing)
		for _, c := range s.clients {
			if c.waiting && !c.owesClosed {
				r.begin(t, c)
				c.gate.Send(protocol.Message{Kind: protocol.Seep, Serial: c.serial, Value: 1})
				break
			}
		}
		r.ended(t, s, false)
	case schedule.Free:
		r.turnOver(t, s)
		s.enter(t, free)
		for _, c := range s.clients {
			c.owesClosed, c.waiting = false, false
			c.gate.Send(protocol.Message{Kind: protocol.Free})
		}
	case schedule.Overran:
		r.stats.Overruns++
		if r.config.Overran != nil {
			r.config.Overran(s.id, s.uuid)
		}
	case schedule.Prepare:
		if r.config.Prepare != nil {
			r.config.Prepare(s.id, s.uuid)
		}
	case schedule.Slice:
		s.slice = uint64(d.Slice / 1000)
		r.config.Log.Debug("time slice", "lgpu", s.id, "device", s.uuid, "us", s.slice)
		r.shape(s)
	}
}

func (r *Runner) begin(t int64, c *client) {
	r.serial++
	c.serial, c.since, c.stopped, c.owesClosed, c.waiting = r.serial, t, 0, true, false
}

// grant opens the gate of a client of s.
func (r *Runner) grant(t int64, s *seat, c *client) {
	r.begin(t, c)
	r.tell(s, c)
}

// tell sends a client the terms of its grant.
func (r *Runner) tell(s *seat, c *client) {
	m := protocol.Message{Kind: protocol.Open, Serial: c.serial, Value: protocol.Forever}
	if s.until != schedule.NoLimit {
		m.Value = uint64(max(s.until, 0))
	}
	if s.wanted || slices.ContainsFunc(s.clients, func(o *client) bool { return o.waiting && !o.owesClosed }) {
		m.Flags = protocol.FlagWanted
	}
	if r.devices[s.device].preempt {
		m.Flags |= protocol.FlagPatient
	}
	if s.beside {
		m.Flags |= protocol.FlagNoted
	}
	if m != c.told {
		c.told = m
		c.gate.Send(m)
	}
}

// stop closes the gate of a client.
func (r *Runner) stop(t int64, c *client) {
	c.stopped = t
	c.gate.Send(protocol.Message{Kind: protocol.Close, Serial: c.serial})
}

// close closes the gates of all clients of s.
func (r *Runner) close(t int64, s *seat) {
	if s.phase != open && s.phase != free {
		return
	}
	for _, c := range s.clients {
		if s.phase == free {
			r.begin(t, c)
		}
		if c.owesClosed && c.stopped == 0 {
			r.stop(t, c)
		}
	}
	s.enter(t, closing)
	s.closed = t
}
