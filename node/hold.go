package node

import (
	"context"
	"errors"

	"github.com/lgpu/lgpu/gpu"
)

// HoldSpec is what a launcher asks for.
type HoldSpec struct {
	// Path names an existing lgpu to join, or one to make: below a group that exists. Where Temporary, an empty Path is a
	// name made of Program and the launcher's process below Group.
	Path  string
	Group string // with an empty Path: the parent of the new lgpu; the default is the root
	// Program is the base name of the command, for a name.
	Program string
	// ID, where not 0, says that the launcher held the lgpu with this ID before the daemon restarted: Path must have it.
	ID uint64
	// Limits are asked for, for each of the devices. An lgpu that exists must have the same, unless there are none.
	Limits Limits
	// Devices are tokens as gpu.Select reads them, among the devices of Sim or of the machine; none is all of them, or
	// those that an existing lgpu has.
	Devices []string
	// Sim is the shape of the software GPU to use; empty for the machine's own devices.
	Sim string
	// Gang puts the lgpu into a gang.
	Gang     string
	Launcher Peer
}

// Limits are asked for at the start of an lgpu, for each of its devices. A nil pointer is no limit of its own.
type Limits struct {
	MemoryMax     *uint64 // bytes
	MemoryPercent *uint32 // hundredths of a percent of each device's memory, instead of MemoryMax
	ComputeMax    *uint32 // hundredths of a percent
	ComputeMin    *uint32 // hundredths of a percent
	Count         *int    // compute units (bits)
	Weight        *uint32
	Priority      string // normal, high or latency; empty for none of its own
	HostMax       *uint64
}

// Peer is a process as the kernel vouches for it (SO_PEERCRED).
type Peer struct {
	PID      int
	UID, GID uint32
}

// Hold is a launcher's hold on an lgpu: as long as it lasts the lgpu does.
type Hold struct {
	// Path, ID and Name of the lgpu.
	Path, Name string
	ID         uint64
	// Environment is what a program needs to find the daemon and the devices: LGPU_SOCKET, and for a software GPU its
	// socket. The libraries are the launcher's business.
	Environment map[string]string
	// Sim is the shape of the software GPU, empty for the machine's own devices.
	Sim     string
	Devices []gpu.Device
	node    *Node
}

// Hold makes an lgpu, or joins one, for a launcher: everything that descends from the launcher's process is its tenant. The
// lgpu stays until Close, and then as long as it has clients; for ever if it is persistent. An error wraps ErrInvalid,
// ErrNoDevice, ErrNotFound (the group), ErrDiffers or ErrBusy.
func (n *Node) Hold(ctx context.Context, spec HoldSpec) (*Hold, error) {
	return nil, errors.ErrUnsupported
}

// Close ends the hold. It may be called more than once.
func (h *Hold) Close() error { return nil }

// CreateSpec describes a persistent node.
type CreateSpec struct {
	Path    string
	Limits  Limits
	Devices []string // to which Limits apply, as gpu.Select reads them; none is all
	Sim     string   // the software GPU it is for
	Gang    string
	Owner   Peer // who asks
}

// Create makes a persistent node: an lgpu as soon as it is used, a group as soon as it has children. Its state is on disk
// when Create returns. An error wraps ErrExists, ErrNotFound (the parent), ErrInvalid or ErrNoDevice.
func (n *Node) Create(ctx context.Context, spec CreateSpec) (NodeState, error) {
	return NodeState{}, errors.ErrUnsupported
}

// Remove removes the node at path. An error wraps ErrNotFound, or ErrBusy if it has children, launchers or clients.
func (n *Node) Remove(ctx context.Context, path string) error { return errors.ErrUnsupported }
