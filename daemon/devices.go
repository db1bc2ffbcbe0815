package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lgpu/lgpu/daemon/claim"
	"github.com/lgpu/lgpu/daemon/mps"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/gpu/nvidia"
	gpusim "github.com/lgpu/lgpu/gpu/sim"
	"github.com/lgpu/lgpu/internal/list"
	"github.com/lgpu/lgpu/policy/limits"
	"github.com/lgpu/lgpu/policy/schedule"
	"github.com/lgpu/lgpu/sim"
)

// rescanPeriod is how often the daemon looks for devices that came, went or were partitioned.
const rescanPeriod = 30 * time.Second

// inventory owns the devices of the daemon: where they come from, and what was last seen of them.
type inventory struct {
	daemon *Daemon
	claims *claim.Claims // of the machine's devices; nil where all are the daemon's

	// mu guards the origins and sims, their fields that say so, and watching. No driver is asked under it.
	mu       sync.Mutex
	spatial  map[gpu.UUID]func() // guarded by mu; gives back the claims on devices in spatial mode (claims.go)
	origins  []*origin           // hardware first
	sims     map[string]*origin  // by shape
	watching context.Context     // of Run, nil before
	metered  []*device           // those that have a goroutine to meter them

	// seenMu guards the list of devices, and what was seen of each. The list is replaced with mu held, too.
	seenMu sync.Mutex
	all    []*device // the slice is replaced, never changed
}

// origin is an inventory and what it has.
type origin struct {
	shape string        // of a software GPU
	ready chan struct{} // of a software GPU: closed when inventory or err is set
	err   error
	users int                // guarded by inventory.mu; lgpus that are on it, and those who wait for ready
	stop  context.CancelFunc // guarded by inventory.mu; ends the watch
	// bereaved asks for a look at what a client that has left gave away.
	bereaved chan struct{}

	asking    sync.Mutex
	inventory gpu.Inventory          // guarded by asking
	socket    atomic.Pointer[string] // of a software GPU; to be had without waiting for its hardware

	listed    []gpu.Device                 // guarded by inventory.mu
	about     map[gpu.UUID]gpu.Description // guarded by inventory.mu; of those listed that could be asked
	unmetered map[gpu.UUID]string          // guarded by inventory.mu; why there was no meter of it at first; empty: there was
}

// device is one device, with what was last seen there.
type device struct {
	gpu.Device // never changes
	origin     *origin
	about      *gpu.Description   // guarded by inventory.seenMu; nil: it could not be asked
	metering   *metering          // never changes
	unmeter    context.CancelFunc // guarded by inventory.mu; ends its goroutine, nil while there is none

	noGuests  string             // guarded by inventory.seenMu; why lgpus cannot be guests, empty if they can
	facts     gpu.Facts          // guarded by inventory.seenMu
	sampled   time.Time          // guarded by inventory.seenMu
	failures  int                // guarded by inventory.seenMu; in a row
	fault     string             // guarded by inventory.seenMu; empty when well
	strangers map[processKey]int // of the goroutine that watches the origin, as the next two
	overruns  map[uint64]int
	orphans   orphanWatch
	watts     wattmeter
}

// sight is a device with what was last seen of it.
type sight struct {
	*device
	facts   gpu.Facts
	sampled time.Time
	fault   string
	about   *gpu.Description // nil: it could not be asked
}

func newInventory(n *Daemon) *inventory {
	v := &inventory{daemon: n, sims: map[string]*origin{}, spatial: map[gpu.UUID]func(){}}
	if n.config.Claim {
		v.claims = claim.New(n.config.System)
	}
	return v
}

// open opens the sources of devices: those that were given, or the GPUs of NVIDIA's driver.
func (v *inventory) open(sources []gpu.Inventory) {
	if sources == nil {
		driver, err := nvidia.Open()
		switch {
		case err == nil:
			sources = []gpu.Inventory{driver}
		case !errors.Is(err, nvidia.ErrNoDriver):
			v.daemon.log.Warn("NVIDIA's devices are left out", "error", err)
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, source := range sources {
		v.origins = append(v.origins, &origin{inventory: source, users: 1, bereaved: make(chan struct{}, 1)})
	}
}

// close closes all inventories.
func (v *inventory) close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	var errs []error
	for _, o := range v.origins {
		errs = append(errs, o.close())
	}
	v.origins, v.sims = nil, nil
	if v.claims != nil {
		errs = append(errs, v.claims.Close())
	}
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

// facts asks the inventory for those of a device, and says when.
func (o *origin) facts(uuid gpu.UUID) (gpu.Facts, time.Time, error) {
	o.asking.Lock()
	defer o.asking.Unlock()
	if o.inventory == nil {
		return gpu.Facts{}, time.Time{}, ErrClosed
	}
	at := time.Now()
	facts, err := o.inventory.Facts(uuid)
	return facts, at, err
}

// describe asks the inventory what a device is like.
func (o *origin) describe(uuid gpu.UUID) (gpu.Description, error) {
	o.asking.Lock()
	defer o.asking.Unlock()
	if o.inventory == nil {
		return gpu.Description{}, ErrClosed
	}
	return o.inventory.Describe(uuid)
}

// energy asks the inventory for what a device has drawn, in millijoules, and says when.
func (o *origin) energy(uuid gpu.UUID) (uint64, time.Time, error) {
	o.asking.Lock()
	defer o.asking.Unlock()
	if o.inventory == nil {
		return 0, time.Time{}, ErrClosed
	}
	at := time.Now()
	mj, err := o.inventory.Energy(uuid)
	return mj, at, err
}

// meter asks the inventory for the meter of a device.
func (o *origin) meter(uuid gpu.UUID) (gpu.Meter, error) {
	o.asking.Lock()
	defer o.asking.Unlock()
	if o.inventory == nil {
		return nil, ErrClosed
	}
	return o.inventory.Meter(uuid)
}

// refresh asks all inventories for their devices, and tells the tree and the policy what there is. An inventory
// that fails keeps the devices it had.
func (v *inventory) refresh() error {
	v.mu.Lock()
	origins := slices.Clone(v.origins)
	v.mu.Unlock()
	var problems []error
	for _, o := range origins {
		problems = append(problems, v.relist(o))
	}
	return errors.Join(append(problems, v.publish())...)
}

// relist asks an inventory for its devices. It may hang, and no lock but its own is held meanwhile.
func (v *inventory) relist(o *origin) error {
	listed, err := o.list()
	if err != nil {
		return err
	}
	for _, d := range listed {
		v.claimMode(d, o.shape) // an MPS daemon may have outlived the daemon before
	}
	v.mu.Lock()
	known := o.unmetered
	v.mu.Unlock()
	about := make(map[gpu.UUID]gpu.Description, len(listed))
	for _, d := range listed {
		if described, err := o.describe(d.UUID); err == nil {
			about[d.UUID] = described
		} else {
			v.daemon.log.Warn("a device is not described", "device", d.Identity(), "error", err)
		}
	}
	unmetered := make(map[gpu.UUID]string, len(listed))
	for _, d := range listed {
		why, tried := known[d.UUID]
		if !tried {
			why = v.tryMeter(o, d)
		}
		unmetered[d.UUID] = why
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	o.listed, o.unmetered, o.about = listed, unmetered, about
	return nil
}

// publish tells the tree and the policy which devices the inventories had when they were last asked.
func (v *inventory) publish() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	var problems []error
	var now []*device
	for _, o := range v.origins {
		for _, g := range o.listed {
			fresh := &device{
				Device: g, origin: o, noGuests: o.unmetered[g.UUID],
				strangers: map[processKey]int{}, overruns: map[uint64]int{},
			}
			fresh.metering = &metering{daemon: v.daemon, device: fresh, shared: make(chan struct{}, 1), retry: meterRetry}
			now = append(now, fresh)
		}
	}
	v.seenMu.Lock()
	for i, fresh := range now {
		for _, old := range v.all {
			if old.Device == fresh.Device && old.origin == fresh.origin {
				now[i] = old // with what was seen
			}
		}
		now[i].about = nil
		if about, asked := now[i].origin.about[fresh.UUID]; asked {
			now[i].about = &about
		}
	}
	v.all = now
	v.seenMu.Unlock()
	v.daemon.journal.know(now)
	v.meterLocked()
	parts := make([]limits.Device, 0, len(now))
	for _, device := range now {
		if device.Partitioned {
			continue // its instances are the devices
		}
		spatial := v.daemon.modes.Mode(device.UUID) == mps.Spatial
		parts = append(parts, partsOf(device.Device, spatial && device.origin.shape != ""))
		if err := v.daemon.gates.SetDevice(device.UUID, spatial, schedule.Options{Preempt: v.daemon.noGuests(device) == ""}); err != nil {
			problems = append(problems, err)
		}
	}
	if err := v.daemon.tree.SetDevices(parts); err != nil {
		problems = append(problems, fmt.Errorf("tell the tree of %d devices: %w", len(parts), err))
	}
	v.daemon.containers.notice()
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
		t.Capacity, t.Uncounted = percentUnits, true
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

// simUse is somebody's use of a software GPU, which is there until nobody uses it.
type simUse struct {
	inventory *inventory
	origin    *origin
	shape     string
	once      sync.Once
}

// close ends the use. It may be called more than once, and of nil.
func (u *simUse) close() {
	if u != nil {
		u.once.Do(func() { u.inventory.leaveSim(u.origin) })
	}
}

// runs reports whether the software GPU of a shape is one of the daemon's.
func (v *inventory) runs(shape string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.sims[shape] != nil
}

// useSim makes the software GPU of a shape one of the daemon's, or keeps it so, until close.
func (v *inventory) useSim(text string) (*simUse, error) {
	shape, err := sim.ParseShape(text)
	if err != nil {
		return nil, simError(err)
	}
	v.mu.Lock()
	if v.sims == nil {
		v.mu.Unlock()
		return nil, ErrClosed
	}
	o := v.sims[shape.String()]
	fresh := o == nil
	if fresh {
		o = &origin{shape: shape.String(), ready: make(chan struct{}), bereaved: make(chan struct{}, 1)}
		v.sims[o.shape] = o
	}
	o.users++
	v.mu.Unlock()
	use := &simUse{inventory: v, origin: o, shape: o.shape}
	if fresh {
		if err := v.openSim(o, shape); err != nil {
			return nil, err
		}
		return use, nil
	}
	<-o.ready
	if o.err != nil {
		return nil, o.err
	}
	// Its hardware may have died since.
	if _, err := o.list(); err == nil {
		return use, nil
	}
	if err = v.startSim(o, shape); err == nil {
		err = errors.Join(v.relist(o), v.publish())
	}
	if err != nil {
		use.close()
		return nil, err
	}
	return use, nil
}

// openSim brings the software GPU of a new origin up. After an error the origin is gone.
func (v *inventory) openSim(o *origin, shape sim.Shape) error {
	err := v.startSim(o, shape)
	if err == nil {
		v.mu.Lock()
		v.origins = append(v.origins, o)
		v.mu.Unlock()
		err = errors.Join(v.relist(o), v.publish())
	}
	v.mu.Lock()
	switch {
	case err != nil:
		o.err = err
		delete(v.sims, o.shape)
		v.origins = slices.DeleteFunc(v.origins, func(other *origin) bool { return other == o })
	case v.watching != nil:
		v.watchLocked(o)
	}
	v.mu.Unlock()
	close(o.ready) // whoever waits finds the devices, or why there are none
	if err != nil {
		return errors.Join(err, o.close())
	}
	return nil
}

// startSim starts or joins the hardware of a shape, in place of what o had.
func (v *inventory) startSim(o *origin, shape sim.Shape) error {
	o.asking.Lock()
	defer o.asking.Unlock()
	if o.inventory != nil {
		if err := o.inventory.Close(); err != nil {
			v.daemon.log.Debug("let go of a software GPU that has died", "shape", o.shape, "error", err)
		}
		o.inventory = nil
	}
	hardware, err := sim.Start(shape, sim.StartOptions{Dir: v.daemon.config.Dir, Command: v.daemon.config.SimCommand})
	if err != nil {
		return err
	}
	inventory := gpusim.New(hardware)
	socket := inventory.Socket()
	o.inventory = inventory
	o.socket.Store(&socket)
	return nil
}

// leaveSim ends one use of a software GPU. With the last its devices go.
func (v *inventory) leaveSim(o *origin) {
	v.mu.Lock()
	if v.sims[o.shape] != o {
		v.mu.Unlock()
		return
	}
	o.users--
	last := o.users == 0
	if last {
		delete(v.sims, o.shape)
		v.origins = slices.DeleteFunc(v.origins, func(other *origin) bool { return other == o })
		if o.stop != nil {
			o.stop()
		}
	}
	v.mu.Unlock()
	if !last {
		return
	}
	if err := errors.Join(v.publish(), o.close()); err != nil {
		v.daemon.log.Warn("a software GPU is let go", "shape", o.shape, "error", err)
	}
}

// watch begins to look at all devices, those to come included, until ctx ends.
func (v *inventory) watch(ctx context.Context) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.watching = ctx
	for _, o := range v.origins {
		v.watchLocked(o)
	}
	v.meterLocked()
}

// watchLocked looks at an origin's devices every Config.PolicePeriod. Each has a goroutine of its own, since a driver
// may hang. Called with mu held.
func (v *inventory) watchLocked(o *origin) {
	if o.stop != nil || v.watching.Err() != nil {
		return
	}
	ctx, stop := context.WithCancel(v.watching)
	o.stop = stop
	v.daemon.work.Add(1)
	go func() {
		defer v.daemon.work.Done()
		defer stop()
		tick := time.NewTicker(v.daemon.config.PolicePeriod)
		defer tick.Stop()
		for {
			v.daemon.police.patrol(o)
			for again, whole := v.daemon.police.reconcile(o), false; !whole; {
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
					again = v.daemon.police.reconcile(o)
				case <-o.bereaved:
					again = v.daemon.police.reconcile(o)
				}
			}
		}
	}()
}

// rescan looks for changes of the hardware.
func (v *inventory) rescan(ctx context.Context) {
	every(ctx, rescanPeriod, func() {
		if err := v.refresh(); err != nil {
			v.daemon.log.Warn("devices cannot be listed", "error", err)
		}
	})
}

// every calls do once in each period, until ctx ends.
func every(ctx context.Context, period time.Duration, do func()) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}

// present returns the devices that there are now. Callers do not change the slice.
func (v *inventory) present() []*device {
	v.seenMu.Lock()
	defer v.seenMu.Unlock()
	return v.all
}

// sights returns the devices with what was last seen of them.
func (v *inventory) sights() []sight {
	v.seenMu.Lock()
	defer v.seenMu.Unlock()
	out := make([]sight, len(v.all))
	for i, d := range v.all {
		out[i] = sight{d, d.facts, d.sampled, d.fault, d.about}
	}
	return out
}

// sample is what was last seen of a device.
func (v *inventory) sample(d *device) sample {
	v.seenMu.Lock()
	defer v.seenMu.Unlock()
	return sample{d.facts, d.sampled}
}

// usable returns the devices that programs can use: those of a software GPU, or with no shape the machine's own.
func (v *inventory) usable(shape string) []gpu.Device {
	v.seenMu.Lock()
	defer v.seenMu.Unlock()
	var out []gpu.Device
	for _, d := range v.all {
		if d.origin.shape == shape && !d.Partitioned {
			out = append(out, d.Device)
		}
	}
	return out
}

// device returns the device with a UUID, or nil.
func (v *inventory) device(uuid gpu.UUID) *device {
	v.seenMu.Lock()
	defer v.seenMu.Unlock()
	for _, d := range v.all {
		if d.UUID == uuid {
			return d
		}
	}
	return nil
}

// short is a device's name for people: as much of its identity as tells it from others. Of one that is not there it is that of a
// GPU. It may be called where device may.
func (v *inventory) short(uuid gpu.UUID) string {
	if d := v.device(uuid); d != nil {
		return d.Short()
	}
	return uuid.Short()
}

// devicesOf returns the devices of an origin.
func (v *inventory) devicesOf(o *origin) (mine []*device) {
	v.seenMu.Lock()
	defer v.seenMu.Unlock()
	for _, d := range v.all {
		if d.origin == o {
			mine = append(mine, d)
		}
	}
	return mine
}

// observe notes what was seen of a device. It is not well once it could not be reached twice in a row.
func (v *inventory) observe(d *device, facts gpu.Facts, err error) {
	var event *Event
	uuid := d.UUID
	v.seenMu.Lock()
	if err != nil {
		d.failures++
		if d.failures == sightings {
			d.fault = err.Error()
			event = &Event{Kind: DeviceFault, Device: &uuid, Text: fmt.Sprintf("device %s cannot be reached: %v",
				d.Short(), err)}
		}
	} else if facts.Fault != "" {
		if d.fault != facts.Fault {
			event = &Event{Kind: DeviceFault, Device: &uuid, Text: fmt.Sprintf("device %s is not well: %s", d.Short(), facts.Fault)}
		}
		d.failures, d.fault, d.facts, d.sampled = 0, facts.Fault, facts, time.Now()
	} else {
		if d.fault != "" {
			event = &Event{Kind: DeviceWell, Device: &uuid, Text: fmt.Sprintf("device %s can be reached again",
				d.Short())}
		}
		d.failures, d.fault, d.facts, d.sampled = 0, "", facts, time.Now()
	}
	v.seenMu.Unlock()
	if event != nil {
		v.daemon.journal.emit(*event)
	}
}
