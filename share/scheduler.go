package share

// Scheduler is the policy's state. Not safe for concurrent use.
type Scheduler struct{}

// New returns a scheduler without nodes.
func New(o Options) *Scheduler { return &Scheduler{} }

// SetDevice overrides options for one device. Fields that are 0 are as given to New.
func (s *Scheduler) SetDevice(now int64, dev Device, o Options) error { return nil }

// Set makes a node, or changes it; a change takes effect at once, also on open grants. An error changes nothing: a value out
// of range, an unknown parent or one that has seats or is below the node.
func (s *Scheduler) Set(now int64, id ID, p Params) error { return nil }

// Remove ends a node and its seats, as Detach does. Children of a group move to its parent.
func (s *Scheduler) Remove(now int64, id ID) {}

// Attach gives an lgpu a seat on a device; busy is where its Busy stands. It may decide Free at once. Errors: unknown node, a
// group, or a device out of range. Again for a seat that exists, it is Progress.
func (s *Scheduler) Attach(now int64, id ID, dev Device, busy int64) error { return nil }

// Detach takes the seat away; a grant or drain ends here.
func (s *Scheduler) Detach(now int64, id ID, dev Device) {}

// Want says that the seat has work and its gate is closed.
func (s *Scheduler) Want(now int64, id ID, dev Device, busy int64) {}

// Closed says that the grant has ended and the device is drained of its work; waiting, that there is more.
func (s *Scheduler) Closed(now int64, id ID, dev Device, busy int64, waiting bool) {}

// Progress says how far Busy has come.
func (s *Scheduler) Progress(now int64, id ID, dev Device, busy int64) {}

// Tick lets time pass. Call it at Next, or whenever convenient.
func (s *Scheduler) Tick(now int64) {}

// Next is the time at which Tick must be called unless something happens before; false: not at all.
func (s *Scheduler) Next() (int64, bool) { return 0, false }

// Decisions returns what has been decided since the last call, in order. The slice is valid until the next call of any
// method.
func (s *Scheduler) Decisions() []Decision { return nil }

// State is what a seat is doing.
type State uint8

const (
	// Idle has no grant and no work.
	Idle State = iota
	// Waiting has work and waits for others.
	Waiting
	// Throttled has work and waits for credit: its cap, or that of a group above, is used up.
	Throttled
	// Running has a grant.
	Running
	// Draining has been asked to close and has not yet.
	Draining
	// Overrun drains beyond the bound, beside others.
	Overrun
)

// Share is what a seat is entitled to and gets, in hundredths of a percent of the device's time.
type Share struct {
	ID        ID
	Device    Device
	State     State
	Free      bool   // Running without accounts: Delivered is not known
	Asked     uint32 // what it gets when every lgpu with a seat on the device has work
	Delivered uint32 // what it was charged over the last second
}

// Shares appends the share of every seat to dst, by device, then ID.
func (s *Scheduler) Shares(now int64, dst []Share) []Share { return dst }
