// Package mps shares a device by compute units instead of by time: it keeps NVIDIA's MPS control daemon running for the
// devices that are in spatial mode, and says what environment makes a program a client of it.
//
//	m, err := mps.New(mps.Config{Dir: runtimeDir, Log: log})
//	err = m.SetMode(ctx, mps.Device{UUID: u}, mps.Spatial)    // EBUSY while the device is in use
//	release, err := m.Use(u)                                  // an lgpu comes: the mode stays until release
//	env, err := m.Env(u, mps.Tenant{Percent: 3000})           // 30 % of the compute units
//
// # What MPS promises, and what it does not
//
//   - A client gets at most its percentage of the units, rounded down to what the hardware can grant, and keeps it beside
//     others; the percentage is fixed when the client's context is made. An H200 grants its 132 units in pairs: 30 and 60
//     side by side got 28.8 and 59.1 % of the full rate, alone the same. Inside, the device query and %nsmid tell the part.
//     Percentages are not reserved: if they add up to more than 100, clients share units.
//   - Which units a client gets cannot be named: lists of units are refused on such a device (EOPNOTSUPP).
//   - Memory bandwidth and caches are shared without a rule.
//   - A control daemon serves one user at a time: while a server of one user has clients, programs of another user wait in
//     cuInit until it has none. Every lgpu of a spatial device must therefore run as one user, or its programs queue.
//   - A fatal fault (an illegal address, say) of one client ends all clients that the same server has on that device. The
//     server then takes no new ones until they are gone. Tenants that must not harm each other belong in temporal mode.
//   - A program that is no client of the control daemon is still time-sliced against the server as a whole.
//   - A client sees the devices of its control daemon and no other. There is one daemon a device here, so that a fault
//     stays on its device; an lgpu on a spatial device has that device alone.
//
// The software GPU grants units itself (sim/hw): there the package only keeps the mode, and Env names the units.
//
// # Lifetime
//
// Control daemons outlive the process that started them, so that an upgrade of lgpud stops nobody: New adopts those of
// the same folder that still run. One that dies is started again after a pause that doubles from 100 ms to 10 s; its
// clients have lost their contexts by then, which Event tells. Close ends them, Leave lets them go on.
//
// All methods may be called from any goroutine.
package mps

import (
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"github.com/lgpu/lgpu/gpu"
)

// Mode is how a device is shared.
type Mode int

// Temporal devices are shared by time, which is how every device begins; Spatial ones by compute units.
const (
	Temporal Mode = iota
	Spatial
)

// String is "temporal" or "spatial".
func (m Mode) String() string {
	if m == Spatial {
		return "spatial"
	}
	return "temporal"
}

// ParseMode reads what String writes.
func ParseMode(s string) (Mode, error) {
	for _, m := range []Mode{Temporal, Spatial} {
		if s == m.String() {
			return m, nil
		}
	}
	return Temporal, fmt.Errorf("mode %q: there are temporal and spatial: %w", s, syscall.EINVAL)
}

// Errors that methods wrap. They come with what can be done about them.
var (
	ErrAbsent = errors.New("nvidia-cuda-mps-control is not installed")
	ErrDown   = errors.New("the MPS control daemon is not running; it is being started again")
	ErrClosed = errors.New("manager is closed")
	// ErrSwitching (Use): it fails until the switch is done, which SetMode waits for.
	ErrSwitching = errors.New("it is being switched to another mode")
)

// Device names a device and says who grants its units.
type Device struct {
	UUID     gpu.UUID
	Software bool // a software GPU: no control daemon
}

// Tenant is what an lgpu gets of a spatial device.
type Tenant struct {
	Percent uint32 // hundredths of a percent of the compute units, 1 to 10000; 0 is all
	Units   string // software GPU only: the units by name, such as "0-3,8"; in place of Percent
	Memory  uint64 // bytes of device memory that MPS lets the client allocate; 0 is no limit of MPS's
}

// Event is something that happened to a device's control daemon.
type Event struct {
	Device gpu.UUID
	Kind   string // mps.started, mps.adopted, mps.died, mps.stopped, mps.failed
	PID    int    // of the control daemon; 0 where there is none
	Err    error  // mps.died and mps.failed: why
}

// Config is how a Manager works. Zero fields get the defaults named.
type Config struct {
	// Dir is the runtime folder; each device has DIR/mps/UUID with the daemon's pipes, log and pid. It must exist.
	Dir string
	// Command is the control daemon's program; default nvidia-cuda-mps-control from the PATH.
	Command string
	Log     *slog.Logger // default: none
	// Event, where set, is called in the order of events, from one goroutine at a time. It must not call the Manager.
	Event func(Event)
	// Start bounds how long a daemon may take to answer, Stop how long it may take to quit before it is killed; default
	// 10 s and 5 s. RetryMin and RetryMax bound the pause before a daemon that died is started again; default 100 ms and 10 s.
	Start, Stop, RetryMin, RetryMax time.Duration
}
