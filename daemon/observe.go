package daemon

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/daemon/dispatch"
	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/internal/units"
	"github.com/lgpu/lgpu/internal/users"
	"github.com/lgpu/lgpu/policy/limits"
)

// observer is told what tenants do and whose turn it was, and makes events of it. It has no state of its own.
type observer struct{ daemon *Daemon }

var _ tenant.Observer = (*observer)(nil)

// Joined implements tenant.Observer.
func (o *observer) Joined(c tenant.Client) {
	path := o.daemon.pathOf(c.LGPU)
	o.daemon.journal.emit(Event{
		Kind: ClientJoined, Path: path, ID: c.LGPU, By: authorIn(c.Peer),
		Text: fmt.Sprintf("process %d (%s) uses %s", c.Peer.PID, c.Peer.Comm, path),
	})
}

// Left implements tenant.Observer.
func (o *observer) Left(c tenant.Client) {
	path := o.daemon.pathOf(c.LGPU)
	o.daemon.journal.emit(Event{
		Kind: ClientLeft, Path: path, ID: c.LGPU, By: authorIn(c.Peer),
		Text: fmt.Sprintf("process %d (%s) has left %s", c.Peer.PID, c.Peer.Comm, path),
	})
	o.daemon.Releases.left(c.LGPU, c.Peer.Process)
	o.daemon.lgpus.unexpect(c.LGPU)
	o.daemon.lgpus.notice(c.LGPU)
	o.daemon.inventory.bereave()
	o.daemon.presence.used()
}

// Refused implements tenant.Observer.
func (o *observer) Refused(p tenant.Peer, err error) {
	o.daemon.journal.emit(Event{
		Kind: ClientRefused, By: authorIn(p),
		Text: fmt.Sprintf("process %d (%s) was kept out: %v", p.PID, p.Comm, err),
	})
}

// OutOfMemory implements tenant.Observer.
func (o *observer) OutOfMemory(c tenant.Client, device int, bytes, by uint64) {
	path := o.daemon.pathOf(c.LGPU)
	e := Event{
		Kind: OutOfMemory, Path: path, ID: c.LGPU, By: authorIn(c.Peer), Bytes: bytes,
		Text: fmt.Sprintf("process %d (%s) of %s was denied %s", c.Peer.PID, c.Peer.Comm, path, units.FormatSize(bytes)),
	}
	if record, _ := o.daemon.lgpus.record(c.LGPU); device >= 0 && device < len(record.Devices) {
		uuid := record.Devices[device]
		e.Device = &uuid
	}
	e.limit, e.limitOf = o.limitOf(by, e.Device)
	o.daemon.journal.emit(e)
}

// limitOf returns the limit of memory that stops the directory with an ID, and the path of whose it is: its own or, if it
// is the least, that of a group above. Without a path there is no such limit: the device has no more. device is nil for
// page-locked host memory.
func (o *observer) limitOf(id uint64, device *gpu.UUID) (least limits.Bytes, path string) {
	own := func(dir limits.Directory) limits.Bytes { return dir.HostMax }
	if device != nil {
		d := o.daemon.inventory.device(*device)
		if d == nil {
			return least, ""
		}
		own = func(dir limits.Directory) limits.Bytes {
			e, _ := dir.Device(d.Identity())
			return e.OwnMemoryMax
		}
	}
	for dir, ok := o.daemon.tree.ByID(id); ok; dir, ok = o.daemon.tree.ByID(dir.Parent) {
		limit, limited := own(dir).Limit()
		if before, any := least.Limit(); limited && (!any || limit < before) {
			least, path = own(dir), dir.Path
		}
	}
	return least, path
}

// refusals returns how often programs of an lgpu were denied memory, beyond so many times before, and what somebody can do
// about it.
func (o *observer) refusals(id, before uint64, by limits.Author) Refusals {
	r := o.daemon.journal.refusals(id)
	if r.Count <= before {
		return Refusals{}
	}
	r.Count -= before
	if r.Path == "" {
		return r
	}
	file := "memory.max"
	if r.Device == nil {
		file = "host.max"
	}
	r.Mine = o.daemon.tree.May(by, limits.Access{Action: limits.ActionWrite, Path: r.Path, File: file}) == nil
	if uid, exists := o.daemon.tree.Raiser(r.Path); exists {
		r.Raiser = users.Name(uid)
	}
	return r
}

// turn passes a turn on to subscribers. Called with the gate's lock held.
func (o *observer) turn(s dispatch.Slice) {
	path := ""
	if dir, ok := o.daemon.tree.ByID(s.LGPU); ok {
		path = dir.Path
	}
	now, wall := monotonic(), time.Now()
	o.daemon.slices.publish(Slice{
		Device: s.Device, ID: s.LGPU, Path: path, Used: time.Duration(s.Busy),
		Start: wall.Add(time.Duration(s.Start - now)), End: wall.Add(time.Duration(s.End - now)),
	})
}

// overran tells of a drain past its bound. Called with the gate's lock held.
func (o *observer) overran(id uint64, uuid gpu.UUID) {
	path := o.path(id)
	o.daemon.journal.emit(Event{
		Kind: DrainOverrun, Path: path, ID: id, Device: &uuid,
		Text: fmt.Sprintf("%s keeps device %s beyond the end of its turn; others run beside it, and it is charged",
			path, o.daemon.inventory.short(uuid)),
	})
}

// resliced tells of a client that has lengthened its time slice. Called with the gate's lock held.
func (o *observer) resliced(id uint64, uuid gpu.UUID, pid int, found time.Duration) {
	path := o.path(id)
	o.daemon.journal.emit(Event{
		Kind: PoliceSlice, Path: path, ID: id, Device: &uuid, PID: pid,
		Text: fmt.Sprintf("process %d of %s has set itself a time slice of %v on device %s; it is put back, and "+
			"the time is charged", pid, path, found, o.daemon.inventory.short(uuid)),
	})
}

// stayed tells of an lgpu that keeps a device beyond its time slice. Called with the gate's lock held.
func (o *observer) stayed(id uint64, uuid gpu.UUID, turn, slice time.Duration) {
	path := o.path(id)
	o.daemon.journal.emit(Event{
		Kind: PoliceSlice, Path: path, ID: id, Device: &uuid,
		Text: fmt.Sprintf("%s keeps device %s for %v at a time while others have work, although it is to give way after %v; "+
			"all take turns there for a minute", path, o.daemon.inventory.short(uuid), turn.Round(10*time.Microsecond), slice),
	})
}

// path is that of an lgpu, or empty if it is gone.
func (o *observer) path(id uint64) string {
	if dir, ok := o.daemon.tree.ByID(id); ok {
		return dir.Path
	}
	return ""
}

// monotonic is CLOCK_MONOTONIC in ns.
func monotonic() int64 {
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // fails only for clocks that do not exist
	return t.Nano()
}
