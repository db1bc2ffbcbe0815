package criu

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/internal/proc"
)

// What is being restored is not to outlive who asks for it, who can be killed at any moment and then does nothing any more. So
// two processes, keepers, watch over it; each ends when it is told to, and ends the program when who asked has ended.
//
// The first one is the parent of CRIU, and of the program as CRIU makes it, so that no process of it can be missed. It cannot
// stay: a program's first process may want to be killed when its parent ends, as lgpu run has it, and CRIU restores that wish
// last of all. So it leaves when all is there and nothing has run, and the program becomes the child of who asks. From there on
// the second one holds the processes, which are known by then, until they are let go.

// What a keeper is told to do.
const (
	keepStart = "start" // and the arguments of startFor
	keepHold  = "hold"
)

// leashFD is the descriptor of a keeper's end of a socket to who asks. Behind it are CRIU's files.
const leashFD = 3

// mostFiles is how many files CRIU has at most: its socket, and those of the program's that lead outside.
const mostFiles = 1024

// Lines that keepers answer with: that all is well, with a number, or an error.
const (
	keptWell = "well "
	keptNot  = "error "
)

// letGo is what a keeper is told at the end.
const letGo = "go\n"

// Keep is all that the command of Restore.Keeper does, with the arguments that are added to it. It does not return when it has
// come to its end.
func Keep(args []string) error {
	if _, err := unix.GetsockoptInt(leashFD, unix.SOL_SOCKET, unix.SO_TYPE); err != nil {
		return errors.New("keep a program that is being restored: this is not to be called by hand")
	}
	unix.CloseOnExec(leashFD)
	leash := os.NewFile(leashFD, "leash")
	// It does its work to the end. Signals that were ignored instead would be in what it starts, too.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM)
	switch {
	case len(args) > 0 && args[0] == keepStart:
		return startFor(leash, args[1:])
	case len(args) == 1 && args[0] == keepHold:
		return holdFor(leash)
	}
	return fmt.Errorf("keep a program that is being restored: %q is not to be called by hand", args)
}

// startFor starts CRIU and is the parent of all that it makes. It ends all of that when the leash breaks or CRIU ends, and then
// ends as CRIU has. The arguments are the process in whose mount namespace it is to be, how many files it has, whether it has a
// terminal, its path, and cgroups.
func startFor(leash *os.File, args []string) error {
	if len(args) < 4 {
		return fmt.Errorf("start criu: %q are not all arguments", args)
	}
	var numbers [3]int
	for i := range numbers {
		n, err := strconv.Atoi(args[i])
		if err != nil {
			return fmt.Errorf("start criu: argument %q: %w", args[i], err)
		}
		numbers[i] = n
	}
	if files := numbers[1]; files < 0 || files > mostFiles {
		return fmt.Errorf("start criu: with %d files; it has 0 to %d", files, mostFiles)
	}
	c := exec.Command(args[3], "swrk", strconv.Itoa(firstInherited))
	at := place{mounts: numbers[0], cgroups: args[4:]}
	if numbers[2] != 0 {
		at.terminal = os.Stdin
	}
	for i := range numbers[1] {
		fd := leashFD + 1 + i
		unix.CloseOnExec(fd)
		c.ExtraFiles = append(c.ExtraFiles, os.NewFile(uintptr(fd), "criu's file"))
	}
	c.Stderr = os.Stderr
	err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	if err == nil {
		err = at.start(c)
	}
	for _, f := range c.ExtraFiles {
		f.Close()
	}
	if err != nil {
		_, _ = fmt.Fprintln(leash, keptNot+err.Error())
		return nil
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	told := make(chan bool, 1)
	go func() { told <- released(leash) }()
	_, _ = fmt.Fprintln(leash, keptWell+strconv.Itoa(c.Process.Pid)) // if nobody hears it, the leash is broken
	go stepAside(c.Process.Pid)
	select {
	case free := <-told:
		if free {
			os.Exit(0)
		}
		endAll(below)
	case <-ended:
		endAll(below)
		if status := c.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
			_ = unix.Kill(os.Getpid(), status.Signal())
		}
		os.Exit(cmp.Or(c.ProcessState.ExitCode(), 1))
	}
	return nil
}

// below are the processes below this one.
func below() []int { return family(os.Getpid())[1:] }

// released waits until this keeper is told that what it keeps may go. It says whether it was: not if who asked has ended.
func released(leash io.Reader) bool {
	line, _ := bufio.NewReader(leash).ReadString('\n') // an error is no line
	return line == letGo
}

// stepAside has this process leave its process group, so that who kills all of that has not killed it. CRIU takes the group of
// its parent for that of the program, so this is done when CRIU has made the first process of it, and not before. If CRIU takes
// it later for that which has the terminal, see giveTerminal.
func stepAside(criu int) {
	for {
		for _, pid := range below() {
			if pid != criu && statusNumber(pid, "PPid") == os.Getpid() {
				_ = unix.Setpgid(0, 0) // where it cannot, it stays
				return
			}
		}
		time.Sleep(time.Millisecond)
	}
}

// holdFor holds processes, which it is told, and ends them with all below them when the leash breaks.
func holdFor(leash *os.File) error {
	line, err := bufio.NewReader(leash).ReadString('\n') // nothing comes behind it before the answer
	if err != nil {
		return nil // nothing has come to be held
	}
	var all []*proc.Handle
	var numbers []int
	for word := range strings.FieldsSeq(line) {
		var pid int
		var start uint64
		if _, err := fmt.Sscanf(word, "%d:%d", &pid, &start); err != nil {
			return fmt.Errorf("hold %q: %w", word, err)
		}
		h, err := proc.Open(pid, start)
		if err != nil {
			_, _ = fmt.Fprintf(leash, "%shold process %d: %v\n", keptNot, pid, err)
			return nil
		}
		all, numbers = append(all, h), append(numbers, pid)
	}
	_, _ = fmt.Fprintln(leash, keptWell+strconv.Itoa(len(all)))
	if released(leash) {
		return nil
	}
	endAll(func() (found []int) {
		for i, h := range all {
			if h.Signal(unix.SIGSTOP) == nil {
				found = append(found, family(numbers[i])...)
			}
		}
		return found
	})
	return nil
}

// endAll kills the processes that are found, and returns them when they have ended. What is stopped starts no others: so when a
// look finds no new one, there are no more.
func endAll(find func() []int) []int {
	all := map[int]bool{}
	for found := true; found; {
		found = false
		for _, pid := range find() {
			if !all[pid] {
				all[pid], found = true, true
				_ = unix.Kill(pid, unix.SIGSTOP) // it may have ended
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
	return slices.Collect(maps.Keys(all))
}

// keeper is one that this process has started.
type keeper struct {
	cmd   *exec.Cmd
	leash *os.File
	in    *bufio.Reader
}

// startKeeper starts a command that calls Keep. prepare may add to the command.
func startKeeper(command []string, prepare func(*exec.Cmd)) (*keeper, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	own, its := os.NewFile(uintptr(pair[0]), "leash"), os.NewFile(uintptr(pair[1]), "leash")
	c := exec.Command(command[0], command[1:]...)
	c.ExtraFiles = []*os.File{its}
	prepare(c)
	if err := errors.Join(c.Start(), its.Close()); err != nil {
		return nil, errors.Join(err, own.Close())
	}
	return &keeper{c, own, bufio.NewReader(own)}, nil
}

var errKeeperEnded = errors.New("the process that keeps it has ended")

// answer waits for the keeper's answer.
func (k *keeper) answer() (number int, err error) {
	line, err := k.in.ReadString('\n')
	line = strings.TrimSuffix(line, "\n")
	if said, bad := strings.CutPrefix(line, keptNot); bad {
		return 0, errors.New(said)
	}
	if err == nil {
		number, err = strconv.Atoi(strings.TrimPrefix(line, keptWell))
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errKeeperEnded, err)
	}
	return number, nil
}

// end breaks the leash, or tells the keeper that all may go, and waits for its end.
func (k *keeper) end(free bool) error {
	var err error
	if free {
		_, err = k.leash.WriteString(letGo)
	}
	return errors.Join(err, k.leash.Close(), k.cmd.Wait())
}

// holding is the second keeper.
type holding struct {
	*keeper
	once sync.Once
}

// hold gives the keeper all processes below another one.
func (h *holding) hold(root int, without int) error {
	var b bytes.Buffer
	n := 0
	for _, pid := range family(root)[1:] {
		if pid == without {
			continue
		}
		s, err := proc.Live(pid)
		if errors.Is(err, os.ErrProcessDone) {
			continue
		} else if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%d:%d ", pid, s.Start)
		n++
	}
	b.WriteByte('\n')
	if _, err := h.leash.Write(b.Bytes()); err != nil {
		return err
	}
	if held, err := h.answer(); err != nil {
		return err
	} else if held != n {
		return fmt.Errorf("%d of %d processes are held", held, n)
	}
	return nil
}

// leave ends the keeper, once.
func (h *holding) leave(free bool) (err error) {
	h.once.Do(func() { err = h.end(free) })
	return err
}

// kept is a CRIU that a keeper has started.
type kept struct {
	*keeper
	criu *os.Process
	free atomic.Bool   // the keeper is told to leave: CRIU and what it has made become children of this process
	lost atomic.Bool   // somebody has killed the keeper, and so CRIU is ended
	left chan struct{} // closed when the keeper has ended
}

// letGo has the keeper leave, and returns when this process is the parent.
func (k *kept) letGo() error {
	k.free.Store(true)
	_, err := k.leash.WriteString(letGo)
	<-k.left
	return err
}

// giveTerminal has the terminal be the group's of this process again, if CRIU has given it to the keeper's. All of the program is
// there, and CRIU does nothing with terminals any more.
func (k *kept) giveTerminal(terminal *os.File) error {
	group, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPGRP)
	if err != nil || group != k.cmd.Process.Pid {
		return nil // it is not that of this session, or is a group's of the program
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var stop, before unix.Sigset_t
	stop.Val[0] = 1 << (unix.SIGTTOU - 1) // which a process that has not the terminal would get for this
	if err = unix.PthreadSigmask(unix.SIG_BLOCK, &stop, &before); err == nil {
		err = errors.Join(unix.IoctlSetPointerInt(int(terminal.Fd()), unix.TIOCSPGRP, unix.Getpgrp()),
			unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil))
	}
	if err != nil {
		return fmt.Errorf("give the terminal to the program: %w", err)
	}
	return nil
}

// kill ends CRIU, and with it what it has made, unless that is let go.
func (k *kept) kill() {
	if k.free.Load() {
		_ = k.criu.Kill() // it may have ended
		return
	}
	noMore(k.leash)
}

// wait waits for the end of CRIU. Its keeper ends as it does, or has left before.
func (k *kept) wait() error {
	err := k.cmd.Wait()
	close(k.left)
	if k.criu == nil || !k.free.Load() && statusNumber(k.criu.Pid, "PPid") != os.Getpid() {
		return err
	}
	if !k.free.Load() {
		k.lost.Store(true)
		_ = k.criu.Kill()
	}
	state, err := k.criu.Wait()
	if err == nil && !state.Success() {
		err = errors.New(state.String())
	}
	return err
}

// askKept asks a CRIU that a keeper starts to restore. When all is there, ready is called.
func (p Program) askKept(ctx context.Context, command []string, options message, at place, ready func(*kept) error,
	files ...*os.File) (answer, error) {
	own, its, err := connection("restore")
	if err != nil {
		return answer{}, err
	}
	defer own.Close()
	said, log, err := newListener()
	if err != nil {
		return answer{}, errors.Join(err, its.Close())
	}
	terminal := 0
	if at.terminal != nil {
		terminal = 1
	}
	args := []string{keepStart}
	for _, n := range []int{at.mounts, 1 + len(files), terminal} {
		args = append(args, strconv.Itoa(n))
	}
	args = slices.Concat(command, args, []string{p.Path}, at.cgroups)
	k := &kept{left: make(chan struct{})}
	k.keeper, err = startKeeper(args, func(c *exec.Cmd) {
		if at.terminal != nil {
			c.Stdin = at.terminal
		}
		c.Stderr = log
		c.ExtraFiles = append(append(c.ExtraFiles, its), files...)
		c.Env = environment()
	})
	if err := errors.Join(err, its.Close(), log.Close()); err != nil {
		said.text()
		return answer{}, fmt.Errorf("criu restore: start %s: %w", command[0], err)
	}
	defer k.leash.Close()
	stop := context.AfterFunc(ctx, func() {
		_ = own.SetDeadline(time.Now()) // it may be closed
		k.kill()
	})
	defer stop()
	pid, started := k.answer()
	if started == nil {
		k.criu, started = os.FindProcess(pid)
	}
	waited := make(chan error, 1)
	go func() {
		waited <- k.wait()
		noMore(own)
	}()
	if started != nil {
		k.kill()
		err := errors.Join(fmt.Errorf("criu restore: start %s: %w", p.Path, started), <-waited)
		if text := said.text().String(); text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return answer{}, err
	}
	a, heard, err := exchange(own, request(requestRestore, options), func(notice string) error {
		if notice != restored {
			return nil
		}
		err := ready(k)
		switch {
		case err == nil:
			return nil
		case k.lost.Load(): // whatever ready has found is since CRIU is ended
			return fmt.Errorf("hold what is restored: %w", errKeeperEnded)
		case dead(k.criu.Pid):
			return nil // with it ends what it has made, and the answer that does not come says so
		}
		k.kill() // told of it, CRIU would wait for each process to end itself, also for one that somebody has killed
		return err
	})
	_ = own.Close() // it waits for further requests until then
	ended := <-waited
	return conclude(ctx, "restore", requestRestore, a, heard, err, ended, said.text())
}

// listener keeps the end of what is written to a pipe.
type listener struct {
	tail tail
	pipe *os.File
	done chan struct{}
}

// newListener returns one, and the end of the pipe to write to.
func newListener() (l *listener, write *os.File, err error) {
	l = &listener{done: make(chan struct{})}
	if l.pipe, write, err = os.Pipe(); err != nil {
		return nil, nil, err
	}
	go func() {
		defer close(l.done)
		_, _ = io.Copy(&l.tail, l.pipe) // it ends with the pipe, or with text
	}()
	return l, write, nil
}

// text returns what was written, once nobody has the pipe any more, or after a second.
func (l *listener) text() *tail {
	_ = l.pipe.SetReadDeadline(time.Now().Add(time.Second)) // pipes have them
	<-l.done
	l.pipe.Close()
	return &l.tail
}
