package tenant

import (
	"cmp"
	"maps"
	"slices"

	"github.com/lgpu/lgpu/tenant/protocol"
)

// orphan is memory of a device that a client has given away under descriptors before it died. A descriptor keeps the
// memory, and only the device can tell whether any process still has one. Until then it stays charged to the dead
// client.
type orphan struct {
	lgpu   *lgpu
	index  int
	device int // index in the lgpu's devices
	bytes  uint64
}

// orphans are all of a Server, oldest first. Server.mu guards them.
type orphans []orphan

// add notes what a dead client may leave on devices. It is called before the client is settled.
func (all *orphans) add(l *lgpu, index int) {
	exported, _ := l.shared.Exports(index)
	for i, bytes := range exported {
		if bytes = min(bytes, l.atMost(i)); bytes != 0 {
			*all = append(*all, orphan{l, index, i, bytes})
		}
	}
}

// atMost is the most memory of a device that an lgpu can have, whatever its tenants have written.
func (l *lgpu) atMost(device int) uint64 { return min(l.limit(device+1), l.most(device+1)) }

// kept returns the orphans of a dead client on each device of its lgpu, in bytes.
func (all orphans) kept(l *lgpu, index int) []uint64 {
	kept := make([]uint64, len(l.Devices))
	for _, o := range all {
		if o.lgpu == l && o.index == index {
			kept[o.device] += o.bytes
		}
	}
	return kept
}

// keeps reports whether a dead client has orphans.
func (all orphans) keeps(l *lgpu, index int) bool {
	return slices.ContainsFunc(all, func(o orphan) bool { return o.lgpu == l && o.index == index })
}

// forget drops the orphans of an lgpu.
func (all *orphans) forget(l *lgpu) {
	*all = slices.DeleteFunc(*all, func(o orphan) bool { return o.lgpu == l })
}

// Claim is what an lgpu is charged of a device for memory that was given away under descriptors, in bytes.
type Claim struct {
	LGPU     uint64
	Orphans  uint64 // by clients that have died
	Released uint64 // by live ones that have neither handle nor mapping of it any more: the driver does not count it as theirs
}

// Exports is what is charged of a device for memory given away.
type Exports struct {
	Claims []Claim
	// Charged is what each client of an lgpu that claims is charged for in all, by pid.
	Charged map[int]uint64
}

// Exports returns what is charged of a device for memory given away. What tenants have written counts up to the limits
// of their lgpu.
func (s *Server) Exports(device [16]byte) Exports {
	s.mu.Lock()
	defer s.mu.Unlock()
	claims := map[*lgpu]*Claim{}
	add := func(l *lgpu, i int, orphans, released uint64) {
		c := claims[l]
		if c == nil {
			c = &Claim{LGPU: l.ID}
			claims[l] = c
		}
		c.Orphans = min(c.Orphans+orphans, l.atMost(i))
		c.Released = min(c.Released+min(released, l.atMost(i)), l.atMost(i)-c.Orphans)
	}
	for _, o := range s.orphans {
		if o.lgpu.uuids[o.device] == device {
			add(o.lgpu, o.device, o.bytes, 0)
		}
	}
	charged := map[*lgpu]map[int]uint64{}
	for _, c := range s.clients {
		i := slices.Index(c.lgpu.uuids, device)
		if i < 0 || c.lgpu.shared == nil {
			continue
		}
		if _, released := c.lgpu.shared.Exports(c.index); released[i] != 0 {
			add(c.lgpu, i, 0, released[i])
		}
		if charged[c.lgpu] == nil {
			charged[c.lgpu] = map[int]uint64{}
		}
		_, bytes := c.lgpu.shared.Charged(c.index)
		charged[c.lgpu][c.peer.PID] = bytes[i]
	}
	e := Exports{Charged: map[int]uint64{}}
	for l, c := range claims {
		e.Claims = append(e.Claims, *c)
		maps.Copy(e.Charged, charged[l])
	}
	slices.SortFunc(e.Claims, func(a, b Claim) int { return cmp.Compare(a.LGPU, b.LGPU) })
	return e
}

// releaseTolerance is the part of an orphan by which the device may seem to have more than it has: drivers take memory
// of their own for every process.
const releaseTolerance = 4

// ReleaseExports gives back what an lgpu is charged of a device for memory given away, of which so many bytes are gone:
// orphans, oldest first, then what live clients have released, which are told so.
func (s *Server) ReleaseExports(device [16]byte, lgpu, gone uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lgpus[lgpu]
	if l == nil || l.shared == nil {
		return
	}
	s.orphans = slices.DeleteFunc(s.orphans, func(o orphan) bool {
		if o.lgpu != l || l.uuids[o.device] != device || gone < o.bytes-o.bytes/releaseTolerance {
			return false
		}
		gone -= min(gone, o.bytes)
		if !slices.Contains(l.stale, o.index) {
			l.stale = append(l.stale, o.index)
		}
		return true
	})
	s.settle(l)
	i := slices.Index(l.uuids, device)
	for _, c := range l.clients {
		if c == nil || c.conn == nil || i < 0 || gone == 0 {
			continue
		}
		_, released := l.shared.Exports(c.index)
		if bytes := min(released[i], gone); bytes != 0 {
			gone -= bytes
			c.conn.send(protocol.Message{Kind: protocol.Gone, Device: uint32(i), Value: bytes}, "")
		}
	}
}

// settle settles the clients that have died, now or as soon as it can be done. Called with mu held.
func (s *Server) settle(l *lgpu) {
	s.settleStale(l)
	if len(l.stale) > 0 && !l.retrying {
		l.retrying = true
		s.running.Go(func() { s.retrySettling(l) })
	}
}
