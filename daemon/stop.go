package daemon

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/internal/names"
	"github.com/lgpu/lgpu/internal/proc"
	"github.com/lgpu/lgpu/policy/limits"
)

// stopper ends processes that the daemon knows. It has no state of its own.
type stopper struct{ daemon *Daemon }

// stop ends the programs in and below the directory with an ID: the processes that use lgpus there, and those that keep
// them in existence. It is the tree's Options.Stop.
func (s *stopper) stop(id uint64, by *limits.Author) {
	n := s.daemon
	top, exists := n.tree.ByID(id)
	if !exists {
		return
	}
	below := map[uint64]bool{}
	for _, dir := range n.tree.Directories() {
		if names.Within(dir.Path, top.Path) {
			below[dir.ID] = true
		}
	}
	var processes []processKey
	for p, lgpu := range n.lgpus.launchers() {
		if below[lgpu] {
			processes = append(processes, p)
		}
	}
	for _, c := range n.tenants.Clients() {
		if below[c.LGPU] && !slices.Contains(processes, c.Peer.Process) {
			processes = append(processes, c.Peer.Process)
		}
	}
	if len(processes) == 0 {
		return
	}
	ended := "1 process is ended"
	if len(processes) > 1 {
		ended = fmt.Sprintf("%d processes are ended", len(processes))
	}
	author := authorOf(by)
	n.journal.emit(Event{Kind: LgpuStopped, Path: top.Path, ID: id, By: author, Text: top.Path + ": " + ended + author.words()})
	line, err := ownLine()
	for _, p := range processes {
		s.endUnless(line, err, p, func() {})
	}
}

// ownLine returns the processes that the daemon descends from. They are looked up once for all that end together: while
// the daemon lives, others join its line only by adopting an orphan, which systemd and lgpu run do as its parent already.
func ownLine() ([]tenant.Ancestor, error) {
	self, err := tenant.Observe(os.Getpid(), func(tenant.Process) uint64 { return 0 })
	return self.Ancestors, err
}

// end ends a process: SIGTERM, and SIGKILL where that has not helped after Config.StopGrace. Never process 1, the daemon,
// or one that the daemon descends from. begins is called before, if the process lives and is not spared.
func (s *stopper) end(p processKey, begins func()) {
	line, err := ownLine()
	s.endUnless(line, err, p, begins)
}

// endUnless is end, with the daemon's line or why it is not known.
func (s *stopper) endUnless(line []tenant.Ancestor, err error, p processKey, begins func()) {
	n := s.daemon
	spared := p.PID <= 1 || p.PID == os.Getpid() || err != nil ||
		slices.ContainsFunc(line, func(a tenant.Ancestor) bool { return a.PID == p.PID })
	if spared {
		n.log.Warn("a process that should be stopped is spared", "pid", p.PID, "error", err)
		return
	}
	h, err := proc.Open(p.PID, p.Start)
	if err != nil {
		return // it has ended
	}
	begins()
	n.work.Add(1)
	go func() {
		defer n.work.Done()
		defer h.Close()
		for _, signal := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
			if err := h.Signal(signal); err != nil {
				n.log.Warn("a process cannot be stopped", "pid", p.PID, "signal", signal, "error", err)
				return
			}
			if h.WaitFor(n.ctx, n.config.StopGrace) {
				return
			}
		}
	}()
}
