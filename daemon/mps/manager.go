package mps

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/lgpu/lgpu/gpu"
)

// Manager keeps the modes of the devices of one machine and the control daemons of those in spatial mode.
type Manager struct {
	config Config
	ctx    context.Context // of all keepers
	cancel context.CancelFunc

	eventMu sync.Mutex // order of events

	mu      sync.Mutex
	closed  bool
	devices map[gpu.UUID]*device
}

// device is what is known of a device that is in use or not in its first mode.
type device struct {
	software  bool
	mode      Mode
	users     int
	switching chan struct{} // closed at the end of a switch; nil while there is none
	keeper    *keeper       // of a device with a control daemon
}

// New returns a manager for the folder c.Dir. Control daemons that a former manager of the same folder has left are
// adopted, and their devices are in spatial mode; what remains of dead ones is removed. All other devices are in
// temporal mode.
func New(c Config) (*Manager, error) {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&c.Start, 10*time.Second)
	def(&c.Stop, 5*time.Second)
	def(&c.RetryMin, 100*time.Millisecond)
	def(&c.RetryMax, 10*time.Second)
	if c.Command == "" {
		c.Command = "nvidia-cuda-mps-control"
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.Mkdir(filepath.Join(c.Dir, folder), 0o711); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("make the folder of MPS: %w", err)
	}
	m := &Manager{config: c, devices: map[gpu.UUID]*device{}}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	entries, err := os.ReadDir(filepath.Join(c.Dir, folder))
	if err != nil {
		return nil, fmt.Errorf("look for MPS control daemons: %w", err)
	}
	for _, e := range entries {
		uuid, err := gpu.ParseUUID(e.Name())
		if err != nil {
			continue // not ours
		}
		k := m.keeper(uuid)
		if !k.adopt() {
			k.clean()
			continue
		}
		m.devices[uuid] = &device{mode: Spatial, keeper: k}
		go k.run()
	}
	return m, nil
}

// folder is where in the runtime folder the daemons' folders are.
const folder = "mps"

func (m *Manager) keeper(uuid gpu.UUID) *keeper {
	k := &keeper{m: m, uuid: uuid, dir: filepath.Join(m.config.Dir, folder, uuid.String()), ended: make(chan struct{})}
	k.ctx, k.cancel = context.WithCancel(m.ctx)
	return k
}

// emit tells an event, in order.
func (m *Manager) emit(e Event) {
	m.eventMu.Lock()
	defer m.eventMu.Unlock()
	log := m.config.Log.Info
	if e.Err != nil {
		log = m.config.Log.Warn
	}
	log(e.Kind, "device", e.Device, "pid", e.PID, "error", e.Err)
	if m.config.Event != nil {
		m.config.Event(e)
	}
}

// Mode is the mode of a device.
func (m *Manager) Mode(uuid gpu.UUID) Mode {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d := m.devices[uuid]; d != nil {
		return d.mode
	}
	return Temporal
}

// Modes are the devices that are in spatial mode, with whether their units can be had now: false while a control daemon
// that died is being started again.
func (m *Manager) Modes() map[gpu.UUID]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[gpu.UUID]bool{}
	for uuid, d := range m.devices {
		if d.mode == Spatial {
			out[uuid] = d.keeper == nil || d.keeper.process() != nil
		}
	}
	return out
}

// SetMode brings a device into a mode. It returns when the control daemon answers, or is gone. While the device is
// being switched by another call it waits, until ctx ends. While the device is in use, and after waiting in vain, it
// fails with an error that wraps EBUSY and changes nothing; other failures leave the device in temporal mode.
func (m *Manager) SetMode(ctx context.Context, dev Device, mode Mode) error {
	if mode != Temporal && mode != Spatial {
		return fmt.Errorf("device %s: mode %d: %w", dev.UUID, mode, syscall.EINVAL)
	}
	d, k, err := m.beginSwitch(ctx, dev, mode)
	if d == nil {
		return err
	}
	switch {
	case dev.Software:
	case mode == Spatial:
		k = m.keeper(dev.UUID)
		if err = k.start(ctx); err == nil {
			go k.run()
		} else {
			k, mode = nil, Temporal
		}
	default:
		k.end()
		k = nil
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	close(d.switching)
	d.switching, d.mode, d.keeper, d.software = nil, mode, k, dev.Software
	if k != nil && m.closed { // closed meanwhile: Close has not seen this daemon
		go k.end()
		return ErrClosed
	}
	if err != nil {
		return fmt.Errorf("device %s stays in temporal mode: %w", dev.UUID, err)
	}
	return nil
}

// beginSwitch keeps others from the device, whose keeper it returns, for a switch to mode. It returns no device if
// there is nothing to do, or an error says why it cannot be done.
func (m *Manager) beginSwitch(ctx context.Context, dev Device, mode Mode) (*device, *keeper, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.devices[dev.UUID]
	for d != nil && d.switching != nil && !m.closed {
		other := d.switching
		m.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
		}
		m.mu.Lock()
		if d.switching == other {
			return nil, nil, switching(dev.UUID)
		}
	}
	if m.closed {
		return nil, nil, ErrClosed
	}
	if d == nil {
		d = &device{software: dev.Software}
		m.devices[dev.UUID] = d
	}
	switch {
	case d.mode == mode:
		return nil, nil, nil
	case d.users > 0:
		return nil, nil, fmt.Errorf("device %s is in %s mode and in use by lgpus (%d); a device can change its mode only when none uses it: %w",
			dev.UUID.Short(), d.mode, d.users, syscall.EBUSY)
	}
	d.switching = make(chan struct{})
	return d, d.keeper, nil
}

func switching(uuid gpu.UUID) error {
	return fmt.Errorf("device %s: %w: %w", uuid.Short(), ErrSwitching, syscall.EBUSY)
}

// Settled reports whether a device is in a mode and is not being switched to another.
func (m *Manager) Settled(uuid gpu.UUID, mode Mode) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d := m.devices[uuid]; d != nil {
		return d.mode == mode && d.switching == nil
	}
	return mode == Temporal
}

// Use says that an lgpu uses the device from now on, so that its mode stays, until the release that is returned has
// been called; calling that again does nothing. It fails with ErrSwitching and EBUSY while the device is being
// switched.
func (m *Manager) Use(uuid gpu.UUID) (release func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.devices[uuid]
	switch {
	case m.closed:
		return nil, ErrClosed
	case d == nil:
		d = &device{}
		m.devices[uuid] = d
	case d.switching != nil:
		return nil, switching(uuid)
	}
	d.users++
	return sync.OnceFunc(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		d.users--
	}), nil
}

// Env is what the environment of a tenant's programs must contain, by name; nothing in temporal mode. It wraps
// EOPNOTSUPP where units are named that the device cannot grant by name, EINVAL where t is no request, and ErrDown
// while there is no control daemon to be a client of.
func (m *Manager) Env(uuid gpu.UUID, t Tenant) (map[string]string, error) {
	m.mu.Lock()
	d := m.devices[uuid]
	if d == nil || d.mode == Temporal {
		m.mu.Unlock()
		return nil, nil
	}
	k, software := d.keeper, d.software
	m.mu.Unlock()
	env := map[string]string{}
	if t.Percent > 10000 {
		return nil, fmt.Errorf("device %s: %d hundredths of a percent: %w", uuid, t.Percent, syscall.EINVAL)
	}
	if t.Percent > 0 {
		env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = strconv.FormatFloat(float64(t.Percent)/100, 'f', -1, 64)
	}
	if software {
		if t.Units != "" {
			env = map[string]string{"LGPU_SIM_UNITS": t.Units}
		}
		return env, nil
	}
	if t.Units != "" {
		return nil, fmt.Errorf("device %s: MPS grants a number of compute units, not units by name: %w", uuid, syscall.EOPNOTSUPP)
	}
	if k.process() == nil {
		return nil, fmt.Errorf("device %s: %w", uuid, ErrDown)
	}
	env["CUDA_MPS_PIPE_DIRECTORY"] = k.pipe()
	env["CUDA_MPS_LOG_DIRECTORY"] = k.log()
	if t.Memory > 0 {
		const mib = 1 << 20
		env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = fmt.Sprintf("0=%dM", (t.Memory+mib-1)/mib)
	}
	return env, nil
}

// Processes are the process ids of a device's control daemon and its servers, which use the device for others: they do
// not count as processes without an lgpu.
func (m *Manager) Processes(uuid gpu.UUID) []int {
	m.mu.Lock()
	var k *keeper
	if d := m.devices[uuid]; d != nil {
		k = d.keeper
	}
	m.mu.Unlock()
	if k == nil {
		return nil
	}
	return k.processes()
}

// Close ends all control daemons, and with them the work of their clients. It returns when they are gone. Methods that
// need them fail with ErrClosed from then on.
func (m *Manager) Close() error { return m.finish((*keeper).end) }

// Leave stops looking after the control daemons but lets them run, for the next Manager of the folder to adopt.
func (m *Manager) Leave() error { return m.finish((*keeper).leave) }

func (m *Manager) finish(f func(*keeper)) error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	var all []*keeper
	for _, d := range m.devices {
		if d.keeper != nil {
			all = append(all, d.keeper)
		}
	}
	m.mu.Unlock()
	var group sync.WaitGroup
	for _, k := range all {
		group.Go(func() { f(k) })
	}
	group.Wait()
	m.cancel()
	return nil
}
