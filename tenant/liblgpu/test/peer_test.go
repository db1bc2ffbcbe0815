package test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/tenant/protocol"
	"github.com/lgpu/lgpu/tenant/region"
)

// patience is how long a test waits for what must come.
const patience = time.Minute

// daemon is a daemon of which the test says every word.
type daemon struct {
	t        *testing.T
	path     string
	listener *net.UnixListener
	region   *region.Shared
	env      []string // of its clients, besides what they need
}

func newDaemon(t *testing.T, limits ...region.DeviceLimits) *daemon {
	t.Helper()
	shared, err := region.New(region.Spec{Name: "test", HostMemory: region.NoLimit, Devices: limits})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(shared.Close)
	d := &daemon{t: t, path: filepath.Join(t.TempDir(), "tenant.sock"), region: shared}
	d.listen()
	return d
}

func (d *daemon) listen() {
	d.t.Helper()
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: d.path, Net: "unixpacket"})
	if err != nil {
		d.t.Fatal(err)
	}
	d.listener = l
	d.t.Cleanup(func() { l.Close() })
}

// peer is a connection to a client.
type peer struct {
	d    *daemon
	conn *net.UnixConn
}

// accept takes the next connection and its Hello.
func (d *daemon) accept() (*peer, protocol.Message, int) {
	d.t.Helper()
	d.listener.SetDeadline(time.Now().Add(patience))
	conn, err := d.listener.AcceptUnix()
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { conn.Close() })
	p := &peer{d, conn}
	m, fd := p.read()
	if m.Kind != protocol.Hello || m.Version != protocol.Version {
		d.t.Fatalf("a client began with %+v", m)
	}
	return p, m, fd
}

// read returns the next message, and the descriptor that came along or -1.
func (p *peer) read() (protocol.Message, int) {
	p.d.t.Helper()
	m, fd, err := p.try(patience)
	if err != nil {
		p.d.t.Fatal(err)
	}
	return m, fd
}

func (p *peer) try(wait time.Duration) (protocol.Message, int, error) {
	var packet [protocol.Size + protocol.MaxText]byte
	var control [64]byte
	p.conn.SetReadDeadline(time.Now().Add(wait))
	n, c, _, _, err := p.conn.ReadMsgUnix(packet[:], control[:])
	if err != nil {
		return protocol.Message{}, -1, err
	}
	if n == 0 {
		return protocol.Message{}, -1, io.EOF
	}
	m, _, err := protocol.Parse(packet[:n])
	fd := -1
	if messages, e := unix.ParseSocketControlMessage(control[:c]); e == nil && len(messages) == 1 {
		if fds, e := unix.ParseUnixRights(&messages[0]); e == nil && len(fds) == 1 {
			fd = fds[0]
		}
	}
	return m, fd, err
}

// expect reads one message of that kind. What a client with memory.overcommit says of its level, at times of its own, is
// passed over.
func (p *peer) expect(kind uint16) protocol.Message {
	p.d.t.Helper()
	m, _ := p.read()
	for kind != protocol.Need && m.Kind == protocol.Need && m.Flags&protocol.FlagResident != 0 {
		m, _ = p.read()
	}
	if m.Kind != kind {
		p.d.t.Fatalf("the client said %+v; want kind %d", m, kind)
	}
	return m
}

func (p *peer) say(m protocol.Message) {
	p.d.t.Helper()
	if _, err := p.conn.Write(m.Append(nil)); err != nil {
		p.d.t.Fatal(err)
	}
}

// welcome answers a Hello.
func (p *peer) welcome(client uint32, usage bool) {
	p.d.t.Helper()
	m := protocol.Message{Kind: protocol.Welcome, Version: protocol.Version, Client: client, ID: 77}
	err := p.d.region.Files(func(l, u int) error {
		fds := []int{l}
		if usage {
			fds = append(fds, u)
		}
		_, _, err := p.conn.WriteMsgUnix(m.Append(nil), unix.UnixRights(fds...), nil)
		return err
	})
	if err != nil {
		p.d.t.Fatal(err)
	}
}

// client is a program that does as it is told.
type client struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.Writer
	lines chan string
	errs  *strings.Builder
}

func (d *daemon) client(dev *device) *client {
	d.t.Helper()
	return newClient(d.t, append(append(append([]string{}, dev.env...), "LD_PRELOAD="+built.library, "LGPU_SOCKET="+d.path), d.env...))
}

// newClient starts one with this environment.
func newClient(t *testing.T, env []string) *client {
	t.Helper()
	bin := simProgram(t, "testdata/orders.c", "-DLGPU_CUDA_PLAIN", "-DLGPU_NVML_PLAIN")
	return startClient(t, env, bin, "../../sim/kernels/control.ptx")
}

// startClient starts another program that takes orders.
func startClient(t *testing.T, env []string, program string, args ...string) *client {
	t.Helper()
	c := &client{t: t, cmd: exec.Command(program, args...), lines: make(chan string, 100), errs: &strings.Builder{}}
	c.cmd.Env = env
	c.cmd.Stderr = c.errs
	stdin, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.stdin = stdin
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for s := bufio.NewScanner(stdout); s.Scan(); {
			c.lines <- s.Text()
		}
		close(c.lines)
	}()
	t.Cleanup(func() {
		c.cmd.Process.Kill()
		for range c.lines {
		}
		c.cmd.Wait()
		if t.Failed() {
			t.Logf("the client said: %s", c.errs)
		}
	})
	return c
}

func (c *client) order(format string, args ...any) {
	c.t.Helper()
	if _, err := fmt.Fprintf(c.stdin, format+"\n", args...); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) wait(want string) {
	c.t.Helper()
	select {
	case line := <-c.lines:
		if line != want {
			c.t.Fatalf("the client printed %q, want %q", line, want)
		}
	case <-time.After(patience):
		c.t.Fatalf("no %q within %v", want, patience)
	}
}

// do gives an order and waits for its success.
func (c *client) do(format string, args ...any) {
	c.t.Helper()
	c.order(format, args...)
	c.wait(fmt.Sprintf(format, args...) + ": 0")
}

// begin starts a client up to its first launch, which is waiting.
func (d *daemon) begin(dev *device) (*client, *peer) {
	d.t.Helper()
	c := d.client(dev)
	c.order("init")
	p, hello, _ := d.accept()
	if hello.Flags != 0 {
		d.t.Fatalf("a client begins with flags %#x", hello.Flags)
	}
	p.welcome(3, true)
	c.wait("init: 0")
	c.do("context")
	c.order("later 1 1000")
	p.expect(protocol.Gate)
	p.expect(protocol.Want)
	return c, p
}

func whole(dev *device) region.DeviceLimits {
	return region.DeviceLimits{UUID: dev.uuid, Memory: 512 * mib, Granted: 512 * mib, Physical: 1 << 30, Compute: region.FullCompute}
}

// begun is a daemon with a client up to its first launch, which is waiting, on a device of its own.
func begun(t *testing.T) (*daemon, *client, *peer) {
	t.Helper()
	dev := newDevice(t, "1x1GiB,sms=4")
	d := newDaemon(t, whole(dev))
	c, p := d.begin(dev)
	return d, c, p
}

// joined is a daemon with a client that has a context, on a device of its own.
func joined(t *testing.T) (*daemon, *client, *peer) {
	t.Helper()
	dev := newDevice(t, "1x1GiB,sms=4")
	d := newDaemon(t, whole(dev))
	c, p := d.join(dev, 0)
	return d, c, p
}

// join starts a client up to its context, under this index.
func (d *daemon) join(dev *device, index uint32) (*client, *peer) {
	d.t.Helper()
	c := d.client(dev)
	c.order("init")
	p, _, _ := d.accept()
	p.welcome(index, true)
	c.wait("init: 0")
	c.do("context")
	return c, p
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}
