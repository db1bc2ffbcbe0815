package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// caller is the process at the other end of a connection, as the kernel vouches for it.
type caller struct {
	credentials.CommonAuthInfo
	pid      int // 0 if it is in a process namespace that this one cannot see
	uid, gid uint32
	groups   []uint32 // supplementary ones
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
// keeps others out by opening all there can be.
type peers struct {
	limit int // connections of one user other than root and the daemon's own

	mu   sync.Mutex
	open map[uint32]int // guarded by mu; connections by user
}

// ServerHandshake implements credentials.TransportCredentials.
func (p *peers) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	who, err := ask(c)
	if err != nil {
		return nil, nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	trusted := who.uid == 0 || who.uid == uint32(unix.Geteuid())
	if !trusted && p.open[who.uid] >= p.limit {
		return nil, nil, fmt.Errorf("user %d has %d connections already", who.uid, p.limit)
	}
	p.open[who.uid]++
	return &counted{Conn: c, closed: sync.OnceFunc(func() { p.leave(who.uid) })}, who, nil
}

func (p *peers) leave(uid uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open[uid]--; p.open[uid] == 0 {
		delete(p.open, uid)
	}
}

// counted is a connection that is counted until it is closed.
type counted struct {
	net.Conn
	closed func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.closed()
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
	u, ok := c.(*net.UnixConn)
	if !ok {
		return caller{}, fmt.Errorf("%T is no connection of a unix socket", c)
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return caller{}, err
	}
	var who caller
	var failed error
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			failed = fmt.Errorf("ask who connects: %w", err)
			return
		}
		who.pid, who.uid, who.gid = int(cred.Pid), cred.Uid, cred.Gid
		if who.groups, err = peerGroups(int(fd)); err != nil {
			failed = fmt.Errorf("ask for the groups of who connects: %w", err)
		}
	})
	who.SecurityLevel = credentials.PrivacyAndIntegrity // nobody else sees the bytes of a unix socket
	return who, errors.Join(err, failed)
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

// in reports whether the caller is a member of a group.
func (c caller) in(gid uint32) bool { return c.gid == gid || slices.Contains(c.groups, gid) }
