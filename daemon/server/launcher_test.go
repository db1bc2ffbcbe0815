package server

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/daemon"
)

const connectTo = "TEST_CONNECT_TO"

// Not a test: the process that connects the socket it has inherited, and ends. It is another one for the kernel.
func TestConnectOnly(t *testing.T) {
	path := os.Getenv(connectTo)
	if path == "" {
		t.Skip("for TestLauncherHasEnded")
	}
	if err := unix.Connect(3, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
}

// A process that has ended launches nothing, even where its pid has become another's: whose launcher that one would be
// could end it.
func TestLauncherHasEnded(t *testing.T) {
	m := serveMany(t, daemon.Config{})
	path := filepath.Join(m.dir, "real.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	reused := reuse{l}
	go m.server.grpc.Serve(reused)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	socket := os.NewFile(uintptr(fd), path)
	c := exec.Command(os.Args[0], "-test.run=^TestConnectOnly$")
	c.Env, c.ExtraFiles = append(os.Environ(), connectTo+"="+path), []*os.File{socket}
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v, %s", err, out)
	}
	conn, err := net.FileConn(socket)
	if err := errors.Join(err, socket.Close()); err != nil {
		t.Fatal(err)
	}
	client, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return conn, nil }))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	stream, err := api.NewControlClient(client).Attach(t.Context())
	if err == nil {
		err = stream.Send(&api.AttachRequest{Path: "/x"})
	}
	if err != nil {
		t.Fatal(err)
	}
	if a, err := stream.Recv(); err == nil || !strings.Contains(err.Error(), "process") {
		t.Errorf("%v, %v", a, err)
	}
}

// reuse is a listener of a machine where the pid of who connected is another's by now.
type reuse struct{ net.Listener }

func (r reuse) Accept() (net.Conn, error) {
	c, err := r.Listener.Accept()
	if err != nil {
		return nil, err
	}
	who, err := ask(c)
	if err != nil {
		return nil, err
	}
	who.pid = os.Getpid()
	return admitted(c, who), nil
}
