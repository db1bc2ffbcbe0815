package ctxswitch

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// status is the resource manager's answer to a call (nvstatuscodes.h: NV_STATUS). It is an error unless it is 0.
type status uint32

// Answers that mean something here, by their names without NV_ERR_.
const (
	gpuIsLost               status = 0x0f
	insufficientPermissions status = 0x1b
	invalidArgument         status = 0x1f
	invalidClass            status = 0x22
	invalidCommand          status = 0x24
	invalidFunction         status = 0x2a
	invalidParamStruct      status = 0x3a
	noMemory                status = 0x51
	notSupported            status = 0x56
	objectNotFound          status = 0x57
)

var statusNames = map[status]string{
	gpuIsLost: "GPU_IS_LOST", insufficientPermissions: "INSUFFICIENT_PERMISSIONS", invalidArgument: "INVALID_ARGUMENT",
	invalidClass: "INVALID_CLASS", invalidCommand: "INVALID_COMMAND", invalidFunction: "INVALID_FUNCTION",
	invalidParamStruct: "INVALID_PARAM_STRUCT", noMemory: "NO_MEMORY", notSupported: "NOT_SUPPORTED",
	objectNotFound: "OBJECT_NOT_FOUND",
}

// Error says the status as a number, by which it can be looked up, and its name where it is one of those above.
func (s status) Error() string {
	if name := statusNames[s]; name != "" {
		return fmt.Sprintf("driver status %#x, %s", uint32(s), name)
	}
	return fmt.Sprintf("driver status %#x", uint32(s))
}

// reason says why the driver does not log switches (ctrl2080gr.h: NV2080_CTRL_GR_FECS_BIND_EVTBUF_REASON_CODE).
type reason uint32

var reasons = map[reason]string{
	1: "the GPU is too old",
	2: "this GPU does not log them",
	3: "they are not logged for this kind of client",
	4: "the driver demands an administrator",
	5: "the virtual GPU was not given the right to be traced",
}

// refusal is why a bind was refused: the status, and the driver's reason where it gives one.
func refusal(err error, r reason) error {
	if r == 0 {
		return err
	}
	why := reasons[r]
	if why == "" {
		why = "for a reason that is not known here"
	}
	return fmt.Errorf("%w: %s (reason %d)", err, why, r)
}

// UnsupportedError is an error of Open where nobody can read the log at present. It wraps errors.ErrUnsupported.
type UnsupportedError struct {
	Err    error  // what failed
	Advice string // what would help, or why nothing would
}

// Error says what failed and what would help.
func (u *UnsupportedError) Error() string { return u.Err.Error() + "; " + u.Advice }

// Unwrap returns what failed, and errors.ErrUnsupported.
func (u *UnsupportedError) Unwrap() []error { return []error{u.Err, errors.ErrUnsupported} }

// advise makes an error an UnsupportedError where no further try, on this machine as it is, will go better.
func advise(err error) error {
	var s status
	if !errors.As(err, &s) {
		s = 0
	}
	one := func(targets ...error) bool {
		for _, target := range targets {
			if errors.Is(err, target) {
				return true
			}
		}
		return false
	}
	switch {
	case err == nil:
		return nil
	case one(fs.ErrPermission) || s == insufficientPermissions:
		return &UnsupportedError{err, "run as root with CAP_SYS_ADMIN, or let all users profile " +
			"(NVreg_RestrictProfilingToAdminUsers=0 of the module nvidia)"}
	case one(fs.ErrNotExist, syscall.ENXIO, syscall.ENODEV):
		return &UnsupportedError{err, "NVIDIA's driver has no such device file here: load it, or give the container the GPU"}
	case s == objectNotFound:
		return &UnsupportedError{err, "the driver does not know a GPU of that UUID: give the container the GPU whole"}
	case s == invalidClass || s == invalidCommand || s == invalidFunction || s == invalidParamStruct ||
		s == notSupported || one(syscall.ENOTTY, syscall.EINVAL):
		return &UnsupportedError{err, "this driver or GPU, or a sandbox before it, cannot do this; driver 580 is known to"}
	}
	return err
}
