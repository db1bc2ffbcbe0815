package web

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Layout of linux/inet_diag.h: a request for one socket, and where in the answer its state and owner are.
const (
	diagByFamily    = 20 // SOCK_DIAG_BY_FAMILY
	diagRequest     = unix.SizeofNlMsghdr + 56
	diagState       = unix.SizeofNlMsghdr + 1
	diagUID         = unix.SizeofNlMsghdr + 64
	diagAnswer      = unix.SizeofNlMsghdr + 72
	tcpEstablished  = 1
	diagAnyCookie   = ^uint64(0)
	diagAllStates   = ^uint32(0)
	diagAddressSize = 16
)

// ownerOf returns the user who owns the TCP socket at address near that is connected to far, if it is one of this
// machine and the kernel tells.
func ownerOf(near, far netip.AddrPort) (uid uint32, ok bool) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	if unix.Sendto(fd, diagQuestion(near, far), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}) != nil {
		return 0, false
	}
	answer := make([]byte, 1024)
	n, _, err := unix.Recvfrom(fd, answer, unix.MSG_DONTWAIT) // the kernel has answered when it was asked
	if err != nil || n < diagAnswer || binary.NativeEndian.Uint16(answer[4:]) != diagByFamily {
		return 0, false
	}
	// A socket that its process has closed is everybody's.
	return binary.NativeEndian.Uint32(answer[diagUID:]), answer[diagState] == tcpEstablished
}

// diagQuestion is the request for the socket at near that is connected to far.
func diagQuestion(near, far netip.AddrPort) []byte {
	family := byte(unix.AF_INET)
	a, b := near.Addr().Unmap(), far.Addr().Unmap()
	if a.Is6() {
		family = unix.AF_INET6
	}
	e := binary.NativeEndian
	q := e.AppendUint32(nil, diagRequest)
	q = e.AppendUint16(q, diagByFamily)
	q = e.AppendUint16(q, unix.NLM_F_REQUEST)
	q = append(q, make([]byte, 8)...) // sequence, sender
	q = append(q, family, unix.IPPROTO_TCP, 0, 0)
	q = e.AppendUint32(q, diagAllStates)
	q = binary.BigEndian.AppendUint16(q, near.Port())
	q = binary.BigEndian.AppendUint16(q, far.Port())
	for _, address := range []netip.Addr{a, b} {
		var room [diagAddressSize]byte
		copy(room[:], address.AsSlice())
		q = append(q, room[:]...)
	}
	q = append(q, 0, 0, 0, 0) // any interface
	return e.AppendUint64(q, diagAnyCookie)
}
