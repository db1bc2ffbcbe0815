package tenant

import (
	"context"
	"log/slog"

	"github.com/lgpu/lgpu/link"
	"github.com/lgpu/lgpu/region"
)

// Config is what a Server needs.
type Config struct {
	// Socket is the path of the tenants' socket. It is made with mode 0666; whoever can reach it may ask.
	Socket string
	// Roster is the folder of the files that tell a new daemon who the clients are. It is made, for the owner only.
	Roster   string
	Resolver Resolver
	Gate     GateHandler
	Observer Observer
	Log      *slog.Logger // nil: none
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
type Server struct{}

// Listen makes the socket. Clients are served once Run is called.
func Listen(c Config) (*Server, error) { return &Server{}, nil }

// Run serves until ctx is done or Close is called; then nil is returned. Clients live on and keep trying to connect.
func (s *Server) Run(ctx context.Context) error { return nil }

// Close ends Run, removes the socket and gives up all regions. The roster stays, for the next daemon.
func (s *Server) Close() error { return nil }

// AddLGPU makes an lgpu known. If a daemon before this one knew it and clients of it live, they are waited for: they bring
// the counters along.
func (s *Server) AddLGPU(l LGPU) error { return nil }

// RemoveLGPU forgets an lgpu, unless it has clients (ErrInUse).
func (s *Server) RemoveLGPU(id uint64) error { return nil }

// SetLimits changes an lgpu's limits, which its clients see at once; the devices must be the same ones. Memory below what
// is in use is possible: then nothing more can be had until it is enough again.
func (s *Server) SetLimits(id uint64, l Limits) error { return nil }

// SetBudgets replaces all budgets, or with an error none. An lgpu whose Parent is not among them has no budget above it.
func (s *Server) SetBudgets(budgets []Budget) error { return nil }

// Clients returns all clients, by lgpu and slot.
func (s *Server) Clients() []Client { return nil }

// Usage returns what the counters of an lgpu say. They are written by the tenant and may be anything.
func (s *Server) Usage(id uint64) (region.State, error) { return region.State{}, nil }

// Seat is a client's gate on one device.
type Seat struct {
	lgpu   uint64
	client int
	device int
	uuid   [16]byte
}

// LGPU returns the ID of the seat's lgpu.
func (s *Seat) LGPU() uint64 { return s.lgpu }

// Client returns the index of its client in the lgpu's region.
func (s *Seat) Client() int { return s.client }

// Device returns the index of its device among the lgpu's.
func (s *Seat) Device() int { return s.device }

// UUID returns the UUID of its device.
func (s *Seat) UUID() [16]byte { return s.uuid }

// Busy returns the lgpu's device time on this device in ns, as the tenant counts it: it never falls while the seat exists.
func (s *Seat) Busy() uint64 { return 0 }

// Send sends a message about the seat's gate; Device and Client are filled in. It never waits: a client that does not
// read loses its connection.
func (s *Seat) Send(m link.Message) {}
