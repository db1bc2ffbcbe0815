package bootstrap

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// self is what tells this process from all others of its machine: its number, when it began, and in which namespace its
// number counts. It is zero where /proc does not say.
type self struct {
	pid       uint32
	start     uint64 // field 22 of /proc/PID/stat (proc_pid_stat(5))
	namespace uint64 // inode of /proc/PID/ns/pid
}

func identify(pid int) (self, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return self{}, err
	}
	// The name, in parentheses, may hold anything.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return self{}, fmt.Errorf("/proc/%d/stat: %d fields", pid, len(fields))
	}
	start, err := strconv.ParseUint(string(fields[19]), 10, 64)
	if err != nil {
		return self{}, fmt.Errorf("/proc/%d/stat: %w", pid, err)
	}
	var ns unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/ns/pid", pid), &ns); err != nil {
		return self{}, err
	}
	return self{uint32(pid), start, ns.Ino}, nil
}

// watch ends what is read from c when the process dies that is at its other end, on this machine. The kernel closes a
// connection with the last process that has it, and that may be one that the PE forked. What the PE said before is
// still read. The result ends the watch; it is nil where there is nothing to watch: the process is elsewhere, or
// hidden.
func watch(c net.Conn, who self) *os.File {
	tcp, ok := c.(*net.TCPConn)
	if !ok || !oneMachine(c) || who.pid == 0 || who.start == 0 {
		return nil
	}
	own, err := identify(os.Getpid())
	if err != nil || own.namespace != who.namespace || own.pid == who.pid {
		return nil
	}
	fd, err := unix.PidfdOpen(int(who.pid), unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	// If this is still the one that began then, the descriptor is its.
	if now, err := identify(int(who.pid)); err != nil || now != who {
		f.Close()
		return nil
	}
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil
	}
	go func() {
		died := false
		_ = raw.Read(func(fd uintptr) bool { // its error is that f was closed
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(p, 0)
			died = err == nil && n > 0
			return died
		})
		if died {
			_ = tcp.CloseRead() // its error is that it is closed already
		}
	}()
	return f
}

// oneMachine says that both ends of a connection are on this machine.
func oneMachine(c net.Conn) bool {
	here, ok1 := c.LocalAddr().(*net.TCPAddr)
	there, ok2 := c.RemoteAddr().(*net.TCPAddr)
	return ok1 && ok2 && here.IP.Equal(there.IP)
}
