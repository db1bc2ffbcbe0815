// Package foreigntest makes descriptors that a stranger would send to a daemon to hang it.
package foreigntest

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// Lingering returns a TCP socket of which the close waits for longer than any test.
func Lingering(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	unix.SetNonblock(fd, true)
	for data := make([]byte, 1<<16); err == nil; {
		_, err = unix.Write(fd, data)
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3000}); err != nil {
		t.Fatal(err)
	}
	return fd
}
