// Package gpu is the software HCA as a kernel: it serves queues in GPU memory where there is no NIC, by loads and
// stores on memory that is mapped into the GPU: its own, that of GPUs it reaches by NVLink or PCIe, and host memory. A
// CPU cannot do that, as it cannot see the memory of most GPUs.
//
//	d, err := gpu.New(gpu.Config{Driver: driver, Context: context})
//	key, err := d.RegisterMemory(start, bytes, access)     // what this side's queues may use
//	err = d.SetRemote(space, gpu.Region{…})                // what another side registered, mapped here
//	q, err := d.CreateQueue(gpu.QueueConfig{…})
//	err = q.Connect(space)                                 // entries are executed
//
// # The kernel
//
// One block, whose warps share the queues; each queue is one warp's. It does with an entry what shmem/hca does, in
// order, with a fence between two entries of a queue, so that what the second one stores is never seen without the
// first one's.
//
// A kernel that never ends would hang whoever waits for all work of its context (cuCtxSynchronize, cuMemFree). So a run
// ends after a slice of time, and the host starts the next at once; between two runs nothing is lost, as all state is
// in memory. The kernel is launched into a stream of its own that does not synchronize with the default stream.
//
// # Concurrency
//
// Methods are safe for concurrent use. Memory that is registered, and memory of queues, is in use until its Deregister
// or Close has returned.
package gpu

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/hca"
	"github.com/lgpu/lgpu/shmem/hca/gpu/state"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/mlx5"
	"github.com/lgpu/lgpu/shmem/module"
)

//go:generate go run ./gen

//go:embed hca.ptx.gz
var packed []byte

const kernelName = "lshmem_hca"

// Errors.
var (
	ErrClosed = errors.New("closed")
	ErrFull   = errors.New("the table is full")
)

// Config is what a device is made with. Zero values stand for the defaults.
type Config struct {
	Driver  *cuda.Driver
	Context *cuda.Context // whose GPU runs the kernel
	Queues  int           // most queues; 256
	Spaces  int           // most other sides; 64
	Keys    int           // most keys of a side; 1024
	Warps   int           // of the kernel's block, which share the queues; 16, at most state.MaxWarps
	// Slice is how long a run of the kernel lasts; 100 ms.
	Slice time.Duration
	// Idle is how long a warp without work sleeps at most before it looks again; 200 ns.
	Idle time.Duration
	// Answer is how long the kernel may take to notice a change; 30 s.
	Answer time.Duration
	// Logf reports what no completion can; nil: nothing.
	Logf func(format string, args ...any)
}

// Region is a range that another side registered.
type Region struct {
	Key          uint32 // RegisterMemory's there
	Start, Bytes uint64 // as that side's work requests name it
	Access       hca.Access
	Mapped       uint64 // where this GPU finds Start
}

// Device is a kernel that serves queues.
type Device struct {
	config   Config
	d        *cuda.Driver
	module   uintptr
	function uintptr
	stream   uintptr
	copies   uintptr // a stream for what the host changes while the kernel runs
	event    uintptr
	memory   uint64 // of the GPU: request, spaces, keys, queues
	host     uint64 // answer, and a page to copy from
	adapter  state.HcaAdapter
	answer   *state.HcaAnswer
	page     []byte

	mu     sync.Mutex
	closed bool
	ticket uint32
	keys   []state.HcaKey // of the own memory
	uses   []uint8        // of each entry of keys
	queues []*Queue
	stop   atomic.Bool
	failed atomic.Pointer[error]
	done   chan struct{} // closed when no run follows
}

const pageBytes = 4096

// New makes a device and starts its kernel.
func New(c Config) (*Device, error) {
	set := func(p *int, v int) {
		if *p <= 0 {
			*p = v
		}
	}
	set(&c.Queues, 256)
	set(&c.Spaces, 64)
	set(&c.Keys, 1024)
	set(&c.Warps, 16)
	wait := func(p *time.Duration, v time.Duration) {
		if *p <= 0 {
			*p = v
		}
	}
	wait(&c.Slice, 100*time.Millisecond)
	wait(&c.Idle, 200*time.Nanosecond)
	wait(&c.Answer, 30*time.Second)
	if c.Logf == nil {
		c.Logf = func(string, ...any) {}
	}
	if c.Driver == nil || c.Context == nil {
		return nil, errors.New("hca/gpu: a device needs a driver and a context")
	}
	if c.Warps > state.MaxWarps || c.Keys > 1<<(32-state.KeyShift) {
		return nil, fmt.Errorf("hca/gpu: %d warps, %d keys: more than %d, %d", c.Warps, c.Keys, state.MaxWarps, 1<<(32-state.KeyShift))
	}
	d := &Device{config: c, d: c.Driver, keys: make([]state.HcaKey, c.Keys), uses: make([]uint8, c.Keys), queues: make([]*Queue, c.Queues),
		done: make(chan struct{})}
	if err := c.Context.Do(d.create); err != nil {
		close(d.done)
		return nil, errors.Join(fmt.Errorf("hca/gpu: %w", err), c.Context.Do(d.destroy))
	}
	go d.run()
	return d, nil
}

// size is that of a T.
func size[T any]() uint64 { var t T; return uint64(unsafe.Sizeof(t)) }

// Offsets in the device's memory: a request, then the spaces, the queues and the keys of each space.
func (d *Device) spacesAt() uint64 { return 256 }
func (d *Device) queuesAt() uint64 {
	return (d.spacesAt() + uint64(d.config.Spaces+1)*size[state.HcaSpace]() + 255) &^ 255
}
func (d *Device) keysAt(space int) uint64 {
	return d.queuesAt() + uint64(d.config.Queues)*size[state.HcaQueue]() + uint64(space)*uint64(d.config.Keys)*size[state.HcaKey]()
}

// create makes what destroy frees. The context is current.
func (d *Device) create() error {
	image, err := module.Image(packed)
	if err != nil {
		return err
	}
	if d.module, err = d.d.ModuleLoad(image); err != nil {
		return err
	}
	if d.function, err = d.d.Function(d.module, kernelName); err != nil {
		return err
	}
	const nonBlocking, blockingSync, disableTiming = 1, 1, 2
	if d.stream, err = d.d.StreamCreate(nonBlocking); err != nil {
		return err
	}
	if d.copies, err = d.d.StreamCreate(nonBlocking); err != nil {
		return err
	}
	if d.event, err = d.d.EventCreate(blockingSync | disableTiming); err != nil {
		return err
	}
	bytes := d.keysAt(d.config.Spaces + 1)
	if d.memory, err = d.d.Alloc(bytes); err != nil {
		return err
	}
	if d.host, err = d.d.HostAlloc(2 * pageBytes); err != nil {
		return err
	}
	b := cuda.Bytes(d.host, 2*pageBytes)
	clear(b)
	d.answer, d.page = (*state.HcaAnswer)(unsafe.Pointer(&b[0])), b[pageBytes:]
	if err := d.d.SetAsync(d.memory, 0, bytes, d.copies); err != nil {
		return err
	}
	d.adapter = state.HcaAdapter{Queues: d.memory + d.queuesAt(), Spaces: d.memory + d.spacesAt(), Request: d.memory, Answer: d.host,
		QueueCount: uint32(d.config.Queues), SpaceCount: uint32(d.config.Spaces + 1), SliceNanos: uint64(d.config.Slice),
		IdleNanos: uint32(min(d.config.Idle, time.Millisecond))}
	for i := range d.config.Spaces + 1 {
		s := state.HcaSpace{Keys: d.memory + d.keysAt(i), Count: uint32(d.config.Keys)}
		if err := d.put(d.adapter.Spaces+uint64(i)*size[state.HcaSpace](), bytesOf(&s)); err != nil {
			return err
		}
	}
	return nil
}

// destroy frees what create made, of which some may be missing.
func (d *Device) destroy() error {
	var errs []error
	free := func(f func(uintptr) error, p *uintptr) {
		if *p != 0 {
			errs = append(errs, f(*p))
			*p = 0
		}
	}
	free(d.d.EventDestroy, &d.event)
	free(d.d.StreamDestroy, &d.stream)
	free(d.d.StreamDestroy, &d.copies)
	if d.memory != 0 {
		errs = append(errs, d.d.Free(d.memory))
	}
	if d.host != 0 {
		errs = append(errs, d.d.HostFree(d.host))
	}
	free(d.d.ModuleUnload, &d.module)
	return errors.Join(errs...)
}

// bytesOf is the memory of a value without pointers.
func bytesOf[T any](p *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p)) }

// put changes the GPU's memory while the kernel runs; the context is current and mu held, or nobody else has d yet.
func (d *Device) put(to uint64, b []byte) error {
	copy(d.page, b)
	if err := d.d.CopyAsync(to, d.host+pageBytes, uint64(len(b)), d.copies); err != nil {
		return err
	}
	return d.d.StreamSynchronize(d.copies)
}

// get reads the GPU's memory, likewise.
func (d *Device) get(b []byte, from uint64) error {
	if err := d.d.CopyAsync(d.host+pageBytes, from, uint64(len(b)), d.copies); err != nil {
		return err
	}
	if err := d.d.StreamSynchronize(d.copies); err != nil {
		return err
	}
	copy(b, d.page)
	return nil
}

// run starts the kernel again and again.
func (d *Device) run() {
	defer close(d.done)
	l := cuda.Launch{Function: d.function, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{uint32(32 * d.config.Warps), 1, 1}, Stream: d.stream,
		Params: []uintptr{uintptr(unsafe.Pointer(&d.adapter))}}
	err := d.config.Context.Do(func() error {
		for !d.stop.Load() {
			if err := d.d.Launch(&l); err != nil {
				return err
			}
			if err := d.d.EventRecord(d.event, d.stream); err != nil {
				return err
			}
			if err := d.d.EventSynchronize(d.event); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("hca/gpu: the kernel ended: %w", err)
		d.failed.Store(&err)
		d.config.Logf("%v", err)
	}
}

// Err says why the kernel does not run any more; nil: it does, or was closed.
func (d *Device) Err() error {
	if p := d.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// Turns is a number that changes while the kernel looks for work.
func (d *Device) Turns() (turns uint64) {
	for w := range d.config.Warps {
		turns += uint64(atomic.LoadUint32(&d.answer.Turns[w]))
	}
	return turns
}

// settle returns when the kernel has ended everything it did before what put changed last. The context is current.
func (d *Device) settle() error {
	d.ticket++
	if d.ticket == 0 {
		d.ticket = 1
	}
	if err := d.put(d.memory, binary.NativeEndian.AppendUint32(nil, d.ticket)); err != nil {
		return err
	}
	end := time.Now().Add(d.config.Answer)
	for w := 0; w < d.config.Warps; {
		if atomic.LoadUint32(&d.answer.Tickets[w]) == d.ticket {
			w++
			continue
		}
		select {
		case <-d.done: // nothing runs any more
			return nil
		default:
		}
		if time.Now().After(end) {
			return fmt.Errorf("the kernel did not answer within %v", d.config.Answer)
		}
		time.Sleep(20 * time.Microsecond)
	}
	return nil
}

// do runs f with the lock held and the context current.
func (d *Device) do(what string, f func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("hca/gpu: %s: %w", what, ErrClosed)
	}
	if err := d.config.Context.Do(f); err != nil {
		return fmt.Errorf("hca/gpu: %s: %w", what, err)
	}
	return nil
}

// keyAt is where the kernel finds the entry of a key.
func (d *Device) keyAt(space int, number uint32) uint64 {
	return d.memory + d.keysAt(space) + uint64(number>>state.KeyShift)*size[state.HcaKey]()
}

// entry makes the table's entry of a range.
func entry(r Region) (state.HcaKey, error) {
	end, carry := bits.Add64(r.Start, r.Bytes, 0)
	if r.Bytes == 0 || carry != 0 || r.Mapped == 0 || r.Mapped+r.Bytes < r.Mapped {
		return state.HcaKey{}, fmt.Errorf("%d bytes at %#x, mapped at %#x: not a range of memory", r.Bytes, r.Start, r.Mapped)
	}
	return state.HcaKey{Start: r.Start, End: end, Mapped: r.Mapped, Key: r.Key, Access: uint32(r.Access)}, nil
}

// RegisterMemory lets this side's queues use memory that the GPU reaches at the addresses that work requests carry.
// Others use the same key, once they were told by SetRemote.
func (d *Device) RegisterMemory(start, bytes uint64, access hca.Access) (number uint32, err error) {
	err = d.do(fmt.Sprintf("register %d bytes at %#x", bytes, start), func() error {
		for i := range d.keys {
			// Entry 0 is left out: no key is small enough to be a slip.
			if i == 0 || d.keys[i].Key != 0 {
				continue
			}
			d.uses[i]++
			number = uint32(i)<<state.KeyShift | uint32(d.uses[i])
			k, err := entry(Region{Key: number, Start: start, Bytes: bytes, Access: access, Mapped: start})
			if err != nil {
				return err
			}
			if err := d.put(d.keyAt(0, number), bytesOf(&k)); err != nil {
				return err
			}
			d.keys[i] = k
			return nil
		}
		return fmt.Errorf("%d keys: %w", len(d.keys), ErrFull)
	})
	return number, err
}

// DeregisterMemory ends a registration; when it returns no queue of this side touches the memory.
func (d *Device) DeregisterMemory(number uint32) error {
	return d.do(fmt.Sprintf("deregister key %#x", number), func() error {
		i := int(number >> state.KeyShift)
		if i >= len(d.keys) || d.keys[i].Key != number || number == 0 {
			return errors.New("no such key")
		}
		if err := d.remove(0, number); err != nil {
			return err
		}
		d.keys[i] = state.HcaKey{}
		return nil
	})
}

func (d *Device) remove(space int, number uint32) error {
	if err := d.put(d.keyAt(space, number), bytesOf(&state.HcaKey{})); err != nil {
		return err
	}
	return d.settle()
}

// space checks the number of another side: 0 is the own one, others are the caller's choice.
func (d *Device) space(space int, number uint32) error {
	if space < 0 || space > d.config.Spaces || int(number>>state.KeyShift) >= d.config.Keys {
		return fmt.Errorf("key %#x of side %d: there are sides up to %d with %d keys each", number, space, d.config.Spaces, d.config.Keys)
	}
	return nil
}

// SetRemote says what another side (1 and up) registered.
func (d *Device) SetRemote(space int, r Region) error {
	return d.do(fmt.Sprintf("key %#x of side %d", r.Key, space), func() error {
		k, err := entry(r)
		if err == nil {
			err = d.space(space, r.Key)
		}
		if err == nil && space == 0 {
			err = errors.New("side 0 is this one, which registers its memory")
		}
		if err != nil {
			return err
		}
		return d.put(d.keyAt(space, r.Key), bytesOf(&k))
	})
}

// RemoveRemote takes back what SetRemote said; when it returns no queue of this side touches the memory.
func (d *Device) RemoveRemote(space int, number uint32) error {
	return d.do(fmt.Sprintf("remove key %#x of side %d", number, space), func() error {
		if err := d.space(space, number); err != nil {
			return err
		}
		return d.remove(space, number)
	})
}

// QueueConfig is a queue pair in memory that the GPU reaches. See hca.QueueConfig, of which it is the form with
// addresses.
type QueueConfig struct {
	Number   uint32 // 1..2^24-1
	WQ       uint64 // a multiple of 64
	Depth    uint32 // blocks, a power of two
	Record   uint64 // both words; must hold Start
	Doorbell uint64 // 8 bytes; ProducerHostPosts: the count
	Producer hca.Producer
	Start    uint64
	CQ       uint64
	CQForm   hca.CQForm
	CQDepth  uint32 // 0: Depth
	CQNumber uint32
	CQRecord uint64 // 0: overrun is ignored
}

// Queue is a queue pair that the kernel serves.
type Queue struct {
	device *Device
	index  int
	number uint32
}

// Number is the queue's number.
func (q *Queue) Number() uint32 { return q.number }

// CreateQueue makes a queue in the state INIT.
func (d *Device) CreateQueue(c QueueConfig) (*Queue, error) {
	q := &Queue{device: d, number: c.Number}
	err := d.do(fmt.Sprintf("queue %#x", c.Number), func() error {
		if c.CQDepth == 0 {
			c.CQDepth = c.Depth
		}
		switch {
		case c.Number == 0 || c.Number >= 1<<24:
			return errors.New("the number is not one of 1..2^24-1")
		case c.Depth == 0 || c.Depth&(c.Depth-1) != 0 || c.Depth > layout.MaxDepth || c.CQDepth&(c.CQDepth-1) != 0:
			return fmt.Errorf("depths %d, %d: not powers of two up to %d", c.Depth, c.CQDepth, layout.MaxDepth)
		case c.WQ == 0 || c.WQ%mlx5.BlockBytes != 0 || c.CQ == 0 || c.CQ%8 != 0 || c.CQRecord%4 != 0:
			return fmt.Errorf("queues at %#x, %#x: not aligned", c.WQ, c.CQ)
		case c.Producer != hca.ProducerHostPosts && (c.Record == 0 || c.Record%8 != 0):
			return fmt.Errorf("record at %#x: not aligned", c.Record)
		case c.Producer != hca.ProducerRecord && (c.Doorbell == 0 || c.Doorbell%8 != 0):
			return fmt.Errorf("doorbell at %#x: not aligned", c.Doorbell)
		}
		for i, other := range d.queues {
			if other != nil {
				if other.number == c.Number {
					return hca.ErrExists
				}
				continue
			}
			k := state.HcaQueue{WQ: c.WQ, Record: c.Record, Doorbell: c.Doorbell, CQ: c.CQ, RecordCQ: c.CQRecord, Number: c.Number, Depth: c.Depth,
				DepthCQ: c.CQDepth, NumberCQ: c.CQNumber, State: uint32(hca.StateInit), Posted: c.Start, Head: c.Start}
			switch c.Producer {
			case hca.ProducerRecord:
				k.Flags |= state.FlagRecord
			case hca.ProducerHostPosts:
				k.Flags |= state.FlagHostPosts
			}
			if c.CQForm == hca.CQCyclic {
				k.Flags |= state.FlagCyclic
			}
			q.index = i
			if err := d.put(q.at(), bytesOf(&k)); err != nil {
				return err
			}
			d.queues[i] = q
			return nil
		}
		return fmt.Errorf("%d queues: %w", len(d.queues), ErrFull)
	})
	if err != nil {
		return nil, err
	}
	return q, nil
}

// at is where the kernel finds the queue.
func (q *Queue) at() uint64 { return q.device.adapter.Queues + uint64(q.index)*size[state.HcaQueue]() }

// set changes a 4-byte field of the queue.
func (q *Queue) set(offset uintptr, v uint32) error {
	return q.device.put(q.at()+uint64(offset), binary.NativeEndian.AppendUint32(nil, v))
}

// read is the queue as it is now; the context is current.
func (q *Queue) read() (s state.HcaQueue, err error) {
	if q.device.queues[q.index] != q {
		return s, ErrClosed
	}
	return s, q.device.get(bytesOf(&s), q.at())
}

// Connect gives the queue its other side and lets its entries be executed. Side 0 is this one: the queue then writes to
// memory that was registered here.
func (q *Queue) Connect(space int) error {
	return q.device.do(fmt.Sprintf("connect queue %#x to side %d", q.number, space), func() error {
		s, err := q.read()
		if err == nil {
			err = q.device.space(space, 0)
		}
		if err == nil && s.State != uint32(hca.StateInit) {
			err = fmt.Errorf("it is in state %v", hca.State(s.State))
		}
		if err != nil {
			return err
		}
		if err := q.set(unsafe.Offsetof(s.Space), uint32(space)); err != nil {
			return err
		}
		return q.set(unsafe.Offsetof(s.State), uint32(hca.StateRTS))
	})
}

// State is the queue's state, and how many completions were written.
func (q *Queue) State() (s hca.State, completions uint64, err error) {
	err = q.device.do(fmt.Sprintf("look at queue %#x", q.number), func() error {
		k, err := q.read()
		s, completions = hca.State(k.State), k.Completed
		return err
	})
	return s, completions, err
}

// Err says which entry put the queue into the state ERR; nil: none did.
func (q *Queue) Err() error {
	var k state.HcaQueue
	err := q.device.do(fmt.Sprintf("look at queue %#x", q.number), func() error {
		var err error
		k, err = q.read()
		return err
	})
	switch {
	case err != nil:
		return err
	case k.Syndrome != 0:
		return fmt.Errorf("hca/gpu: queue %#x: entry at block %d: %s", q.number, uint16(k.Failed), mlx5.SyndromeText(uint8(k.Syndrome)))
	case k.Flags&state.FlagOverrun != 0:
		return fmt.Errorf("hca/gpu: queue %#x: the completion queue is full", q.number)
	}
	return nil
}

// Close ends the queue; when it returns nothing touches its memory.
func (q *Queue) Close() error {
	d := q.device
	err := d.do(fmt.Sprintf("close queue %#x", q.number), func() error {
		if d.queues[q.index] != q {
			return nil
		}
		if err := q.set(unsafe.Offsetof(state.HcaQueue{}.State), uint32(hca.StateReset)); err != nil {
			return err
		}
		if err := d.settle(); err != nil {
			return err
		}
		// A warp that was at work may have written its state over the one above, and taken another turn.
		if err := d.put(q.at(), bytesOf(&state.HcaQueue{})); err != nil {
			return err
		}
		if err := d.settle(); err != nil {
			return err
		}
		d.queues[q.index] = nil
		return nil
	})
	if errors.Is(err, ErrClosed) {
		return nil
	}
	return err
}

// Close stops the kernel. Nothing touches queues or registered memory when it has returned.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	d.stop.Store(true)
	err := d.config.Context.Do(func() error {
		return d.put(d.memory+uint64(unsafe.Offsetof(state.HcaRequest{}.Stop)), binary.NativeEndian.AppendUint32(nil, 1))
	})
	<-d.done
	if err := errors.Join(err, d.config.Context.Do(d.destroy)); err != nil {
		return fmt.Errorf("hca/gpu: close: %w", err)
	}
	return nil
}
