package criu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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
	// Ready is called when all of the program is there, and none of it has run yet: it waits until Ready returns. An error ends
	// the restore, and is its error. May be nil.
	Ready func() error
}

// Restore starts a program. Its first process is a child of this one: who calls must wait for it.
func (p Program) Restore(ctx context.Context, r Restore) (*os.Process, error) {
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
	o := options(ctx, dir)
	o.flag(optRstSibling, true)
	o.flag(optShellJob, r.Terminal)
	o.flag(optFileLocks, true)
	o.flag(optTCPClose, true)
	for _, name := range r.External {
		o.text(optExternal, name)
	}
	var files []*os.File
	for key, file := range r.Inherit {
		files = append(files, file)
		var one message
		one.text(1, key)
		one.number(2, int64(firstInherited+len(files)))
		o.inner(optInheritFD, one)
	}
	o.flag(optNotices, r.Ready != nil)
	a, err := p.askAndHear(ctx, "restore", requestRestore, o, place{r.Mounts, r.Cgroups, r.TTY}, func(notice string) error {
		if notice != restored {
			return nil
		}
		return r.Ready()
	}, files...)
	var root *unix.WaitStatus
	if err != nil {
		root = sweep(pids)
	}
	if err := logged(err, r.Dir); err != nil {
		return nil, fmt.Errorf("restore from %s: %w", r.Dir, early(err, root))
	}
	process, err := os.FindProcess(a.pid)
	if err != nil {
		return nil, fmt.Errorf("restore from %s: find process %d: %w", r.Dir, a.pid, err)
	}
	return process, nil
}

// Ended is the error of a restore whose first process has come to its end by itself before CRIU had let all of the program go:
// that is over then.
type Ended struct{ Status int } // as a shell has it

func (e *Ended) Error() string { return fmt.Sprintf("its program has ended with status %d", e.Status) }

// notLetGo begins CRIU's error about a process, or a thread of one, that has ended before CRIU let it go. It ends all others.
const notLetGo = "Unable to detach "

// early is the error of a restore, or that the program has ended early. root is how its first process has ended, if it has.
func early(err error, root *unix.WaitStatus) error {
	var e *Error
	switch {
	case !errors.As(err, &e) || !strings.HasPrefix(e.Cause, notLetGo):
	case root != nil && root.Exited():
		return &Ended{root.ExitStatus()}
	case root != nil && root.Signal() != unix.SIGKILL: // which may be CRIU's
		return &Ended{128 + int(root.Signal())}
	default:
		e.Cause = "a process of the program ended before all were let go, and so the others were ended; it can be tried again"
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
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(time.Millisecond):
			}
		}
	}
	return nil
}

// sweep kills what a restore that did not come to its end has left: the processes with numbers of the image that are this
// one's, and all below them. Their parents may have ended before, and then they are its children. It returns how the first of
// them has ended, if it was a child.
func sweep(numbers []int) (root *unix.WaitStatus) {
	// Those that are stopped start no others. When a look finds no new one, all are.
	all := map[int]bool{}
	for found := true; found; {
		found = false
		for _, pid := range family(os.Getpid()) {
			if !slices.Contains(numbers, pid) {
				continue
			}
			for _, pid := range family(pid) {
				if !all[pid] {
					all[pid], found = true, true
					_ = unix.Kill(pid, unix.SIGSTOP) // it may have ended
				}
			}
		}
	}
	for pid := range all {
		_ = unix.Kill(pid, unix.SIGKILL) // likewise
	}
	until := time.Now().Add(burial)
	for pid := range all {
		for alive(pid) && time.Now().Before(until) {
			time.Sleep(time.Millisecond)
		}
	}
	for pid := range all { // nobody else will see the end of a child; those of others are ended by now, and become children
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
	treePID    = 1
	treeThread = 5
)

// tree returns the numbers of the processes and threads of an image, the root's first.
func tree(dir string) ([]int, error) {
	b, err := readList(filepath.Join(dir, treeName), maxTree)
	if err != nil {
		return nil, err
	}
	pids, err := parseTree(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", treeName, err)
	}
	return pids, nil
}

func parseTree(b []byte) ([]int, error) {
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
	err := eachEntry(b, treeMagic, func(entry []byte) error {
		return fields(entry, func(field protowire.Number, number int64, packed []byte) error {
			switch {
			case field != treePID && field != treeThread:
			case packed == nil:
				return add(number)
			default:
				for len(packed) > 0 {
					v, n := protowire.ConsumeVarint(packed)
					if n < 0 {
						return errDamaged
					}
					packed = packed[n:]
					if err := add(int64(v)); err != nil {
						return err
					}
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
