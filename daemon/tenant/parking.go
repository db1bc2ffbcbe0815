package tenant

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/internal/contain"
	"github.com/lgpu/lgpu/internal/units"
	"github.com/lgpu/lgpu/tenant/protocol"
	"github.com/lgpu/lgpu/tenant/region"
)

// Errors of Halt, Park, Rejoin and Proceed.
var (
	// ErrEnded: the process is no client any more.
	ErrEnded = errors.New("the program has ended")
	// ErrUnlinked: it has no connection, or lost it; then it goes on.
	ErrUnlinked = errors.New("the program has lost its connection")
	// ErrBusy: its work does not end.
	ErrBusy = errors.New("its work does not end")
	// ErrCopies: it has no memory for copies of what it shares with the daemon.
	ErrCopies = errors.New("it has no memory for copies of what it shares with the daemon")
	// ErrRoom: what it holds does not fit into its lgpu.
	ErrRoom = errors.New("its lgpu has no room for its memory")
)

// errKept is the answer to a parked process that is to stay so. It asks now and then, which is no event.
var errKept error = &Refusal{Errno: unix.EAGAIN, Text: "its devices are released; lgpu resume brings it back"}

// call is what somebody waits to hear from a client.
type call struct {
	kind   uint16
	serial uint64
	heard  chan protocol.Message // of room for one; a message of no kind: it has lost its connection
}

// Parking has clients of a Server leave their devices and come back.
type Parking struct {
	server *Server
	// What follows is guarded by the Server's mu.
	parked   map[Process]bool // that are to stay so
	expected map[int]int      // how often a number is awaited, of parked processes that come back from an image
	calls    map[Process]*call
	serial   uint64 // of the last Halt or Park
}

func newParking(s *Server) *Parking {
	return &Parking{server: s, parked: map[Process]bool{}, expected: map[int]int{}, calls: map[Process]*call{}}
}

// Halt has a client let nothing begin any more, and returns once nothing is under way. If ctx ends before, or something is
// in the way, the client goes on.
func (k *Parking) Halt(ctx context.Context, p Process) error {
	patience := uint64(1<<63 - 1)
	if end, ok := ctx.Deadline(); ok {
		patience = uint64(max(time.Until(end), 1))
	}
	m, err := k.order(ctx, p, protocol.Message{Kind: protocol.Halt, Value: patience}, protocol.Halted)
	switch {
	case err != nil && ctx.Err() != nil:
		k.say(p, protocol.Message{Kind: protocol.Halt})
		return err
	case err != nil:
		return err
	case m.Flags&protocol.FlagRefused != 0:
		return ErrBusy
	}
	return nil
}

// Park has a halted client give up all that leads out of it, its connection too. It stays a client, and what it holds is
// charged on. From before the call until Rejoin it may not come back (Keep).
func (k *Parking) Park(ctx context.Context, p Process) error {
	k.Keep(p, true)
	m, err := k.order(ctx, p, protocol.Message{Kind: protocol.Park}, protocol.Parked)
	switch {
	case err == nil && m.Flags&protocol.FlagRefused != 0 && m.Extra == protocol.WhyStore:
		err = ErrCopies
	case err == nil && m.Flags&protocol.FlagRefused != 0:
		err = ErrBusy
	}
	if err != nil {
		k.Keep(p, false)
	}
	return err
}

// Keep says whether a parked process is to stay so. A Server knows nothing of those of the daemon before it.
func (k *Parking) Keep(p Process, parked bool) {
	k.server.mu.Lock()
	defer k.server.mu.Unlock()
	if parked {
		k.parked[p] = true
	} else {
		delete(k.parked, p)
	}
}

// Expect keeps away parked processes that come with these numbers and are no clients, until forget is called: they come back
// from an image, and whoever brings them says when they may.
func (k *Parking) Expect(pids []int) (forget func()) {
	k.server.mu.Lock()
	defer k.server.mu.Unlock()
	for _, pid := range pids {
		k.expected[pid]++
	}
	return sync.OnceFunc(func() {
		k.server.mu.Lock()
		defer k.server.mu.Unlock()
		for _, pid := range pids {
			if k.expected[pid]--; k.expected[pid] == 0 {
				delete(k.expected, pid)
			}
		}
	})
}

// Rejoin has a parked process come back, and returns once it is a client again that is charged for what it holds, and still
// halted. Otherwise it stays parked.
func (k *Parking) Rejoin(ctx context.Context, p Process) error {
	_, life, err := find(p)
	if errors.Is(err, errEnded) {
		return ErrEnded
	}
	if err != nil {
		return err
	}
	defer life.Close()
	w, err := k.await(p, protocol.Halted, 0)
	if err != nil {
		return err
	}
	if k.linked(p) { // it has come back by itself; asked after await, so that one that comes now is heard
		k.forgetCall(p, w)
		return nil
	}
	// One from an image is no client yet, of which the Server would notice the end.
	ctx, cancel := context.WithCancelCause(ctx)
	go func() { life.await(); cancel(ErrEnded) }()
	k.Keep(p, false)
	k.callParked()
	m, err := k.hear(ctx, p, w)
	if err == nil && m.Flags&protocol.FlagRefused != 0 {
		of := fmt.Sprintf("device %d", m.Device)
		if m.Flags&protocol.FlagHost != 0 {
			of = "page-locked host memory"
		}
		err = fmt.Errorf("%w: %s of %s", ErrRoom, units.FormatSize(m.Value), of)
	}
	if err != nil && !errors.Is(err, ErrEnded) {
		k.Keep(p, true)
		k.cut(p)
	}
	return err
}

// Rehouse gives an lgpu other devices, as many as it has, while all of its clients are parked. They stay its clients, and are
// charged for as much as before where there is room for it; where there is none they will not come back (Rejoin). Files
// with what has left devices they bring with them, as to a new daemon. An error wraps ErrUnknown, ErrDevices, region.ErrSpec,
// or ErrInUse where a client is not parked or memory of the lgpu was given away; nothing has changed then.
func (k *Parking) Rehouse(spec LGPU) error {
	s := k.server
	s.mu.Lock()
	defer s.mu.Unlock()
	k.cutAll(spec.ID)
	old := s.lgpus[spec.ID]
	switch {
	case old == nil:
		return fmt.Errorf("move lgpu %s: %w", spec.Name, ErrUnknown)
	case len(spec.Devices) != len(old.Devices):
		return fmt.Errorf("move lgpu %s: %w", spec.Name, ErrDevices)
	}
	if slices.ContainsFunc(s.orphans, func(o orphan) bool { return o.lgpu == old }) {
		return fmt.Errorf("move lgpu %s: %w: memory that a program of it gave away is still used", spec.Name, ErrInUse)
	}
	type charge struct {
		client, kind int
		bytes        uint64
	}
	var charges []charge
	for i, c := range old.clients {
		if c == nil {
			continue
		}
		if c.conn != nil || !k.parked[c.peer.Process] {
			return fmt.Errorf("move lgpu %s: %w by pid %d, which is not parked", spec.Name, ErrInUse, c.peer.PID)
		}
		if old.shared == nil {
			continue // the daemon before had its counters, which are gone
		}
		host, devices := old.shared.Charged(i)
		charges = append(charges, charge{i, hostKind, host})
		for d, bytes := range devices {
			charges = append(charges, charge{i, d + 1, bytes})
		}
	}
	l, err := newLGPU(spec)
	if err != nil {
		return fmt.Errorf("move lgpu %s: %w", spec.Name, err)
	}
	shared, err := region.New(l.region())
	if err != nil {
		return fmt.Errorf("move lgpu %s: %w", spec.Name, err)
	}
	old.end(s)
	l.roster, l.clients, l.count, l.stale = old.roster, old.clients, old.count, old.stale
	l.begin(s)
	for _, c := range l.clients {
		if c == nil {
			continue
		}
		c.lgpu = l
		if c.holder != nil { // it has its files, and brings them
			s.config.Residence.Left(c.holder)
			s.brought(c)
			c.returns(s)
		}
	}
	s.memory.clear(l)
	s.attach(l, shared)
	for _, c := range charges {
		if _, _, room := s.memory.need(l, c.kind, c.bytes); room {
			shared.Charge(c.client, c.kind-1, c.bytes) // nobody else has the region yet
		}
	}
	s.settleStale(l)
	return nil
}

// Proceed has a halted client go on. One without connection does so by itself.
func (k *Parking) Proceed(ctx context.Context, p Process) error {
	m, err := k.order(ctx, p, protocol.Message{Kind: protocol.Halt}, protocol.Halted)
	if errors.Is(err, ErrUnlinked) {
		return nil
	}
	if err == nil && m.Value != 0 {
		err = ErrBusy
	}
	return err
}

// linked reports whether a client is not parked, and has a connection.
func (k *Parking) linked(p Process) bool {
	k.server.mu.Lock()
	defer k.server.mu.Unlock()
	c := k.server.clients[p]
	return c != nil && c.conn != nil && !k.parked[p]
}

// Parked reports whether a process is kept from coming back.
func (k *Parking) Parked(p Process) bool {
	k.server.mu.Lock()
	defer k.server.mu.Unlock()
	return k.parked[p]
}

// order says m to a client, with a Serial of its own, and waits for the answer.
func (k *Parking) order(ctx context.Context, p Process, m protocol.Message, answer uint16) (protocol.Message, error) {
	k.server.mu.Lock()
	k.serial++
	m.Serial = k.serial
	k.server.mu.Unlock()
	expected := m.Serial
	if answer == protocol.Parked {
		expected = 0
	}
	w, err := k.await(p, answer, expected)
	if err != nil {
		return protocol.Message{}, err
	}
	if !k.say(p, m) {
		k.forgetCall(p, w)
		return protocol.Message{}, k.whyUnlinked(p)
	}
	return k.hear(ctx, p, w)
}

// await notes that somebody waits for a message of a process; one at a time.
func (k *Parking) await(p Process, kind uint16, serial uint64) (*call, error) {
	w := &call{kind: kind, serial: serial, heard: make(chan protocol.Message, 1)}
	k.server.mu.Lock()
	defer k.server.mu.Unlock()
	if k.calls[p] != nil {
		return nil, fmt.Errorf("process %d is asked something else", p.PID)
	}
	k.calls[p] = w
	return w, nil
}

// hear waits for what await was for.
func (k *Parking) hear(ctx context.Context, p Process, w *call) (m protocol.Message, err error) {
	select {
	case m = <-w.heard:
		if m.Kind == 0 {
			err = k.whyUnlinked(p)
		}
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-k.server.done:
		err = ErrUnlinked
	}
	k.forgetCall(p, w)
	return m, err
}

func (k *Parking) forgetCall(p Process, w *call) {
	k.server.mu.Lock()
	defer k.server.mu.Unlock()
	if k.calls[p] == w {
		delete(k.calls, p)
	}
}

// leaving is how long a process may take to end after its connection has.
const leaving = 200 * time.Millisecond

// whyUnlinked says why a process does not answer: its connection may have ended because it ends.
func (k *Parking) whyUnlinked(p Process) error {
	_, life, err := find(p)
	if err != nil {
		return ErrEnded
	}
	defer life.Close()
	fds := []unix.PollFd{{Fd: int32(life.fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, int(leaving.Milliseconds())); err == nil && n > 0 {
		return ErrEnded
	}
	return ErrUnlinked
}

// say says something to a client. False: it has no connection.
func (k *Parking) say(p Process, m protocol.Message) bool {
	conn, index := k.connection(p)
	if conn == nil {
		return false
	}
	m.Client = index
	conn.send(m, "")
	return true
}

// connection returns the connection of a client, nil if it has none, and its index.
func (k *Parking) connection(p Process) (*connection, uint32) {
	k.server.mu.Lock()
	defer k.server.mu.Unlock()
	if c := k.server.clients[p]; c != nil {
		return c.conn, uint32(c.index)
	}
	return nil, 0
}

// cut ends the connection of a client.
func (k *Parking) cut(p Process) {
	if conn, _ := k.connection(p); conn != nil {
		conn.close()
	}
}

// cutAll ends the connections that parked clients of an lgpu have still, which they close by themselves a moment after they
// have said that they are parked. Called with mu held, which is released meanwhile.
func (k *Parking) cutAll(lgpu uint64) {
	var conns []*connection
	for p, c := range k.server.clients {
		if c.lgpu.ID == lgpu && c.conn != nil && k.parked[p] {
			conns = append(conns, c.conn)
		}
	}
	k.server.mu.Unlock()
	for _, conn := range conns {
		conn.close()
		<-conn.done
	}
	k.server.mu.Lock()
}

// answered hands what a client says to who waits for it. A client that has come back and is not waited for may go on.
func (k *Parking) answered(c *client, m protocol.Message) {
	k.server.mu.Lock()
	w := k.calls[c.peer.Process]
	waited := w != nil && w.kind == m.Kind && w.serial == m.Serial
	if waited {
		delete(k.calls, c.peer.Process)
		w.heard <- m
	}
	k.server.mu.Unlock()
	if !waited && m.Kind == protocol.Halted && m.Serial == 0 && m.Value != 0 && m.Flags == 0 {
		k.say(c.peer.Process, protocol.Message{Kind: protocol.Halt})
	}
}

// unanswered says to who waits for a client that its connection has ended. One that comes back has had none. Called with mu
// held.
func (k *Parking) unanswered(p Process) {
	if w := k.calls[p]; w != nil && (w.kind == protocol.Parked || w.serial != 0) {
		delete(k.calls, p)
		w.heard <- protocol.Message{}
	}
}

// resumed notes that a client has connected again that was not parked yet, or is not any more. Called with mu held.
func (k *Parking) resumed(p Process) {
	delete(k.parked, p)
	if w := k.calls[p]; w != nil && w.kind == protocol.Halted && w.serial == 0 {
		delete(k.calls, p)
		w.heard <- protocol.Message{Kind: protocol.Halted, Value: 1}
	}
}

// processEnded forgets a process. Called with mu held.
func (k *Parking) processEnded(p Process) {
	delete(k.parked, p)
	if w := k.calls[p]; w != nil {
		delete(k.calls, p)
		w.heard <- protocol.Message{}
	}
}

// callParked has parked processes look for the daemon: they see that a socket has another time of change.
func (k *Parking) callParked() {
	k.server.mu.Lock()
	paths := []string{k.server.config.Socket}
	for _, d := range k.server.doors {
		paths = append(paths, filepath.Join(d.folder, contain.SocketName))
	}
	k.server.mu.Unlock()
	now := time.Now()
	for _, path := range paths {
		if err := os.Chtimes(path, now, now); err != nil {
			k.server.log.Debug("tenant: parked programs come later", "err", err) // they ask now and then
		}
	}
}

// rejoin lets a process come back that was parked, if the daemon knows it: it keeps its index, and what it held is given
// back, since it charges that anew. False: it comes as a new one, since it was restored from an image, or the daemon has
// been replaced.
func (k *Parking) rejoin(c *connection) (known bool, err error) {
	k.server.mu.Lock()
	for {
		if k.server.closed {
			k.server.mu.Unlock()
			return true, errEnded
		}
		if k.parked[c.peer.Process] {
			k.server.mu.Unlock()
			return true, errKept
		}
		former := k.server.clients[c.peer.Process]
		if former == nil && k.expected[c.peer.PID] > 0 {
			k.server.mu.Unlock()
			return true, errKept
		}
		if former == nil {
			k.server.mu.Unlock()
			return false, nil
		}
		if conn := former.conn; conn != nil {
			k.server.mu.Unlock()
			conn.close()
			<-conn.done
			k.server.mu.Lock()
			continue
		}
		l := former.lgpu
		if l.shared == nil { // the daemon before had its counters, and it brings none
			if former.holder != nil {
				c.held = l.roster.held(former.index, len(l.uuids)) // but files
			}
			k.server.mu.Unlock()
			k.server.remove(former)
			return false, nil
		}
		if !l.shared.Settle(former.index, k.server.orphans.kept(l, former.index)) {
			k.server.mu.Unlock()
			return true, &Refusal{Errno: unix.EAGAIN, Text: "what it held cannot be given back yet"}
		}
		l.shared.Claim(former.index, ownerOf(c.peer))
		former.conn, c.client, c.resumed = c, former, true
		k.server.seesLimits(former)
		k.server.brought(former)
		k.server.mu.Unlock()
		return true, l.shared.Files(func(limits, usage int) error {
			m := protocol.Message{Kind: protocol.Welcome, Version: protocol.Version, Flags: protocol.FlagRejoin,
				Client: uint32(former.index), ID: l.ID}
			c.send(m, "", limits, usage)
			return nil
		})
	}
}

// ownerOf is what a region says of a client.
func ownerOf(p Peer) region.Owner {
	return region.Owner{PID: innerPID(p.PID), Start: p.Start, Namespace: namespace(p.PID), Comm: p.Comm}
}
