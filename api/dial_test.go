package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lgpu/lgpu/internal/rundir"
)

// The test binary becomes the daemon that Dial starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "daemon" {
		os.Exit(become(os.Args[2]))
	}
	os.Exit(m.Run())
}

// become is a daemon of some kind, until it is told to stop.
func become(kind string) int {
	answer := Readiness()
	dir := os.Getenv(EnvDir)
	switch kind {
	case "dumb":
		fmt.Fprintln(os.Stderr, "starting")
		fmt.Fprintln(os.Stderr, "no space left on the moon")
		return 1
	case "unable":
		answer(errors.New("the store is full"))
		return 1
	case "mute": // until nobody waits any more
		for {
			if _, err := os.Stat(dir); err != nil {
				return 1
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	f, err := os.OpenFile(filepath.Join(dir, "started"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintln(f, os.Getpid())
	}
	if err != nil {
		answer(err)
		return 1
	}
	os.Remove(filepath.Join(dir, Socket))
	l, err := net.Listen("unix", filepath.Join(dir, Socket))
	if err != nil {
		answer(err)
		return 1
	}
	time.AfterFunc(time.Minute, func() { os.Exit(1) }) // the test must have died
	answer(nil)
	serve(l, &fake{mayChange: kind == "obedient"})
	return 0
}

// fake is a daemon that only says who it is.
type fake struct {
	UnimplementedViewServer
	UnimplementedControlServer
	mayChange     bool
	administrator bool
	leaving       bool
	server        *grpc.Server
}

func serve(l net.Listener, f *fake) {
	f.server = grpc.NewServer()
	RegisterViewServer(f.server, f)
	RegisterControlServer(f.server, f)
	f.server.Serve(l)
}

func (f *fake) Info(context.Context, *InfoRequest) (*Info, error) {
	if f.leaving {
		s, err := status.New(codes.Unavailable, "leaving").WithDetails(&Failure{Errno: int32(syscall.ESHUTDOWN)})
		return nil, errors.Join(err, s.Err())
	}
	return &Info{MayChange: f.mayChange, Administrator: f.administrator, WhoMayChange: "nobody", Daemon: &Daemon{Pid: int32(os.Getpid())}}, nil
}

func (f *fake) Stop(context.Context, *StopRequest) (*StopReply, error) {
	go f.server.GracefulStop()
	return &StopReply{}, nil
}

func (f *fake) Read(context.Context, *ReadRequest) (*Files, error) {
	s, err := status.New(codes.NotFound, "/x: no such node").WithDetails(&Failure{Errno: int32(syscall.ENOENT), Subject: "/x", Hint: "make it"})
	if err != nil {
		return nil, err
	}
	return nil, s.Err()
}

// options are for a folder of its own and a daemon of some kind.
func options(t *testing.T, kind string) Options {
	t.Helper()
	t.Setenv(EnvSocket, "")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "api-") // short, for the socket's sake
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if c, err := Dial(context.Background(), Options{Dir: dir}); err == nil {
			c.Stop(context.Background(), &StopRequest{})
			c.Close()
		}
		os.RemoveAll(dir)
	})
	return Options{Dir: dir, Start: []string{self, "daemon", kind}}
}

// inProcess serves f in dir until the test ends.
func inProcess(t *testing.T, dir string, f *fake) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(dir, Socket))
	if err != nil {
		t.Fatal(err)
	}
	go serve(l, f)
	t.Cleanup(func() { l.Close() })
}

func TestManyDialsStartOneDaemon(t *testing.T) {
	o := options(t, "obedient")
	o.Change = true
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			c, err := Dial(t.Context(), o)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			if c.Socket != filepath.Join(o.Dir, Socket) || c.Daemon.GetPid() == int32(os.Getpid()) {
				t.Errorf("talks to %d at %s", c.Daemon.GetPid(), c.Socket)
			}
		})
	}
	wg.Wait()
	started, err := os.ReadFile(filepath.Join(o.Dir, "started"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(started), "\n"); n != 1 {
		t.Errorf("%d daemons were started: %s", n, started)
	}
}

func TestDialWithoutStarting(t *testing.T) {
	o := options(t, "obedient")
	o.Start = nil
	if _, err := Dial(t.Context(), o); !errors.Is(err, ErrNoDaemon) {
		t.Errorf("in an empty folder: %v", err)
	}
	socket := filepath.Join(o.Dir, Socket)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if _, err := Dial(t.Context(), o); !errors.Is(err, ErrNoDaemon) {
		t.Errorf("at the socket of a dead daemon: %v", err)
	}
	var e *Error
	if _, err := Dial(t.Context(), Options{Socket: socket}); !errors.Is(err, ErrNoDaemon) || !errors.As(err, &e) || e.Hint == "" {
		t.Errorf("with the socket named: %v", err)
	}
}

func TestDialSaysWhyADaemonDidNotStart(t *testing.T) {
	for kind, says := range map[string]string{"dumb": "its last words in .*: no space left on the moon", "unable": "the store is full"} {
		_, err := Dial(t.Context(), options(t, kind))
		before, after, _ := strings.Cut(says, ".*")
		if err == nil || !strings.Contains(err.Error(), before) || !strings.HasSuffix(err.Error(), after) {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func TestDialStopsWaiting(t *testing.T) {
	o := options(t, "mute")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Dial(ctx, o); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a daemon that never serves: %v", err)
	}
}

// A daemon that is stopped says nothing. The caller hears of it, and in the end why nothing came and what to do.
func TestDialSilentDaemon(t *testing.T) {
	answer, waiting := answerTime, waitingTime
	t.Cleanup(func() { answerTime, waitingTime = answer, waiting })
	answerTime, waitingTime = 500*time.Millisecond, time.Millisecond
	socket := filepath.Join(options(t, "").Dir, Socket)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	told := make(chan string, 1)
	_, err = Dial(t.Context(), Options{Socket: socket, Waiting: func(at string) { told <- at }})
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, syscall.ETIMEDOUT) || errors.Is(err, ErrNoDaemon) {
		t.Fatalf("%v", err)
	}
	pid := strconv.Itoa(os.Getpid())
	if !strings.Contains(e.Text, "process "+pid) || !strings.Contains(e.Hint, "kill -CONT "+pid) {
		t.Errorf("%q, hint %q", e.Text, e.Hint)
	}
	if at := <-told; at != socket {
		t.Errorf("waits for %s", at)
	}
}

// A daemon of the system goes before the user's own: nobody gets past the administrator, also not to her own daemon that
// runs already, and a refusal is one. Only who needs nothing of the machine has her own daemon.
func TestTheSystemsDaemonGoesFirst(t *testing.T) {
	own, system := options(t, "").Dir, options(t, "").Dir
	inProcess(t, own, &fake{mayChange: true})
	socket := filepath.Join(system, Socket)
	c, err := dial(t.Context(), own, socket, Options{Change: true})
	if err != nil || c.Socket != filepath.Join(own, Socket) {
		t.Fatalf("without a system's daemon: %v, %v", c, err)
	}
	c.Close()
	refuses := &fake{}
	inProcess(t, system, refuses)
	if c, err := dial(t.Context(), own, socket, Options{}); err != nil || c.Socket != socket {
		t.Errorf("to look: %v, %v", c, err)
	}
	var e *Error
	_, err = dial(t.Context(), own, socket, Options{Change: true})
	if !errors.As(err, &e) || !errors.Is(err, fs.ErrPermission) || e.Subject != socket {
		t.Errorf("refused: %v", err)
	}
	if c, err := dial(t.Context(), own, socket, Options{Change: true, Private: true}); err != nil || c.Socket != filepath.Join(own, Socket) {
		t.Errorf("refused what is private: %v, %v", c, err)
	}
	refuses.mayChange = true
	if c, err := dial(t.Context(), own, socket, Options{Change: true, Private: true}); err != nil || c.Socket != filepath.Join(own, Socket) {
		t.Errorf("private, for who is no administrator: %v, %v", c, err)
	}
	refuses.administrator = true
	if c, err := dial(t.Context(), own, socket, Options{Change: true, Private: true}); err != nil || c.Socket != socket {
		t.Errorf("private, for an administrator: %v, %v", c, err)
	}
}

// Where the system's daemon is away users wait for it, and are refused in the end. Who starts nothing of her own does not
// wait, nor who needs nothing of the machine.
func TestTheSystemsDaemonIsAway(t *testing.T) {
	away, wait := awayTime, waitingTime
	t.Cleanup(func() { awayTime, waitingTime = away, wait })
	awayTime, waitingTime = 200*time.Millisecond, time.Millisecond
	o := options(t, "obedient")
	own, system := o.Dir, options(t, "").Dir
	socket := filepath.Join(system, Socket)
	o.Change = true
	if err := rundir.Reserve(system); err != nil {
		t.Fatal(err)
	}
	var e *Error
	_, err := dial(t.Context(), own, socket, o)
	if !errors.As(err, &e) || errors.Is(err, ErrNoDaemon) || !strings.Contains(e.Text, "away") || e.Hint == "" || e.Subject != socket {
		t.Fatalf("while it is away: %v", err)
	}
	if _, err := os.Stat(filepath.Join(own, "started")); err == nil {
		t.Error("a daemon was started in its place")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	impatient := o
	impatient.Waiting = func(string) { cancel() }
	if _, err := dial(ctx, own, socket, impatient); !errors.Is(err, context.Canceled) {
		t.Errorf("who does not want to wait: %v", err)
	}
	if _, err := dial(t.Context(), own, socket, Options{}); !errors.Is(err, ErrNoDaemon) {
		t.Errorf("to look: %v", err)
	}
	private := o
	private.Private = true
	c, err := dial(t.Context(), own, socket, private)
	if err != nil || c.Socket != filepath.Join(own, Socket) {
		t.Fatalf("what is private: %v, %v", c, err)
	}
	c.Close()
	if _, err := dial(t.Context(), own, socket, o); !errors.As(err, &e) || !strings.Contains(e.Text, "away") {
		t.Errorf("beside a daemon of her own that runs: %v", err)
	}
	awayTime = time.Minute
	told, done := make(chan string, 1), make(chan error, 1)
	o.Waiting = func(at string) {
		select {
		case told <- at:
		default:
		}
	}
	go func() {
		c, err := dial(t.Context(), own, socket, o)
		if err == nil {
			err = c.Close()
			if c.Socket != socket {
				err = errors.Join(err, errors.New("it is "+c.Socket))
			}
		}
		done <- err
	}()
	if at := <-told; at != socket {
		t.Errorf("waits for %s", at)
	}
	inProcess(t, system, &fake{mayChange: true}) // it comes back
	if err := <-done; err != nil {
		t.Errorf("when it is back: %v", err)
	}
}

func TestDialSaysWhoRefuses(t *testing.T) {
	o := options(t, "")
	inProcess(t, o.Dir, &fake{})
	c, err := Dial(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	o.Change = true
	var e *Error
	if _, err := Dial(t.Context(), o); !errors.Is(err, fs.ErrPermission) || !errors.As(err, &e) || !strings.HasSuffix(e.Hint, "it obeys nobody") {
		t.Errorf("to change something: %v", err)
	}
}

func TestALeavingDaemonIsNone(t *testing.T) {
	o := options(t, "")
	o.Start = nil
	inProcess(t, o.Dir, &fake{leaving: true})
	if _, err := Dial(t.Context(), o); !errors.Is(err, ErrNoDaemon) {
		t.Errorf("%v", err)
	}
}

// picky is a listener that closes the first connections.
type picky struct {
	net.Listener
	closes int
}

func (p *picky) Accept() (net.Conn, error) {
	c, err := p.Listener.Accept()
	for ; err == nil && p.closes > 0; p.closes-- {
		c.Close()
		c, err = p.Listener.Accept()
	}
	return c, err
}

// A daemon that closes a connection is asked again, and is not said to be away.
func TestClosedConnections(t *testing.T) {
	o := options(t, "")
	o.Start = nil
	for _, closes := range []int{5, 1 << 30} {
		socket := filepath.Join(o.Dir, fmt.Sprint(closes))
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go serve(&picky{l, closes}, &fake{})
		if closes > 5 {
			defer func(was time.Duration) { answerTime = was }(answerTime)
			answerTime = 100 * time.Millisecond
		}
		c, err := Dial(t.Context(), Options{Socket: socket})
		if closes == 5 {
			if err != nil {
				t.Errorf("one that closes a few: %v", err)
				continue
			}
			c.Close()
			continue
		}
		if !errors.Is(err, syscall.EUSERS) || errors.Is(err, ErrNoDaemon) || !strings.Contains(err.Error(), "as many as one may") {
			t.Errorf("one that closes all: %v", err)
		}
	}
}

func TestErrors(t *testing.T) {
	o := options(t, "")
	inProcess(t, o.Dir, &fake{})
	c, err := Dial(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Read(t.Context(), &ReadRequest{Path: "/x"})
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, fs.ErrNotExist) || e.Error() != "/x: no such node" || e.Subject != "/x" || e.Hint != "make it" {
		t.Errorf("a refused read: %#v", err)
	}
	if _, err := c.Snapshot(t.Context(), &SnapshotRequest{}); !errors.Is(err, ErrOldDaemon) || !errors.As(err, &e) || e.Hint == "" {
		t.Errorf("a call that the daemon does not have: %#v", err)
	}
	events, err := c.Events(t.Context(), &EventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := events.Recv(); !errors.Is(err, ErrOldDaemon) {
		t.Errorf("a stream that the daemon does not have: %#v", err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Info(canceled, &InfoRequest{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a call that was given up: %#v", err)
	}
}
