package ibgda

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/mlx5"
	"github.com/lgpu/lgpu/shmem/transport"
)

const (
	testShift = 16              // key entries of 64 KiB
	testHeap  = 16 << testShift // address space
	testPiece = 2 << testShift  // a piece of heap has two entries
)

// member is one PE of a test's job: a heap in memory of the process, a transport, and what a kernel would know.
type member struct {
	*Transport
	platform Platform
	heap     []byte
	state    layout.State
	posted   map[uint64]uint64 // blocks, by address of the queue
}

// job is PEs in one process, connected.
type job []*member

// options change the configuration of a PE.
type options func(*Config)

func withSettings(f func(*Settings)) options { return func(c *Config) { f(&c.Settings) } }

// memory is memory that a NIC writes: not Go's, whose race detector would miss that a completion comes after its data.
func memory(t testing.TB, n int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}

// openJob makes the transports of a job, unconnected.
func openJob(t testing.TB, pes int, change ...options) (job, error) {
	t.Helper()
	var j job
	t.Cleanup(func() {
		for _, m := range j {
			m.Close()
		}
	})
	for pe := range pes {
		heap := memory(t, testHeap)
		m := &member{heap: heap, platform: NewProcessor(), posted: map[uint64]uint64{}}
		c := Config{Settings: Defaults(), PE: pe, PEs: pes, HeapBase: addressOf(heap), HeapBytes: testHeap, KeyShift: testShift,
			Platform: m.platform, OneHost: true, Turn: pe, Log: t.Logf}
		c.NIC, c.Depth, c.MaxFetches = Host, 128, 16
		for _, f := range change {
			f(&c)
		}
		var err error
		if m.Transport, err = Open(c); err != nil {
			return j, err // those before are open
		}
		j = append(j, m)
	}
	return j, nil
}

// newJob makes a job, connects it and registers its first piece of heap.
func newJob(t testing.TB, pes int, change ...options) job {
	t.Helper()
	j, err := openJob(t, pes, change...)
	if err == nil {
		err = j.connect()
	}
	if err == nil {
		err = j.grow(0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func (j job) connect() error {
	used := slices.Repeat([]transport.Capability{transport.RMA | transport.AMO}, len(j))
	blobs := make([][][]byte, len(j))
	for pe, m := range j {
		var err error
		if blobs[pe], err = m.Endpoints(make([]transport.PeerInfo, len(j)), used); err != nil {
			return err
		}
	}
	for pe, m := range j {
		var from [][]byte
		for other := range j {
			from = append(from, blobs[other][pe])
		}
		if err := m.Connect(from); err != nil {
			return err
		}
	}
	return nil
}

// chunk is the piece of a PE's heap that begins with entry index.
func (m *member) chunk(index int) transport.Chunk {
	offset := uint64(index) << testShift
	return transport.Chunk{Index: index, Offset: offset, Bytes: testPiece, Address: addressOf(m.heap) + offset, Kind: transport.Host, FD: -1}
}

// grow registers and attaches a piece everywhere.
func (j job) grow(index int) error {
	var blobs [][]byte
	for _, m := range j {
		b, err := m.Register(m.chunk(index))
		if err != nil {
			return err
		}
		blobs = append(blobs, b)
	}
	for _, m := range j {
		if err := m.Attach(index, blobs); err != nil {
			return err
		}
	}
	return j.refresh()
}

// refresh takes the states, as a kernel launched now would.
func (j job) refresh() error {
	for pe, m := range j {
		m.state = layout.State{Version: layout.Version, PE: uint32(pe), PEs: uint32(len(j)), HeapBase: addressOf(m.heap), HeapBytes: testHeap}
		if err := m.State(&m.state); err != nil {
			return err
		}
	}
	return nil
}

// table reads entry i of a table in the device's memory.
func table[T any](address uint64, i int) *T {
	var x T
	b := hostBytes(address+uint64(i)*uint64(unsafe.Sizeof(x)), uint64(unsafe.Sizeof(x)))
	return (*T)(unsafe.Pointer(&b[0]))
}

// queue is queue i to a PE, as the device finds it.
func (m *member) queue(pe, i int) *layout.Queue {
	return table[layout.Queue](m.state.Queues, i*int(m.state.PEs)+pe)
}

// key looks a key up as the device does: inline, else in memory.
func key(inline *[layout.InlineKeys]layout.Key, address uint64, i int) layout.Key {
	if i < len(inline) && inline[i].End != 0 {
		return inline[i]
	}
	return *table[layout.Key](address, i)
}

func (m *member) localKey(offset uint64, nic uint32) layout.Key {
	return key(&m.state.LocalInline, m.state.LocalKeys, int(offset>>m.state.KeyShift)*int(m.state.NICs)+int(nic))
}

func (m *member) remoteKey(offset uint64, pe int, nic uint32) layout.Key {
	return key(&m.state.RemoteInline, m.state.RemoteKeys, (int(offset>>m.state.KeyShift)*int(m.state.PEs)+pe)*int(m.state.NICs)+int(nic))
}

// completionError is an error completion.
type completionError uint8

func (e completionError) Error() string { return mlx5.SyndromeText(uint8(e)) }

// post writes an entry to a queue, posts it the way the queue says, and waits for its completion.
func (m *member) post(q *layout.Queue, e *mlx5.Entry) error {
	begin := m.posted[q.WQ]
	e.Queue, e.Flags = q.Number, e.Flags|mlx5.CtrlCompletion
	end, err := e.Put(hostBytes(q.WQ, uint64(q.Depth)*mlx5.BlockBytes), begin)
	if err != nil {
		return err
	}
	m.posted[q.WQ] = end
	doorbell := (*uint64)(unsafe.Pointer(&hostBytes(q.Doorbell, 8)[0]))
	if q.Flags&layout.QueueHostPosts != 0 {
		atomic.StoreUint64(doorbell, end)
	} else {
		atomic.StoreUint32((*uint32)(unsafe.Pointer(&hostBytes(q.Record, 4)[0])), bits.ReverseBytes32(uint32(end&0xffff)))
		b := mlx5.Doorbell{Index: uint16(end), Queue: q.Number}.Bytes()
		atomic.StoreUint64(doorbell, binary.NativeEndian.Uint64(b[:]))
	}
	last := (*uint32)(unsafe.Pointer(&hostBytes(q.CQ+60, 4)[0])) // counter, signature, owner
	for deadline := time.Now().Add(20 * time.Second); ; {
		word := atomic.LoadUint32(last)
		counter, opcode := bits.ReverseBytes16(uint16(word)), uint8(word>>28)
		if opcode == mlx5.CompletionError {
			return completionError(hostBytes(q.CQ, 64)[mlx5.CompletionSyndrome])
		}
		if counter == uint16(begin) && opcode == mlx5.CompletionRequester {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("queue %#x: entry %d: counter %#x, opcode %#x after 20 s", q.Number, begin, counter, opcode)
		}
		time.Sleep(5 * time.Microsecond)
	}
}

// data is a range of the member's own heap as a data segment.
func (m *member) data(q *layout.Queue, offset uint64, n int) []mlx5.Data {
	k := m.localKey(offset, q.NIC)
	return []mlx5.Data{{Bytes: uint32(n), Key: bits.ReverseBytes32(k.Key), Address: m.state.HeapBase + offset}}
}

// remote makes e address a PE's heap.
func (m *member) remote(e *mlx5.Entry, q *layout.Queue, offset uint64) *mlx5.Entry {
	pe := int(q.PE)
	e.RemoteAddress = *table[uint64](m.state.Remote, pe) + offset
	e.RemoteKey = bits.ReverseBytes32(m.remoteKey(offset, pe, q.NIC).Key)
	return e
}

// put writes n bytes of the own heap to a PE's.
func (m *member) put(pe, i int, dst, src uint64, n int) error {
	q := m.queue(pe, i)
	return m.post(q, m.remote(&mlx5.Entry{Opcode: mlx5.OpWrite, Data: m.data(q, src, n)}, q, dst))
}

// get reads n bytes of a PE's heap to the own.
func (m *member) get(pe, i int, dst, src uint64, n int) error {
	q := m.queue(pe, i)
	return m.post(q, m.remote(&mlx5.Entry{Opcode: mlx5.OpRead, Data: m.data(q, dst, n)}, q, src))
}

// fetchAdd adds to a word of a PE's heap; the old value goes to the queue's internal buffer.
func (m *member) fetchAdd(pe, i int, dst, value uint64) (uint64, error) {
	q := m.queue(pe, i)
	cell := q.Ibuf + layout.IbufCell
	e := m.remote(&mlx5.Entry{Opcode: mlx5.OpFetchAdd, Atomic: mlx5.Atomic{Bytes: 8, Add: value},
		Data: []mlx5.Data{{Bytes: 8, Key: bits.ReverseBytes32(q.IbufKey), Address: cell}}}, q, dst)
	err := m.post(q, e)
	return *table[uint64](cell, 0), err
}
