package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/tenant/protocol"
	"github.com/lgpu/lgpu/tenant/region"
)

// dial connects to a unix socket. It waits for a short time where nobody accepts.
func dial(kind int, path string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	soon := unix.NsecToTimeval((200 * time.Millisecond).Nanoseconds())
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &soon)
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &soon)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func (w *world) dialTenant() (int, error) { return dial(unix.SOCK_SEQPACKET, w.socket) }

// member is a tenant that has been let in, with what it was given.
type member struct {
	fd      int
	welcome protocol.Message
	usage   []byte // mapped; nil where it is not
	usageFD int
}

var hello = protocol.Message{Kind: protocol.Hello, Version: protocol.Version}

// join says Hello and takes what comes.
func (w *world) join() (*member, error) {
	fd, err := w.dialTenant()
	if err != nil {
		return nil, err
	}
	m := &member{fd: fd, usageFD: -1}
	if err := m.greet(); err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

func (m *member) greet() error {
	patient := unix.NsecToTimeval((5 * time.Second).Nanoseconds())
	_ = unix.SetsockoptTimeval(m.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patient)
	if err := send(m.fd, hello.Append(nil)); err != nil {
		return err
	}
	var data [protocol.Size + protocol.MaxText]byte
	var control [64]byte
	n, controls, _, _, err := unix.Recvmsg(m.fd, data[:], control[:], unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return err
	}
	var text string
	if m.welcome, text, err = protocol.Parse(data[:n]); err != nil || m.welcome.Kind != protocol.Welcome {
		return fmt.Errorf("not let in: %s", text)
	}
	var fds []int
	if messages, err := unix.ParseSocketControlMessage(control[:controls]); err == nil && len(messages) == 1 {
		fds, _ = unix.ParseUnixRights(&messages[0])
	}
	if len(fds) != 2 {
		return fmt.Errorf("%d descriptors came", len(fds))
	}
	unix.Close(fds[0])
	m.usageFD = fds[1]
	m.usage, err = unix.Mmap(m.usageFD, 0, region.UsageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	soon := unix.NsecToTimeval((20 * time.Millisecond).Nanoseconds())
	_ = unix.SetsockoptTimeval(m.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &soon)
	return err
}

func (m *member) close() {
	unix.Close(m.fd)
	if m.usage != nil {
		_ = unix.Munmap(m.usage)
	}
	if m.usageFD >= 0 {
		unix.Close(m.usageFD)
	}
}

// hear takes what has come, if anything has.
func (m *member) hear() (got protocol.Message, ok bool) {
	var data [protocol.Size + protocol.MaxText]byte
	n, _, err := unix.Recvfrom(m.fd, data[:], unix.MSG_DONTWAIT)
	if err != nil || n == 0 {
		return got, false
	}
	got, _, err = protocol.Parse(data[:n])
	return got, err == nil
}

func send(fd int, data []byte, files ...int) error {
	var control []byte
	if len(files) > 0 {
		control = unix.UnixRights(files...)
	}
	return unix.Sendmsg(fd, data, control, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
}

// holdConnections keeps connections open on which nothing is said, and opens again what the daemon closes.
func (w *world) holdConnections() {
	var held []int
	for w.more() {
		if len(held) < 400 {
			fd, err := w.dialTenant()
			if err == nil {
				held = append(held, fd)
				continue
			}
			w.note(err)
		}
		kept := held[:0]
		for _, fd := range held {
			var b [1]byte
			if n, _, err := unix.Recvfrom(fd, b[:], unix.MSG_DONTWAIT); n == 0 && err == nil {
				unix.Close(fd)
			} else {
				kept = append(kept, fd)
			}
		}
		held = kept
		time.Sleep(5 * time.Millisecond)
	}
}

// loopConnections opens and closes connections, some of them with a Hello that nobody waits for.
func (w *world) loopConnections() {
	w.each(2, func(r *rand.Rand) {
		fd, err := w.dialTenant()
		if err != nil {
			w.note(err)
			return
		}
		if r.IntN(2) == 0 {
			w.note(send(fd, hello.Append(nil)))
		}
		unix.Close(fd)
	})
}

// halfMessages sends packets of every length, kinds that are none, other versions, and what only a daemon says, before
// and after a Hello.
func (w *world) halfMessages() {
	w.each(2, func(r *rand.Rand) {
		fd, err := w.dialTenant()
		if err != nil {
			w.note(err)
			return
		}
		defer unix.Close(fd)
		if r.IntN(3) == 0 {
			m := &member{fd: fd, usageFD: -1}
			w.note(m.greet())
			defer func() { m.fd = -1; m.close() }()
		}
		for range 1 + r.IntN(8) {
			data := make([]byte, r.IntN(2*protocol.Size))
			if r.IntN(8) == 0 {
				data = make([]byte, r.IntN(1<<17))
			}
			for i := range data {
				data[i] = byte(r.Uint32())
			}
			if len(data) >= 4 && r.IntN(2) == 0 {
				binary.NativeEndian.PutUint16(data, uint16(r.IntN(16)))
				binary.NativeEndian.PutUint16(data[2:], uint16(r.IntN(3)))
			}
			w.acts.Add(1)
			if send(fd, data) != nil {
				break
			}
		}
	})
}

// floods sends every message of the protocol as fast as it is taken, with values that are too large, and comes back where
// it is thrown out.
func (w *world) floods() {
	r := w.dice(0)
	values := []uint64{0, 1, 4096, 1 << 20, 1 << 40, 1 << 63, 1<<64 - 1}
	kinds := []uint16{protocol.Gate, protocol.Want, protocol.Closed, protocol.Need, protocol.Need}
	for w.more() {
		m, err := w.join()
		if err != nil {
			w.note(err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		_ = send(m.fd, protocol.Message{Kind: protocol.Gate}.Append(nil))
		for burst := r.IntN(20000); burst > 0 && w.more(); burst-- {
			one := protocol.Message{
				Kind: kinds[r.IntN(len(kinds))], Value: values[r.IntN(len(values))], Serial: values[r.IntN(len(values))],
				Flags: uint32(r.IntN(1 << 7)), ID: r.Uint64(), Client: r.Uint32(),
			}
			if r.IntN(5000) == 0 {
				one.Kind = uint16(r.IntN(14))
			}
			err := send(m.fd, one.Append(nil))
			if err == unix.EAGAIN {
				time.Sleep(time.Millisecond)
			} else if err != nil {
				break
			}
			for r.IntN(4) == 0 {
				if _, ok := m.hear(); !ok {
					break
				}
			}
		}
		m.close()
	}
}

// keepGates wants the device again and again, and when it has it never says that it has closed its gate.
func (w *world) keepGates() {
	m, err := w.join()
	if err != nil {
		w.note(err)
		return
	}
	defer m.close()
	_ = send(m.fd, protocol.Message{Kind: protocol.Gate}.Append(nil))
	for w.more() {
		w.note(send(m.fd, protocol.Message{Kind: protocol.Want}.Append(nil)))
		for {
			if _, ok := m.hear(); !ok {
				break
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// garbage fills all that the tenant can write with anything, again and again, while it talks with the daemon about it.
// It also tries what could pull memory from under the daemon: to shrink the file and to punch holes into it.
func (w *world) garbage() {
	r := w.dice(0)
	for w.more() {
		m, err := w.join()
		if err != nil {
			w.note(err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		words := unsafe.Slice((*uint64)(unsafe.Pointer(&m.usage[0])), len(m.usage)/8)
		_ = send(m.fd, protocol.Message{Kind: protocol.Gate}.Append(nil))
		for range 200 {
			if !w.more() {
				break
			}
			switch how := r.IntN(5); how {
			case 0, 1, 2: // random, 0x00, 0xff
				for i := range words {
					word := uint64(0)
					if how == 0 {
						word = r.Uint64()
					} else if how == 1 {
						word = 1<<64 - 1
					}
					words[i] = word
				}
			case 3:
				if unix.Ftruncate(m.usageFD, int64(r.IntN(region.UsageBytes))) == nil {
					w.note(fmt.Errorf("the counters can be truncated"))
				}
				_ = unix.Fallocate(m.usageFD, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(region.UsageBytes))
			case 4:
				_, _ = unix.FcntlInt(uintptr(m.usageFD), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_FUTURE_WRITE)
			}
			_ = send(m.fd, protocol.Message{Kind: protocol.Need, Value: r.Uint64()}.Append(nil))
			_ = send(m.fd, protocol.Message{Kind: protocol.Want}.Append(nil))
			_ = send(m.fd, protocol.Message{Kind: protocol.Closed, Value: r.Uint64(), Serial: r.Uint64N(4)}.Append(nil))
			for {
				if _, ok := m.hear(); !ok {
					break
				}
			}
		}
		m.close()
	}
}

// die says Hello, goes so many steps, and is killed.
func (w *world) die() {
	kill := func() { _ = unix.Kill(os.Getpid(), unix.SIGKILL) }
	step := w.seed % 7
	fd, err := w.dialTenant()
	if err != nil || step == 0 {
		kill()
	}
	m := &member{fd: fd, usageFD: -1}
	if step == 1 {
		_ = send(fd, hello.Append(nil))
		kill()
	}
	if m.greet() != nil || step == 2 {
		kill()
	}
	_ = send(fd, protocol.Message{Kind: protocol.Gate}.Append(nil))
	if step == 3 {
		kill()
	}
	_ = send(fd, protocol.Message{Kind: protocol.Want}.Append(nil))
	if step == 4 {
		kill()
	}
	for range 20 {
		if got, ok := m.hear(); ok && got.Kind == protocol.Open {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if step == 5 {
		kill()
	}
	_ = send(fd, protocol.Message{Kind: protocol.Need, Value: 1 << 20}.Append(nil))
	kill()
}

// dieByStep starts tenants that die at every step of their life.
func (w *world) dieByStep() {
	var n int
	w.each(1, func(*rand.Rand) {
		n++
		if c := w.child("die'", n); c.Start() == nil {
			_ = c.Wait()
		}
	})
}

// dyingTenants starts real programs and kills them after any time.
func (w *world) dyingTenants() {
	w.each(3, func(r *rand.Rand) {
		c := exec.Command(w.program, "0", "1000000")
		in, err := c.StdinPipe()
		if err != nil || c.Start() != nil {
			return
		}
		time.Sleep(time.Duration(r.IntN(40_000)) * time.Microsecond)
		_ = c.Process.Kill()
		in.Close()
		_ = c.Wait()
	})
}
