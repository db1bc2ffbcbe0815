package shmem

import (
	"github.com/lgpu/lgpu/shmem/kernels"
	"github.com/lgpu/lgpu/shmem/layout"
)

// operations are the blocking calls with one PE. Where a PE's memory is mapped they are copies; elsewhere a small
// kernel posts to the network transport's queues. They share the PE's own stream, and its lock: executor.own.
type operations struct {
	job     *job
	exec    *executor
	routes  *routes
	heap    *symmetricHeap
	buffers *buffers
}

// target checks a call on bytes at a heap address of a PE, and returns where that is mapped here, 0 if it is not. For
// no bytes any address will do.
func (o *operations) target(op string, address, bytes uint64, pe int) (uint64, error) {
	if err := o.job.check(op); err != nil {
		return 0, err
	}
	if err := o.job.checkPE(op, pe); err != nil || bytes == 0 {
		return 0, err
	}
	offset, err := o.heap.offset(op, address, bytes, pe)
	if err != nil || o.routes.mapped[pe] == 0 {
		return 0, err
	}
	return o.routes.mapped[pe] + offset, nil
}

// reachable says whether queues can use memory as the local side.
func (o *operations) reachable(address, bytes uint64) bool {
	return o.heap.holds(address, bytes) || o.buffers.cover(address, bytes)
}

// stage is memory of the heap for values on their way to or from queues. own.mu guards it.
func (o *operations) stage() uint64 { return o.heap.heapBase + o.heap.reserved.stage }

// rmaLocked queues an operation with one PE on the PE's own stream. The caller holds own.mu.
func (o *operations) rmaLocked(op string, what kernels.RMAOperation, a with) error {
	return o.exec.launcher.runRMA(op, what, a, o.exec.own.stream)
}

// runRMA does an operation with one PE and waits for its end.
func (o *operations) runRMA(op string, what kernels.RMAOperation, a with) error {
	own := &o.exec.own
	own.mu.Lock()
	defer own.mu.Unlock()
	if err := o.rmaLocked(op, what, a); err != nil {
		return err
	}
	return o.exec.finish(op, own.stream)
}

// Put copies bytes from a local address to dest in a PE's heap, and returns when they are there. The source may be any
// memory.
func (o *operations) Put(dest, source, bytes uint64, pe int) error {
	return o.put("put", dest, source, bytes, pe, true)
}

// PutNBI is Put that may return before the bytes are there; Quiet waits for them. The source must not change until
// then.
func (o *operations) PutNBI(dest, source, bytes uint64, pe int) error {
	return o.put("put_nbi", dest, source, bytes, pe, false)
}

func (o *operations) put(op string, dest, source, bytes uint64, pe int, wait bool) error {
	to, err := o.target(op, dest, bytes, pe)
	if err != nil || bytes == 0 {
		return err
	}
	return o.putTo(op, to, dest, source, bytes, pe, wait)
}

// putTo is put to a checked address, which is mapped at to unless that is 0.
func (o *operations) putTo(op string, to, dest, source, bytes uint64, pe int, wait bool) error {
	own := &o.exec.own
	own.mu.Lock()
	defer own.mu.Unlock()
	var err error
	switch {
	case to != 0:
		err = o.exec.copyOn(to, source, bytes, own.stream)
	case o.reachable(source, bytes):
		err = o.rmaLocked(op, kernels.Put, with{dest: dest, source: source, bytes: bytes, pe: uint32(pe)})
	default: // through memory that the NIC knows
		for stage := o.stage(); bytes > 0 && err == nil; {
			n := min(bytes, stageBytes)
			if err = o.exec.copyOn(stage, source, n, own.stream); err == nil {
				err = o.rmaLocked(op, kernels.Put, with{dest: dest, source: stage, bytes: n, pe: uint32(pe)})
			}
			dest, source, bytes = dest+n, source+n, bytes-n
		}
	}
	if err != nil || !wait {
		return wrap(op, err)
	}
	return o.exec.finish(op, own.stream)
}

// Get copies bytes from source in a PE's heap to a local address, and returns when they are there.
func (o *operations) Get(dest, source, bytes uint64, pe int) error {
	return o.get("get", dest, source, bytes, pe, true)
}

// GetNBI is Get that may return before the bytes are there; Quiet waits for them.
func (o *operations) GetNBI(dest, source, bytes uint64, pe int) error {
	return o.get("get_nbi", dest, source, bytes, pe, false)
}

func (o *operations) get(op string, dest, source, bytes uint64, pe int, wait bool) error {
	from, err := o.target(op, source, bytes, pe)
	if err != nil || bytes == 0 {
		return err
	}
	own := &o.exec.own
	own.mu.Lock()
	defer own.mu.Unlock()
	switch {
	case from != 0:
		err = o.exec.copyOn(dest, from, bytes, own.stream)
	case o.reachable(dest, bytes):
		err = o.rmaLocked(op, kernels.Get, with{dest: dest, source: source, bytes: bytes, pe: uint32(pe)})
	default:
		for stage := o.stage(); bytes > 0 && err == nil; {
			n := min(bytes, stageBytes)
			if err = o.rmaLocked(op, kernels.Get, with{dest: stage, source: source, bytes: n, pe: uint32(pe)}); err == nil {
				err = o.exec.copyOn(dest, stage, n, own.stream)
			}
			dest, source, bytes = dest+n, source+n, bytes-n
		}
	}
	if err != nil || !wait {
		return wrap(op, err)
	}
	return o.exec.finish(op, own.stream)
}

// width checks the size of an element.
func width(op string, n int) error {
	switch n {
	case 1, 2, 4, 8:
		return nil
	}
	return fault(layout.StatusArgument, op, -1, "elements of %d bytes: 1, 2, 4 or 8", n)
}

// unsigned is the type of elements of n bytes of which only the bits matter.
func unsigned(n int) uint32 {
	switch n {
	case 1:
		return layout.TypeUint8
	case 2:
		return layout.TypeUint16
	case 4:
		return layout.TypeUint32
	}
	return layout.TypeUint64
}

// P writes one element of 1, 2, 4 or 8 bytes, given by its bits, to dest in a PE's heap.
func (o *operations) P(dest, value uint64, size, pe int) error {
	const op = "p"
	if err := width(op, size); err != nil {
		return err
	}
	to, err := o.target(op, dest, uint64(size), pe)
	if err != nil {
		return err
	}
	if o.exec.plain() && to != 0 {
		storeElement(to, value, size)
		return nil
	}
	own := &o.exec.own
	own.mu.Lock()
	defer own.mu.Unlock()
	storeElement(own.stage, value, size)
	if to != 0 {
		err = o.exec.copyOn(to, own.stage, uint64(size), own.stream)
	} else {
		stage := o.stage()
		if err = o.exec.copyOn(stage, own.stage, uint64(size), own.stream); err == nil {
			err = o.rmaLocked(op, kernels.Put, with{dest: dest, source: stage, bytes: uint64(size), pe: uint32(pe)})
		}
	}
	if err != nil {
		return wrap(op, err)
	}
	return o.exec.finish(op, own.stream) // the staging memory is free again
}

// G reads one element of 1, 2, 4 or 8 bytes from source in a PE's heap, and returns its bits.
func (o *operations) G(source uint64, size, pe int) (uint64, error) {
	const op = "g"
	if err := width(op, size); err != nil {
		return 0, err
	}
	from, err := o.target(op, source, uint64(size), pe)
	if err != nil {
		return 0, err
	}
	if o.exec.plain() && from != 0 {
		return loadElement(from, size), nil
	}
	own := &o.exec.own
	own.mu.Lock()
	defer own.mu.Unlock()
	if from == 0 {
		from = o.stage()
		err = o.rmaLocked(op, kernels.Get, with{dest: from, source: source, bytes: uint64(size), pe: uint32(pe)})
	}
	if err == nil {
		err = o.exec.copyOn(own.stage, from, uint64(size), own.stream)
	}
	if err != nil {
		return 0, wrap(op, err)
	}
	if err := o.exec.finish(op, own.stream); err != nil {
		return 0, err
	}
	return loadElement(own.stage, size), nil
}

// Quiet waits until all that the host, and kernels that have ended, sent to other PEs has arrived.
func (o *operations) Quiet() error { return o.quiet("quiet") }

// Fence orders what the host sends to a PE: what it sent before the call arrives before what it sends after.
func (o *operations) Fence() error {
	if !o.routes.queued { // mapped memory is written in the order of the PE's own stream
		return o.job.check("fence")
	}
	return o.quiet("fence")
}

func (o *operations) quiet(op string) error {
	if err := o.job.check(op); err != nil {
		return err
	}
	if o.routes.queued && !o.exec.plain() {
		return o.runRMA(op, kernels.Quiet, with{pe: layout.AllPEs})
	}
	own := &o.exec.own
	own.mu.Lock()
	defer own.mu.Unlock()
	return o.exec.finish(op, own.stream)
}
