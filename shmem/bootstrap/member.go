package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// GaveUp is the code of an AbortError of a PE whose context ended during a collective, or while it joined.
const GaveUp = -1

// grace is how much longer than the root a PE waits, so that it hears from the root who was missing.
const grace = 2 * time.Second

// uplink is how a PE speaks to the root.
type uplink interface {
	// call brings this PE's parts to a collective. It may block until the deadline.
	call(o op, seq uint64, timeout time.Duration, parts [][]byte) error
	// abort returns when the root has been told, as far as that can be known soon.
	abort(code int, why string)
	// bye is the last call.
	bye() error
}

// member is a PE's side of a job, however the root is reached.
type member struct {
	rank, size int
	options    Options
	up         uplink

	turn    chan struct{} // holds one token; who has it may call
	seq     uint64        // of the last collective; whoever has the turn
	results chan answer   // of the collective under way

	lost     chan struct{}
	rootLeft chan struct{}
	closed   chan struct{}

	mu         sync.Mutex
	cause      error // why lost is closed
	blame      int   // who
	isRootLeft bool
	isClosed   bool
}

// answer is what came of a collective.
type answer struct {
	op    op
	seq   uint64
	parts [][]byte
}

func newMember(rank, size int, o Options) *member {
	m := &member{
		rank: rank, size: size, options: o, blame: -1,
		turn: make(chan struct{}, 1), results: make(chan answer, 1),
		lost: make(chan struct{}), rootLeft: make(chan struct{}), closed: make(chan struct{}),
	}
	m.turn <- struct{}{}
	return m
}

// checkPlace returns an error unless rank is one of size.
func checkPlace(rank, size int) error {
	if size < 1 || size > MaxPEs {
		return fmt.Errorf("bootstrap: a job of %d PEs; 1 to %d are possible", size, MaxPEs)
	}
	if rank < 0 || rank >= size {
		return fmt.Errorf("bootstrap: PE %d of %d; they are numbered 0 to %d", rank, size, size-1)
	}
	return nil
}

func (m *member) Rank() int             { return m.rank }
func (m *member) Size() int             { return m.size }
func (m *member) Lost() <-chan struct{} { return m.lost }

func (m *member) LostPE() (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.blame, m.cause
}

func (m *member) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	return m.collective(ctx, opAllGather, [][]byte{mine})
}

func (m *member) AllToAll(ctx context.Context, parts [][]byte) ([][]byte, error) {
	if len(parts) != m.size {
		return nil, fmt.Errorf("bootstrap: alltoall: %d parts for %d PEs", len(parts), m.size)
	}
	return m.collective(ctx, opAllToAll, parts)
}

func (m *member) Barrier(ctx context.Context) error {
	_, err := m.collective(ctx, opBarrier, nil)
	return err
}

// collective is all of them.
func (m *member) collective(ctx context.Context, o op, parts [][]byte) ([][]byte, error) {
	bytes := 0
	for _, p := range parts {
		bytes += len(p)
	}
	if bytes > MaxPayload {
		return nil, fmt.Errorf("bootstrap: %v: %d bytes; at most %d are possible", o, bytes, MaxPayload)
	}
	select {
	case <-m.turn:
	case <-ctx.Done():
		return nil, fmt.Errorf("bootstrap: %v: %w", o, context.Cause(ctx)) // nobody was told of it: the job goes on
	case <-m.closed:
		return nil, m.failed(o)
	}
	defer func() { m.turn <- struct{}{} }()
	if err := m.state(); err != nil {
		return nil, fmt.Errorf("bootstrap: %v: %w", o, err)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("bootstrap: %v: %w", o, context.Cause(ctx))
	}
	timeout := m.options.Timeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline))
	}
	m.seq++
	if err := m.up.call(o, m.seq, timeout, parts); err != nil {
		m.rootIsGone(err)
	}
	late := time.NewTimer(timeout + grace)
	defer late.Stop()
	select {
	case a := <-m.results:
		return m.take(o, a)
	case <-m.lost:
	case <-m.rootLeft:
	case <-m.closed:
	case <-ctx.Done():
		return m.giveUp(ctx, o)
	case <-late.C:
		m.end(-1, &LostError{-1, fmt.Errorf("no answer to %v (collective %d) within %v: %w", o, m.seq, timeout+grace, ErrTimeout)})
	}
	select { // what came before the end counts
	case a := <-m.results:
		return m.take(o, a)
	default:
		return nil, m.failed(o)
	}
}

// giveUp is the end of a collective whose context ended. A deadline was known to the root, which is about to say who is
// missing.
func (m *member) giveUp(ctx context.Context, o op) ([][]byte, error) {
	why := context.Cause(ctx)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		soon := time.NewTimer(grace)
		defer soon.Stop()
		select {
		case a := <-m.results:
			return m.take(o, a)
		case <-m.lost:
			_, cause := m.LostPE()
			return nil, fmt.Errorf("bootstrap: %v: %w (%w)", o, cause, why)
		case <-m.rootLeft:
		case <-m.closed:
		case <-soon.C:
		}
	}
	text := fmt.Sprintf("it gave up %v (collective %d): %v", o, m.seq, why)
	m.up.abort(GaveUp, text)
	m.end(m.rank, &AbortError{m.rank, GaveUp, text})
	return nil, fmt.Errorf("bootstrap: %v: %w", o, why)
}

// take checks an answer.
func (m *member) take(o op, a answer) ([][]byte, error) {
	if a.op != o || a.seq != m.seq {
		m.end(-1, &LostError{-1, fmt.Errorf("it answered %v (collective %d) where %v (%d) was asked", a.op, a.seq, o, m.seq)})
		return nil, m.failed(o)
	}
	return a.parts, nil
}

// failed is why a collective cannot be.
func (m *member) failed(o op) error {
	err := m.state()
	if err == nil {
		err = ErrClosed
	}
	return fmt.Errorf("bootstrap: %v: %w", o, err)
}

// errRootLeft is that of a collective after the root's orderly end.
var errRootLeft = errors.New("the process that the bootstrap's root was in has left the job")

// state returns an error if there are no more collectives.
func (m *member) state() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.cause != nil:
		return m.cause
	case m.isClosed:
		return ErrClosed
	case m.isRootLeft:
		return errRootLeft
	}
	return nil
}

func (m *member) Abort(code int, why string) {
	m.mu.Lock()
	over := m.cause != nil || m.isClosed
	m.mu.Unlock()
	if over {
		return
	}
	m.up.abort(code, why)
	m.end(m.rank, &AbortError{m.rank, code, why})
}

func (m *member) Close() error {
	m.mu.Lock()
	if m.isClosed {
		m.mu.Unlock()
		return nil
	}
	m.isClosed = true
	close(m.closed)
	m.mu.Unlock()
	return m.up.bye()
}

// end closes lost, once, unless this PE has left.
func (m *member) end(blame int, cause error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cause == nil && !m.isClosed {
		m.blame, m.cause = blame, cause
		close(m.lost)
	}
}

// rootIsGone notes that the connection to the root broke.
func (m *member) rootIsGone(err error) {
	m.mu.Lock()
	left := m.isRootLeft
	m.mu.Unlock()
	if !left {
		m.end(-1, &LostError{-1, err})
	}
}

// rootLeaves notes that the root ends in order.
func (m *member) rootLeaves() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.isRootLeft {
		m.isRootLeft = true
		close(m.rootLeft)
	}
}

// answered takes a result.
func (m *member) answered(a answer) {
	select {
	case m.results <- a:
	default: // nobody asked; the next collective will see that the numbers differ
	}
}

// local is the root's way to a member of the same process, and back.
type local struct {
	*member
	job *job
}

// Local returns the n PEs of a job within this process.
func Local(n int, o Options) ([]Bootstrap, error) {
	if err := checkPlace(0, n); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	j := newJob(n, nil)
	all := make([]Bootstrap, n)
	for rank := range all {
		l := &local{newMember(rank, n, o), j}
		l.up = l
		all[rank] = l
		if err := j.admit(rank, n, "this process", o.JoinTimeout, l); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (l *local) call(o op, seq uint64, timeout time.Duration, parts [][]byte) error {
	mine := make([][]byte, len(parts))
	for i, p := range parts {
		mine[i] = slices.Clone(p)
	}
	l.job.call(l.rank, o, seq, timeout, mine)
	return nil
}

func (l *local) abort(code int, why string) { l.job.abort(l.rank, code, why) }

func (l *local) bye() error {
	l.job.leave(l.rank)
	return nil
}

func (l *local) begin() {}

func (l *local) result(o op, seq uint64, b *bundle) {
	var parts [][]byte
	if o != opBarrier {
		parts = make([][]byte, len(b.parts))
		for i, p := range b.parts {
			parts[i] = slices.Clone(p)
		}
	}
	l.answered(answer{o, seq, parts})
}

func (l *local) end(e *ending) { l.member.end(e.pe, e.err()) }
