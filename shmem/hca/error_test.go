package hca

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/lgpu/lgpu/shmem/mlx5"
)

func cyclic(c *QueueConfig) { c.CQForm, c.CQ, c.CQRecord = CQCyclic, words(64*64), words(4) }

// TestErrors posts one bad entry between good ones: the good one before completes, the bad one has its syndrome, all
// after it are flushed, and nothing of them happens.
func TestErrors(t *testing.T) {
	atomicEntry := func(opcode, modifier uint8, at uint64) *mlx5.Entry {
		return &mlx5.Entry{Opcode: opcode, Modifier: modifier, RemoteAddress: at, RemoteKey: bKey, Data: local(0, 8)}
	}
	with := func(e *mlx5.Entry, change func(*mlx5.Entry)) *mlx5.Entry { change(e); return e }
	cases := []struct {
		name     string
		entry    *mlx5.Entry
		raw      func(block []byte) // changes what was written
		syndrome uint8
	}{
		{"local key", with(write(0, 0, 8), func(e *mlx5.Entry) { e.Data[0].Key += 0x50 }), nil, mlx5.SyndromeLocalProtect},
		{"local range", write(pairBytes-7, 0, 8), nil, mlx5.SyndromeLocalProtect},
		{"local access", with(read(0, 0, 8), func(e *mlx5.Entry) { e.Data[0].Key = 0x1101 }), nil, mlx5.SyndromeLocalProtect},
		{"local address wraps", with(write(0, 0, 8), func(e *mlx5.Entry) { e.Data[0].Address = ^uint64(3) }), nil, mlx5.SyndromeLocalProtect},
		{"remote key", with(write(0, 0, 8), func(e *mlx5.Entry) { e.RemoteKey++ }), nil, mlx5.SyndromeRemoteAccess},
		{"remote range", write(0, pairBytes-7, 8), nil, mlx5.SyndromeRemoteAccess},
		{"remote address wraps", with(write(0, 0, 100), func(e *mlx5.Entry) { e.RemoteAddress = ^uint64(3) }), nil, mlx5.SyndromeRemoteAccess},
		{"remote write access", with(write(0, 0, 8), func(e *mlx5.Entry) { e.RemoteKey = 0x2201 }), nil, mlx5.SyndromeRemoteAccess},
		{"remote read access", with(read(0, 0, 8), func(e *mlx5.Entry) { e.RemoteKey = 0x2202 }), nil, mlx5.SyndromeRemoteAccess},
		{"remote atomic access", with(atomicEntry(mlx5.OpFetchAdd, 0, bStart), func(e *mlx5.Entry) { e.RemoteKey = 0x2201 }), nil, mlx5.SyndromeRemoteAccess},
		{"a long write whose end is not there", write(0, 1<<19+1, 1<<19), nil, mlx5.SyndromeRemoteAccess},
		{"unaligned atomic", atomicEntry(mlx5.OpFetchAdd, 0, bStart+4), nil, mlx5.SyndromeRemoteRequest},
		{"unaligned masked atomic", atomicEntry(mlx5.OpMaskedAdd, 8, bStart+2), nil, mlx5.SyndromeRemoteRequest},
		{"short result", with(atomicEntry(mlx5.OpFetchAdd, 0, bStart), func(e *mlx5.Entry) { e.Data[0].Bytes = 4 }), nil, mlx5.SyndromeLocalLength},
		{"too long", with(write(0, 0, 8), func(e *mlx5.Entry) { e.Data[0].Bytes = 0 }), nil, mlx5.SyndromeLocalLength},
		{"modifier", atomicEntry(mlx5.OpMaskedAdd, 8, bStart), func(b []byte) { b[0] = 7 }, mlx5.SyndromeLocalQueue},
		{"opcode", write(0, 0, 8), func(b []byte) { b[3] = mlx5.OpUMR }, mlx5.SyndromeLocalQueue},
		{"unknown opcode", write(0, 0, 8), func(b []byte) { b[3] = 0x7f }, mlx5.SyndromeLocalQueue},
		{"index", write(0, 0, 8), func(b []byte) { b[2]++ }, mlx5.SyndromeLocalQueue},
		{"queue number", write(0, 0, 8), func(b []byte) { b[6]++ }, mlx5.SyndromeLocalQueue},
		{"no segments", write(0, 0, 8), func(b []byte) { b[7] = 0 }, mlx5.SyndromeLocalQueue},
		{"too many segments", write(0, 0, 8), func(b []byte) { b[7] = 63 }, mlx5.SyndromeLocalQueue},
		{"inline beyond its segments", write(0, 0, 8), func(b []byte) { copy(b[32:], []byte{0x80, 0, 1, 0}) }, mlx5.SyndromeLocalQueue},
		{"WAIT for nothing", &mlx5.Entry{Opcode: mlx5.OpWait, WaitQueue: 999}, nil, mlx5.SyndromeLocalQueue},
		{"SEND", &mlx5.Entry{Opcode: mlx5.OpSend, Data: local(0, 8)}, nil, mlx5.SyndromeNotReady},
		{"WRITE_IMM", with(write(0, 0, 8), func(e *mlx5.Entry) { e.Opcode = mlx5.OpWriteImm }), nil, mlx5.SyndromeNotReady},
	}
	for _, fabric := range fabrics {
		for i, adversary := range adversaries {
			if i%(len(adversaries)-1) != 0 {
				continue // none, and all at once
			}
			for _, c := range cases {
				if fabric.name != "local" && adversary.Adversary != nil && c.syndrome < mlx5.SyndromeRemoteRequest {
					continue // nothing of it reaches the fabric
				}
				t.Run(fabric.name+"/"+adversary.name+"/"+c.name, func(t *testing.T) {
					fa, fb := fabric.make(t)
					p := newPair(t, fa, fb, adversary.Adversary, cyclic)
					for key, access := range map[uint32]Access{0x1101: RemoteRead, 0x2201: RemoteRead, 0x2202: RemoteWrite} {
						d, start, b := p.a, uint64(aStart), p.mem
						if key >= bKey {
							d, start, b = p.b, bStart, p.other
						}
						m, err := NewHostMemory(start, b)
						if err != nil {
							t.Fatal(err)
						}
						if err := d.RegisterMemory(key, start, pairBytes, access, m); err != nil {
							t.Fatal(err)
						}
					}
					fill(p.mem, 5)
					before := bytes.Clone(p.other)
					v := p.va
					first := v.put(&mlx5.Entry{Opcode: mlx5.OpNOP, Flags: mlx5.CtrlCompletion})
					c.entry.Flags = 0 // errors complete without being asked
					bad := v.put(c.entry)
					if c.raw != nil {
						c.raw(v.config.WQ[bad*64:])
					}
					var behind []uint64
					for i := range 3 {
						behind = append(behind, v.put(write(0, uint64(1000*i), 500)))
					}
					v.ring()
					if got := v.next(); got.IsError() || got.Counter != uint16(first) {
						t.Fatalf("the entry before: %+v", got)
					}
					got := v.next()
					if got.Opcode != mlx5.CompletionError || got.Syndrome != c.syndrome || got.Counter != uint16(bad) {
						t.Fatalf("syndrome %#x of block %d (%v), not %#x of block %d", got.Syndrome, got.Counter, v.queue.Err(), c.syndrome, bad)
					}
					for _, at := range behind {
						if got := v.next(); got.Opcode != mlx5.CompletionError || got.Syndrome != mlx5.SyndromeFlushed || got.Counter != uint16(at) {
							t.Fatalf("after: %+v, not block %d flushed", got, at)
						}
					}
					if v.queue.State() != StateError || v.queue.Err() == nil || !strings.Contains(v.queue.Err().Error(), mlx5.SyndromeText(c.syndrome)) {
						t.Errorf("state %v, error %v", v.queue.State(), v.queue.Err())
					}
					later := v.post(write(0, 0, 8))
					if got := v.next(); got.Syndrome != mlx5.SyndromeFlushed || got.Counter != uint16(later) {
						t.Errorf("posted later: %+v", got)
					}
					late := adversary.Adversary != nil && adversary.Late > 0 && c.entry.Opcode == mlx5.OpRead
					if !late && !bytes.Equal(before, p.other) { // a late read fails after later writes are done
						t.Error("the other side's memory changed")
					}
				})
			}
		}
	}
}

// TestCyclic fills a small completion queue again and again, so that owner bits change.
func TestCyclic(t *testing.T) {
	for _, withRecord := range []bool{true, false} {
		p := newPair(t, NewLocal(), nil, nil, nil)
		v := newDriver(t, p.a, 0x33, func(c *QueueConfig) {
			c.CQForm, c.CQ = CQCyclic, words(8*64)
			if withRecord {
				c.CQRecord = words(4)
			}
		})
		connect(t, v, v)
		for i := range 100 {
			silent := v.put(&mlx5.Entry{Opcode: mlx5.OpNOP})
			asks := v.put(&mlx5.Entry{Opcode: mlx5.OpNOP, Flags: mlx5.CtrlCompletion})
			v.ring()
			if c := v.next(); c.Counter != uint16(asks) || c.IsError() {
				t.Fatalf("%d: completion %+v, of blocks %d, %d", i, c, silent, asks)
			}
		}
	}
}

func TestCompletionQueueFull(t *testing.T) {
	d := newDevice(t, Config{})
	v := newDriver(t, d, 1, func(c *QueueConfig) { c.CQForm, c.CQ, c.CQRecord = CQCyclic, words(4*64), words(4) })
	connect(t, v, v)
	for range 5 {
		v.put(&mlx5.Entry{Opcode: mlx5.OpNOP, Flags: mlx5.CtrlCompletion})
	}
	v.ring()
	eventually(t, "the queue fails", func() bool { return v.queue.State() == StateError })
	if err := v.queue.Err(); err == nil || v.queue.Completions() != 4 {
		t.Errorf("%d completions, %v", v.queue.Completions(), err)
	}
}

func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !is(); time.Sleep(50 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// TestLostDoorbell posts without a doorbell.
func TestLostDoorbell(t *testing.T) {
	p := newPair(t, NewLocal(), nil, nil, func(c *QueueConfig) { c.Start = 65530 })
	v := newDriver(t, p.a, 0x33, func(c *QueueConfig) { c.Start = 65530 })
	connect(t, v, v)
	v.noDoorbell = true
	for range 20 {
		if c := v.wait(v.post(&mlx5.Entry{Opcode: mlx5.OpNOP})); c.IsError() {
			t.Fatalf("%+v", c)
		}
	}
	v.noDoorbell = false // after an old doorbell, the record went far ahead
	if c := v.wait(v.post(&mlx5.Entry{Opcode: mlx5.OpNOP})); c.IsError() {
		t.Fatalf("%+v", c)
	}
}

// TestWait: a queue goes on when another has so many completions.
func TestWait(t *testing.T) {
	d := newDevice(t, Config{})
	a := newDriver(t, d, 1, func(c *QueueConfig) { c.CQNumber = 71 })
	b := newDriver(t, d, 2, func(c *QueueConfig) { c.CQNumber = 72 })
	connect(t, a, a)
	connect(t, b, b)
	b.put(&mlx5.Entry{Opcode: mlx5.OpWait, WaitQueue: 71, WaitIndex: 2})
	last := b.post(&mlx5.Entry{Opcode: mlx5.OpNOP})
	a.wait(a.post(&mlx5.Entry{Opcode: mlx5.OpNOP}))
	time.Sleep(2 * time.Millisecond) // would be enough, were it wrong
	if n := b.queue.Completions(); n != 0 {
		t.Fatalf("%d completions before what was waited for", n)
	}
	a.post(&mlx5.Entry{Opcode: mlx5.OpNOP})
	b.wait(last)
}

// TestFailAt: the adversary fails the k-th entry of one queue.
func TestFailAt(t *testing.T) {
	for k := uint64(1); k <= 5; k++ {
		p := newPair(t, NewLocal(), nil, &Adversary{FailAt: k, FailQueue: 0x33, FailWith: mlx5.SyndromeRetry}, nil)
		v := newDriver(t, p.a, 0x33, cyclic)
		connect(t, v, v)
		for range 6 {
			v.put(&mlx5.Entry{Opcode: mlx5.OpNOP, Flags: mlx5.CtrlCompletion})
		}
		v.ring()
		for i := uint64(1); i <= 6; i++ {
			want := uint8(0)
			if i == k {
				want = mlx5.SyndromeRetry
			} else if i > k {
				want = mlx5.SyndromeFlushed
			}
			if c := v.next(); c.Syndrome != want {
				t.Errorf("fail at %d: entry %d has %#x, not %#x", k, i, c.Syndrome, want)
			}
		}
	}
}

// TestOrder: a signal is never before its data, over any fabric and however pieces move.
func TestOrder(t *testing.T) {
	everywhere(t, func(t *testing.T, p *pair) {
		for i := uint64(1); i <= 20; i++ {
			for j := range p.mem[:3000] {
				p.mem[j] = byte(i)
			}
			p.va.put(write(0, 0, 3000))
			last := p.va.post(&mlx5.Entry{Opcode: mlx5.OpFetchAdd, Atomic: mlx5.Atomic{Add: 1}, RemoteAddress: bStart + 4096, RemoteKey: bKey,
				Data: local(4096, 8)})
			one := mlx5.Atomic{Bytes: 8}
			m := HostMemory{bStart, p.other}
			eventually(t, "the signal", func() bool { v, _ := m.Atomic(bStart+4096, &one); return v == i })
			for j, b := range p.other[:3000] {
				if b != byte(i) {
					t.Fatalf("byte %d is %d when the signal is %d", j, b, i)
				}
			}
			p.va.wait(last)
		}
	})
}

// TestLateRead: without a fence a read may return what a later write stored, with one it may not.
func TestLateRead(t *testing.T) {
	stale := 0
	for _, fence := range []uint8{0, mlx5.FenceReads, mlx5.FenceStrong, mlx5.FenceAll} {
		l := NewLocal()
		p := newPair(t, l, l, &Adversary{Seed: 9, Late: 255, LateCompletion: 100}, nil)
		for i := range uint64(50) {
			binary.NativeEndian.PutUint64(p.other, 2*i)
			binary.NativeEndian.PutUint64(p.mem[64:], 2*i+1)
			p.va.put(read(0, 0, 8))
			e := write(64, 0, 8)
			e.Flags = fence
			p.va.wait(p.va.post(e))
			if got := binary.NativeEndian.Uint64(p.mem); got != 2*i {
				if got != 2*i+1 || fence != 0 {
					t.Fatalf("fence %#x: read %d, not %d", fence, got, 2*i)
				}
				stale++
			}
		}
	}
	if stale == 0 {
		t.Error("the adversary never let a read be late")
	}
}

// TestOtherSideGone: a connection that ends, or does not answer, fails requests with SyndromeRetry.
func TestOtherSideGone(t *testing.T) {
	t.Run("closed", func(t *testing.T) {
		p := newPair(t, newTCP(t), newTCP(t), nil, nil)
		if err := p.b.Close(); err != nil {
			t.Fatal(err)
		}
		if c := p.va.wait(p.va.post(write(0, 0, 8))); c.Syndrome != mlx5.SyndromeRetry {
			t.Errorf("%+v", c)
		}
	})
	t.Run("local", func(t *testing.T) {
		l := NewLocal()
		p := newPair(t, l, l, nil, nil)
		if err := p.b.Close(); err != nil {
			t.Fatal(err)
		}
		if c := p.va.wait(p.va.post(write(0, 0, 8))); c.Syndrome != mlx5.SyndromeRetry {
			t.Errorf("%+v", c)
		}
	})
	t.Run("silent", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		d := newDevice(t, Config{Fabric: newTCP(t), Retry: 50 * time.Millisecond})
		v := newDriver(t, d, 1, nil)
		err = v.queue.Connect(t.Context(), Endpoint{Address: fmt.Sprintf("tcp://%v/1", l.Addr()), Queue: 1})
		if ne := net.Error(nil); !errors.As(err, &ne) || !ne.Timeout() {
			t.Errorf("connect to what does not answer: %v", err)
		}
		if v.queue.State() != StateInit {
			t.Errorf("state %v", v.queue.State())
		}
	})
	t.Run("stops answering", func(t *testing.T) {
		slow := &slowMemory{gate: make(chan struct{})}
		a := newDevice(t, Config{Fabric: newTCP(t), Retry: 100 * time.Millisecond})
		b := newDevice(t, Config{Fabric: newTCP(t)})
		t.Cleanup(func() { close(slow.gate) })
		register(t, a, aKey, aStart, 64, AllAccess)
		if err := b.RegisterMemory(bKey, bStart, 64, AllAccess, slow); err != nil {
			t.Fatal(err)
		}
		va, vb := newDriver(t, a, 1, nil), newDriver(t, b, 2, nil)
		connect(t, va, vb)
		if c := va.wait(va.post(write(0, 0, 8))); c.Syndrome != mlx5.SyndromeRetry {
			t.Errorf("%+v", c)
		}
	})
}

// slowMemory takes for ever, until its gate is closed.
type slowMemory struct{ gate chan struct{} }

func (m *slowMemory) ReadAt([]byte, uint64) error  { <-m.gate; return nil }
func (m *slowMemory) WriteAt([]byte, uint64) error { <-m.gate; return nil }
func (m *slowMemory) Atomic(uint64, *mlx5.Atomic) (uint64, error) {
	<-m.gate
	return 0, nil
}

func TestConnectErrors(t *testing.T) {
	for _, fabric := range fabrics {
		fa, fb := fabric.make(t)
		a, b := newDevice(t, Config{Fabric: fa}), newDevice(t, Config{Fabric: fb})
		va, vb := newDriver(t, a, 1, nil), newDriver(t, b, 2, nil)
		e := vb.queue.Endpoint()
		e.Token[3] ^= 1
		if err := va.queue.Connect(t.Context(), e); !errors.Is(err, ErrToken) {
			t.Errorf("%s: wrong token: %v", fabric.name, err)
		}
		e = vb.queue.Endpoint()
		e.Queue = 77
		if err := va.queue.Connect(t.Context(), e); !errors.Is(err, ErrQueue) {
			t.Errorf("%s: no such queue: %v", fabric.name, err)
		}
		e.Address = "pigeon:1"
		if err := va.queue.Connect(t.Context(), e); err == nil {
			t.Errorf("%s: no such address", fabric.name)
		}
		connect(t, va, vb)
		if err := va.queue.Connect(t.Context(), vb.queue.Endpoint()); err == nil {
			t.Errorf("%s: connected twice", fabric.name)
		}
	}
}

func TestEndpointBytes(t *testing.T) {
	token, err := NewToken()
	if err != nil {
		t.Fatal(err)
	}
	e := Endpoint{Address: "tcp://10.0.0.1:5/3", Token: token, Queue: 0x123456}
	b, err := e.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	var got Endpoint
	if err := got.UnmarshalBinary(b); err != nil || got != e {
		t.Errorf("%v, %v", got, err)
	}
	for n := range b {
		if err := got.UnmarshalBinary(b[:n]); !errors.Is(err, ErrEndpoint) {
			t.Errorf("%d of %d bytes: %v", n, len(b), err)
		}
	}
}

// TestStandIn: a device that stands in for one of another process, as when its memory is mapped here.
func TestStandIn(t *testing.T) {
	tcp := newTCP(t)
	theirs := newDevice(t, Config{Fabric: newTCP(t)})
	v := newDriver(t, theirs, 5, nil)
	e := v.queue.Endpoint()
	l := NewLocal()
	ours := newDevice(t, Config{Fabric: Join(l, tcp)})
	mem := register(t, ours, aKey, aStart, 64, AllAccess)
	standIn := newDevice(t, Config{Fabric: l, Address: e.Address, Token: e.Token, AnyQueue: true})
	mapped := register(t, standIn, bKey, bStart, 64, AllAccess)
	u := newDriver(t, ours, 6, nil)
	if err := u.queue.Connect(context.Background(), e); err != nil {
		t.Fatal(err)
	}
	mem[0] = 42
	u.wait(u.post(write(0, 8, 1)))
	if mapped[8] != 42 {
		t.Error("the write did not go to the memory that is mapped")
	}
}
