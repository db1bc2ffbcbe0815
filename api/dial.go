package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/lgpu/lgpu/internal/rundir"
	"github.com/lgpu/lgpu/internal/users"
)

// Options say which daemon to talk to.
type Options struct {
	// Socket of the daemon; only this one is tried. The default is $LGPU_SOCKET_API, else the system's wherever a system
	// daemon runs, and else that of the runtime folder: nobody gets past the administrator by a daemon of her own. A
	// runtime folder that is named by Dir or $LGPU_RUNTIME_DIR stands alone.
	Socket string
	// Dir is the runtime folder; the default is rundir.Dir.
	Dir string
	// Change says that the caller means to use Control: a daemon that would refuse it is passed over.
	Change bool
	// Private says that the caller needs nothing of the machine, such as its devices: who is no administrator uses a daemon
	// of her own then, also where a system daemon runs.
	Private bool
	// Start is the command that becomes a daemon of the runtime folder where none answers; nil is never. It is run with
	// EnvDir and EnvReady, and is to leave by itself. Where the machine's devices are reserved for a system daemon that is
	// away (rundir.Reserve), it is waited for, and then nothing is started.
	Start []string
	// Waiting, where set, is called once for each daemon that has not answered after a second.
	Waiting func(socket string)
}

// How long a daemon may take to say who it is, and after what time the caller is told that it has not. Tests shorten
// them.
var (
	answerTime  = 10 * time.Second
	waitingTime = time.Second
)

// awayTime is how long the system's daemon is waited for while it is away, such as for a restart; tests shorten it.
var awayTime = 5 * time.Second

// awayRetry is how often it is looked for meanwhile.
const awayRetry = 20 * time.Millisecond

// Dial returns a connection to a daemon that answers. An error wraps ErrNoDaemon if there is none and none was to be
// started; fs.ErrPermission if there is only one that the caller may not use as it means to.
func Dial(ctx context.Context, o Options) (*Conn, error) {
	if o.Socket == "" {
		o.Socket = os.Getenv(EnvSocket)
	}
	if o.Socket != "" {
		c, err := connect(ctx, o.Socket, o)
		if errors.Is(err, ErrNoDaemon) {
			return nil, &Error{Text: err.Error(), Errno: syscall.ENOENT, kind: ErrNoDaemon,
				Hint: "start one with: lgpu daemon; or leave out --socket and " + EnvSocket}
		}
		return c, err
	}
	alone := o.Dir != "" || os.Getenv(EnvDir) != ""
	dir := o.Dir
	if dir == "" {
		var err error
		if dir, err = rundir.Dir(); err != nil {
			return nil, err
		}
	}
	system := System
	if alone {
		system = ""
	}
	return dial(ctx, dir, system, o)
}

// dial is Dial for a runtime folder, and for the socket of a system's daemon, which goes first; empty is none.
func dial(ctx context.Context, dir, system string, o Options) (*Conn, error) {
	own := filepath.Join(dir, Socket)
	if system != "" && own != system {
		find := connect
		if !o.Private {
			find = await
		}
		c, err := find(ctx, system, o)
		private := o.Private && (errors.Is(err, fs.ErrPermission) || err == nil && !c.Administrator)
		if !errors.Is(err, ErrNoDaemon) && !private {
			return c, err
		}
		if err == nil {
			c.Close()
		}
	}
	find := connect
	if own == system {
		find = await
	}
	c, err := find(ctx, own, o)
	if err == nil || !errors.Is(err, ErrNoDaemon) {
		return c, err
	}
	if o.Start == nil {
		return nil, err
	}
	return start(ctx, dir, o)
}

// await is connect to the system's daemon at socket for somebody who would start one of her own if there were none: while
// it is away she waits, and then hears why she may not.
func await(ctx context.Context, socket string, o Options) (*Conn, error) {
	c, err := connect(ctx, socket, o)
	waiting := o.Waiting
	for began := time.Now(); errors.Is(err, ErrNoDaemon) && o.Start != nil && rundir.Reserved(filepath.Dir(socket)); {
		passed := time.Since(began)
		if passed > awayTime {
			return nil, &Error{Errno: syscall.EAGAIN, Subject: socket,
				Text: fmt.Sprintf("the system's daemon, which manages this machine's devices, is away: nothing has answered at %s for %v",
					socket, awayTime),
				Hint: "it is started by: systemctl start lgpud; for daemons of their own users need an administrator's: lgpu daemon stop"}
		}
		if passed > waitingTime && waiting != nil {
			waiting(socket)
			waiting = nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(awayRetry):
		}
		c, err = connect(ctx, socket, o)
	}
	return c, err
}

// connect connects to the daemon at socket and hears what it says of itself. A daemon closes a connection that is one too
// many of its user, as may be for a moment when she starts many commands at once: then it is tried again.
func connect(ctx context.Context, socket string, o Options) (*Conn, error) {
	bounded, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if o.Waiting != nil {
		slow := time.AfterFunc(waitingTime, func() { o.Waiting(socket) })
		defer slow.Stop()
	}
	for wait := closedRetry; ; wait = min(2*wait, mostRetry) {
		c, err := connectOnce(ctx, bounded, socket, o)
		if !errors.Is(err, errClosed) {
			return c, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-bounded.Done():
			return nil, &Error{Errno: syscall.EUSERS, Subject: socket,
				Text: fmt.Sprintf("daemon at %s closes every connection: user %s has as many as one may have", socket,
					users.Name(uint32(os.Getuid()))),
				Hint: "end some of her commands that talk to it"}
		case <-time.After(wait/2 + rand.N(wait)): // not all who wait at once
		}
	}
}

// errClosed: the daemon has closed a connection and said nothing.
var errClosed = errors.New("the daemon has closed the connection")

// How long after that the daemon is asked again, on average: at first, and in the end.
const (
	closedRetry = 20 * time.Millisecond
	mostRetry   = 640 * time.Millisecond
)

// connectOnce is connect without the retries. The daemon is to answer before bounded ends, which ends with ctx.
func connectOnce(ctx, bounded context.Context, socket string, o Options) (*Conn, error) {
	// The system's own error says better than grpc's what is wrong with a socket.
	var d net.Dialer
	probe, err := d.DialContext(bounded, "unix", socket)
	switch {
	case bounded.Err() != nil && ctx.Err() == nil:
		return nil, noAnswer(socket, 0)
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w at %s", ErrNoDaemon, socket)
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("daemon at %s: %w", socket, context.Cause(ctx))
	case err != nil:
		var errno syscall.Errno
		errors.As(err, &errno)
		return nil, &Error{Errno: errno, Text: fmt.Sprintf("daemon at %s: %v", socket, cause(err)), Subject: socket}
	}
	pid := listener(probe)
	probe.Close()
	cc, err := grpc.NewClient("passthrough:///"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}),
		grpc.WithAuthority("lgpu"),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessage), grpc.MaxCallSendMsgSize(MaxMessage)),
		grpc.WithUnaryInterceptor(unaryErrors),
		grpc.WithStreamInterceptor(streamErrors),
		grpc.WithDisableServiceConfig())
	if err != nil {
		return nil, fmt.Errorf("daemon at %s: %w", socket, err)
	}
	c := &Conn{ViewClient: NewViewClient(cc), ControlClient: NewControlClient(cc), Socket: socket, grpc: cc}
	info, err := c.Info(bounded, &InfoRequest{})
	switch {
	case err == nil:
	case errors.Is(err, ErrGone) && errors.Is(err, syscall.ESHUTDOWN):
		err = fmt.Errorf("%w at %s", ErrNoDaemon, socket) // it is just leaving
	case errors.Is(err, ErrGone):
		err = errClosed
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		err = noAnswer(socket, pid)
	default:
		err = fmt.Errorf("daemon at %s: %w", socket, err)
	}
	if err == nil && o.Change && !info.GetMayChange() {
		err = &Error{Errno: syscall.EPERM, Subject: socket,
			Text: fmt.Sprintf("daemon at %s: user %s has no directory there, and may run and change nothing", socket,
				users.Name(uint32(os.Getuid()))),
			Hint: "ask for a directory (lgpu create, lgpu chown): it obeys " + info.GetWhoMayChange()}
	}
	if err != nil {
		cc.Close()
		return nil, err
	}
	c.Daemon, c.Place, c.Administrator = info.GetDaemon(), info.GetPlace(), info.GetAdministrator()
	return c, nil
}

// noAnswer is the error of a daemon that is there and does not answer.
func noAnswer(socket string, pid int) error {
	e := &Error{Errno: syscall.ETIMEDOUT, Subject: socket,
		Text: fmt.Sprintf("daemon at %s has not answered for %v", socket, answerTime)}
	if pid > 0 {
		e.Text = fmt.Sprintf("daemon at %s (process %d) has not answered for %v", socket, pid, answerTime)
		e.Hint = fmt.Sprintf("if it was stopped, kill -CONT %d lets it go on; kill -KILL %[1]d ends it, and programs go on", pid)
	}
	return e
}

// listener is the process that listens at the other end of a connection, 0 where it cannot be seen.
func listener(c net.Conn) int {
	socket, ok := c.(*net.UnixConn)
	if !ok {
		return 0
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) { // it fails for sockets that are closed
		if peer, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			pid = int(peer.Pid)
		}
	})
	return pid
}

// cause strips what package net puts around a system error.
func cause(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}
