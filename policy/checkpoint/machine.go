// Package checkpoint decides what happens when, on the way of programs from running to an image on disk and back: which
// processes of a program take which step, how long that may take, and what is undone when something fails.
//
//	m := checkpoint.New([]int{100, 101}, checkpoint.Running, checkpoint.Saved, checkpoint.Options{})
//	orders := m.Start(now)              // gate both
//	orders = m.Done(100, now)           // nothing: 101 is not yet gated
//	orders = m.Done(101, now)           // evict both
//
// # Rules
//
// Processes move together: a stage begins when all have reached the one before, and is as long as the slowest. Each
// stage has a deadline. A step that fails, a deadline, a process that ends, or the user's wish turns everything back:
// steps under way are broken off, and then those who came farthest go back first, again together. So no gate opens
// beside a process that is still parked, and no process is left where it cannot run. What cannot be undone is tried
// again; what still cannot, or does not answer, is stuck, and the outcome names it. A move that was turned back is never
// told as one that has succeeded.
//
// The way back from an image is the same with the stages in reverse: what fails goes back to where it came from, and can
// be tried again. A process that ends on that way has come to its end a little early, and the others go on.
//
// What can be known to stand in the way is asked before anything is locked: Admit.
//
// The package is pure: no clock, no I/O, no goroutine. A Machine is for one goroutine at a time.
package checkpoint

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Stage is how far a process has come on the way to an image.
type Stage int

// The stages, from a program that runs to one that is on disk.
const (
	Running Stage = iota
	Gated         // no launch or copy of the program begins any more, and none is under way
	Evicted       // the memory that lgpu owns has left the device
	Parked        // it has no connection, no descriptor and no memory that leads out of it
	Saved         // the driver has written what it knows into the program, and has given up the device
	Dumped        // it is on disk
	stages
)

var stageNames = [stages]string{"running", "gated", "evicted", "parked", "saved", "dumped"}

// String is the name of a stage in messages.
func (s Stage) String() string {
	if s < 0 || s >= stages {
		return fmt.Sprintf("stage %d", int(s))
	}
	return stageNames[s]
}

// Reasons for which a move is turned back.
var (
	ErrCanceled = errors.New("canceled")
	ErrDeadline = errors.New("took too long")
	ErrEnded    = errors.New("has ended")
)

// Options of a Machine. What is left out is the default.
type Options struct {
	// Deadline is how long a step may take, by the higher of its two stages; by default 30 s each.
	Deadline [stages]time.Duration
	// Patience is how long a step that was broken off may take to answer; 5 s.
	Patience time.Duration
	// Retries is how often a step back is tried again that has failed; 3.
	Retries int
}

// Order is a step of one process, to be begun; or with Stop, to be broken off. Either way it is answered once, by Done
// or Failed: a step that was told to stop may have been done all the same.
type Order struct {
	Process  int
	From, To Stage
	Stop     bool
}

// Outcome is what has come of a move.
type Outcome struct {
	Err   error // nil if all have arrived; else why they were turned back
	Stuck []int // processes that are where they should not be, and what to do about them is left to people
}

// Machine moves the processes of one program from one stage to another.
type Machine struct {
	options   Options
	from, to  Stage
	processes []*process
	cause     error // of turning back
	stopping  bool  // those under way have been told
	deadline  time.Time
}

type process struct {
	id    int
	at    Stage
	next  Stage // of the step under way
	busy  bool
	stuck bool
	ended bool
	tries int
}

// New returns a machine that moves processes, which are all at one stage, to another.
func New(processes []int, from, to Stage, o Options) *Machine {
	for i, d := range o.Deadline {
		if d <= 0 {
			o.Deadline[i] = 30 * time.Second
		}
	}
	if o.Patience <= 0 {
		o.Patience = 5 * time.Second
	}
	if o.Retries <= 0 {
		o.Retries = 3
	}
	m := &Machine{options: o, from: from, to: to}
	for _, id := range processes {
		m.processes = append(m.processes, &process{id: id, at: from})
	}
	return m
}

// Start begins the move.
func (m *Machine) Start(now time.Time) []Order { return m.advance(now) }

// Done says that a process has taken the step it was ordered to.
func (m *Machine) Done(id int, now time.Time) []Order {
	p := m.find(id)
	if p == nil || !p.busy {
		return nil
	}
	p.at, p.busy, p.stuck, p.tries = p.next, false, false, 0
	return m.advance(now)
}

// Failed says that a process has not taken its step, and is where it was.
func (m *Machine) Failed(id int, err error, now time.Time) []Order {
	p := m.find(id)
	if p == nil || !p.busy {
		return nil
	}
	p.busy, p.stuck = false, false
	if m.cause == nil {
		return m.turn(fmt.Errorf("process %d: %s to %s: %w", id, p.at, p.next, err), now)
	}
	if p.next != p.toward(m.from) {
		return m.advance(now) // a step ahead that was broken off
	}
	if p.tries++; p.tries > m.options.Retries {
		p.stuck = true
	}
	return m.advance(now)
}

// Ended says that a process is no more. On disk it need not be.
func (m *Machine) Ended(id int, now time.Time) []Order {
	p := m.find(id)
	if p == nil || p.at == Dumped && !p.busy {
		return nil
	}
	early := m.cause == nil && !m.arrived() && m.from < m.to
	p.ended, p.busy, p.stuck = true, false, false
	if early {
		return m.turn(fmt.Errorf("process %d %w", id, ErrEnded), now)
	}
	return m.advance(now)
}

// Cancel turns the move back, unless it is over.
func (m *Machine) Cancel(now time.Time) []Order {
	if m.cause != nil || m.arrived() {
		return nil
	}
	return m.turn(ErrCanceled, now)
}

// Deadline is when Expire is to be called, if nothing happens before.
func (m *Machine) Deadline() (time.Time, bool) { return m.deadline, m.waits() }

// Expire says that the deadline has come.
func (m *Machine) Expire(now time.Time) []Order {
	if !m.waits() || now.Before(m.deadline) {
		return nil
	}
	if m.stopping {
		for _, p := range m.processes {
			p.stuck = p.stuck || p.busy
		}
		return m.advance(now)
	}
	if m.cause == nil {
		return m.turn(fmt.Errorf("process %d %w", m.slowest(), ErrDeadline), now)
	}
	return m.stop(now)
}

// Outcome is what has come of the move; ok is false while it is under way. A process that is stuck may still answer, and
// the move is under way again then.
func (m *Machine) Outcome() (o Outcome, ok bool) {
	if m.waits() {
		return o, false
	}
	o.Err = m.cause
	for _, p := range m.processes {
		if p.stuck {
			o.Stuck = append(o.Stuck, p.id)
		}
	}
	return o, m.cause != nil || m.arrived()
}

// Stage is where a process is; ok is false for one that has ended or is none of the program's.
func (m *Machine) Stage(id int) (s Stage, ok bool) {
	p := m.find(id)
	if p == nil {
		return 0, false
	}
	return p.at, true
}

func (m *Machine) find(id int) *process {
	i := slices.IndexFunc(m.processes, func(p *process) bool { return p.id == id && !p.ended })
	if i < 0 {
		return nil
	}
	return m.processes[i]
}

// waits reports whether an answer is waited for.
func (m *Machine) waits() bool {
	return slices.ContainsFunc(m.processes, func(p *process) bool { return p.busy && !p.stuck })
}

// arrived reports whether all are where they should be, without having been turned back.
func (m *Machine) arrived() bool {
	return m.cause == nil && !slices.ContainsFunc(m.processes, func(p *process) bool { return !p.ended && (p.at != m.to || p.busy) })
}

// slowest is a process that has not answered yet.
func (m *Machine) slowest() int {
	i := slices.IndexFunc(m.processes, func(p *process) bool { return p.busy && !p.stuck })
	return m.processes[i].id
}

// turn begins to turn the move back.
func (m *Machine) turn(cause error, now time.Time) []Order {
	m.cause = cause
	if m.waits() {
		return m.stop(now)
	}
	return m.advance(now)
}

// stop breaks off what is under way.
func (m *Machine) stop(now time.Time) (orders []Order) {
	m.stopping, m.deadline = true, now.Add(m.options.Patience)
	for _, p := range m.processes {
		if p.busy && !p.stuck {
			orders = append(orders, Order{Process: p.id, From: p.at, To: p.next, Stop: true})
		}
	}
	return orders
}

// advance orders the next steps, once nothing is under way: of all that are farthest from where they should be.
func (m *Machine) advance(now time.Time) (orders []Order) {
	if m.waits() {
		return nil
	}
	m.stopping = false
	goal := m.to
	if m.cause != nil {
		goal = m.from
	}
	far := 0
	for _, p := range m.processes {
		if p.moves() {
			far = max(far, distance(p.at, goal))
		}
	}
	for _, p := range m.processes {
		if far == 0 || !p.moves() || distance(p.at, goal) < far {
			continue
		}
		p.busy, p.next = true, p.toward(goal)
		orders = append(orders, Order{Process: p.id, From: p.at, To: p.next})
		m.deadline = now.Add(m.options.Deadline[max(p.at, p.next)])
	}
	return orders
}

// moves reports whether a process can be told something.
func (p *process) moves() bool { return !p.ended && !p.stuck && !p.busy }

// toward is the stage after p's on the way to another.
func (p *process) toward(goal Stage) Stage {
	switch {
	case p.at < goal:
		return p.at + 1
	case p.at > goal:
		return p.at - 1
	}
	return p.at
}

func distance(a, b Stage) int { return max(int(a-b), int(b-a)) }
