package criu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
)

// Restore is a request to start a program from files.
type Restore struct {
	// Dir has the files of a dump. They are trusted: whoever writes them can do what root can.
	Dir string
	// Inherit are files that take the place of those that the program had open: by Stream.Key, or as CRIU's option
	// --inherit-fd names them.
	Inherit  map[string]*os.File
	External []string // as it was in the dump
	Mounts   int      // a process whose mount namespace the program gets; 0: that of this one
	Cgroups  []string // files (cgroup.procs, or tasks) of cgroups that the program is in; others than those of this process
	TTY      *os.File // takes the place of each terminal that the program had; nil if it had none
	Terminal bool     // its session is that of this process, and its group where that was its session's
	// Keeper is a command that calls Keep, with the arguments that are added to it. It sees to it that nothing is left of the
	// program if this process is killed.
	Keeper []string
	// Ready is called when all of the program is there, and none of it has run yet: it waits until Ready returns. An error ends
	// the restore, and is its error. May be nil.
	Ready func() error
}

// Restored is a program that has been restored, with its first process. It is ended if this process ends, until Commit.
type Restored struct {
	*os.Process
	numbers []int
	held    *holding
}

// Commit has the program be as one that this process has started. To call it again, or after End, does nothing.
func (r *Restored) Commit() {
	_ = r.held.leave(true) // if somebody has killed what holds it, it is free, too
}

// End kills the program, and returns when all of it has ended.
func (r *Restored) End() {
	sweep(r.numbers)
	_ = r.held.leave(false) // it has nothing to do any more
}

// options are those of the restore, with the files that CRIU gets for them.
func (r *Restore) options(ctx context.Context, dir *os.File) (o message, files []*os.File) {
	o = options(ctx, dir)
	o.flag(optRstSibling, true)
	o.flag(optShellJob, r.Terminal)
	o.flag(optFileLocks, true)
	o.flag(optTCPClose, true)
	o.flag(optNotices, true)
	for _, name := range r.External {
		o.text(optExternal, name)
	}
	for key, file := range r.Inherit {
		files = append(files, file)
		var one message
		one.text(1, key)
		one.number(2, int64(firstInherited+len(files)))
		o.inner(optInheritFD, one)
	}
	return o, files
}

// Restore starts a program. Its first process is a child of this one: who calls must wait for it, after Commit or End. What loses
// its parent becomes a child of this process from now on, whatever it is.
func (p Program) Restore(ctx context.Context, r Restore) (*Restored, error) {
	if err := p.able(ctx); err != nil {
		return nil, fmt.Errorf("restore from %s: %w", r.Dir, err)
	}
	dir, err := os.OpenFile(r.Dir, unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("restore: %w", err)
	}
	defer dir.Close()
	pids, err := tree(r.Dir)
	if err != nil {
		return nil, fmt.Errorf("restore from %s: %w", r.Dir, err)
	}
	if err := free(ctx, pids); err != nil {
		return nil, fmt.Errorf("restore from %s: %w", r.Dir, err)
	}
	if err := editFiles(r.Dir, wind); err != nil {
		return nil, fmt.Errorf("restore from %s: %w", r.Dir, err)
	}
	o, files := r.options(ctx, dir)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("restore from %s: become the parent of what is restored: %w", r.Dir, err)
	}
	k, err := startKeeper(slices.Concat(r.Keeper, []string{keepHold}), func(c *exec.Cmd) {
		c.Stderr = os.Stderr
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that who kills all of this process's group has not killed it
	})
	if err != nil {
		return nil, fmt.Errorf("restore from %s: start %s: %w", r.Dir, r.Keeper[0], err)
	}
	held := &holding{keeper: k}
	l := &loss{}
	looking, enough := context.WithCancel(ctx)
	defer enough()
	a, err := p.askKept(ctx, r.Keeper, o, place{r.Mounts, r.Cgroups, r.TTY}, func(k *kept) error {
		if r.TTY != nil {
			if err := k.giveTerminal(r.TTY); err != nil {
				return err
			}
		}
		if err := bindThreads(r.Dir, pids); err != nil {
			return err
		}
		l.there = append(l.there, pids[0])
		l.there = append(l.there, slices.DeleteFunc(slices.Clone(pids[1:]), dead)...) // some had before the dump
		if r.Ready != nil {
			if err := r.Ready(); err != nil {
				if errors.Is(err, os.ErrProcessDone) && alive(k.criu.Pid) { // else its end has ended the program
					l.note()
				}
				return err
			}
			if i := slices.IndexFunc(l.there, stopped); i >= 0 {
				return fmt.Errorf("process %d was stopped by a signal, or told to continue, before it ran; it can be tried again", l.there[i])
			}
		}
		if err := errors.Join(held.hold(k.cmd.Process.Pid, k.criu.Pid), k.letGo()); err != nil {
			return fmt.Errorf("hold what is restored: %w", err)
		}
		go l.look(looking, k)
		return nil
	}, files...)
	enough()
	program := &Restored{numbers: pids, held: held}
	var root *unix.WaitStatus
	if err == nil {
		program.Process, err = os.FindProcess(a.pid)
	}
	if err != nil {
		root = sweep(pids)
		_ = held.leave(false) // it has nothing to do any more
	}
	if err := logged(err, r.Dir); err != nil {
		return nil, fmt.Errorf("restore from %s: %w", r.Dir, early(err, root, l))
	}
	return program, nil
}

// loss looks for a process that has ended before CRIU has let all go. If somebody has killed it before its first step, CRIU would
// wait for that for ever.
type loss struct {
	there []int // processes and threads that had not ended before, and first of all the first of the program

	any, first atomic.Bool // one of them has, or that one, and CRIU has been ended
}

// noticing is how long CRIU has to notice that.
const noticing = 3 * time.Second

// look looks until ctx ends. What it finds is not for a restore that has come to its end meanwhile.
func (l *loss) look(ctx context.Context, k *kept) {
	for !slices.ContainsFunc(l.there, dead) {
		if !wait(ctx, 50*time.Millisecond) {
			return
		}
	}
	if wait(ctx, noticing) {
		l.note()
		k.kill()
	}
}

// note notes that one has ended.
func (l *loss) note() {
	l.first.Store(dead(l.there[0]))
	l.any.Store(true)
}

// wait waits for some time. False: ctx has ended.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// Ended is the error of a restore whose first process has come to its end by itself before CRIU had let all of the program go:
// that is over then.
type Ended struct{ Status int } // as a shell has it

func (e *Ended) Error() string { return fmt.Sprintf("its program has ended with status %d", e.Status) }

// notLetGo begins CRIU's error about a process, or a thread of one, that has ended before CRIU let it go. It ends all others.
const notLetGo = "Unable to detach "

// lost is said of a restore that one of several processes has ended, which is not the first one.
const lost = "a process of the program ended before all were let go, and so the others were ended; it can be tried again"

// early is the error of a restore, or that the program has ended early. root is how its first process has ended, if it has.
func early(err error, root *unix.WaitStatus, l *loss) error {
	var e *Error
	switch is := errors.As(err, &e); {
	case !l.any.Load() && !(is && strings.HasPrefix(e.Cause, notLetGo)):
	case root != nil && root.Exited():
		return &Ended{root.ExitStatus()}
	case root != nil && (l.first.Load() || root.Signal() != unix.SIGKILL): // which may be CRIU's
		return &Ended{128 + int(root.Signal())}
	case is:
		e.Cause = lost
	default:
		return fmt.Errorf("%s: %w", lost, err)
	}
	return err
}

// burial is how long a process that has ended may keep its number: those of a dump have just been killed, and whoever is
// their parent now has to notice.
const burial = 10 * time.Second

// free says that no process or thread has one of these numbers, or waits until none has that has ended.
func free(ctx context.Context, pids []int) error {
	until := time.Now().Add(burial)
	for _, pid := range pids {
		for leader(pid) != 0 {
			if alive(pid) || time.Now().After(until) {
				return fmt.Errorf("%w: %d is %s", ErrPIDTaken, pid, called(pid))
			}
			if !wait(ctx, time.Millisecond) {
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// sweep kills what a restore that did not come to its end has left: the processes with numbers of the image that are this
// one's, and all below them. Their parents may have ended before, and then they are its children. It returns how the first of
// them has ended, if it was a child.
func sweep(numbers []int) (root *unix.WaitStatus) {
	all := endAll(func() (found []int) {
		for _, pid := range family(os.Getpid()) {
			if slices.Contains(numbers, pid) {
				found = append(found, family(pid)...)
			}
		}
		return found
	})
	for _, pid := range all { // nobody else will see the end of a child; those of others are ended by now, and become children
		for statusNumber(pid, "PPid") == os.Getpid() {
			var status unix.WaitStatus
			if _, err := unix.Wait4(pid, &status, 0, nil); errors.Is(err, unix.EINTR) {
				continue
			} else if err != nil {
				break
			}
			if pid == numbers[0] {
				root = &status
			}
		}
	}
	return root
}

// alive says whether a process or thread has not ended.
func alive(pid int) bool {
	state := statusOf(pid, "State")
	return state != "" && state[0] != 'Z' && state[0] != 'X'
}

func dead(pid int) bool { return !alive(pid) }

// stopped says whether a process or thread is stopped: by SIGSTOP, or for who traces it. CRIU traces the first process of what it
// restores, which SIGCONT stops then; when all is there it does not look at that any more, and would wait for ever.
func stopped(pid int) bool {
	state := statusOf(pid, "State")
	return state != "" && (state[0] == 'T' || state[0] == 't')
}

// family is a process and all below it.
func family(root int) []int {
	children := map[int][]int{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return []int{root}
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			parent := statusNumber(pid, "PPid")
			children[parent] = append(children[parent], pid)
		}
	}
	all := []int{root}
	for i := 0; i < len(all) && i < len(entries); i++ { // what changes meanwhile cannot make it longer
		all = append(all, children[all[i]]...)
	}
	return all
}

// statusNumber is a number of a process or thread as /proc says it; 0 if there is none.
func statusNumber(pid int, name string) int {
	n, err := strconv.Atoi(statusOf(pid, name))
	if err != nil {
		return 0
	}
	return n
}

// statusOf is a line of what /proc says of a process or thread; empty if there is none.
func statusOf(pid int, name string) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return ""
	}
	_, after, _ := strings.Cut(string(text), "\n"+name+":")
	line, _, _ := strings.Cut(after, "\n")
	return strings.TrimSpace(line)
}

// called is the name of a process, which anyone can choose.
func called(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return "gone"
	}
	return strconv.Quote(strings.TrimSpace(string(text)))
}

// The list that has the processes of an image, for each a message with the numbers of the process and of its threads.
const (
	treeName   = "pstree.img"
	treeMagic  = 0x50273030
	maxTree    = 16 << 20
	corePrefix = "core-" // begins the name of the list of a thread
	treePID    = 1
	treeThread = 5
)

// tree returns the numbers of the processes and threads of an image, the root's first.
func tree(dir string) ([]int, error) {
	b, err := readList(filepath.Join(dir, treeName), maxTree)
	if err != nil {
		return nil, err
	}
	pids, err := parseTree(b, func(tid int64) bool {
		_, err := os.Lstat(filepath.Join(dir, fmt.Sprintf("%s%d.img", corePrefix, tid)))
		return err == nil
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", treeName, err)
	}
	return pids, nil
}

// parseTree reads a list of processes. A process that had ended has for its thread whatever was in CRIU's memory; a thread that
// is not there is none.
func parseTree(b []byte, there func(tid int64) bool) ([]int, error) {
	var pids []int
	had := map[int64]bool{}
	add := func(n int64) error {
		if n < 2 || n > 1<<22 { // the most that the kernel has
			return errDamaged
		}
		if !had[n] {
			had[n] = true
			pids = append(pids, int(n))
		}
		return nil
	}
	thread := func(n int64) error {
		if !there(n) {
			return nil
		}
		return add(n)
	}
	err := eachEntry(b, treeMagic, func(entry []byte) error {
		return fields(entry, func(field protowire.Number, number int64, packed []byte) error {
			each := add
			if field == treeThread {
				each = thread
			} else if field != treePID {
				return nil
			}
			if packed == nil {
				return each(number)
			}
			for len(packed) > 0 {
				v, n := protowire.ConsumeVarint(packed)
				if n < 0 {
					return errDamaged
				}
				packed = packed[n:]
				if err := each(int64(v)); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err == nil && len(pids) == 0 {
		err = errDamaged
	}
	if err != nil {
		return nil, err
	}
	return pids, nil
}
