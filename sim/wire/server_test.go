package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// echo is a driver of a few calls: enough to see what arrives and what goes back. Any other call is a nil method.
type echo struct {
	Driver
	peer    Peer
	closed  chan struct{}
	entered chan struct{}
	exits   atomic.Int32
}

func (e *echo) MemGetInfo(c *Call) (free, total uint64, r CUresult) {
	return uint64(c.Context), c.Thread, CUDA_SUCCESS
}

// Memcpy turns bytes over, through the caller's memory.
func (e *echo) Memcpy(c *Call, dst, src CUdeviceptr, n uint64, kind uint32, s CUstream, async uint32) CUresult {
	p := make([]byte, n)
	if c.ReadHost(HostAddr(src), p) != nil {
		return CUDA_ERROR_UNKNOWN
	}
	for i := range p {
		p[i] ^= 0xff
	}
	if c.WriteHost(HostAddr(dst), p) != nil {
		return CUDA_ERROR_UNKNOWN
	}
	return CUDA_SUCCESS
}

// CtxSynchronize waits for the end of the program.
func (e *echo) CtxSynchronize(c *Call) CUresult {
	close(e.entered)
	<-c.Gone()
	return CUDA_SUCCESS
}

// printed is pieces of 2.5 MiB in all.
func printed() []byte {
	var pieces []byte
	for i := range 2500 {
		pieces = append(pieces, make([]byte, 4)...)
		pieces = binary.LittleEndian.AppendUint32(pieces, uint32(1000+i%8))
		pieces = append(pieces, make([]byte, 8+1000+8)...)
		if i%8 == 0 {
			pieces = pieces[:len(pieces)-8]
		}
	}
	return pieces
}

// EventSynchronize prints.
func (e *echo) EventSynchronize(c *Call, _ CUevent) CUresult {
	if c.Print(printed()) != nil {
		return CUDA_ERROR_UNKNOWN
	}
	return CUDA_SUCCESS
}

// LinkImage gives size bytes.
func (e *echo) LinkImage(c *Call, state CUlinkState, size uint64) ([]byte, CUresult) {
	return bytes.Repeat([]byte{7}, int(size)), CUDA_SUCCESS
}

// MemPoolSetAccess counts.
func (e *echo) MemPoolSetAccess(c *Call, pool CUmemoryPool, d []CUmemAccessDesc) CUresult {
	return CUresult(len(d))
}

func (e *echo) ThreadExit(uint64) { e.exits.Add(1) }
func (e *echo) Close()            { close(e.closed) }

// fakeMemory is a program's memory that begins at address 0x1000.
type fakeMemory []byte

func (m fakeMemory) read(addr HostAddr, p []byte) error { copy(p, m[addr-0x1000:]); return nil }
func (m fakeMemory) print([]byte) error                 { return nil }

func (m fakeMemory) write(addr HostAddr, p []byte) error { copy(m[addr-0x1000:], p); return nil }

// screen is what a program has printed, part by part.
type screen struct {
	fakeMemory
	parts [][]byte
}

func (s *screen) print(p []byte) error {
	s.parts = append(s.parts, bytes.Clone(p))
	return nil
}

type fixture struct {
	path    string
	drivers chan *echo
	tenants atomic.Int32
	turns   recorder
}

func serve(t *testing.T) *fixture {
	t.Helper()
	dir, err := os.MkdirTemp("", "lgpu-wire")
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{path: filepath.Join(dir, "s"), drivers: make(chan *echo, 16)}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: f.path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, l, Handler{
			NewDriver: func(p Peer) (Driver, error) {
				e := &echo{peer: p, closed: make(chan struct{}), entered: make(chan struct{})}
				f.drivers <- e
				return e, nil
			},
			Management: &f.turns,
			Tenants:    func(n int) { f.tenants.Store(int32(n)) },
		})
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("serve: %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("the server does not end")
		}
		if n := f.tenants.Load(); n != 0 {
			t.Errorf("%d tenants at the end", n)
		}
		os.RemoveAll(dir)
	})
	return f
}

// program connects a process with one calling thread.
func (f *fixture) program(t *testing.T) (service, thread *clientConn, driver *echo, token [16]byte) {
	t.Helper()
	service, token, err := dial(f.path, kindService, [16]byte{}, 0, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	thread, _, err = dial(f.path, kindThread, token, 42, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return service, thread, <-f.drivers, token
}

func payload(words ...uint64) []byte {
	var p []byte
	for _, w := range append([]uint64{0x77, 0}, words...) {
		p = binary.LittleEndian.AppendUint64(p, w)
	}
	return p
}

func await(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s does not happen", what)
	}
}

func TestCall(t *testing.T) {
	f := serve(t)
	service, thread, driver, _ := f.program(t)
	defer service.close()
	if driver.peer.PID != os.Getpid() {
		t.Errorf("peer %d, want %d", driver.peer.PID, os.Getpid())
	}
	r, d, err := thread.call(opOf("MemGetInfo"), payload())
	if free, total := d.u64(), d.u64(); err != nil || r != CUDA_SUCCESS || free != 0x77 || total != 42 {
		t.Errorf("context %#x, thread %d, %v, %v", free, total, r, err)
	}
	// More than the bulk area holds, both ways, and often enough to go round the rings.
	memory := make(fakeMemory, 5<<20)
	for i := range memory {
		memory[i] = byte(i * 7)
	}
	before := append([]byte(nil), memory...)
	thread.memory = memory
	const n = 5<<19 + 12345
	for range 2 {
		if r, _, err := thread.call(opOf("Memcpy"), payload(0x1000, 0x1000, n, 0, 0, 0)); r != CUDA_SUCCESS || err != nil {
			t.Fatal(r, err)
		}
	}
	if !bytes.Equal(memory, before) {
		t.Error("memory turned over twice is not as before")
	}
	for range 3000 {
		if r, _, err := thread.call(opOf("MemGetInfo"), payload()); r != CUDA_SUCCESS || err != nil {
			t.Fatal(r, err)
		}
	}
	// Text goes in parts of whole pieces.
	out := &screen{}
	thread.memory = out
	if r, _, err := thread.call(opOf("EventSynchronize"), payload(1)); r != CUDA_SUCCESS || err != nil {
		t.Fatal(r, err)
	}
	if !bytes.Equal(bytes.Join(out.parts, nil), printed()) || len(out.parts) < 3 {
		t.Errorf("%d parts are not what was printed", len(out.parts))
	}
	thread.memory = memory
	// An array that stays in the program's memory, and a result that goes there.
	if r, _, err := thread.call(opOf("MemPoolSetAccess"), payload(1, 1200|remote, 0x1000)); r != 100 || err != nil {
		t.Errorf("an array of 100: %v, %v", r, err)
	}
	_, d, err = thread.call(opOf("LinkImage"), payload(1, 0x1000, 1<<20))
	if n := d.u64(); err != nil || n != 1<<20|remote || memory[1<<20-1] != 7 || memory[1<<20] != before[1<<20] {
		t.Errorf("an image: %#x, %v", n, err)
	}
	if err := thread.close(); err != nil {
		t.Error(err)
	}
}

func TestProgramEnds(t *testing.T) {
	f := serve(t)
	service, thread, driver, _ := f.program(t)
	waiting := make(chan error, 1)
	go func() {
		_, _, err := thread.call(opOf("CtxSynchronize"), payload())
		waiting <- err
	}()
	await(t, "the call", driver.entered)
	service.conn.Close()
	await(t, "the end of the driver", driver.closed)
	if err := <-waiting; err == nil {
		t.Error("the call of a dead program got an answer")
	}
	if n := driver.exits.Load(); n != 1 {
		t.Errorf("%d threads ended, want 1", n)
	}
}

func TestHost(t *testing.T) {
	f := serve(t)
	service, _, driver, _ := f.program(t)
	memory := fakeMemory("hello, hardware")
	type invoked struct{ fn, kind, a, b, c uint64 }
	calls := make(chan invoked, 1)
	var mu sync.Mutex // the race detector does not see what goes through shared memory
	go func() {       // the service thread
		for {
			op, p, err := service.next()
			if err != nil {
				return
			}
			d := &decoder{b: p}
			mu.Lock()
			switch op {
			case opFetch:
				memory.read(HostAddr(d.u64()), service.mem[bulkStart:bulkStart+d.u64()])
			case opStore:
				memory.write(HostAddr(d.u64()), service.mem[bulkStart:bulkStart+d.u64()])
			case opInvoke:
				calls <- invoked{d.u64(), d.u64(), d.u64(), d.u64(), d.u64()}
			}
			mu.Unlock()
			service.publish(opDone, nil)
		}
	}()
	host := driver.peer.Host
	p := make([]byte, 5)
	if err := host.ReadHost(0x1000, p); err != nil || string(p) != "hello" {
		t.Errorf("read %q, %v", p, err)
	}
	err := host.WriteHost(0x1007, []byte("software"))
	mu.Lock()
	if err != nil || string(memory) != "hello, software" {
		t.Errorf("wrote %q, %v", memory, err)
	}
	mu.Unlock()
	if err := host.Invoke(StreamCallback, 1, 2, 3, 4); err != nil {
		t.Error(err)
	}
	if got := <-calls; got != (invoked{1, uint64(StreamCallback), 2, 3, 4}) {
		t.Errorf("invoked %+v", got)
	}
	service.conn.Close()
	await(t, "the end of the driver", driver.closed)
	if err := host.Invoke(HostFunction, 1, 0, 0, 0); !errors.Is(err, ErrGone) {
		t.Errorf("a function of a dead program: %v", err)
	}
}

// TestHostile does what no client does. Each time the connection must go and the server must stay.
func TestHostile(t *testing.T) {
	f := serve(t)
	raw := func(b []byte) {
		conn, err := net.Dial("unix", f.path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.Write(b)
		conn.(*net.UnixConn).CloseWrite()
		conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		for {
			if _, err := conn.Read(make([]byte, 256)); err != nil {
				if errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("% x is not refused", b)
				}
				return
			}
		}
	}
	raw(nil)
	raw([]byte("GET / HTTP/1.1\r\n\r\n"))
	raw(make([]byte, helloSize))
	raw(bytes.Repeat([]byte{0xff}, 1000))
	if _, _, err := dial(f.path, kindThread, [16]byte{1}, 0, 5*time.Second); err == nil {
		t.Error("a thread of no process is let in")
	}
	if _, _, err := dial(f.path, 99, [16]byte{}, 0, 5*time.Second); err == nil {
		t.Error("a channel of no kind is let in")
	}
	service, _, _, token := f.program(t)
	defer service.close()
	attack := func(name string, do func(c *clientConn)) {
		c, _, err := dial(f.path, kindThread, token, 1, 5*time.Second)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		defer c.close()
		do(c)
		c.conn.Write([]byte{1})
		c.conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		for {
			if _, err := c.conn.Read(make([]byte, 64)); err != nil {
				if errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("%s: the server still listens", name)
				}
				return
			}
		}
	}
	header := func(c *clientConn, size, op uint32, tail uint64) {
		binary.LittleEndian.PutUint32(c.mem[requestStart:], size)
		binary.LittleEndian.PutUint32(c.mem[requestStart+4:], op)
		atomic.StoreUint64(c.word64(requestCtl), tail)
	}
	attack("tail far ahead", func(c *clientConn) { header(c, 8, 0, 1<<40) })
	attack("tail behind", func(c *clientConn) { atomic.StoreUint64(c.word64(requestCtl), ^uint64(0)) })
	attack("size 0", func(c *clientConn) { header(c, 0, 0, 64) })
	attack("odd size", func(c *clientConn) { header(c, 13, 0, 64) })
	attack("size beyond the tail", func(c *clientConn) { header(c, 4096, 0, 64) })
	attack("size beyond the ring", func(c *clientConn) { header(c, 0xfffffff8, 0, 64) })
	attack("no such call", func(c *clientConn) { header(c, 24, 0xffff, 24) })
	attack("a management call", func(c *clientConn) { c.publish(opOf("DeviceCount"), payload()) })
	attack("no arguments", func(c *clientConn) { c.publish(opOf("Memcpy"), payload()) })
	attack("an array beyond the record", func(c *clientConn) { c.publish(opOf("MemPoolSetAccess"), payload(1, 1200)) })
	attack("an array beyond all bounds", func(c *clientConn) { c.publish(opOf("MemPoolSetAccess"), payload(1, 1<<40|remote, 0)) })
	attack("half an element", func(c *clientConn) { c.publish(opOf("MemPoolSetAccess"), payload(1, 7, 0)) })
	attack("an answer to nothing", func(c *clientConn) { c.publish(opDone, nil) })
	attack("a call instead of an answer", func(c *clientConn) {
		c.publish(opOf("Memcpy"), payload(0x1000, 0x1000, 16, 0, 0, 0))
		c.next()
		c.publish(opOf("MemGetInfo"), payload())
	})
	attack("more descriptors than there is room for", func(c *clientConn) {
		if _, _, err := c.conn.WriteMsgUnix([]byte{2}, unix.UnixRights(0, 0, 0, 0, 0), nil); err != nil {
			t.Fatal(err)
		}
	})
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		attack("noise", func(c *clientConn) {
			for i := range c.mem[:bulkStart] {
				c.mem[i] = byte(random.Uint32())
			}
			// Noise may well say that there is nothing to read: then hang up.
			c.conn.CloseWrite()
		})
	}
	thread, _, err := dial(f.path, kindThread, token, 2, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer thread.close()
	if r, _, err := thread.call(opOf("MemGetInfo"), payload()); r != CUDA_SUCCESS || err != nil {
		t.Errorf("after all that: %v, %v", r, err)
	}
}

// Hardware that hangs keeps nobody waiting for ever.
func TestManagementOfHungHardware(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // says welcome, and nothing any more
		conn, err := l.AcceptUnix()
		if err != nil {
			return
		}
		if _, err := readHello(conn); err != nil {
			t.Error(err)
			return
		}
		_, fd, err := newChannel(conn)
		if err != nil {
			t.Error(err)
			return
		}
		if err := welcome(conn, CUDA_SUCCESS, [16]byte{}, os.Getpid(), fd); err != nil {
			t.Error(err)
		}
	}()
	c, err := Dial(path, 200*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if d, err := c.Devices(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v, %v", d, err)
	}
	if d, err := c.Devices(); !errors.Is(err, net.ErrClosed) { // an answer to the call before would be taken for its own
		t.Errorf("afterwards: %v, %v", d, err)
	}
}
