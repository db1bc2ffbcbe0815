package bootstrap

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"
)

// dial connects to a root without a word.
func dial(t *testing.T, r *Root) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", r.listeners[0].Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// works checks that a root still makes jobs.
func works(t *testing.T, r *Root, instance uint32) {
	t.Helper()
	o := quick
	o.Instance = instance
	all := joinAll(t, r.ID(), 2, o)
	for i, err := range each(2, func(i int) error { return all[i].Barrier(t.Context()) }) {
		if err != nil {
			t.Errorf("PE %d: %v", i, err)
		}
	}
	closeAll(t, all)
}

// Strangers who send garbage, nothing, a byte now and then, too much, or leave half way keep nobody out and get
// nowhere.
func TestStrangers(t *testing.T) {
	r, err := Listen(t.Context(), ListenOptions{Local: true, Keep: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	random := rand.New(rand.NewPCG(1, 2))
	for range 30 {
		garbage := make([]byte, random.IntN(200))
		for i := range garbage {
			garbage[i] = byte(random.Uint32())
		}
		if random.IntN(2) == 0 { // a good beginning
			garbage = append(putGreeting([nonceSize]byte{}), garbage...)
		}
		c := dial(t, r)
		c.Write(garbage)
		switch random.IntN(3) {
		case 0:
			c.Close()
		case 1:
			c.(*net.TCPConn).CloseWrite()
		}
	}
	slow := dial(t, r)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		hello := putGreeting([nonceSize]byte{})
		for i := 0; ; i++ {
			if _, err := slow.Write(hello[i%len(hello):][:1]); err != nil {
				return
			}
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	works(t, r, 0)

	// A stranger that is done with the greeting but does not know the secret gets no further.
	c := dial(t, r)
	c.Write(putGreeting([nonceSize]byte{1}))
	var answer [greetingSize + proofSize]byte
	if _, err := io.ReadFull(c, answer[:]); err != nil {
		t.Fatal(err)
	}
	l := &link{conn: c, out: newSealer(make([]byte, secretSize), labelUp, [nonceSize]byte{1}, [nonceSize]byte(answer[8:]))}
	j := join{rank: 0, size: 1, timeout: 1000}
	if err := l.send(frame{kind: kindJoin, payload: j.marshal()}, time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	c.SetReadDeadline(time.Now().Add(5 * time.Second))
	if n, err := c.Read(answer[:]); n != 0 || err == nil {
		t.Errorf("who does not know the secret gets an answer: %x", answer[:n])
	}
	r.mu.Lock()
	if len(r.jobs) != 0 {
		t.Error("who does not know the secret has a place")
	}
	r.mu.Unlock()
	close(stop)
	wg.Wait()

	// More connections than there is place for: those that say nothing go first.
	r.mu.Lock()
	for range maxPending - len(r.pending) {
		a, b := net.Pipe()
		defer b.Close()
		r.pending = append(r.pending, a)
	}
	r.mu.Unlock()
	works(t, r, 1)
}

func TestWrongSecret(t *testing.T) {
	r, err := Listen(t.Context(), ListenOptions{Local: true, Keep: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	at, err := r.id.Addresses()
	if err != nil {
		t.Fatal(err)
	}
	id, err := newID(newSecret(), at)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	_, err = Join(t.Context(), id, 0, 1, quick)
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), at[0].String()+": this is the root of another job") {
		t.Error(err)
	}
	if time.Since(began) > 5*time.Second {
		t.Error("it took as long as a root that is not there")
	}
}

// fake is a server that answers each connection by f.
func fake(t *testing.T, f func(net.Conn)) UniqueID {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				f(c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	id, err := newID([secretSize]byte{}, []netip.AddrPort{l.Addr().(*net.TCPAddr).AddrPort()})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestBadRoots(t *testing.T) {
	older := putGreeting([nonceSize]byte{})
	binary.LittleEndian.PutUint32(older[4:], idVersion+1)
	for text, f := range map[string]func(net.Conn){
		"version 2 of lshmem's bootstrap, this one 1": func(c net.Conn) { c.Write(older) },
		"not lshmem's bootstrap":                      func(c net.Conn) { c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")) },
		"root of another job":                         func(c net.Conn) { c.Write(append(putGreeting([nonceSize]byte{}), make([]byte, proofSize)...)) },
		"did not begin within 300ms":                  func(c net.Conn) {}, // closes
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			o := quick
			o.JoinTimeout = 300 * time.Millisecond
			id := fake(t, f)
			_, err := Join(t.Context(), id, 0, 2, o)
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%v", err)
			}
		})
	}
	t.Run("silent", func(t *testing.T) {
		t.Parallel()
		o := quick
		o.JoinTimeout = 300 * time.Millisecond
		id := fake(t, func(c net.Conn) { io.Copy(io.Discard, c) })
		began := time.Now()
		if _, err := Join(t.Context(), id, 0, 2, o); !errors.Is(err, ErrTimeout) || time.Since(began) > 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
	t.Run("nobody", func(t *testing.T) {
		t.Parallel()
		id := fake(t, nil)
		o := quick
		o.JoinTimeout = 300 * time.Millisecond
		at, _ := id.Addresses()
		closed, err := newID([secretSize]byte{}, []netip.AddrPort{netip.AddrPortFrom(at[0].Addr(), 1)})
		if err != nil {
			t.Fatal(err)
		}
		_, err = Join(t.Context(), closed, 0, 2, o)
		if !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), "connection refused") {
			t.Error(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := Join(ctx, closed, 0, 2, quick); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// A PE of another version is told, by a root that may be older or newer.
func TestOtherVersion(t *testing.T) {
	r, err := Listen(t.Context(), ListenOptions{Local: true, Keep: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := dial(t, r)
	hello := putGreeting([nonceSize]byte{})
	binary.LittleEndian.PutUint32(hello[4:], 77)
	c.Write(hello)
	var answer [8]byte
	if _, err := io.ReadFull(c, answer[:]); err != nil {
		t.Fatal(err)
	}
	if got := binary.LittleEndian.Uint32(answer[4:]); got != idVersion {
		t.Errorf("the root says version %d", got)
	}
}

// Places that are taken, other sizes, and who comes late.
func TestRefused(t *testing.T) {
	r, err := Listen(t.Context(), ListenOptions{Local: true, Keep: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first := make(chan error, 1)
	wg.Go(func() {
		_, err := Join(ctx, r.ID(), 1, 3, quick)
		first <- err
	})
	waitConnected(t, r, 1)
	for text, place := range map[string][2]int{
		"PE 1 joined already, as process": {1, 3}, "says that the job has 4 PEs, PE 1 (process": {0, 4},
	} {
		if _, err := Join(t.Context(), r.ID(), place[0], place[1], quick); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), text) {
			t.Errorf("want %q: %v", text, err)
		}
	}
	// A refusal does not disturb those that wait.
	select {
	case err := <-first:
		t.Fatal(err)
	default:
	}
	// One that gives up does.
	wg.Go(func() {
		if _, err := Join(t.Context(), r.ID(), 0, 3, quick); err == nil || !strings.Contains(err.Error(), "PE 1 aborted the job with code -1: it gave up joining") {
			t.Error(err)
		}
	})
	waitConnected(t, r, 2)
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestJoinTimeout(t *testing.T) {
	id, err := NewUniqueID(t.Context(), ListenOptions{Local: true})
	if err != nil {
		t.Fatal(err)
	}
	root, _ := roots.Load(id)
	defer root.(*Root).Close()
	o := quick
	o.JoinTimeout = 300 * time.Millisecond
	// So that the root stays for the late one although all others of this process are gone.
	root.(*Root).acquire(0)
	for i, err := range each(2, func(i int) error {
		_, err := Join(t.Context(), id, []int{1, 4}[i], 8, o)
		return err
	}) {
		if !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), "PEs 0, 2, 3, 5-7 of 8 did not join within") {
			t.Errorf("PE %d: %v", i, err)
		}
	}
	_, err = Join(t.Context(), id, 0, 8, o)
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "the job is over: PEs 0, 2, 3, 5-7 of 8 did not join") {
		t.Errorf("late: %v", err)
	}
}

// A join that knows the secret but makes no sense is answered, so that nobody tries again until its time is over.
func TestBadJoin(t *testing.T) {
	r, err := Listen(t.Context(), ListenOptions{Local: true, Keep: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	at, err := r.id.Addresses()
	if err != nil {
		t.Fatal(err)
	}
	good := join{rank: 0, size: 1, timeout: 1000}
	for text, f := range map[string]frame{
		"not a join":      {kind: kindBeat},
		"a join of 3":     {kind: kindJoin, payload: good.marshal()[:3]},
		"PE 7 of 3":       {kind: kindJoin, payload: (&join{rank: 7, size: 3}).marshal()},
		"PE 0 of 0":       {kind: kindJoin, payload: (&join{}).marshal()},
		"PE 0 of 1000000": {kind: kindJoin, payload: (&join{size: 1000000}).marshal()},
	} {
		l, err := greetRoot(t.Context(), at[0].String(), r.secret)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.send(f, time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		got, err := l.receive(maxText)
		if err != nil || got.kind != kindRefused || !strings.Contains(string(got.payload), text) {
			t.Errorf("want %q: %v %q", text, err, got.payload)
		}
		l.conn.Close()
	}
}

// proxy passes connections on to a root until it is cut: then nothing passes, and nothing is closed.
type proxy struct {
	mu  sync.Mutex
	cut bool
}

func (p *proxy) start(t *testing.T, r *Root) UniqueID {
	id := fake(t, func(c net.Conn) {
		up, err := net.Dial("tcp", r.listeners[0].Addr().String())
		if err != nil {
			return
		}
		defer up.Close()
		var wg sync.WaitGroup
		for _, d := range [][2]net.Conn{{c, up}, {up, c}} {
			wg.Go(func() {
				b := make([]byte, 4096)
				for {
					n, err := d[0].Read(b)
					p.mu.Lock()
					cut := p.cut
					p.mu.Unlock()
					if cut {
						if err != nil {
							return
						}
						continue
					}
					d[1].Write(b[:n])
					if err != nil {
						d[1].Close()
						return
					}
				}
			})
		}
		wg.Wait()
	})
	at, err := id.Addresses()
	if err != nil {
		t.Fatal(err)
	}
	if id, err = newID(r.secret, at); err != nil {
		t.Fatal(err)
	}
	return id
}

// A machine that vanishes says nothing and closes nothing. Both sides notice.
func TestHalfOpen(t *testing.T) {
	const silence = 1500 * time.Millisecond
	r, err := Listen(t.Context(), ListenOptions{Local: true, Keep: true, Heartbeat: silence})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var p proxy
	far := p.start(t, r)
	o := quick
	o.Heartbeat = silence
	all := make([]Bootstrap, 3)
	for i, err := range each(3, func(i int) (err error) {
		id := r.ID()
		if i == 2 {
			id = far
		}
		all[i], err = Join(t.Context(), id, i, 3, o)
		return err
	}) {
		if err != nil {
			t.Fatalf("PE %d: %v", i, err)
		}
	}
	for _, err := range each(3, func(i int) error { return all[i].Barrier(t.Context()) }) {
		if err != nil {
			t.Fatal(err)
		}
	}
	p.mu.Lock()
	p.cut = true
	p.mu.Unlock()
	wantEnd(t, all[0], 2, "PE 2 died: nothing was heard of its machine for 1.5s")
	wantEnd(t, all[1], 2, "PE 2 died: nothing was heard of its machine for 1.5s")
	wantEnd(t, all[2], -1, "the bootstrap's root died: nothing was heard of its machine for 1.5s")
	closeAll(t, all)
}

// tamper changes one byte on the way, anywhere.
func TestTampered(t *testing.T) {
	r, err := Listen(t.Context(), ListenOptions{Local: true, Keep: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for instance, up := range []bool{true, false} {
		seen := 0
		id := fake(t, func(c net.Conn) {
			to, err := net.Dial("tcp", r.listeners[0].Addr().String())
			if err != nil {
				return
			}
			defer to.Close()
			from := c
			if !up {
				from, to = to, from
			}
			go func() {
				io.Copy(from, to)
				from.Close()
			}()
			b := make([]byte, 4096)
			for {
				n, err := from.Read(b)
				if i := bytes.Index(b[:n], []byte("xxxxxx")); i >= 0 { // what the PE brings, and what it gets
					b[i] = 'y'
					seen++
				}
				to.Write(b[:n])
				if err != nil {
					to.Close()
					return
				}
			}
		})
		addresses, _ := id.Addresses()
		at, err := newID(r.secret, addresses)
		if err != nil {
			t.Fatal(err)
		}
		o := quick
		o.Instance = uint32(instance)
		b, err := Join(t.Context(), at, 0, 1, o)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := b.AllGather(t.Context(), []byte(strings.Repeat("x", 40))); err == nil {
			t.Errorf("it was changed (%d times) and nobody noticed: %s", seen, got[0])
		}
		if _, err := b.LostPE(); err == nil {
			t.Error("the job goes on")
		}
		b.Close()
	}
}

// A PE that says things out of order, or what only a root says, ends the job with its number; the root stays whole.
func TestMisbehaved(t *testing.T) {
	r, err := Listen(t.Context(), ListenOptions{Local: true, Keep: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for instance, f := range []frame{
		{kind: kindBegin}, {kind: kindJoin}, {kind: kindResult, op: opBarrier}, {kind: kindAbort, payload: []byte{1}},
		{kind: kindCall, op: opBarrier, seq: 7, payload: putCall(time.Second, nil)},
		{kind: kindCall, op: opAllGather, seq: 1, payload: putCall(time.Second, nil)},
		{kind: kindCall, op: opAllToAll, seq: 1, payload: putCall(time.Second, make([][]byte, 3))},
		{kind: kindCall, op: opAllToAll, seq: 1, payload: putCall(time.Second, make([][]byte, 2))[:9]},
		{kind: kindCall, op: 9, seq: 1}, {kind: 99}, {},
	} {
		o := quick
		o.Instance = uint32(instance)
		all := joinAll(t, r.ID(), 2, o)
		if err := all[1].(*remote).send(f, time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		select {
		case <-all[0].Lost():
			if pe, err := all[0].LostPE(); pe != 1 {
				t.Errorf("%+v: blames PE %d: %v", f, pe, err)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%+v: nothing happens", f)
		}
		closeAll(t, all)
	}
}
