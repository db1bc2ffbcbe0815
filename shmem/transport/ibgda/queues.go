package ibgda

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/mlx5"
	"github.com/lgpu/lgpu/shmem/transport/ibgda/nic"
)

// allocate makes the blocks of all NICs, the words of the host thread, and the device's tables.
func (t *Transport) allocate(reached int) error {
	c := &t.c
	if err := t.tables.allocate(c, len(t.nics)); err != nil {
		return err
	}
	if t.handler == HandlerHost && reached > 0 {
		var err error
		if t.words, err = c.Platform.AllocateHost(uint64(len(t.queues)) * wordStride); err != nil {
			return fmt.Errorf("ibgda: %d words to post by: %w", len(t.queues), err)
		}
	}
	for d, n := range t.nics {
		count := uint64((c.QueuesPerPE-d+len(t.nics)-1)/len(t.nics)) * uint64(reached)
		if count == 0 {
			continue
		}
		strides := [kinds]uint64{blockWQ: uint64(c.Depth) * mlx5.BlockBytes, blockCQ: uint64(c.Depth) * mlx5.BlockBytes,
			blockRecord: recordStride, blockIbuf: uint64(1+c.MaxFetches) * layout.IbufCell}
		if n.caps.MemoryDoorbell {
			strides[blockDoorbell] = wordStride
		}
		for kind, stride := range strides {
			if stride == 0 {
				continue
			}
			if err := n.allocate(t, kind, stride, count*stride); err != nil {
				return fmt.Errorf("ibgda: %s of %d queue pairs on %s: %w", blockNames[kind], count, n.Info().Name, err)
			}
		}
	}
	return nil
}

var blockNames = [kinds]string{"work queues", "completion queues", "doorbell records", "doorbells", "internal buffers"}

// allocate makes one block.
func (n *port) allocate(t *Transport, kind int, stride, bytes uint64) error {
	b := &n.blocks[kind]
	p := t.c.Platform
	allocate := p.AllocateDevice
	if t.where == QueuesHost && kind != blockIbuf {
		allocate = p.AllocateHost
	}
	buffer, err := allocate(bytes)
	if err != nil {
		return err
	}
	b.Buffer, b.stride = buffer, stride
	if kind == blockCQ {
		// A counter of -1: nothing completed yet.
		if err := t.fill(b.Buffer, 0xff); err != nil {
			return err
		}
	}
	return t.exported(b.Buffer, func(buffer nic.Buffer) (err error) {
		if kind == blockIbuf {
			b.memory, err = n.Register(buffer, nic.LocalWrite)
		} else {
			b.queue, err = n.RegisterQueues(buffer)
		}
		return err
	})
}

// fill sets every byte of a buffer.
func (t *Transport) fill(b nic.Buffer, value byte) error {
	const step = 1 << 20
	pattern := make([]byte, min(b.Bytes, step))
	for i := range pattern {
		pattern[i] = value
	}
	for at := uint64(0); at < b.Bytes; at += step {
		if err := t.c.Platform.Write(b.Address+at, pattern[:min(step, b.Bytes-at)]); err != nil {
			return err
		}
	}
	return nil
}

// exported calls f with a buffer and, for device memory, its dma-buf, which it closes afterwards.
func (t *Transport) exported(b nic.Buffer, f func(nic.Buffer) error) error {
	b.FD = -1
	if b.Host == nil && !t.c.NoDMABuf && t.provider.Name() == MLX5 {
		exported, err := t.c.Platform.Export(b.Address, b.Bytes)
		if err != nil {
			return err
		}
		b.FD, b.Offset = exported.FD, exported.Offset
		if b.FD >= 0 {
			defer closeFD(b.FD)
		}
	}
	return f(b)
}

// create makes queue pair i to a PE, the k-th on NIC d.
func (t *Transport) create(i, pe, d int, k uint64) (*queue, error) {
	n := t.nics[d]
	position := func(kind int) nic.Position {
		return nic.Position{Memory: n.blocks[kind].queue, Offset: k * n.blocks[kind].stride}
	}
	address := func(kind int) uint64 { return n.blocks[kind].Address + k*n.blocks[kind].stride }
	created, err := n.CreateQueue(nic.QueueConfig{Depth: uint32(t.c.Depth), WQ: position(blockWQ), CQ: position(blockCQ),
		Record: position(blockRecord), Doorbell: position(blockDoorbell)})
	if err != nil {
		return nil, err
	}
	q := &queue{Queue: created, device: layout.Queue{
		WQ: address(blockWQ), CQ: address(blockCQ), Record: address(blockRecord) + nic.RecordSend, Ibuf: address(blockIbuf),
		Number: created.Number(), Depth: uint32(t.c.Depth), Batch: uint32(t.c.Batch), IbufCells: uint32(t.c.MaxFetches),
		IbufKey: networkOrder(n.blocks[blockIbuf].memory.LocalKey()), PE: uint32(pe), NIC: uint32(d),
	}}
	if q.device.Doorbell, err = t.doorbell(created, i*t.c.PEs+pe, n, address(blockDoorbell)); err != nil {
		return nil, errors.Join(err, created.Close())
	}
	if t.where == QueuesHost {
		q.device.Flags |= layout.QueueHostMemory
	}
	if t.handler == HandlerHost {
		q.device.Flags |= layout.QueueHostPosts
	}
	if n.caps.DataDirect || !n.caps.Ordered && !t.c.Platform.WritesOrdered() {
		q.device.Flags |= layout.QueueFlush
	}
	return q, nil
}

// doorbell is what the device writes to post: a word for the host thread, memory, or a mapped register.
func (t *Transport) doorbell(q nic.Queue, index int, n *port, memory uint64) (uint64, error) {
	if t.handler == HandlerHost {
		return t.words.Address + uint64(index)*wordStride, nil
	}
	if n.caps.MemoryDoorbell {
		return memory, nil
	}
	register := q.Register()
	if err := t.mapRegister(register); err != nil {
		return 0, fmt.Errorf("map the doorbell for the device: %w", err)
	}
	page := register &^ (nic.RegisterBytes - 1)
	return t.registers[page] + register - page, nil
}

// networkOrder is a key as the device copies it into a work request.
func networkOrder(key uint32) uint32 {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], key)
	return binary.NativeEndian.Uint32(b[:])
}
