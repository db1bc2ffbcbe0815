// Package schedule decides which lgpu has which device's compute next. It is pure policy: no GPU, no clock, no
// goroutine; the caller tells it what happened and when, and carries out its decisions. The same code runs in the
// daemon, in tests and in a simulation of a hundred devices.
//
//	s := schedule.New(schedule.Options{})
//	s.Set(now, 1, schedule.Params{Weight: 300})
//	s.Set(now, 2, schedule.Params{Max: map[schedule.Device]uint32{0: 2500}}) // a quarter of device 0
//	s.Attach(now, 1, 0, busy) // a process of lgpu 1 uses device 0
//	s.Want(now, 1, 0, busy)   // and has work
//	for _, d := range s.Decisions() { ... }
//	// sleep until s.Next(), or until something happens
//
// # Words
//
// An entity is an lgpu or a group; groups nest. An lgpu has a seat on a device once one of its processes uses the
// device; it has one seat there, however many of its processes use it. A grant allows a seat to use its device. It
// begins with Open and ends with Closed: when the device has drained, not when the seat was asked to close. Busy is the
// device time that a seat has used, in ns since some moment of the caller's choice; it only grows. Time is ns of any
// monotonic clock; a time before the last one given counts as the last one.
//
// # What the caller sends
//
// All calls come from one goroutine (or under one lock): nothing here is safe for concurrent use. After each call, or
// after several at the same time, take Decisions and carry them out in order; then sleep until Next and call Tick.
//
//   - Set before anything else about an entity; a parent before its children.
//   - Attach when the first process of an lgpu begins to use a device; Detach when the last has gone, also when it
//     died in the middle of a grant: Detach ends the grant, no Closed is needed.
//   - Want when a process has work and the seat's gate is closed. Once is enough: the wish stands until Open. The
//     processes of an lgpu use the grant together: while it is open, the caller opens the gate of each that wants it
//     without a call. A Want between Close and Closed counts for the time after Closed.
//   - Closed exactly once for every Open or Free, when all gates of the seat are closed and the device has drained of
//     the lgpu's work: after Close, after Until was reached, or because the seat was idle and yielded. And exactly once
//     for every Seep, when the launch that it let through has drained. waiting says that a process has more work; no
//     Want is needed then. It may come a little before the end of the work (early, in options.go), if that end is known.
//   - Progress whenever Busy has been read during a grant; every few ms while the device is contended, rarely (100 ms)
//     for a standing grant without a maximum. For the most exact charge send it right before another seat's Want.
//
// busy is always the lgpu's absolute Busy on the device, over all its processes (their union: two that compute at the
// same time count once). A value below the last one, or one that grew by more than the time that has passed, is
// corrected. Calls that name unknown entities or devices, or make no sense in the present state, are ignored or, where
// a person's input may be the cause, return an error; they never harm another seat.
//
// # What the decisions mean
//
// See Kind. Until is in terms of Busy, so that a seat closes its own gate early enough to have drained by then, and
// so that an idle seat keeps its grant.
//
// # Policy
//
// In order, the device goes to
//
//  1. latency-critical lgpus, whose wish also closes another's grant at once, as long as they have not had more than
//     their part by weight (and half a slice on top; a whole one while they run): beyond that they are like any other;
//  2. lgpus below their minimum, or in a group below its minimum, the one that has missed it longest first;
//  3. lgpus of class High;
//  4. all others.
//
// High thus goes strictly before Normal. Normal can starve except for its minimums: give one to whatever must go on.
// Minimums hold as long as they and the parts of latency-critical lgpus fit the device. Within 1, 3 and 4 the order is
// fair: among siblings of the tree the one with the least time by weight is next. An lgpu that has just come has no
// claim for the time when it was away, and one that ran longer than its slice pays with its next slices. No lgpu gets
// more than its maximum, or that of a group above, even when the device is idle: credit flows in at the rate of the
// maximum, a Quantum of it starts a grant, and at most Burst of it is saved, plus what flows in while others keep the
// device (for at most 200 ms at a time).
//
// While others wait, a grant is charged by the clock from Open to Closed; otherwise by Busy, and then it counts for the
// maximum only. A grant that nobody contends for has no end. A contended one lasts a slice, and goes on without being
// closed when its seat would be next again. Slices are longer for seats that drain slowly, and where a few heavy seats are
// alone on a device with Options.Preempt. A seat without any maximum that is alone on its device is Free: it needs no
// accounts.
//
// # Guests
//
// On a device with Options.Preempt, only heavy seats take turns: those that keep it busy for most of the time in which
// they may use it. The others are guests. A guest's grant stands beside that of the owner, also while the guest has no
// work, until it has had more than its part by a bound; then it waits until those that wait have caught up. A guest is
// charged the device time that Measured says it used, and the owner is not charged for that time. Guests of a group
// share what the group may have: one that is ahead of its siblings is let in only while the group is as far below the
// bound. Minimums let a guest in beyond its part, and a guest that one of class High or below its minimum keeps from
// the device takes part in the turns. A heavy seat that has paused in its turn takes the device back when it goes
// first. Heavy seats have short time slices while there are guests, and guests have some in proportion to what they are
// entitled to. Seats whose Busy is clearly less than what they use take turns, too. All do while one whose kernels the
// hardware does not stop (Preempted) uses the device.
//
// The gates of a gang of guests are opened and closed together. A gang takes turns only while one of class High, or below its
// minimum, keeps it from a device.
//
// # Memory
//
// A seat whose memory is not on the device (SetMemory) is not opened. It keeps its place in fair queueing while it waits,
// and those that have the device meanwhile are charged by the clock; their grants go on without an end, unless others wait
// too that can be let in. When it is its turn, Prepare says so, and SetMemory answers. A gang is opened only when the memory
// of all of it is there. What is loaded when, and how long it stays, is decided elsewhere (policy/slot), by Order.
//
// # Gangs
//
// The seats of an lgpu on several devices, and those of all lgpus with the same Gang, are opened and closed together:
// their kernels may wait for each other across devices. A gang's turn comes when it is first on all its devices, or,
// once it has waited two slices for that, when it has had more than its part on none; then the grants on them are
// closed and the devices kept for the gang. A seat of a gang that has been neither busy nor waiting for a second is
// left out until it wants. Two seats of a gang on the same device take turns. While a seat of a gang still runs long
// after its Closed, others of the gang that wait get a Seep each: the work of the one may wait for theirs.
package schedule

import "math"

// ID names an entity: a group or an lgpu. The caller chooses it; 0 is the top of the tree.
type ID uint64

// Device is the caller's number for a device; at most MaxDevices-1.
type Device int

// MaxDevices bounds Device.
const MaxDevices = 4096

// Whole is a device's whole time: maxima, minimums and shares are in hundredths of a percent.
const Whole uint32 = 10000

// NoLimit as Until: the grant lasts until Close.
const NoLimit int64 = math.MaxInt64

// DefaultWeight is the weight of entities that have none.
const DefaultWeight uint32 = 100

// MaxWeight is the largest weight.
const MaxWeight uint32 = 10000

// Class is an lgpu's priority.
type Class uint8

// Classes; High goes strictly before Normal.
const (
	Normal Class = iota
	High
)

// Params are the parameters of an entity. Class, Latency, Gang and Devices are an lgpu's; those of a group are ignored,
// so a caller that inherits them from the parent resolves that itself.
type Params struct {
	Parent  ID                // 0: the top
	Weight  uint32            // 1..MaxWeight, against its siblings; 0: DefaultWeight
	Max     map[Device]uint32 // most device time, 1..Whole; a missing device or Whole: no maximum
	Min     map[Device]uint32 // guaranteed device time, 0..Whole; missing: none
	Class   Class
	Latency bool     // latency-critical
	Gang    string   // lgpus with the same name, if not empty, are one gang
	Devices []Device // what it may use; nil: all. Elsewhere its seats are never opened
}

// Kind is what a Decision asks of the caller.
type Kind uint8

const (
	// Open the seat's gate: a grant begins. Until, Wanted and Beside as in Decision.
	Open Kind = iota + 1
	// Extend an open grant: Until, Wanted and Beside replace the ones before. Until may also be lower than it was, when a
	// maximum was lowered. It also ends Free: the gate stays open, but keeps accounts from now on.
	Extend
	// Close the gate; report Closed once drained. Seats that have closed by themselves and are draining get it too.
	Close
	// Seep lets one launch through a gate of a seat that is closed and drained, because the rest of its gang may wait
	// for it; then report Closed again.
	Seep
	// Free opens the gate with no accounts at all: the seat is alone on the device and has no maximum. It may come
	// instead of Open, without a Want, and during a grant. It ends with Extend, Close, or Closed.
	Free
	// Overran tells that a seat did not drain within the bound (or, after Close, that its gang was changed), and that
	// the device goes to others meanwhile. There is nothing to send; Closed is still to come, and the seat is charged
	// until then.
	Overran
	// Prepare says that the seat is to have the device next, as soon as its memory is there, which is Away (SetMemory). It
	// comes again when another one was to be next meanwhile.
	Prepare
	// Slice asks for another time slice of the seat's channel groups. Only a device with Options.Preempt has it.
	Slice
)

// Decision is one thing for the caller to do.
type Decision struct {
	Kind   Kind
	ID     ID
	Device Device
	Until  int64 // Open, Extend: the grant is over when Busy, with the work in flight, reaches it
	Wanted bool  // Open, Extend: others wait, so an idle seat must not keep the device
	Beside bool  // Open, Extend: others use the device at the same time; what is charged does not hang on the seat's Busy
	Slice  int64 // Slice: of the hardware, ns; 0: the driver's own
}

// Options are times in ns; 0 is the default.
type Options struct {
	Slice      int64 // a turn while others wait, when draining is quick; 2 ms..50 ms, default 10 ms
	SliceMax   int64 // the longest slice for lgpus that drain slowly; Slice..200 ms, default 5 Slices
	Quantum    int64 // least credit that opens the gate of a capped lgpu; default 5 ms
	Burst      int64 // credit that an idle lgpu saves up; default 20 ms
	DrainBound int64 // others may have the device this long after Close at the latest; default 100 ms
	Preempt    bool  // the hardware stops kernels at the end of a time slice, so that lgpus can be guests
	SeepAfter  int64 // a drained gang seat with work waits so long for the others to drain; default 0.5 ms
}
