package tenant

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/tenant/protocol"
	"github.com/lgpu/lgpu/tenant/region"
)

// region returns what the lgpu's region is made of. Nothing is granted yet.
func (l LGPU) region() region.Spec {
	spec := region.Spec{ID: l.ID, Name: l.Name}
	for _, d := range l.Devices {
		d.Granted = 0
		spec.Devices = append(spec.Devices, d)
	}
	return spec
}

// newRegion gives an lgpu a new region: nothing is charged any more, since its last client has died. Called with mu
// held.
func (s *Server) newRegion(l *lgpu) error {
	shared, err := region.New(l.region())
	if err != nil {
		return err
	}
	s.memory.clear(l)
	s.attach(l, shared)
	s.settleStale(l)
	return nil
}

// adopt gives an lgpu the counters that a client has brought. Called with mu held.
func (s *Server) adopt(l *lgpu, fd int) error {
	inode, err := region.CheckUsage(fd)
	if err != nil {
		return err
	}
	if other, used := s.inodes[inode]; used {
		return fmt.Errorf("%w: these are the counters of lgpu %#x", region.ErrInvalid, other)
	}
	shared, err := region.Adopt(l.region(), fd)
	if err != nil {
		return err
	}
	s.attach(l, shared)
	s.settleStale(l)
	return nil
}

// attach makes shared the lgpu's region. Called with mu held.
func (s *Server) attach(l *lgpu, shared *region.Shared) {
	l.shared = shared
	s.inodes[shared.UsageInode()] = l.ID
	s.memory.attach(l, shared)
	close(l.ready)
	s.countReturning(-1)
}

// frozen reports whether some client may still obey older limits. Called with mu held.
func (l *lgpu) frozen() bool {
	for _, c := range l.clients {
		if c != nil && c.oldLimits {
			return true
		}
	}
	return false
}

// seesLimits notes that a client obeys the present limits, or has died. Called with mu held.
func (s *Server) seesLimits(c *client) {
	if !c.oldLimits {
		return
	}
	c.oldLimits = false
	if c.lgpu.shared == nil || c.lgpu.removed || c.lgpu.frozen() {
		return
	}
	s.memory.thaw(c.lgpu)
}

// reapCost is what looking for dead clients counts for among messages.
const reapCost = 64

// need answers a client that wants more memory than is granted.
func (s *Server) need(c *client, m protocol.Message) protocol.Message {
	kind, device := int(m.Device)+1, int(m.Device)
	if m.Flags&protocol.FlagHost != 0 {
		kind, device = hostKind, -1
	}
	granted, _, ok := s.ask(c, kind, m.Value)
	if !ok {
		c.lgpu.messages.delay(time.Now(), reapCost)
		s.reap()
		var by uint64
		if granted, by, ok = s.ask(c, kind, m.Value); !ok {
			s.config.Observer.OutOfMemory(s.describe(c), device, m.Value, by)
		}
	}
	return protocol.Message{Kind: protocol.Memory, Device: m.Device, Flags: m.Flags & protocol.FlagHost, Value: granted}
}

// ask tries to have more granted; see memoryPools.need.
func (s *Server) ask(c *client, kind int, bytes uint64) (granted, by uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.gone || c.lgpu.removed {
		return 0, 0, true // there is nobody to answer
	}
	return s.memory.need(c.lgpu, kind, bytes)
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
			s.remove(c)
		}
	}
}
