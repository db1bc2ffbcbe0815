package foreign

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/daemon/foreign/foreigntest"
)

const patience = 30 * time.Second // after which a test gives up

// signalled is a closer of which the end can be awaited.
type signalled struct {
	io.Closer
	done chan struct{}
}

func (s signalled) Close() error {
	defer close(s.done)
	return s.Closer.Close()
}

func await(t *testing.T, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s does not come to its end", what)
	}
}

// TestLinger: a socket that lingers for an hour is closed at once, wherever its last copy is.
func TestLinger(t *testing.T) {
	var c Closers
	done := make(chan struct{})
	c.Close(1, signalled{File(foreigntest.Lingering(t)), done})
	await(t, done, "the close of a socket that lingers")

	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		fd := foreigntest.Lingering(t)
		if err := unix.Sendmsg(pair[0], []byte{1}, unix.UnixRights(fd), nil, 0); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		c.Close(2, signalled{File(fd), done}) // not the last copy
		await(t, done, "the close of a copy")
	}
	unix.Close(pair[0])
	done = make(chan struct{})
	c.Close(3, signalled{File(pair[1]), done})
	await(t, done, "the close of a connection with sockets that linger")
}

// stuck is a descriptor of which the close waits until the test lets it.
type stuck struct {
	closing *atomic.Int32
	free    chan struct{}
}

func (s stuck) Close() error {
	s.closing.Add(1)
	<-s.free
	return nil
}

// TestStuck: descriptors that cannot be closed hold a bounded number of threads, and one user's keep no other's from
// being closed.
func TestStuck(t *testing.T) {
	var c Closers
	var closing atomic.Int32
	free := make(chan struct{})
	for range MaxClosingUser {
		c.Close(1, stuck{&closing, free})
	}
	for range MaxClosersUser { // in the place of those that are being closed
		c.Close(1, stuck{&closing, free})
	}
	full := make(chan struct{})
	go func() {
		defer close(full)
		c.Close(1, stuck{&closing, free})
	}()
	for range 3 * MaxClosingUser {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		done := make(chan struct{})
		c.Close(2, signalled{w, done})
		await(t, done, "the close of another user's")
	}
	if n := closing.Load(); n != MaxClosersUser {
		t.Errorf("%d of one user's are being closed at once, want %d", n, MaxClosersUser)
	}
	select {
	case <-full:
		t.Errorf("more than %d of one user's wait", MaxClosingUser)
	default:
	}
	close(free)
	await(t, full, "who waits for room")
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		c.mu.Lock()
		idle := len(c.queues) == 0 && c.running == 0 && c.waiting == 0 && len(c.order) == 0
		c.mu.Unlock()
		if idle {
			return
		}
	}
	t.Errorf("something is left: %+v", &c)
}

// door listens with the kernel's help or without it.
func door(t *testing.T, network string, rights, kernel bool) *Listener {
	t.Helper()
	l, err := Listen(network, filepath.Join(t.TempDir(), "s"), rights || !kernel, &Closers{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func dial(t *testing.T, l *Listener) (*net.UnixConn, *Conn) {
	t.Helper()
	there, err := net.DialUnix(l.Addr().Network(), nil, l.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	here, err := l.AcceptConn()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { there.Close(); here.Close() })
	if here.UID != uint32(os.Getuid()) || int(here.PID) != os.Getpid() {
		t.Errorf("a connection of user %d, process %d", here.UID, here.PID)
	}
	return there, here
}

// TestStreamRefusesRights: descriptors end a stream, and what was before them arrives.
func TestStreamRefusesRights(t *testing.T) {
	there, here := dial(t, door(t, "unix", false, false))
	there.Write([]byte("before"))
	if _, _, err := there.WriteMsgUnix([]byte("with"), unix.UnixRights(0), nil); err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 100)
	n, err := here.Read(data)
	if err == nil && string(data[:n]) == "before" {
		_, err = here.Read(data)
	}
	if !errors.Is(err, ErrRights) {
		t.Errorf("read %q, %v", data[:n], err)
	}
	there, here = dial(t, door(t, "unix", false, false))
	there.Write([]byte("all"))
	there.Close()
	if all, err := io.ReadAll(here); string(all) != "all" || err != nil {
		t.Errorf("%q, %v", all, err)
	}
}

// TestKernelRefusesRights: where the kernel can, it refuses descriptors at the sender, until they are let in.
func TestKernelRefusesRights(t *testing.T) {
	for _, network := range []string{"unix", "unixpacket"} {
		l := door(t, network, false, true)
		if !l.refuses.Load() {
			t.Skip("this kernel lets nobody refuse descriptors: it is older than 6.16")
		}
		there, closed := dial(t, l)
		if _, _, err := there.WriteMsgUnix([]byte{1}, unix.UnixRights(0), nil); !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: %v", network, err)
		}
		// What nothing foreign can be in is closed at once, though all closers are busy.
		l.closers.waiting = MaxClosing
		closed.Close()
		l.closers.waiting = 0
		if _, err := there.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("%s: after the end: %v", network, err)
		}
		l.SetRights(true)
		there, here := dial(t, l)
		if _, _, err := there.WriteMsgUnix([]byte{1}, unix.UnixRights(0), nil); err != nil {
			t.Errorf("%s: %v", network, err)
		}
		if network == "unixpacket" {
			if _, rights, err := here.Peek(make([]byte, 1)); !rights || err != nil {
				t.Errorf("%v, %v", rights, err)
			}
		}
	}
}

// TestPackets: what is with a packet is known before it is taken.
func TestPackets(t *testing.T) {
	l := door(t, "unixpacket", true, true)
	there, here := dial(t, l)
	data := make([]byte, 100)
	for _, rights := range [][]int{nil, {0}, nil, make([]int, maxRights)} {
		var control []byte
		if rights != nil {
			control = unix.UnixRights(rights...)
		}
		if _, _, err := there.WriteMsgUnix([]byte("text"), control, nil); err != nil {
			t.Fatal(err)
		}
		n, has, err := here.Peek(data)
		if n != 4 || has != (rights != nil) || err != nil {
			t.Errorf("%d descriptors: %d, %v, %v", len(rights), n, has, err)
		}
		p, err := here.Receive(data, has)
		if p.Size != 4 || len(p.Files) != len(rights) || p.Sender != os.Getpid() || err != nil {
			t.Errorf("%d descriptors: %+v, %v", len(rights), p, err)
		}
		for _, fd := range p.Files {
			unix.Close(fd)
		}
	}
	here.End()
	if n, has, err := here.Peek(data); n != 0 || has || err == nil && n != 0 {
		t.Errorf("after the end: %d, %v, %v", n, has, err)
	}
	here.Close()
	if err := here.Control(func(int) {}); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
