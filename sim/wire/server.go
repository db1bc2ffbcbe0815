package wire

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Handler is what a server needs from the rest of the hardware process.
type Handler struct {
	// NewDriver makes the driver of a process that has connected. Close is called on it exactly once.
	NewDriver func(Peer) (Driver, error)
	// Management answers management channels.
	Management Management
	// Tenants, where set, is called whenever a process has connected or has been freed after its end, with the number
	// of connections that matter: processes and management channels. Calls do not overlap.
	Tenants func(n int)
	// Log, where set, gets what clients did wrong (debug level) and what could not be served (warnings).
	Log *slog.Logger
}

// maxThreads bounds the channels of one process.
const maxThreads = 8192

// helloTimeout bounds how long a connection may take to say who it is.
const helloTimeout = 5 * time.Second

const (
	helloSize   = 40
	welcomeSize = 40
)

// server is one Serve.
type server struct {
	Handler
	ctx context.Context

	mu        sync.Mutex
	processes map[[16]byte]*process
	conns     map[*net.UnixConn]struct{} // every open one, to be closed at the end
	wg        sync.WaitGroup

	tenantsMu sync.Mutex // orders the calls of Tenants; taken before mu
	tenants   int
}

// process is one connected program.
type process struct {
	token  [16]byte
	peer   unix.Ucred
	driver Driver
	gone   chan struct{}

	mu      sync.Mutex
	closed  bool
	threads map[*net.UnixConn]struct{}
	calls   sync.WaitGroup // one for each thread's goroutine
}

// Serve answers programs on l until ctx ends, then drops them all, waits for their drivers to close and returns nil; an
// error means that the listener failed. It closes l.
func Serve(ctx context.Context, l *net.UnixListener, h Handler) error {
	if h.Log == nil {
		h.Log = slog.New(slog.DiscardHandler)
	}
	s := &server{Handler: h, ctx: ctx, processes: map[[16]byte]*process{}, conns: map[*net.UnixConn]struct{}{}}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var failed error
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			if ctx.Err() == nil {
				failed = fmt.Errorf("accept on %s: %w", l.Addr(), err)
			}
			break
		}
		s.mu.Lock()
		s.conns[conn] = struct{}{}
		s.wg.Add(1)
		s.mu.Unlock()
		go func() {
			defer s.wg.Done()
			if err := s.handle(conn); err != nil && !errors.Is(err, io.EOF) {
				s.Log.Debug("connection dropped", "error", err)
			}
			s.mu.Lock()
			delete(s.conns, conn)
			s.mu.Unlock()
			conn.Close()
		}()
	}
	l.Close()
	s.mu.Lock()
	for conn := range s.conns {
		conn.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
	return failed
}

// count changes the number of tenants.
func (s *server) count(by int) {
	s.tenantsMu.Lock()
	defer s.tenantsMu.Unlock()
	s.tenants += by
	if s.Tenants != nil {
		s.Tenants(s.tenants)
	}
}

// hello is what a client opens a channel with.
type hello struct {
	kind   uint32
	token  [16]byte
	thread uint64
}

func readHello(r io.Reader) (hello, error) {
	var b [helloSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return hello{}, err
	}
	if m := binary.LittleEndian.Uint32(b[:]); m != magic {
		return hello{}, fmt.Errorf("%w: magic %#x", errProtocol, m)
	}
	if p := binary.LittleEndian.Uint64(b[8:]); p != protocol {
		return hello{}, fmt.Errorf("%w: a client library of another build (protocol %#x, here %#x)", errProtocol, p, uint64(protocol))
	}
	h := hello{kind: binary.LittleEndian.Uint32(b[4:]), thread: binary.LittleEndian.Uint64(b[32:])}
	copy(h.token[:], b[16:32])
	return h, nil
}

// welcome answers a hello; fd is the channel's memory, or negative with a refusal.
func welcome(conn *net.UnixConn, status CUresult, token [16]byte, pid int, fd int) error {
	var b [welcomeSize]byte
	binary.LittleEndian.PutUint32(b[:], magic)
	binary.LittleEndian.PutUint32(b[4:], uint32(status))
	binary.LittleEndian.PutUint64(b[8:], protocol)
	copy(b[16:], token[:])
	binary.LittleEndian.PutUint64(b[32:], uint64(pid))
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	_, _, err := conn.WriteMsgUnix(b[:], rights, nil)
	return err
}

func peerOf(conn *net.UnixConn) (cred unix.Ucred, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return cred, err
	}
	var got *unix.Ucred
	var gerr error
	if err := raw.Control(func(fd uintptr) { got, gerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return cred, err
	}
	if gerr != nil {
		return cred, fmt.Errorf("who connected: %w", gerr)
	}
	return *got, nil
}

// handle serves one connection to its end.
func (s *server) handle(conn *net.UnixConn) error {
	if err := conn.SetDeadline(time.Now().Add(helloTimeout)); err != nil {
		return err
	}
	cred, err := peerOf(conn)
	if err != nil {
		return err
	}
	hi, err := readHello(conn)
	if err != nil {
		welcome(conn, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, [16]byte{}, 0, -1)
		return err
	}
	ch, fd, err := newChannel(conn)
	if err != nil {
		s.Log.Warn("no channel", "pid", cred.Pid, "error", err)
		welcome(conn, CUDA_ERROR_OUT_OF_MEMORY, [16]byte{}, 0, -1)
		return err
	}
	defer ch.free()
	open := func(token [16]byte) error {
		err := welcome(conn, CUDA_SUCCESS, token, int(cred.Pid), fd)
		unix.Close(fd)
		if err != nil {
			return fmt.Errorf("welcome process %d: %w", cred.Pid, err)
		}
		return conn.SetDeadline(time.Time{})
	}
	switch hi.kind {
	case kindService:
		return s.service(ch, cred, open)
	case kindThread:
		return s.thread(ch, cred, hi, open)
	case kindManagement:
		s.count(1) // before the client is told that it is let in, from when on it may rely on that
		defer s.count(-1)
		if err := open([16]byte{}); err != nil {
			return err
		}
		return s.answer(ch, nil, nil)
	}
	unix.Close(fd)
	return fmt.Errorf("%w: channel kind %d", errProtocol, hi.kind)
}

// service serves a process's first channel, whose end is the process's end.
func (s *server) service(ch *channel, cred unix.Ucred, open func([16]byte) error) error {
	p := &process{peer: cred, gone: make(chan struct{}), threads: map[*net.UnixConn]struct{}{}}
	if _, err := rand.Read(p.token[:]); err != nil {
		return fmt.Errorf("make a token: %w", err)
	}
	host := &host{requests: make(chan *hostRequest), gone: p.gone}
	driver, err := s.NewDriver(Peer{PID: int(cred.Pid), UID: int(cred.Uid), GID: int(cred.Gid), Host: host})
	if err != nil {
		s.Log.Warn("no driver", "pid", cred.Pid, "error", err)
		welcome(ch.conn, CUDA_ERROR_NOT_INITIALIZED, [16]byte{}, 0, -1)
		return err
	}
	p.driver = driver
	s.mu.Lock()
	s.processes[p.token] = p
	s.mu.Unlock()
	s.count(1)
	defer s.count(-1)

	if err = open(p.token); err == nil {
		err = host.serve(ch)
	}
	close(p.gone)
	s.mu.Lock()
	delete(s.processes, p.token)
	s.mu.Unlock()
	p.mu.Lock()
	p.closed = true
	for conn := range p.threads {
		conn.Close()
	}
	p.mu.Unlock()
	p.calls.Wait()
	driver.Close()
	return err
}

// thread serves a calling thread's channel.
func (s *server) thread(ch *channel, cred unix.Ucred, hi hello, open func([16]byte) error) error {
	s.mu.Lock()
	p := s.processes[hi.token]
	s.mu.Unlock()
	if p == nil || p.peer.Pid != cred.Pid {
		return fmt.Errorf("%w: process %d brings no token of its own", errProtocol, cred.Pid)
	}
	p.mu.Lock()
	if p.closed || len(p.threads) >= maxThreads {
		p.mu.Unlock()
		return io.EOF
	}
	p.threads[ch.conn] = struct{}{}
	p.calls.Add(1)
	p.mu.Unlock()
	err := open(hi.token)
	if err == nil {
		err = s.answer(ch, p, &Call{Thread: hi.thread, memory: ch, gone: p.gone})
	}
	p.driver.ThreadExit(hi.thread)
	p.mu.Lock()
	delete(p.threads, ch.conn)
	p.mu.Unlock()
	p.calls.Done()
	return err
}

// request flags and reply flags.
const (
	flagPerThread = 1
	flagFile      = 2
)

// answer serves calls until the client is gone: a thread's with its process, a management channel's without.
func (s *server) answer(ch *channel, p *process, c *Call) error {
	out := &encoder{b: make([]byte, 0, maxRecord)}
	for {
		op, payload, err := ch.next()
		if err != nil {
			return err
		}
		if op >= uint32(len(calls)) {
			return fmt.Errorf("%w: call %#x", errProtocol, op)
		}
		in := &decoder{b: payload, memory: ch}
		ctx, flags := in.u64(), in.u64()
		out.b, out.memory, out.err = out.b[:0], ch, nil
		out.u64(0)
		out.u64(0)
		m := &calls[op]
		var r CUresult
		switch {
		case p == nil && m.manage != nil:
			r = m.manage(s.Management, in, out)
		case p != nil && m.drive != nil:
			c.Context, c.PerThread = CUcontext(ctx), flags&flagPerThread != 0
			if flags&flagFile != 0 {
				if c.received, err = ch.file(); err != nil {
					return err
				}
			}
			r = m.drive(p.driver, c, in, out)
			select {
			case <-p.gone: // a wait that was given up has no result
				return io.EOF
			default:
			}
		default:
			return fmt.Errorf("%w: %s on a channel of another kind", errProtocol, m.name)
		}
		if ch.failed != nil {
			return fmt.Errorf("%s: %w", m.name, ch.failed)
		}
		if in.bad || out.err != nil {
			return fmt.Errorf("%w: arguments of %s (%v)", errProtocol, m.name, out.err)
		}
		if err := reply(ch, c, r, out); err != nil {
			return err
		}
	}
}

func reply(ch *channel, c *Call, r CUresult, out *encoder) error {
	flags := uint64(0)
	var file *os.File
	if c != nil {
		defer c.release()
		if r == CUDA_SUCCESS && c.sent != nil {
			file, flags = c.sent, flagFile
		}
	}
	binary.LittleEndian.PutUint64(out.b, uint64(int64(r)))
	binary.LittleEndian.PutUint64(out.b[8:], flags)
	if file != nil {
		if err := ch.sendFile(file); err != nil {
			return err
		}
	}
	return ch.send(opReply, out.b)
}

// hostRequest is one thing asked of a program's service thread.
type hostRequest struct {
	do   func(*channel) error
	done chan error
}

// host implements Host over a service channel.
type host struct {
	requests chan *hostRequest
	gone     chan struct{}
}

func (h *host) Gone() <-chan struct{} { return h.gone }

func (h *host) ask(do func(*channel) error) error {
	r := &hostRequest{do: do, done: make(chan error, 1)}
	select {
	case h.requests <- r:
	case <-h.gone:
		return ErrGone
	}
	select {
	case err := <-r.done:
		return err
	case <-h.gone:
		return ErrGone
	}
}

func (h *host) Invoke(kind InvokeKind, fn, a, b, c HostAddr) error {
	return h.ask(func(ch *channel) error {
		return ch.ask(opInvoke, uint64(fn), uint64(kind), uint64(a), uint64(b), uint64(c))
	})
}

func (h *host) ReadHost(addr HostAddr, p []byte) error {
	buf := make([]byte, len(p)) // the caller may give up while the program still answers
	if err := h.ask(func(ch *channel) error { return ch.read(addr, buf) }); err != nil {
		return err
	}
	copy(p, buf)
	return nil
}

func (h *host) WriteHost(addr HostAddr, p []byte) error {
	buf := append([]byte(nil), p...)
	return h.ask(func(ch *channel) error { return ch.write(addr, buf) })
}

// serve passes requests to the program until it is gone.
func (h *host) serve(ch *channel) error {
	ch.watch()
	for {
		select {
		case <-ch.dead:
			return io.EOF
		case r := <-h.requests:
			err := r.do(ch)
			r.done <- err
			if err != nil {
				return err
			}
		}
	}
}
