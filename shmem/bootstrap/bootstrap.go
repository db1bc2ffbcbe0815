// Package bootstrap is how the PEs of a job find each other before they have memory in common: each learns its number
// and gets small blobs of the others (addresses, keys, tokens) by allgather, alltoall and barrier, and hears when one
// of them dies.
//
// Most programs are started by lgpu run --pes, srun or mpirun and call
//
//	b, err := bootstrap.FromEnv(ctx, bootstrap.Options{})
//
// Programs that have a channel of their own to pass 128 bytes by (MPI, torch's store, a file) call NewUniqueID in one
// process and Join in each. Programs that have collectives already bring them as Callbacks. Local makes the PEs of one
// process, for tests and for several instances.
//
// # How it works
//
// A root, which runs in the process of NewUniqueID or in the launcher, accepts a TCP connection from each PE: a star. A
// collective is one message up and one down, all PEs of a machine take less than a millisecond for it, and only the
// root has to know who is missing. It is not meant for data: a PE's part of a collective is at most MaxPayload bytes.
//
// # Promises
//
//   - Nothing waits forever. Join ends within Options.JoinTimeout and a collective within Options.Timeout; the error
//     names the PEs that are missing.
//   - All PEs must call the same collectives in the same order. If they do not, each gets a MismatchError that names
//     two of them and what they called.
//   - A PE whose process or machine dies, that aborts, or that gives up a collective ends the job: Lost is closed at
//     all others and every call there returns the reason. The root's death has the same effect. A PE that called Close
//     has left in order; only a collective that still needs it fails.
//   - The first error is final: PEs may have seen different ends of the collective that failed. Close, and start anew.
//   - A process that does not know the secret in the UniqueID cannot join, nor change or repeat a message of those that
//     do. Messages are not encrypted.
//
// All methods of a Bootstrap may be called at the same time; collectives then run one after the other in an order that
// is not defined, which is right only where the PEs agree on it by other means.
package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// MaxPayload is the most bytes that one PE may bring to one collective; of AllToAll, all parts together.
const MaxPayload = 16 << 20

// MaxPEs is the largest job.
const MaxPEs = 1 << 14

// Forever, as Options.Timeout, is as good as no timeout: 49 days, the longest that can be told to a root.
const Forever = (1<<32 - 1) * time.Millisecond

// Default timeouts.
const (
	DefaultJoinTimeout = 60 * time.Second
	DefaultTimeout     = 60 * time.Second
	DefaultHeartbeat   = 10 * time.Second
)

// Bootstrap is one PE's membership in a job.
type Bootstrap interface {
	// Rank is the number of this PE, from 0.
	Rank() int
	// Size is how many PEs the job has.
	Size() int
	// AllGather gives every PE what each brings, by rank. The lengths may differ. The result belongs to the caller.
	AllGather(ctx context.Context, mine []byte) ([][]byte, error)
	// AllToAll gives PE i the i-th part of each, by rank. parts has Size entries, which may be nil.
	AllToAll(ctx context.Context, parts [][]byte) ([][]byte, error)
	// Barrier returns when all PEs have called it.
	Barrier(ctx context.Context) error
	// Abort ends the job at all PEs, this one too, with an AbortError there. It does not end the process.
	Abort(code int, why string)
	// Lost is closed when the job cannot go on, because a PE died or aborted, the root is gone, or a collective failed.
	Lost() <-chan struct{}
	// LostPE says why Lost is closed, and which PE is to blame: -1 if it is the root, or no single one. The error is
	// nil, and the number -1, as long as Lost is open.
	LostPE() (int, error)
	// Close leaves the job in order. If the root runs in this process it waits a few seconds for the others to leave.
	// Calls under way, and later ones, return ErrClosed.
	Close() error
}

// Options are those of a PE. The zero value is right for most.
type Options struct {
	// JoinTimeout is how long to wait for the root and for all PEs. 0 is DefaultJoinTimeout.
	JoinTimeout time.Duration
	// Timeout is how long a collective may take, from the first PE that calls it, at most Forever. A context may make
	// it less. 0 is DefaultTimeout.
	Timeout time.Duration
	// Heartbeat is how long a machine may be silent until it counts as dead. 0 is DefaultHeartbeat between machines and
	// none within one, where the kernel says at once who died, and where a PE may be stopped (by a terminal, a
	// debugger) as long as one likes. A negative one is none at all; a positive one holds within a machine too.
	Heartbeat time.Duration
	// Instance tells apart the jobs that the same processes have with one id, at the same time or one after the other.
	// FromEnv counts by itself.
	Instance uint32
	// Lookup is where FromEnv finds variables; nil is os.LookupEnv. A library needs another where Go's copy of the
	// environment is older than the program's.
	Lookup func(name string) (string, bool)
}

// lookup is how variables are found.
type lookup func(name string) (string, bool)

// get is a variable's value, empty if it is not set.
func (l lookup) get(name string) string {
	if l == nil {
		l = os.LookupEnv
	}
	value, _ := l(name)
	return value
}

// first is the first value of some variables that is not empty.
func (l lookup) first(names ...string) string {
	for _, n := range names {
		if v := l.get(n); v != "" {
			return v
		}
	}
	return ""
}

// withDefaults returns o with what is left out.
func (o Options) withDefaults() Options {
	if o.JoinTimeout <= 0 {
		o.JoinTimeout = DefaultJoinTimeout
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	o.Timeout = min(o.Timeout, Forever)
	return o
}

// Errors that callers may want to tell apart.
var (
	// ErrClosed is that of calls after Close.
	ErrClosed = errors.New("this PE has left the job")
	// ErrTimeout is in the chain of every error that says that something took too long.
	ErrTimeout = errors.New("timed out")
	// ErrRefused is in the chain of a Join that the root refused: another version, secret or size, a rank that has
	// joined already, a job that has begun or is over.
	ErrRefused = errors.New("refused")
	// ErrSetting: a variable has a value that cannot be.
	ErrSetting = errors.New("a setting that cannot be")
	// ErrNotSet is that of FromEnv in a process that no launcher started.
	ErrNotSet = errors.New("LSHMEM_PE, LSHMEM_PES and LSHMEM_BOOTSTRAP are not set; start the program by lgpu run --pes N")
)

// LostError says that a PE, or the root, died.
type LostError struct {
	PE    int // -1 is the root
	Cause error
}

func (e *LostError) Error() string {
	who := fmt.Sprintf("PE %d", e.PE)
	if e.PE < 0 {
		who = "the bootstrap's root"
	}
	if e.Cause == nil {
		return who + " died"
	}
	return fmt.Sprintf("%s died: %v", who, e.Cause)
}

func (e *LostError) Unwrap() error { return e.Cause }

// AbortError says that a PE called Abort.
type AbortError struct {
	PE   int
	Code int
	Why  string
}

func (e *AbortError) Error() string {
	return fmt.Sprintf("PE %d aborted the job with code %d: %s", e.PE, e.Code, e.Why)
}

// MismatchError says that two PEs did not call the same collective.
type MismatchError struct {
	PE, Other int // Other came first
	Text      string
}

func (e *MismatchError) Error() string { return e.Text }
