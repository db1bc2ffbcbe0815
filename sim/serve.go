package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/lgpu/lgpu/sim/driver"
	"github.com/lgpu/lgpu/sim/hw"
	"github.com/lgpu/lgpu/sim/wire"
)

// ServeOptions are how a hardware process lives.
type ServeOptions struct {
	// Idle, where positive, ends the process when no tenant has been connected for so long.
	Idle time.Duration
	// MayEnd, where set, is asked before an idle process ends; it runs end under whatever keeps new tenants away, and
	// end reports whether the process has indeed no tenant and will take none any more.
	MayEnd func(end func() bool) error
	Log    *slog.Logger
}

// Serve is the hardware process: it makes the devices of shape and answers programs on l until ctx ends, or nobody has
// needed it for o.Idle. It closes l. Tenants that are connected when ctx ends see the device vanish.
func Serve(ctx context.Context, l *net.UnixListener, shape Shape, o ServeOptions) error {
	defer l.Close()
	if err := shape.Check(); err != nil {
		return err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	var configs []hw.Config
	for range shape.Devices {
		configs = append(configs, shape.MIG.Configs(hw.Config{Memory: shape.Memory, Units: shape.Units, MHz: shape.MHz, Slice: shape.Slice,
			Switch: shape.Switch, LinkBandwidth: float64(shape.Link)})...)
	}
	machine, err := hw.NewMachine(configs...)
	if err != nil {
		return fmt.Errorf("make %s: %w", shape, err)
	}
	d, err := driver.New(machine, driver.Options{ContextBytes: shape.Context, Slices: shape.Slices, Seed: l.Addr().String(),
		Division: shape.MIG, Log: o.Log})
	if err != nil {
		return errors.Join(fmt.Errorf("make the driver of %s: %w", shape, err), machine.Close())
	}
	// Interpreting units keep as many threads busy as there are CPUs; calls must not queue behind them.
	if want := 2*runtime.NumCPU() + 2; runtime.GOMAXPROCS(0) < want {
		runtime.GOMAXPROCS(want)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	idle := &idler{options: o, cancel: cancel}
	if o.Idle > 0 {
		idle.set(0)
	}
	err = wire.Serve(ctx, l, wire.Handler{
		NewDriver:  func(peer wire.Peer) (wire.Driver, error) { return d.Connect(peer) },
		Management: d,
		Tenants:    idle.set,
		Log:        o.Log,
	})
	idle.stop()
	d.Close()
	return errors.Join(err, machine.Close())
}

// idler ends a process that has had no user for a while.
type idler struct {
	options ServeOptions
	cancel  func()

	mu      sync.Mutex
	tenants int
	timer   *time.Timer
}

// set is told the number of tenants.
func (i *idler) set(n int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.tenants = n
	if i.timer != nil {
		i.timer.Stop()
		i.timer = nil
	}
	if n == 0 && i.options.Idle > 0 {
		i.timer = time.AfterFunc(i.options.Idle, i.expire)
	}
}

func (i *idler) stop() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.options.Idle = 0
	if i.timer != nil {
		i.timer.Stop()
	}
}

// expire ends the process unless a tenant has come meanwhile.
func (i *idler) expire() {
	end := func() bool {
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.tenants == 0 {
			i.cancel()
		}
		return i.tenants == 0
	}
	if i.options.MayEnd == nil {
		end()
		return
	}
	if err := i.options.MayEnd(end); err != nil {
		i.options.Log.Warn("an idle software GPU stays", "error", err)
	}
}
