package shmem

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lgpu/lgpu/shmem/bootstrap"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/mlx5"
	"github.com/lgpu/lgpu/shmem/transport"
)

// job is a PE's membership in its job: who the PEs are, how they exchange messages at collective calls, and whether the
// job goes on. Init sets all fields; then only the atomic ones change.
type job struct {
	log   *slog.Logger
	b     bootstrap.Bootstrap
	owns  bool // leave closes b
	rank  int
	size  int
	self  transport.PeerInfo
	peers []transport.PeerInfo // by PE

	timeout time.Duration // of each wait for another PE; 0 is for ever

	// control is where this PE's kernels report their first error, and where they see that the job has ended.
	control *layout.Control

	closed   atomic.Bool           // Finalize has been called
	lost     atomic.Pointer[Error] // why the job ended early
	stop     chan struct{}         // closed by leave, ends the goroutines below
	watching sync.WaitGroup        // the PE's goroutines
}

func newJob(c *Config) *job {
	j := &job{log: c.Logger, b: c.Bootstrap, stop: make(chan struct{})}
	if j.log == nil {
		j.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	return j
}

// join finds the other PEs.
func (j *job) join(ctx context.Context, c *Config) error {
	if j.b == nil {
		o, err := c.BootstrapOptions(nil)
		if err != nil {
			return err
		}
		b, err := bootstrap.FromEnv(ctx, o)
		if errors.Is(err, bootstrap.ErrNotSet) { // nobody started a job: this process is all of it
			var one []bootstrap.Bootstrap
			if one, err = bootstrap.Local(1, o); err == nil {
				b = one[0]
			}
		}
		if err != nil {
			return err
		}
		j.b, j.owns = b, true
	}
	j.rank, j.size = j.b.Rank(), j.b.Size()
	j.self = transport.ThisProcess()
	j.self.PE = uint32(j.rank)
	return nil
}

// Rank is the number of this PE.
func (j *job) Rank() int { return j.rank }

// Size is the number of PEs.
func (j *job) Size() int { return j.size }

// Abort ends the job at all PEs with an error there.
func (j *job) Abort(code int, why string) { j.b.Abort(code, why) }

// abortInit ends the job because this PE's Init failed.
func (j *job) abortInit(err error) {
	if j.b != nil {
		j.b.Abort(1, fmt.Sprintf("init of PE %d: %v", j.rank, err))
	}
}

// Err is what is wrong with the job: a dead PE, or the first error of a kernel; nil if nothing is.
func (j *job) Err() error { return j.check("state") }

// check is made by every call. It must be cheap: three loads.
func (j *job) check(op string) error {
	if j.closed.Load() {
		return fault(layout.StatusState, op, -1, "after Finalize")
	}
	if e := j.lost.Load(); e != nil {
		return &Error{Status: e.Status, Op: op, PE: e.PE, Err: e.Err}
	}
	if s := atomic.LoadUint32(&j.control.Status); s != layout.StatusOK {
		return j.deviceError(op, s)
	}
	return nil
}

// checkPE checks the number of a PE.
func (j *job) checkPE(op string, pe int) error {
	if pe < 0 || pe >= j.size {
		return fault(layout.StatusArgument, op, -1, "there is no PE %d among %d", pe, j.size)
	}
	return nil
}

// deviceError is the error that a kernel left in control.
func (j *job) deviceError(op string, status uint32) error {
	c := j.control
	pe := int(atomic.LoadUint32(&c.PE))
	if pe >= j.size {
		pe = -1
	}
	if status == layout.StatusQueue {
		s := atomic.LoadUint32(&c.Syndrome)
		text := fmt.Sprintf("a kernel's work request %d on queue %d completed in error: "+
			"syndrome %#02x, type %#02x, vendor %#02x, hardware %#02x",
			atomic.LoadUint64(&c.Index), atomic.LoadUint32(&c.Queue), s&0xff, s>>16&0xff, s>>8&0xff, s>>24)
		if s&0xff == mlx5.SyndromeFlushed { // the one completion entry has the last completion
			text += "; it was flushed because an earlier one had failed, whose completion it has overwritten"
		}
		return fault(status, op, pe, "%s", text)
	}
	return fault(status, op, pe, "in a kernel: %s", statusText(status))
}

// watch waits for the job's end and tells the kernels.
func (j *job) watch() {
	select {
	case <-j.stop:
		return
	case <-j.b.Lost():
	}
	j.lose(j.lostError("job"))
}

// lostError is the error of a job that has ended early, as the bootstrap says.
func (j *job) lostError(op string) *Error {
	pe, err := j.b.LostPE()
	if err == nil {
		err = errors.New("the job cannot go on")
	}
	// What wrap returns may be anything that has an Error in its chain: only its status counts.
	e := &Error{Status: Status(wrap(op, err)), Op: op, PE: pe, Err: err}
	if e.Status == layout.StatusSystem || e.Status == layout.StatusState {
		e.Status = layout.StatusPeer
	}
	return e
}

// lose ends all waits with an error. Only watch calls it.
func (j *job) lose(e *Error) {
	pe := ^uint32(0)
	if e.PE >= 0 {
		pe = uint32(e.PE)
	}
	atomic.StoreUint32(&j.control.AbortPE, pe)
	atomic.StoreUint32(&j.control.Abort, e.Status)
	j.lost.Store(e)
	j.log.Error("the job cannot go on", "pe", j.rank, "error", e.Err)
}

// over says whether the bootstrap has seen the end of the job, which watch may not have seen yet.
func (j *job) over() bool {
	select {
	case <-j.b.Lost():
		return true
	default:
		return false
	}
}

// context bounds one wait for the others.
func (j *job) context() (context.Context, context.CancelFunc) {
	if j.timeout == 0 {
		return context.WithCancel(context.Background())
	}
	return context.WithTimeout(context.Background(), j.timeout)
}

// deadline is when a wait that begins now ends.
func (j *job) deadline() time.Time {
	if j.timeout == 0 {
		return time.Now().Add(1 << 60)
	}
	return time.Now().Add(j.timeout)
}

// stopWatching ends the PE's goroutines.
func (j *job) stopWatching() {
	j.closed.Store(true)
	close(j.stop)
	j.watching.Wait()
}

// leave closes the bootstrap if the PE opened it.
func (j *job) leave() error {
	if !j.owns || j.b == nil {
		return nil
	}
	if err := j.b.Close(); err != nil && !errors.Is(err, bootstrap.ErrClosed) && j.lost.Load() == nil {
		return err
	}
	return nil
}
