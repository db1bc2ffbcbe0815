package server

import (
	"context"
	"errors"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/policy/limits"
)

// classes are the errors that the daemon's parts wrap, with the errno and the code that callers see.
var classes = []struct {
	err   error
	errno syscall.Errno
	code  codes.Code
}{
	{daemon.ErrClosed, 0, codes.Unavailable},
	{context.Canceled, 0, codes.Canceled},
	{context.DeadlineExceeded, 0, codes.DeadlineExceeded},
	{daemon.ErrExists, syscall.EEXIST, codes.AlreadyExists},
	{daemon.ErrNotFound, syscall.ENOENT, codes.NotFound},
	{daemon.ErrBusy, syscall.EBUSY, codes.FailedPrecondition},
	{daemon.ErrDiffers, syscall.EEXIST, codes.FailedPrecondition},
	{daemon.ErrInvalid, syscall.EINVAL, codes.InvalidArgument},
	{daemon.ErrNoDevice, syscall.ENODEV, codes.NotFound},
}

// codesOf are the codes of errnos; any other is codes.Unknown, which is no worse: callers go by the errno.
var codesOf = map[syscall.Errno]codes.Code{
	syscall.EEXIST: codes.AlreadyExists, syscall.ENOENT: codes.NotFound, syscall.ENODEV: codes.NotFound,
	syscall.EINVAL: codes.InvalidArgument, syscall.ERANGE: codes.OutOfRange, syscall.EOVERFLOW: codes.OutOfRange,
	syscall.EPERM: codes.PermissionDenied, syscall.EACCES: codes.PermissionDenied, syscall.EBUSY: codes.FailedPrecondition,
	syscall.ENOTEMPTY: codes.FailedPrecondition, syscall.ENOSPC: codes.ResourceExhausted,
	syscall.EOPNOTSUPP: codes.InvalidArgument, syscall.EIO: codes.Internal,
}

// hinter is an error that knows what to do about it.
type hinter interface{ Hint() string }

// failure turns an error of the daemon into the status of a call.
func failure(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	f, code := &api.Failure{}, codes.Unknown
	var refused *limits.Error
	var errno syscall.Errno
	if errors.As(err, &refused) {
		f.Subject = refused.Path
		if refused.File != "" {
			f.Subject = refused.File
		}
	}
	if errors.As(err, &errno) {
		f.Errno = int32(errno)
		if c, ok := codesOf[errno]; ok {
			code = c
		}
	}
	for _, c := range classes {
		if errors.Is(err, c.err) {
			code = c.code
			if f.Errno == 0 {
				f.Errno = int32(c.errno)
			}
			break
		}
	}
	var h hinter
	if errors.As(err, &h) {
		f.Hint = h.Hint()
	}
	return withFailure(code, err.Error(), f)
}

func withFailure(code codes.Code, text string, f *api.Failure) error {
	s, err := status.New(code, text).WithDetails(f)
	if err != nil {
		return status.Error(code, text) // a Failure can always be added; what matters is the text
	}
	return s.Err()
}

// refuse is the status of a request that makes no sense before the daemon has looked at it.
func refuse(subject, text string) error {
	return withFailure(codes.InvalidArgument, text, &api.Failure{Errno: int32(syscall.EINVAL), Subject: subject})
}
