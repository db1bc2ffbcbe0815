package ibgda

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/mlx5"
	"github.com/lgpu/lgpu/shmem/transport"
	"github.com/lgpu/lgpu/shmem/transport/ibgda/nic"
)

// pattern fills b with what only (pe, round) has.
func pattern(b []byte, pe, round int) {
	r := rand.New(rand.NewPCG(uint64(pe), uint64(round)))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

// Every kind of posting and number of NICs: every PE puts to, gets from and adds to every PE, itself included, on every
// queue.
func TestMovesData(t *testing.T) {
	for _, handler := range []Handler{HandlerGPU, HandlerHost} {
		for _, nics := range []int{1, 2} {
			t.Run(fmt.Sprintf("%v handler, %d NICs", handler, nics), func(t *testing.T) {
				j := newJob(t, 3, withSettings(func(s *Settings) { s.Handler, s.MaxNICs, s.QueuesPerPE = handler, nics, 3 }))
				for _, m := range j {
					if want := map[Handler]string{HandlerGPU: "ibgda", HandlerHost: "proxy"}[handler]; m.Name() != want || len(m.NICs()) != nics {
						t.Fatalf("transport %s on %d NICs, expected %s on %d", m.Name(), len(m.NICs()), want, nics)
					}
				}
				exchange(t, j)
			})
		}
	}
}

// exchange moves data between all PEs of a job and checks it.
func exchange(t *testing.T, j job) {
	t.Helper()
	const n = 1000
	queues := int(j[0].state.QueuesPerPE)
	for pe, m := range j {
		for to := range j {
			for i := range queues {
				offset := func(kind int) uint64 { return uint64(4096 + ((kind*len(j)+pe)*queues+i)*1024) }
				pattern(m.heap[:n], pe, i)
				if err := m.put(to, i, offset(0), 0, n); err != nil {
					t.Fatalf("put from %d to %d on queue %d: %v", pe, to, i, err)
				}
				if !bytes.Equal(j[to].heap[offset(0):][:n], m.heap[:n]) {
					t.Fatalf("put from %d to %d on queue %d: other bytes arrived", pe, to, i)
				}
				pattern(j[to].heap[2048:][:n], to, i+100)
				if err := m.get(to, i, offset(1), 2048, n); err != nil {
					t.Fatalf("get by %d from %d on queue %d: %v", pe, to, i, err)
				}
				if !bytes.Equal(m.heap[offset(1):][:n], j[to].heap[2048:][:n]) {
					t.Fatalf("get by %d from %d on queue %d: other bytes arrived", pe, to, i)
				}
				word := j[to].heap[3584:]
				before := binary.LittleEndian.Uint64(word)
				old, err := m.fetchAdd(to, i, 3584, 1<<40|uint64(pe+1))
				if err != nil || old != before || binary.LittleEndian.Uint64(word) != before+1<<40+uint64(pe+1) {
					t.Fatalf("fetch-add by %d at %d on queue %d: %#x, %v; %#x became %#x", pe, to, i, old, err, before, binary.LittleEndian.Uint64(word))
				}
			}
		}
	}
}

// Everything a queue says about itself is what was asked for, and no two queues share memory.
func TestQueueArray(t *testing.T) {
	j := newJob(t, 3, withSettings(func(s *Settings) { s.MaxNICs, s.QueuesPerPE, s.Handler, s.Batch = 2, 3, HandlerHost, 7 }))
	for pe, m := range j {
		type span struct {
			start, end uint64
			what       string
		}
		var spans []span
		list, err := m.Queues()
		if err != nil || len(list) != 9 {
			t.Fatalf("PE %d: %d queues, %v", pe, len(list), err)
		}
		for index, q := range list {
			i, to := index/3, index%3
			flags := layout.QueueHostMemory | layout.QueueHostPosts
			if q.PE != uint32(to) || q.NIC != uint32(i%2) || q.Depth != 128 || q.Batch != 7 || q.IbufCells != 16 || q.Flags != flags || q.Number == 0 {
				t.Errorf("PE %d, queue %d to %d: %+v", pe, i, to, q)
			}
			if q.WQ%4096 != 0 || q.Doorbell%wordStride != 0 || (q.Record-nic.RecordSend)%recordStride != 0 || q.CQ%64 != 0 || q.Ibuf%layout.IbufCell != 0 {
				t.Errorf("PE %d, queue %d to %d: alignment of %+v", pe, i, to, q)
			}
			spans = append(spans, span{q.WQ, q.WQ + 128*64, "WQ"}, span{q.CQ, q.CQ + 128*64, "CQ"}, span{q.Record - 4, q.Record + 12, "record"},
				span{q.Doorbell, q.Doorbell + 8, "word"}, span{q.Ibuf, q.Ibuf + 17*layout.IbufCell, "buffer"})
			if got := binary.NativeEndian.Uint16(hostBytes(q.CQ+60, 2)); got != 0xffff {
				t.Errorf("PE %d, queue %d to %d: counter %#x before anything completed", pe, i, to, got)
			}
		}
		for a := range spans {
			for b := range a {
				if spans[a].start < spans[b].end && spans[b].start < spans[a].end {
					t.Errorf("PE %d: %s %#x and %s %#x overlap", pe, spans[a].what, spans[a].start, spans[b].what, spans[b].start)
				}
			}
		}
	}
}

// A heap grows and shrinks: new pieces are reachable, others are not, and old keys do not work again.
func TestGrowthAndShrink(t *testing.T) {
	for _, nics := range []int{1, 2} {
		j := newJob(t, 2, withSettings(func(s *Settings) { s.MaxNICs = nics }))
		m := j[0]
		for round := range 3 {
			for _, index := range []int{2, 6} {
				if err := j.grow(index); err != nil {
					t.Fatal(err)
				}
				for _, offset := range []uint64{uint64(index) << testShift, uint64(index+2)<<testShift - 64} {
					for i := range 2 {
						if k := m.remoteKey(offset, 1, uint32(i%nics)); k.End != uint64(index+2)<<testShift {
							t.Fatalf("round %d: key of offset %#x ends at %#x", round, offset, k.End)
						}
						pattern(m.heap[offset:][:64], round, index)
						if err := m.put(1, i, offset, offset, 64); err != nil {
							t.Fatalf("round %d: put to offset %#x: %v", round, offset, err)
						}
						if !bytes.Equal(m.heap[offset:][:64], j[1].heap[offset:][:64]) {
							t.Fatalf("round %d: other bytes at offset %#x", round, offset)
						}
					}
				}
			}
			stale := m.remoteKey(6<<testShift, 1, 0)
			for _, m := range j {
				if err := errors.Join(m.Detach(6), m.Detach(2)); err != nil {
					t.Fatal(err)
				}
			}
			for pe := range j {
				for offset := uint64(2) << testShift; offset < 8<<testShift; offset += 1 << testShift {
					if k := m.remoteKey(offset, pe, 0); k.End != 0 || k.Key != 0 {
						t.Fatalf("round %d: PE %d has a key for offset %#x after its piece went", round, pe, offset)
					}
				}
			}
			if round == 2 {
				// Somebody who kept the key fails, and so does what comes after.
				q := m.queue(1, 0)
				e := &mlx5.Entry{Opcode: mlx5.OpWrite, Data: m.data(q, 0, 8), RemoteAddress: addressOf(j[1].heap) + 6<<testShift,
					RemoteKey: binary.BigEndian.Uint32((*[4]byte)(unsafe.Pointer(&stale.Key))[:])}
				if err := m.post(q, e); err != completionError(mlx5.SyndromeRemoteAccess) {
					t.Errorf("a put with a key that went: %v", err)
				}
				if err := m.put(1, 0, 0, 0, 8); err == nil {
					t.Error("a queue in error went on")
				}
			}
		}
	}
}

// A peer that goes away is an error of the queues to it, and of no other.
func TestDeadPeer(t *testing.T) {
	j := newJob(t, 3)
	if err := j[1].Close(); err != nil {
		t.Fatal(err)
	}
	err := j[0].put(1, 0, 0, 0, 8)
	if err != completionError(mlx5.SyndromeRetry) {
		t.Errorf("put to a PE that is gone: %v", err)
	}
	for _, to := range []int{0, 2} {
		if err := j[0].put(to, 0, 4096, 0, 8); err != nil {
			t.Errorf("put to PE %d after PE 1 is gone: %v", to, err)
		}
	}
}

// PEs whose software HCAs listen at different addresses reach each other by TCP, as those of different processes do.
func TestOverTCP(t *testing.T) {
	j := newJob(t, 2, func(c *Config) { c.Listen, c.MaxNICs = fmt.Sprintf("127.0.0.%d:0", c.PE+1), 2 })
	exchange(t, j)
	if err := j.grow(2); err != nil {
		t.Fatal(err)
	}
	if err := j[0].put(1, 1, 2<<testShift, 0, 64<<10); err != nil || !bytes.Equal(j[1].heap[2<<testShift:][:64<<10], j[0].heap[:64<<10]) {
		t.Errorf("a put to what grew: %v", err)
	}
	if err := j[1].Close(); err != nil {
		t.Fatal(err)
	}
	if err := j[0].put(1, 0, 0, 0, 8); err != completionError(mlx5.SyndromeRetry) {
		t.Errorf("put to a PE that is gone: %v", err)
	}
}

func TestInlineKeysAreOfTheFirstPiece(t *testing.T) {
	j := newJob(t, 2)
	if err := j.grow(2); err != nil {
		t.Fatal(err)
	}
	s := &j[0].state
	for i, k := range s.LocalInline {
		if (k.End != 0) != (i < 2) {
			t.Errorf("local key %d: %+v", i, k)
		}
	}
	for i, k := range s.RemoteInline {
		if (k.End != 0) != (i < 4) { // two entries of two PEs
			t.Errorf("remote key %d: %+v", i, k)
		}
		if k.End != 0 && k != *table[layout.Key](s.RemoteKeys, i) {
			t.Errorf("remote key %d: %+v inline, %+v in memory", i, k, *table[layout.Key](s.RemoteKeys, i))
		}
	}
}

func TestLocalBuffers(t *testing.T) {
	j := newJob(t, 2, withSettings(func(s *Settings) { s.MaxNICs = 2 }))
	m := j[0]
	buffers := make([][]byte, 5)
	for k := range buffers {
		buffers[k] = memory(t, 4096+8*k)
		if n, err := m.RegisterLocal(addressOf(buffers[k])+8, uint64(len(buffers[k])-8)); err != nil || n != uint32(k+1) {
			t.Fatalf("buffer %d: %d entries, %v", k, n, err)
		}
	}
	if _, err := m.RegisterLocal(addressOf(buffers[1])+100, 8); err == nil {
		t.Error("a buffer within another was registered")
	}
	if err := m.UnregisterLocal(addressOf(buffers[2]) + 8); err != nil {
		t.Fatal(err)
	}
	if err := m.UnregisterLocal(addressOf(buffers[2]) + 8); err == nil {
		t.Error("a buffer was unregistered twice")
	}
	if err := j.refresh(); err != nil {
		t.Fatal(err)
	}
	if m.state.LocalCount != 5 {
		t.Errorf("%d local buffers", m.state.LocalCount)
	}
	for k, b := range buffers {
		l := *table[layout.Local](m.state.Local, k)
		if k == 2 {
			if l != (layout.Local{}) {
				t.Errorf("entry of an unregistered buffer: %+v", l)
			}
			continue
		}
		if l.Start != addressOf(b)+8 || l.End != addressOf(b)+uint64(len(b)) {
			t.Fatalf("buffer %d: %+v", k, l)
		}
		for i := range 2 {
			q := m.queue(1, i)
			pattern(j[1].heap[:512], k, i)
			e := m.remote(&mlx5.Entry{Opcode: mlx5.OpRead, Data: []mlx5.Data{{Bytes: 512, Address: l.Start + 16,
				Key: binary.BigEndian.Uint32((*[4]byte)(unsafe.Pointer(&l.Keys[i]))[:])}}}, q, 0)
			if err := m.post(q, e); err != nil {
				t.Fatalf("get to buffer %d on queue %d: %v", k, i, err)
			}
			if !bytes.Equal(b[24:][:512], j[1].heap[:512]) {
				t.Fatalf("get to buffer %d on queue %d: other bytes", k, i)
			}
		}
	}
}

// PEs that are not reached this way have no queues and no keys, and nobody minds.
func TestPEsOfOtherTransports(t *testing.T) {
	j, err := openJob(t, 3)
	if err != nil {
		t.Fatal(err)
	}
	used := [][]transport.Capability{{0, 1, 0}, {1, 0, 0}, {0, 0, 0}} // only 0 and 1 reach each other this way
	blobs := make([][][]byte, 3)
	for pe, m := range j {
		if blobs[pe], err = m.Endpoints(make([]transport.PeerInfo, 3), used[pe]); err != nil {
			t.Fatal(err)
		}
		for to, b := range blobs[pe] {
			if (len(b) > 0) != (used[pe][to] != 0) {
				t.Errorf("PE %d has %d bytes for PE %d", pe, len(b), to)
			}
		}
	}
	for pe, m := range j {
		if err := m.Connect([][]byte{blobs[0][pe], blobs[1][pe], blobs[2][pe]}); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.grow(0); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(j[0].put(1, 1, 4096, 0, 64), j[1].put(0, 0, 4096, 0, 64)); err != nil {
		t.Error(err)
	}
	if q := j[0].queue(2, 0); *q != (layout.Queue{}) {
		t.Errorf("a queue to a PE that another transport reaches: %+v", q)
	}
	// The other side did not choose this transport.
	k, err := openJob(t, 2)
	if err != nil {
		t.Fatal(err)
	}
	b0, _ := k[0].Endpoints(make([]transport.PeerInfo, 2), []transport.Capability{0, 1})
	b1, _ := k[1].Endpoints(make([]transport.PeerInfo, 2), []transport.Capability{0, 0})
	if err := k[0].Connect([][]byte{b0[0], b1[0]}); err == nil || !strings.Contains(err.Error(), "not the other way round") {
		t.Errorf("one-sided connection: %v", err)
	}
}

func TestDifferentSettingsAreRefused(t *testing.T) {
	for what, change := range map[string]func(*Config){
		"LSHMEM_QP_PER_PE": func(c *Config) { c.QueuesPerPE++ },
		"LSHMEM_MAX_NICS":  func(c *Config) { c.MaxNICs = 2 },
		"granularity":      func(c *Config) { c.KeyShift++ },
	} {
		j, err := openJob(t, 2, func(c *Config) {
			if c.PE == 1 {
				change(c)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := j.connect(); err == nil || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), "PE 1") {
			t.Errorf("PEs with different %s: %v", what, err)
		}
	}
}

func TestMisuse(t *testing.T) {
	j, err := openJob(t, 2)
	if err != nil {
		t.Fatal(err)
	}
	m := j[0]
	_, local := m.RegisterLocal(4096, 8)
	for what, err := range map[string]error{
		"state before endpoints":   m.State(&layout.State{}),
		"connect before endpoints": m.Connect(make([][]byte, 2)),
		"local before endpoints":   local,
	} {
		if err == nil {
			t.Errorf("%s succeeded", what)
		}
	}
	if err := j.connect(); err != nil {
		t.Fatal(err)
	}
	if err := j.grow(0); err != nil {
		t.Fatal(err)
	}
	refuse := func(what string, f func(c *transport.Chunk)) {
		c := m.chunk(2)
		f(&c)
		if _, err := m.Register(c); err == nil {
			t.Errorf("a piece with %s was registered", what)
		}
	}
	refuse("no bytes", func(c *transport.Chunk) { c.Bytes = 0 })
	refuse("another index", func(c *transport.Chunk) { c.Index++ })
	refuse("a negative index", func(c *transport.Chunk) { c.Index = -1 })
	refuse("an end beyond the heap", func(c *transport.Chunk) { c.Bytes = testHeap })
	refuse("an end beyond everything", func(c *transport.Chunk) { c.Bytes = -c.Offset })
	refuse("what is there", func(c *transport.Chunk) { *c = m.chunk(1) })
	if err := m.Attach(0, make([][]byte, 2)); err == nil {
		t.Error("a piece was attached twice")
	}
	if err := m.Attach(5, make([][]byte, 2)); err == nil {
		t.Error("a piece that is not registered was attached")
	}
	if err := m.Detach(5); err != nil { // as of a piece that Register refused
		t.Errorf("detach of a piece that is not registered: %v", err)
	}
	if _, err := m.Endpoints(nil, make([]transport.Capability, 2)); err == nil {
		t.Error("endpoints were made twice")
	}
	// Keys of another piece than the own, and nonsense.
	if _, err := m.Register(m.chunk(4)); err != nil {
		t.Fatal(err)
	}
	other, _ := j[1].Register(j[1].chunk(6))
	own := (&offer{Offset: 4 << testShift, Bytes: testPiece, Keys: []uint32{1}}).append(nil)
	for _, blob := range [][]byte{other, nil, own[:len(own)-1], append(own, 0)} {
		if err := m.Attach(4, [][]byte{own, blob}); !errors.Is(err, transport.ErrBlob) || !strings.Contains(err.Error(), "PE 1") {
			t.Errorf("attach with %d bytes: %v", len(blob), err)
		}
	}
	if err := m.Detach(4); err != nil {
		t.Error(err)
	}
}

func TestNothingToUse(t *testing.T) {
	for _, kind := range []string{None, MLX5} {
		if _, err := openJob(t, 1, withSettings(func(s *Settings) { s.NIC, s.Prefix = kind, "nobody's" })); !errors.Is(err, nic.ErrNoDevice) {
			t.Errorf("NIC %s: %v", kind, err)
		}
	}
	j, err := openJob(t, 1, withSettings(func(s *Settings) { s.NIC, s.Prefix = Auto, "nobody's" }))
	if err != nil || j[0].Kind() != Host {
		t.Errorf("NIC auto without hardware: %v", err)
	}
	if _, err := openJob(t, 1, withSettings(func(s *Settings) { s.NIC = GPU })); !errors.Is(err, nic.ErrNoDevice) {
		t.Errorf("NIC gpu without a GPU: %v", err)
	}
}
