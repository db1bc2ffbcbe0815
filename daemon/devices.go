package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lgpu/lgpu/daemon/mps"
	"github.com/lgpu/lgpu/gpu"
	gpusim "github.com/lgpu/lgpu/gpu/sim"
	"github.com/lgpu/lgpu/internal/list"
	"github.com/lgpu/lgpu/policy/limits"
	"github.com/lgpu/lgpu/policy/schedule"
	"github.com/lgpu/lgpu/sim"
)

// rescanPeriod is how often the daemon looks for devices that came, went or were partitioned.
const rescanPeriod = 30 * time.Second

// devices is where the daemon's devices come from.
type devices struct {
	mu       sync.Mutex
	origins  []*origin          // guarded by mu; hardware first
	sims     map[string]*origin // guarded by mu; by shape
	watching context.Context    // guarded by mu; of Run, nil before
}

// origin is an inventory and what it has.
type origin struct {
	shape string        // of a software GPU
	ready chan struct{} // of a software GPU: closed when inventory or err is set
	err   error
	users int // guarded by devices.mu; lgpus that are on it, and those who wait for ready
	stop  context.CancelFunc
	// bereaved asks for a look at what a client that has left gave away.
	bereaved chan struct{}

	asking    sync.Mutex
	inventory gpu.Inventory          // guarded by asking
	socket    atomic.Pointer[string] // of a software GPU; to be had without waiting for its hardware

	listed []gpu.Device // guarded by devices.mu
}

// device is one device, with what was last seen there.
type device struct {
	gpu.Device // never changes
	origin     *origin

	facts     gpu.Facts // guarded by Node.mu
	sampled   time.Time // guarded by Node.mu
	failures  int       // guarded by Node.mu; in a row
	fault     string    // guarded by Node.mu; empty when well
	strangers map[processKey]int
	overruns  map[uint64]int
	orphans   orphanWatch
}

func (d *devices) init() { d.sims = map[string]*origin{} }

// add takes over an inventory.
func (d *devices) add(o *origin) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.origins = append(d.origins, o)
}

// close closes all inventories.
func (d *devices) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for _, o := range d.origins {
		errs = append(errs, o.close())
	}
	d.origins, d.sims = nil, nil
	return errors.Join(errs...)
}

func (o *origin) close() error {
	o.asking.Lock()
	defer o.asking.Unlock()
	if o.inventory == nil {
		return nil
	}
	err := o.inventory.Close()
	o.inventory = nil
	return err
}

// list asks the inventory for its devices.
func (o *origin) list() ([]gpu.Device, error) {
	o.asking.Lock()
	defer o.asking.Unlock()
	if o.inventory == nil {
		return nil, ErrClosed
	}
	return o.inventory.Devices()
}

// facts asks the inventory for those of a device.
func (o *origin) facts(uuid gpu.UUID) (gpu.Facts, error) {
	o.asking.Lock()
	defer o.asking.Unlock()
	if o.inventory == nil {
		return gpu.Facts{}, ErrClosed
	}
	return o.inventory.Facts(uuid)
}

// refreshDevices asks all inventories for their devices, and tells the tree and the policy what there is. An inventory
// that fails keeps the devices it had.
func (n *Node) refreshDevices() error {
	n.devices.mu.Lock()
	origins := slices.Clone(n.devices.origins)
	n.devices.mu.Unlock()
	var problems []error
	for _, o := range origins {
		problems = append(problems, n.relist(o))
	}
	return errors.Join(append(problems, n.publishDevices())...)
}

// relist asks an inventory for its devices. It may hang, and no lock but its own is held meanwhile.
func (n *Node) relist(o *origin) error {
	listed, err := o.list()
	if err != nil {
		return err
	}
	n.devices.mu.Lock()
	defer n.devices.mu.Unlock()
	o.listed = listed
	return nil
}

// publishDevices tells the tree and the policy which devices the inventories had when they were last asked.
func (n *Node) publishDevices() error {
	d := &n.devices
	d.mu.Lock()
	defer d.mu.Unlock()
	var problems []error
	var now []*device
	for _, o := range d.origins {
		for _, g := range o.listed {
			now = append(now, &device{
				Device: g, origin: o, strangers: map[processKey]int{}, overruns: map[uint64]int{},
			})
		}
	}
	n.mu.Lock()
	for i, fresh := range now {
		for _, old := range n.all {
			if old.Device == fresh.Device && old.origin == fresh.origin {
				now[i] = old // with what was seen
			}
		}
	}
	n.all = now
	n.mu.Unlock()
	parts := make([]limits.Device, 0, len(now))
	for _, device := range now {
		if device.Partitioned {
			continue // its instances are the devices
		}
		spatial := n.modes.Mode(device.UUID) == mps.Spatial
		parts = append(parts, partsOf(device.Device, spatial && device.origin.shape != ""))
		if err := n.gates.SetDevice(device.UUID, spatial, schedule.Options{}); err != nil {
			problems = append(problems, err)
		}
	}
	if err := n.tree.SetDevices(parts); err != nil {
		problems = append(problems, fmt.Errorf("tell the tree of %d devices: %w", len(parts), err))
	}
	return errors.Join(problems...)
}

// percentUnits is the capacity of a device whose driver does not say how many units it has.
const percentUnits = 100

// partsOf describes a device's parts for the tree. One bit is one compute unit, as long as there are not more of them
// than a set can have. Units have names where the device can grant them by name.
func partsOf(d gpu.Device, named bool) limits.Device {
	t := limits.Device{
		UUID: d.Identity(), Number: d.Node, Ordinal: d.Ordinal(), Capacity: d.Units, UnitsPerBit: 1, Memory: d.Memory,
	}
	if d.Units <= 0 {
		t.Capacity = percentUnits
	}
	if t.Capacity > list.MaxBits {
		t.UnitsPerBit = (t.Capacity + list.MaxBits - 1) / list.MaxBits
		t.Remainder = t.Capacity % t.UnitsPerBit
		t.Capacity /= t.UnitsPerBit
	}
	if named {
		t.Kind = limits.Spatial
	}
	return t
}

// attachSim makes the software GPU of a shape one of the daemon's, or keeps it so, until as many calls of detachSim.
func (n *Node) attachSim(text string) (*origin, error) {
	shape, err := sim.ParseShape(text)
	if err != nil {
		return nil, fmt.Errorf("--sim: %w: %w", ErrInvalid, err)
	}
	d := &n.devices
	d.mu.Lock()
	if d.sims == nil {
		d.mu.Unlock()
		return nil, ErrClosed
	}
	o := d.sims[shape.String()]
	fresh := o == nil
	if fresh {
		o = &origin{shape: shape.String(), ready: make(chan struct{}), bereaved: make(chan struct{}, 1)}
		d.sims[o.shape] = o
	}
	o.users++
	d.mu.Unlock()
	if !fresh {
		<-o.ready
		if o.err == nil {
			// Its hardware may have died since.
			if _, err := o.list(); err == nil {
				return o, nil
			}
			if err := n.startSim(o, shape); err == nil {
				return o, errors.Join(n.relist(o), n.publishDevices())
			} else {
				n.detachSim(o.shape)
				return nil, err
			}
		}
		return nil, o.err
	}
	if err = n.startSim(o, shape); err == nil {
		d.mu.Lock()
		d.origins = append(d.origins, o)
		d.mu.Unlock()
		err = errors.Join(n.relist(o), n.publishDevices())
	}
	d.mu.Lock()
	switch {
	case err != nil:
		o.err = err
		delete(d.sims, o.shape)
		d.origins = slices.DeleteFunc(d.origins, func(other *origin) bool { return other == o })
	case d.watching != nil:
		n.watchLocked(o)
	}
	d.mu.Unlock()
	close(o.ready) // whoever waits finds the devices, or why there are none
	if err != nil {
		return nil, errors.Join(err, o.close())
	}
	return o, nil
}

// startSim starts or joins the hardware of a shape, in place of what o had.
func (n *Node) startSim(o *origin, shape sim.Shape) error {
	o.asking.Lock()
	defer o.asking.Unlock()
	if o.inventory != nil {
		if err := o.inventory.Close(); err != nil {
			n.log.Debug("let go of a software GPU that has died", "shape", o.shape, "error", err)
		}
		o.inventory = nil
	}
	hardware, err := sim.Start(shape, sim.StartOptions{Dir: n.config.Dir, Command: n.config.SimCommand})
	if err != nil {
		return err
	}
	inventory := gpusim.New(hardware)
	socket := inventory.Socket()
	o.inventory = inventory
	o.socket.Store(&socket)
	return nil
}

// detachSim takes back one attachSim. With the last the devices go.
func (n *Node) detachSim(shape string) {
	d := &n.devices
	d.mu.Lock()
	o := d.sims[shape]
	if o == nil {
		d.mu.Unlock()
		return
	}
	o.users--
	last := o.users == 0
	if last {
		delete(d.sims, shape)
		d.origins = slices.DeleteFunc(d.origins, func(other *origin) bool { return other == o })
		if o.stop != nil {
			o.stop()
		}
	}
	d.mu.Unlock()
	if !last {
		return
	}
	if err := errors.Join(n.publishDevices(), o.close()); err != nil {
		n.log.Warn("a software GPU is let go", "shape", shape, "error", err)
	}
}

// watch begins to look at all devices, those to come included, until ctx ends.
func (d *devices) watch(n *Node, ctx context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.watching = ctx
	for _, o := range d.origins {
		n.watchLocked(o)
	}
}

// watchLocked looks at an origin's devices every Config.PolicePeriod. Each has a goroutine of its own, since a driver
// may hang. devices.mu is held.
func (n *Node) watchLocked(o *origin) {
	if o.stop != nil || n.devices.watching.Err() != nil {
		return
	}
	ctx, stop := context.WithCancel(n.devices.watching)
	o.stop = stop
	n.work.Add(1)
	go func() {
		defer n.work.Done()
		defer stop()
		tick := time.NewTicker(n.config.PolicePeriod)
		defer tick.Stop()
		for {
			n.patrol(o)
			for again, whole := n.reconcile(o), false; !whole; {
				var soon <-chan time.Time
				if again {
					soon = time.After(secondLook)
				}
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					whole = true
				case <-soon:
					again = n.reconcile(o)
				case <-o.bereaved:
					again = n.reconcile(o)
				}
			}
		}
	}()
}

// rescan looks for changes of the hardware.
func (n *Node) rescan(ctx context.Context) {
	tick := time.NewTicker(rescanPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := n.refreshDevices(); err != nil {
				n.log.Warn("devices cannot be listed", "error", err)
			}
		}
	}
}

// modeEvent passes on what package mps tells.
func (n *Node) modeEvent(e mps.Event) {
	uuid := e.Device
	event := Event{Kind: Kind(e.Kind), Device: &uuid, PID: e.PID, Text: "MPS control daemon: " + e.Kind}
	if e.Err != nil {
		event.Text += ": " + e.Err.Error()
	}
	n.emit(event)
}

// usable returns the devices that programs can use: those of a software GPU, or with no shape the machine's own.
func (n *Node) usable(shape string) []gpu.Device {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []gpu.Device
	for _, d := range n.all {
		if d.origin.shape == shape && !d.Partitioned {
			out = append(out, d.Device)
		}
	}
	return out
}

// deviceOf returns the device with a UUID, or nil.
func (n *Node) deviceOf(uuid gpu.UUID) *device {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, d := range n.all {
		if d.UUID == uuid {
			return d
		}
	}
	return nil
}
