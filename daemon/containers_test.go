package daemon

import (
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/daemon/cdi"
	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/gpu/gputest"
	"github.com/lgpu/lgpu/policy/limits"
)

func (f *fakeTenants) OpenDoor(uint64) (string, error) { return "", nil }
func (f *fakeTenants) CloseDoor(uint64) error          { return nil }

func (f *fakeTenants) Observe(pid int) (tenant.Evidence, error) {
	return tenant.Observe(pid, func(p tenant.Process) uint64 {
		for _, c := range f.Clients() {
			if c.Peer.Process == p {
				return c.LGPU
			}
		}
		return 0
	})
}

// TestEnter: a process of a container is in the lgpu whose folder it has, if it came by that lgpu's socket or by the
// tenants', and whoever made the container may run programs there.
func TestEnter(t *testing.T) {
	r := start(t, Config{})
	ids := map[string]uint64{}
	for path, owner := range map[string]uint32{"/roots": 0, "/hers": 1000, "/pod": 0} {
		if err := r.Tree().Mkdir(path, owner, owner); err != nil {
			t.Fatal(err)
		}
		dir, err := r.Tree().Directory(path)
		if err != nil {
			t.Fatal(err)
		}
		ids[path] = dir.ID
	}
	if err := r.Tree().Write("/pod", "cgroup.path", "/kube/pod"); err != nil {
		t.Fatal(err)
	}
	launcher := program(t)
	inside := r.holds(t, AttachSpec{Path: "/inside", Launcher: limits.Author{PID: launcher.Process.Pid}})
	defer inside.Close()
	self := tenant.Ancestor{Process: tenant.Process{PID: 4711}}
	for name, c := range map[string]struct {
		evidence tenant.Evidence
		want     string
	}{
		"root's container":                   {tenant.Evidence{Door: ids["/roots"], Container: ids["/roots"]}, "/roots"},
		"root's, of a user's lgpu":           {tenant.Evidence{Door: ids["/hers"], Container: ids["/hers"]}, "/hers"},
		"a user's, of hers":                  {tenant.Evidence{Door: ids["/hers"], Container: ids["/hers"], Maker: 1000}, "/hers"},
		"a user's, of root's":                {tenant.Evidence{Door: ids["/roots"], Container: ids["/roots"], Maker: 1000}, ""},
		"a user's, of root's, no door":       {tenant.Evidence{Container: ids["/roots"], Maker: 1000}, ""},
		"another user's":                     {tenant.Evidence{Door: ids["/hers"], Container: ids["/hers"], Maker: 1001}, ""},
		"by the tenants' socket":             {tenant.Evidence{Container: ids["/roots"]}, "/roots"},
		"a door, outside of containers":      {tenant.Evidence{Door: ids["/roots"]}, ""},
		"another's door":                     {tenant.Evidence{Door: ids["/hers"], Container: ids["/roots"]}, ""},
		"a folder mounted over another's":    {tenant.Evidence{Door: ids["/roots"], Container: ids["/roots"], Neighbour: ids["/hers"]}, ""},
		"the folder hidden, by the cgroup":   {tenant.Evidence{Neighbour: ids["/hers"]}, "/hers"},
		"in a bound cgroup":                  {tenant.Evidence{Door: ids["/roots"], Container: ids["/roots"], Cgroups: []tenant.Cgroup{{Path: "/kube/pod/x"}}}, ""},
		"in the bound cgroup of its lgpu":    {tenant.Evidence{Door: ids["/pod"], Container: ids["/pod"], Cgroups: []tenant.Cgroup{{Path: "/kube/pod/x"}}}, "/pod"},
		"a container started inside an lgpu": {tenant.Evidence{Door: ids["/roots"], Container: ids["/roots"], Ancestors: []tenant.Ancestor{self, {LGPU: inside.ID}}}, ""},
		"its own child":                      {tenant.Evidence{Door: ids["/roots"], Container: ids["/roots"], Ancestors: []tenant.Ancestor{self, {LGPU: ids["/roots"]}}}, "/roots"},
	} {
		c.evidence.PID = 4711
		for how, resolve := range map[string]func(tenant.Evidence) (uint64, error){"ask": r.resolver.Ask, "resolve": r.resolver.Resolve} {
			got, err := resolve(c.evidence)
			var refused *tenant.Refusal
			denied := errors.As(err, &refused) && refused.Errno == unix.EPERM
			if c.want == "" && !denied || c.want != "" && (err != nil || got != ids[c.want]) {
				t.Errorf("%s, %s: %d, %v; want %q", name, how, got, err, c.want)
			}
		}
	}
}

// TestIdleBesideOffers: that the offers are looked at again, as with every look at the devices, is no use of the daemon.
func TestIdleBesideOffers(t *testing.T) {
	r := start(t, Config{Idle: 100 * time.Millisecond, Containers: Containers{Specs: cdi.Folder{Dir: t.TempDir()}}})
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for end := time.After(20 * time.Second); ; {
		select {
		case <-look.C:
			r.containers.notice()
		case err := <-r.run:
			r.run <- err
			return
		case <-end:
			t.Fatal("the daemon does not leave")
		}
	}
}

// TestInstances: a container has one MIG instance, and of an lgpu that has several, or was given none, one learns what to do. Its
// files are the GPU's and its own.
func TestInstances(t *testing.T) {
	whole := gpu.Device{UUID: gpu.UUID{1}, Name: "Fake GPU", Memory: 16 << 30, Units: 14, Node: "195:0", Partitioned: true}
	all := []gpu.Device{whole}
	for i := range 2 {
		all = append(all, gpu.Device{UUID: gpu.UUID{2, byte(i)}, Index: i, Name: "Fake GPU MIG 1g.2gb", Memory: 2 << 30, Units: 2,
			Parent: whole.UUID, GPUInstance: i + 1, ComputeInstance: 0})
	}
	r := start(t, Config{Inventories: []gpu.Inventory{gputest.New(all...)}})
	for path, devices := range map[string][]gpu.UUID{"/one": {all[2].UUID}, "/none": nil} {
		d, err := r.Create(t.Context(), CreateSpec{Path: path, Devices: devices})
		if err != nil {
			t.Fatal(err)
		}
		found, shape, err := r.containers.devices(d.ID, path)
		switch {
		case devices != nil && (err != nil || shape != "" || len(found) != 1 || found[0].UUID != all[2].UUID):
			t.Errorf("%s has %v, %q, %v", path, found, shape, err)
		case devices == nil && (!errors.Is(err, gpu.ErrInstances) ||
			!strings.Contains(err.Error(), "lgpu run --group / --name none --device DEVICE")):
			t.Errorf("%s has %v, %q, %v", path, found, shape, err)
		}
		if devices == nil {
			_, _, err := r.resolver.devicesFor(limits.Directory{ID: d.ID, Path: path}, "")
			var refused *tenant.Refusal
			if !errors.As(err, &refused) || refused.Errno != unix.EINVAL {
				t.Errorf("a process of %s: %v", path, err)
			}
		}
	}
	if name := r.journal.device(all[2].UUID); name != "MIG-02010000-0000-0000-0000-000000000000" {
		t.Errorf("the log calls an instance %s", name)
	}
	if name := r.journal.device(gpu.UUID{3}); name != "GPU-03000000-0000-0000-0000-000000000000" {
		t.Errorf("the log calls a device that is gone %s", name)
	}
	if _, err := r.Create(t.Context(), CreateSpec{Path: "/two", Devices: uuidsOf(all[1:])}); !errors.Is(err, gpu.ErrInstances) {
		t.Errorf("two instances: %v", err)
	}
	if _, err := r.Create(t.Context(), CreateSpec{Path: "/whole", Devices: uuidsOf(all[:1])}); !errors.Is(err, ErrNoDevice) {
		t.Errorf("a GPU in MIG mode: %v", err)
	}
	numberless := all[1]
	numberless.GPUInstance = -1
	if _, err := deviceFiles(numberless); err == nil || !strings.Contains(err.Error(), "which MIG instance") {
		t.Errorf("an instance without a number: %v", err)
	}
}
