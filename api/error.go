package api

import (
	"context"
	"errors"
	"io"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Errors of Dial and of calls that found nobody to talk to.
var (
	// ErrNoDaemon: no daemon runs, and none was to be started.
	ErrNoDaemon = errors.New("no daemon runs")
	// ErrGone: the daemon ended, or ends.
	ErrGone = errors.New("the daemon is gone")
	// ErrOldDaemon: the daemon does not know the call.
	ErrOldDaemon = errors.New("the daemon does not know this call")
)

// Error is why a call failed.
type Error struct {
	// Errno says it to programs; 0 where the failure has no number.
	Errno syscall.Errno
	// Text says it to people.
	Text string
	// Subject is what it failed on: the path of a group or an lgpu, or a socket; may be empty.
	Subject string
	// Field is what of the request it is about, such as "memory.max" or "devices"; empty where it is the whole. Who
	// gave the field under a name of its own says that in its place, and then Reason.
	Field string
	// Reason says what is wrong with Field, without its name and value.
	Reason string
	// Hint is what to do about it; may be empty.
	Hint string

	kind error // a sentinel of this package or of package context; may be nil
}

func (e *Error) Error() string { return e.Text }

// Unwrap returns the errno, and ErrGone, ErrOldDaemon or an error of package context where it is one of these.
func (e *Error) Unwrap() []error {
	var all []error
	if e.Errno != 0 {
		all = append(all, e.Errno)
	}
	if e.kind != nil {
		all = append(all, e.kind)
	}
	return all
}

// fromStatus turns the error of a call into an *Error. io.EOF, the end of a stream, stays.
func fromStatus(err error) error {
	var own *Error
	if err == nil || err == io.EOF || errors.As(err, &own) {
		return err
	}
	s := status.Convert(err)
	e := &Error{Text: s.Message()}
	switch s.Code() {
	case codes.Canceled:
		e.kind = context.Canceled
	case codes.DeadlineExceeded:
		e.kind = context.DeadlineExceeded
	case codes.Unavailable: // ESHUTDOWN in the Failure where it was ended, no number where it died
		e.kind = ErrGone
		e.Text = ErrGone.Error() + ": " + s.Message()
	case codes.Unimplemented:
		e.kind = ErrOldDaemon
		e.Text = ErrOldDaemon.Error() + ": " + s.Message()
		e.Hint = "lgpu and its daemon are of different versions: use the newer one, and restart the daemon"
	case codes.PermissionDenied:
		e.Errno = syscall.EPERM
	case codes.ResourceExhausted:
		e.Errno = syscall.E2BIG
	}
	for _, d := range s.Details() {
		if f, ok := d.(*Failure); ok {
			e.Errno, e.Hint = syscall.Errno(f.GetErrno()), f.GetHint()
			e.Subject, e.Field, e.Reason = f.GetSubject(), f.GetField(), f.GetReason()
		}
	}
	return e
}

func unaryErrors(ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	options ...grpc.CallOption,
) error {
	return fromStatus(invoke(ctx, method, request, reply, cc, options...))
}

func streamErrors(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
	options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := open(ctx, d, cc, method, options...)
	if err != nil {
		return nil, fromStatus(err)
	}
	return errorStream{s}, nil
}

// errorStream is a stream with errors of this package.
type errorStream struct{ grpc.ClientStream }

func (s errorStream) SendMsg(m any) error { return fromStatus(s.ClientStream.SendMsg(m)) }
func (s errorStream) RecvMsg(m any) error { return fromStatus(s.ClientStream.RecvMsg(m)) }
