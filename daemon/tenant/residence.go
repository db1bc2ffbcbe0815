package tenant

import (
	"cmp"
	"fmt"

	"github.com/lgpu/lgpu/tenant/protocol"
	"github.com/lgpu/lgpu/tenant/region"
)

// ResidenceHandler decides how much memory clients of lgpus with memory.overcommit have resident. The calls for one
// Holder come one at a time, Joined first and Left last. They may come with locks of this package held: they note what
// was said and return at once, without a call of the Server or of a Holder but Identity.
type ResidenceHandler interface {
	// Joined: the process is a client. held is what is known of one of the daemon before, for each device; nil of a new
	// one.
	Joined(h *Holder, held []Held)
	// Wanted: the client uses a device (level 0), or wants a level, of which it needs the least now.
	Wanted(h *Holder, device int, level, least uint64)
	// Fixed: the client says what it has of a device that cannot leave it. With an ID it waits for a Keep with FlagFixed.
	Fixed(h *Holder, device int, m protocol.Message)
	// Kept: the client says what it has resident. store is a descriptor that came with it, or -1; it is closed when the
	// call returns, and nothing about it has been checked.
	Kept(h *Holder, device int, m protocol.Message, store int)
	// Lost: its connection has ended.
	Lost(h *Holder)
	// Left: the process has died.
	Left(h *Holder)
}

// Held is what a client has of a device, for the daemon after this one.
type Held struct {
	Taken  uint64               // bytes that it may have resident at most
	Stores [stores]region.Inode // of the files with copies of what is not, memory first, then disk; zero: none
}

// stores is how many files a client can have of a device.
const stores = 2

// Holder is a client of an lgpu with memory.overcommit.
type Holder struct {
	server *Server
	client *client
}

// Identity returns the ID of its lgpu, its process, and the UUIDs of its devices, which are not to be changed.
func (h *Holder) Identity() (lgpu uint64, peer Peer, devices [][16]byte) {
	return h.client.lgpu.ID, h.client.peer, h.client.lgpu.uuids
}

// Ended reports whether the process has ended, of which Left may not have been said yet.
func (h *Holder) Ended() bool { return h.client.life.ended() }

// Note writes down what the client has of a device, for the daemon after this one. What it may have is noted before it
// hears of it, and what it has given back afterwards.
func (h *Holder) Note(device int, held Held) error {
	h.server.mu.Lock()
	defer h.server.mu.Unlock()
	if h.client.gone || h.client.lgpu.removed {
		return nil
	}
	return h.client.lgpu.roster.setHeld(h.client.index, device, held)
}

// Send sends a message about a device of the client, which is filled in, with descriptors. It never waits: a client that
// does not read loses its connection, and one without connection hears nothing.
func (h *Holder) Send(device int, m protocol.Message, fds ...int) {
	h.server.mu.Lock()
	conn := h.client.conn
	h.server.mu.Unlock()
	if conn != nil {
		m.Device, m.Client = uint32(device), uint32(h.client.index)
		conn.send(m, "", fds...)
	}
}

// managed reports whether memory of an lgpu can leave a device.
func (l *lgpu) managed(device int) bool { return l.Devices[device].Overcommit != 0 }

// anyManaged reports whether memory of an lgpu can leave any device.
func (l *lgpu) anyManaged() bool {
	for i := range l.Devices {
		if l.managed(i) {
			return true
		}
	}
	return false
}

// hold tells the ResidenceHandler of a client, if it is for it. Called with mu held.
func (s *Server) hold(c *client, held []Held) {
	if s.config.Residence != nil && c.lgpu.anyManaged() {
		c.holder = &Holder{server: s, client: c}
		s.config.Residence.Joined(c.holder, held)
	}
}

// returns notes that a client is to come back with the files that it has. Called with mu held.
func (c *client) returns(s *Server) {
	if c.lgpu.anyManaged() {
		c.returning = true
		s.countReturning(1)
	}
	s.hold(c, c.lgpu.roster.held(c.index, len(c.lgpu.Devices)))
}

// brought notes that a client of the daemon before has come back, or has died: nothing more is expected of it. Called
// with mu held.
func (s *Server) brought(c *client) {
	if c.returning {
		c.returning = false
		s.countReturning(-1)
	}
}

// residence handles a message about resident memory.
func (c *connection) residence(p packet) error {
	h := c.client.holder
	if h == nil || !c.client.lgpu.managed(int(p.Device)) {
		return fmt.Errorf("%w: kind %d of a device whose memory stays", errProtocol, p.Kind)
	}
	switch {
	case p.Kind == protocol.Need && p.Flags&protocol.FlagFixed != 0:
		c.server.config.Residence.Fixed(h, int(p.Device), p.Message)
		return nil
	case p.Kind == protocol.Need:
		c.server.config.Residence.Wanted(h, int(p.Device), p.Value, cmp.Or(p.Extra, p.Value))
		return nil
	}
	store := -1
	if len(p.files) > 0 {
		store = p.files[0]
	}
	c.server.config.Residence.Kept(h, int(p.Device), p.Message, store)
	return nil
}

// mayBringStore reports whether a descriptor may come with a message: a file with what has left a device, each once after
// a reconnect.
func (c *connection) mayBringStore(m protocol.Message) bool {
	which := 0
	if m.Flags&protocol.FlagMore != 0 {
		which = 1
	}
	if m.Kind != protocol.Kept || m.Serial != 0 || !c.resumed || c.client.holder == nil ||
		int(m.Device) >= len(c.client.lgpu.uuids) || c.stores[m.Device][which] {
		return false
	}
	c.stores[m.Device][which] = true
	return true
}
