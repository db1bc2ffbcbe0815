package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
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

// runProgram runs the program at path until it ends, passing signals on, and returns what a shell would as its status.
// The program shares this process's terminal, process group and standard files. It is killed if this process is. What
// it leaves behind when it forks into the background becomes this process's child, so that descent says whose it is.
func runProgram(path string, argv, env []string) (status int, err error) {
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
		return 0, failed(fmt.Errorf("become the parent of what the program leaves behind: %w", err))
	}
	program, err := os.StartProcess(path, argv, &os.ProcAttr{
		Env: env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL},
	})
	if err != nil {
		err = fmt.Errorf("command %q cannot be executed: %w", argv[0], cause(err))
		return 0, &exit{status: statusNotExecutable, err: err}
	}
	for {
		select {
		case s := <-signals:
			forward(program, s.(syscall.Signal))
		case <-children:
			if status, ended := reap(program.Pid); ended {
				return status, nil
			}
		}
	}
}

// reap takes note of all children that have ended, and returns how the one with a pid did, as a shell would.
func reap(pid int) (status int, ended bool) {
	for {
		var ws unix.WaitStatus
		child, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
		switch {
		case err == unix.EINTR:
		case err != nil || child == 0:
			return status, ended
		case child == pid && ws.Signaled():
			status, ended = 128+int(ws.Signal()), true
		case child == pid:
			status, ended = ws.ExitStatus(), true
		}
	}
}

// forward passes s on, unless the terminal has sent it to the whole foreground process group and so to the program too.
// A stop stops this process as well, so that a shell's job control sees it.
func forward(program *os.Process, s syscall.Signal) {
	byTerminal := s == unix.SIGINT || s == unix.SIGQUIT || s == unix.SIGTSTP || s == unix.SIGWINCH
	if !byTerminal || !foreground() {
		// The only error is that the program has ended, which Wait reports.
		_ = program.Signal(s)
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
