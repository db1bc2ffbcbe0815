package hca

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lgpu/lgpu/shmem/mlx5"
)

// frame is a request as a client sends it.
func frame(op, flags byte, stream, key, n uint32, address uint64, total, offset, sequence uint32, payload []byte) []byte {
	b := []byte{op, flags, 0, 0}
	for _, v := range []uint32{stream, key, n} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	b = binary.BigEndian.AppendUint64(b, address)
	for _, v := range []uint32{total, offset, sequence, 0} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	return append(b, payload...)
}

// FuzzServer: whatever the other side sends is an error of the connection or is answered, and changes only what its
// keys allow.
func FuzzServer(f *testing.F) {
	open := frame(opOpen, 0, 1, 0x22, 0, 0, 0, 0, 0, nil)
	f.Add(append(open, frame(opWrite, 0, 1, bKey, 5, bStart, 5, 0, 1, []byte("hello"))...))
	f.Add(append(open, frame(opRead, 0, 1, bKey, 64, bStart, 64, 0, 1, nil)...))
	f.Add(append(open, frame(opAtomic, 1, 1, bKey, 8, bStart+8, 8, 0, 1, make([]byte, atomicBytes))...))
	f.Add(append(open, frame(opWrite, 0, 1, bKey, 5, bStart+60, 5, 0, 1, []byte("hello"))...))
	f.Add(frame(opWrite, 0, 1, bKey, 5, bStart, 5, 0, 1, []byte("hello")))
	f.Add(append(open, frame(opClose, 0, 1, 0, 0, 0, 0, 0, 1, nil)...))
	f.Add(append(open, open...))
	d, err := New(Config{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = d.Close() })
	// The range that others may write lies between ranges that they may not.
	memory := words(3 * 64)
	for i, key := range []uint32{bKey - 1, bKey, bKey + 1} {
		access := AllAccess
		if i != 1 {
			access = LocalWrite
		}
		m, err := NewHostMemory(bStart+uint64(i-1)*64, memory[i*64:i*64+64])
		if err != nil {
			f.Fatal(err)
		}
		if err := d.RegisterMemory(key, m.Start, 64, access, m); err != nil {
			f.Fatal(err)
		}
	}
	q := QueueConfig{Number: 0x22, WQ: words(64), Record: words(8), Doorbell: words(8), CQ: words(64)}
	if _, err := d.CreateQueue(q); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var out bytes.Buffer
		s := server{device: d, streams: map[uint32]*stream{}, in: bufio.NewReader(bytes.NewReader(b)), out: bufio.NewWriter(&out),
			buffer: make([]byte, partBytes)}
		var err error
		for err == nil {
			err = s.request()
		}
		for i, v := range memory {
			if (i < 64 || i >= 128) && v != 0 {
				t.Fatalf("byte %d was written", i)
			}
		}
		for p := out.Bytes(); len(p) > 0; { // what was said is well formed
			if len(p) < answerBytes || len(p) < answerBytes+int(binary.BigEndian.Uint32(p[8:])) {
				t.Fatalf("an answer of %d bytes", len(p))
			}
			p = p[answerBytes+int(binary.BigEndian.Uint32(p[8:])):]
		}
	})
}

// FuzzClient: whatever the other side answers ends each request once, or the connection.
func FuzzClient(f *testing.F) {
	answer := func(sequence uint32, syndrome byte, payload ...byte) []byte {
		b := binary.BigEndian.AppendUint32(nil, sequence)
		b = append(b, syndrome, 0, 0, 0)
		return append(binary.BigEndian.AppendUint32(b, uint32(len(payload))), payload...)
	}
	f.Add(answer(2, 0, make([]byte, 16)...))
	f.Add(append(answer(0, 0), answer(3, 0, make([]byte, 8)...)...))
	f.Add(answer(3, 0x13))
	f.Add(answer(9, 0))
	f.Add(answer(2, 0, 1, 2, 3))
	d, err := New(Config{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = d.Close() })
	m, err := NewHostMemory(aStart, words(64))
	if err != nil {
		f.Fatal(err)
	}
	if err := d.RegisterMemory(aKey, aStart, 64, AllAccess, m); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		near, far := net.Pipe()
		defer func() { _, _ = near.Close(), far.Close() }()
		c := newClient(d, near)
		q := &Queue{device: d}
		works := make([]*work, 4)
		for i := range works {
			w := &work{queue: q, length: 8, data: []mlx5.Data{{Bytes: 16, Key: aKey, Address: aStart}}}
			op := uint8(opWrite)
			switch i {
			case 2:
				op, w.length = opRead, 16
			case 3:
				op, w.atomic.Bytes = opAtomic, 8
			}
			w.left.Store(1)
			if !c.submit(1, 2, inFlight{part: part{w, piece{0, w.length}}, op: op}) {
				t.Fatal("no room")
			}
			works[i] = w
		}
		r := bufio.NewReader(bytes.NewReader(b))
		buffer := make([]byte, partBytes)
		var err error
		for err == nil {
			err = c.answer(r, buffer)
		}
		c.end()
		for i, w := range works {
			if n := w.left.Load(); n != 0 {
				t.Fatalf("request %d has %d parts left", i, n)
			}
		}
	})
}

// TestManyStrangers: who says nothing takes no place from those who have something to say.
func TestManyStrangers(t *testing.T) {
	f := newTCP(t)
	d := newDevice(t, Config{Fabric: f})
	v := newDriver(t, d, 1, nil)
	var all []net.Conn
	f.mu.Lock()
	for range maxStrangers { // as if they had come by the listener
		theirs, ours := net.Pipe()
		f.strangers = append(f.strangers, ours)
		all = append(all, theirs)
	}
	f.mu.Unlock()
	oldest, err := net.Dial("tcp", f.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = all[0].SetReadDeadline(time.Now().Add(deadline))
	if _, err := all[0].Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the oldest connection, when there is one too many: %v", err)
	}
	_ = oldest.Close()
	client := newDriver(t, newDevice(t, Config{Fabric: newTCP(t)}), 2, nil)
	if err := client.queue.Connect(t.Context(), v.queue.Endpoint()); err != nil {
		t.Error(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.servers) != 1 || len(f.strangers) >= maxStrangers {
		t.Errorf("%d connections of devices, %d of strangers", len(f.servers), len(f.strangers))
	}
	for _, c := range f.strangers { // as their goroutines would
		_ = c.Close()
	}
}

// TestDropped: a connection that the other side gives up, at any point of the greeting, is made again.
func TestDropped(t *testing.T) {
	f := newTCP(t)
	v := newDriver(t, newDevice(t, Config{Fabric: f}), 1, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	defer wait.Wait()
	defer l.Close()
	const whole = len(tcpMagic) + 8 + nonceBytes + sha256.Size // what the client says until it is known
	lengths := []int{0, 1, len(tcpMagic) + 8 + nonceBytes, whole - 1, whole}
	var dropped atomic.Int32
	wait.Go(func() {
		for i := 0; ; i++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", f.listener.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			both := func() { _ = c.Close(); _ = to.Close() }
			wait.Go(func() { _, _ = io.Copy(c, to); both() })
			wait.Go(func() {
				defer both()
				if i < len(lengths) {
					_, _ = io.CopyN(io.Discard, io.TeeReader(c, to), int64(lengths[i]))
					dropped.Add(1)
					return
				}
				_, _ = io.Copy(to, c)
			})
		}
	})
	d := newDevice(t, Config{Fabric: newTCP(t)})
	client := newDriver(t, d, 2, nil)
	e := v.queue.Endpoint()
	_, number, err := parseAddress(e.Address)
	if err != nil {
		t.Fatal(err)
	}
	e.Address = fmt.Sprintf("%s%v/%d", tcpScheme, l.Addr(), number)
	if err := client.queue.Connect(t.Context(), e); err != nil || int(dropped.Load()) != len(lengths) {
		t.Errorf("%d connections were dropped, then: %v", dropped.Load(), err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestStrangers: those who do not know the protocol or the token get nothing and hold nothing up.
func TestStrangers(t *testing.T) {
	f := newTCP(t)
	d := newDevice(t, Config{Fabric: f})
	v := newDriver(t, d, 1, nil)
	e := v.queue.Endpoint()
	host, number, err := parseAddress(e.Address)
	if err != nil {
		t.Fatal(err)
	}
	for _, hello := range []string{"GET / HTTP/1.1\r\n\r\n", "", tcpMagic, tcpMagic + string(make([]byte, 8+nonceBytes))} {
		c, err := net.Dial("tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, hello)
		_ = c.(*net.TCPConn).CloseWrite()
		_ = c.SetReadDeadline(time.Now().Add(deadline))
		if b, err := io.ReadAll(c); len(b) != 0 || errors.Is(err, net.ErrClosed) {
			t.Errorf("%q was answered with %d bytes, %v", hello, len(b), err)
		}
		_ = c.Close()
	}
	// One who knows the device but not the token learns that it is the device's, and no more.
	c, err := net.Dial("tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(deadline))
	if err := greet(c, number, Token{1}); !errors.Is(err, ErrToken) {
		t.Errorf("wrong token: %v", err)
	}
	_, _ = c.Write(make([]byte, 32))
	_, _ = c.Write(frame(opOpen, 0, 1, 1, 0, 0, 0, 0, 0, nil))
	if b, _ := io.ReadAll(c); len(b) != 0 {
		t.Errorf("%d bytes for one without the token", len(b))
	}
}
