package hw

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Config describes a device. Zero fields get the defaults named.
type Config struct {
	Memory  uint64        // bytes, rounded down to frames; default 16 GiB
	Units   int           // compute units; default 32
	MHz     float64       // clock of a unit; default 1: slow on purpose, see the package comment
	Slice   time.Duration // turn of a channel while others wait, unless it has its own; default 2 ms
	Switch  time.Duration // passes when a unit is taken from a channel that could go on; default 0
	Quantum time.Duration // longest step; default 250 µs
	// Bandwidths of the movers in bytes a second of device time: host to device and back (default 4 GB/s each), and
	// inside the device (default 32 GB/s).
	LinkBandwidth, MemoryBandwidth float64
	// MoveLatency is what every move costs before its first byte; default 2 µs.
	MoveLatency time.Duration
	Virtual     bool // virtual time: nothing waits for the wall clock
	Workers     int  // goroutines that execute a step; default one a CPU
	Limits      Limits
}

// Limits bound what is resident on one unit at a time.
type Limits struct {
	Threads, Blocks, Registers int
	Shared                     int // bytes
}

// DefaultLimits are those of a current data-centre device.
var DefaultLimits = Limits{Threads: 2048, Blocks: 32, Registers: 65536, Shared: 228 << 10}

func (c *Config) fill() {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	c.Switch = max(c.Switch, 0)
	def(&c.Slice, 2*time.Millisecond)
	def(&c.Quantum, 250*time.Microsecond)
	def(&c.MoveLatency, 2*time.Microsecond)
	if c.Memory == 0 {
		c.Memory = 16 << 30
	}
	if c.Units <= 0 {
		c.Units = 32
	}
	if c.MHz <= 0 {
		c.MHz = 1
	}
	if c.LinkBandwidth <= 0 {
		c.LinkBandwidth = 4e9
	}
	if c.MemoryBandwidth <= 0 {
		c.MemoryBandwidth = 32e9
	}
	if c.Workers <= 0 {
		c.Workers = runtime.NumCPU()
	}
	if c.Limits == (Limits{}) {
		c.Limits = DefaultLimits
	}
}

// Machine is a host with devices.
type Machine struct {
	Devices []*Device

	barrier sync.RWMutex // read-held while an engine touches mapped memory, write-held to take memory away
}

// NewMachine switches on a machine with one device for each config. Close switches it off.
func NewMachine(configs ...Config) (*Machine, error) {
	m := &Machine{}
	for i, c := range configs {
		d, err := newDevice(c, &m.barrier)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("device %d: %w", i, err), m.Close())
		}
		m.Devices = append(m.Devices, d)
	}
	return m, nil
}

// Close stops the engines and gives the memory of all devices back. Grids and moves that are not done are dropped.
func (m *Machine) Close() error {
	var errs []error
	for _, d := range m.Devices {
		errs = append(errs, d.close())
	}
	return errors.Join(errs...)
}

// Hold keeps memory from being taken away while f runs. f must not call Release.
func (m *Machine) Hold(f func()) {
	m.barrier.RLock()
	defer m.barrier.RUnlock()
	f()
}

// Device is one device.
type Device struct {
	Config Config
	Clock  *Clock
	Memory *Memory
	// In and Out move between host and device, Local inside the device.
	In, Out, Local *Mover

	parts    []*Device // whose power is this one's
	engine   *engine
	busy     meter
	unitTime meter // of all units together
	log      turnLog
	confined atomic.Int32 // living channels that may not run on all units
}

func newDevice(c Config, barrier *sync.RWMutex) (*Device, error) {
	c.fill()
	mem, err := newMemory(c.Memory, barrier)
	if err != nil {
		return nil, err
	}
	d := &Device{Config: c, Memory: mem, Clock: newClock(c.Virtual)}
	d.In = newMover(d, barrier, c.LinkBandwidth)
	d.Out = newMover(d, barrier, c.LinkBandwidth)
	d.Local = newMover(d, barrier, c.MemoryBandwidth)
	d.engine = newEngine(d, barrier)
	return d, nil
}

func (d *Device) close() error {
	d.engine.close()
	for _, m := range []*Mover{d.In, d.Out, d.Local} {
		m.close()
	}
	return d.Memory.close()
}

// Busy is the device time in the window before now in which the compute engine had work, at most the last two seconds.
// Switches between channels count, as a physical GPU's own utilisation has them.
func (d *Device) Busy(window time.Duration) time.Duration { return d.busy.last(d.Clock.Now(), window) }

// meter counts busy time in buckets of device time.
type meter struct {
	mu     sync.Mutex
	total  Time
	bucket [meterBuckets]Time
	epoch  [meterBuckets]int64 // which bucket of all time the entry is
}

const (
	meterBuckets = 64
	meterWidth   = Time(50 * time.Millisecond)
)

// note adds an amount of time that counts as of a moment.
func (m *meter) note(at, amount Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.total += amount
	m.put(at, amount)
}

// put adds an amount to the bucket of a moment. Called with mu locked.
func (m *meter) put(at, amount Time) {
	n := int64(at / meterWidth)
	i := n % meterBuckets
	if m.epoch[i] != n {
		m.epoch[i], m.bucket[i] = n, 0
	}
	m.bucket[i] += amount
}

func (m *meter) add(from, to Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.total += to - from
	for from < to {
		end := min(to, (from/meterWidth+1)*meterWidth)
		m.put(from, end-from)
		from = end
	}
}

// last is the busy time in whole buckets that make up the window before now.
func (m *meter) last(now Time, window time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := int64(now / meterWidth)
	var sum Time
	for k := int64(1); k <= min(int64(Time(window)/meterWidth), meterBuckets-1) && k <= n; k++ {
		if i := (n - k) % meterBuckets; m.epoch[i] == n-k {
			sum += m.bucket[i]
		}
	}
	return time.Duration(sum)
}

func (m *meter) sum() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Duration(m.total)
}
