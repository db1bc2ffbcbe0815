// Package criu dumps trees of processes to files and restores them, by CRIU 4.1 or newer.
//
//	p, err := criu.Find()
//	streams, err := criu.Streams(pid)
//	err = p.Dump(ctx, criu.Dump{PID: pid, Dir: folder, External: criu.External(streams)})
//	process, err := p.Restore(ctx, criu.Restore{Dir: folder, Inherit: map[string]*os.File{streams[1].Key: stdout}})
//
// CRIU is started for each request (criu swrk) and asked over a socket, as its rpc.proto says. When ctx ends, a restore is
// killed, and what it had started is gone. A dump has ten seconds more to come to its end, since a program cannot be left in
// the middle of it; then it is interrupted, and after ten more CRIU is killed. Only then the program may be lost.
//
// An error of CRIU's is an *Error with the end of its log.
package criu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Errors of Find, Dump and Restore, wrapped in one that names the object.
var (
	ErrMissing  = errors.New("criu is not installed")
	ErrOld      = errors.New("criu is too old: lgpu needs 4.1 or newer")
	ErrRights   = errors.New("criu needs the rights of root")
	ErrHung     = errors.New("criu did not come to an end in time")
	ErrPIDTaken = errors.New("the number of a process is taken")
)

// Error is what CRIU said.
type Error struct {
	Action string // "dump", "restore" …
	Cause  string // the first error of its log, or what it answered
	Log    string // the last lines of its log
	errs   []error
}

// Error returns one line; Log has the rest.
func (e *Error) Error() string { return "criu " + e.Action + ": " + e.Cause }

// Unwrap returns ErrHung and the like, and the error number that CRIU named.
func (e *Error) Unwrap() []error { return e.errs }

// variable names a criu that PATH does not find, or another one than it does.
const variable = "LGPU_CRIU"

// Program is an installed CRIU. Its methods may be called by many goroutines at once.
type Program struct{ Path string }

// Find returns the CRIU that LGPU_CRIU names, or that is in PATH or a folder of root's programs. It may be too old.
func Find() (Program, error) {
	if named := os.Getenv(variable); named != "" {
		if _, err := exec.LookPath(named); err != nil {
			return Program{}, fmt.Errorf("%w: %s: %w", ErrMissing, variable, err)
		}
		return Program{named}, nil
	}
	if path, err := exec.LookPath("criu"); err == nil {
		return Program{path}, nil
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, "criu")); err == nil {
			return Program{path}, nil
		}
	}
	return Program{}, ErrMissing
}

// Installed returns the CRIU that Find finds, if this process can dump and restore by it.
func Installed(ctx context.Context) (Program, error) {
	if os.Geteuid() != 0 {
		return Program{}, ErrRights
	}
	p, err := Find()
	if err == nil {
		err = p.able(ctx)
	}
	return p, err
}

// Version asks for the version.
func (p Program) Version(ctx context.Context) (Version, error) {
	a, err := p.ask(ctx, "version", requestVersion, plain(), place{}, nil)
	return a.version, err
}

// Features asks what CRIU can do with this kernel. It needs the rights of root.
func (p Program) Features(ctx context.Context) (Features, error) {
	a, err := p.ask(ctx, "features", requestFeatures, plain(), place{}, nil)
	if err == nil {
		a.features.Sockets, err = p.sockets(ctx)
	}
	return a.features, err
}

// sockets says whether CRIU dumps sockets of the network with this kernel.
func (p Program) sockets(ctx context.Context) (bool, error) {
	v, err := p.Version(ctx)
	if err != nil || v.sockets() {
		return err == nil, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return true, nil // there are none
	}
	if err != nil {
		return false, fmt.Errorf("make a socket: %w", err)
	}
	defer unix.Close(fd)
	return credible(fd), nil
}

// credible says whether a socket answers if it takes the credentials of who sends to it, as CRIU before 4.2 asks every one.
func credible(fd int) bool {
	_, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED)
	return err == nil
}

// credibleOf says so of a socket of another process, and of one that has just been closed.
func credibleOf(pid, fd int) bool {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return true
	}
	defer unix.Close(process)
	its, err := unix.PidfdGetfd(process, fd, 0)
	if err != nil {
		return true
	}
	defer unix.Close(its)
	return credible(its)
}

// plain are options of a request that needs none.
func plain() message {
	var o message
	o.number(optImagesFD, -1)
	return o
}

// Check lets CRIU try what it needs of the kernel. The error is an *Error with what is missing.
func (p Program) Check(ctx context.Context) error {
	c := exec.CommandContext(ctx, p.Path, "check")
	contain(c)
	var said tail
	c.Stdout, c.Stderr = &said, &said
	if err := c.Run(); ctx.Err() != nil {
		return hung("check", ctx, &said)
	} else if err != nil {
		return &Error{Action: "check", Cause: firstError(said.String(), err.Error()), Log: said.String()}
	}
	return nil
}

// hung is the error of a request whose time has passed, or that was given up.
func hung(action string, ctx context.Context, said *tail) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &Error{Action: action, Cause: ErrHung.Error(), Log: said.String(), errs: []error{ErrHung, ctx.Err()}}
	}
	return &Error{Action: action, Cause: "given up: " + context.Cause(ctx).Error(), Log: said.String(), errs: []error{context.Cause(ctx)}}
}

// contain makes a command and all that it starts end together, and soon.
func contain(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return unix.Kill(-c.Process.Pid, unix.SIGKILL) }
	c.WaitDelay = time.Second // for pipes that somebody else has still open
}

// grace is how long CRIU has to end a dump by itself whose time has passed, and then to put the program right again. Tests
// have less patience.
var grace = 10 * time.Second

// giveUp returns when a dump has ended or cannot be saved. A CRIU that is interrupted while it puts its code into a program,
// or takes it out, leaves the program with registers and code that are not its own; so it has time to come to an end. Then it
// gets the signal of its own time limit: the call that it is in fails, and it gives up.
func giveUp(criu *os.Process, answered <-chan struct{}) {
	for _, signal := range []os.Signal{nil, unix.SIGALRM} {
		if signal != nil && criu.Signal(signal) != nil {
			return // it has ended
		}
		select {
		case <-answered:
			return
		case <-time.After(grace):
		}
	}
}

// tail keeps the end of what is written to it.
type tail struct{ b []byte }

const tailLength = 8 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.b = append(t.b, b...)
	if len(t.b) > 2*tailLength {
		t.b = append(t.b[:0], t.b[len(t.b)-tailLength:]...)
	}
	return len(b), nil
}

func (t *tail) String() string { return strings.TrimSpace(string(t.b[max(0, len(t.b)-tailLength):])) }

// maxAnswer bounds an answer; the longest ones have a few hundred bytes.
const maxAnswer = 64 << 10

// firstInherited is the number of the first of a command's extra files.
const firstInherited = 3

// ask starts CRIU in a place, sends it a request and returns its answer. Files become descriptors from firstInherited+1 on. hear
// is called with CRIU's notices, and may be nil.
func (p Program) ask(ctx context.Context, action string, kind int64, options message, at place, hear func(notice string) error,
	files ...*os.File) (answer, error) {
	own, its, err := connection(action)
	if err != nil {
		return answer{}, err
	}
	defer own.Close()
	command := []string{p.Path, "swrk", strconv.Itoa(firstInherited)}
	if kind == requestDump {
		command = slices.Concat(deaf, command)
	}
	c := exec.CommandContext(ctx, command[0], command[1:]...)
	contain(c)
	c.Env = environment()
	answered, kill := make(chan struct{}), c.Cancel
	c.Cancel = func() error {
		if kind == requestDump {
			giveUp(c.Process, answered)
		}
		return errors.Join(own.SetDeadline(time.Now()), kill())
	}
	var said tail
	c.Stderr = &said
	c.ExtraFiles = append([]*os.File{its}, files...)
	err = at.start(c)
	if err := errors.Join(err, its.Close()); err != nil {
		return answer{}, fmt.Errorf("criu %s: start %s: %w", action, p.Path, err)
	}
	if kind == requestDump {
		shelter(c.Process.Pid)
	}
	waited := make(chan error, 1)
	go func() {
		for errors.Is(unix.Waitid(unix.P_PID, c.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
		}
		_ = kill() // what it has left, if it was killed; its number is not given away before Wait
		waited <- c.Wait()
		noMore(own)
	}()
	a, heard, err := exchange(own, request(kind, options), hear)
	close(answered)
	_ = own.Close() // it waits for further requests until then
	return conclude(ctx, action, kind, a, heard, err, <-waited, &said)
}

// connection makes the two ends of a socket over which CRIU is asked.
func connection(action string) (own, its *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("criu %s: make a socket: %w", action, err)
	}
	if err := unix.SetNonblock(pair[0], true); err != nil { // so that reading can be interrupted
		return nil, nil, errors.Join(fmt.Errorf("criu %s: %w", action, err), unix.Close(pair[0]), unix.Close(pair[1]))
	}
	return os.NewFile(uintptr(pair[0]), "criu"), os.NewFile(uintptr(pair[1]), "criu's end"), nil
}

// conclude is the answer to a request, or its error: heard and err as exchange returns them, and how CRIU has ended.
func conclude(ctx context.Context, action string, kind int64, a answer, heard, err, ended error, said *tail) (answer, error) {
	switch {
	case heard != nil:
		return answer{}, heard
	case err != nil && ctx.Err() != nil:
		return answer{}, hung(action, ctx, said)
	case err != nil && ended != nil:
		err = fmt.Errorf("it ended without an answer: %w", ended)
		fallthrough
	case err != nil:
		return answer{}, &Error{Action: action, Cause: firstError(said.String(), err.Error()), Log: said.String()}
	case a.success && a.kind == kind:
		return a, nil
	}
	cause := a.message
	if cause == "" {
		cause = firstError(said.String(), "it failed and does not say why")
	}
	e := &Error{Action: action, Cause: cause, Log: said.String()}
	if a.errno > 0 {
		e.errs = []error{syscall.Errno(a.errno)}
	}
	return a, e
}

// noMore ends what goes over a socket; what has come can be read still. To close it would not do where others have its end open,
// too, such as what CRIU has started, which may outlive it.
func noMore(socket *os.File) {
	raw, err := socket.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) }) // it is closed, or is no use any more
	}
}

// exchange sends a request and reads the answer. heard is the error of hear, after which there is none.
func exchange(socket io.ReadWriter, request []byte, hear func(notice string) error) (a answer, heard, err error) {
	b := make([]byte, maxAnswer)
	for {
		if _, err := socket.Write(request); err != nil {
			return answer{}, heard, fmt.Errorf("ask: %w", err)
		}
		n, err := socket.Read(b)
		if err != nil || n == len(b) {
			return answer{}, heard, fmt.Errorf("read the answer: %w", errors.Join(err, io.ErrUnexpectedEOF))
		}
		a, err := parseAnswer(b[:n])
		if err != nil || a.kind != requestNotify || hear == nil {
			return a, heard, err
		}
		if heard == nil {
			heard = hear(a.notice)
		}
		request = noticed(heard == nil)
	}
}

// harmless is the beginning of an error that CRIU logs and goes on after: it has no right to open more files than others.
const harmless = "rlimit: "

// firstError is the first line of a log that is an error, without its time and place; otherwise, if there is none.
func firstError(log, otherwise string) string {
	for line := range strings.Lines(log) {
		_, text, found := strings.Cut(line, "Error (")
		if !found {
			continue
		}
		_, words, _ := strings.Cut(text, "): ")
		if words = strings.TrimSpace(words); words != "" && !strings.HasPrefix(words, harmless) {
			return words
		}
	}
	return otherwise
}

// logName is CRIU's log, in the folder of the images.
const logName = "criu.log"

// options are those that dump and restore have in common. CRIU opens the folder by its descriptor in this process.
func options(ctx context.Context, dir *os.File) message {
	var o message
	o.number(optImagesFD, int64(dir.Fd()))
	o.text(optLogFile, logName)
	o.number(optLogLevel, 2) // errors and warnings
	o.number(optCgroups, 0)  // lgpu has cgroups of its own for what it restores
	if deadline, ok := ctx.Deadline(); ok {
		o.number(optTimeout, int64(max(time.Until(deadline)/time.Second, 1))) // for what it waits for itself
	}
	return o
}

// logged adds CRIU's log to its error, and removes it.
func logged(err error, dir string) error {
	path := filepath.Join(dir, logName)
	var e *Error
	if errors.As(err, &e) {
		if text, read := os.ReadFile(path); read == nil {
			all := string(bytes.TrimSpace(text))
			if len(e.errs) == 0 || !errors.Is(err, ErrHung) && !errors.Is(err, context.Canceled) {
				e.Cause = firstError(all, e.Cause)
			}
			e.Log = all[max(0, len(all)-tailLength):]
		}
	}
	for _, name := range []string{logName, "stats-dump", "stats-restore"} {
		if gone := os.Remove(filepath.Join(dir, name)); gone != nil && !errors.Is(gone, fs.ErrNotExist) && err == nil {
			err = gone
		}
	}
	return err
}

// able says whether there is any use in asking.
func (p Program) able(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return ErrRights
	}
	v, err := p.Version(ctx)
	if err != nil {
		return err
	}
	if !v.Enough() {
		return fmt.Errorf("%w; %s is %v", ErrOld, p.Path, v)
	}
	return nil
}
