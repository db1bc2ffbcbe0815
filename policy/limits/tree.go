// Package limits is the tree of limits: who may use how much of which device. Each of its directories is a group or an
// lgpu: one with processes is an lgpu and a leaf, one with children is a group. The two calls that most callers need
// are those of a file system:
//
//	err := t.Write("/team/alice", "lgpu", "195:0 count=4\n195:1 list=0-3,8\n")
//	text, err := t.Read("/team/alice", "lgpu.effective")
//
// The files are those of docs/files.md. Programs ask by value instead (CreateSpec.Request): a limit is a typed value
// from there to Effective, and text is only how files show it. The package is pure: no clock, no I/O, no goroutine.
// Numbers that live elsewhere (memory in use, processes) come from a Usage; keeping the state and acting on it are the
// business of Options.Commit and Watch.
//
// # Requested and effective
//
// A directory keeps what was asked for. What it gets is computed from that and from what its parent gets, each time
// either changes: effective bits are the requested ones that the parent has too. So a group that shrinks shrinks its
// whole subtree at once, and when it grows again everything is as it was.
//
// # Transactions
//
// A write is read and checked as a whole, whatever number of lines, devices and files it has, and then takes effect as
// a whole. After an error nothing has changed. Writers take turns; a reader sees the state before a write or after it,
// and never waits for a writer.
//
// # Concurrency
//
// All methods of Tree may be called by several goroutines. Options.Commit and watchers run in the order of the writes,
// on the writer's goroutine and with the writers' lock held, so they may read the tree but must neither write to it nor
// Enter or Leave. Usage is called without any lock held.
package limits

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/lgpu/lgpu/internal/list"
	"github.com/lgpu/lgpu/internal/names"
)

// Root is the path of the root.
const Root = "/"

// Bounds of a tree, against writers without measure.
const (
	MaxDepth       = 16       // directories on the way from the root to a leaf, the root not counted
	MaxDirectories = 16384    // all directories
	MaxText        = 64 << 10 // bytes of one write
)

// Options of a tree. All may be left out.
type Options struct {
	// Usage gives the live numbers. Without one they are zero.
	Usage Usage
	// Commit is called with every change before it takes effect, and keeps it: an error undoes the change, and the
	// writer gets EIO. It may read the tree and sees the state before the change.
	Commit func(Change) error
	// Rights say who may change what by an Editor, and who sees what.
	Rights Rights
	// Names are those of users and groups of users in what people are told; the rights go by numbers.
	Names Names
	// Stop ends the programs in and below the directory with an ID, for who wrote procs.kill. It is called without a lock
	// of the tree held and does not wait for their end. Without one the file does nothing.
	Stop func(id uint64, by *Author)
	// Used reports whether programs run in the directory with an ID, or have: then memory.overcommit stays as it is. It
	// is called with the writers' lock held. Without one only users that are there count.
	Used func(id uint64) bool
	// HostBudget is host.budget where nothing was written, in bytes.
	HostBudget uint64
}

// Tree is the tree of limits of one machine.
type Tree struct {
	usage  Usage
	commit func(Change) error
	rights Rights
	names  Names
	stop   func(uint64, *Author)
	ran    func(uint64) bool
	// hostMemory is Options.HostBudget.
	hostMemory uint64
	state      atomic.Pointer[state] // whole, never written after it is stored
	past       past

	mu       sync.Mutex     // serialises writers
	users    map[uint64]int // by directory ID
	watchers []*func(Change)
}

// New makes a tree with a root and no devices.
func New(options Options) *Tree {
	t := &Tree{usage: options.Usage, commit: options.Commit, rights: options.Rights, names: options.Names, stop: options.Stop,
		ran: options.Used, hostMemory: options.HostBudget,
		users: map[uint64]int{}}
	if t.usage == nil {
		t.usage = noUsage{}
	}
	t.state.Store(newState())
	return t
}

// SetDevices says which devices there are now, in the order in which files show them. Requests for a device that is
// gone are kept and hold again when it is back. Errors are *Error: EINVAL for a device that cannot be, EIO as for
// Write.
func (t *Tree) SetDevices(devices []Device) error {
	if err := checkDevices(devices); err != nil {
		return err
	}
	return t.change(nil, Root, func(next *state) *Error {
		next.devices, next.stale = slices.Clone(devices), true
		return nil
	})
}

// Devices returns the devices of the last SetDevices.
func (t *Tree) Devices() []Device { return slices.Clone(t.state.Load().devices) }

// Persist turns a temporary directory into a persistent one. Errors are *Error: ENOENT, EIO.
func (t *Tree) Persist(path string) error {
	return t.change(nil, path, func(next *state) *Error {
		n, err := next.find(path)
		if err != nil {
			return err
		}
		n.Temporary, n.revision = false, next.sequence
		return nil
	})
}

// Enter counts a user of a node: a launcher, a client. While a directory has users it cannot be removed and gets no
// children. Errors are *Error: ENOENT, and EBUSY if it has children.
func (t *Tree) Enter(path string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, err := t.find(path)
	if err != nil {
		return err
	}
	if len(n.children) > 0 {
		return &Error{Errno: syscall.EBUSY, Path: path, Reason: "it is a group; processes are in lgpus, which have nothing below them"}
	}
	t.users[n.ID]++
	return nil
}

// Leave takes back one Enter and returns how many users stay.
func (t *Tree) Leave(path string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, err := t.find(path)
	if err != nil {
		return 0
	}
	left := max(t.users[n.ID]-1, 0)
	if t.users[n.ID] = left; left == 0 {
		delete(t.users, n.ID)
	}
	return left
}

// Users is the number of users of a directory, 0 where there is no directory.
func (t *Tree) Users(path string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n, err := t.find(path); err == nil {
		return t.users[n.ID]
	}
	return 0
}

// Read returns the text of a file. Errors are *Error: ENOENT, and EACCES for a file that can only be written.
func (t *Tree) Read(path, file string) (string, error) {
	s := t.state.Load()
	n, err := s.find(path)
	if err != nil {
		return "", err
	}
	f, err := n.file(file)
	if err != nil {
		return "", err
	}
	if f.read == nil {
		return "", &Error{Errno: syscall.EACCES, Path: path, File: file, Reason: "the file can only be written"}
	}
	return f.read(t, s, n), nil
}

// Directory returns a group or an lgpu. Errors are *Error: ENOENT.
func (t *Tree) Directory(path string) (Directory, error) {
	s := t.state.Load()
	n, err := s.find(path)
	if err != nil {
		return Directory{}, err
	}
	return s.export(n), nil
}

// ByID returns the directory with an ID, wherever it is.
func (t *Tree) ByID(id uint64) (Directory, bool) {
	s := t.state.Load()
	n := s.byID[id]
	if n == nil {
		return Directory{}, false
	}
	return s.export(n), true
}

// Directories returns all directories of one state, parents before their children and siblings by name.
func (t *Tree) Directories() []Directory {
	s := t.state.Load()
	dirs := make([]Directory, 0, len(s.byID))
	s.root.walk(func(n *directory) { dirs = append(dirs, s.export(n)) })
	return dirs
}

// Watch calls changed after every change that took effect, in order, until the returned function is called. changed may
// read the tree and sees the state after the change.
func (t *Tree) Watch(changed func(Change)) (stop func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := &changed
	t.watchers = append(t.watchers, w)
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.watchers = slices.DeleteFunc(t.watchers, func(other *func(Change)) bool { return other == w })
	}
}

// State returns everything that must survive. It is shared with the tree and must not be changed.
func (t *Tree) State() State { return t.state.Load().save() }

// Load replaces all directories by those of a state, on a tree without users; the devices stay. What does not fit (a
// bad name, a value out of range) is left out and reported, the rest holds: a daemon must start. Options.Commit is not
// called, and watchers are.
func (t *Tree) Load(saved State) []error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.users) > 0 {
		return []error{&Error{Errno: syscall.EBUSY, Path: Root, Reason: "a tree in use cannot be replaced"}}
	}
	old := t.state.Load()
	next, problems := load(saved)
	next.devices, next.sequence, next.lastID = old.devices, old.sequence+1, max(old.lastID, next.lastID)
	next.root.walk(func(n *directory) { n.revision = next.sequence })
	next.resolve()
	t.publish(old, next)
	return problems
}

// used reports whether a directory has or had programs. The caller holds mu.
func (t *Tree) used(id uint64) bool { return t.users[id] > 0 || t.ran != nil && t.ran(id) }

// find returns a directory of the newest state.
func (t *Tree) find(path string) (*directory, *Error) { return t.state.Load().find(path) }

// change is the one way from a state to the next. edit works on a copy that nobody else sees; done runs once the change
// has taken effect, before the next one can begin.
func (t *Tree) change(by *Author, path string, edit func(next *state) *Error, done ...func()) error {
	if err := t.changed(by, path, edit, done); err != nil {
		return err.named(t.names)
	}
	return nil
}

// changed is change, whose error names users by number.
func (t *Tree) changed(by *Author, path string, edit func(next *state) *Error, done []func()) *Error {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.state.Load()
	next := old.clone()
	next.used = t.used
	next.by, next.bounded = by, by != nil && !t.rights.Trusts(*by)
	if err := edit(next); err != nil {
		return err
	}
	if next.stale {
		next.resolve()
	}
	change := difference(old, next)
	if t.commit != nil && !change.empty() {
		if err := t.commit(change); err != nil {
			return &Error{Errno: syscall.EIO, Path: path,
				Reason: fmt.Sprintf("the change could not be kept, nothing has changed: %v", err)}
		}
	}
	t.state.Store(next)
	for _, f := range done {
		f()
	}
	if !change.empty() {
		t.tell(change)
	}
	return nil
}

// publish makes next the state without asking Commit. The caller holds mu.
func (t *Tree) publish(old, next *state) {
	t.state.Store(next)
	t.tell(difference(old, next))
}

// tell calls the watchers. The caller holds mu.
func (t *Tree) tell(change Change) {
	for _, w := range slices.Clone(t.watchers) {
		(*w)(change)
	}
}

// state is one state of the tree. Once stored it is never written; slices, maps and pointers in its directories are
// shared with the states before and after.
type state struct {
	sequence uint64
	lastID   uint64
	devices  []Device
	root     *directory
	byPath   map[string]*directory
	byID     map[uint64]*directory
	stale    bool                 // effective values are those of before the last edit
	resets   []reset              // asked for by the writes that made this state
	kill     *uint64              // the directory whose programs those writes want to end
	bounded  bool                 // it is made by somebody who is no administrator
	by       *Author              // who made this state, nil for the owner of the tree itself
	note     any                  // of the CreateSpec that made this state
	used     func(id uint64) bool // programs use a directory, or have used it; nil where that cannot be said
}

// directory is a directory of one state.
type directory struct {
	DirectoryState
	revision  uint64 // the sequence of the change that last wrote a request
	parent    *directory
	children  []*directory // by name
	effective []Effective  // for state.devices
	host      Bytes
	suspended bool // memory.suspend is 1 here or above
}

// rootID is the root's ID.
const rootID = 1

func newState() *state {
	root := &directory{DirectoryState: DirectoryState{ID: rootID, Path: Root}}
	return &state{lastID: rootID, root: root, byPath: map[string]*directory{Root: root}, byID: map[uint64]*directory{rootID: root}}
}

// clone returns the beginning of the next state.
func (s *state) clone() *state {
	next := &state{
		sequence: s.sequence + 1, lastID: s.lastID, devices: s.devices,
		byPath: make(map[string]*directory, len(s.byPath)+1), byID: make(map[uint64]*directory, len(s.byID)+1),
	}
	var copied func(n, parent *directory) *directory
	copied = func(n, parent *directory) *directory {
		c := &directory{DirectoryState: n.DirectoryState, revision: n.revision, parent: parent, children: make([]*directory, len(n.children)),
			effective: n.effective, host: n.host, suspended: n.suspended}
		for i, child := range n.children {
			c.children[i] = copied(child, c)
		}
		next.add(c)
		return c
	}
	next.root = copied(s.root, nil)
	return next
}

// add makes n findable.
func (s *state) add(n *directory) { s.byPath[n.Path], s.byID[n.ID] = n, n }

// owned returns how many directories a user has.
func (s *state) owned(uid uint32) (n int) {
	for _, dir := range s.byID {
		if dir.UID == uid {
			n++
		}
	}
	return n
}

func (s *state) find(path string) (*directory, *Error) {
	if n := s.byPath[path]; n != nil {
		return n, nil
	}
	return nil, notFound(path)
}

func notFound(path string) *Error {
	return &Error{Errno: syscall.ENOENT, Path: path, Reason: "there is no such group or lgpu"}
}

// noParent refuses to make a directory where there is none to make it in.
func noParent(path string) *Error {
	return &Error{Errno: syscall.ENOENT, Path: path, Reason: "its parent does not exist; make that first"}
}

// create makes a directory without requests.
func (s *state) create(spec CreateSpec, users map[uint64]int) (*directory, *Error) {
	refuse := func(errno syscall.Errno, token, reason string) (*directory, *Error) {
		return nil, &Error{Errno: errno, Path: spec.Path, Token: token, Reason: reason}
	}
	folder, name := path.Split(spec.Path)
	parent := s.byPath[strings.TrimSuffix(folder, "/")]
	if folder == Root {
		parent = s.root
	}
	switch {
	case s.byPath[spec.Path] != nil:
		return refuse(syscall.EEXIST, "", "it exists already")
	case !strings.HasPrefix(spec.Path, "/") || path.Clean(spec.Path) != spec.Path:
		return refuse(syscall.EINVAL, "", "paths are /NAME or /NAME/NAME and so on")
	case parent == nil:
		return nil, noParent(spec.Path)
	case files[name] != nil:
		return refuse(syscall.EEXIST, name, "every group has a file of that name")
	case strings.Count(spec.Path, "/") > MaxDepth:
		return refuse(syscall.ENAMETOOLONG, "", fmt.Sprintf("the tree is at most %d groups deep", MaxDepth))
	case len(s.byID) >= MaxDirectories:
		return refuse(syscall.ENOSPC, "", fmt.Sprintf("the tree has at most %d groups and lgpus", MaxDirectories))
	case users[parent.ID] > 0:
		return refuse(syscall.EBUSY, "", parent.Path+" is an lgpu in use; processes are in lgpus, which have nothing below them")
	}
	if err := names.Check(name); err != nil {
		return refuse(syscall.EINVAL, "", err.Error())
	}
	s.lastID++
	n := &directory{parent: parent, revision: s.sequence, DirectoryState: DirectoryState{
		ID: s.lastID, Path: spec.Path, Temporary: spec.Temporary, UID: spec.UID, GID: spec.GID,
		Overcommit: parent.Overcommit,
	}}
	at, _ := slices.BinarySearchFunc(parent.children, n, byName)
	parent.children = slices.Insert(parent.children, at, n)
	s.add(n)
	s.stale = true
	return n, nil
}

func byName(a, b *directory) int { return strings.Compare(a.Path, b.Path) }

func (s *state) remove(n *directory) {
	n.parent.children = slices.DeleteFunc(n.parent.children, func(c *directory) bool { return c == n })
	delete(s.byPath, n.Path)
	delete(s.byID, n.ID)
	s.stale = true
}

// write applies assignments to a directory, leaving the state half-written after an error: the caller drops it.
func (s *state) write(n *directory, writes []Assignment) *Error {
	for _, a := range writes {
		f, err := n.file(a.File)
		switch {
		case err != nil:
		case f.write == nil:
			err = &Error{Errno: syscall.EACCES, Reason: "the file is read-only"}
		case len(a.Text) > MaxText:
			err = &Error{Errno: syscall.E2BIG, Reason: fmt.Sprintf("the text has more than %d bytes", MaxText)}
		case strings.IndexByte(a.Text, 0) >= 0:
			err = &Error{Errno: syscall.EINVAL, Reason: "the text has a NUL byte"}
		default:
			if s.stale {
				s.resolve()
			}
			err = f.write(s, n, a.Text)
		}
		if err != nil {
			err.Path, err.File = n.Path, a.File
			return err
		}
	}
	return nil
}

// limits returns a directory's requests for a device.
func (n *directory) limits(device string) Limits { return n.DirectoryState.Devices[device] }

// setLimits replaces them. The map is copied: older states have it too.
func (s *state) setLimits(n *directory, device string, l Limits) {
	devices := maps.Clone(n.DirectoryState.Devices)
	if devices == nil {
		devices = map[string]Limits{}
	}
	if devices[device] = l; l.None() {
		delete(devices, device)
	}
	if len(devices) == 0 {
		devices = nil // as a state that was loaded has it
	}
	n.DirectoryState.Devices, n.revision, s.stale = devices, s.sequence, true
}

// walk calls visit for n and everything below it, parents first.
func (n *directory) walk(visit func(*directory)) {
	visit(n)
	for _, child := range n.children {
		child.walk(visit)
	}
}

// siblings are the directories that share what n's parent has, n included.
func (n *directory) siblings() []*directory {
	if n.parent == nil {
		return []*directory{n}
	}
	return n.parent.children
}

// parentBits are the bits of device number d that n's parent gets: all of the device for the root.
func (s *state) parentBits(n *directory, d int) list.Set {
	if n.parent == nil {
		return s.devices[d].All()
	}
	return n.parent.effective[d].Bits
}

// export returns n as callers see it.
func (s *state) export(n *directory) Directory {
	out := Directory{
		ID: n.ID, Path: n.Path, Temporary: n.Temporary, UID: n.UID, GID: n.GID,
		Gang: n.Gang, Cgroups: slices.Clone(n.Cgroups),
		HostMax: n.HostMax, Host: n.host, Overcommit: n.Overcommit, Suspend: n.Suspend, Suspended: n.suspended,
		Devices: slices.Clone(n.effective),
	}
	if n.parent != nil {
		out.Parent = n.parent.ID
	}
	for _, child := range n.children {
		out.Children = append(out.Children, path.Base(child.Path))
	}
	for _, d := range s.devices {
		out.Requests = append(out.Requests, n.limits(d.UUID))
	}
	return out
}

// difference compares two states.
func difference(old, next *state) Change {
	c := Change{Sequence: next.sequence, State: next.save(), By: next.by, Note: next.note}
	for id, n := range next.byID {
		switch before := old.byID[id]; {
		case before == nil:
			c.Created = append(c.Created, id)
		case n.revision != before.revision || n.host != before.host, n.suspended != before.suspended,
			!slices.EqualFunc(n.effective, before.effective, Effective.equal):
			c.Changed = append(c.Changed, id)
		}
	}
	for id := range old.byID {
		if next.byID[id] == nil {
			c.Removed = append(c.Removed, id)
		}
	}
	slices.Sort(c.Created)
	slices.Sort(c.Changed)
	slices.Sort(c.Removed)
	return c
}

func (c Change) empty() bool { return len(c.Created)+len(c.Changed)+len(c.Removed) == 0 }

// value returns *p, or the other value without one.
func value[T any](p *T, other T) T {
	if p == nil {
		return other
	}
	return *p
}
