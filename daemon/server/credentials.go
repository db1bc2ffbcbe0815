package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/lgpu/lgpu/daemon/foreign"
)

// caller is the process at the other end of a connection, as the kernel vouches for it.
type caller struct {
	credentials.CommonAuthInfo
	pid      int // 0 if it is in a process namespace that this one cannot see
	uid, gid uint32
	groups   []uint32 // supplementary ones
	// lives returns why pid is not, or no more, that of the process that connected.
	lives func() error
	conn  *counted // nil where the connection is not counted
}

// AuthType implements credentials.AuthInfo.
func (caller) AuthType() string { return "peer" }

// callerOf returns who makes a call.
func callerOf(ctx context.Context) (caller, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return caller{}, false
	}
	c, ok := p.AuthInfo.(caller)
	return c, ok
}

// peers are transport credentials that ask the kernel who connects. Connections are counted for each user, so that none
// keeps others out by opening all there can be. One that is held by a call which a quota bounds, such as that of a
// launcher, is not counted meanwhile: a user may run as many programs as her quota says.
type peers struct {
	// trusts says who has no bounds. limit is for connections of one other user, total for those of all such users, and
	// most for those of all such users that are held.
	trusts             func(uid uint32) bool
	limit, total, most int

	mu   sync.Mutex
	open map[uint32]int // guarded by mu; connections by user
	all  int            // guarded by mu; of users who are not trusted
	held int            // guarded by mu; connections that are not counted, of users who are not trusted
}

// admission is a listener that refuses connections beyond the bounds before anything is made for them: refused in their
// handshakes, they would be as many at once as somebody can make meanwhile.
type admission struct {
	net.Listener
	peers *peers
}

// Accept implements net.Listener.
func (a admission) Accept() (net.Conn, error) {
	for {
		c, err := a.Listener.Accept()
		if err != nil {
			return nil, err
		}
		who, err := ask(c)
		if err == nil && a.peers.enter(who.uid) {
			return &counted{Conn: c, who: who, peers: a.peers}, nil
		}
		_ = c.Close()
	}
}

// ServerHandshake implements credentials.TransportCredentials for the connections of an admission.
func (p *peers) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	admitted, ok := c.(*counted)
	if !ok {
		return nil, nil, fmt.Errorf("%T has not been admitted", c)
	}
	who := admitted.who
	who.conn = admitted
	return admitted, who, nil
}

// enter counts a connection of a user, or reports that there may be no more.
func (p *peers) enter(uid uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.trusts(uid) {
		if p.open[uid] >= p.limit || p.all >= p.total {
			return false
		}
		p.all++
	}
	p.open[uid]++
	return true
}

// trusted reports whether a user is one whom the daemon obeys in any case.
func trusted(uid uint32) bool { return uid == 0 || uid == uint32(unix.Geteuid()) }

func (p *peers) leave(uid uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.uncount(uid)
}

// uncount is called with mu held.
func (p *peers) uncount(uid uint32) {
	if !p.trusts(uid) {
		p.all--
	}
	if p.open[uid]--; p.open[uid] == 0 {
		delete(p.open, uid)
	}
}

// counted is a connection that is counted until it is closed, except while it is held.
type counted struct {
	net.Conn
	who   caller
	peers *peers

	// guarded by peers.mu
	closed bool
	calls  int  // that hold it
	free   bool // it is not counted
}

// hold lets the connection not be counted until release, unless too many are held already. The caller's quota bounds how
// many calls do this.
func (c *counted) hold() (release func()) {
	if c == nil {
		return func() {}
	}
	p := c.peers
	if p.trusts(c.who.uid) {
		return func() {}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.calls++; !c.free && !c.closed && p.held < p.most {
		c.free = true
		p.held++
		p.uncount(c.who.uid)
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if c.calls--; c.calls > 0 || !c.free {
			return
		}
		c.free = false
		p.held--
		if !c.closed {
			p.open[c.who.uid]++
			p.all++
		}
	}
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.peers.mu.Lock()
	if !c.closed && !c.free {
		c.peers.uncount(c.who.uid)
	}
	c.closed = true
	c.peers.mu.Unlock()
	return c.Conn.Close()
}

// ClientHandshake implements credentials.TransportCredentials; clients have no use for these.
func (p *peers) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("peer credentials are for servers")
}

// Info implements credentials.TransportCredentials.
func (p *peers) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "peer"}
}

// Clone implements credentials.TransportCredentials.
func (p *peers) Clone() credentials.TransportCredentials { return p }

// OverrideServerName implements credentials.TransportCredentials.
func (p *peers) OverrideServerName(string) error { return nil }

// ask returns the process that opened a connection.
func ask(c net.Conn) (caller, error) {
	u, ok := c.(*foreign.Conn)
	if !ok {
		return caller{}, fmt.Errorf("%T is not a connection of Listen", c)
	}
	var who caller
	var failed error
	err := u.Control(func(fd int) {
		cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			failed = fmt.Errorf("ask which process connects: %w", err)
			return
		}
		who.pid, who.uid, who.gid = int(cred.Pid), cred.Uid, cred.Gid
		if who.groups, err = peerGroups(fd); err != nil {
			failed = fmt.Errorf("ask for the groups of the process that connects: %w", err)
		}
	})
	who.lives = func() error { return lives(u) }
	who.SecurityLevel = credentials.PrivacyAndIntegrity // nobody else sees the bytes of a unix socket
	return who, errors.Join(err, failed)
}

// soPeerPIDFD is SO_PEERPIDFD (Linux 6.5): a pidfd of the process that connected, whatever has its pid now.
const soPeerPIDFD = 77

// lives returns why the process that opened a connection has ended, although others may have the connection still and its
// pid again; nil also where the kernel is too old to say.
func lives(u *foreign.Conn) error {
	var failed error
	err := u.Control(func(fd int) {
		pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, soPeerPIDFD)
		if errors.Is(err, unix.ENOPROTOOPT) {
			return
		}
		if err != nil {
			failed = fmt.Errorf("the process that connected: %w", err)
			return
		}
		defer unix.Close(pidfd)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
		for errors.Is(err, unix.EINTR) {
			n, err = unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
		}
		if err != nil || n > 0 {
			failed = fmt.Errorf("the process that connected: %w", errors.Join(os.ErrProcessDone, err))
		}
	})
	return errors.Join(err, failed)
}

// peerGroups returns the supplementary groups of the process at the other end of a socket.
func peerGroups(fd int) ([]uint32, error) {
	for groups := make([]uint32, 64); ; {
		size := uint32(4 * len(groups))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(unsafe.SliceData(groups))), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == 0:
			return groups[:size/4], nil
		case errno == unix.ERANGE && int(size/4) > len(groups): // the kernel says how many there are
			groups = make([]uint32, size/4)
		default:
			return nil, errno
		}
	}
}
