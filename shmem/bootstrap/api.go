package bootstrap

import (
	"context"
	"errors"
	"time"
)

// ListenOptions are those of a root. The zero value listens on the machine's networks and on loopback.
type ListenOptions struct {
	// Interface chooses the networks by a list of interface names or beginnings of them, such as "eth,ib0"; "^docker,lo"
	// is all but those, "=eth0" is exactly that one. Empty is LSHMEM_BOOTSTRAP_INTERFACE, else all that are up.
	Interface string
	// Local listens on loopback only: all PEs are on this machine.
	Local bool
	// Address is a fixed HOST:PORT to listen on instead.
	Address string
	// Token is a secret of at least 16 characters that others have already; empty makes a random one.
	Token string
	// Keep goes on after a job has ended, for the next, until Close. Otherwise the root ends with its first job.
	Keep bool
	// JoinTimeout is how long to wait for the other PEs after the first has joined. 0 is DefaultJoinTimeout.
	JoinTimeout time.Duration
	// Heartbeat is as in Options.
	Heartbeat time.Duration
}

// NewUniqueID starts a root in this process and returns what others need to join. The root ends with the job, or after
// ten minutes without one. The context bounds only the call.
func NewUniqueID(ctx context.Context, o ListenOptions) (UniqueID, error) {
	return UniqueID{}, errors.ErrUnsupported
}

// Join joins the job of id as PE rank of size, and returns when all have joined.
func Join(ctx context.Context, id UniqueID, rank, size int, o Options) (Bootstrap, error) {
	return nil, errors.ErrUnsupported
}

// FromEnv joins the job that the environment names, as lgpu run --pes sets it:
//
//	LSHMEM_PE, LSHMEM_PES   this PE's number and how many there are; else those of PMI, Open MPI or Slurm
//	LSHMEM_BOOTSTRAP        uid:HEX, or tcp://HOST:PORT?TOKEN where PE 0 listens
//
// ErrNotSet says that there is no such job. Each call in a process joins one more instance.
func FromEnv(ctx context.Context, o Options) (Bootstrap, error) {
	return nil, errors.ErrUnsupported
}

// Local returns the n PEs of a job within this process.
func Local(n int, o Options) ([]Bootstrap, error) {
	return nil, errors.ErrUnsupported
}

// Callbacks are the collectives that a program has already, of MPI or of torch's store. AllGather or AllGatherFixed is
// needed; what else is missing is made of it.
type Callbacks struct {
	// AllGather is as in Bootstrap.
	AllGather func(ctx context.Context, mine []byte) ([][]byte, error)
	// AllGatherFixed gathers parts of one length, as MPI_Allgather does: all has size times len(mine) bytes.
	AllGatherFixed func(ctx context.Context, mine, all []byte) error
	// AllToAll is as in Bootstrap.
	AllToAll func(ctx context.Context, parts [][]byte) ([][]byte, error)
	// Barrier is as in Bootstrap.
	Barrier func(ctx context.Context) error
	// Abort is called once by Bootstrap.Abort; it should reach the other PEs.
	Abort func(code int, why string)
	// Lost is closed by the program when it knows of a dead PE; nil if it never does.
	Lost <-chan struct{}
	// LostPE says which PE died, -1 if that is not known; nil is -1.
	LostPE func() (int, error)
	// Close is called once by Bootstrap.Close.
	Close func() error
}

// FromCallbacks returns PE rank of size of a job whose collectives are those of c. A callback that does not return
// within Options.Timeout is left behind and the job counts as lost.
func FromCallbacks(rank, size int, c Callbacks, o Options) (Bootstrap, error) {
	return nil, errors.ErrUnsupported
}
