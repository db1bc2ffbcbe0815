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
	// helloTime is how long a connection may take to say Hello. The waiting room bounds how many are silent; so it is long
	// enough for a machine on which a process waits seconds for its turn.
	helloTime = 10 * time.Second
	// returnTime is how long new clients of an lgpu wait for those of the previous daemon to bring the counters, and
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

// accept serves connections to a door, or with 0 to the tenants' socket, until the listener is closed.
func (s *Server) accept(l *foreign.Listener, door uint64) {
	for {
		conn, err := l.AcceptConn()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.log.Warn("tenant: accept", "err", err)
			select {
			case <-time.After(acceptPause):
			case <-s.done:
			}
			continue
		}
		c := &connection{server: s, conn: conn, door: door, closing: make(chan struct{}), done: make(chan struct{})}
		s.mu.Lock()
		closed := s.closed
		admitted := !closed && s.waiting.admit(c)
		if admitted {
			s.open[c] = true
			s.running.Go(c.serve)
		}
		s.mu.Unlock()
		if !admitted {
			conn.Close()
		}
		if closed {
			return
		}
	}
}

// connection is one of a process that is, or wants to be, a client. It has one goroutine.
type connection struct {
	server  *Server
	conn    *foreign.Conn
	door    uint64 // the lgpu whose door it came to, or 0
	once    sync.Once
	closing chan struct{} // closed by close
	done    chan struct{} // closed when the goroutine has ended

	// Of the goroutine.
	peer    Peer
	life    *life
	client  *client // nil before the Welcome
	unseen  bool    // the client may not have mapped its new limits yet
	gates   [region.MaxDevices]*Gate
	resumed bool                            // it is that of a client that has come back
	held    []Held                          // what one had under the daemon before that comes back as a new one
	stores  [region.MaxDevices][stores]bool // which has brought the files of a device
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

// peek waits for a message and reports whether descriptors are with it. It does not take the message off the socket.
func (c *connection) peek() (m protocol.Message, files bool, err error) {
	var data [protocol.Size + protocol.MaxText + 1]byte
	n, files, err := c.conn.Peek(data[:])
	if err != nil {
		return m, false, err
	}
	select {
	case <-c.closing: // what came before the end can still be read
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

// receive reads a message after peek. files says that descriptors may come with it. The caller releases the packet. A
// broken message is errProtocol.
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

// send sends a message, with descriptors, without waiting. A client whose socket is full loses its connection.
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
		c.server.waiting.remove(c)
		for err == nil {
			err = c.step()
		}
	}
	if errors.Is(err, errProtocol) {
		c.server.log.Info("tenant: connection dropped", "pid", c.conn.PID, "uid", c.conn.UID, "err", err)
	}
	c.close()
	for _, gate := range c.gates {
		if gate != nil {
			c.server.config.Gate.Gone(gate)
		}
	}
	c.server.disconnected(c)
	close(c.done)
	c.conn.Close() // after done: nobody waits for it
	c.server.waiting.remove(c)
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
	if files && !c.server.mayBringFiles(c.peer.Process, m) {
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
	if err != errKept && c.server.refusals.allow(time.Now()) {
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
		text := fmt.Sprintf("the library speaks version %d, the daemon %d; restart the program", p.Version, protocol.Version)
		return &Refusal{Errno: unix.EPROTONOSUPPORT, Text: text}
	}
	if p.sender != c.peer.PID {
		return fmt.Errorf("%w: Hello from pid %d on a connection of pid %d", errProtocol, p.sender, c.peer.PID)
	}
	if p.Flags&protocol.FlagReconnect != 0 {
		return c.server.resume(c, p)
	}
	if p.Flags&protocol.FlagRejoin != 0 {
		if known, err := c.server.Parking.rejoin(c); known {
			return err
		}
		c.resumed = true
	}
	e, err := evidence(c.peer, c.life, c.server.lgpuOf, func(e *Evidence) error {
		e.Door = c.door
		return c.server.container(e)
	})
	if err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		// The lgpu may be let go between the two, as its last client has ended; then it is resolved anew.
		if err = c.enter(p, e); err != errRemoved || attempt == entries {
			return err
		}
	}
}

// entries is how often a process is tried to be let into an lgpu that others leave.
const entries = 10

// enter lets a process in, or to look, or tells it whether it might come.
func (c *connection) enter(p packet, e Evidence) error {
	if p.Flags&protocol.FlagAsk != 0 {
		id, err := c.server.config.Resolver.Ask(e)
		if err == nil {
			c.send(protocol.Message{Kind: protocol.Welcome, Version: protocol.Version, Flags: protocol.FlagAsk,
				Client: region.MaxClients, ID: id}, "")
		}
		return err
	}
	id, err := c.server.config.Resolver.Resolve(e)
	if err != nil {
		return err
	}
	if p.Flags&protocol.FlagView != 0 {
		return c.server.view(c, id)
	}
	cgroup := ""
	if e.Container != 0 {
		cgroup = cgroupOf(e.Cgroups, c.server.cgroups)
	}
	return c.server.join(c, id, cgroup)
}

// step handles one message of a client.
func (c *connection) step() error {
	m, files, err := c.peek()
	if err == nil && files && !c.mayBringStore(m) {
		err = fmt.Errorf("%w: %w", errProtocol, foreign.ErrRights)
	}
	if errors.Is(err, net.ErrClosed) {
		return io.EOF
	}
	if err != nil {
		return err
	}
	p, err := c.receive(files)
	if err != nil {
		return err
	}
	defer c.release(p)
	cost := 1
	if p.Kind == protocol.Need {
		cost = needCost
	}
	if wait := c.client.lgpu.messages.delay(time.Now(), cost); wait > 0 {
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
	gate := c.gates[p.Device]
	switch {
	case p.Kind == protocol.Kept, p.Kind == protocol.Need && p.Flags&protocol.FlagResident != 0:
		return c.residence(p)
	case p.Kind == protocol.Need && p.Value == 0: // says only that it goes by the new limits
	case p.Kind == protocol.Need:
		c.send(c.server.need(c.client, p.Message), "")
	case p.Kind == protocol.Gate && gate == nil:
		gate = &Gate{connection: c, device: int(p.Device)}
		c.gates[p.Device] = gate
		c.server.config.Gate.Attach(gate, p.Message)
	case p.Kind == protocol.Want && gate != nil:
		c.server.config.Gate.Want(gate, p.Message)
	case p.Kind == protocol.Closed && gate != nil:
		c.server.config.Gate.Closed(gate, p.Message)
	case p.Kind == protocol.Halted, p.Kind == protocol.Parked:
		c.server.Parking.answered(c.client, p.Message)
	case p.Kind == protocol.Sliced && gate != nil:
		c.server.config.Gate.Sliced(gate, p.Message)
	default:
		return fmt.Errorf("%w: kind %d on device %d", errProtocol, p.Kind, p.Device)
	}
	return nil
}

// Gate is a client's gate on one device: where its launches there wait for a grant.
type Gate struct {
	connection *connection
	device     int
}

// LGPU returns the ID of the gate's lgpu.
func (g *Gate) LGPU() uint64 { return g.connection.client.lgpu.ID }

// Client returns the index of its client in the lgpu's region.
func (g *Gate) Client() int { return g.connection.client.index }

// Peer returns the process of its client.
func (g *Gate) Peer() Peer { return g.connection.client.peer }

// Device returns the index of its device among the lgpu's.
func (g *Gate) Device() int { return g.device }

// UUID returns the UUID of its device.
func (g *Gate) UUID() [16]byte { return g.connection.client.lgpu.uuids[g.device] }

// Busy returns the lgpu's device time on this device in ns, as the tenant counts it. The tenant may write
// anything there, and lower it.
func (g *Gate) Busy() uint64 { return g.connection.client.lgpu.shared.Busy(g.device) }

// Launches returns how often the lgpu has launched something on this device, in the tenant's words like Busy.
func (g *Gate) Launches() uint64 { return g.connection.client.lgpu.shared.Launches(g.device) }

// Beat shows the lgpu's processes that the daemon is alive and dispatches this device.
func (g *Gate) Beat() { g.connection.client.lgpu.shared.Beat(g.device) }

// Send sends a message about the gate; Device and Client are filled in. It never waits: a client that does not
// read loses its connection.
func (g *Gate) Send(m protocol.Message) {
	m.Device, m.Client = uint32(g.device), uint32(g.connection.client.index)
	g.connection.send(m, "")
}
