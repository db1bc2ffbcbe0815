package shmem

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport/p2p"
)

// executor carries a PE's work out: copies by the driver and kernels by the launcher where the PE has a GPU, else
// copies by the host's processor.
type executor struct {
	job    *job
	ctx    *cuda.Context // nil without a GPU
	d      *cuda.Driver
	memops bool // streams can write and wait for words

	launcher *launcher

	own ownStream

	// pinned is the host memory that the GPU reaches: the control block, then stageBytes for values.
	pinned uint64
}

// ownStream is the PE's own stream, for blocking calls with one PE, and the memory for the values that they pass.
type ownStream struct {
	// mu is held throughout a call that uses the stream, none of which waits for other PEs.
	mu sync.Mutex
	// +checklocks:mu
	stream uintptr
	// +checklocks:mu
	stage uint64 // host memory of stageBytes that the GPU reaches
}

const (
	// stageBytes is room for what blocking calls pass between host and device.
	stageBytes = 64 << 10
	// controlBytes is the control block's part of the pinned memory.
	controlBytes = 4096
)

// openExecutor finds the GPU and the context to work in.
func openExecutor(j *job, c *Config) (*executor, error) {
	x := &executor{job: j}
	x.launcher = &launcher{exec: x}
	if c.NoGPU {
		return x, nil
	}
	d, n, err := findDriver()
	if err != nil {
		// A machine without GPUs is one thing, a GPU or driver that does not start another: a PE that went on without
		// it would be far slower than what was asked for, and nobody would know why.
		none := errors.Is(err, errNoDevice) || errors.Is(err, cuda.ErrNoLibrary) || cuda.Code(err) == cuda.NoDevice
		if !none {
			return x, fmt.Errorf("the GPU cannot be used (LSHMEM_DEVICE=none at all PEs does without): %w", err)
		}
		if c.Memory == MemoryDevice || c.Device >= 0 {
			return x, err
		}
		j.log.Debug("no GPU", "pe", j.rank, "error", err)
		return x, nil
	}
	if c.Device >= n {
		return x, fault(layout.StatusArgument, "init", -1, "LSHMEM_DEVICE=%d: there are GPUs 0 to %d", c.Device, n-1)
	}
	x.d = d
	if x.ctx, err = chooseContext(d, n, c.Device, j.rank); err != nil {
		return x, err
	}
	return x, x.describe(c)
}

// errNoDevice is wrapped by the error about a driver without devices.
var errNoDevice = fmt.Errorf("%w: it has no device", cuda.ErrNoDriver)

// findDriver loads the driver and counts its devices.
func findDriver() (*cuda.Driver, int, error) {
	d, err := cuda.Load()
	if err != nil {
		return nil, 0, err
	}
	n, err := d.DeviceCount()
	if err == nil && n == 0 {
		err = errNoDevice
	}
	return d, n, err
}

// chooseContext is the context to work in: the thread's if it is on the wanted device, else the device's primary one.
// wanted is an ordinal, or -1 for any of n.
func chooseContext(d *cuda.Driver, n, wanted, rank int) (*cuda.Context, error) {
	current, err := d.Current()
	if err != nil {
		return nil, err
	}
	if wanted < 0 && current != nil {
		return current, nil
	}
	if wanted < 0 {
		wanted = localRank(rank) % n
	}
	dev, err := d.DeviceGet(wanted)
	if err != nil {
		return nil, err
	}
	if current != nil && current.Device == dev {
		return current, nil
	}
	return d.Primary(dev)
}

// localRank is the PE's number on its node if a launcher says so, else its number.
func localRank(rank int) int {
	for _, name := range []string{"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"} {
		var n int
		if _, err := fmt.Sscanf(os.Getenv(name), "%d", &n); err == nil && n >= 0 {
			return n
		}
	}
	return rank
}

// describe notes what the GPU is and can do, for this PE and for the others.
func (x *executor) describe(c *Config) error {
	self, d, device := &x.job.self, x.d, x.ctx.Device
	self.Ordinal = device
	var err error
	if self.GPU, err = d.DeviceUUID(device); err != nil {
		return err
	}
	if self.PCI, err = d.DevicePCI(device); err != nil {
		return err
	}
	vmm, err := d.DeviceAttribute(cuda.VirtualMemoryManagement, device)
	if err != nil {
		return err
	}
	fds, err := d.DeviceAttribute(cuda.HandleTypePosixFileDescriptor, device)
	if err != nil {
		fds = vmm // older drivers, which have both or none, do not know the attribute
	}
	for _, a := range []cuda.Attribute{cuda.CanUse64BitStreamMemOps, cuda.CanUse64BitStreamMemOpsV1} {
		can, err := d.DeviceAttribute(a, device)
		x.memops = x.memops || err == nil && can != 0 && d.Has("cuStreamWriteValue64_v2")
	}
	self.VMM = vmm != 0 && fds != 0 && !c.DisableVMM
	return nil
}

// start makes the PE's stream, the control block and the memory for values.
func (x *executor) start() error {
	x.own.mu.Lock()
	defer x.own.mu.Unlock()
	var base uint64
	var err error
	if x.plain() {
		base, err = p2p.AllocateHost(controlBytes + stageBytes)
	} else {
		err = x.ctx.Do(func() (err error) {
			if x.own.stream, err = x.d.StreamCreate(cuda.StreamNonBlocking); err != nil {
				return err
			}
			base, err = x.d.HostAlloc(controlBytes + stageBytes)
			return err
		})
	}
	if err != nil {
		return err
	}
	clear(cuda.Bytes(base, controlBytes))
	x.pinned, x.own.stage = base, base+controlBytes
	x.job.control = hostPointer[layout.Control](base)
	return nil
}

// close gives back what start made and the launcher loaded.
func (x *executor) close() error {
	x.own.mu.Lock()
	defer x.own.mu.Unlock()
	x.launcher.mu.Lock()
	defer x.launcher.mu.Unlock()
	base := x.pinned
	if base == 0 {
		if x.own.stream != 0 {
			return x.ctx.Do(func() error { return x.d.StreamDestroy(x.own.stream) })
		}
		return nil
	}
	// No call reads the control block any more: errors of later calls say "after Finalize".
	x.pinned = 0
	x.job.control = &layout.Control{Status: atomic.LoadUint32(&x.job.control.Status)}
	if x.plain() {
		return p2p.ReleaseHost(base, controlBytes+stageBytes)
	}
	return x.ctx.Do(func() error {
		return errors.Join(x.launcher.unloadLocked(), x.d.StreamDestroy(x.own.stream), x.d.HostFree(base))
	})
}

// release gives the context back.
func (x *executor) release() error {
	if x.plain() {
		return nil
	}
	return x.ctx.Release()
}

// Context is the CUDA context that the PE works in, nil for a PE without a GPU.
func (x *executor) Context() *cuda.Context { return x.ctx }

// plain says whether the host's processor does the PE's work: there is no GPU, so that the heap lies in host memory.
func (x *executor) plain() bool { return x.ctx == nil }

// inContext runs f with the PE's context current, and makes an Error of what it returns.
func (x *executor) inContext(op string, f func() error) error {
	entered, err := x.ctx.Enter()
	if err != nil {
		return wrap(op, err)
	}
	defer x.ctx.Leave(entered)
	return wrap(op, f())
}

// finish waits for the PE's own stream or a team's, and reports what kernels found. The stream's lock is held.
func (x *executor) finish(op string, stream uintptr) error {
	if x.plain() {
		return x.job.check(op)
	}
	entered, err := x.ctx.Enter()
	if err != nil {
		return wrap(op, err)
	}
	err = x.d.StreamSynchronize(stream)
	x.ctx.Leave(entered)
	if err != nil {
		return wrap(op, errors.Join(err, x.job.check(op)))
	}
	return x.job.check(op)
}

// drain waits for what blocking calls have queued.
func (x *executor) drain() error {
	if x.plain() {
		return nil
	}
	x.own.mu.Lock()
	defer x.own.mu.Unlock()
	return x.ctx.Do(func() error { return x.d.StreamSynchronize(x.own.stream) })
}

// copyOn copies in the order of a stream, or at once without a GPU.
func (x *executor) copyOn(to, from, bytes uint64, stream uintptr) error {
	if bytes == 0 {
		return nil
	}
	if x.plain() {
		return touch(func() { copy(cuda.Bytes(to, bytes), cuda.Bytes(from, bytes)) })
	}
	entered, err := x.ctx.Enter()
	if err != nil {
		return err
	}
	err = x.d.CopyAsync(to, from, bytes, stream)
	x.ctx.Leave(entered)
	return err
}

// write copies b to any address and returns when it is there.
func (x *executor) write(to uint64, b []byte) error {
	if x.plain() {
		copy(cuda.Bytes(to, uint64(len(b))), b)
		return nil
	}
	x.own.mu.Lock()
	defer x.own.mu.Unlock()
	for len(b) > 0 {
		n := copy(cuda.Bytes(x.own.stage, stageBytes), b)
		if err := x.copyNowLocked(to, x.own.stage, uint64(n)); err != nil {
			return err
		}
		to, b = to+uint64(n), b[n:]
	}
	return nil
}

// read copies from any address to b.
func (x *executor) read(b []byte, from uint64) error {
	if x.plain() {
		copy(b, cuda.Bytes(from, uint64(len(b))))
		return nil
	}
	x.own.mu.Lock()
	defer x.own.mu.Unlock()
	for len(b) > 0 {
		n := min(len(b), stageBytes)
		if err := x.copyNowLocked(x.own.stage, from, uint64(n)); err != nil {
			return err
		}
		copy(b, cuda.Bytes(x.own.stage, uint64(n)))
		from, b = from+uint64(n), b[n:]
	}
	return nil
}

// copyNowLocked copies by the PE's own stream and waits for the end. The caller holds own.mu.
func (x *executor) copyNowLocked(to, from, bytes uint64) error {
	if err := x.copyOn(to, from, bytes, x.own.stream); err != nil {
		return err
	}
	return x.ctx.Do(func() error { return x.d.StreamSynchronize(x.own.stream) })
}

// zero clears memory and returns when that is done.
func (x *executor) zero(at, bytes uint64) error {
	if x.plain() {
		clear(cuda.Bytes(at, bytes))
		return nil
	}
	x.own.mu.Lock()
	defer x.own.mu.Unlock()
	return x.ctx.Do(func() error {
		if err := x.d.SetAsync(at, 0, bytes, x.own.stream); err != nil {
			return err
		}
		return x.d.StreamSynchronize(x.own.stream)
	})
}

// readWord reads one word as a whole.
func (x *executor) readWord(at uint64) (uint64, error) {
	if x.plain() {
		return atomic.LoadUint64(hostPointer[uint64](at)), nil
	}
	var b [8]byte
	err := x.read(b[:], at)
	return *(*uint64)(unsafe.Pointer(&b)), err
}

// writeWord writes one word as a whole.
func (x *executor) writeWord(at, value uint64) error {
	if x.plain() {
		storeWord(at, value)
		return nil
	}
	return x.write(at, (*[8]byte)(unsafe.Pointer(&value))[:])
}
