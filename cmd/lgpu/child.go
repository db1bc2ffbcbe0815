package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/internal/proc"
)

// forwarded are the signals that lgpu run passes on to its program.
var forwarded = []os.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGWINCH,
	unix.SIGTSTP, unix.SIGCONT,
}

// findProgram finds name as a shell does. The error carries the status that a shell ends with.
func findProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil || errors.Is(err, exec.ErrDot) { // a shell starts what a relative PATH entry names
		return path, nil
	}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return "", &exit{status: statusNotFound, err: fmt.Errorf("command %q not found", name)}
	}
	return "", &exit{status: statusNotExecutable, err: fmt.Errorf("command %q cannot be executed: %w", name, cause(err))}
}

// cause strips what package exec puts around a system error.
func cause(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

// starter starts a process, as os.StartProcess does. If confirm is not nil, it is called once after all are started, and
// its error means that the program has not.
type starter func(path string, argv []string, attr *os.ProcAttr) (process *os.Process, confirm func() error, err error)

// startPlainly is the starter of programs that are not contained.
func startPlainly(path string, argv []string, attr *os.ProcAttr) (*os.Process, func() error, error) {
	process, err := os.StartProcess(path, argv, attr)
	return process, nil, err
}

// child is a program that lgpu run starts.
type child struct {
	env   []string
	files []*os.File // standard input, output and error
	start starter

	process *os.Process // nil unless it is started
	ended   bool
	status  int // as a shell has it, when ended
	signal  unix.Signal
}

// How long the other programs of a job have when one has failed: to end by themselves, which they do when they notice,
// and then after SIGTERM.
const (
	noticeTime    = 5 * time.Second
	terminateTime = 5 * time.Second
)

// runPrograms runs the program at path, once for each of list, until all have ended, passing signals on. They share this
// process's terminal and process group, and are killed if this process is. What they leave behind when they fork into
// the background becomes this process's child, so that descent says whose it is. When one fails the others are ended.
// ended is called for each that has.
func runPrograms(path string, argv []string, list []*child, ended func(*child)) (told bool, err error) {
	signals := make(chan os.Signal, 32)
	for _, s := range forwarded {
		if !signal.Ignored(s) { // nohup: what is ignored here stays ignored in the program
			signal.Notify(signals, s)
		}
	}
	defer signal.Stop(signals)
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	defer signal.Stop(children)

	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return false, failed(fmt.Errorf("become the parent of the processes that the program leaves: %w", err))
	}
	if err := startAll(path, argv, list); err != nil {
		killAll(list, ended)
		return false, err
	}
	left, next := len(list), unix.SIGTERM
	var overdue <-chan time.Time // when next is sent
	for left > 0 {
		select {
		case s := <-signals:
			told = told || s != unix.SIGWINCH && s != unix.SIGCONT
			forward(list, s.(syscall.Signal))
		case <-children:
			for _, p := range reap(list) {
				left--
				ended(p)
				if p.status != 0 && overdue == nil {
					overdue = time.After(noticeTime)
				}
			}
		case <-overdue:
			for _, p := range list {
				if !p.ended {
					end(p, next)
				}
			}
			overdue, next = time.After(terminateTime), unix.SIGKILL
		}
	}
	return told, nil
}

// startAll starts the programs. After an error some may run.
func startAll(path string, argv []string, list []*child) error {
	confirm := make([]func() error, len(list))
	explain := func(err error) error {
		var own *exit
		if err == nil || errors.As(err, &own) {
			return err
		}
		return &exit{status: statusNotExecutable, err: fmt.Errorf("command %q cannot be executed: %w", argv[0], cause(err))}
	}
	for i, p := range list {
		var err error
		p.process, confirm[i], err = p.start(path, argv, &os.ProcAttr{
			Env: p.env, Files: p.files, Sys: &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL},
		})
		if err != nil {
			return explain(err)
		}
	}
	for i, p := range list {
		if confirm[i] == nil {
			continue
		}
		if err := confirm[i](); err != nil {
			p.process = nil
			return explain(err)
		}
	}
	return nil
}

// end ends a program that did not end by itself; with SIGKILL, which it cannot pass on, all that it started too.
func end(p *child, s unix.Signal) {
	if s == unix.SIGKILL {
		for _, pid := range proc.Descendants(p.process.Pid) {
			_ = unix.Kill(pid, s) // the only error is that it has ended
		}
	}
	_ = p.process.Signal(s)
}

// killAll ends those that were started already when one could not be.
func killAll(list []*child, ended func(*child)) {
	for _, p := range list {
		if p.process == nil {
			continue // it has not been started
		}
		_ = p.process.Kill()
		var ws unix.WaitStatus
		for {
			if _, err := unix.Wait4(p.process.Pid, &ws, 0, nil); err != unix.EINTR {
				break
			}
		}
		p.ended = true
		ended(p)
	}
}

// reap takes note of all children that have ended, and returns those of list: first who was killed, since others may
// have ended because of that.
func reap(list []*child) (ended []*child) {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid == 0 {
			slices.SortStableFunc(ended, func(a, b *child) int { return int(b.signal) - int(a.signal) })
			return ended
		}
		for _, p := range list {
			if p.process.Pid != pid || p.ended {
				continue
			}
			p.ended, p.status = true, ws.ExitStatus()
			if ws.Signaled() {
				p.signal, p.status = ws.Signal(), 128+int(ws.Signal())
			}
			ended = append(ended, p)
		}
	}
}

// forward passes s on, unless the terminal has sent it to the whole foreground process group and so to the programs too.
// A stop stops this process as well, so that a shell's job control sees it.
func forward(list []*child, s syscall.Signal) {
	byTerminal := s == unix.SIGINT || s == unix.SIGQUIT || s == unix.SIGTSTP || s == unix.SIGWINCH
	if !byTerminal || !foreground() {
		for _, p := range list {
			if !p.ended {
				_ = p.process.Signal(s) // the only error is that it has ended, which is seen next
			}
		}
	}
	if s == unix.SIGTSTP {
		_ = unix.Kill(unix.Getpid(), unix.SIGSTOP)
	}
}

// foreground reports whether the terminal's signals go to this process's group.
func foreground() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
