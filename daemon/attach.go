package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/daemon/lifecycle"
	"github.com/lgpu/lgpu/daemon/mps"
	"github.com/lgpu/lgpu/daemon/store"
	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/internal/names"
	"github.com/lgpu/lgpu/internal/proc"
	"github.com/lgpu/lgpu/internal/units"
	"github.com/lgpu/lgpu/policy/limits"
	"github.com/lgpu/lgpu/sim"
	"github.com/lgpu/lgpu/sim/wire"
	"github.com/lgpu/lgpu/tenant/region"
)

// AttachSpec is what a launcher asks for.
type AttachSpec struct {
	// Path names an existing lgpu to join, or one to make: below a group that exists. An empty Path is a name made of
	// Program and the launcher's process, below Group.
	Path  string
	Group string // with an empty Path: the parent of the new lgpu; the default is the launcher's place
	// Program is the base name of the command, for a name.
	Program string
	// ID, where not 0, says that the launcher was attached to the lgpu with this ID before the daemon restarted: Path
	// must have it.
	ID uint64
	// Limits are asked for, for each of the devices. An lgpu that exists must have the same, unless there are none.
	Limits limits.Request
	// Devices are tokens as gpu.Select reads them, among the devices of Sim or of the machine; none is all of them, or
	// those that an existing lgpu has.
	Devices []string
	// Sim is the shape of the software GPU to use; empty for the machine's own devices.
	Sim string
	// Spatial asks for the device in spatial mode, beside others rather than in turns. There can be only one device
	// then.
	Spatial bool
	// Gang puts the lgpu into a gang.
	Gang string
	// Launcher is the process that asks, whose rights hold.
	Launcher limits.Author
	// Lives returns why the launcher has ended, whatever process has its PID now; nil where PID is known to be its own.
	Lives func() error `json:"-"`
}

// Attachment is that of a launcher to an lgpu: as long as it lasts the lgpu does.
type Attachment struct {
	// Path, ID and Name of the lgpu.
	Path, Name string
	ID         uint64
	// Environment is what a program needs to find the daemon and the devices: LGPU_SOCKET, for a software GPU its
	// socket, and on a device in spatial mode what makes it a client there. The libraries are the launcher's business.
	Environment map[string]string
	// Sim is the shape of the software GPU, empty for the machine's own devices.
	Sim     string
	Devices []gpu.Device

	close   func() error
	refused func(by limits.Author) Refusals
}

// Close ends the attachment. When it returns the lgpu is gone, if it was temporary and nobody else uses it. It may be
// called more than once.
func (h *Attachment) Close() error { return h.close() }

// Refused returns how often the lgpu's programs were denied memory since the attachment began, and whether somebody can
// raise the limit. It is to be asked for before Close.
func (h *Attachment) Refused(by limits.Author) Refusals { return h.refused(by) }

// Attach attaches a launcher to an lgpu, which is created or exists: everything that descends from the launcher's
// process is its tenant. The lgpu stays until Close, and then as long as it has clients; for ever if it is persistent.
// An error wraps ErrInvalid, ErrNoDevice, ErrNotFound, ErrDiffers, ErrBusy or ErrClosed, mostly in an *Error, or is a
// *limits.Error.
func (n *Daemon) Attach(ctx context.Context, spec AttachSpec) (*Attachment, error) {
	a, err := n.attach(ctx, spec)
	if err != nil && ctx.Err() == nil && !errors.Is(err, ErrClosed) {
		n.journal.refusedLauncher(&spec, err)
	}
	return a, err
}

// refusedLauncher tells of a launcher that has got no lgpu.
func (j *journal) refusedLauncher(spec *AttachSpec, err error) {
	by := authorOf(&spec.Launcher)
	where := cmp.Or(spec.Path, spec.Group)
	what := cmp.Or(where, "an lgpu")
	j.emit(Event{
		Kind: LgpuRefused, Path: where, By: by,
		Text: fmt.Sprintf("process %d (%s) was refused %s: %v", by.PID, by.Command, what, err),
	})
}

func (n *Daemon) attach(ctx context.Context, spec AttachSpec) (*Attachment, error) {
	if err := n.presence.left(); err != nil {
		return nil, err
	}
	of, err := launcherOf(spec.Launcher)
	if err != nil {
		return nil, err
	}
	if of.bound, err = n.confine(&spec); err != nil {
		return nil, err
	}
	// What was read by its pid is the launcher's if it lives still. Else a process of another would be one, and could be
	// stopped as one.
	if spec.Lives != nil {
		if err := spec.Lives(); err != nil {
			return nil, fmt.Errorf("launcher: %w: %w", ErrInvalid, err)
		}
	}
	if err := n.places.placed(&spec); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, modeTime)
	defer cancel()
	for attempt := 0; ; attempt++ {
		a, err := n.attachOnce(ctx, spec, of, attempt)
		if !errors.Is(err, errAgain) {
			return a, err
		}
		if attempt == 100 {
			return nil, fmt.Errorf("%s: it comes and goes too fast: %w", spec.Path, ErrBusy)
		}
	}
}

// errAgain: what was found before a lock was taken is no longer so.
var errAgain = errors.New("changed meanwhile")

// launcherOf describes the process that launches.
func launcherOf(p limits.Author) (*launcher, error) {
	s, err := proc.Live(p.PID)
	if err != nil {
		return nil, fmt.Errorf("launcher: %w: %w", ErrInvalid, err)
	}
	return &launcher{Process: tenant.Process{PID: p.PID, Start: s.Start}, uid: p.UID, comm: s.Comm, present: true}, nil
}

// confine keeps a launcher where it is: in a bound cgroup below the group that it is bound to, and outside of other
// lgpus, whose programs could leave their limits behind otherwise. It reports whether it is in a bound cgroup.
func (n *Daemon) confine(spec *AttachSpec) (isBound bool, err error) {
	e, err := n.tenants.Observe(spec.Launcher.PID)
	if err != nil {
		return false, fmt.Errorf("launcher: %w: %w", ErrInvalid, err)
	}
	above := e
	if _, launches := n.lgpus.launchers()[e.Process]; launches {
		above.Ancestors = e.Ancestors[1:] // one process may be attached to several
	}
	dir, inside := n.resolver.descent(above)
	if !inside && e.Container != 0 {
		dir, inside = n.tree.ByID(e.Container)
	}
	if inside {
		return false, &Error{Class: ErrInvalid, Reason: fmt.Sprintf("this is inside the lgpu %q already", nameOf(dir.Path)),
			Remedy: "an lgpu cannot lie inside another: start it from outside"}
	}
	bound, ok := n.tree.Bound(cgroupText(e.Cgroups))
	if !ok {
		return false, nil
	}
	if spec.Path == "" && spec.Group == "" {
		spec.Group = bound
	}
	if at := spec.at(); !names.Within(at, bound) {
		return false, &Error{Class: ErrInvalid, Field: "group", Value: at, Remedy: "choose a group below " + bound,
			Reason: fmt.Sprintf("the cgroup of process %d belongs to %s", spec.Launcher.PID, bound)}
	}
	return true, nil
}

// at is the path that the lgpu is to have, or the group that it is to be in.
func (s AttachSpec) at() string {
	switch {
	case s.Path != "":
		return s.Path
	case s.Group != "":
		return s.Group
	}
	return limits.Root
}

// plan is what Attach has found out before it takes a lock.
type plan struct {
	path    string
	exists  bool
	id      uint64 // of the lgpu that exists
	ready   bool   // programs use it, or may
	shape   string
	devices []gpu.Device
	spatial bool
	sim     *simUse // of the shape, until an lgpu takes it over
	claims  claims  // on the devices, until the lgpu has its own
}

// attachOnce is Attach, or errAgain where somebody changed what it is about meanwhile.
func (n *Daemon) attachOnce(ctx context.Context, spec AttachSpec, of *launcher, attempt int) (*Attachment, error) {
	p, err := n.look(spec, of.PID, attempt)
	if err != nil {
		return nil, err
	}
	if p.shape != "" {
		if err := n.places.sim(spec.Launcher, p.shape); err != nil {
			return nil, err
		}
		if p.sim, err = n.inventory.useSim(p.shape); err != nil {
			return nil, err
		}
		p.shape = p.sim.shape
		defer func() { p.sim.close() }() // unless it was taken over by then
	}
	defer func() { p.claims.release() }()
	if err := n.choose(spec, p); err != nil {
		return nil, err
	}
	if err := n.places.furnish(p.path); err != nil {
		return nil, err
	}
	if !p.ready {
		for _, d := range p.devices {
			if err := n.inventory.wantMode(ctx, d, p.spatial); err != nil {
				return nil, err
			}
		}
	}
	n.lgpus.life.Lock()
	defer n.lgpus.life.Unlock()
	if err := n.presence.left(); err != nil {
		return nil, err
	}
	if err := n.places.processes(spec.Launcher); err != nil { // none comes between this and the launcher's being counted
		return nil, err
	}
	if p.exists {
		return n.join(spec, p, of)
	}
	return n.createFor(spec, p, of)
}

// look finds the lgpu that is asked for, if it exists.
func (n *Daemon) look(spec AttachSpec, pid, attempt int) (*plan, error) {
	p := &plan{path: spec.Path, shape: spec.Sim, spatial: spec.Spatial}
	if p.path == "" {
		p.path = path.Join(spec.at(), ownName(spec.Program, pid, attempt))
	}
	if spec.Spatial && spec.Gang != "" {
		return nil, &Error{Class: ErrInvalid, Field: "gang", Value: spec.Gang,
			Reason: "lgpus on a device in spatial mode take no turns"}
	}
	if err := checkOvercommit(n.tree, spec, p.path); err != nil {
		return nil, err
	}
	if shape := spec.Sim; shape != "" {
		parsed, err := sim.ParseShape(shape)
		if err != nil {
			return nil, simError(err)
		}
		p.shape = parsed.String()
	}
	dir, err := n.tree.Directory(p.path)
	if err != nil || n.tree.Sight(spec.Launcher, p.path) == limits.Hidden {
		if spec.ID != 0 {
			return nil, fmt.Errorf("lgpu %s with id %d: %w", p.path, spec.ID, ErrNotFound)
		}
		return p, n.tree.May(spec.Launcher, limits.Access{Action: limits.ActionCreate, Path: p.path})
	}
	if err := n.tree.May(spec.Launcher, limits.Access{Action: limits.ActionAttach, Path: p.path}); err != nil && spec.Path != "" {
		return nil, err
	}
	if spec.Path == "" {
		return nil, errAgain // somebody has that name: try another
	}
	if spec.ID != 0 && spec.ID != dir.ID {
		return nil, fmt.Errorf("lgpu %s with id %d: %w", p.path, spec.ID, ErrNotFound)
	}
	if len(dir.Children) > 0 {
		return nil, groupError(dir.Path)
	}
	p.exists, p.id = true, dir.ID
	record, known := n.lgpus.record(dir.ID)
	if !known {
		return p, nil
	}
	p.ready = n.lgpus.ready(dir.ID)
	if (spec.Sim != "" || p.ready) && p.shape != record.Sim && spec.ID == 0 {
		return nil, &Error{Class: ErrDiffers, Remedy: "ask for the devices that it was made on",
			Reason: fmt.Sprintf("lgpu %q is on %s, not on %s", nameOf(p.path), machineName(record.Sim),
				machineName(p.shape))}
	}
	p.shape = record.Sim
	if p.ready {
		p.spatial = record.Spatial
	}
	return p, nil
}

// groupError is for who wants to run a program in a group.
func groupError(path string) error {
	if path == limits.Root {
		return &Error{Class: ErrInvalid, Reason: "the root is a group; programs run in lgpus below it",
			Remedy: "leave the path out for an lgpu of its own: lgpu run -- COMMAND"}
	}
	return &Error{Class: ErrInvalid,
		Reason: path + " is a group; programs run in lgpus, which have nothing below them",
		Remedy: fmt.Sprintf("to run in that group: lgpu run --group %s -- COMMAND", path)}
}

// machineName names where devices are, for people.
func machineName(shape string) string {
	if shape == "" {
		return "this machine's devices"
	}
	return "the software GPU " + shape
}

// choose picks the devices, and claims them for the plan. Those of an lgpu in use stay, and it has claimed them.
func (n *Daemon) choose(spec AttachSpec, p *plan) (err error) {
	have := n.inventory.usable(p.shape)
	if len(have) == 0 && !p.ready {
		if p.shape == "" {
			return noDevice()
		}
		return &Error{Class: ErrNoDevice, Field: "sim", Value: p.shape, Reason: "it has no device"}
	}
	record, _ := n.lgpus.record(p.id)
	named := len(spec.Devices) > 0
	kept := !named && len(record.Devices) > 0
	switch p.devices = have; {
	case named:
		p.devices, err = selected(have, spec.Devices)
	case kept:
		p.devices, err = n.keep(p, record.Devices)
	}
	switch {
	case err != nil || p.ready:
	case named || kept:
		p.claims, err = n.inventory.claimAll(p.devices, p.shape)
	default:
		p.devices, p.claims, err = n.inventory.claimFree(p.devices, p.shape)
	}
	if err != nil || kept {
		return err
	}
	return p.fits(record.Devices)
}

// noDevice is the error for who asks for a device where there is none.
func noDevice() error {
	return &Error{Class: ErrNoDevice, Reason: "this machine has no GPU that lgpu can use; lgpu doctor says why",
		Remedy: "a software GPU works on any machine: lgpu run --sim -- CMD"}
}

// selected are the devices that were asked for by name.
func selected(have []gpu.Device, names []string) ([]gpu.Device, error) {
	chosen, err := gpu.Select(have, names)
	switch {
	case errors.Is(err, gpu.ErrTwice):
		return nil, devicesError(ErrInvalid, "", "%w", err)
	case err != nil:
		return nil, devicesError(ErrNoDevice, "name one by its index, its UUID or the beginning of that", "%w", err)
	}
	return chosen, nil
}

// keep returns the devices that an lgpu had. One in use goes on without those that are gone.
func (n *Daemon) keep(p *plan, before []gpu.UUID) (devices []gpu.Device, err error) {
	for _, uuid := range before {
		if d := n.inventory.device(uuid); d != nil {
			devices = append(devices, d.Device)
		} else if !p.ready {
			return nil, fmt.Errorf("lgpu %q: its device %s is not there: %w", nameOf(p.path), uuid, ErrNoDevice)
		}
	}
	return devices, nil
}

// fits returns why an lgpu cannot have the devices of the plan; before are those that it has.
func (p *plan) fits(before []gpu.UUID) error {
	switch apart := gpu.Together(p.devices); {
	case len(p.devices) > region.MaxDevices:
		return devicesError(ErrInvalid, "choose some of them", "%d devices; one lgpu spans at most %d", len(p.devices),
			region.MaxDevices)
	case apart != nil:
		return devicesError(ErrInvalid, "choose one of them", "%w", apart)
	case p.spatial && len(p.devices) > 1:
		return &Error{Class: ErrInvalid, Field: "spatial", Remedy: "choose one device",
			Reason: "an lgpu on a device in spatial mode has that device alone"}
	case p.ready && !slices.Equal(uuidsOf(p.devices), before):
		return devicesError(ErrDiffers, "leave the devices out to join it as it is, or choose another name",
			"lgpu %q exists with other devices", nameOf(p.path))
	}
	return nil
}

// devicesError refuses the devices that were asked for.
func devicesError(class error, remedy, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &Error{Class: class, Field: "devices", Reason: err.Error(), Remedy: remedy, Cause: errors.Unwrap(err)}
}

// createFor makes a temporary lgpu and attaches its first launcher. Called with life held.
func (n *Daemon) createFor(spec AttachSpec, p *plan, of *launcher) (*Attachment, error) {
	dir, err := n.tree.By(spec.Launcher).Create(limits.CreateSpec{
		Path: p.path, Temporary: true, UID: spec.Launcher.UID, GID: spec.Launcher.GID, Enter: true,
		Request: spec.request(p.devices),
	})
	if errors.Is(err, unix.EEXIST) {
		if _, gone := n.tree.Directory(p.path); gone == nil {
			return nil, errAgain
		}
	}
	if err != nil {
		return nil, err
	}
	l := declared(dir.ID)
	l.machine.Has = lifecycle.Directory // it was entered when it was made
	return n.attachFirst(l, p, of)
}

// attachFirst activates an lgpu for a launcher, as p says. Called with life held.
func (n *Daemon) attachFirst(l *lgpu, p *plan, of *launcher) (*Attachment, error) {
	c := &change{daemon: n, l: l, launcher: of}
	err := c.activate(lifecycle.LauncherCame, &p.sim, func(r *store.Lgpu) {
		r.Sim, r.Devices, r.Spatial = p.shape, uuidsOf(p.devices), p.spatial
	})
	if err != nil {
		return nil, err
	}
	return n.attachment(c)
}

// join attaches a launcher to an lgpu that exists. Called with life held.
func (n *Daemon) join(spec AttachSpec, p *plan, of *launcher) (*Attachment, error) {
	dir, ok := n.tree.ByID(p.id)
	if !ok {
		return nil, errAgain
	}
	l := n.lgpus.of(p.id)
	fresh := l == nil
	if fresh {
		l = declared(p.id)
	}
	ready := l.machine.State.Ready()
	if ready != p.ready || !fresh && l.record.Sim != p.shape {
		return nil, errAgain
	}
	if difference := n.tree.Differs(p.id, spec.request(p.devices)); difference != "" && spec.ID == 0 {
		return nil, &Error{Class: ErrDiffers, Reason: fmt.Sprintf("lgpu %q exists with %s", dir.Path, difference),
			Remedy: "leave the limits out to join it as it is, or choose another name"}
	}
	if !ready {
		return n.attachFirst(l, p, of)
	}
	c := &change{daemon: n, l: l, launcher: of}
	if err := c.drive(lifecycle.LauncherCame); err != nil {
		return nil, err
	}
	return n.attachment(c)
}

// attachment is what a launcher gets that was attached by c. Called with life held.
func (n *Daemon) attachment(c *change) (*Attachment, error) {
	dir, ok := n.tree.ByID(c.l.record.ID)
	if !ok {
		return nil, errors.Join(errAgain, c.drive(lifecycle.LauncherLeft))
	}
	a := &Attachment{
		Path: dir.Path, Name: nameOf(dir.Path), ID: dir.ID, Sim: c.l.record.Sim, Environment: c.environment,
	}
	before := n.journal.refusals(dir.ID).Count
	a.refused = func(by limits.Author) Refusals { return n.observer.refusals(dir.ID, before, by) }
	a.close = sync.OnceValue(func() error { return n.lgpus.detach(c.l, c.launcher) })
	for _, uuid := range c.l.record.Devices {
		if d := n.inventory.device(uuid); d != nil {
			a.Devices = append(a.Devices, d.Device)
		}
	}
	return a, nil
}

// environment is what a tenant's programs need.
func (n *Daemon) environment(record store.Lgpu, dir limits.Directory) (map[string]string, error) {
	env := map[string]string{SocketEnvironment: filepath.Join(n.config.Dir, TenantSocket)}
	for _, uuid := range record.Devices {
		d := n.inventory.device(uuid)
		if d == nil {
			continue
		}
		if socket := d.origin.socket.Load(); socket != nil {
			env[wire.Environment] = *socket
		}
		if d.MIG() {
			env["CUDA_VISIBLE_DEVICES"] = d.Identity()
		}
		if !record.Spatial {
			continue
		}
		e, _ := dir.Device(d.Identity())
		request := mps.Tenant{Percent: e.ComputeMax}
		if request.Percent < units.Whole {
			request.Percent++ // MPS rounds down what has been rounded down to hundredths: 16 units of 132 became 14
		}
		if d.origin.shape != "" && !e.Whole {
			request = mps.Tenant{Units: e.Bits.String()}
		}
		spatial, err := n.modes.Env(uuid, request)
		if err != nil {
			return nil, &Error{Field: "spatial", Reason: err.Error(), Cause: err}
		}
		maps.Copy(env, spatial)
	}
	return env, nil
}

// ownName is the name of an lgpu that was given none: program and process.
func ownName(program string, pid, attempt int) string {
	base := strings.Map(func(c rune) rune {
		if names.Check("a"+string(c)) != nil {
			return '_'
		}
		return c
	}, strings.TrimLeft(program, ".-_"))
	name := fmt.Sprintf("%.40s-%d", base, pid)
	if names.Check(name) != nil {
		name = fmt.Sprintf("run-%d", pid)
	}
	if attempt > 0 {
		name += fmt.Sprintf("-%d", attempt+1)
	}
	return name
}
