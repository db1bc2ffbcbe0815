// Package tenant is the tenants' side of the daemon: it identifies a process that asks for a GPU, gives it the shared
// memory of its lgpu, and gives back what it was charged for when it has died.
//
// # Who is who
//
// Nothing that a client says decides which lgpu it gets. The kernel names the process of a connection (SO_PEERCRED
// and a pidfd). Its cgroups and its ancestors are read from /proc, and are valid if the pidfd says afterwards that it
// still lives. A Resolver finds the lgpu from them. So a forged environment, su, exec, setsid or a pid that is used
// again change nothing.
//
// Processes of containers come to a door: each lgpu has a socket of its own for them, in a folder that is mounted into
// the container. That it is, and who can have mounted it, is read from /proc as well (Evidence.Container).
//
// # Life and death
//
// A client is a process, not a connection: it lives until its pidfd says otherwise, whichever other process has its
// socket open. Its memory is then given back within milliseconds. A client that only lost its connection keeps its
// index, and connects again from the same process. Which process has which index is also written to a file that
// outlives the daemon (Config.Roster). From it a new daemon knows the clients of the previous one without trusting any
// of them.
//
// # Memory
//
// Where the limit of a group is less than the sum of what its members may use, their regions show what each may use
// now (region.DeviceLimits.Granted), and the sum of that never exceeds a group's limit. A client that needs more asks.
//
// # Concurrency
//
// All methods of a Server and of a Gate may be called by several goroutines. A Resolver, GateHandler or Observer is
// called while no lock of this package is locked, and may call back.
package tenant

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/lgpu/lgpu/tenant/protocol"
)

// Errors of a Server's methods.
var (
	// ErrExists (AddLGPU): there is an lgpu with this ID.
	ErrExists = errors.New("there is an lgpu with this ID")
	// ErrUnknown: there is no lgpu with this ID.
	ErrUnknown = errors.New("no such lgpu")
	// ErrInUse (RemoveLGPU): processes use it.
	ErrInUse = errors.New("lgpu is in use")
	// ErrBudgets (SetBudgets): the parents form no tree.
	ErrBudgets = errors.New("not a tree of budgets")
	// ErrDevices (SetLimits): the devices are not those that the lgpu was added with.
	ErrDevices = errors.New("an lgpu keeps its devices")
)

// Process names one process for good: pids are used again, but not with the same start.
type Process struct {
	PID   int    // in the daemon's PID namespace
	Start uint64 // field 22 of /proc/PID/stat
}

// Peer is a process that wants to be a client, as the kernel describes it.
type Peer struct {
	Process
	UID, GID uint32
	// User answers for the process: whoever made the outermost user namespace that it is in and the daemon is not, as its
	// UID may be any of those that were lent to that user; else UID.
	User uint32
	Comm string // the program's short name; printable
}

// Cgroup is a line of /proc/PID/cgroup.
type Cgroup struct {
	Controllers string // "" for version 2, else as in the file: "memory", "cpu,cpuacct", "name=systemd"
	Path        string // in its hierarchy: "/system.slice/x.service"
}

// Ancestor is a process from which another descends, or itself.
type Ancestor struct {
	Process
	LGPU uint64 // the lgpu of which it is a client, or 0
}

// Evidence is what is known of a process that wants to be a client.
type Evidence struct {
	Peer
	Cgroups []Cgroup
	// Ancestors are the process itself, its parent, and so on, as far as /proc shows them.
	Ancestors []Ancestor
	// Door is the lgpu whose socket for containers the process came to; 0: it came to the tenants' socket.
	Door uint64
	// Container is the lgpu whose folder is mounted in the root of the process at the place for it in containers, or 0.
	// With it, Maker is the user who made the outermost user namespace that the process is in, and root without one:
	// nobody else can have mounted the folder.
	Container uint64
	Maker     uint32
	// Neighbour is the lgpu of a client in the same container, by the cgroup that the runtime made for that, or 0.
	Neighbour uint64
}

// Resolver says which lgpu a process belongs to.
type Resolver interface {
	// Resolve returns the ID of an lgpu that the Server has, which it may add for the purpose. An error keeps the
	// process out; a *Refusal is told to it.
	Resolve(Evidence) (lgpu uint64, err error)
	// Ask is Resolve for a process that does not come in now: nothing is added for it.
	Ask(Evidence) (lgpu uint64, err error)
}

// Refusal is why a process gets no GPU, in words for its user.
type Refusal struct {
	Errno syscall.Errno
	Text  string
}

func (r *Refusal) Error() string { return fmt.Sprintf("%s (%s)", r.Text, r.Errno.Error()) }

// Observer is told which clients come and go.
type Observer interface {
	// Joined: the process has become a client.
	Joined(Client)
	// Left: the process has died, and what it was charged for is given back.
	Left(Client)
	// Refused: the process was kept out.
	Refused(Peer, error)
	// OutOfMemory: the client was denied so many bytes more of its lgpu's device, or with device -1 of page-locked host
	// memory. by is the ID of the group whose limit it was, or of the lgpu: where its own limit, or what the device has,
	// is too little.
	OutOfMemory(c Client, device int, bytes, by uint64)
}

// Client is a process of an lgpu.
type Client struct {
	LGPU   uint64
	Index  int // in the lgpu's region
	Peer   Peer
	Joined time.Time
	Linked bool     // it has a connection now
	Memory []uint64 // bytes charged, for each device, as the client itself says
	Host   uint64   // bytes of page-locked host memory
}

// GateHandler opens and closes the gates of clients. The calls for one Gate come one at a time, Gone last; those for
// different gates may come at once.
type GateHandler interface {
	// Attach: a client launches on a device from now on. m is its Gate message.
	Attach(g *Gate, m protocol.Message)
	// Want: a launch waits at the closed gate.
	Want(g *Gate, m protocol.Message)
	// Closed: the gate is closed and its work done.
	Closed(g *Gate, m protocol.Message)
	// Sliced: m says which time slice of the hardware is in force for the client's contexts on the gate's device, by the
	// client's own word. It may come without a Slice, and as often as messages may come at all.
	Sliced(g *Gate, m protocol.Message)
	// Gone: the client has died or lost its connection; Send does nothing from now on.
	Gone(g *Gate)
}
