package tenant

import (
	"errors"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/daemon/foreign"
	"github.com/lgpu/lgpu/daemon/foreign/foreigntest"
	"github.com/lgpu/lgpu/tenant/protocol"
	"github.com/lgpu/lgpu/tenant/region"
)

// TestAnotherSender: only the process that made a connection can say Hello on it.
func TestAnotherSender(t *testing.T) {
	d := serve(t)
	d.lgpu(1, 0, 100)
	d.launcher(self(t), 1)
	p := start(t, d.socket())
	p.want("ok", "connect")
	p.want("ok error EOF", "delegate")
	if len(d.Clients()) != 0 {
		t.Errorf("clients: %+v", d.Clients())
	}
}

// TestReusedPID: a process that gets the pid of one that connected and died does not get its connection.
func TestReusedPID(t *testing.T) {
	const lastPID = "/proc/sys/kernel/ns_last_pid"
	if f, err := os.OpenFile(lastPID, os.O_WRONLY, 0); err != nil {
		t.Skip("the next pid cannot be chosen here: ", err)
	} else {
		f.Close()
	}
	dir := t.TempDir()
	d := listening(t, dir)
	d.lgpu(1, 0, 100)
	first := start(t, d.socket()) // a stranger
	first.want("ok", "connect")
	keeper, err := strconv.Atoi(first.ask("keep"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Kill(keeper, unix.SIGKILL) })
	first.want("ok", "say %d 0 0 0", protocol.Hello)
	former := first.process()
	first.kill()
	var second *tenantProcess
	for range 100 {
		if err := os.WriteFile(lastPID, []byte(strconv.Itoa(former.PID-1)), 0); err != nil {
			t.Fatal(err)
		}
		if p := start(t, d.socket()); p.pid() == former.PID {
			second = p
			break
		} else {
			p.kill()
		}
	}
	if second == nil {
		t.Skip("no process gets the pid that is wanted")
	}
	d.launcher(second.process(), 1)
	d.run()
	second.want("welcome 0 0x1", "hello 0")
	second.kill()
	d.await("left", second.pid())
	if all := d.Clients(); len(all) != 0 {
		t.Errorf("clients: %+v", all)
	}
	if _, _, err := find(former); !errors.Is(err, errEnded) {
		t.Errorf("find of a process whose pid was used again: %v", err)
	}
}

// TestGarbage: a tenant that fills its counters with anything harms no other tenant.
func TestGarbage(t *testing.T) {
	d := serve(t)
	budgets := []Budget{{ID: 1, HostMemory: region.NoLimit, Memory: map[[16]byte]uint64{{1}: 200 * mib}}}
	if err := d.SetBudgets(budgets); err != nil {
		t.Fatal(err)
	}
	d.lgpu(1, 1, 150)
	d.lgpu(2, 1, 150)
	bad, good := d.client(1), d.client(2)
	bad.want("true", "alloc 0 %d", 50*mib)
	good.want("true", "alloc 0 %d", 100*mib)
	for seed := range 20 {
		bad.want("ok", "garbage %d", seed)
		bad.ask("alloc 0 %d", mib)
		d.Clients()
		if _, err := d.Usage(1); err != nil {
			t.Fatal(err)
		}
		good.want("ok", "free 0 %d", 100*mib)
		good.want("true", "alloc 0 %d", 100*mib)
		if err := d.SetLimits(1, limits(uint64(100+seed))); err != nil {
			t.Fatal(err)
		}
	}
	bad.kill()
	d.await("left", bad.pid())
	good.want("ok", "free 0 %d", 100*mib)
	good.want("true", "alloc 0 %d", 100*mib)
	next := d.tenant(1)
	next.want("welcome", "hello 0")
}

// TestDeafClient: one that does not read loses its connection, and no other client waits for it.
func TestDeafClient(t *testing.T) {
	d := serve(t)
	d.lgpu(1, 0, 100)
	p := d.client(1)
	p.want("ok", "say %d 0 0 0", protocol.Gate)
	gate := d.awaitGate("attach").gate
	for range 100_000 {
		gate.Send(protocol.Message{Kind: protocol.Open})
		select {
		case c := <-d.gates:
			if c.what != "gone" || c.gate != gate {
				t.Fatalf("the gate is told %s", c.what)
			}
			p.want("welcome 0 0x1", "resume") // it lives, and keeps its index
			return
		default:
		}
	}
	t.Error("100000 messages to a client that does not read were taken")
}

// TestWrongMessages: a broken protocol costs the connection, and only that one.
func TestWrongMessages(t *testing.T) {
	d := serve(t)
	d.lgpu(1, 0, 100)
	good := d.client(1)
	for _, say := range []string{
		"say 2 2 0 0", // Gate on a device that is none
		"say 2 4000000000 0 0",
		"say 3 0 0 0",   // Want without Gate
		"say 4 0 0 0",   // Closed without Gate
		"say 15 0 50 0", // Sliced without Gate
		"say 14 0 50 0", // Slice
		"say 1 0 0 0",   // Hello again
		"say 6 0 0 0",   // Welcome
		"say 99 0 0 0",
	} {
		p := d.client(1)
		p.want("ok", "%s", say)
		p.want("error", "hear") // the end, or a reset
		p.kill()
	}
	old := d.tenant(1)
	old.want("ok", "connect")
	old.want("ok", "say 2 0 0 0")
	old.want("error EOF", "hear")
	good.want("true", "alloc 0 %d", mib)
}

// TestIdleConnections: connections that say nothing keep no process out, and drop no other user's connections.
func TestIdleConnections(t *testing.T) {
	d := serve(t)
	d.lgpu(1, 0, 100)
	slow := d.tenant(1)
	slow.want("ok", "connect")
	for range maxPending + 100 {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: d.socket()}); err != nil {
			t.Fatal(err)
		}
	}
	d.client(1) // by then the others have been accepted
	slow.want("welcome", "hello-here")
}

// TestLingeringDescriptors: a tenant that sends sockets whose close takes an hour hangs neither the daemon nor a
// thread of it, on whatever kernel.
func TestLingeringDescriptors(t *testing.T) {
	d := serve(t)
	d.lgpu(1, 0, 100)
	d.Server.mu.Lock()
	d.countReturning(1) // as if a client of before were still to come: the kernel lets descriptors through
	d.Server.mu.Unlock()
	// Started before there are such sockets: between fork and exec a process has all of its parent's, and what it alone
	// still has by then, exec waits for.
	p := d.tenant(1)
	var closing foreign.Closers
	hello := protocol.Message{Kind: protocol.Hello, Version: protocol.Version}
	back := hello
	back.Flags, back.ID = protocol.FlagReconnect, 1
	packets := [][]byte{hello.Append(nil), back.Append(nil), []byte("junk"), make([]byte, 5000), {}}
	for i := range 60 {
		conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: d.socket(), Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		fd := foreigntest.Lingering(t)
		_, _, sent := conn.WriteMsgUnix(packets[i%len(packets)], unix.UnixRights(fd), nil)
		closing.Close(1, foreign.File(fd)) // this process would wait as well
		conn.Close()
		if sent != nil && !errors.Is(sent, unix.EPIPE) && !errors.Is(sent, unix.ECONNRESET) {
			t.Fatal(sent)
		}
	}
	p.want("welcome", "hello 0")
	for deadline := time.Now().Add(timeout); ; time.Sleep(time.Millisecond) {
		d.Server.mu.Lock()
		open := len(d.open)
		d.Server.mu.Unlock()
		d.waiting.mu.Lock()
		pending := len(d.waiting.pending)
		d.waiting.mu.Unlock()
		if open == 1 && pending == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are open, %d of them without an answer; want the client's alone", open, pending)
		}
	}
}

// TestAdmission: a user's connections that say nothing make room for each other, never for another user's.
func TestAdmission(t *testing.T) {
	d := listening(t, t.TempDir())
	defer d.Close()
	process := int32(1000)
	connect := func(uid uint32, speak bool) (*connection, *net.UnixConn) {
		there, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: d.socket(), Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { there.Close() })
		if speak {
			if _, err := there.Write([]byte("hello")); err != nil {
				t.Fatal(err)
			}
		}
		conn, err := d.listener.AcceptConn()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		process++
		conn.UID, conn.PID = uid, process
		return &connection{server: d.Server, conn: conn, closing: make(chan struct{})}, there
	}
	ended := func(c *connection) bool {
		select {
		case <-c.closing:
			return true
		default:
			return false
		}
	}
	speaker, _ := connect(2000, true)
	first, _ := connect(2000, false)
	for _, c := range []*connection{speaker, first} {
		if !d.waiting.admit(c) {
			t.Fatal("the first connections have no room")
		}
	}
	for range maxPendingUser - 2 {
		if c, _ := connect(2000, false); !d.waiting.admit(c) {
			t.Fatal("no room within the bound")
		}
	}
	if ended(first) {
		t.Error("a connection is dropped within the bound")
	}
	if c, _ := connect(2000, false); !d.waiting.admit(c) || !ended(first) || ended(speaker) {
		t.Errorf("beyond the bound: the oldest silent one is dropped: %v, one that has spoken: %v", ended(first), ended(speaker))
	}
	d.waiting.pending = nil
	for range maxPendingUser {
		c, _ := connect(2000, true)
		d.waiting.admit(c)
	}
	if c, _ := connect(2000, false); d.waiting.admit(c) {
		t.Error("there is room beyond the bound though all have spoken")
	}
	if c, _ := connect(3000, false); !d.waiting.admit(c) {
		t.Error("another user has no room")
	}
	if c, _ := connect(0, false); !d.waiting.admit(c) {
		t.Error("root has no room")
	}
}

func TestThrottle(t *testing.T) {
	b := throttle{burst: 10, period: time.Second}
	now := time.Unix(1000, 0)
	for i, c := range []struct {
		after time.Duration
		n     int
		want  time.Duration
	}{
		{0, 10, 0}, {0, 1, time.Second}, {0, 2, 3 * time.Second}, {13 * time.Second, 10, 0},
		{500 * time.Millisecond, 1, 500 * time.Millisecond},
	} {
		now = now.Add(c.after)
		if got := b.delay(now, c.n); got != c.want {
			t.Errorf("step %d: wait %v, want %v", i, got, c.want)
		}
	}
	b = throttle{burst: 2, period: time.Second}
	for i, want := range []bool{true, true, false, false} {
		if got := b.allow(now); got != want {
			t.Errorf("try %d: %v", i, got)
		}
	}
	if !b.allow(now.Add(time.Second)) {
		t.Error("a second later there is not one more")
	}
}

// FuzzSocket: whatever a process sends, with whatever descriptors, the daemon goes on.
func FuzzSocket(f *testing.F) {
	d := serve(f)
	d.lgpu(1, 0, 100)
	d.launcher(self(f), 1)
	hello := protocol.Message{Kind: protocol.Hello, Version: protocol.Version}
	f.Add(hello.Append(nil), uint8(0), true)
	back, view := hello, hello
	back.Flags, back.ID, view.Flags = protocol.FlagReconnect, 1, protocol.FlagView
	f.Add(back.Append(nil), uint8(1), false)
	f.Add(view.Append(nil), uint8(3), false)
	f.Add(protocol.Message{Kind: protocol.Hello, Version: 9}.Append(nil), uint8(0), false)
	f.Add(protocol.Message{Kind: protocol.Gate, Device: 1}.Append(nil), uint8(0), true)
	f.Add(protocol.Message{Kind: protocol.Closed, Device: 1, Value: 1}.Append(nil), uint8(9), true)
	f.Add(protocol.Message{Kind: protocol.Need, Value: 1 << 60}.Append(nil), uint8(0), true)
	f.Add(protocol.Message{Kind: protocol.Need, Flags: protocol.FlagHost, Value: 1<<64 - 1}.Append(nil), uint8(0), true)
	f.Add(make([]byte, 5000), uint8(0), true)
	f.Add([]byte{}, uint8(0), true)
	f.Fuzz(func(t *testing.T, data []byte, files uint8, greet bool) {
		conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: d.socket(), Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(timeout))
		answer := make([]byte, protocol.Size+protocol.MaxText)
		if greet {
			if _, err := conn.Write(hello.Append(nil)); err != nil {
				t.Fatal(err)
			}
			n, err := conn.Read(answer)
			if err != nil {
				t.Fatal("answer to Hello: ", err)
			}
			if m, text, err := protocol.Parse(answer[:n]); err != nil || m.Kind != protocol.Welcome {
				t.Fatalf("answer to Hello: %+v, %s, %v", m, text, err)
			}
		}
		var fds []int
		for range files % 20 {
			fds = append(fds, int(os.Stdin.Fd()))
		}
		var control []byte
		if len(fds) > 0 {
			control = unix.UnixRights(fds...)
		}
		conn.WriteMsgUnix(data, control, nil) // may be too large to be sent
		conn.CloseWrite()
		for { // to the end of what the daemon has to say
			n, err := conn.Read(answer)
			if err != nil {
				break
			}
			if _, _, err := protocol.Parse(answer[:n]); err != nil {
				t.Fatalf("the daemon says %x: %v", answer[:n], err)
			}
		}
		for len(d.events) > 0 {
			<-d.events
		}
	})
}
