package tenant

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/daemon/foreign"
	"github.com/lgpu/lgpu/tenant/protocol"
	"github.com/lgpu/lgpu/tenant/region"
)

const (
	// maxPending bounds the connections that have no answer yet, maxPendingUser those of one user other than root and
	// the daemon's own, and maxPendingEach those of one process. Of more, one that has said nothing is dropped: the
	// oldest of the process, of the user, or of the user who has most. An honest client says Hello as soon as it is
	// connected. Where all have spoken the new one is dropped.
	maxPending     = 512
	maxPendingUser = 128
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

func listen(path string, closers *foreign.Closers) (*foreign.Listener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == os.ModeSocket {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("replace socket: %w", err)
		}
	}
	l, err := foreign.Listen("unixpacket", path, true, closers)
	if err != nil {
		return nil, fmt.Errorf("make the tenants' socket: %w", err)
	}
	if err = os.Chmod(path, 0o666); err != nil {
		l.Close()
		return nil, fmt.Errorf("make the tenants' socket: %w", err)
	}
	return l, nil
}

// accept serves connections until the listener is closed.
func (s *Server) accept() error {
	for {
		conn, err := s.listener.AcceptConn()
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
		s.mu.Lock()
		closed := s.closed
		admitted := !closed && s.admit(c)
		if admitted {
			s.open[c] = true
			s.running.Go(c.serve)
		}
		s.mu.Unlock()
		if !admitted {
			conn.Close()
		}
		if closed {
			return nil
		}
	}
}

// admit adds a connection to those that wait for an answer, of which it may have one dropped, or reports that there is
// no room. Those that are being dropped count once more than they should, so that they are not without bound either.
// Called with mu held.
func (s *Server) admit(c *connection) bool {
	uid := c.conn.UID
	own, users := 0, map[uint32]int{}
	for _, p := range s.pending {
		users[p.conn.UID]++
		if p.conn.UID == uid && p.conn.PID == c.conn.PID {
			own++
		}
	}
	room := true
	switch all := len(s.pending); {
	case own >= maxPendingEach:
		room = own < 2*maxPendingEach && s.drop(func(p *connection) bool { return p.conn.UID == uid && p.conn.PID == c.conn.PID })
	case !trusted(uid) && users[uid] >= maxPendingUser:
		room = users[uid] < 2*maxPendingUser && s.drop(func(p *connection) bool { return p.conn.UID == uid })
	case all >= maxPending:
		most := uid
		for user, count := range users {
			if count > users[most] {
				most = user
			}
		}
		room = all < 2*maxPending && s.drop(func(p *connection) bool { return p.conn.UID == most })
	}
	if room {
		s.pending = append(s.pending, c)
	}
	return room
}

// drop ends the oldest of those pending connections that has said nothing, or reports that there is none. It stays
// pending until it is closed. Called with mu held.
func (s *Server) drop(of func(*connection) bool) bool {
	for _, p := range s.pending {
		if of(p) && p.silent() {
			p.close()
			return true
		}
	}
	return false
}

// trusted reports whether a user is one whom the daemon obeys in any case: its bounds are those of all.
func trusted(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }

// connection is one of a process that is, or wants to be, a client. It has one goroutine.
type connection struct {
	server  *Server
	conn    *foreign.Conn
	once    sync.Once
	closing chan struct{} // closed by close
	done    chan struct{} // closed when the goroutine has ended

	// Of the goroutine.
	peer   Peer
	life   *life
	client *client // nil before the Welcome
	unseen bool    // the client may not have mapped its new limits yet
	seats  [region.MaxDevices]*Seat
}

// close ends the connection. It does not wait: what closes the descriptor is the goroutine.
func (c *connection) close() {
	c.once.Do(func() {
		close(c.closing)
		c.conn.End()
	})
}

// silent reports whether nothing has come, and the connection has not been ended.
func (c *connection) silent() bool {
	n := 0
	err := c.conn.Control(func(fd int) { n, _ = poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}) })
	return err == nil && n == 0
}

// packet is what came in one piece.
type packet struct {
	protocol.Message
	sender int // pid
	files  []int
}

// release has the files of a packet closed. No lock must be held.
func (c *connection) release(p packet) {
	for _, fd := range p.files {
		c.server.closers.Close(c.conn.UID, foreign.File(fd))
	}
}

// peek waits for a message and reports whether descriptors are with it. It stays where it is.
func (c *connection) peek() (m protocol.Message, files bool, err error) {
	var data [protocol.Size + protocol.MaxText + 1]byte
	n, files, err := c.conn.Peek(data[:])
	if err != nil {
		return m, false, err
	}
	select {
	case <-c.closing: // what has come before the end is still there
		return m, false, net.ErrClosed
	default:
	}
	if n == 0 && !files {
		return m, false, io.EOF
	}
	if m, _, err = protocol.Parse(data[:n]); err != nil {
		return m, files, fmt.Errorf("%w: %w", errProtocol, err)
	}
	return m, files, nil
}

// receive takes a message after peek, which found no descriptors with it, or they are due. The caller releases the
// packet. A false step of the client is errProtocol.
func (c *connection) receive(files bool) (packet, error) {
	var data [protocol.Size + protocol.MaxText + 1]byte
	got, err := c.conn.Receive(data[:], files)
	p := packet{sender: got.Sender, files: got.Files}
	if err != nil {
		c.release(p)
		return packet{}, err
	}
	if p.Message, _, err = protocol.Parse(data[:got.Size]); err != nil {
		c.release(p)
		return packet{}, fmt.Errorf("%w: %w", errProtocol, err)
	}
	return p, nil
}

// send sends a message, with descriptors, without waiting. A client that does not take it loses its connection.
func (c *connection) send(m protocol.Message, text string, fds ...int) {
	data := m.Append(make([]byte, 0, protocol.Size+len(text)))
	data = append(data, text...)
	var control []byte
	if len(fds) > 0 {
		control = unix.UnixRights(fds...)
	}
	var sent error
	err := c.conn.Control(func(fd int) {
		for {
			sent = unix.Sendmsg(fd, data, control, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
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
	err := c.begin()
	if err == nil && c.client != nil {
		c.server.welcomed(c)
		for err == nil {
			err = c.step()
		}
	}
	if errors.Is(err, errProtocol) {
		c.server.log.Info("tenant: connection dropped", "pid", c.conn.PID, "uid", c.conn.UID, "err", err)
	}
	c.close()
	for _, seat := range c.seats {
		if seat != nil {
			c.server.config.Gate.Gone(seat)
		}
	}
	c.server.unlink(c)
	close(c.done)
	c.conn.Close() // who waits for done does not wait for that
	c.server.welcomed(c)
}

// begin makes the process a client, or tells it why not.
func (c *connection) begin() (err error) {
	c.conn.SetReadDeadline(time.Now().Add(helloTime))
	m, files, err := c.peek()
	if err != nil {
		return err
	}
	if c.peer, c.life, err = identify(c.conn); err != nil {
		return err
	}
	defer func() {
		if c.client == nil || c.client.life != c.life {
			c.life.Close()
		}
	}()
	if files && !c.server.due(c.peer.Process, m) {
		return fmt.Errorf("%w: Hello: %w", errProtocol, foreign.ErrRights)
	}
	hello, err := c.receive(files)
	if err != nil {
		return err
	}
	defer c.release(hello)
	c.conn.SetReadDeadline(time.Time{})
	err = c.hello(hello)
	if err == nil || errors.Is(err, errEnded) || errors.Is(err, errProtocol) {
		return err
	}
	refusal := &Refusal{Errno: unix.EPERM, Text: "the daemon cannot tell which lgpu this process belongs to"}
	errors.As(err, &refusal)
	text := refusal.Text
	c.send(protocol.Message{Kind: protocol.Refuse, Value: uint64(refusal.Errno)}, text[:min(len(text), protocol.MaxText)])
	if c.server.refusals.try(time.Now()) {
		c.server.config.Observer.Refused(c.peer, err)
	}
	return err
}

// hello answers the first message.
func (c *connection) hello(p packet) error {
	if p.Kind != protocol.Hello {
		return fmt.Errorf("%w: kind %d before Hello", errProtocol, p.Kind)
	}
	if p.Version != protocol.Version {
		text := fmt.Sprintf("the library speaks version %d, the daemon %d; start the program anew", p.Version, protocol.Version)
		return &Refusal{Errno: unix.EPROTONOSUPPORT, Text: text}
	}
	if p.sender != c.peer.PID {
		return fmt.Errorf("%w: Hello from pid %d on a connection of pid %d", errProtocol, p.sender, c.peer.PID)
	}
	if p.Flags&protocol.FlagReconnect != 0 {
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
	if p.Flags&protocol.FlagView != 0 {
		return c.server.view(c, id)
	}
	return c.server.join(c, id)
}

// step takes one message of a client.
func (c *connection) step() error {
	_, files, err := c.peek()
	if err == nil && files {
		err = fmt.Errorf("%w: %w", errProtocol, foreign.ErrRights)
	}
	if errors.Is(err, net.ErrClosed) {
		return io.EOF
	}
	if err != nil {
		return err
	}
	p, err := c.receive(false)
	if err != nil {
		return err
	}
	cost := 1
	if p.Kind == protocol.Need {
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
	case p.Kind == protocol.Need && p.Value == 0: // says only that it goes by the new limits
	case p.Kind == protocol.Need:
		c.send(c.server.need(c.client, p.Message), "")
	case p.Kind == protocol.Gate && seat == nil:
		seat = &Seat{connection: c, device: int(p.Device)}
		c.seats[p.Device] = seat
		c.server.config.Gate.Attach(seat, p.Message)
	case p.Kind == protocol.Want && seat != nil:
		c.server.config.Gate.Want(seat, p.Message)
	case p.Kind == protocol.Closed && seat != nil:
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

// Beat shows the lgpu's processes that whoever gives them turns on this device lives.
func (s *Seat) Beat() { s.connection.client.lgpu.shared.Beat(s.device) }

// Send sends a message about the seat's gate; Device and Client are filled in. It never waits: a client that does not
// read loses its connection.
func (s *Seat) Send(m protocol.Message) {
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
