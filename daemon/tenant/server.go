package tenant

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/lgpu/lgpu/daemon/foreign"
	"github.com/lgpu/lgpu/internal/contain"
	"github.com/lgpu/lgpu/internal/proc"
	"github.com/lgpu/lgpu/tenant/region"
)

// Config is what a Server needs.
type Config struct {
	// Socket is the path of the tenants' socket. It is created with mode 0666: any process that can reach it may
	// connect. A socket that a previous daemon has left is replaced, so the caller makes sure that there is one daemon.
	Socket string
	// Doors is the folder of the sockets of lgpus for containers (OpenDoor). It is created when it is needed.
	Doors string
	// Roster is the folder of the files from which a new daemon knows the clients. It is created, for the owner only.
	Roster   string
	Resolver Resolver
	Gate     GateHandler
	Observer Observer
	// Residence decides about memory that can leave devices; nil: there is no lgpu with such.
	Residence ResidenceHandler
	Log       *slog.Logger // nil: none
	// UserClients is how many processes of one user other than root and the daemon's own are clients at once, of all
	// lgpus; 0 is 1024.
	UserClients int
}

// LGPU is what the Server must know of an lgpu.
type LGPU struct {
	// ID names it for good, across restarts of the daemon too; not 0.
	ID   uint64
	Name string
	// Parent is the Budget just above it, or 0.
	Parent uint64
	Limits
}

// Limits are an lgpu's own.
type Limits struct {
	HostMemory uint64 // bytes of page-locked host memory, or region.NoLimit
	// Devices are in the order in which the tenant sees them. Granted is the Server's to set.
	Devices []region.DeviceLimits
}

// Budget is what a group allows all lgpus below it together.
type Budget struct {
	ID         uint64 // not 0; of another number space than lgpus
	Parent     uint64 // the Budget above it, or 0
	HostMemory uint64 // bytes, or region.NoLimit
	// Memory is in bytes, by the device's UUID; a device that is not in it is not limited here.
	Memory map[[16]byte]uint64
}

// Server serves the tenants' socket.
type Server struct {
	config   Config
	log      *slog.Logger
	machine  string
	cgroups  []Cgroup // of this process
	listener *foreign.Listener
	closers  foreign.Closers
	// Parking has clients leave their devices. It never changes.
	Parking *Parking
	done    chan struct{} // closed by Close
	running sync.WaitGroup

	// mu guards what follows up to the blank line, and all that can be reached from it except the words of a Shared,
	// which the tenants write too.
	mu      sync.Mutex
	closed  bool
	lgpus   map[uint64]*lgpu
	clients map[Process]*client
	inodes  map[region.Inode]uint64 // of counters in use, by lgpu
	memory  *memoryPools
	orphans orphans
	open    map[*connection]bool
	doors   map[uint64]*door // by lgpu
	serving bool             // Run has begun
	// returning is the number of lgpus of which the counters are with clients; while there are any, descriptors may be
	// sent to the socket.
	returning int
	receives  bool

	waiting  waitingRoom
	refusals throttle // of what the Observer is told
}

// lgpu is what the Server keeps of one.
type lgpu struct {
	LGPU
	roster *roster
	// shared is nil while clients of the previous daemon have the counters.
	shared  *region.Shared
	ready   chan struct{} // closed when shared is set, or the lgpu removed
	clients [region.MaxClients]*client
	count   int   // of clients
	stale   []int // indices of clients that have died, to be settled
	// retrying: a goroutine settles stale clients.
	retrying bool
	waiting  int // connections that wait for ready
	removed  bool
	// What follows is not guarded by mu.
	uuids    [][16]byte // of Devices
	messages throttle
}

// client is a process of an lgpu.
type client struct {
	lgpu   *lgpu
	index  int
	peer   Peer
	life   *life
	joined time.Time
	cgroup string      // of its lgpu's container, empty where it is in none that has one
	conn   *connection // nil while it has none
	// oldLimits: it may still go by the limits of the previous daemon.
	oldLimits bool
	// gone: it has died, or become another program.
	gone bool
	// announced is closed once the Observer knows of it.
	announced chan struct{}
	// holder is nil where no memory can leave a device.
	holder *Holder
	// returning: it was a client of the daemon before, and may bring files.
	returning bool
}

// Listen makes the socket. Clients are served once Run is called.
func Listen(c Config) (*Server, error) {
	s := &Server{
		config: c, log: c.Log, done: make(chan struct{}),
		lgpus: map[uint64]*lgpu{}, clients: map[Process]*client{}, inodes: map[region.Inode]uint64{},
		memory: newMemoryPools(), open: map[*connection]bool{}, doors: map[uint64]*door{},
		refusals: throttle{burst: refusalsAtOnce, period: refusalPeriod},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.config.UserClients == 0 {
		s.config.UserClients = maxClientsUser
	}
	s.Parking = newParking(s)
	var err error
	if s.machine, err = machine(); err != nil {
		return nil, err
	}
	if s.cgroups, err = Cgroups(os.Getpid()); err != nil {
		return nil, fmt.Errorf("find this process's cgroups: %w", err)
	}
	if err := os.Mkdir(c.Roster, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("create the folder of rosters: %w", err)
	}
	if s.listener, err = listen(c.Socket, &s.closers); err != nil {
		return nil, err
	}
	s.receives = true
	return s, nil
}

// Run serves until ctx is done or Close is called; then nil is returned. Clients live on and keep trying to connect.
func (s *Server) Run(ctx context.Context) error {
	s.mu.Lock()
	err := sweepRosters(s.config.Roster, func(id uint64) bool { return s.lgpus[id] != nil })
	s.countReturning(0)
	if doors := s.sweepDoors(); doors != nil {
		s.log.Warn("tenant: folders of forgotten lgpus stay", "err", doors)
	}
	s.serving = true
	for id, d := range s.doors {
		s.serveDoor(id, d)
	}
	s.mu.Unlock()
	if err != nil {
		s.log.Warn("tenant: rosters of forgotten lgpus stay", "err", err)
	}
	stop := context.AfterFunc(ctx, func() { s.listener.Close() })
	defer stop()
	s.accept(s.listener, 0)
	return nil
}

// Close ends Run, removes the socket and gives up all regions. The roster stays, for the next daemon.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.done)
	err := s.listener.Close()
	for _, d := range s.doors {
		err = errors.Join(err, d.listener.Close())
	}
	for c := range s.open {
		c.close()
	}
	for _, c := range s.clients {
		c.life.Close()
	}
	s.mu.Unlock()
	s.running.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lgpus {
		l.roster.close()
		if l.shared != nil {
			l.shared.Close()
		}
	}
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	return err
}

// AddLGPU makes an lgpu known. If a previous daemon knew it and clients of it live, the Server waits for them: they
// bring the counters. An error wraps ErrExists, or region.ErrSpec where the limits make no sense.
func (s *Server) AddLGPU(spec LGPU) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("add lgpu %s: %w", spec.Name, net.ErrClosed)
	}
	if spec.ID == 0 || s.lgpus[spec.ID] != nil {
		return fmt.Errorf("add lgpu %s: %w: %#x", spec.Name, ErrExists, spec.ID)
	}
	l, err := newLGPU(spec)
	if err != nil {
		return fmt.Errorf("add lgpu %s: %w", spec.Name, err)
	}
	if l.roster, err = openRoster(s.config.Roster, spec.ID, s.machine); err != nil {
		return fmt.Errorf("add lgpu %s: %w", spec.Name, err)
	}
	s.restore(l)
	l.begin(s)
	if l.count == 0 {
		if err := s.newRegion(l); err != nil {
			s.forget(l)
			return fmt.Errorf("add lgpu %s: %w", spec.Name, err)
		}
	}
	s.countReturning(0)
	return nil
}

// newLGPU is what is kept of an lgpu that the spec makes sense of. It has no roster yet.
func newLGPU(spec LGPU) (*lgpu, error) {
	l := &lgpu{
		LGPU: spec, ready: make(chan struct{}), messages: throttle{burst: messagesAtOnce, period: messagePeriod},
	}
	l.Devices = slices.Clone(spec.Devices)
	for _, d := range l.Devices {
		l.uuids = append(l.uuids, d.UUID)
	}
	_, err := l.region().Limits()
	return l, err
}

// begin makes an lgpu known that has its roster and its clients, and no counters yet. Called with the Server's mu held.
func (l *lgpu) begin(s *Server) {
	s.lgpus[l.ID] = l
	s.returning++
	s.memory.add(l, func(kind int, charged uint64) { s.logRoster(l, l.roster.setCharged(kind, charged)) })
}

// countReturning changes the number of lgpus whose counters are with clients, and lets descriptors be sent to the
// socket only while there are such. Called with mu held.
func (s *Server) countReturning(more int) {
	s.returning += more
	if receives := s.returning > 0; receives != s.receives {
		s.receives = receives
		s.listener.SetRights(receives)
		for _, d := range s.doors {
			d.listener.SetRights(receives)
		}
	}
}

// restore finds the clients that the previous daemon had. Called with mu held.
func (s *Server) restore(l *lgpu) {
	for i, p := range l.roster.clients {
		if p.PID == 0 {
			continue
		}
		peer, life, err := find(p)
		if err != nil || s.clients[p] != nil {
			if err == nil {
				life.Close()
			} else if !errors.Is(err, errEnded) {
				s.log.Warn("tenant: a client of before cannot be found", "lgpu", l.Name, "pid", p.PID, "err", err)
			}
			l.stale = append(l.stale, i)
			continue
		}
		c := &client{lgpu: l, index: i, peer: peer, life: life, joined: time.Now(), oldLimits: true, announced: make(chan struct{})}
		if _, contained, _ := proc.MountAt(p.PID, contain.SocketDir); contained {
			all, _ := Cgroups(p.PID) // none, if it has just ended
			c.cgroup = cgroupOf(all, s.cgroups)
		}
		s.register(c)
		c.returns(s)
		s.running.Go(func() { s.announce(c) })
	}
}

// RemoveLGPU forgets an lgpu, unless it has clients (ErrInUse). Those that have died by now are none.
func (s *Server) RemoveLGPU(id uint64) error {
	s.reap()
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lgpus[id]
	if l == nil {
		return fmt.Errorf("remove lgpu %#x: %w", id, ErrUnknown)
	}
	for _, c := range l.clients {
		if c != nil {
			return fmt.Errorf("remove lgpu %s: %w by pid %d", l.Name, ErrInUse, c.peer.PID)
		}
	}
	s.forget(l)
	return nil
}

// forget undoes AddLGPU. Called with mu held.
func (s *Server) forget(l *lgpu) {
	l.end(s)
	s.logRoster(l, l.roster.remove())
}

// end has an lgpu be known no more. Called with the Server's mu held.
func (l *lgpu) end(s *Server) {
	l.removed = true
	s.memory.remove(l)
	if l.shared != nil {
		delete(s.inodes, l.shared.UsageInode())
		l.shared.Close()
	} else {
		close(l.ready)
		s.countReturning(-1)
	}
	delete(s.lgpus, l.ID)
	s.orphans.forget(l)
}

// SetLimits changes an lgpu's limits, which its clients see at once; the devices must be the same ones. Memory below
// what is in use is possible: then nothing more can be had until it is enough again.
func (s *Server) SetLimits(id uint64, limits Limits) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lgpus[id]
	if l == nil {
		return fmt.Errorf("set limits of lgpu %#x: %w", id, ErrUnknown)
	}
	same := func(a, b region.DeviceLimits) bool { return a.UUID == b.UUID }
	if !slices.EqualFunc(limits.Devices, l.Devices, same) {
		return fmt.Errorf("set limits of lgpu %s: %w", l.Name, ErrDevices)
	}
	if _, err := (LGPU{ID: id, Name: l.Name, Limits: limits}).region().Limits(); err != nil {
		return fmt.Errorf("set limits of lgpu %s: %w", l.Name, err)
	}
	before := l.Devices
	l.HostMemory, l.Devices = limits.HostMemory, slices.Clone(limits.Devices)
	for i, d := range l.Devices {
		l.Devices[i].Overcommit = before[i].Overcommit // its clients were told at their start
		l.Devices[i].Instance = before[i].Instance     // also when the device is gone
		if l.shared != nil {
			l.shared.SetMemory(i, d.Memory)
			l.shared.SetCompute(i, d.Compute)
			l.shared.SetUnits(i, d.Units)
		}
	}
	s.memory.setLimits(l)
	return nil
}

// SetBudgets replaces all budgets, or with an error none. An lgpu whose Parent is not among them has no budget above
// it.
func (s *Server) SetBudgets(budgets []Budget) error {
	if err := checkTree(budgets); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.memory.setBudgets(budgets)
	return nil
}

// Clients returns all clients, by lgpu and index.
func (s *Server) Clients() []Client {
	s.mu.Lock()
	all := make([]Client, 0, len(s.clients))
	for _, c := range s.clients {
		all = append(all, c.describe())
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b Client) int {
		return cmp.Or(cmp.Compare(a.LGPU, b.LGPU), cmp.Compare(a.Index, b.Index))
	})
	return all
}

// Usage returns what the counters of an lgpu say. They are written by the tenant and may be anything; while they are
// with clients that have not come back since the daemon's start, they are zero.
func (s *Server) Usage(id uint64) (region.State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lgpus[id]
	if l == nil {
		return region.State{}, fmt.Errorf("usage of lgpu %#x: %w", id, ErrUnknown)
	}
	if l.shared == nil {
		return region.State{Devices: make([]region.DeviceUse, len(l.Devices))}, nil
	}
	return l.shared.State(), nil
}

func (s *Server) describe(c *client) Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.describe()
}

// describe is called with mu held.
func (c *client) describe() Client {
	d := Client{LGPU: c.lgpu.ID, Index: c.index, Peer: c.peer, Joined: c.joined, Linked: c.conn != nil}
	if c.lgpu.shared != nil {
		d.Host, d.Memory = c.lgpu.shared.Charged(c.index)
	} else {
		d.Memory = make([]uint64, len(c.lgpu.Devices))
	}
	return d
}

// note logs that a roster could not be written: a restart of the daemon will then believe something old.
func (s *Server) logRoster(l *lgpu, err error) {
	if err != nil {
		s.log.Warn("tenant: roster", "lgpu", l.Name, "err", err)
	}
}
