package shmem

import (
	"errors"
	"runtime"
	"time"

	"github.com/lgpu/lgpu/shmem/kernels"
	"github.com/lgpu/lgpu/shmem/layout"
)

// signalCode checks a signal operation and its word.
func signalCode(op string, code uint32, signal uint64) error {
	if code != layout.SignalSet && code != layout.SignalAdd {
		return fault(layout.StatusArgument, op, -1, "signal operation %d", code)
	}
	if signal%8 != 0 {
		return fault(layout.StatusArgument, op, -1, "the signal's address %#x is not aligned to 8", signal)
	}
	return nil
}

// SignalOp sets a signal word in a PE's heap or adds to it (layout.Signal*).
func (o *operations) SignalOp(signal, value uint64, code uint32, pe int) error {
	return o.signal("signal_op", signal, value, code, pe)
}

func (o *operations) signal(op string, signal, value uint64, code uint32, pe int) error {
	if err := signalCode(op, code, signal); err != nil {
		return err
	}
	to, err := o.target(op, signal, 8, pe)
	if err != nil {
		return err
	}
	if o.exec.plain() {
		if to == 0 {
			return notMapped(op, pe)
		}
		a := layout.AtomicSet
		if code == layout.SignalAdd {
			a = layout.AtomicAdd
		}
		hostAtomic(a, layout.TypeUint64, to, value, 0)
		return nil
	}
	return o.signalTo(op, to, signal, value, code, pe)
}

// signalTo is signal on a checked word, which is mapped at to unless that is 0, by a GPU.
func (o *operations) signalTo(op string, to, signal, value uint64, code uint32, pe int) error {
	own := &o.exec.own
	own.mu.Lock()
	defer own.mu.Unlock()
	if err := o.signalOn(op, to, signal, value, code, pe, own.stream); err != nil {
		return err
	}
	return o.exec.finish(op, own.stream)
}

// signalOn puts a signal on a stream; to is where the word is mapped, or 0.
func (o *operations) signalOn(op string, to, signal, value uint64, code uint32, pe int, stream uintptr) error {
	if o.exec.plain() {
		return o.signal(op, signal, value, code, pe)
	}
	if to == 0 || code != layout.SignalSet || !o.exec.memops {
		if code == layout.SignalAdd {
			if err := o.routes.noAtomics(op, pe); err != nil {
				return err
			}
		}
		return o.exec.launcher.runRMA(op, kernels.Signal, with{signal: signal, value: value, pe: uint32(pe), code: code}, stream)
	}
	return o.exec.inContext(op, func() error { return o.exec.d.WriteValue64(stream, to, value) })
}

// PutSignal is a Put, then a signal in the same PE's heap: a PE that sees the signal sees the data.
func (o *operations) PutSignal(dest, source, bytes, signal, value uint64, code uint32, pe int) error {
	return o.putSignal("put_signal", dest, source, bytes, signal, value, code, pe)
}

// PutSignalNBI is PutSignal that may return before the data is there. So far it does not: the source may change when it
// returns.
func (o *operations) PutSignalNBI(dest, source, bytes, signal, value uint64, code uint32, pe int) error {
	return o.putSignal("put_signal_nbi", dest, source, bytes, signal, value, code, pe)
}

func (o *operations) putSignal(op string, dest, source, bytes, signal, value uint64, code uint32, pe int) error {
	if err := signalCode(op, code, signal); err != nil {
		return err
	}
	if _, err := o.target(op, signal, 8, pe); err != nil {
		return err
	}
	// The put has arrived when it returns: nothing can overtake it.
	if err := o.put(op, dest, source, bytes, pe, true); err != nil {
		return err
	}
	return o.signal(op, signal, value, code, pe)
}

// SignalFetch reads a signal word of this PE.
func (o *operations) SignalFetch(signal uint64) (uint64, error) { return o.G(signal, 8, o.job.rank) }

// SignalWait waits until a signal word of this PE compares (layout.Compare*) to a value, and returns what it is then.
func (o *operations) SignalWait(signal uint64, compare uint32, value uint64) (uint64, error) {
	return o.wait("signal_wait_until", signal, layout.TypeUint64, compare, value)
}

// WaitUntil waits until an element of any integer type at an address of this PE's heap compares to a value, given by
// its bits.
func (o *operations) WaitUntil(address uint64, kind, compare uint32, value uint64) error {
	_, err := o.wait("wait_until", address, kind, compare, value)
	return err
}

// Test says whether an element compares to a value.
func (o *operations) Test(address uint64, kind, compare uint32, value uint64) (bool, error) {
	size, err := integer("test", kind, compare)
	if err != nil {
		return false, err
	}
	v, err := o.G(address, size, o.job.rank)
	return err == nil && compares(kind, compare, v, value), err
}

// integer checks the type and comparison of a wait.
func integer(op string, kind, compare uint32) (int, error) {
	if kind >= layout.TypeFloat16 {
		return 0, fault(layout.StatusArgument, op, -1, "type %d: waits are on integers", kind)
	}
	if compare > layout.CompareGE {
		return 0, fault(layout.StatusArgument, op, -1, "there is no comparison %d", compare)
	}
	return kernels.TypeBytes(kind), nil
}

func (o *operations) wait(op string, address uint64, kind, compare uint32, value uint64) (uint64, error) {
	size, err := integer(op, kind, compare)
	if err != nil {
		return 0, err
	}
	deadline := o.job.deadline()
	for i := 0; ; i++ {
		v, err := o.G(address, size, o.job.rank)
		if err != nil {
			var of *Error
			if errors.As(err, &of) { // of this call, not of the loads that it is made of
				of.Op = op
			}
			return 0, err
		}
		if compares(kind, compare, v, value) {
			return v, nil
		}
		switch {
		case i < 100:
			runtime.Gosched()
		case time.Now().After(deadline):
			return 0, fault(layout.StatusTimeout, op, -1, "the word at %#x is %d after %v", address, v, o.job.timeout)
		default:
			time.Sleep(min(time.Duration(i)*time.Microsecond/4, 200*time.Microsecond))
		}
	}
}

// compares compares two elements of an integer type, given by their bits.
func compares(kind, compare uint32, a, b uint64) bool {
	shift := 64 - 8*kernels.TypeBytes(kind)
	a, b = a<<shift, b<<shift // the order stays
	less := a < b
	switch kind {
	case layout.TypeInt8, layout.TypeInt16, layout.TypeInt32, layout.TypeInt64:
		less = int64(a) < int64(b)
	}
	switch compare {
	case layout.CompareEQ:
		return a == b
	case layout.CompareNE:
		return a != b
	case layout.CompareGT:
		return !less && a != b
	case layout.CompareLE:
		return less || a == b
	case layout.CompareLT:
		return less
	}
	return !less
}
