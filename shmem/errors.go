package shmem

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/lgpu/lgpu/shmem/bootstrap"
	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/heap"
	"github.com/lgpu/lgpu/shmem/kernels"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport"
)

// Error is every error of this package's calls.
type Error struct {
	// Status is what kind of error it is: layout.Status*, the numbers of lshmem.h.
	Status uint32
	// Op is the call.
	Op string
	// PE is the PE that the error is about, -1 where it is about no single one.
	PE  int
	Err error
}

// Error says what failed, with whom and why.
func (e *Error) Error() string {
	text := e.Err.Error()
	if who := fmt.Sprintf("PE %d", e.PE); e.PE >= 0 && !strings.HasPrefix(text, who+" ") {
		text = who + ": " + text
	}
	return fmt.Sprintf("lshmem: %s: %s", e.Op, text)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Status returns the layout.Status* of an error: StatusOK of nil, and StatusSystem of what is not this package's.
func Status(err error) uint32 {
	if err == nil {
		return layout.StatusOK
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Status
	}
	return layout.StatusSystem
}

// wrap makes an Error of what other packages return; what is one already stays.
func wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	var have *Error
	if errors.As(err, &have) {
		return err
	}
	e := &Error{Status: layout.StatusSystem, Op: op, PE: -1, Err: err}
	var peer *transport.PeerError
	if errors.As(err, &peer) {
		e.PE = peer.PE
	}
	var lost *bootstrap.LostError
	var abort *bootstrap.AbortError
	var mismatch *bootstrap.MismatchError
	switch {
	case errors.As(err, &lost):
		e.Status, e.PE = layout.StatusPeer, lost.PE
	case errors.As(err, &abort):
		e.Status, e.PE = layout.StatusPeer, abort.PE
	case errors.Is(err, bootstrap.ErrTimeout), errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		e.Status = layout.StatusTimeout
	case errors.Is(err, heap.ErrFull), cuda.Code(err) == cuda.OutOfMemory:
		e.Status = layout.StatusMemory
	case errors.Is(err, heap.ErrArgument), errors.Is(err, heap.ErrUnknown), errors.Is(err, kernels.ErrArgument), errors.Is(err, bootstrap.ErrSetting), errors.Is(err, errAddress),
		errors.As(err, &mismatch):
		e.Status = layout.StatusArgument
	case errors.Is(err, cuda.ErrNoDriver), cuda.Code(err) == cuda.NotSupported, errors.Is(err, errForeign):
		e.Status = layout.StatusSupport
	case errors.Is(err, bootstrap.ErrClosed):
		e.Status = layout.StatusState
	}
	return e
}

// fault is an Error with a text of its own.
func fault(status uint32, op string, pe int, format string, args ...any) error {
	return &Error{Status: status, Op: op, PE: pe, Err: fmt.Errorf(format, args...)}
}

// statusText says what a status of the device means.
func statusText(status uint32) string {
	switch status {
	case layout.StatusOK:
		return "no error"
	case layout.StatusTimeout:
		return "a wait passed its timeout"
	case layout.StatusPeer:
		return "a PE died"
	case layout.StatusQueue:
		return "a work request completed in error"
	case layout.StatusArgument:
		return "a PE or address that does not exist, or is not reachable that way"
	case layout.StatusMemory:
		return "out of memory"
	case layout.StatusSystem:
		return "the system refused"
	case layout.StatusVersion:
		return "device code and library were built with different layouts"
	case layout.StatusState:
		return "not possible now"
	case layout.StatusSupport:
		return "not supported here"
	}
	return fmt.Sprintf("status %d", status)
}
