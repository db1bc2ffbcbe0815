package ibgda

import (
	"fmt"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport/ibgda/nic"
)

// tables are what the device looks up, in one allocation of its memory, and the host's copies.
type tables struct {
	p       Platform
	memory  nic.Buffer
	entries uint64 // of heap; 0: not allocated
	pes     uint64
	nics    uint64
	shift   uint // log2 of the bytes of an entry

	queues, bases, localKeys, remoteKeys, local uint64 // addresses

	inlineLocal, inlineRemote [layout.InlineKeys]layout.Key // copies of the first entries
	locals                    [maxLocals]layout.Local
	localCount                uint32 // of entries that ever were in use
}

// allocate makes room for the largest heap.
func (t *tables) allocate(c *Config, nics int) error {
	t.p, t.pes, t.nics, t.shift = c.Platform, uint64(c.PEs), uint64(nics), c.KeyShift
	entries := t.count(c.HeapBytes)
	at := uint64(0)
	part := func(count, size uint64) uint64 {
		offset := at
		at = (at + count*size + 255) &^ 255
		return offset
	}
	t.queues = part(uint64(c.QueuesPerPE)*t.pes, uint64(unsafe.Sizeof(layout.Queue{})))
	t.bases = part(t.pes, 8)
	t.localKeys = part(entries*t.nics, uint64(unsafe.Sizeof(layout.Key{})))
	t.remoteKeys = part(entries*t.pes*t.nics, uint64(unsafe.Sizeof(layout.Key{})))
	t.local = part(maxLocals, uint64(unsafe.Sizeof(layout.Local{})))
	memory, err := c.Platform.AllocateDevice(at)
	if err != nil {
		return fmt.Errorf("ibgda: tables of queues and of keys for a heap of %#x bytes: %w", c.HeapBytes, err)
	}
	t.memory, t.entries = memory, entries
	for _, p := range []*uint64{&t.queues, &t.bases, &t.localKeys, &t.remoteKeys, &t.local} {
		*p += memory.Address
	}
	return nil
}

func (t *tables) free() error {
	if t.entries == 0 {
		return nil
	}
	t.entries = 0
	return t.p.Free(t.memory)
}

// write writes Go values to the device's memory.
func write[T any](p Platform, address uint64, values []T) error {
	if len(values) == 0 {
		return nil
	}
	return p.Write(address, unsafe.Slice((*byte)(unsafe.Pointer(&values[0])), len(values)*int(unsafe.Sizeof(values[0]))))
}

// publish writes the queues and the heaps' addresses.
func (t *tables) publish(queues []*queue, bases []uint64) error {
	list := make([]layout.Queue, len(queues))
	for i, q := range queues {
		if q != nil {
			list[i] = q.device
		}
	}
	if err := write(t.p, t.queues, list); err != nil {
		return fmt.Errorf("ibgda: write %d queues to the device: %w", len(list), err)
	}
	if err := write(t.p, t.bases, bases); err != nil {
		return fmt.Errorf("ibgda: write the addresses of %d heaps to the device: %w", len(bases), err)
	}
	return nil
}

// set writes the keys of a piece: own by NIC, remote by PE and NIC; a PE without any gets none.
func (t *tables) set(offset, bytes uint64, own []nic.Memory, remote [][]uint32) error {
	one := make([]layout.Key, t.nics)
	for d, m := range own {
		one[d] = layout.Key{End: offset + bytes, Key: networkOrder(m.LocalKey())}
	}
	all := make([]layout.Key, t.pes*t.nics)
	for pe, keys := range remote {
		for d, key := range keys {
			all[uint64(pe)*t.nics+uint64(d)] = layout.Key{End: offset + bytes, Key: networkOrder(key)}
		}
	}
	return t.put(offset, bytes, one, all)
}

// clear removes the keys of a piece.
func (t *tables) clear(offset, bytes uint64) error {
	return t.put(offset, bytes, make([]layout.Key, t.nics), make([]layout.Key, t.pes*t.nics))
}

// count is how many entries a piece has.
func (t *tables) count(bytes uint64) uint64 { return (bytes + 1<<t.shift - 1) >> t.shift }

// put writes the same keys for every entry of a piece, the last of which may be a part.
func (t *tables) put(offset, bytes uint64, one, all []layout.Key) error {
	first, count := offset>>t.shift, t.count(bytes)
	local := make([]layout.Key, 0, count*t.nics)
	remote := make([]layout.Key, 0, count*t.nics*t.pes)
	for range count {
		local, remote = append(local, one...), append(remote, all...)
	}
	copyInline(&t.inlineLocal, first*t.nics, local)
	copyInline(&t.inlineRemote, first*t.nics*t.pes, remote)
	size := uint64(unsafe.Sizeof(layout.Key{}))
	if err := write(t.p, t.localKeys+first*t.nics*size, local); err != nil {
		return err
	}
	return write(t.p, t.remoteKeys+first*t.nics*t.pes*size, remote)
}

// copyInline keeps the entries that the State has too.
func copyInline(inline *[layout.InlineKeys]layout.Key, at uint64, keys []layout.Key) {
	if at < uint64(len(inline)) {
		copy(inline[at:], keys)
	}
}

// setLocal writes a buffer outside of the heap. Kernels may look meanwhile: an entry that ends at 0 has no addresses.
func (t *tables) setLocal(index int, l layout.Local) error {
	at := t.local + uint64(index)*uint64(unsafe.Sizeof(l))
	end := at + uint64(unsafe.Offsetof(l.End))
	unended := l
	unended.End = 0
	err := write(t.p, end, []uint64{0})
	if err == nil {
		err = write(t.p, at, []layout.Local{unended})
	}
	if err == nil && l.End != 0 {
		err = write(t.p, end, []uint64{l.End})
	}
	if err != nil {
		return err
	}
	t.locals[index] = l
	t.localCount = max(t.localCount, uint32(index)+1)
	return nil
}

// state fills in the device state; permanent is the number of heap entries whose keys may be inline.
func (t *tables) state(s *layout.State, permanent uint64) {
	s.Queues, s.Remote, s.LocalKeys, s.RemoteKeys = t.queues, t.bases, t.localKeys, t.remoteKeys
	s.Local, s.LocalCount = t.local, t.localCount
	s.LocalInline, s.RemoteInline = [layout.InlineKeys]layout.Key{}, [layout.InlineKeys]layout.Key{}
	copy(s.LocalInline[:], t.inlineLocal[:min(layout.InlineKeys, permanent*t.nics)])
	copy(s.RemoteInline[:], t.inlineRemote[:min(layout.InlineKeys, permanent*t.nics*t.pes)])
}
