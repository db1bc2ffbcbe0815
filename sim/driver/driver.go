package driver

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/lgpu/lgpu/sim/hw"
	"github.com/lgpu/lgpu/sim/wire"
)

// Options are the properties of the driver that the devices do not give. Zero fields get the defaults named.
type Options struct {
	Name         string   // of every device; default "lgpu Software GPU"
	ContextBytes uint64   // device memory of a context; default 64 MiB
	PendingMax   int      // works of one context that may wait before a call does; default 1024
	Slices       Slices   // what is done when a process sets a context's time slice
	Seed         string   // makes the UUIDs of the devices differ from those of other machines
	Division     Division // of every GPU; the machine has the devices that Division.Configs says for each
	Log          *slog.Logger
}

// Driver is the driver of one machine.
type Driver struct {
	machine *hw.Machine
	options Options
	devices []*device
	shown   []*device // to a program that names none
	log     *slog.Logger

	mu        sync.Mutex
	processes map[*Process]struct{}
	ready     []*work                // works whose dependencies have ended
	draining  bool                   // someone works off ready
	exports   map[secret]*export     // what processes share by handles
	shared    map[inode]*export      // what they share by descriptors
	physicals map[*physical]struct{} // all device memory that is taken
	polls     []*poll                // conditions on memory that works wait for
	polling   bool
	ids       uint64 // of contexts, streams, buffers and captures: unique in the machine, never 0
	closed    bool
}

// New returns a driver for the devices of m. The caller closes m after the driver.
func New(m *hw.Machine, o Options) (*Driver, error) {
	if o.Name == "" {
		o.Name = "lgpu Software GPU"
	}
	if o.ContextBytes == 0 {
		o.ContextBytes = 64 << 20
	}
	if o.PendingMax <= 0 {
		o.PendingMax = 1024
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	d := &Driver{machine: m, options: o, log: o.Log, processes: map[*Process]struct{}{}, exports: map[secret]*export{},
		shared: map[inode]*export{}, physicals: map[*physical]struct{}{}}
	var err error
	if d.devices, err = arrange(m, &d.options); err != nil {
		return nil, err
	}
	d.shown = enumerated(d.devices)
	return d, nil
}

// Close disconnects all processes and frees what they exported.
func (d *Driver) Close() {
	d.mu.Lock()
	d.closed = true
	all := make([]*Process, 0, len(d.processes))
	for p := range d.processes {
		all = append(all, p)
	}
	d.mu.Unlock()
	for _, p := range all {
		p.Close()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for key := range d.shared {
		d.forgetDescriptor(key)
	}
}

func (d *Driver) id() uint64 {
	d.ids++
	return d.ids
}

// Process is one connected program: the calls of the protocol (wire.Driver). They may be made from many threads at
// once.
type Process struct {
	d    *Driver
	pid  int // of the program, as seen here
	name string
	host wire.Host

	visible atomic.Pointer[[]*device] // in the order of their ordinals

	unread   atomic.Int64 // records that kernels have printed
	printing sync.Mutex   // orders their way to the program; taken before Driver.mu

	// By Driver.mu:
	initialised bool
	eager       bool // libraries are loaded into every context, not where they are used (CUDA_MODULE_LOADING)
	libraries   []*library
	spilled     [][]byte // printed in contexts that are gone
	handles     table
	addresses   addresses
	uva         *hw.Space // everything allocated, for copies
	contexts    []*context
	primaries   []*context // by device; nil where not active
	flags       []uint32   // of the primary contexts to come, by device
	allocs      ranges[*allocation]
	regions     ranges[*region]
	reserved    ranges[uint64]        // of cuMemAddressReserve, with their sizes
	graphMemory map[uint64]*allocNode // by address
	pools       []*pool
	defaults    []*pool                // by device; nil where not asked for yet
	current     []*pool                // by device; nil where it is the default
	handlesOf   map[*physical]uint64   // handles of physical memory
	used        []uint64               // bytes of device memory, by device
	modes       map[uint64]captureMode // by thread
	captures    []*capture
	faults      []Result            // by device; success while the process is well there
	parts       []part              // by device; nil before cuInit: all of each
	graphHigh   []uint64            // most graph memory in use, by device
	pages       map[uint64]hostFile // host memory for the image that is to be read, by address
	destructors int                 // functions of the program's that run for objects of its own
	quiet       chan struct{}       // closed when there is none any more; nil when nobody waits
	closed      bool
	gone        chan struct{} // closed with the process: waiting calls end
}

// Connect adds a process. Its Close removes it.
func (d *Driver) Connect(peer wire.Peer) (*Process, error) {
	pid := peer.PID
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fmt.Errorf("connect process %d: driver is closed", pid)
	}
	name := fmt.Sprintf("pid %d", pid)
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil {
		name = exe
	}
	p := &Process{d: d, pid: pid, name: name, host: peer.Host, gone: make(chan struct{}), pages: map[uint64]hostFile{}}
	p.clear()
	d.processes[p] = struct{}{}
	return p, nil
}

// clear makes the process one that has done nothing yet.
func (p *Process) clear() {
	n := len(p.d.devices)
	p.initialised, p.eager, p.libraries, p.spilled, p.parts, p.contexts, p.pools, p.captures = false, false, nil, nil, nil, nil, nil, nil
	p.handles, p.addresses, p.uva = newTable(), newAddresses(), hw.NewSpace()
	p.primaries, p.flags, p.defaults, p.current = make([]*context, n), make([]uint32, n), make([]*pool, n), make([]*pool, n)
	p.allocs, p.regions, p.reserved = ranges[*allocation]{}, ranges[*region]{}, ranges[uint64]{}
	p.graphMemory, p.handlesOf, p.modes = map[uint64]*allocNode{}, map[*physical]uint64{}, map[uint64]captureMode{}
	p.used, p.faults, p.graphHigh = make([]uint64, n), make([]Result, n), make([]uint64, n)
	p.visible.Store(&p.d.shown)
}

// Close ends the process: its work is dropped, its memory and handles are freed, at once.
func (p *Process) Close() {
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.closed {
		return
	}
	p.closed = true
	close(p.gone)
	for _, c := range slices.Clone(p.contexts) {
		p.destroy(c)
	}
	for _, pl := range slices.Clone(p.pools) {
		pl.destroy()
	}
	for _, a := range p.allocs.all() {
		p.drop(a)
	}
	for _, o := range p.handles.objects {
		if n, ok := o.(*physicalHandle); ok {
			n.ph.release()
		}
	}
	p.dropPages()
	p.passOnMemory()
	for key, e := range d.exports {
		if e.owner == p {
			delete(d.exports, key)
		}
	}
	p.handles = newTable()
	delete(d.processes, p)
	d.drain()
}
