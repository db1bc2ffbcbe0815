package tenant

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/internal/users"
	"github.com/lgpu/lgpu/tenant/protocol"
	"github.com/lgpu/lgpu/tenant/region"
)

// maxClientsUser is Config.UserClients where nothing else is said. Each client costs the daemon two descriptors.
const maxClientsUser = 1024

// settlePeriod is the time between two tries to settle a dead client whose entry a tenant keeps writing to.
const settlePeriod = 100 * time.Millisecond

// errRemoved: there is no such lgpu any more.
var errRemoved error = &Refusal{Errno: unix.ESRCH, Text: "the lgpu of this process has been removed"}

// lgpuOf returns the ID of the lgpu of which a process is a client, or 0.
func (s *Server) lgpuOf(p Process) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.clients[p]; c != nil {
		return c.lgpu.ID
	}
	return 0
}

// join makes the process of a connection a client of an lgpu. cgroup is that of its container, or empty.
func (s *Server) join(c *connection, id uint64, cgroup string) error {
	s.mu.Lock()
	l, err := s.ready(c, id)
	if err != nil {
		s.mu.Unlock()
		return err
	}
	if s.clientsOf(c.peer.User) >= s.config.UserClients && !trusted(c.peer.User) {
		s.mu.Unlock()
		text := fmt.Sprintf("user %s has %d processes in lgpus, which is all one user may have (quota.processes)",
			users.Name(c.peer.User), s.config.UserClients)
		return &Refusal{Errno: unix.EUSERS, Text: text}
	}
	s.settleStale(l)
	index := 0
	for index < len(l.clients) && (l.clients[index] != nil || slices.Contains(l.stale, index) || s.orphans.keeps(l, index)) {
		index++
	}
	if index == len(l.clients) {
		s.mu.Unlock()
		return &Refusal{Errno: unix.EUSERS, Text: fmt.Sprintf("lgpu %s has %d processes already", l.Name, region.MaxClients)}
	}
	if err := l.roster.setClient(index, c.peer.Process); err != nil {
		s.mu.Unlock()
		return &Refusal{Errno: unix.EIO, Text: "the daemon cannot note its clients: " + err.Error()}
	}
	if l.anyManaged() {
		s.logRoster(l, l.roster.release(index)) // what the one before with this index held
	}
	for device, held := range c.held {
		s.logRoster(l, l.roster.setHeld(index, device, held))
	}
	l.shared.Claim(index, ownerOf(c.peer))
	c.client = &client{
		lgpu: l, index: index, peer: c.peer, life: c.life, joined: time.Now(), cgroup: cgroup, conn: c,
		announced: make(chan struct{}),
	}
	s.register(c.client)
	s.hold(c.client, c.held)
	s.mu.Unlock()
	s.announce(c.client)
	return l.shared.Files(func(limits, usage int) error {
		c.send(protocol.Message{Kind: protocol.Welcome, Version: protocol.Version, Client: uint32(index), ID: l.ID}, "", limits, usage)
		return nil
	})
}

// clientsOf returns how many clients a user has. Called with mu held.
func (s *Server) clientsOf(uid uint32) (n int) {
	for _, c := range s.clients {
		if c.peer.User == uid {
			n++
		}
	}
	return n
}

// ready returns an lgpu that has its region, once the process of the connection is no client any more: a client that
// says Hello again has become another program. Called with mu held, which is released meanwhile.
func (s *Server) ready(c *connection, id uint64) (*lgpu, error) {
	for {
		if s.closed {
			return nil, errEnded
		}
		if former := s.clients[c.peer.Process]; former != nil {
			conn := former.conn
			s.mu.Unlock()
			s.remove(former)
			if conn != nil {
				<-conn.done
			}
			s.mu.Lock()
			continue
		}
		l := s.lgpus[id]
		if l == nil {
			return nil, errRemoved
		}
		if l.shared != nil {
			return l, nil
		}
		if err := s.awaitCounters(c, l); err != nil {
			return nil, err
		}
	}
}

// awaitCounters waits for the clients of the previous daemon to bring the counters of an lgpu. Called with mu held,
// which is released meanwhile.
func (s *Server) awaitCounters(c *connection, l *lgpu) error {
	if l.count == 0 {
		if err := s.newRegion(l); err != nil {
			return &Refusal{Errno: unix.EIO, Text: "the daemon cannot create the lgpu's region: " + err.Error()}
		}
		return nil
	}
	late := &Refusal{
		Errno: unix.EAGAIN, Text: fmt.Sprintf("processes of lgpu %s have not come back since the daemon restarted", l.Name),
	}
	if l.waiting >= maxWaiting {
		return late
	}
	l.waiting++
	first := l.waiting == 1
	s.mu.Unlock()
	if first {
		s.discard(l)
	}
	var err error
	select {
	case <-l.ready:
	case <-c.closing:
		err = errEnded
	case <-time.After(returnTime):
		err = late
	}
	s.mu.Lock()
	l.waiting--
	if l.shared != nil || l.removed {
		return nil
	}
	return err
}

// discard gives up waiting for the processes of an lgpu that have become other programs since.
func (s *Server) discard(l *lgpu) {
	s.mu.Lock()
	var missing []*client
	for _, c := range l.clients {
		if c != nil && c.oldLimits && c.conn == nil {
			missing = append(missing, c)
		}
	}
	s.mu.Unlock()
	for _, c := range missing {
		if has, err := hasUsage(c.peer.PID); err == nil && !has {
			s.remove(c)
		}
	}
}

// view gives a process that only looks the lgpu's region.
func (s *Server) view(c *connection, id uint64) error {
	s.mu.Lock()
	l := s.lgpus[id]
	if l == nil {
		s.mu.Unlock()
		return errRemoved
	}
	if l.shared == nil {
		if err := s.awaitCounters(c, l); err != nil {
			s.mu.Unlock()
			return err
		}
	}
	shared := l.shared
	s.mu.Unlock()
	if shared == nil {
		return errEnded
	}
	return shared.Files(func(limits, usage int) error {
		m := protocol.Message{Kind: protocol.Welcome, Version: protocol.Version, Flags: protocol.FlagView, Client: region.MaxClients, ID: id}
		c.send(m, "", limits, usage)
		return nil
	})
}

// mayBringFiles reports whether a descriptor may come with the first message of a process: a client of the previous
// daemon, or one that lost its connection, brings the counters.
func (s *Server) mayBringFiles(p Process, m protocol.Message) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	former := s.clients[p]
	return m.Kind == protocol.Hello && m.Flags&protocol.FlagReconnect != 0 && former != nil && former.lgpu.ID == m.ID &&
		former.index == int(m.Client)
}

// resume continues a client that has lost its connection, or its daemon. The daemon uses the counters that the client
// brings only if it does not have them already.
func (s *Server) resume(c *connection, p packet) (err error) {
	if c.gone() {
		return errEnded // the client has connected again since, while the daemon hung
	}
	var inode region.Inode
	switch len(p.files) {
	case 0:
	case 1:
		if inode, err = region.CheckUsage(p.files[0]); err != nil {
			return &Refusal{Errno: unix.EBADF, Text: "a client has brought something other than its counters: " + err.Error()}
		}
	default:
		return &Refusal{Errno: unix.EBADF, Text: "a client that comes back must bring its counters alone"}
	}
	s.mu.Lock()
	for {
		former := s.clients[c.peer.Process]
		if former == nil || former.lgpu.ID != p.ID || former.index != int(p.Client) {
			s.mu.Unlock()
			return &Refusal{Errno: unix.ESTALE, Text: "the daemon does not know this process as a client of that lgpu"}
		}
		if former.conn == nil {
			break
		}
		conn := former.conn
		s.mu.Unlock()
		conn.close()
		<-conn.done
		s.mu.Lock()
	}
	former := s.clients[c.peer.Process]
	l := former.lgpu
	switch {
	case l.shared == nil && len(p.files) == 0:
		s.mu.Unlock()
		return &Refusal{Errno: unix.EBADF, Text: "a client that comes back must bring its counters"}
	case l.shared == nil:
		err = s.adopt(l, p.files[0])
	case len(p.files) == 1 && l.shared.UsageInode() != inode:
		err = errors.New("another client of the lgpu has brought others")
	}
	if err != nil {
		s.mu.Unlock()
		return &Refusal{Errno: unix.ESTALE, Text: "a client has brought something other than its lgpu's counters: " + err.Error()}
	}
	former.conn, c.client, c.unseen, c.resumed = c, former, former.oldLimits, true
	s.brought(former)
	s.Parking.resumed(c.peer.Process)
	s.mu.Unlock()
	return l.shared.Files(func(limits, _ int) error {
		m := protocol.Message{Kind: protocol.Welcome, Version: protocol.Version, Flags: protocol.FlagReconnect, Client: p.Client, ID: l.ID}
		c.send(m, "", limits)
		return nil
	})
}

// gone reports whether the other side has closed the connection.
func (c *connection) gone() bool {
	fds := []unix.PollFd{{Events: unix.POLLRDHUP}}
	err := c.conn.Control(func(fd int) {
		fds[0].Fd = int32(fd)
		_, _ = poll(fds) // an error is that of a descriptor that is none
	})
	return err != nil || fds[0].Revents != 0
}

// register makes c one of the clients. Called with mu held.
func (s *Server) register(c *client) {
	c.lgpu.clients[c.index] = c
	c.lgpu.count++
	s.clients[c.peer.Process] = c
}

// announce tells the Observer of a new client and waits for its death from now on.
func (s *Server) announce(c *client) {
	s.config.Observer.Joined(s.describe(c))
	close(c.announced)
	s.running.Go(func() {
		c.life.await()
		s.remove(c)
	})
}

// remove gives back at once what a client is charged for that has died or become another program.
func (s *Server) remove(c *client) {
	s.mu.Lock()
	if c.gone || s.closed {
		s.mu.Unlock()
		return
	}
	c.gone = true
	l, conn, last := c.lgpu, c.conn, c.describe()
	delete(s.clients, c.peer.Process)
	if c.life.ended() {
		s.Parking.processEnded(c.peer.Process)
	}
	l.clients[c.index] = nil
	l.count--
	l.stale = append(l.stale, c.index)
	s.seesLimits(c)
	s.brought(c)
	switch {
	case l.shared != nil:
		s.orphans.add(l, c.index)
		s.settle(l)
	case l.count == 0:
		if err := s.newRegion(l); err != nil {
			s.log.Error("tenant: new region", "lgpu", l.Name, "err", err)
		}
	}
	s.mu.Unlock()
	if conn != nil {
		conn.close()
	}
	<-c.announced
	c.life.Close()
	last.Linked = false
	if c.holder != nil {
		s.config.Residence.Left(c.holder)
	}
	s.config.Observer.Left(last)
}

// settleStale settles the clients that have died. Called with mu held.
func (s *Server) settleStale(l *lgpu) {
	l.stale = slices.DeleteFunc(l.stale, func(index int) bool {
		if !l.shared.Settle(index, s.orphans.kept(l, index)) {
			return false
		}
		// A dead client with orphans stays in the roster: the next daemon, which knows nothing of them, settles it.
		if !s.orphans.keeps(l, index) {
			s.logRoster(l, l.roster.setClient(index, Process{}))
		}
		return true
	})
}

// retrySettling settles what could not be settled at once.
func (s *Server) retrySettling(l *lgpu) {
	for {
		select {
		case <-time.After(settlePeriod):
		case <-s.done:
			return
		}
		s.mu.Lock()
		if !l.removed {
			s.settleStale(l)
		}
		l.retrying = !l.removed && len(l.stale) > 0
		again := l.retrying
		s.mu.Unlock()
		if !again {
			return
		}
	}
}

// acknowledged notes that the client of a connection has mapped what the Welcome brought.
func (s *Server) acknowledged(c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seesLimits(c)
}

// disconnected forgets a connection that has ended. Its client lives on until its process has died.
func (s *Server) disconnected(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
	if c.client != nil && c.client.conn == c {
		c.client.conn = nil
		s.Parking.unanswered(c.client.peer.Process)
		if c.client.holder != nil {
			s.config.Residence.Lost(c.client.holder)
		}
	}
}

// innerPID returns the pid by which a process knows itself, in the innermost of its PID namespaces.
func innerPID(pid int) int {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	for line := range strings.Lines(string(text)) {
		if pids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			fields := strings.Fields(pids)
			if inner, err := strconv.Atoi(fields[max(len(fields), 1)-1]); err == nil {
				return inner
			}
		}
	}
	return pid
}

// namespace returns the inode of a process's PID namespace, or 0 where it may not be seen.
func namespace(pid int) uint64 {
	var stat unix.Stat_t
	if unix.Stat("/proc/"+strconv.Itoa(pid)+"/ns/pid", &stat) != nil {
		return 0
	}
	return stat.Ino
}

// hasUsage reports whether a process still maps the counters of an lgpu.
func hasUsage(pid int) (bool, error) {
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/maps")
	if err != nil {
		return false, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "/memfd:"+region.UsageName) {
			return true, nil
		}
	}
	return false, lines.Err()
}
