package limits

import (
	"fmt"
	"strings"
	"syscall"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/internal/list"
)

// MinMemory is the least limit of memory beside 0, in bytes. A context takes a hundred times as much; what is below is
// a slip, such as a number without its unit.
const MinMemory uint64 = 1 << 20

// Values of lgpu.weight.
const (
	MinWeight     = 1
	DefaultWeight = 100
	MaxWeight     = 10000
)

// Device is a device whose parts the tree gives out.
type Device struct {
	// UUID names the device for good, such as GPU-00112233-4455-6677-8899-aabbccddeeff.
	UUID string
	// Number is MAJ:MIN of its device node, empty if it has none. Files print it if there is one, else UUID, and
	// understand all that gpu.Find does.
	Number string
	// Ordinal is its index as people write it, empty if it has none.
	Ordinal string
	// Capacity is the number of bits: the parts that can be given, 1 to list.MaxBits.
	Capacity int
	// Uncounted says that the driver does not tell how many units the device has: its bits are hundredths of its time.
	Uncounted bool
	// UnitsPerBit is the number of compute units that one bit stands for, at least 1.
	UnitsPerBit int
	// Remainder is the number of compute units that belong to no bit.
	Remainder int
	// Kind says whether bits are places or amounts of time.
	Kind Kind
	// Default are the bits that a directory gets with the keyword default; empty is all of them.
	Default list.Set
	// Memory is the device's memory in bytes, 0 if unknown.
	Memory uint64
}

// Key is the name of the device that files print.
func (d Device) Key() string {
	if d.Number != "" {
		return d.Number
	}
	return d.UUID
}

// names are what the device is called.
func (d Device) names() gpu.Names { return gpu.Names{Ordinal: d.Ordinal, UUID: d.UUID, Node: d.Number} }

// All returns all bits of the device.
func (d Device) All() list.Set { return list.Upto(d.Capacity) }

// Kind of a device's units.
type Kind uint8

// Kinds. Bits of a temporal device are an amount: n of them are n/Capacity of its time and have no names. Bits of a
// spatial device are compute units, which can be named.
const (
	Temporal Kind = iota
	Spatial
)

// String returns the word that files show.
func (k Kind) String() string {
	if k == Spatial {
		return "spatial"
	}
	return "temporal"
}

// Priority of a directory's launches on a device.
type Priority uint8

// Priorities, lowest first. A directory has at most the priority that the nearest ancestor with one of its own has.
const (
	Normal Priority = iota
	High
	Latency // critical: it gets the device at the next gate
)

var priorityWords = [...]string{Normal: "normal", High: "high", Latency: "latency"}

// String returns the word that files show.
func (p Priority) String() string {
	if int(p) < len(priorityWords) {
		return priorityWords[p]
	}
	return fmt.Sprintf("priority %d", p)
}

// Effective is what a directory gets of one device.
type Effective struct {
	// Device is its UUID.
	Device string
	// Bits are those that the directory may use; of a temporal device they are always the lowest ones.
	Bits list.Set
	// Whole says that Bits are all bits of the device: the tenant sees the device as it is, remainder included.
	Whole bool
	// Units is the number of compute units that the tenant is shown: UnitsPerBit for each bit.
	Units int
	// ComputeMax is the part of the device's time that the directory gets at most, in hundredths of a percent: the
	// least of its own and its ancestors' compute.max and, on a temporal device, of bits over capacity. 0 means that
	// launches fail.
	ComputeMax uint32
	// ComputeMin is the part of the device's time that is guaranteed, in hundredths of a percent: its own compute.min,
	// or what its children's come to if it has none, scaled down where the parent can no longer keep what it promised.
	ComputeMin uint32
	// Weight is the directory's weight against its siblings.
	Weight   uint32
	Priority Priority
	// MemoryMax is what the tenant sees: the least memory.max of the directory and its ancestors.
	MemoryMax Bytes
	// OwnMemoryMax is the directory's own memory.max, which bounds the sum of its subtree.
	OwnMemoryMax Bytes
	// MemoryHigh is the directory's own memory.high.
	MemoryHigh Bytes
}

// Directory is a group or an lgpu as it is in one state of the tree.
type Directory struct {
	ID        uint64 // never 0, never used again by another directory of this tree
	Path      string
	Parent    uint64 // 0 for the root
	Children  []string
	Temporary bool
	UID, GID  uint32
	Gang      string   // name of the gang, empty for none
	Cgroups   []string // the cgroups bound to it
	HostMax   Bytes    // own host.max
	// Overcommit and Suspend are the own memory.overcommit and memory.suspend, and Suspended says that memory.suspend is
	// 1 in the directory or in one above.
	Overcommit, Suspend, Suspended bool
	// Host is the least host.max of the directory and its ancestors.
	Host Bytes
	// Devices has an entry for each device, in the order of Tree.Devices.
	Devices []Effective
	// Requests are what was asked for, for the same devices. What they point to must not be changed.
	Requests []Limits
}

// Device returns what the directory gets of the device with a UUID.
func (n Directory) Device(uuid string) (Effective, bool) {
	for _, e := range n.Devices {
		if e.Device == uuid {
			return e, true
		}
	}
	return Effective{}, false
}

// Usage gives numbers that live outside the tree. A directory's are those of its own processes; the tree adds up
// subtrees. Methods are called by several goroutines at once, without a lock of the tree held. Unknown directories have
// no usage.
type Usage interface {
	// Stat returns what the processes of one directory use of one device.
	Stat(id uint64, device string) Stat
	// ResetPeak sets the directory's peak of device memory to what is in use now.
	ResetPeak(id uint64, device string)
	// Procs returns the process numbers in the directory, in ascending order.
	Procs(id uint64) []int
	// Events returns how often what has happened in the directory, in the order to show.
	Events(id uint64) []Count
}

// Stat is what a directory's processes use of one device.
type Stat struct {
	Memory   uint64 // bytes in use
	Evicted  uint64 // of Memory, bytes that have left the device
	Peak     uint64 // most bytes in use since the start or the last reset
	BusyUsec uint64 // device time used
	Launches uint64
	// Asked and Delivered are parts of the device's time over the last second, in hundredths of a percent: what the
	// directory was allowed or wanted, whichever is less, and what it got. Unmeasured: they are not known.
	Asked, Delivered uint32
	Unmeasured       bool
	// Energy in millijoules, which is never less than before, and power now in milliwatts. What a removed directory has
	// used is its parent's. Metered: the device has a counter of energy.
	Energy  uint64
	Power   uint32
	Metered bool
}

// Count is how often an event has happened.
type Count struct {
	Name string
	N    uint64
}

// Change is one transaction.
type Change struct {
	// Sequence numbers changes from 1.
	Sequence uint64
	// Created, Changed and Removed are directories by ID, in ascending order. Changed are those whose requests or
	// effective values are others than before, as when an ancestor shrank.
	Created, Changed, Removed []uint64
	// By is who made it, nil for those who hold the tree.
	By *Author
	// Note is that of the CreateSpec, or of the Exchange, that made it: what Commit keeps in the same write.
	Note any
	// State is everything that must survive, after the change. It is shared with the tree and must not be changed.
	State State
}

// Error is a refused operation. It unwraps to its Errno, which is what write(2) returns.
type Error struct {
	Errno  syscall.Errno
	Path   string // of the directory
	File   string // empty if no file is concerned
	Line   int    // of the text written, from 1; 0 if no line is concerned
	Key    string // such as count, empty if no key is concerned
	Token  string // the offending word
	Reason string // what is wrong and what would be right
	Remedy string // what to write instead, where that can be guessed

	words func(Names) (reason, remedy string) // nil where they name no user
}

// Error names everything that is known about the place, and the reason.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Path)
	if e.File != "" {
		fmt.Fprintf(&b, ": %s", e.File)
	}
	if e.Line != 0 {
		fmt.Fprintf(&b, ", line %d", e.Line)
	}
	if e.Key != "" {
		fmt.Fprintf(&b, ", key %s", e.Key)
	}
	if e.Token != "" {
		fmt.Fprintf(&b, ": %q", e.Token)
	}
	fmt.Fprintf(&b, ": %s (%s)", e.Reason, e.Errno.Error())
	return b.String()
}

// Hint says what to write instead; it may be empty.
func (e *Error) Hint() string { return e.Remedy }

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }
