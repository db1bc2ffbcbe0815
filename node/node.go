// Package node is the daemon: it owns the state of a machine's lgpus and joins the parts that each know one thing. The
// tree says what is allowed, tenants who asks, the gate whose turn it is, the store what survives, and the inventories what
// is true on the devices.
package node

import (
	"context"
	"errors"
	"time"
)

// Errors of this package, wrapped with what they are about.
var (
	// ErrRunning: another daemon has this runtime folder.
	ErrRunning = errors.New("a daemon is running already")
	// ErrClosed: the daemon, or the feed, has ended.
	ErrClosed = errors.New("closed")
	// ErrExists: there is an lgpu or group with that path already.
	ErrExists = errors.New("exists already")
	// ErrNotFound: there is no such lgpu or group.
	ErrNotFound = errors.New("no such lgpu or group")
	// ErrBusy: the lgpu has launchers or clients, or the group has children.
	ErrBusy = errors.New("in use")
	// ErrDiffers: the lgpu exists with other limits or devices than were asked for.
	ErrDiffers = errors.New("exists with other limits")
	// ErrInvalid: the specification makes no sense.
	ErrInvalid = errors.New("invalid")
	// ErrNoDevice: the machine has no device of that name, or none at all.
	ErrNoDevice = errors.New("no such device")
)

// Node is the daemon of one runtime folder. Its methods may be called by any number of goroutines.
type Node struct {
	config Config
	events source[Event]
	slices source[Slice]
}

// Open takes the runtime folder, reads the state and finds the devices. An error wraps ErrRunning if another daemon has the
// folder. The caller ends a Node that was opened by Close, also after Run.
func Open(c Config) (*Node, error) {
	return nil, errors.ErrUnsupported
}

// Run serves tenants and keeps watch until ctx ends, or until nobody has needed the daemon for Config.Idle; then it returns
// nil. Tenants go on: they keep their limits and look for the next daemon.
func (n *Node) Run(ctx context.Context) error { return errors.ErrUnsupported }

// Close ends all feeds, unmounts the tree, and gives the runtime folder free.
func (n *Node) Close() error { return nil }

// Dir returns the runtime folder.
func (n *Node) Dir() string { return n.config.Dir }

// Snapshot returns the present state.
func (n *Node) Snapshot() Snapshot { return Snapshot{} }

// Watch calls show with a Snapshot at once and then every period (at least 50 ms) until it fails, ctx ends or the daemon
// does, and returns why.
func (n *Node) Watch(ctx context.Context, period time.Duration, show func(Snapshot) error) error {
	return errors.ErrUnsupported
}

// Events returns a feed of what happens from now on, which the caller closes. The daemon keeps 1024 events for a slow
// reader.
func (n *Node) Events() *Feed[Event] { return n.events.subscribe() }

// Recent returns the last events, at most 256, oldest first.
func (n *Node) Recent() []Event { return nil }

// Slices returns a feed of the turns that lgpus had, which the caller closes. The daemon keeps 4096 for a slow reader.
func (n *Node) Slices() *Feed[Slice] { return n.slices.subscribe() }

// Use tells the daemon that somebody is using its API until release is called, which keeps it from leaving.
func (n *Node) Use() (release func()) { return func() {} }

// Counters returns numbers that only rise while the daemon lives.
func (n *Node) Counters() Counters { return Counters{} }

// Counters are what metrics show beside a Snapshot.
type Counters struct {
	Events map[Kind]uint64 // how many of each kind
}
