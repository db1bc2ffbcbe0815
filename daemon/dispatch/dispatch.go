// Package dispatch carries out the schedule: it tells the policy what the gates of clients report, and the gates what the
// policy decides. It knows no device and decides nothing itself.
package dispatch

import (
	"fmt"
	"log/slog"
	"math"
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
	// Slice is told every turn that has ended, and Overran every drain past its bound. Both are called with a lock held:
	// they must be quick and not call back.
	Slice   func(Slice)
	Overran func(lgpu uint64, device gpu.UUID)
	Log     *slog.Logger // nil: none
}

// Slice is a turn that an lgpu had on a device: from the opening of its gates until all its work was done.
type Slice struct {
	LGPU       uint64
	Device     gpu.UUID
	Start, End int64 // CLOCK_MONOTONIC ns
	Busy       int64 // device time used, ns
}

// Params are share.Params with devices by UUID. The ID of an lgpu is that of its clients' seats; groups have IDs that no
// lgpu has.
type Params struct {
	Parent   uint64
	Weight   uint32
	Cap, Min map[gpu.UUID]uint32
	Class    schedule.Class
	Latency  bool
	Gang     string
	Devices  []gpu.UUID // nil: all
}

// Share is share.Share with the device by UUID.
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
	// Drains counts the grants that were closed while they ran, by the time from there to the end of their work; the last
	// bucket has no bound. DrainTotal is the sum of those times.
	Drains     [len(DrainBounds) + 1]uint64
	DrainTotal time.Duration
}

// seat is what a Runner needs of a tenant.Seat.
type seat interface {
	LGPU() uint64
	UUID() [16]byte
	Busy() uint64
	Beat()
	Send(protocol.Message)
}

// client is one process's seat.
type client struct {
	seat    seat
	serial  uint64           // of its newest grant
	since   int64            // when that began, ns
	stopped int64            // when it was told to stop, ns; 0: it was not
	granted bool             // it owes a Closed
	waiting bool             // launches wait there
	told    protocol.Message // of the terms of its grant
}

// phase of a place.
type phase uint8

const (
	idle    phase = iota // no grant
	open                 // clients that ask may run, one after the other
	closing              // until the last has reported
	free                 // clients run without accounts
)

// place is an lgpu on a device: what the policy calls a seat. Its clients run one after the other, since a device loses time
// when it changes contexts, and so that a client that closes its gate soon leaves the device.
type place struct {
	id      uint64
	uuid    gpu.UUID
	device  schedule.Device
	clients []*client
	phase   phase
	until   int64 // of the open grant
	wanted  bool
	opened  int64 // when, ns
	busy    int64 // Busy then
	closed  int64 // when it was told to close, ns; 0: it was not
}

// Runner is the policy at work. Its methods may be called by several goroutines. It implements tenant.GateHandler.
type Runner struct {
	config Config
	wake   int // eventfd: Next may have changed, or it is over

	mu      sync.Mutex
	over    bool
	asleep  int64 // keepTime sleeps until then
	policy  *schedule.Scheduler
	serial  uint64
	numbers map[gpu.UUID]schedule.Device
	devices []device // by share.Device
	places  []*place // in the order of their making
	clients map[seat]*client
	byID    map[uint64][]*place
	shares  []schedule.Share
	stats   Stats
}

type device struct {
	uuid    gpu.UUID
	spatial bool
}

// New returns a Runner without lgpus. The caller ends it by Close.
func New(c Config) (*Runner, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make an eventfd: %w", err)
	}
	r := &Runner{
		config: c, wake: wake, policy: schedule.New(c.Options), numbers: map[gpu.UUID]schedule.Device{},
		clients: map[seat]*client{}, byID: map[uint64][]*place{},
	}
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
// free: there the hardware shares.
func (r *Runner) SetDevice(uuid gpu.UUID, spatial bool, o schedule.Options) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.number(uuid)
	for _, p := range r.places {
		if p.device == n && r.devices[n].spatial != spatial {
			return fmt.Errorf("device %s: its mode cannot change while lgpus run there", uuid)
		}
	}
	if err := r.policy.SetDevice(now(), n, o); err != nil {
		return fmt.Errorf("device %s: %w", uuid, err)
	}
	r.devices[n].spatial = spatial
	return nil
}

// Set makes an lgpu or a group, or changes it, with effect on running grants. Parents come before their children.
func (r *Runner) Set(id uint64, p Params) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := schedule.Params{
		Parent: schedule.ID(p.Parent), Weight: p.Weight, Class: p.Class, Latency: p.Latency, Gang: p.Gang,
		Cap: make(map[schedule.Device]uint32, len(p.Cap)), Min: make(map[schedule.Device]uint32, len(p.Min)),
	}
	for uuid, v := range p.Cap {
		s.Cap[r.number(uuid)] = max(v, 1) // none at all is refused in the process itself
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
	r.policy.Remove(t, schedule.ID(id))
	for _, p := range r.byID[id] {
		for _, c := range p.clients {
			delete(r.clients, c.seat)
		}
		r.places = slices.DeleteFunc(r.places, func(q *place) bool { return q == p })
	}
	delete(r.byID, id)
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
func (r *Runner) Attach(s *tenant.Seat, m protocol.Message) { r.attach(s, m) }

// Want implements tenant.GateHandler.
func (r *Runner) Want(s *tenant.Seat, _ protocol.Message) { r.want(s) }

// Closed implements tenant.GateHandler.
func (r *Runner) Closed(s *tenant.Seat, m protocol.Message) { r.closed(s, m) }

// Gone implements tenant.GateHandler.
func (r *Runner) Gone(s *tenant.Seat) { r.gone(s) }

func (r *Runner) attach(s seat, m protocol.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.clients[s] != nil {
		return
	}
	t := now()
	n := r.number(s.UUID())
	c := &client{seat: s, granted: m.Flags&protocol.FlagRunning != 0}
	r.clients[s] = c
	p := r.place(s)
	if p == nil {
		p = &place{id: s.LGPU(), uuid: s.UUID(), device: n}
		if r.devices[n].spatial {
			p.phase = free
		} else if err := r.policy.Attach(t, schedule.ID(p.id), n, int64(s.Busy())); err != nil {
			// Without the policy's knowledge nobody would ever open this gate.
			r.config.Log.Error("gate left open: the policy does not take the lgpu", "lgpu", p.id, "device", p.uuid, "error", err)
			p.phase = free
		}
		r.places = append(r.places, p)
		r.byID[p.id] = append(r.byID[p.id], p)
	}
	p.clients = append(p.clients, c)
	if p.phase == free {
		c.granted = false
		s.Send(protocol.Message{Kind: protocol.Free})
	}
	r.decide(t)
}

func (r *Runner) place(s seat) *place {
	for _, p := range r.byID[s.LGPU()] {
		if p.uuid == s.UUID() {
			return p
		}
	}
	return nil
}

func (r *Runner) want(s seat) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, p := r.clients[s], r.place(s)
	if c == nil || p == nil {
		return
	}
	t := now()
	c.waiting = true
	s.Beat()
	switch p.phase {
	case free:
		s.Send(protocol.Message{Kind: protocol.Free})
	case open:
		if !c.granted {
			r.next(t, p)
		}
	case idle:
		r.progressOn(t, p.device) // whoever has the device is charged by the clock from now on
		r.policy.Want(t, schedule.ID(p.id), p.device, int64(s.Busy()))
	}
	r.decide(t)
}

func (r *Runner) closed(s seat, m protocol.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, p := r.clients[s], r.place(s)
	if c == nil || p == nil || !c.granted || m.Serial != c.serial {
		return
	}
	t := now()
	c.granted, c.waiting = false, m.Flags&protocol.FlagWaiting != 0
	if c.waiting {
		s.Beat()
	}
	if p.phase == idle { // what ran before a reconnect
		if c.waiting {
			r.policy.Want(t, schedule.ID(p.id), p.device, int64(s.Busy()))
		}
	} else {
		// Who closes by itself though it has more to do has found the grant spent.
		r.ended(t, p, c.waiting && c.stopped == 0 || int64(s.Busy()) >= p.until)
	}
	r.decide(t)
}

func (r *Runner) gone(s seat) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, p := r.clients[s], r.place(s)
	delete(r.clients, s)
	if c == nil || p == nil {
		return
	}
	t := now()
	r.progressOn(t, p.device) // what it used without leave, while this daemon hung, is charged too
	p.clients = slices.DeleteFunc(p.clients, func(o *client) bool { return o == c })
	if len(p.clients) == 0 {
		r.turnOver(t, p)
		r.policy.Detach(t, schedule.ID(p.id), p.device)
		r.places = slices.DeleteFunc(r.places, func(q *place) bool { return q == p })
		r.byID[p.id] = slices.DeleteFunc(r.byID[p.id], func(q *place) bool { return q == p })
		if len(r.byID[p.id]) == 0 {
			delete(r.byID, p.id)
		}
	} else if p.phase == open || p.phase == closing {
		r.ended(t, p, false)
	}
	r.decide(t)
}

// ended notes that a client of p runs no more: the next one does, and with the last the grant is over.
func (r *Runner) ended(t int64, p *place, spent bool) {
	if p.phase == open && spent {
		r.close(t, p)
	}
	if p.phase == open {
		r.next(t, p)
	}
	waiting := false
	for _, c := range p.clients {
		if c.granted {
			return
		}
		waiting = waiting || c.waiting
	}
	r.turnOver(t, p)
	p.phase = idle
	r.policy.Closed(t, schedule.ID(p.id), p.device, r.busy(p), waiting)
}

// next opens the gate of the client of an open place that has waited longest for its turn, unless another runs; that one
// is to make room when it has had its turn or has nothing to do, and is not waited for beyond a bound.
func (r *Runner) next(t int64, p *place) {
	var first, runs *client
	for _, c := range p.clients {
		if c.granted && (c.stopped == 0 || t < c.stopped+ownBound) {
			runs = c
		}
		if c.waiting && !c.granted && (first == nil || c.since < first.since) {
			first = c
		}
	}
	switch {
	case first == nil:
	case runs == nil:
		r.grant(t, p, first)
	case runs.stopped == 0 && t >= runs.since+ownTurn:
		r.stop(t, runs)
	case runs.stopped == 0:
		r.tell(p, runs)
	}
}

// Bounds among the clients of one lgpu, ns: a turn, and how long one that has been told to stop keeps others waiting.
const (
	ownTurn  = 40 * int64(time.Millisecond)
	ownBound = 100 * int64(time.Millisecond)
)

// turnOver writes down p's turn, if it has one.
func (r *Runner) turnOver(t int64, p *place) {
	if p.opened == 0 {
		return
	}
	if p.closed != 0 {
		drained := time.Duration(t - p.closed)
		bucket := 0
		for bucket < len(DrainBounds) && drained > DrainBounds[bucket] {
			bucket++
		}
		r.stats.Drains[bucket]++
		r.stats.DrainTotal += drained
	}
	if r.config.Slice != nil {
		r.config.Slice(Slice{LGPU: p.id, Device: p.uuid, Start: p.opened, End: t, Busy: max(r.busy(p)-p.busy, 0)})
	}
	p.opened, p.closed = 0, 0
}

// busy is how far the lgpu's device time has come. Every client of it reads the same counter.
func (r *Runner) busy(p *place) int64 {
	if len(p.clients) == 0 {
		return p.busy
	}
	return int64(min(p.clients[0].seat.Busy(), 1<<62))
}

// progress tells the policy how far everybody has come, progressOn those on one device. Who waits may have come on, too:
// by its own credit, while this daemon hung.
func (r *Runner) progress(t int64) {
	for _, p := range r.places {
		if p.phase != free {
			r.policy.Progress(t, schedule.ID(p.id), p.device, r.busy(p))
		}
	}
}

func (r *Runner) progressOn(t int64, device schedule.Device) {
	for _, p := range r.places {
		if p.device == device && p.phase != free {
			r.policy.Progress(t, schedule.ID(p.id), p.device, r.busy(p))
		}
	}
}

// ---- what the policy decides

// decide carries out what has been decided, and sees to it that time is kept.
func (r *Runner) decide(t int64) {
	r.carryAllOut(t)
	if r.due(t) < r.asleep {
		r.poke()
	}
}

func (r *Runner) carryAllOut(t int64) {
	for decisions := r.policy.Decisions(); len(decisions) > 0; decisions = r.policy.Decisions() {
		for _, d := range slices.Clone(decisions) {
			i := slices.IndexFunc(r.byID[uint64(d.ID)], func(p *place) bool { return p.device == d.Device })
			if i < 0 {
				continue
			}
			r.carryOut(t, r.byID[uint64(d.ID)][i], d)
		}
	}
}

func (r *Runner) carryOut(t int64, p *place, d schedule.Decision) {
	switch d.Kind {
	case schedule.Open:
		r.stats.Grants++
		p.phase, p.until, p.wanted = open, d.Until, d.Wanted
		p.opened, p.busy, p.closed = t, r.busy(p), 0
		r.ended(t, p, false) // at once, if the one that wanted has died
	case schedule.Extend:
		wasFree := p.phase == free
		p.phase, p.until, p.wanted = open, d.Until, d.Wanted
		if wasFree {
			p.opened, p.busy, p.closed = t, r.busy(p), 0
		}
		for _, c := range p.clients {
			if wasFree {
				r.grant(t, p, c) // all run; what follows is one after the other
			} else if c.granted && c.stopped == 0 {
				r.tell(p, c)
			}
		}
	case schedule.Close:
		r.close(t, p)
		r.ended(t, p, false)
	case schedule.Seep:
		r.stats.Seeps++
		p.phase = closing
		for _, c := range p.clients {
			if c.waiting && !c.granted {
				r.begin(t, c)
				c.seat.Send(protocol.Message{Kind: protocol.Seep, Serial: c.serial, Value: 1})
				break
			}
		}
		r.ended(t, p, false)
	case schedule.Free:
		r.turnOver(t, p)
		p.phase = free
		for _, c := range p.clients {
			c.granted, c.waiting = false, false
			c.seat.Send(protocol.Message{Kind: protocol.Free})
		}
	case schedule.Overran:
		r.stats.Overruns++
		if r.config.Overran != nil {
			r.config.Overran(p.id, p.uuid)
		}
	}
}

func (r *Runner) begin(t int64, c *client) {
	r.serial++
	c.serial, c.since, c.stopped, c.granted, c.waiting = r.serial, t, 0, true, false
}

// grant opens the gate of a client of p.
func (r *Runner) grant(t int64, p *place, c *client) {
	r.begin(t, c)
	r.tell(p, c)
}

// tell sends a client the terms of its grant.
func (r *Runner) tell(p *place, c *client) {
	m := protocol.Message{Kind: protocol.Open, Serial: c.serial, Value: protocol.Forever}
	if p.until != schedule.NoLimit {
		m.Value = uint64(max(p.until, 0))
	}
	if p.wanted || slices.ContainsFunc(p.clients, func(o *client) bool { return o.waiting && !o.granted }) {
		m.Flags = protocol.FlagWanted
	}
	if m != c.told {
		c.told = m
		c.seat.Send(m)
	}
}

// stop closes the gate of a client.
func (r *Runner) stop(t int64, c *client) {
	c.stopped = t
	c.seat.Send(protocol.Message{Kind: protocol.Close, Serial: c.serial})
}

// close closes the gates of all clients of p.
func (r *Runner) close(t int64, p *place) {
	if p.phase != open && p.phase != free {
		return
	}
	for _, c := range p.clients {
		if p.phase == free {
			r.begin(t, c)
		}
		if c.granted && c.stopped == 0 {
			r.stop(t, c)
		}
	}
	p.phase, p.closed = closing, t
}

// ---- time

// look is how often the charges of standing grants are looked at, and who waits sees that the daemon lives, ns.
const look int64 = protocol.Beat

// due is when keepTime must do something.
func (r *Runner) due(t int64) int64 {
	next, set := r.policy.Next()
	if !set {
		next = math.MaxInt64
	}
	for _, p := range r.places {
		if p.waits() {
			next = min(next, t+look)
		}
		if p.phase != open {
			continue
		}
		next = min(next, t+look)
		for _, c := range p.clients {
			switch {
			case !c.granted || len(p.clients) == 1:
			case c.stopped == 0:
				next = min(next, max(c.since+ownTurn, t+ownTurn/8))
			case c.stopped+ownBound > t:
				next = min(next, c.stopped+ownBound)
			}
		}
	}
	return next
}

// waits reports whether a process of p waits for word.
func (p *place) waits() bool {
	return p.phase != free && slices.ContainsFunc(p.clients, func(c *client) bool { return c.waiting || c.granted })
}

// poke wakes keepTime.
func (r *Runner) poke() {
	unix.Write(r.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // fails only when it is poked already
	r.asleep = 0
}

// keepTime ticks the policy. Go's timers are up to a millisecond late, which is a tenth of a slice.
func (r *Runner) keepTime() {
	defer unix.Close(r.wake)
	fds := []unix.PollFd{{Fd: int32(r.wake), Events: unix.POLLIN}}
	var counter [8]byte
	for {
		r.mu.Lock()
		if r.over {
			r.mu.Unlock()
			return
		}
		t := now()
		r.progress(t)
		r.policy.Tick(t)
		r.carryAllOut(t)
		for _, p := range r.places {
			if p.phase == open {
				r.next(t, p)
			}
			if p.waits() {
				p.clients[0].seat.Beat()
			}
		}
		r.asleep = r.due(t)
		var timeout *unix.Timespec
		if r.asleep != math.MaxInt64 {
			d := unix.NsecToTimespec(max(r.asleep-t, 1000))
			timeout = &d
		}
		r.mu.Unlock()
		unix.Ppoll(fds, timeout, nil) // an interruption is as good as a wake-up
		unix.Read(r.wake, counter[:])
	}
}
