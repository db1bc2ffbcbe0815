package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/daemon/dispatch"
	"github.com/lgpu/lgpu/daemon/mps"
	"github.com/lgpu/lgpu/daemon/store"
	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/limits"
)

// owner finds the node that a process belongs to. Its cgroups come first: a node that the nearest of them is bound to,
// or within that node the lgpu of the nearest launcher or client that the process descends from. So a process that is
// confined by its cgroup cannot leave by starting an lgpu of its own elsewhere. Outside of bound cgroups descent
// decides.
func (n *Node) owner(e tenant.Evidence) (limits.Node, bool) {
	descent, descends := n.descent(e)
	path, bound := n.tree.Bound(cgroupText(e.Cgroups))
	if !bound {
		return descent, descends
	}
	if descends && within(descent.Path, path) {
		return descent, true
	}
	node, err := n.tree.Node(path)
	return node, err == nil
}

// within reports whether a node is another or below it.
func within(path, ancestor string) bool {
	return ancestor == limits.Root || path == ancestor || strings.HasPrefix(path, ancestor+"/")
}

// descent finds the lgpu of the nearest ancestor that is a launcher or a client.
func (n *Node) descent(e tenant.Evidence) (limits.Node, bool) {
	launchers := n.launchers()
	for _, a := range e.Ancestors {
		// A client that has become a launcher, by exec, is still on record as a client of where it was.
		id, launches := launchers[a.Process]
		if !launches {
			id = a.LGPU
		}
		if id != 0 {
			return n.tree.ByID(id)
		}
	}
	return limits.Node{}, false
}

// launchers returns which process holds which lgpu.
func (n *Node) launchers() map[tenant.Process]uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	launchers := map[tenant.Process]uint64{}
	for id, l := range n.lgpus {
		for held := range l.launchers {
			launchers[held.Process] = id
		}
	}
	return launchers
}

// Resolve implements tenant.Resolver.
func (n *Node) Resolve(e tenant.Evidence) (uint64, error) {
	node, ok := n.owner(e)
	if !ok {
		return 0, refusal(unix.EPERM, "process %d descends from no lgpu and is in no cgroup of one; start it by: "+
			"lgpu run -- COMMAND", e.PID)
	}
	n.mu.Lock()
	l := n.lgpus[node.ID]
	active := l != nil && l.record.Active
	n.mu.Unlock()
	if active {
		return node.ID, nil
	}
	if err := n.left(); err != nil {
		return 0, err
	}
	for attempt := 0; ; attempt++ {
		err := n.adopt(node)
		if err == nil {
			return node.ID, nil
		}
		if errors.Is(err, errAgain) && attempt < adoptions {
			continue
		}
		if errors.Is(err, errAgain) {
			return 0, refusal(unix.EAGAIN, "the devices of %s change their modes all the time", node.Path)
		}
		var refused *tenant.Refusal
		var errno syscall.Errno // a tree.Error's, or that of a device in another mode
		if !errors.As(err, &refused) && errors.As(err, &errno) {
			err = &tenant.Refusal{Errno: errno, Text: err.Error()}
		}
		return 0, err
	}
}

// adoptions is how often a node is tried to be taken into use while its devices change their modes.
const adoptions = 10

// refusal is why a process is kept out, in words for its user.
func refusal(errno syscall.Errno, format string, args ...any) error {
	return &tenant.Refusal{Errno: errno, Text: fmt.Sprintf(format, args...)}
}

// firstClient is how long an lgpu that a process was let into waits for it to become a client.
const firstClient = time.Second

// adopt takes a node into use for a process whose cgroup is bound to it.
func (n *Node) adopt(node limits.Node) error {
	if node.Path == limits.Root || len(node.Children) > 0 {
		return refusal(unix.EBUSY, "the group %s has no processes of its own; start this one by: "+
			"lgpu run --group %[1]s -- COMMAND", node.Path)
	}
	shape, err := n.shapeFor(node)
	if err != nil {
		return err
	}
	attached := false
	if shape != "" {
		if _, err := n.attachSim(shape); err != nil {
			return err
		}
		attached = true
		defer func() {
			if attached {
				n.detachSim(shape)
			}
		}()
	}
	devices := n.usable(shape)
	if len(devices) == 0 {
		return refusal(unix.ENODEV, "%s: this machine has no device", node.Path)
	}
	uuids := uuidsOf(devices)
	if l := n.lgpuOf(node.ID); l != nil {
		n.mu.Lock()
		if len(l.record.Devices) > 0 {
			uuids = l.record.Devices
		}
		n.mu.Unlock()
	}
	ctx, cancel := context.WithTimeout(n.ctx, modeTime)
	defer cancel()
	for _, d := range devices {
		// MPS would not know a program that was not started as its client, and no gate would keep it to its share.
		if !slices.Contains(uuids, d.UUID) {
			continue
		}
		if err := n.wantMode(ctx, d, false); err != nil {
			return err
		}
	}
	n.life.Lock()
	defer n.life.Unlock()
	l := n.lgpuOf(node.ID)
	if l == nil {
		l = newLgpu(node.ID)
	}
	n.mu.Lock()
	active := l.record.Active
	n.mu.Unlock()
	if active { // another process was faster
		return nil
	}
	err = n.attempt(l, &attached, func(r *store.Lgpu) {
		r.Spatial = false
		if len(r.Devices) == 0 {
			r.Sim, r.Devices = shape, uuids
		}
	}, func() error { return n.bring(l, node, false) })
	if err != nil {
		return err
	}
	// Its first client may still be refused for reasons of its own.
	n.mu.Lock()
	l.keepUntil = time.Now().Add(firstClient)
	n.mu.Unlock()
	time.AfterFunc(firstClient+time.Millisecond, func() { n.kick(node.ID) })
	return n.save(l)
}

// shapeFor returns the software GPU that a node is for, or nothing where that is the machine's own devices. One that
// says nothing of it, on a machine without devices, is for the only software GPU that there is.
func (n *Node) shapeFor(node limits.Node) (string, error) {
	if l := n.lgpuOf(node.ID); l != nil {
		n.mu.Lock()
		shape, known := l.record.Sim, len(l.record.Devices) > 0 || l.record.Sim != ""
		n.mu.Unlock()
		if known {
			return shape, nil
		}
	}
	if len(n.usable("")) > 0 {
		return "", nil
	}
	n.devices.mu.Lock()
	defer n.devices.mu.Unlock()
	if len(n.devices.sims) > 1 {
		return "", refusal(unix.ENODEV, "%s: there are several software GPUs; say which by: lgpu create --sim", node.Path)
	}
	for shape := range n.devices.sims {
		return shape, nil
	}
	return "", nil
}

// bring takes an inactive lgpu into use: its devices keep their mode, its node is entered, tenants know it. life is
// held. After an error it is as before; errAgain says that a device has changed its mode.
func (n *Node) bring(l *lgpu, node limits.Node, entered bool) (err error) {
	var undo []func()
	defer func() {
		if err != nil {
			for _, u := range undo {
				u()
			}
			l.releases = nil
		}
	}()
	for _, uuid := range l.record.Devices {
		release, err := n.modes.Use(uuid)
		if errors.Is(err, mps.ErrSwitching) {
			return errAgain
		}
		if err != nil {
			return err
		}
		undo = append(undo, release)
		l.releases = append(l.releases, release)
		if n.modes.Mode(uuid) != modeOf(l.record.Spatial) {
			return errAgain
		}
	}
	if !entered {
		if err := n.tree.Enter(node.Path); err != nil {
			return err
		}
		undo = append(undo, func() { n.tree.Leave(node.Path) })
	}
	undo = append(undo, func() {
		n.mu.Lock()
		l.record.Active = false
		n.mu.Unlock()
	})
	return n.activate(l)
}

func uuidsOf(devices []gpu.Device) []gpu.UUID {
	out := make([]gpu.UUID, len(devices))
	for i, d := range devices {
		out[i] = d.UUID
	}
	return out
}

// pathOf is where a node is, or was last.
func (n *Node) pathOf(id uint64) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.paths[id]
}

// Joined implements tenant.Observer.
func (n *Node) Joined(c tenant.Client) {
	path := n.pathOf(c.LGPU)
	n.emit(Event{
		Kind: ClientJoined, Path: path, ID: c.LGPU, PID: c.Peer.PID, UID: c.Peer.UID,
		Text: fmt.Sprintf("process %d (%s) uses %s", c.Peer.PID, c.Peer.Comm, path),
	})
}

// Left implements tenant.Observer.
func (n *Node) Left(c tenant.Client) {
	path := n.pathOf(c.LGPU)
	n.emit(Event{
		Kind: ClientLeft, Path: path, ID: c.LGPU, PID: c.Peer.PID, UID: c.Peer.UID,
		Text: fmt.Sprintf("process %d (%s) has left %s", c.Peer.PID, c.Peer.Comm, path),
	})
	if l := n.lgpuOf(c.LGPU); l != nil {
		n.mu.Lock()
		l.keepUntil = time.Time{} // it was waited for
		n.mu.Unlock()
	}
	n.kick(c.LGPU)
	n.bereave()
	n.used()
}

// Refused implements tenant.Observer.
func (n *Node) Refused(p tenant.Peer, err error) {
	n.emit(Event{
		Kind: ClientRefused, PID: p.PID, UID: p.UID, Text: fmt.Sprintf("process %d (%s) was kept out: %v", p.PID,
			p.Comm, err),
	})
}

// OutOfMemory implements tenant.Observer.
func (n *Node) OutOfMemory(c tenant.Client, device int, bytes uint64) {
	path := n.pathOf(c.LGPU)
	e := Event{
		Kind: OutOfMemory, Path: path, ID: c.LGPU, PID: c.Peer.PID, UID: c.Peer.UID, Bytes: bytes,
		Text: fmt.Sprintf("process %d (%s) of %s was denied %d bytes", c.Peer.PID, c.Peer.Comm, path, bytes),
	}
	if l := n.lgpuOf(c.LGPU); l != nil {
		n.mu.Lock()
		if device >= 0 && device < len(l.record.Devices) {
			uuid := l.record.Devices[device]
			e.Device = &uuid
		}
		n.mu.Unlock()
	}
	n.emit(e)
}

// turn passes a turn on to feeds. The gate's lock is held.
func (n *Node) turn(s dispatch.Slice) {
	path := ""
	if node, ok := n.tree.ByID(s.LGPU); ok {
		path = node.Path
	}
	now, wall := monotonic(), time.Now()
	n.slices.publish(Slice{
		Device: s.Device, ID: s.LGPU, Path: path, Used: time.Duration(s.Busy),
		Start: wall.Add(time.Duration(s.Start - now)), End: wall.Add(time.Duration(s.End - now)),
	})
}

// overran tells of a drain past its bound. The gate's lock is held.
func (n *Node) overran(id uint64, uuid gpu.UUID) {
	path := ""
	if node, ok := n.tree.ByID(id); ok {
		path = node.Path
	}
	n.emit(Event{
		Kind: DrainOverrun, Path: path, ID: id, Device: &uuid,
		Text: fmt.Sprintf("%s keeps device %s beyond the end of its turn; others run beside it, and it is charged",
			path, uuid.Short()),
	})
}

// monotonic is CLOCK_MONOTONIC in ns.
func monotonic() int64 {
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // fails only for clocks that do not exist
	return t.Nano()
}

var (
	_ tenant.Resolver = (*Node)(nil)
	_ tenant.Observer = (*Node)(nil)
)
