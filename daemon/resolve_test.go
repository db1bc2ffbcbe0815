package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/daemon/mps"
	"github.com/lgpu/lgpu/daemon/tenant"
	treefs "github.com/lgpu/lgpu/daemon/treefs"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/gpu/gputest"
	"github.com/lgpu/lgpu/internal/proc"
	"github.com/lgpu/lgpu/policy/limits"
	"github.com/lgpu/lgpu/tenant/region"
)

// Who belongs to which lgpu: cgroups first, but a launcher below the bound directory is nearer; else descent.
func TestResolve(t *testing.T) {
	r := start(t, Config{})
	for _, at := range []string{"/bound", "/group", "/elsewhere"} {
		if err := r.Tree().Mkdir(at, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	for node, cgroup := range map[string]string{"/bound": "/kube/pod1", "/group": "/kube/pod2"} {
		if err := r.Tree().Write(node, "cgroup.path", cgroup); err != nil {
			t.Fatal(err)
		}
	}
	inside, outside := program(t), program(t)
	in := r.holds(t, AttachSpec{Path: "/group/in", Launcher: limits.Author{PID: inside.Process.Pid}})
	out := r.holds(t, AttachSpec{Path: "/elsewhere/out", Launcher: limits.Author{PID: outside.Process.Pid}})
	process := func(pid int) tenant.Process {
		s, err := proc.Live(pid)
		if err != nil {
			t.Fatal(err)
		}
		return tenant.Process{PID: pid, Start: s.Start}
	}
	within, beyond := process(inside.Process.Pid), process(outside.Process.Pid)
	bound, err := r.Tree().Directory("/bound")
	if err != nil {
		t.Fatal(err)
	}
	evidence := func(cgroup string, ancestors ...tenant.Ancestor) tenant.Evidence {
		return tenant.Evidence{
			Peer: tenant.Peer{Process: tenant.Process{PID: 4711}}, Cgroups: []tenant.Cgroup{{Path: cgroup}},
			Ancestors: append([]tenant.Ancestor{{Process: tenant.Process{PID: 4711}}}, ancestors...),
		}
	}
	for name, c := range map[string]struct {
		evidence tenant.Evidence
		want     uint64
		errno    syscall.Errno
	}{
		"a stranger":         {evidence("/"), 0, unix.EPERM},
		"a launcher's child": {evidence("/", tenant.Ancestor{Process: beyond}), out.ID, 0},
		"the nearer of two": {evidence("/", tenant.Ancestor{Process: within},
			tenant.Ancestor{Process: beyond}), in.ID, 0},
		"a client's child": {evidence("/", tenant.Ancestor{LGPU: in.ID},
			tenant.Ancestor{Process: beyond}), in.ID, 0},
		"a client that became a launcher": {evidence("/", tenant.Ancestor{Process: within, LGPU: out.ID}), in.ID, 0},
		"one with a launcher's old pid": {evidence("/", tenant.Ancestor{Process: tenant.Process{PID: beyond.PID,
			Start: 1}}), 0, unix.EPERM},
		"in a bound cgroup":               {evidence("/kube/pod1/x"), bound.ID, 0},
		"in one that only begins alike":   {evidence("/kube/pod11"), 0, unix.EPERM},
		"in a group's cgroup":             {evidence("/kube/pod2"), 0, unix.EBUSY},
		"in a group's, by a launcher":     {evidence("/kube/pod2", tenant.Ancestor{Process: within}), in.ID, 0},
		"confined, by a launcher outside": {evidence("/kube/pod1", tenant.Ancestor{Process: beyond}), bound.ID, 0},
	} {
		got, err := r.resolver.Resolve(c.evidence)
		var refused *tenant.Refusal
		if c.errno != 0 && (!errors.As(err, &refused) || refused.Errno != c.errno) || c.errno == 0 && (err != nil ||
			got != c.want) {
			t.Errorf("%s: %d, %v; want %d, %v", name, got, err, c.want, c.errno)
		}
	}
	if l := r.tenants.limits(bound.ID); len(l.Devices) != 2 {
		t.Errorf("the lgpu of the bound cgroup has %+v", l)
	}
	// Nobody came, so it is out of use again, and stays.
	for slices.ContainsFunc(r.Snapshot().Directories, func(n Directory) bool {
		return n.Path == "/bound" &&
			r.Tree().Users("/bound") > 0
	}) {
		if t.Context().Err() != nil {
			t.Fatal("the lgpu stays in use")
		}
	}
}

// A program of an lgpu cannot leave it by being a launcher.
func TestNoEscape(t *testing.T) {
	r := start(t, Config{})
	h := r.holds(t, AttachSpec{Path: "/outer"})
	defer h.Close()
	r.holds(t, AttachSpec{Path: "/other"}).Close() // a launcher may have several
	child := limits.Author{PID: program(t).Process.Pid}
	var hint interface{ Hint() string }
	if h, err := r.Attach(t.Context(), AttachSpec{Launcher: child}); !errors.Is(err, ErrInvalid) || !errors.As(err,
		&hint) ||
		!strings.HasPrefix(err.Error(), `this is inside the lgpu "outer" already`) {
		t.Errorf("%v, %v", h, err)
	}
	target := r.holds(t, AttachSpec{Path: "/target"})
	defer target.Close()
	if h, err := r.Attach(t.Context(), AttachSpec{Path: "/target", ID: target.ID, Launcher: child}); !errors.Is(err,
		ErrInvalid) {
		t.Errorf("as a launcher that is back: %v, %v", h, err)
	}
	client := program(t)
	s, err := proc.Live(client.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
	group := r.holds(t, AttachSpec{Path: "/kept"})
	r.tenants.join(tenant.Client{LGPU: group.ID, Peer: tenant.Peer{Process: tenant.Process{PID: client.Process.Pid,
		Start: s.Start}}})
	group.Close()
	if h, err := r.Attach(t.Context(), AttachSpec{Launcher: limits.Author{PID: client.Process.Pid}}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a client: %v, %v", h, err)
	}
}

// A launcher in a bound cgroup stays below the directory. This process makes itself one.
func TestConfine(t *testing.T) {
	r := start(t, Config{})
	if err := r.Tree().Mkdir("/team", 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := r.Tree().Write("/team", "cgroup.path", "/"); err != nil {
		t.Fatal(err)
	}
	h := r.holds(t, AttachSpec{Program: "x"})
	if !strings.HasPrefix(h.Path, "/team/x-") {
		t.Errorf("made at %s", h.Path)
	}
	h.Close()
	for _, spec := range []AttachSpec{{Path: "/other"}, {Group: "/"}} {
		spec.Launcher = self()
		if h, err := r.Attach(t.Context(), spec); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v, %v", spec, h, err)
		}
	}
}

// On a device in spatial mode an lgpu gets units by name, and nobody takes turns beside it.
func TestSpatial(t *testing.T) {
	r := start(t, Config{Dir: shortDir(t), SimCommand: simCommand(), Inventories: []gpu.Inventory{}})
	const shape = "2x256MiB,sms=8"
	spec := AttachSpec{Sim: shape, Spatial: true, Devices: []string{"0"}, Limits: asks(limits.Limits{Count: ptr(2)})}
	a := r.holds(t, spec)
	b := r.holds(t, spec)
	na, nb := r.node(t, a.Path).Devices[0], r.node(t, b.Path).Devices[0]
	if na.Effective.Bits.Equal(nb.Effective.Bits) || na.Effective.Bits.Count() != 2 || !na.Named {
		t.Errorf("units %q and %q", na.Effective.Bits, nb.Effective.Bits)
	}
	if l := r.tenants.limits(a.ID); l.Devices[0].Compute != region.FullCompute || l.Devices[0].Units != 2 {
		t.Errorf("limits %+v", l)
	}
	named := false
	for _, v := range a.Environment {
		named = named || v == na.Effective.Bits.String()
	}
	if !named {
		t.Errorf("no units in %v", a.Environment)
	}
	if d := r.Snapshot().Devices; d[0].Mode != "spatial" || d[1].Mode != "temporal" {
		t.Errorf("modes %s, %s", d[0].Mode, d[1].Mode)
	}
	// The other way to share a device has to wait.
	if h, err := r.Attach(t.Context(), AttachSpec{Sim: shape, Devices: []string{"0"}, Launcher: self()}); !errors.Is(err,
		ErrBusy) {
		t.Errorf("in turns: %v, %v", h, err)
	}
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Fatal(err)
	}
	if h, err := r.Attach(t.Context(), AttachSpec{Sim: shape, Spatial: true, Launcher: self()}); !errors.Is(err,
		ErrInvalid) {
		t.Errorf("on two devices: %v, %v", h, err)
	}
	h := r.holds(t, AttachSpec{Sim: shape, Devices: []string{"0"}})
	if d := r.Snapshot().Devices; d[0].Mode != "temporal" {
		t.Errorf("mode %s", d[0].Mode)
	}
	h.Close()
}

// Whoever comes while a device is on its way to another mode waits for that, and a program of a bound cgroup gets no
// device on which no gate would hold it.
func TestModeSwitch(t *testing.T) {
	bin := t.TempDir()
	// The control daemon of MPS: it notes its process, and takes its time to quit.
	const control = `#!/bin/sh
note=$CUDA_MPS_PIPE_DIRECTORY/note
if [ "$1" = -f ]; then echo $$ >$note; exec sleep 1000; fi
[ -f $note ] || exit 1
read command
if [ "$command" = quit ]; then sleep 0.3; kill $(cat $note); fi
`
	if err := os.WriteFile(filepath.Join(bin, "nvidia-cuda-mps-control"), []byte(control), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	r := start(t, Config{Dir: shortDir(t)})
	t.Cleanup(func() { r.modes.Close() })
	spatial := AttachSpec{Spatial: true, Devices: []string{"0"}}
	h := r.holds(t, spatial)
	uuid := h.Devices[0].UUID
	if err := r.Tree().Mkdir("/bound", 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := r.Tree().Write("/bound", "cgroup.path", "/kube/pod"); err != nil {
		t.Fatal(err)
	}
	bound := tenant.Evidence{
		Peer: tenant.Peer{Process: tenant.Process{PID: 4711}}, Cgroups: []tenant.Cgroup{{Path: "/kube/pod"}},
	}
	var refused *tenant.Refusal
	if id, err := r.resolver.Resolve(bound); !errors.As(err, &refused) || refused.Errno != unix.EBUSY {
		t.Errorf("beside MPS: %d, %v", id, err)
	}
	h.Close()
	first := make(chan error, 1)
	go func() {
		h, err := r.Attach(context.Background(), AttachSpec{Devices: []string{"0"}, Launcher: self()})
		if err == nil {
			err = h.Close()
		}
		first <- err
	}()
	for r.modes.Settled(uuid, mps.Spatial) { // it has not begun to end MPS
		if t.Context().Err() != nil {
			t.Fatal("the mode stays")
		}
	}
	if h, err := r.Attach(t.Context(), AttachSpec{Devices: []string{"0"}, Launcher: self()}); err != nil {
		t.Errorf("while MPS ends: %v", err)
	} else {
		h.Close()
	}
	if err := <-first; err != nil {
		t.Error(err)
	}
	if id, err := r.resolver.Resolve(bound); err != nil {
		t.Errorf("after MPS: %d, %v", id, err)
	}
}

// Two holds of a shape share one software GPU, which goes with the last.
func TestSoftwareGPU(t *testing.T) {
	r := start(t, Config{Dir: shortDir(t), SimCommand: simCommand(), Inventories: []gpu.Inventory{}})
	if _, err := r.Create(t.Context(), CreateSpec{Path: "/kept", Sim: "1x256MiB,sms=2"}); err != nil {
		t.Fatal(err)
	}
	a, b := r.holds(t, AttachSpec{Sim: "1x256MiB,sms=2"}), r.holds(t, AttachSpec{Sim: "256MiB,sms=2"})
	if a.Sim != b.Sim || a.Devices[0].UUID != b.Devices[0].UUID || len(r.Snapshot().Devices) != 1 {
		t.Errorf("%+v and %+v", a, b)
	}
	other := r.holds(t, AttachSpec{Sim: "2x256MiB,sms=4"})
	if len(r.Snapshot().Devices) != 3 {
		t.Errorf("devices %+v", r.Snapshot().Devices)
	}
	if err := errors.Join(a.Close(), b.Close(), other.Close()); err != nil {
		t.Fatal(err)
	}
	// A process in a bound cgroup is on the software GPU that is left, on a machine without devices.
	for len(r.Snapshot().Devices) != 1 {
		if t.Context().Err() != nil {
			t.Fatal("devices stay")
		}
	}
	if err := r.Tree().Mkdir("/bound", 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := r.Tree().Write("/bound", "cgroup.path", "/pod"); err != nil {
		t.Fatal(err)
	}
	id, err := r.resolver.Resolve(tenant.Evidence{Cgroups: []tenant.Cgroup{{Path: "/pod"}}})
	if err != nil || len(r.tenants.limits(id).Devices) != 1 {
		t.Errorf("%d, %v", id, err)
	}
	for r.Tree().Users("/bound") > 0 { // nobody came
		if t.Context().Err() != nil {
			t.Fatal("the lgpu stays in use")
		}
	}
	if err := r.Remove(t.Context(), self(), "/bound"); err != nil {
		t.Fatal(err)
	}
	for len(r.Snapshot().Devices) != 1 {
		if t.Context().Err() != nil {
			t.Fatal("devices stay")
		}
	}
	if err := r.Remove(t.Context(), self(), "/kept"); err != nil {
		t.Fatal(err)
	}
	for len(r.Snapshot().Devices) != 0 {
		if t.Context().Err() != nil {
			t.Fatal("the device of an lgpu that was removed stays")
		}
	}
}

// hung is a machine whose driver does not come back from a question about a device.
type hung struct {
	*gputest.Inventory
	asked, back chan struct{}
}

func (h hung) Facts(uuid gpu.UUID) (gpu.Facts, error) {
	select {
	case h.asked <- struct{}{}:
	default:
	}
	<-h.back
	return h.Inventory.Facts(uuid)
}

// A driver that hangs keeps neither launchers from their lgpus nor the daemon from its end.
func TestHungDriver(t *testing.T) {
	driver := hung{machineOf(t), make(chan struct{}, 1), make(chan struct{})}
	defer close(driver.back)
	r := start(t, Config{Inventories: []gpu.Inventory{driver}})
	r.closeTime = 10 * time.Millisecond
	<-driver.asked
	h := r.holds(t, AttachSpec{Path: "/x"})
	if n := r.node(t, "/x"); n.ID != h.ID {
		t.Errorf("%+v", n)
	}
	h.Close()
	r.stop()
}

// Any number of launchers may be first.
func TestManyAttachAtOnce(t *testing.T) {
	r := start(t, Config{Dir: shortDir(t), SimCommand: simCommand(), Inventories: []gpu.Inventory{}})
	const many = 16
	holds := make(chan *Attachment, many)
	for range many {
		go func() {
			h, err := r.Attach(t.Context(), AttachSpec{Sim: "1x256MiB,sms=2", Program: "p", Launcher: self()})
			if err != nil {
				t.Error(err)
			}
			holds <- h
		}()
	}
	ids := map[uint64]bool{}
	for range many {
		if h := <-holds; h != nil {
			ids[h.ID] = true
			defer h.Close()
		}
	}
	if len(ids) != many {
		t.Errorf("%d lgpus of %d", len(ids), many)
	}
}

// The tree as files: what is written there is with the tenants.
func TestMount(t *testing.T) {
	if _, err := os.Stat("/dev/fuse"); err != nil || os.Getuid() != 0 {
		t.Skip("no /dev/fuse, or not root")
	}
	r := start(t, Config{Mount: MountOn})
	h := r.holds(t, AttachSpec{Path: "/x"})
	dir := filepath.Join(r.Dir(), TreeFolder)
	for r.Snapshot().Daemon.Tree != dir {
		if t.Context().Err() != nil {
			t.Fatal("not mounted")
		}
	}
	// Not by package os: it asks of what it opens whether it can be polled, and holds a processor meanwhile, which this
	// process may need to serve the answer.
	fd, err := unix.Open(filepath.Join(dir, "x", "memory.max"), unix.O_WRONLY|unix.O_TRUNC|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(fd, []byte("195:1 8388608\n")); err != nil {
		t.Error(err)
	}
	if err := unix.Close(fd); err != nil {
		t.Error(err)
	}
	if l := r.tenants.limits(h.ID); l.Devices[1].Memory != 8<<20 {
		t.Errorf("%+v", l)
	}
	if err := os.Remove(filepath.Join(dir, "x")); !errors.Is(err, unix.EBUSY) {
		t.Errorf("an lgpu in use is removed: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "y"), 0o755); err != nil {
		t.Error(err)
	}
	if n := r.node(t, "/y"); !n.Persistent {
		t.Errorf("%+v", n)
	}
	h.Close()
	r.stop()
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("still mounted: %v, %v", entries, err)
	}
	// One that a daemon has left goes also where the next shows none.
	left, err := treefs.Mount(dir, limits.New(limits.Options{}), treefs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	start(t, Config{Dir: r.Dir(), Mount: MountOff})
	left.Wait()
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left mounted: %v, %v", entries, err)
	}
}
