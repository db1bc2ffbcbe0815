package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

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

// HoldSpec is what a launcher asks for.
type HoldSpec struct {
	// Path names an existing lgpu to join, or one to make: below a group that exists. An empty Path is a name made of
	// Program and the launcher's process, below Group.
	Path  string
	Group string // with an empty Path: the parent of the new lgpu; the default is the root
	// Program is the base name of the command, for a name.
	Program string
	// ID, where not 0, says that the launcher held the lgpu with this ID before the daemon restarted: Path must have
	// it.
	ID uint64
	// Limits are asked for, for each of the devices. An lgpu that exists must have the same, unless there are none.
	Limits Limits
	// Devices are tokens as gpu.Select reads them, among the devices of Sim or of the machine; none is all of them, or
	// those that an existing lgpu has.
	Devices []string
	// Sim is the shape of the software GPU to use; empty for the machine's own devices.
	Sim string
	// Spatial asks for the device in spatial mode, beside others rather than in turns. There can be only one device
	// then.
	Spatial bool
	// Gang puts the lgpu into a gang.
	Gang     string
	Launcher Peer
}

// Peer is a process as the kernel vouches for it (SO_PEERCRED).
type Peer struct {
	PID      int
	UID, GID uint32
}

// Hold is a launcher's hold on an lgpu: as long as it lasts the lgpu does.
type Hold struct {
	// Path, ID and Name of the lgpu.
	Path, Name string
	ID         uint64
	// Environment is what a program needs to find the daemon and the devices: LGPU_SOCKET, for a software GPU its
	// socket, and on a device in spatial mode what makes it a client there. The libraries are the launcher's business.
	Environment map[string]string
	// Sim is the shape of the software GPU, empty for the machine's own devices.
	Sim     string
	Devices []gpu.Device

	close func() error
}

// Close ends the hold. When it returns the lgpu is gone, if it was temporary and nobody else uses it. It may be called
// more than once.
func (h *Hold) Close() error { return h.close() }

// hinted is an error that says what to do.
type hinted struct {
	error
	hint string
}

func (h hinted) Unwrap() error { return h.error }

// Hint says what to do about the error.
func (h hinted) Hint() string { return h.hint }

// Hold makes an lgpu, or joins one, for a launcher: everything that descends from the launcher's process is its tenant.
// The lgpu stays until Close, and then as long as it has clients; for ever if it is persistent. An error wraps
// ErrInvalid, ErrNoDevice, ErrNotFound, ErrDiffers, ErrBusy, ErrClosed or a *tree.Error, and may have a method Hint.
func (n *Node) Hold(ctx context.Context, spec HoldSpec) (*Hold, error) {
	if err := n.left(); err != nil {
		return nil, err
	}
	held, err := n.launcherOf(spec.Launcher)
	if err != nil {
		return nil, err
	}
	if err := n.confine(&spec); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, modeTime)
	defer cancel()
	for attempt := 0; ; attempt++ {
		h, err := n.holdOnce(ctx, spec, held, attempt)
		if !errors.Is(err, errAgain) {
			return h, err
		}
		if attempt == 100 {
			return nil, fmt.Errorf("%s: it comes and goes too fast: %w", spec.Path, ErrBusy)
		}
	}
}

// errAgain: what was found before a lock was taken is no longer so.
var errAgain = errors.New("changed meanwhile")

// launcherOf describes the process behind a Peer.
func (n *Node) launcherOf(p Peer) (*launcher, error) {
	s, err := proc.Live(p.PID)
	if err != nil {
		return nil, fmt.Errorf("launcher: %w: %w", ErrInvalid, err)
	}
	return &launcher{Process: tenant.Process{PID: p.PID, Start: s.Start}, uid: p.UID, comm: s.Comm, present: true}, nil
}

// confine keeps a launcher where it is: in a bound cgroup below the node that it is bound to, and outside of other
// lgpus, whose programs could leave their limits behind otherwise.
func (n *Node) confine(spec *HoldSpec) error {
	e, err := tenant.Observe(spec.Launcher.PID, n.clientOf)
	if err != nil {
		return fmt.Errorf("launcher: %w: %w", ErrInvalid, err)
	}
	above := e
	if _, launches := n.launchers()[e.Process]; launches {
		above.Ancestors = e.Ancestors[1:] // one process may hold several
	}
	if node, inside := n.descent(above); inside {
		return hinted{
			fmt.Errorf("this is inside the lgpu %q already%w", nameOf(node.Path), silent{ErrInvalid}),
			"an lgpu cannot lie inside another: start it from outside",
		}
	}
	bound, ok := n.tree.Bound(cgroupText(e.Cgroups))
	if !ok {
		return nil
	}
	if spec.Path == "" && spec.Group == "" {
		spec.Group = bound
	}
	if at := spec.at(); !within(at, bound) {
		return hinted{
			fmt.Errorf("--group %s: %w: the cgroup of process %d belongs to %s", at, ErrInvalid, spec.Launcher.PID,
				bound),
			"choose a group below " + bound,
		}
	}
	return nil
}

// at is the path that the lgpu is to have, or the group that it is to be in.
func (s HoldSpec) at() string {
	switch {
	case s.Path != "":
		return s.Path
	case s.Group != "":
		return s.Group
	}
	return limits.Root
}

// plan is what a Hold found out before it took a lock.
type plan struct {
	path    string
	exists  bool
	id      uint64 // of the lgpu that exists
	active  bool
	shape   string
	devices []gpu.Device
	spatial bool
	// attached: the plan has an attachSim, until an lgpu takes it over.
	attached bool
}

// holdOnce is Hold, or errAgain where somebody changed what it is about meanwhile.
func (n *Node) holdOnce(ctx context.Context, spec HoldSpec, held *launcher, attempt int) (*Hold, error) {
	p, err := n.look(spec, held.PID, attempt)
	if err != nil {
		return nil, err
	}
	if p.shape != "" {
		o, err := n.attachSim(p.shape)
		if err != nil {
			return nil, err
		}
		p.shape, p.attached = o.shape, true
		defer func() {
			if p.attached {
				n.detachSim(o.shape)
			}
		}()
	}
	if err := n.choose(spec, p); err != nil {
		return nil, err
	}
	if !p.active {
		for _, d := range p.devices {
			if err := n.wantMode(ctx, d, p.spatial); err != nil {
				return nil, err
			}
		}
	}
	n.life.Lock()
	defer n.life.Unlock()
	if err := n.left(); err != nil {
		return nil, err
	}
	if p.exists {
		return n.join(spec, p, held)
	}
	return n.found(spec, p, held)
}

// look finds the lgpu that is asked for, if it exists.
func (n *Node) look(spec HoldSpec, pid, attempt int) (*plan, error) {
	p := &plan{path: spec.Path, shape: spec.Sim, spatial: spec.Spatial}
	if p.path == "" {
		p.path = path.Join(spec.at(), ownName(spec.Program, pid, attempt))
	}
	if spec.Spatial && spec.Gang != "" {
		return nil, fmt.Errorf("--gang %s: %w: lgpus on a device in spatial mode take no turns", spec.Gang, ErrInvalid)
	}
	if shape := spec.Sim; shape != "" {
		parsed, err := sim.ParseShape(shape)
		if err != nil {
			return nil, fmt.Errorf("--sim: %w: %w", ErrInvalid, err)
		}
		p.shape = parsed.String()
	}
	node, err := n.tree.Node(p.path)
	if err != nil {
		if spec.ID != 0 {
			return nil, fmt.Errorf("lgpu %s with id %d: %w", p.path, spec.ID, ErrNotFound)
		}
		return p, nil
	}
	if spec.Path == "" {
		return nil, errAgain // somebody has that name: try another
	}
	if spec.ID != 0 && spec.ID != node.ID {
		return nil, fmt.Errorf("lgpu %s with id %d: %w", p.path, spec.ID, ErrNotFound)
	}
	if len(node.Children) > 0 {
		return nil, groupError(node.Path)
	}
	p.exists, p.id = true, node.ID
	l := n.lgpuOf(node.ID)
	if l == nil {
		return p, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if (spec.Sim != "" || l.record.Active) && p.shape != l.record.Sim && spec.ID == 0 {
		return nil, hinted{
			fmt.Errorf("lgpu %q is on %s, not on %s: %w", nameOf(p.path), machineName(l.record.Sim),
				machineName(p.shape), ErrDiffers),
			"give the same --sim as it was made with",
		}
	}
	p.shape, p.active = l.record.Sim, l.record.Active
	if p.active {
		p.spatial = l.record.Spatial
	}
	return p, nil
}

// groupError is for who wants to run a program in a node that has others below it.
func groupError(path string) error {
	if path == limits.Root {
		return hinted{fmt.Errorf("the root is a group; programs run in lgpus below it%w", silent{ErrInvalid}),
			"leave the path out for an lgpu of its own: lgpu run -- COMMAND"}
	}
	return hinted{
		fmt.Errorf("%s is a group; programs run in lgpus, which have nothing below them%w", path, silent{ErrInvalid}),
		fmt.Sprintf("to run in that group: lgpu run --group %s -- COMMAND", path),
	}
}

// machineName names where devices are, for people.
func machineName(shape string) string {
	if shape == "" {
		return "this machine's devices"
	}
	return "the software GPU " + shape
}

// choose picks the devices. Those of an lgpu in use stay.
func (n *Node) choose(spec HoldSpec, p *plan) error {
	have := n.usable(p.shape)
	if len(have) == 0 && !p.active {
		return hinted{fmt.Errorf("this machine has no GPU: %w", ErrNoDevice),
			"a software GPU works on any machine: lgpu run --sim -- CMD"}
	}
	var before []gpu.UUID
	if l := n.lgpuOf(p.id); l != nil {
		n.mu.Lock()
		before = l.record.Devices
		n.mu.Unlock()
	}
	if len(spec.Devices) == 0 && len(before) > 0 {
		p.devices = nil
		for _, uuid := range before {
			if d := n.deviceOf(uuid); d != nil {
				p.devices = append(p.devices, d.Device)
			} else if !p.active {
				return fmt.Errorf("lgpu %q: its device %s is not there: %w", nameOf(p.path), uuid, ErrNoDevice)
			}
		}
		return nil
	}
	chosen := have
	if len(spec.Devices) > 0 {
		var err error
		if chosen, err = gpu.Select(have, spec.Devices); errors.Is(err, gpu.ErrTwice) {
			return fmt.Errorf("--device: %w%w", err, silent{ErrInvalid})
		} else if err != nil {
			return hinted{fmt.Errorf("--device: %w%w", err, silent{ErrNoDevice}),
				"name one by its index, its UUID or the beginning of that"}
		}
	}
	p.devices = chosen
	switch mig := slices.IndexFunc(chosen, gpu.Device.MIG); {
	case len(chosen) > region.MaxDevices:
		return hinted{fmt.Errorf("--device: %d devices; one lgpu spans at most %d%w", len(chosen), region.MaxDevices,
			silent{ErrInvalid}), "choose some by --device"}
	case mig >= 0 && len(chosen) > 1:
		return hinted{fmt.Errorf("--device: a program can use one MIG instance and nothing beside it%w",
			silent{ErrInvalid}), "choose one by --device"}
	case p.spatial && len(chosen) > 1:
		return hinted{fmt.Errorf("--spatial: an lgpu on a device in spatial mode has that device alone%w",
			silent{ErrInvalid}), "choose one by --device"}
	case p.active && !slices.Equal(uuidsOf(chosen), before):
		return hinted{
			fmt.Errorf("lgpu %q exists with other devices: %w", nameOf(p.path), ErrDiffers),
			"leave --device out to join it as it is, or choose another name",
		}
	}
	return nil
}

// silent classes an error without a word in its text, which is complete already.
type silent struct{ error }

func (silent) Error() string   { return "" }
func (s silent) Unwrap() error { return s.error }

// modeTime is how long somebody waits for devices to come into a mode. MPS takes seconds to begin or to end.
const modeTime = 15 * time.Second

// modeOf is the mode that an lgpu's devices are in.
func modeOf(spatial bool) mps.Mode {
	if spatial {
		return mps.Spatial
	}
	return mps.Temporal
}

// wantMode brings a device into the mode that an lgpu needs. It waits for a switch that is under way.
func (n *Node) wantMode(ctx context.Context, d gpu.Device, spatial bool) error {
	mode := modeOf(spatial)
	if n.modes.Settled(d.UUID, mode) {
		return nil
	}
	err := n.setMode(ctx, d.UUID, mode)
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%w%w", err, silent{ErrBusy})
	}
	return err
}

// found makes a temporary lgpu. life is held.
func (n *Node) found(spec HoldSpec, p *plan, held *launcher) (*Hold, error) {
	writes, err := spec.Limits.writes(p.devices)
	if err != nil {
		return nil, err
	}
	if err := n.outranked(p.path, spec.Limits.Priority, p.devices); err != nil {
		return nil, err
	}
	if spec.Gang != "" {
		writes = append(writes, limits.Assignment{File: "gang", Text: spec.Gang})
	}
	node, err := n.tree.Create(limits.CreateSpec{
		Path: p.path, Temporary: true, UID: spec.Launcher.UID, GID: spec.Launcher.GID, Writes: writes, Enter: true,
	})
	if errors.Is(err, unix.EEXIST) {
		if _, gone := n.tree.Node(p.path); gone == nil {
			return nil, errAgain
		}
	}
	if err != nil {
		return nil, err
	}
	l := newLgpu(node.ID)
	l.record.Sim, l.record.Devices, l.record.Spatial = p.shape, uuidsOf(p.devices), p.spatial
	undo := func(err error) error {
		n.tree.Leave(p.path)
		return errors.Join(err, n.tree.Rmdir(p.path))
	}
	if err := n.bring(l, node, true); err != nil {
		n.mu.Lock()
		delete(n.lgpus, node.ID)
		n.mu.Unlock()
		return nil, undo(err)
	}
	l.attached, p.attached = p.attached, false
	return n.hand(l, node, held)
}

// join takes part in an lgpu that exists. life is held.
func (n *Node) join(spec HoldSpec, p *plan, held *launcher) (*Hold, error) {
	node, ok := n.tree.ByID(p.id)
	if !ok {
		return nil, errAgain
	}
	l := n.lgpuOf(p.id)
	fresh := l == nil
	if fresh {
		l = newLgpu(p.id)
	}
	n.mu.Lock()
	active, shape := l.record.Active, l.record.Sim
	n.mu.Unlock()
	if active != p.active || !fresh && shape != p.shape {
		return nil, errAgain
	}
	if difference := spec.differs(node, p.devices); difference != "" {
		return nil, hinted{
			fmt.Errorf("lgpu %q exists with %s%w", node.Path, difference, silent{ErrDiffers}),
			"leave the limits out to join it as it is, or choose another name",
		}
	}
	if active {
		return n.hand(l, node, held)
	}
	var h *Hold
	err := n.attempt(l, &p.attached, func(r *store.Lgpu) {
		r.Devices, r.Spatial, r.Sim = uuidsOf(p.devices), p.spatial, p.shape
	}, func() (err error) {
		if err = n.bring(l, node, false); err == nil {
			h, err = n.hand(l, node, held)
		}
		return err
	})
	return h, err
}

// attempt changes the record of an inactive lgpu and takes it into use. After an error nothing of that is left: the
// record is as it was, and one that was new is forgotten. attached says that the caller has an attachSim, which the lgpu
// takes over where it has none. life is held.
func (n *Node) attempt(l *lgpu, attached *bool, change func(*store.Lgpu), use func() error) error {
	n.mu.Lock()
	_, known := n.lgpus[l.record.ID]
	before := l.record
	change(&l.record)
	n.mu.Unlock()
	takes := !l.attached
	if takes {
		l.attached, *attached = *attached, false
	}
	err := use()
	if err == nil {
		return nil
	}
	if takes {
		l.attached, *attached = false, l.attached
	}
	if _, exists := n.tree.ByID(before.ID); !known || !exists {
		return errors.Join(err, n.drop(l))
	}
	n.mu.Lock()
	l.record = before
	n.mu.Unlock()
	return errors.Join(err, n.save(l))
}

// hand gives an lgpu in use to a launcher. life is held.
func (n *Node) hand(l *lgpu, node limits.Node, held *launcher) (*Hold, error) {
	n.mu.Lock()
	for other := range l.launchers {
		if other.Process == held.Process && !other.present {
			other.present = true // it is back after a restart
			held = other
		}
	}
	l.launchers[held] = true
	n.mu.Unlock()
	h := &Hold{Path: node.Path, Name: nameOf(node.Path), ID: node.ID, Sim: l.record.Sim}
	h.close = sync.OnceValue(func() error { return n.release(l, held) })
	environment, err := n.environment(l, node)
	if err == nil {
		err = n.save(l)
	}
	if err != nil {
		n.mu.Lock()
		delete(l.launchers, held)
		n.mu.Unlock()
		_, failed := n.retire(l)
		return nil, errors.Join(err, failed)
	}
	h.Environment = environment
	for _, uuid := range l.record.Devices {
		if d := n.deviceOf(uuid); d != nil {
			h.Devices = append(h.Devices, d.Device)
		}
	}
	return h, nil
}

// environment is what a tenant's programs need.
func (n *Node) environment(l *lgpu, node limits.Node) (map[string]string, error) {
	env := map[string]string{SocketEnvironment: filepath.Join(n.config.Dir, TenantSocket)}
	for _, uuid := range l.record.Devices {
		d := n.deviceOf(uuid)
		if d == nil {
			continue
		}
		if socket := d.origin.socket.Load(); socket != nil {
			env[wire.Environment] = *socket
		}
		if d.MIG() {
			env["CUDA_VISIBLE_DEVICES"] = d.Identity()
		}
		if !l.record.Spatial {
			continue
		}
		e, _ := node.Device(d.Identity())
		request := mps.Tenant{Percent: e.Cap}
		if request.Percent < units.Whole {
			request.Percent++ // MPS rounds down what has been rounded down to hundredths: 16 units of 132 became 14
		}
		if d.origin.shape != "" && !e.Whole {
			request = mps.Tenant{Units: e.Bits.String()}
		}
		spatial, err := n.modes.Env(uuid, request)
		if err != nil {
			return nil, fmt.Errorf("--spatial: %w", err)
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

// CreateSpec describes a persistent node.
type CreateSpec struct {
	Path   string
	Sim    string              // shape of the software GPU that it is for; empty for the machine's own devices
	Writes []limits.Assignment // written to its files in the same transaction
	Owner  Peer                // who asks
}
