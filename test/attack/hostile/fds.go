package main

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/tenant/protocol"
	"github.com/lgpu/lgpu/tenant/region"
)

// trap returns a TCP socket whose last close blocks for as long as the attack lasts: it has data that the other end, keep,
// does not read, and lingers.
func trap(seconds int) (fd, keep int, err error) {
	const small = 4096
	listener, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, -1, err
	}
	defer unix.Close(listener)
	_ = unix.SetsockoptInt(listener, unix.SOL_SOCKET, unix.SO_RCVBUF, small)
	if err = unix.Bind(listener, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return -1, -1, err
	}
	if err = unix.Listen(listener, 1); err != nil {
		return -1, -1, err
	}
	address, err := unix.Getsockname(listener)
	if err != nil {
		return -1, -1, err
	}
	if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, -1, err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, small)
	if err = unix.Connect(fd, address); err == nil {
		keep, _, err = unix.Accept(listener)
	}
	if err != nil {
		unix.Close(fd)
		return -1, -1, err
	}
	_ = unix.SetNonblock(fd, true)
	for data := make([]byte, 1<<16); ; {
		if _, err := unix.Write(fd, data); err != nil {
			break
		}
	}
	// With O_NONBLOCK a close that lingers would not wait.
	_ = unix.SetNonblock(fd, false)
	return fd, keep, unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: int32(seconds)})
}

// pass sends a descriptor on a new connection and closes its own, so that the daemon has the last one. The close is made
// aside, since it blocks the attacker where the daemon was faster.
func (w *world) pass(r *rand.Rand, fd int, stuck *atomic.Int64) {
	socket, err := w.dialTenant()
	if err != nil {
		w.note(err)
		unix.Close(fd)
		return
	}
	m := hello
	switch r.IntN(4) {
	case 0:
		m = protocol.Message{Kind: uint16(r.IntN(16))}
	case 1:
		m.Flags = protocol.FlagReconnect
	}
	w.note(send(socket, m.Append(nil), fd))
	stuck.Add(1)
	go func() {
		unix.Close(fd)
		stuck.Add(-1)
	}()
	if r.IntN(4) != 0 {
		unix.Close(socket) // with the message in it, which the daemon may never have seen
		return
	}
	time.AfterFunc(time.Duration(r.IntN(3000))*time.Millisecond, func() { unix.Close(socket) })
}

// lingering gives the daemon sockets whose close blocks.
func (w *world) lingering() {
	var kept, stuck atomic.Int64
	w.each(2, func(r *rand.Rand) {
		if kept.Load() > 4000 || stuck.Load() > 1000 {
			time.Sleep(20 * time.Millisecond)
			return
		}
		fd, _, err := trap(600) // the other end is kept to the end of the process
		if err != nil {
			w.note(err)
			time.Sleep(10 * time.Millisecond)
			return
		}
		kept.Add(1)
		w.pass(r, fd, &stuck)
	})
}

// hungFiles gives the daemon files of a file system that never answers a close.
func (w *world) hungFiles() {
	var stuck atomic.Int64
	w.each(2, func(r *rand.Rand) {
		if stuck.Load() > 1000 {
			time.Sleep(20 * time.Millisecond)
			return
		}
		fd, err := unix.Open(w.hang, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			w.note(err)
			time.Sleep(10 * time.Millisecond)
			return
		}
		w.pass(r, fd, &stuck)
	})
}

// open returns a descriptor of any kind.
func (w *world) open(r *rand.Rand) int {
	var fd int
	var err error
	two := [2]int{-1, -1}
	switch r.IntN(12) {
	case 0:
		err = unix.Pipe2(two[:], unix.O_CLOEXEC)
		fd = two[0]
	case 1:
		fifo := filepath.Join(os.TempDir(), "hostile-fifo")
		_ = unix.Mkfifo(fifo, 0o600)
		fd, err = unix.Open(fifo, unix.O_RDWR|unix.O_CLOEXEC, 0)
		_ = unix.Unlink(fifo)
	case 2:
		fd, err = unix.Open("/dev/zero", unix.O_RDWR|unix.O_CLOEXEC, 0)
	case 3:
		fd, err = unix.Open("/proc/self/mem", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	case 4:
		fd, err = unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	case 5:
		fd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	case 6:
		fd, err = unix.PidfdOpen(os.Getpid(), 0)
	case 7: // a socket that has another in its queue, and so on: the kernel's collector has to find out
		if two, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0); err == nil {
			_ = send(two[0], []byte{0}, two[0], two[1])
			fd = two[1]
		}
	case 8:
		fd = memory(r.IntN(2*region.UsageBytes), r.IntN(16))
	case 9:
		if w.tree() == "" {
			fd, err = unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			break
		}
		fd, err = unix.Open(filepath.Join(w.tree(), "lgpu.weight"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	case 10:
		fd, err = unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	default:
		fd, err = w.dialTenant()
	}
	if err != nil {
		return -1
	}
	if two[0] >= 0 && two[0] != fd {
		unix.Close(two[0])
	}
	if two[1] >= 0 && two[1] != fd {
		unix.Close(two[1])
	}
	return fd
}

// memory returns a memory file with seals.
func memory(bytes, seals int) int {
	fd, err := unix.MemfdCreate(region.UsageName, unix.MFD_ALLOW_SEALING|unix.MFD_CLOEXEC)
	if err != nil {
		return -1
	}
	_ = unix.Ftruncate(fd, int64(bytes))
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	return fd
}

// descriptors sends many descriptors of all kinds in every message, before and after a Hello.
func (w *world) descriptors() {
	w.each(2, func(r *rand.Rand) {
		fd, err := w.dialTenant()
		if err != nil {
			w.note(err)
			return
		}
		m := &member{fd: fd, usageFD: -1}
		defer m.close()
		if r.IntN(2) == 0 {
			w.note(m.greet())
		}
		for range 1 + r.IntN(4) {
			var files []int
			one := w.open(r)
			for n := 1 + r.IntN(253); len(files) < n; { // 253 is the most that a message carries
				if one < 0 || r.IntN(64) == 0 {
					unix.Close(one)
					one = w.open(r)
				}
				if one >= 0 {
					files = append(files, one)
				} else {
					break
				}
			}
			if len(files) == 0 {
				continue
			}
			kinds := []protocol.Message{hello, {Kind: protocol.Need, Value: 1}, {Kind: protocol.Gate}, {Kind: 99}, {Kind: protocol.Want}}
			data := kinds[r.IntN(len(kinds))].Append(nil)
			if r.IntN(4) == 0 {
				data = data[:r.IntN(len(data))]
			}
			w.acts.Add(1)
			err := send(fd, data, files...)
			unix.Close(one)
			if err != nil {
				break
			}
		}
	})
}

// forgedCounters comes back with counters that the daemon did not make: of the wrong size, without seals, and cut while
// the daemon looks at them.
func (w *world) forgedCounters() {
	w.each(2, func(r *rand.Rand) {
		fd, err := w.dialTenant()
		if err != nil {
			w.note(err)
			return
		}
		defer unix.Close(fd)
		m := &member{fd: fd, usageFD: -1}
		if r.IntN(2) == 0 {
			if m.greet() != nil {
				return
			}
			if m.usage != nil {
				defer func() { m.fd = -1; m.close() }()
			}
		}
		size := []int{0, 1, 4096, region.UsageBytes - 4096, region.UsageBytes, region.UsageBytes, region.UsageBytes + 1, 1 << 40}
		bytes := size[r.IntN(len(size))]
		forged := memory(bytes, []int{0, unix.F_SEAL_SEAL, unix.F_SEAL_SHRINK | unix.F_SEAL_GROW, 7, 15}[r.IntN(5)])
		if forged < 0 {
			return
		}
		defer unix.Close(forged)
		back := hello
		back.Flags, back.ID, back.Client = protocol.FlagReconnect, m.welcome.ID, m.welcome.Client
		if r.IntN(4) == 0 {
			back.Client = r.Uint32()
		}
		again, err := w.dialTenant()
		if err != nil {
			return
		}
		defer unix.Close(again)
		w.note(send(again, back.Append(nil), forged))
		for range 50 { // while it is looked at
			_ = unix.Ftruncate(forged, 0)
			_ = unix.Ftruncate(forged, int64(bytes))
		}
	})
}
