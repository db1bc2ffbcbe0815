package criu

import (
	"encoding/binary"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// withoutBreakpoints has CRIU stop programs by their system calls and not by breakpoints (FI_NO_BREAKPOINTS, in CRIU's
// criu/include/fault-injection.h).
const withoutBreakpoints = "CRIU_FAULT=130"

// onWrite is HW_BREAKPOINT_W of linux/hw_breakpoint.h.
const onWrite = 2

// watched is written to see whether a breakpoint notices it.
var watched atomic.Uint64

// breakpoints reports whether the processor notices breakpoints. In some virtual machines it does not, and CRIU, which stops
// programs by them, would wait for ever.
var breakpoints = sync.OnceValue(func() bool {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	a := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_BREAKPOINT, Bp_type: onWrite,
		Ext1: uint64(uintptr(unsafe.Pointer(&watched))), Ext2: uint64(unsafe.Sizeof(watched)), // bp_addr and bp_len
	}
	a.Size = uint32(unsafe.Sizeof(a))
	fd, err := unix.PerfEventOpen(&a, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return false // nobody knows
	}
	defer unix.Close(fd)
	watched.Add(1)
	var count [8]byte
	_, err = unix.Read(fd, count[:])
	return err == nil && binary.NativeEndian.Uint64(count[:]) > 0
})

// environment is that of a CRIU: nil where it is this process's own.
func environment() []string {
	if breakpoints() {
		return nil
	}
	return append(os.Environ(), withoutBreakpoints)
}
