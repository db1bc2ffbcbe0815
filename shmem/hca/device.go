package hca

import (
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lgpu/lgpu/shmem/mlx5"
)

// Errors of a Device and its queues.
var (
	ErrClosed = errors.New("closed")
	ErrExists = errors.New("exists already")
)

// maxMessage is the longest transfer of one entry, as log_msg_max has it.
const maxMessage = 1 << 30

// Device is a software adapter.
type Device struct {
	config  Config
	token   Token
	address string
	started time.Time

	regions atomic.Pointer[map[uint32]*region] // replaced under mu, never changed
	queues  atomic.Pointer[[]*Queue]           // likewise, in order of creation

	mu     sync.Mutex
	closed bool
	gone   atomic.Bool // closed, for others

	atomics sync.Mutex // held by the atomic operations of memory that has none of its own

	engine engine
}

// region is a registered range.
type region struct {
	key        uint32
	start, end uint64 // end is exclusive; a range does not end beyond 2^64-1
	access     Access
	memory     Memory
	view       Viewer // memory, if it is one
	users      atomic.Int64
	gone       atomic.Bool
}

// New makes a device and starts it.
func New(config Config) (*Device, error) {
	d := &Device{config: config, token: config.Token, started: time.Now()}
	if d.config.Retry <= 0 {
		d.config.Retry = 10 * time.Second
	}
	if d.config.Logf == nil {
		d.config.Logf = func(string, ...any) {}
	}
	if d.config.Fabric == nil {
		d.config.Fabric = NewLocal()
	}
	if d.token == (Token{}) {
		var err error
		if d.token, err = NewToken(); err != nil {
			return nil, err
		}
	}
	d.regions.Store(&map[uint32]*region{})
	d.queues.Store(&[]*Queue{})
	address, err := d.config.Fabric.attach(d, config.Address)
	if err != nil {
		return nil, err
	}
	d.address = address
	d.engine.start(d)
	return d, nil
}

// RegisterMemory lets work requests use the bytes from start with that key, both as local and as remote key.
func (d *Device) RegisterMemory(key uint32, start, bytes uint64, access Access, m Memory) error {
	end, carry := bits.Add64(start, bytes, 0)
	if bytes == 0 || carry != 0 || m == nil {
		return fmt.Errorf("hca: register %d bytes at %#x with key %#x: not a range of memory", bytes, start, key)
	}
	r := &region{key: key, start: start, end: end, access: access, memory: m}
	r.view, _ = m.(Viewer)
	d.mu.Lock()
	defer d.mu.Unlock()
	old := *d.regions.Load()
	if d.closed {
		return fmt.Errorf("hca: register key %#x: %w", key, ErrClosed)
	}
	if _, ok := old[key]; ok {
		return fmt.Errorf("hca: register key %#x: %w", key, ErrExists)
	}
	table := maps.Clone(old)
	table[key] = r
	d.regions.Store(&table)
	return nil
}

// DeregisterMemory ends a registration. When it returns nothing touches the memory any more; requests that want to
// fail.
func (d *Device) DeregisterMemory(key uint32) error {
	d.mu.Lock()
	table := maps.Clone(*d.regions.Load())
	r := table[key]
	if r == nil {
		d.mu.Unlock()
		return fmt.Errorf("hca: deregister key %#x: no such key", key)
	}
	delete(table, key)
	d.regions.Store(&table)
	d.mu.Unlock()
	r.gone.Store(true)
	for r.users.Load() != 0 { // as long as one copy at most
		time.Sleep(10 * time.Microsecond)
	}
	return nil
}

// acquire finds n bytes at address that key allows to access so; the caller must release the region.
func (d *Device) acquire(key uint32, address, n uint64, access Access) *region {
	r := (*d.regions.Load())[key]
	if r == nil || r.access&access != access || address < r.start || address > r.end || n > r.end-address {
		return nil
	}
	r.users.Add(1)
	if r.gone.Load() {
		r.users.Add(-1)
		return nil
	}
	return r
}

func (r *region) release() { r.users.Add(-1) }

// Kick wakes the device if it sleeps, for those who post from this process and do not want to wait for it to look.
func (d *Device) Kick() { d.engine.kick() }

// Close stops the device and closes its queues. Nothing touches their memory, nor registered memory, when it has
// returned.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	d.gone.Store(true)
	d.mu.Unlock()
	d.engine.stop()
	for _, q := range *d.queues.Load() {
		_ = q.Close()
	}
	d.config.Fabric.detach(d)
	for key := range *d.regions.Load() {
		_ = d.DeregisterMemory(key)
	}
	return nil
}

// atomic carries out an atomic operation for either side.
func (d *Device) atomic(r *region, address uint64, op *mlx5.Atomic) (uint64, error) {
	if _, ok := r.memory.(*HostMemory); !ok {
		d.atomics.Lock()
		defer d.atomics.Unlock()
	}
	return r.memory.Atomic(address, op)
}
