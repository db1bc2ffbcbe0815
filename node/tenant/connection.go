package tenant

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/link"
	"github.com/lgpu/lgpu/region"
)

const (
	// maxPending bounds the connections whose Hello is not answered, and maxPendingEach those of one process. Of more the
	// oldest is dropped, or the process's oldest: an honest client has few, and has sent its Hello by the time it is
	// accepted.
	maxPending     = 1024
	maxPendingEach = 16
	// helloTime is how long a connection may take to say Hello.
	helloTime = 2 * time.Second
	// returnTime is how long new clients of an lgpu wait for those of the daemon before to bring the counters, and
	// maxWaiting how many do.
	returnTime = 5 * time.Second
	maxWaiting = 64
	// acceptPause is the time after an error of accept, such as too many open files.
	acceptPause = 10 * time.Millisecond
	// needCost is what a Need counts for among messages.
	needCost = 16
)

// errProtocol: a client broke the protocol.
var errProtocol = errors.New("broken protocol")

func listen(path string) (*net.UnixListener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == os.ModeSocket {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("replace socket: %w", err)
		}
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("make the tenants' socket: %w", err)
	}
	raw, err := l.SyscallConn()
	var failed error
	if err == nil { // connections inherit it
		err = raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1) })
	}
	if err = cmp.Or(err, failed); err == nil {
		err = os.Chmod(path, 0o666)
	}
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("make the tenants' socket: %w", err)
	}
	return l, nil
}

// accept serves connections until the listener is closed.
func (s *Server) accept() error {
	for {
		conn, err := s.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			s.log.Warn("tenant: accept", "err", err)
			select {
			case <-time.After(acceptPause):
			case <-s.done:
			}
			continue
		}
		c := &connection{server: s, conn: conn, closing: make(chan struct{}), done: make(chan struct{})}
		if c.raw, err = conn.SyscallConn(); err != nil {
			conn.Close()
			continue
		}
		if err := c.raw.Control(func(fd uintptr) {
			if maker, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
				c.maker = maker.Pid
			}
		}); err != nil {
			conn.Close()
			continue
		}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			conn.Close()
			return nil
		}
		s.open[c] = true
		s.enqueue(c)
		s.running.Go(c.serve)
		s.mu.Unlock()
	}
}

// enqueue adds a connection to those that wait for an answer, of which it may have one dropped. Called with mu held.
func (s *Server) enqueue(c *connection) {
	s.pending = append(s.pending, c)
	mine := func(p *connection) bool { return p.maker == c.maker }
	count := 0
	for _, p := range s.pending {
		if mine(p) {
			count++
		}
	}
	drop := 0
	switch {
	case count > maxPendingEach:
		drop = slices.IndexFunc(s.pending, mine)
	case len(s.pending) <= maxPending:
		return
	}
	s.pending[drop].close()
	s.pending = slices.Delete(s.pending, drop, drop+1)
}

// connection is one of a process that is, or wants to be, a client. It has one goroutine.
type connection struct {
	server  *Server
	conn    *net.UnixConn
	raw     syscall.RawConn
	once    sync.Once
	maker   int32         // pid of who connected, when it did; 0 if unknown
	closing chan struct{} // closed by close
	done    chan struct{} // closed when the goroutine has ended

	// Of the goroutine.
	peer   Peer
	life   *life
	client *client // nil before the Welcome
	unseen bool    // the client may not have mapped its new limits yet
	seats  [region.MaxDevices]*Seat
}

// close ends the connection. It does not wait.
func (c *connection) close() {
	c.once.Do(func() {
		close(c.closing)
		c.conn.Close()
	})
}

// packet is what came in one piece.
type packet struct {
	link.Message
	sender int // pid
	files  []int
}

func (p packet) close() {
	for _, fd := range p.files {
		unix.Close(fd)
	}
}

// receive waits for a message. The caller closes the packet. A false step of the client is errProtocol.
func (c *connection) receive() (packet, error) {
	var data [link.Size + link.MaxText + 1]byte
	var control [256]byte
	n, controls, flags, _, err := c.conn.ReadMsgUnix(data[:], control[:])
	if err != nil {
		return packet{}, err
	}
	p, err := parsePacket(data[:n], control[:controls])
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = fmt.Errorf("%w: a packet too large", errProtocol)
	}
	if err != nil {
		p.close()
		return packet{}, err
	}
	return p, nil
}

// parsePacket reads what recvmsg gave. Descriptors are in the packet also when there is an error.
func parsePacket(data, control []byte) (p packet, err error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return p, fmt.Errorf("%w: control message: %w", errProtocol, err)
	}
	for _, m := range messages {
		if m.Header.Level != unix.SOL_SOCKET {
			continue
		}
		switch m.Header.Type {
		case unix.SCM_RIGHTS:
			if fds, err := unix.ParseUnixRights(&m); err == nil {
				p.files = append(p.files, fds...)
			}
		case unix.SCM_CREDENTIALS:
			if credentials, err := unix.ParseUnixCredentials(&m); err == nil {
				p.sender = int(credentials.Pid)
			}
		}
	}
	if p.Message, _, err = link.Parse(data); err != nil {
		return p, fmt.Errorf("%w: %w", errProtocol, err)
	}
	return p, nil
}

// send sends a message, with descriptors, without waiting. A client that does not take it loses its connection.
func (c *connection) send(m link.Message, text string, fds ...int) {
	data := m.Append(make([]byte, 0, link.Size+len(text)))
	data = append(data, text...)
	var control []byte
	if len(fds) > 0 {
		control = unix.UnixRights(fds...)
	}
	var sent error
	err := c.raw.Control(func(fd uintptr) {
		for {
			sent = unix.Sendmsg(int(fd), data, control, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			if !errors.Is(sent, unix.EINTR) {
				return
			}
		}
	})
	if err != nil || sent != nil {
		c.close()
	}
}

// serve is the connection's goroutine.
func (c *connection) serve() {
	defer close(c.done)
	err := c.begin()
	c.server.welcomed(c)
	if err == nil && c.client != nil {
		for err == nil {
			err = c.step()
		}
	}
	if errors.Is(err, errProtocol) {
		c.server.log.Info("tenant: connection dropped", "pid", c.peer.PID, "err", err)
	}
	c.close()
	for _, seat := range c.seats {
		if seat != nil {
			c.server.config.Gate.Gone(seat)
		}
	}
	c.server.unlink(c)
}

// begin makes the process a client, or tells it why not.
func (c *connection) begin() (err error) {
	if c.peer, c.life, err = identify(c.conn); err != nil {
		return err
	}
	c.conn.SetReadDeadline(time.Now().Add(helloTime))
	hello, err := c.receive()
	if err != nil {
		c.life.Close()
		return err
	}
	defer hello.close()
	c.conn.SetReadDeadline(time.Time{})
	err = c.hello(hello)
	if c.client == nil || c.client.life != c.life {
		c.life.Close()
	}
	if err == nil || errors.Is(err, errEnded) || errors.Is(err, errProtocol) {
		return err
	}
	refusal := &Refusal{Errno: unix.EPERM, Text: "the daemon cannot tell which lgpu this process belongs to"}
	errors.As(err, &refusal)
	text := refusal.Text
	c.send(link.Message{Kind: link.Refuse, Value: uint64(refusal.Errno)}, text[:min(len(text), link.MaxText)])
	if c.server.refusals.try(time.Now()) {
		c.server.config.Observer.Refused(c.peer, err)
	}
	return err
}

// hello answers the first message.
func (c *connection) hello(p packet) error {
	if p.Kind != link.Hello {
		return fmt.Errorf("%w: kind %d before Hello", errProtocol, p.Kind)
	}
	if p.Version != link.Version {
		text := fmt.Sprintf("the library speaks version %d, the daemon %d; start the program anew", p.Version, link.Version)
		return &Refusal{Errno: unix.EPROTONOSUPPORT, Text: text}
	}
	if p.sender != c.peer.PID {
		return fmt.Errorf("%w: Hello from pid %d on a connection of pid %d", errProtocol, p.sender, c.peer.PID)
	}
	if p.Flags&link.FlagReconnect != 0 {
		return c.server.resume(c, p)
	}
	e, err := evidence(c.peer, c.life, c.server.lgpuOf)
	if err != nil {
		return err
	}
	id, err := c.server.config.Resolver.Resolve(e)
	if err != nil {
		return err
	}
	if p.Flags&link.FlagView != 0 {
		return c.server.view(c, id)
	}
	return c.server.join(c, id)
}

// step takes one message of a client.
func (c *connection) step() error {
	p, err := c.receive()
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		return io.EOF
	}
	if err != nil {
		return err
	}
	defer p.close()
	cost := 1
	if p.Kind == link.Need {
		cost = needCost
	}
	if wait := c.client.lgpu.messages.take(time.Now(), cost); wait > 0 {
		select {
		case <-time.After(wait):
		case <-c.closing:
			return io.EOF
		}
	}
	if c.unseen {
		c.unseen = false
		c.server.acknowledged(c.client)
	}
	if int(p.Device) >= len(c.client.lgpu.uuids) {
		return fmt.Errorf("%w: device %d", errProtocol, p.Device)
	}
	seat := c.seats[p.Device]
	switch {
	case p.Kind == link.Need && p.Value == 0: // says only that it goes by the new limits
	case p.Kind == link.Need:
		c.send(c.server.need(c.client, p.Message), "")
	case p.Kind == link.Gate && seat == nil:
		seat = &Seat{connection: c, device: int(p.Device)}
		c.seats[p.Device] = seat
		c.server.config.Gate.Attach(seat, p.Message)
	case p.Kind == link.Want && seat != nil:
		c.server.config.Gate.Want(seat, p.Message)
	case p.Kind == link.Closed && seat != nil:
		c.server.config.Gate.Closed(seat, p.Message)
	default:
		return fmt.Errorf("%w: kind %d on device %d", errProtocol, p.Kind, p.Device)
	}
	return nil
}

// Seat is a client's gate on one device.
type Seat struct {
	connection *connection
	device     int
}

// LGPU returns the ID of the seat's lgpu.
func (s *Seat) LGPU() uint64 { return s.connection.client.lgpu.ID }

// Client returns the index of its client in the lgpu's region.
func (s *Seat) Client() int { return s.connection.client.index }

// Peer returns the process of its client.
func (s *Seat) Peer() Peer { return s.connection.client.peer }

// Device returns the index of its device among the lgpu's.
func (s *Seat) Device() int { return s.device }

// UUID returns the UUID of its device.
func (s *Seat) UUID() [16]byte { return s.connection.client.lgpu.uuids[s.device] }

// Busy returns the lgpu's device time on this device in ns, as the tenant counts it. It is the tenant's word: it may do
// anything, falling included.
func (s *Seat) Busy() uint64 { return s.connection.client.lgpu.shared.Busy(s.device) }

// Send sends a message about the seat's gate; Device and Client are filled in. It never waits: a client that does not
// read loses its connection.
func (s *Seat) Send(m link.Message) {
	m.Device, m.Client = uint32(s.device), uint32(s.connection.client.index)
	s.connection.send(m, "")
}

// throttle is a bucket of things that may happen: so many at once, and one more in every period.
type throttle struct {
	burst  int
	period time.Duration

	mu   sync.Mutex
	full time.Time // when the bucket is full again; guarded by mu
}

const (
	messagesAtOnce = 4096
	messagePeriod  = 20 * time.Microsecond
	refusalsAtOnce = 64
	refusalPeriod  = 100 * time.Millisecond
)

// take takes n and returns how long to wait before the first of them.
func (t *throttle) take(now time.Time, n int) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.full.Before(now) {
		t.full = now
	}
	t.full = t.full.Add(time.Duration(n) * t.period)
	return max(t.full.Sub(now)-time.Duration(t.burst)*t.period, 0)
}

// try takes one if that needs no waiting.
func (t *throttle) try(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.full.Before(now) {
		t.full = now
	}
	next := t.full.Add(t.period)
	if next.Sub(now) > time.Duration(t.burst)*t.period {
		return false
	}
	t.full = next
	return true
}
