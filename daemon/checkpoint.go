package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/checkpoint/driver"
	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/internal/proc"
	"github.com/lgpu/lgpu/policy/checkpoint"
	"github.com/lgpu/lgpu/policy/limits"
)

// Checkpoint is an lgpu whose programs somebody writes to an image, who is root: Leave, then GoOn or End. The daemon holds
// them meanwhile. If it ends, the next one has them go on.
type Checkpoint struct {
	Processes []int  // all of the program, its root first
	Clients   []int  // those of them that use devices
	Lock      string // file that is locked, with LOCK_SH, by whatever stops them
	// Files have what has left devices, of an lgpu with memory.overcommit, after Leave: the image is to have them, too.
	Files []MemoryFile

	releases *Releases
	dir      limits.Directory
	held     []releasedProcess
	lgpu     *released // once they have left
	before   bool      // they had left their devices already
}

// Checkpoint finds the program of an lgpu. Nothing is done to it yet.
func (r *Releases) Checkpoint(path string) (*Checkpoint, error) {
	dir, err := r.daemon.tree.Directory(path)
	if err != nil {
		return nil, err
	}
	c := &Checkpoint{releases: r, dir: dir, Lock: r.lock(dir.ID)}
	if err := c.find(); err != nil {
		return nil, releaseError(ErrInvalid, path, "", err)
	}
	return c, nil
}

// find finds the processes: all below the launcher, of whom there is one. What belongs to lgpu there is not the program's: a
// daemon that a launcher has started, and what that one has left, are adopted by the launcher as all that loses its parent.
func (c *Checkpoint) find() error {
	n := c.releases.daemon
	var of []tenant.Process
	for p, id := range n.lgpus.launchers() {
		if id == c.dir.ID {
			of = append(of, p)
		}
	}
	if len(of) != 1 {
		return fmt.Errorf("it has %d launchers; a program can be written to an image that one lgpu run has started", len(of))
	}
	ours := map[int]bool{}
	for _, pid := range proc.Descendants(of[0].PID) {
		s, err := proc.Live(pid)
		if err != nil {
			continue // it has just ended
		}
		if ours[s.Parent] || s.Parent == of[0].PID && isLgpu(pid) {
			ours[pid] = true
			continue
		}
		if s.Parent == of[0].PID && len(c.held) > 0 {
			return fmt.Errorf("process %d (%s) is no descendant of process %d: it is left over from another, or another PE", pid, s.Comm,
				c.held[0].PID)
		}
		c.held = append(c.held, releasedProcess{PID: pid, Start: s.Start})
		c.Processes = append(c.Processes, pid)
	}
	for _, client := range n.tenants.Clients() {
		if client.LGPU != c.dir.ID {
			continue
		}
		if !slices.Contains(c.Processes, client.Peer.PID) {
			return fmt.Errorf("process %d (%s) is in it and does not descend from its launcher", client.Peer.PID, client.Peer.Comm)
		}
		c.Clients = append(c.Clients, client.Peer.PID)
	}
	if len(c.Clients) == 0 {
		return errors.New("no program of it uses its devices")
	}
	return nil
}

// isLgpu says whether a process runs this daemon's executable.
func isLgpu(pid int) bool {
	own, err := os.Stat("/proc/self/exe")
	if err != nil {
		return false
	}
	its, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil && os.SameFile(own, its)
}

// Leave has the programs leave their devices, as a release does, and holds them there.
func (c *Checkpoint) Leave(ctx context.Context, show func(Release)) error {
	if err := c.leave(ctx, show); err != nil {
		return err
	}
	return c.gather(ctx)
}

func (c *Checkpoint) leave(ctx context.Context, show func(Release)) (err error) {
	hold := func(l *released, _ bool) { l.Moving, l.Held = false, c.held }
	if c.lgpu, c.before, err = c.releases.releaseFor(ctx, c.dir, hold, show); err != nil {
		return err
	}
	f, err := os.OpenFile(c.Lock, os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return releaseError(ErrBusy, c.dir.Path, "its programs run on", err)
	}
	return nil
}

// gather finds the files with what has left devices.
func (c *Checkpoint) gather(ctx context.Context) (err error) {
	if !c.dir.Overcommit {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, savedTime)
	defer cancel()
	if c.Files, err = c.releases.daemon.residence.images.files(ctx, c.dir.ID); err != nil {
		return releaseError(ErrBusy, c.dir.Path, "its programs run on", err)
	}
	return nil
}

// GoOn has the programs be as they were before Leave. It is harmless where that has not been called, or failed.
func (c *Checkpoint) GoOn(show func(Release)) error {
	r, n := c.releases, c.releases.daemon
	l := c.lgpu
	if n.ctx.Err() != nil {
		return nil // the next daemon does it
	}
	if l == nil {
		return nil // whoever holds it has the lock
	}
	defer os.Remove(c.Lock) // which is mostly done by then
	c.lgpu = nil
	if c.before {
		r.unstop(n.ctx, c.dir.ID, l.Held)
		r.ended(l, true)
		show(Release{Path: c.dir.Path, Back: true, Processes: len(l.Processes)})
		return nil
	}
	r.mu.Lock()
	l.busy = false // they are still noted as held, until back has noted that they move
	r.mu.Unlock()
	return r.back(n.ctx, c.dir.ID, c.dir.Path, show)
}

// End kills the programs: the image has them. It returns when they are gone; the next daemon does what this one could not.
func (c *Checkpoint) End() error {
	r := c.releases
	r.mu.Lock()
	c.lgpu.Ending = true
	err := r.save()
	r.mu.Unlock()
	if err != nil {
		return releaseError(ErrBusy, c.dir.Path, "its programs go on", err)
	}
	l := c.lgpu
	c.lgpu = nil // from here on there is no way back
	r.daemon.journal.emit(Event{Kind: LgpuStopped, Path: c.dir.Path, ID: c.dir.ID, Text: c.dir.Path + ": its programs are ended; an image has them"})
	if err := r.end(l); err != nil {
		return releaseError(ErrBusy, c.dir.Path, "kill it: the image has it", err)
	}
	return nil
}

// end kills all processes of a program that is held.
func (r *Releases) end(l *released) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.daemon.ctx), stageTime)
	defer cancel()
	for _, p := range family(l.Held) {
		h, err := proc.Open(p.PID, p.Start)
		if errors.Is(err, os.ErrProcessDone) {
			continue
		}
		if err == nil {
			err = errors.Join(h.Signal(unix.SIGKILL), h.Wait(ctx))
			h.Close()
		}
		if err != nil {
			return fmt.Errorf("process %d does not end: %w", p.PID, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all[l.ID] == l {
		delete(r.all, l.ID)
		r.daemon.residence.images.evict(l.ID, false)
	}
	_ = os.Remove(r.lock(l.ID)) // the next that needs one makes it
	return r.save()
}

// family are the processes that are held, with those that they have started since they were found. The first is the root.
func family(held []releasedProcess) []releasedProcess {
	if len(held) == 0 || !alive(held[0]) {
		return held
	}
	all := slices.Clone(held)
	for _, pid := range proc.Descendants(held[0].PID) {
		if s, err := proc.Live(pid); err == nil && !slices.Contains(all, releasedProcess{PID: pid, Start: s.Start}) {
			all = append(all, releasedProcess{PID: pid, Start: s.Start})
		}
	}
	return all
}

// lock is the path of the lock of a program that is written to an image.
func (r *Releases) lock(id uint64) string {
	return filepath.Join(r.daemon.config.Dir, fmt.Sprintf("dump-%016x.lock", id))
}

// holdTime is how long a program that is to go on may be stopped by who writes it to an image.
const holdTime = 2 * time.Minute

// unstop has processes go on that were held: once nobody stops them any more, who may have outlived the one that began it.
func (r *Releases) unstop(ctx context.Context, id uint64, held []releasedProcess) {
	if len(held) == 0 {
		return
	}
	if err := awaitLock(ctx, r.lock(id)); err != nil {
		r.daemon.log.Warn("a program may still be written to an image", "path", r.daemon.pathOf(id), "error", err)
	}
	for _, p := range family(held) {
		s, err := proc.Live(p.PID)
		if err != nil || !s.Stopped {
			continue
		}
		if h, err := proc.Open(p.PID, p.Start); err == nil {
			if err := h.Signal(unix.SIGCONT); err != nil {
				r.daemon.log.Warn("a program stays stopped", "pid", p.PID, "error", err)
			}
			h.Close()
		}
	}
}

// awaitLock waits until nobody has a lock on a file, and removes the file.
func awaitLock(ctx context.Context, path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(ctx, holdTime)
	defer cancel()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return os.Remove(path)
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

// Arrival is a program that a launcher, who is root, restores from an image into its lgpu.
type Arrival struct {
	releases *Releases
	launcher tenant.Process
	dir      limits.Directory
	clients  []int
	// Files are those for what had left devices, all zero, which the launcher fills and gives to the processes.
	Files    []MemoryFile
	pairs    []driver.Pair
	forget   func()
	entering []releasedProcess
}

// Expect announces a program: its processes that use devices, by their numbers in the image; and which devices take the place
// of which, and which files they need. None of them comes in before Enter.
func (r *Releases) Expect(by limits.Author, path string, clients []int, devices map[gpu.UUID]gpu.UUID, files []MemoryFile) (*Arrival, error) {
	dir, err := r.daemon.tree.Directory(path)
	if err != nil {
		return nil, err
	}
	of, err := launcherOf(by)
	if err != nil {
		return nil, err
	}
	if len(clients) == 0 {
		return nil, releaseError(ErrInvalid, path, "", errors.New("no process of it uses a device"))
	}
	if r.daemon.lgpus.launchers()[of.Process] != dir.ID {
		return nil, releaseError(ErrInvalid, path, "", fmt.Errorf("process %d is not its launcher", by.PID))
	}
	a := &Arrival{releases: r, launcher: of.Process, dir: dir, clients: clients}
	record, _ := r.daemon.lgpus.record(dir.ID)
	if len(files) > 0 && !dir.Overcommit {
		return nil, releaseError(ErrInvalid, path, "", errors.New("its memory cannot leave its devices (memory.overcommit)"))
	}
	if a.Files, err = r.daemon.residence.images.expect(dir.ID, record.Devices, files); err != nil {
		return nil, releaseError(ErrBusy, path, "the image is as it was, and can be restored again", err)
	}
	if dir.Overcommit {
		r.daemon.residence.images.evict(dir.ID, true)
	}
	a.forget = r.programs.Expect(clients)
	for old, to := range devices {
		a.pairs = append(a.pairs, driver.Pair{Old: old, New: to})
	}
	return a, nil
}

// Close ends the expectation, after Enter or in its place.
func (a *Arrival) Close() {
	a.forget()
	a.releases.daemon.residence.images.dismiss(a.dir.ID)
	if !a.releases.is(a.dir.ID) {
		a.releases.daemon.residence.images.evict(a.dir.ID, false)
	}
	for _, p := range a.entering {
		if !alive(p) {
			a.releases.programs.Keep(p.process(), false)
		}
	}
}

// Enter brings the processes onto the lgpu's devices and lets them in: all or none, but for those that have ended before.
func (a *Arrival) Enter(ctx context.Context, show func(Release)) error {
	r := a.releases
	record, _ := r.daemon.lgpus.record(a.dir.ID)
	l := &released{ID: a.dir.ID, Sim: r.simOf(record), Moving: true, Pairs: a.pairs, busy: true}
	for _, pid := range a.clients {
		e, err := r.daemon.tenants.Observe(pid)
		if errors.Is(err, os.ErrProcessDone) {
			continue // it has come to its end by itself already
		}
		if err != nil {
			return releaseError(ErrInvalid, a.dir.Path, "", err)
		}
		if !slices.ContainsFunc(e.Ancestors, func(o tenant.Ancestor) bool { return o.Process == a.launcher }) {
			return releaseError(ErrInvalid, a.dir.Path, "", fmt.Errorf("process %d (%s) is not the launcher's", pid, e.Comm))
		}
		l.Processes = append(l.Processes, releasedProcess{PID: pid, Start: e.Start})
	}
	if len(l.Processes) == 0 {
		show(Release{Path: a.dir.Path, Back: true})
		return nil
	}
	if err := checkpoint.Admit(nil, r.hindrances(a.dir, l), nil); err != nil {
		return releaseError(ErrInvalid, a.dir.Path, "", err)
	}
	r.mu.Lock()
	if r.all[l.ID] != nil {
		r.mu.Unlock()
		return onTheWay(a.dir.Path)
	}
	r.all[l.ID] = l
	err := r.save()
	r.mu.Unlock()
	a.entering = l.Processes
	for _, p := range l.Processes {
		r.programs.Keep(p.process(), true)
	}
	a.forget()
	if err == nil {
		err = r.move(l, a.dir.Path, true, show).run(ctx)
	}
	r.ended(l, false)
	if err != nil {
		return releaseError(ErrBusy, a.dir.Path, "the image is as it was, and can be restored again", err)
	}
	return nil
}
