package tenant

import (
	"fmt"
	"iter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/tenant/protocol"
	"github.com/lgpu/lgpu/tenant/region"
)

// hostCounter and deviceCounter are an lgpu's kinds of memory in its region.
type hostCounter struct{ shared *region.Shared }

func (c hostCounter) Grant(bytes uint64) { c.shared.SetHostMemory(bytes) }
func (c hostCounter) Used() uint64       { return c.shared.Host() }

type deviceCounter struct {
	shared *region.Shared
	device int
}

func (c deviceCounter) Grant(bytes uint64) { c.shared.SetGranted(c.device, bytes) }
func (c deviceCounter) Used() uint64       { return c.shared.Used(c.device) }

// pools are the pools that an lgpu has shares in, by kind of memory. Called with mu held.
func (s *Server) pools(l *lgpu) iter.Seq2[int, *pool] {
	return func(yield func(int, *pool) bool) {
		if !yield(hostKind, s.host) {
			return
		}
		for i, d := range l.Devices {
			if !yield(i+1, s.devices[d.UUID]) {
				return
			}
		}
	}
}

// limit returns the lgpu's own limit of a kind of memory.
func (l *lgpu) limit(kind int) uint64 {
	if kind == hostKind {
		return l.HostMemory
	}
	return l.Devices[kind-1].Memory
}

// most returns how much of a kind of memory there is.
func (l *lgpu) most(kind int) uint64 {
	if kind == hostKind || l.Devices[kind-1].Physical == 0 {
		return maxHeld
	}
	return min(l.Devices[kind-1].Physical, maxHeld)
}

// region returns what the lgpu's region is made of. Nothing is granted yet.
func (l LGPU) region() region.Spec {
	spec := region.Spec{ID: l.ID, Name: l.Name}
	for _, d := range l.Devices {
		d.Granted = 0
		spec.Devices = append(spec.Devices, d)
	}
	return spec
}

// share gives the lgpu its part of every pool. Called with mu held.
func (s *Server) share(l *lgpu) {
	for _, d := range l.Devices {
		if s.devices[d.UUID] == nil {
			s.devices[d.UUID] = newPool()
			s.divide(s.devices[d.UUID], deviceLimit(d.UUID))
		}
	}
	for kind, p := range s.pools(l) {
		p.add(&share{
			id: l.ID, limit: l.limit(kind), most: l.most(kind), held: min(l.roster.held[kind], l.most(kind)),
			keep: func(held uint64) { s.note(l, l.roster.hold(kind, held)) },
		}, l.Parent)
	}
}

// fresh gives an lgpu a region that nobody has used: what its former clients held went with the last of them. Called
// with mu held.
func (s *Server) fresh(l *lgpu) error {
	shared, err := region.New(l.region())
	if err != nil {
		return err
	}
	for _, p := range s.pools(l) {
		p.shares[l.ID].hold(0)
	}
	s.attach(l, shared)
	s.retry(l)
	return nil
}

// adopt gives an lgpu the counters that a client has brought. Called with mu held.
func (s *Server) adopt(l *lgpu, fd int) error {
	inode, err := region.CheckUsage(fd)
	if err != nil {
		return err
	}
	if other, taken := s.inodes[inode]; taken {
		return fmt.Errorf("%w: these are the counters of lgpu %#x", region.ErrInvalid, other)
	}
	shared, err := region.Adopt(l.region(), fd)
	if err != nil {
		return err
	}
	s.attach(l, shared)
	s.retry(l)
	return nil
}

// attach makes shared the lgpu's region. Called with mu held.
func (s *Server) attach(l *lgpu, shared *region.Shared) {
	l.shared = shared
	s.inodes[shared.UsageInode()] = l.ID
	for kind, p := range s.pools(l) {
		if kind == hostKind {
			p.attach(l.ID, hostCounter{shared}, l.frozen())
		} else {
			p.attach(l.ID, deviceCounter{shared, kind - 1}, l.frozen())
		}
	}
	close(l.ready)
	s.expect(-1)
}

// frozen reports whether some client may still go by older limits. Called with mu held.
func (l *lgpu) frozen() bool {
	for _, c := range l.clients {
		if c != nil && c.old {
			return true
		}
	}
	return false
}

// seen notes that a client goes by the present limits, or by none any more. Called with mu held.
func (s *Server) seen(c *client) {
	if !c.old {
		return
	}
	c.old = false
	if c.lgpu.shared == nil || c.lgpu.removed || c.lgpu.frozen() {
		return
	}
	for _, p := range s.pools(c.lgpu) {
		p.thaw(c.lgpu.ID)
	}
}

// reapCost is what looking for dead clients counts for among messages.
const reapCost = 64

// need answers a client that wants more memory than is granted.
func (s *Server) need(c *client, m protocol.Message) protocol.Message {
	kind, device := int(m.Device)+1, int(m.Device)
	if m.Flags&protocol.FlagHost != 0 {
		kind, device = hostKind, -1
	}
	granted, ok := s.ask(c, kind, m.Value)
	if !ok {
		c.lgpu.messages.take(time.Now(), reapCost)
		s.reap()
		if granted, ok = s.ask(c, kind, m.Value); !ok {
			s.config.Observer.OutOfMemory(s.describe(c), device, m.Value)
		}
	}
	return protocol.Message{Kind: protocol.Memory, Device: m.Device, Flags: m.Flags & protocol.FlagHost, Value: granted}
}

// ask tries to have more granted.
func (s *Server) ask(c *client, kind int, bytes uint64) (granted uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.gone || c.lgpu.removed {
		return 0, true // nobody is left to tell
	}
	p := s.host
	if kind != hostKind {
		p = s.devices[c.lgpu.Devices[kind-1].UUID]
	}
	ok = p.need(c.lgpu.ID, bytes)
	return p.shares[c.lgpu.ID].granted, ok
}

// reap settles all dead clients, without waiting for the news of their death.
func (s *Server) reap() {
	s.mu.Lock()
	clients := make([]*client, 0, len(s.clients))
	polled := make([]unix.PollFd, 0, len(s.clients))
	for _, c := range s.clients {
		clients = append(clients, c)
		polled = append(polled, unix.PollFd{Fd: int32(c.life.fd), Events: unix.POLLIN})
	}
	// The descriptors are open: they are closed when their client is none any more.
	if _, err := poll(polled); err != nil || s.closed {
		clients = nil
	}
	s.mu.Unlock()
	for i, c := range clients {
		if polled[i].Revents != 0 {
			s.leave(c)
		}
	}
}
