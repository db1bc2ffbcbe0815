package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/daemon/lifecycle"
	"github.com/lgpu/lgpu/daemon/store"
	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/internal/names"
	"github.com/lgpu/lgpu/internal/users"
	"github.com/lgpu/lgpu/policy/limits"
)

// resolver finds out which lgpu a process belongs to. It has no state of its own.
type resolver struct{ daemon *Daemon }

var _ tenant.Resolver = (*resolver)(nil)

// owner finds the lgpu or group that a process belongs to. Its cgroups come first: the one that the nearest of them is
// bound to, or within that the lgpu of the nearest launcher or client that the process descends from. So a process that
// is confined by its cgroup cannot leave by starting an lgpu of its own elsewhere. Outside of bound cgroups descent
// decides.
func (r *resolver) owner(e tenant.Evidence) (limits.Directory, bool) {
	own, owned := r.descent(e)
	if e.Container != 0 || e.Neighbour != 0 {
		own, owned = r.daemon.tree.ByID(cmp.Or(e.Container, e.Neighbour))
	}
	path, bound := r.daemon.tree.Bound(cgroupText(e.Cgroups))
	if !bound {
		return own, owned
	}
	if owned && names.Within(own.Path, path) {
		return own, true
	}
	dir, err := r.daemon.tree.Directory(path)
	return dir, err == nil
}

// nameOf names an lgpu in a sentence.
func (r *resolver) nameOf(id uint64) string {
	return cmp.Or(r.daemon.pathOf(id), "an lgpu that is gone")
}

// enter returns why a process of a container may not be in the lgpu that is its owner.
func (r *resolver) enter(e tenant.Evidence, dir limits.Directory) error {
	descent, descends := r.descent(e)
	switch {
	case e.Door != 0 && e.Container != e.Door:
		return refusal(unix.EPERM, "process %d came by the socket of %s and is in no container of it", e.PID, r.nameOf(e.Door))
	case e.Neighbour != 0 && e.Container != 0 && e.Neighbour != e.Container:
		return refusal(unix.EPERM, "process %d came by the socket of %s; its container is in %s", e.PID, r.nameOf(e.Container),
			r.nameOf(e.Neighbour))
	case e.Container != 0 && e.Container != dir.ID:
		return refusal(unix.EPERM, "process %d is in a container of %s, and its cgroup belongs to %s", e.PID,
			r.nameOf(e.Container), dir.Path)
	case e.Container != 0 && descends && descent.ID != e.Container:
		return refusal(unix.EPERM, "process %d is in a container of %s that was started inside %s; an lgpu cannot lie inside "+
			"another", e.PID, dir.Path, descent.Path)
	case e.Container == 0:
		return nil
	}
	// Whoever could mount the folder decides what runs there, whatever user the container's program is.
	by := limits.Author{UID: e.Maker, GID: limits.Nobody, Groups: func() []uint32 { return users.Groups(e.Maker) }}
	return told(r.daemon.tree.May(by, limits.Access{Action: limits.ActionAttach, Path: dir.Path}))
}

// descent finds the lgpu of the nearest ancestor that is a launcher or a client.
func (r *resolver) descent(e tenant.Evidence) (limits.Directory, bool) {
	launchers := r.daemon.lgpus.launchers()
	for _, a := range e.Ancestors {
		// A client that has become a launcher, by exec, is still on record as a client of where it was.
		id, launches := launchers[a.Process]
		if !launches {
			id = a.LGPU
		}
		if id != 0 {
			return r.daemon.tree.ByID(id)
		}
	}
	return limits.Directory{}, false
}

// Ask implements tenant.Resolver.
func (r *resolver) Ask(e tenant.Evidence) (uint64, error) {
	dir, err := r.admit(e)
	return dir.ID, err
}

// admit finds the lgpu or group that a process belongs to and may be in.
func (r *resolver) admit(e tenant.Evidence) (limits.Directory, error) {
	dir, ok := r.owner(e)
	switch {
	case !ok && e.Door != 0:
		return dir, refusal(unix.EPERM, "process %d came by the socket of %s and is in no container of it", e.PID,
			r.nameOf(e.Door))
	case !ok:
		return dir, refusal(unix.EPERM, "process %d descends from no lgpu and is in no cgroup of one; start it by: "+
			"lgpu run -- COMMAND", e.PID)
	}
	return dir, r.enter(e, dir)
}

// Resolve implements tenant.Resolver.
func (r *resolver) Resolve(e tenant.Evidence) (uint64, error) {
	dir, err := r.admit(e)
	if err != nil {
		return 0, err
	}
	if r.daemon.lgpus.ready(dir.ID) {
		return dir.ID, nil
	}
	if err := r.daemon.presence.left(); err != nil {
		return 0, err
	}
	for attempt := 0; ; attempt++ {
		err := r.adopt(dir)
		if err == nil {
			return dir.ID, nil
		}
		if errors.Is(err, errAgain) && attempt < adoptions {
			continue
		}
		if errors.Is(err, errAgain) {
			return 0, refusal(unix.EAGAIN, "the devices of %s change their modes all the time", dir.Path)
		}
		return 0, told(err)
	}
}

// adoptions is how often an lgpu is tried to be activated while its devices change their modes.
const adoptions = 10

// refusal is why a process is kept out, in words for its user.
func refusal(errno syscall.Errno, format string, args ...any) error {
	return &tenant.Refusal{Errno: errno, Text: fmt.Sprintf(format, args...)}
}

// told is an error as a process is told it: a limits.Error, or that of a device in another mode, as a refusal, which says
// its errno itself. One without an errno, and one that is a refusal already, stay as they are.
func told(err error) error {
	var already *tenant.Refusal
	var errno syscall.Errno
	if errors.As(err, &already) || !errors.As(err, &errno) {
		return err
	}
	return &tenant.Refusal{Errno: errno, Text: strings.TrimSuffix(err.Error(), " ("+errno.Error()+")")}
}

// firstClient is how long an lgpu that a process was let into waits for it to become a client.
const firstClient = time.Second

// adopt activates an lgpu for a process whose cgroup is bound to it.
func (r *resolver) adopt(dir limits.Directory) error {
	if dir.Path == limits.Root || len(dir.Children) > 0 {
		return refusal(unix.EBUSY, "the group %s has no processes of its own; start this one by: "+
			"lgpu run --group %[1]s -- COMMAND", dir.Path)
	}
	shape, err := r.shapeFor(dir)
	if err != nil {
		return err
	}
	var sim *simUse
	if shape != "" {
		if sim, err = r.daemon.inventory.useSim(shape); err != nil {
			return err
		}
		defer func() { sim.close() }() // unless it was taken over by then
	}
	devices, held, err := r.devicesFor(dir, shape)
	if err != nil {
		return err
	}
	defer held.release() // the lgpu has claims of its own by then
	if err := r.daemon.places.furnish(dir.Path); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.daemon.ctx, modeTime)
	defer cancel()
	for _, d := range devices {
		// MPS would not know a program that was not started as its client, and no gate would keep it to its share.
		if err := r.daemon.inventory.wantMode(ctx, d, false); err != nil {
			return err
		}
	}
	r.daemon.lgpus.life.Lock()
	defer r.daemon.lgpus.life.Unlock()
	l := r.daemon.lgpus.of(dir.ID)
	if l == nil {
		l = declared(dir.ID)
	}
	if l.machine.State.Ready() { // another process was faster
		return nil
	}
	// Its first client may still be refused for reasons of its own: it is expected for a while only.
	c := &change{daemon: r.daemon, l: l, wait: firstClient}
	return c.activate(lifecycle.ProcessCame, &sim, func(l *store.Lgpu) {
		l.Spatial = false
		if len(l.Devices) == 0 {
			l.Sim, l.Devices = shape, uuidsOf(devices)
		}
	})
}

// devicesFor returns the devices of an lgpu that are there, claimed; or those that no other daemon has, if it has none yet.
func (r *resolver) devicesFor(dir limits.Directory, shape string) (devices []gpu.Device, held claims, err error) {
	devices = r.daemon.inventory.usable(shape)
	if len(devices) == 0 {
		return nil, nil, refusal(unix.ENODEV, "%s: this machine has no device", dir.Path)
	}
	if record, _ := r.daemon.lgpus.record(dir.ID); len(record.Devices) > 0 {
		devices = slices.DeleteFunc(devices, func(d gpu.Device) bool { return !slices.Contains(record.Devices, d.UUID) })
		held, err = r.daemon.inventory.claimAll(devices, shape)
	} else {
		devices, held, err = r.daemon.inventory.claimFree(devices, shape)
	}
	switch {
	case errors.Is(err, ErrBusy):
		err = refusal(unix.EBUSY, "%s: %v", dir.Path, err)
	case err == nil && gpu.Together(devices) != nil:
		held.release()
		return nil, nil, refusal(unix.EINVAL, "%s: %v", dir.Path, oneInstance(dir.Path))
	}
	return devices, held, err
}

// shapeFor returns the software GPU that an lgpu is for, or nothing where that is the machine's own devices. One that
// says nothing of it, on a machine without devices, is for the only software GPU that there is.
func (r *resolver) shapeFor(dir limits.Directory) (string, error) {
	if record, _ := r.daemon.lgpus.record(dir.ID); len(record.Devices) > 0 || record.Sim != "" {
		return record.Sim, nil
	}
	if len(r.daemon.inventory.usable("")) > 0 {
		return "", nil
	}
	r.daemon.inventory.mu.Lock()
	defer r.daemon.inventory.mu.Unlock()
	if len(r.daemon.inventory.sims) > 1 {
		return "", refusal(unix.ENODEV, "%s: there are several software GPUs; say which by: lgpu create --sim", dir.Path)
	}
	for shape := range r.daemon.inventory.sims {
		return shape, nil
	}
	return "", nil
}

func uuidsOf(devices []gpu.Device) []gpu.UUID {
	out := make([]gpu.UUID, len(devices))
	for i, d := range devices {
		out[i] = d.UUID
	}
	return out
}
