package foreign

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// soPassRights is SO_PASSRIGHTS (Linux 6.16): whether descriptors may be sent to a socket. Connections have it from
// their listener, from before they are accepted.
const soPassRights = 83

// maxRights is how many descriptors one packet can have (SCM_MAX_FD).
const maxRights = 253

// ErrRights: descriptors came where none are due.
var ErrRights = errors.New("descriptors where none are due")

// Listener is a unix socket at which strangers connect.
type Listener struct {
	*net.UnixListener
	closers *Closers
	packets bool
	refuses atomic.Bool // the kernel refuses descriptors for all connections there ever were
}

// Listen makes the socket of a network at path: unix, or unixpacket with SO_PASSCRED. rights says whether descriptors
// may be sent to its connections; where they may not, and the kernel cannot refuse them, a connection that brings any
// ends.
func Listen(network, path string, rights bool, closers *Closers) (*Listener, error) {
	l := &Listener{closers: closers, packets: network == "unixpacket"}
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) {
			l.refuses.Store(setRights(fd, rights) && !rights)
			if l.packets { // connections inherit it
				failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
			}
		})
		return errors.Join(err, failed)
	}}
	made, err := config.Listen(context.Background(), network, path)
	if err != nil {
		return nil, err
	}
	l.UnixListener = made.(*net.UnixListener)
	return l, nil
}

// setRights says whether descriptors may be sent to a socket. False: the kernel does not know how to refuse them.
func setRights(fd uintptr, may bool) bool {
	value := 0
	if may {
		value = 1
	}
	return unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, soPassRights, value) == nil
}

// SetRights says whether descriptors may be sent to connections that are made from now on. Without effect where the
// kernel cannot refuse them.
func (l *Listener) SetRights(may bool) {
	if may {
		l.refuses.Store(false)
	}
	if raw, err := l.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { setRights(fd, may) }) // fails on a closed listener, which has no connections
	}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) { return l.AcceptConn() }

// AcceptConn waits for the next connection. One whose maker the kernel does not name is dropped.
func (l *Listener) AcceptConn() (*Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		c := &Conn{UnixConn: conn, closers: l.closers, packets: l.packets, refuses: l.refuses.Load()}
		if c.raw, err = conn.SyscallConn(); err == nil {
			err = c.raw.Control(func(fd uintptr) {
				if maker, failed := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); failed == nil {
					c.PID, c.UID, c.known = maker.Pid, maker.Uid, true
				}
			})
		}
		if err == nil && c.known {
			return c, nil
		}
		c.Close()
	}
}

// Conn is a connection with a stranger. One goroutine reads; the other methods may be called by several.
type Conn struct {
	*net.UnixConn
	// PID and UID are those of who connected, when it did; PID is 0 where it cannot be seen.
	PID int32
	UID uint32

	known   bool
	packets bool
	refuses bool
	closers *Closers
	raw     syscall.RawConn
	ended   sync.Once
	closed  sync.Once
	// use is held for reading by who uses the descriptor, and for writing by who closes it: the last of the two is who
	// closes in fact, and that must be a closer.
	use sync.RWMutex
}

// End makes all that waits for the connection return, and the other side see its end. It does not wait itself.
func (c *Conn) End() {
	c.ended.Do(func() {
		_ = c.Control(func(fd int) { _ = unix.Shutdown(fd, unix.SHUT_RDWR) }) // fails where it has ended
		_ = c.SetDeadline(time.Unix(1, 0))
	})
}

// Close ends the connection and has its descriptor closed. It may wait for Closers, unless nothing foreign can be in it.
func (c *Conn) Close() error {
	c.End()
	c.closed.Do(func() {
		if c.refuses {
			_ = (*descriptor)(c).Close()
		} else {
			c.closers.Close(c.UID, (*descriptor)(c))
		}
	})
	return nil
}

// descriptor is that of a connection, as closers see it.
type descriptor Conn

// Close implements io.Closer.
func (d *descriptor) Close() error {
	d.use.Lock() // those who read or write have been told to stop
	defer d.use.Unlock()
	return d.UnixConn.Close()
}

// Control calls fn with the descriptor. fn does not wait. After Close it returns net.ErrClosed.
func (c *Conn) Control(fn func(fd int)) error {
	if !c.use.TryRLock() {
		return net.ErrClosed
	}
	defer c.use.RUnlock()
	return c.raw.Control(func(fd uintptr) { fn(int(fd)) })
}

// Read implements net.Conn for a stream. An error is ErrRights where descriptors came along.
func (c *Conn) Read(data []byte) (int, error) {
	c.use.RLock()
	defer c.use.RUnlock()
	if !c.refuses && len(data) > 0 {
		size, rights, err := c.peek(data)
		switch {
		case err != nil:
			return 0, err
		case rights:
			return 0, ErrRights
		case size > 0:
			data = data[:size] // what follows may have descriptors
		}
	}
	return c.UnixConn.Read(data)
}

// Write implements net.Conn.
func (c *Conn) Write(data []byte) (int, error) {
	c.use.RLock()
	defer c.use.RUnlock()
	return c.UnixConn.Write(data)
}

// Packet is what came in one piece.
type Packet struct {
	Size   int // of its data
	Cut    bool
	Sender int   // pid, of a socket with SO_PASSCRED
	Files  []int // the caller's to close, by Closers
}

// Peek waits for a packet and returns the size of its beginning in data, and whether descriptors are with it. It stays
// where it is. At the end it is of size 0.
func (c *Conn) Peek(data []byte) (size int, rights bool, err error) {
	c.use.RLock()
	defer c.use.RUnlock()
	return c.peek(data)
}

func (c *Conn) peek(data []byte) (size int, rights bool, err error) {
	// There is room for who sent it and nothing else, so that descriptors are announced as what had none. Those of a
	// packet that stays where it is are not closed by that.
	var control []byte
	if c.packets {
		control = make([]byte, credentialSpace)
	}
	waited := c.raw.Read(func(fd uintptr) bool {
		var flags int
		for {
			size, _, flags, _, err = unix.Recvmsg(int(fd), data, control, unix.MSG_PEEK|unix.MSG_DONTWAIT)
			if err != unix.EINTR {
				break
			}
		}
		rights = flags&unix.MSG_CTRUNC != 0
		return err != unix.EAGAIN
	})
	if waited != nil {
		return 0, false, waited
	}
	return size, rights, err
}

// credentialSpace is the room that SCM_CREDENTIALS takes among control messages.
var credentialSpace = unix.CmsgSpace(unix.SizeofUcred)

// Receive takes a packet after Peek, which found no descriptors with it, or the caller wants them.
func (c *Conn) Receive(data []byte, rights bool) (Packet, error) {
	room := credentialSpace
	if rights {
		room += unix.CmsgSpace(4 * maxRights)
	}
	control := make([]byte, room)
	c.use.RLock()
	n, controls, flags, _, err := c.ReadMsgUnix(data, control)
	c.use.RUnlock()
	if err != nil {
		return Packet{}, err
	}
	p := Packet{Size: n, Cut: flags&unix.MSG_TRUNC != 0}
	messages, err := unix.ParseSocketControlMessage(control[:controls])
	if err != nil {
		return p, fmt.Errorf("control message: %w", err)
	}
	for _, m := range messages {
		if m.Header.Level != unix.SOL_SOCKET {
			continue
		}
		switch m.Header.Type {
		case unix.SCM_RIGHTS:
			if fds, err := unix.ParseUnixRights(&m); err == nil {
				p.Files = append(p.Files, fds...)
			}
		case unix.SCM_CREDENTIALS:
			if credentials, err := unix.ParseUnixCredentials(&m); err == nil {
				p.Sender = int(credentials.Pid)
			}
		}
	}
	return p, nil
}
