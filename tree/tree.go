// Package tree is the tree of limits: who may use how much of which device. Every directory of it is a node; a node with
// processes is an lgpu and a leaf, one with children is a group. The two calls that most callers need are those of a
// file system:
//
//	err := t.Write("/team/alice", "lgpu", "195:0 count=4\n195:1 list=0-3,8\n")
//	text, err := t.Read("/team/alice", "lgpu.effective")
//
// The package is pure: no clock, no I/O, no goroutine. Numbers that live elsewhere (memory in use, processes) come from a
// Usage; keeping the state and acting on it are the business of Options.Commit and Watch.
//
// # Requested and effective
//
// A node keeps what was asked for. What it gets is computed from that and from what its parent gets, each time either
// changes: effective bits are the requested ones that the parent has too. So a group that shrinks shrinks its whole
// subtree at once, and when it grows again everything is as it was.
//
// # Transactions
//
// A write is read and checked as a whole, whatever number of lines, devices and files it has, and then takes effect as a
// whole. After an error nothing has changed. Writers take turns; a reader sees the state before a write or after it, and
// never waits for a writer.
//
// # Concurrency
//
// All methods of Tree may be called by several goroutines. Options.Commit and watchers run in the order of the writes, on the
// writer's goroutine, and must not write to the tree. Usage is called without any lock held, and must not call the tree.
package tree

import (
	"sync"
	"sync/atomic"

	"github.com/lgpu/lgpu/tree/list"
)

// Root is the path of the root node.
const Root = "/"

// Limits of a tree, against writers without measure.
const (
	MaxDepth = 16    // nodes on the way from the root to a leaf, the root not counted
	MaxNodes = 65536 // all nodes
)

// Options of a tree. All may be left out.
type Options struct {
	// Usage gives the live numbers. Without one they are zero.
	Usage Usage
	// Commit is called with every change before it takes effect, and keeps it: an error undoes the change, and the writer
	// gets EIO. It may read the tree and sees the state before the change.
	Commit func(Change) error
}

// Tree is the tree of limits of one machine.
type state struct{}

type Tree struct {
	options Options
	state   atomic.Pointer[state] // whole, never written after it is stored

	mu       sync.Mutex // serialises writers
	users    map[uint64]int
	watchers []func(Change)
}

// New makes a tree with a root and no devices.
func New(options Options) *Tree { return &Tree{options: options} }

// SetDevices says which devices there are now, in the order in which files show them. Requests for a device that is gone
// are kept and hold again when it is back.
func (t *Tree) SetDevices(devices []Device) error { return nil }

// Devices returns the devices of the last SetDevices.
func (t *Tree) Devices() []Device { return nil }

// CreateSpec describes a node to make.
type CreateSpec struct {
	Path string
	// Temporary nodes belong to a launcher, which removes them; they are marked in State.
	Temporary bool
	// UID and GID own the node: they may make children and write the children's limits.
	UID, GID uint32
	// Writes are applied to the node in the same transaction.
	Writes []Assignment
}

// Assignment is the text for one file.
type Assignment struct {
	File, Text string
}

// Create makes a node below one that exists. Errors are *Error: EEXIST, ENOENT (no parent), EINVAL (name), EBUSY (the parent
// has processes), ENAMETOOLONG or ENOSPC (too deep, too many), and those of the writes.
func (t *Tree) Create(spec CreateSpec) (Node, error) { return Node{}, nil }

// Mkdir makes a persistent node for a user, as Create does.
func (t *Tree) Mkdir(path string, uid, gid uint32) error { return nil }

// Rmdir removes a node. Errors are *Error: ENOENT, ENOTEMPTY (it has children), EBUSY (processes, or the root).
func (t *Tree) Rmdir(path string) error { return nil }

// Chown gives a node to another owner. Errors are *Error: ENOENT.
func (t *Tree) Chown(path string, uid, gid uint32) error { return nil }

// Persist turns a temporary node into a persistent one. Errors are *Error: ENOENT.
func (t *Tree) Persist(path string) error { return nil }

// Enter counts a user of a node: a launcher, a client. While a node has users it cannot be removed and has no children.
// Errors are *Error: ENOENT, and EBUSY if it has children.
func (t *Tree) Enter(path string) error { return nil }

// Leave takes back one Enter and returns how many users stay.
func (t *Tree) Leave(path string) int { return 0 }

// Users is the number of users of a node, 0 where there is no node.
func (t *Tree) Users(path string) int { return 0 }

// Write writes text to a file of a node: one transaction. Errors are *Error: ENOENT (node or file), EACCES (the file is
// read-only), those of the file's grammar, and EIO if the change could not be kept.
func (t *Tree) Write(path, file, text string) error { return nil }

// Update writes several files of a node as one transaction, in order, each checked against what those before it made.
func (t *Tree) Update(path string, writes []Assignment) error { return nil }

// Read returns the text of a file. Errors are *Error: ENOENT.
func (t *Tree) Read(path, file string) (string, error) { return "", nil }

// Node returns a node. Errors are *Error: ENOENT.
func (t *Tree) Node(path string) (Node, error) { return Node{}, nil }

// ByID returns the node with an ID, wherever it is.
func (t *Tree) ByID(id uint64) (Node, bool) { return Node{}, false }

// Nodes returns all nodes of one state, parents before their children and siblings by name.
func (t *Tree) Nodes() []Node { return nil }

// Watch calls changed after every change that took effect, in order, until the returned function is called. changed may
// read the tree and sees the state after the change.
func (t *Tree) Watch(changed func(Change)) (stop func()) { return func() {} }

// State returns everything that must survive.
func (t *Tree) State() State { return State{} }

// Load replaces all nodes by those of a state, on a tree without users. What does not fit (a bad name, a value out of
// range) is left out and reported, the rest holds: a daemon must start. Options.Commit is not called.
func (t *Tree) Load(s State) []error { return nil }

// Bound returns the path of the node to which the nearest ancestor of a process's cgroup is bound, given the content of
// its /proc/PID/cgroup.
func (t *Tree) Bound(procCgroup []byte) (path string, ok bool) { return "", false }

var _ = list.MaxBits
