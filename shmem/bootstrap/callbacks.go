package bootstrap

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Callbacks are the collectives that a program has already, of MPI or of torch's store. AllGather or AllGatherFixed is
// needed; what else is missing is made of it. They are called one at a time, on goroutines of their own, unless one is
// abandoned. Their context ends at the collective's timeout, when the job is lost, and after Close; a collective
// that is made of several calls makes no more of them then.
type Callbacks struct {
	// AllGather is as in Bootstrap.
	AllGather func(ctx context.Context, mine []byte) ([][]byte, error)
	// AllGatherFixed gathers parts of one length, as MPI_Allgather does: all has size times len(mine) bytes.
	AllGatherFixed func(ctx context.Context, mine, all []byte) error
	// AllToAll is as in Bootstrap.
	AllToAll func(ctx context.Context, parts [][]byte) ([][]byte, error)
	// Barrier is as in Bootstrap.
	Barrier func(ctx context.Context) error
	// Abort is called at most once, by Bootstrap.Abort; it should reach the other PEs.
	Abort func(code int, why string)
	// Lost is closed by the program when it knows of a dead PE; nil if it never does.
	Lost <-chan struct{}
	// LostPE says which PE died, -1 if that is not known, and why; nil is that it is not known.
	LostPE func() (int, error)
	// Close is called at most once, by Bootstrap.Close. A callback that was abandoned may still be under way.
	Close func() error
}

// FromCallbacks returns PE rank of size of a job whose collectives are those of c. A callback that does not return
// within Options.Timeout is abandoned, and the job is lost.
func FromCallbacks(rank, size int, c Callbacks, o Options) (Bootstrap, error) {
	if err := checkPlace(rank, size); err != nil {
		return nil, err
	}
	if c.AllGather == nil && c.AllGatherFixed == nil {
		return nil, errors.New("bootstrap: callbacks without an allgather")
	}
	b := &carried{member: newMember(rank, size, o.withDefaults()), c: c, left: make(chan struct{})}
	b.up = b
	if c.AllGather == nil {
		b.c.AllGather = b.fixed
	}
	if c.Lost != nil {
		b.ended = make(chan struct{})
		go b.watch()
	}
	return b, nil
}

// carried is a PE whose collectives are callbacks.
type carried struct {
	*member
	c     Callbacks
	ended chan struct{} // watch has returned; nil if there is nothing to watch
	left  chan struct{} // the program's Close has returned

	aborted sync.Once
}

// watch waits for the program's word that a PE died.
func (b *carried) watch() {
	defer close(b.ended)
	select {
	case <-b.c.Lost:
	case <-b.closed:
		return
	}
	pe, err := -1, error(nil)
	if b.c.LostPE != nil {
		pe, err = b.c.LostPE()
	}
	switch {
	case pe >= 0:
		err = &LostError{pe, err}
	case err == nil:
		err = errors.New("the program says that a PE died, not which")
	}
	b.end(pe, err)
}

// call runs a collective on a goroutine of its own, since callbacks may wait forever.
func (b *carried) call(o op, seq uint64, timeout time.Duration, parts [][]byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	late := context.AfterFunc(ctx, func() {
		b.end(-1, &timeoutError{fmt.Sprintf("%v (collective %d) of the program did not return within %v", o, seq, timeout)})
	})
	go func() {
		select {
		case <-b.lost:
		case <-b.left:
		case <-ctx.Done():
		}
		cancel()
	}()
	go func() {
		defer cancel()
		got, err := b.carry(ctx, o, seq, parts)
		late()
		if err != nil {
			b.end(blamed(err), fmt.Errorf("%v (collective %d) of the program: %w", o, seq, err))
			return
		}
		b.answered(answer{o, seq, got})
	}()
	return nil
}

// blamed is the PE that an error names, or -1.
func blamed(err error) int {
	var m *MismatchError
	var l *LostError
	var a *AbortError
	switch {
	case errors.As(err, &m):
		return m.PE
	case errors.As(err, &l):
		return l.PE
	case errors.As(err, &a):
		return a.PE
	}
	return -1
}

// headSize is that of what goes before each part: operation and number, u64 each, so that PEs notice when they differ.
const headSize = 16

func head(o op, seq uint64) []byte {
	b := make([]byte, 0, headSize)
	b = binary.LittleEndian.AppendUint64(b, uint64(o))
	return binary.LittleEndian.AppendUint64(b, seq)
}

// carry does a collective by those that the program has.
func (b *carried) carry(ctx context.Context, o op, seq uint64, parts [][]byte) ([][]byte, error) {
	switch {
	case o == opBarrier && b.c.Barrier != nil:
		return nil, b.c.Barrier(ctx)
	case o == opAllToAll && b.c.AllToAll != nil:
		out := make([][]byte, b.size)
		for i, p := range parts {
			out[i] = append(head(o, seq), p...)
		}
		got, err := b.c.AllToAll(ctx, out)
		if err != nil {
			return nil, err
		}
		return b.unwrap(o, seq, got)
	}
	mine := head(o, seq)
	if o == opAllGather {
		mine = append(mine, parts[0]...)
	} else {
		mine = putParts(mine, parts)
	}
	got, err := b.c.AllGather(ctx, mine)
	if err != nil {
		return nil, err
	}
	got, err = b.unwrap(o, seq, got)
	if err != nil || o == opAllGather {
		return got, err
	}
	for from := range got { // all parts of all PEs: take ours
		theirs, err := parseParts(got[from], o.wantParts(b.size))
		if err != nil {
			return nil, fmt.Errorf("what PE %d brought: %w", from, err)
		}
		if o == opAllToAll {
			got[from] = theirs[b.rank]
		}
	}
	if o == opBarrier {
		return nil, nil
	}
	return got, nil
}

// unwrap takes the heads off what all brought, if they are the same.
func (b *carried) unwrap(o op, seq uint64, got [][]byte) ([][]byte, error) {
	if len(got) != b.size {
		return nil, fmt.Errorf("%d parts of %d PEs", len(got), b.size)
	}
	out := make([][]byte, b.size)
	for pe, p := range got {
		if len(p) < headSize {
			return nil, fmt.Errorf("PE %d brought %d bytes", pe, len(p))
		}
		other, number := op(p[0]), binary.LittleEndian.Uint64(p[8:])
		if other != o || number != seq {
			return nil, &MismatchError{pe, b.rank, fmt.Sprintf("PE %d calls %v (collective %d) where PE %d calls %v (collective %d)",
				pe, other, number, b.rank, o, seq)}
		}
		out[pe] = p[headSize:len(p):len(p)]
	}
	return out, nil
}

// fixed is an allgather of parts of any length by one of parts of the same.
func (b *carried) fixed(ctx context.Context, mine []byte) ([][]byte, error) {
	lengths := make([]byte, 8*b.size)
	if err := b.c.AllGatherFixed(ctx, binary.LittleEndian.AppendUint64(nil, uint64(len(mine))), lengths); err != nil {
		return nil, err
	}
	longest := uint64(0)
	for pe := range b.size {
		n := binary.LittleEndian.Uint64(lengths[8*pe:])
		if n > maxCall {
			return nil, fmt.Errorf("PE %d says that it brings %d bytes", pe, n)
		}
		longest = max(longest, n)
	}
	if longest*uint64(b.size) > maxRound {
		return nil, fmt.Errorf("%d PEs bring up to %d bytes each; %d MiB in all are possible", b.size, longest, maxRound>>20)
	}
	select { // was the first call abandoned?
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-b.closed:
		return nil, ErrClosed
	default:
	}
	padded := make([]byte, longest)
	copy(padded, mine)
	all := make([]byte, longest*uint64(b.size))
	if err := b.c.AllGatherFixed(ctx, padded, all); err != nil {
		return nil, err
	}
	parts := make([][]byte, b.size)
	for pe := range parts {
		n := binary.LittleEndian.Uint64(lengths[8*pe:])
		at := uint64(pe) * longest
		parts[pe] = all[at : at+n : at+n]
	}
	return parts, nil
}

func (b *carried) abort(code int, why string) {
	if b.c.Abort != nil {
		b.aborted.Do(func() { b.c.Abort(code, why) })
	}
}

func (b *carried) bye() error {
	defer close(b.left)
	if b.ended != nil {
		<-b.ended
	}
	if b.c.Close == nil {
		return nil
	}
	return b.c.Close()
}
