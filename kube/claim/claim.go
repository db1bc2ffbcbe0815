package claim

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/kube/slice"
)

// Group is the directory of the tree that the lgpus of claims are in.
const Group = "/kube"

// uid is what a claim's UID looks like: it becomes a name in the tree and in the specification.
var uid = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// Path is the lgpu of the claim with a UID.
func Path(claim string) (string, error) {
	if !uid.MatchString(claim) {
		return "", fmt.Errorf("claim %.64q: this is no UID", claim)
	}
	return Group + "/" + claim, nil
}

// CDI is the name by which container runtimes know the lgpu of the claim with a UID (docs/containers.md, Names).
func CDI(claim string) string {
	return "lgpu.io/lgpu=" + strings.ReplaceAll(strings.TrimPrefix(Group, "/"), "/", ":") + ":" + claim
}

// OfCDI is the path of the lgpu that container runtimes know by a name, if it is that of a claim.
func OfCDI(name string) (path string, ok bool) {
	_, claim, _ := strings.Cut(name, ":")
	path, err := Path(claim)
	return path, err == nil && CDI(claim) == name
}

// Share is what a claim has of one device.
type Share struct {
	slice.Device
	Memory, Units uint64 // in bytes; in compute units
	Result        resourceapi.DeviceRequestAllocationResult
}

// Lgpu is what a claim has: one lgpu, on as many devices as it was given.
type Lgpu struct {
	Path   string
	Shares []Share // in the order of the allocation, which is that in which programs see the devices
	Config Config
}

// Of returns the lgpu that a claim's allocation means, of the node's devices in a pool. Only what was allocated counts, never
// what was requested.
func Of(c *resourceapi.ResourceClaim, pool string, devices []slice.Device) (Lgpu, error) {
	path, err := Path(string(c.UID))
	if err != nil {
		return Lgpu{}, err
	}
	l := Lgpu{Path: path}
	if c.Status.Allocation == nil {
		return Lgpu{}, errors.New("the claim is not allocated")
	}
	used := map[string]bool{}
	var requests []string
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver != slice.Driver {
			continue
		}
		s, err := share(r, pool, devices)
		if err != nil {
			return Lgpu{}, fmt.Errorf("request %s: %w", r.Request, err)
		}
		if used[s.UUID] {
			return Lgpu{}, fmt.Errorf("request %s: the claim has device %s twice, and an lgpu has a device once; make two claims, "+
				"or add a distinctAttribute constraint on %s/uuid", r.Request, r.Device, slice.Driver)
		}
		used[s.UUID] = true
		l.Shares, requests = append(l.Shares, s), append(requests, r.Request)
	}
	if len(l.Shares) == 0 {
		return Lgpu{}, fmt.Errorf("the claim has no device of %s", slice.Driver)
	}
	l.Config, err = configOf(c.Status.Allocation.Devices.Config, requests)
	return l, err
}

func share(r resourceapi.DeviceRequestAllocationResult, pool string, devices []slice.Device) (Share, error) {
	if r.AdminAccess != nil && *r.AdminAccess {
		return Share{}, errors.New("adminAccess is not supported: use lgpu top on the node")
	}
	if r.Pool != pool {
		return Share{}, fmt.Errorf("pool %s is not this node's, %s", r.Pool, pool)
	}
	for _, d := range devices {
		if d.Name != r.Device {
			continue
		}
		s := Share{Device: d, Result: r}
		var err error
		if s.Memory, err = part(r, slice.Memory, d.Memory, 1); err != nil {
			return Share{}, err
		}
		s.Units, err = part(r, slice.Units, d.Units, d.Step)
		return s, err
	}
	return Share{}, fmt.Errorf("device %s is not there", r.Device)
}

// part is what was allocated of a capacity.
func part(r resourceapi.DeviceRequestAllocationResult, name resourceapi.QualifiedName, total, step uint64) (uint64, error) {
	q, ok := r.ConsumedCapacity[name]
	if !ok {
		return 0, fmt.Errorf("the allocation has no consumedCapacity of %s: is the feature gate DRAConsumableCapacity on?", name)
	}
	n, exact := q.AsInt64()
	if !exact || n <= 0 || uint64(n) > total || uint64(n)%step != 0 {
		return 0, fmt.Errorf("%s %s cannot be given: device %s has %d, in steps of %d", q.String(), name, r.Device, total, step)
	}
	return uint64(n), nil
}

// configOf joins the configurations that are for one of the requests: those of classes first, so that the claim's win.
func configOf(all []resourceapi.DeviceAllocationConfiguration, requests []string) (Config, error) {
	var joined Config
	for _, source := range []resourceapi.AllocationConfigSource{resourceapi.AllocationConfigSourceClass,
		resourceapi.AllocationConfigSourceClaim} {
		for _, c := range all {
			if c.Source != source || c.Opaque == nil || c.Opaque.Driver != slice.Driver || !concerns(c.Requests, requests) {
				continue
			}
			one, err := ParseConfig(c.Opaque.Parameters.Raw)
			if err != nil {
				return Config{}, err
			}
			joined = joined.over(one)
		}
	}
	return joined, joined.ordered()
}

// concerns reports whether a configuration for some requests, or with none for all, is for one that was allocated. The request
// of an alternative is REQUEST/ALTERNATIVE.
func concerns(of, allocated []string) bool {
	for _, a := range allocated {
		request, _, _ := strings.Cut(a, "/")
		for _, name := range of {
			if name == a || name == request {
				return true
			}
		}
	}
	return len(of) == 0
}

// Files are the control files of the lgpu (docs/files.md).
func (l Lgpu) Files() []*api.File {
	var memory, units strings.Builder
	for _, s := range l.Shares {
		fmt.Fprintf(&memory, "%s %d\n", s.Key, s.Memory)
		fmt.Fprintf(&units, "%s count=%d", s.Key, s.Units/s.Step)
		if l.Config.List != "" {
			fmt.Fprintf(&units, " list=%s", l.Config.List)
		}
		units.WriteByte('\n')
	}
	files := []*api.File{{Name: "memory.max", Data: []byte(memory.String())}, {Name: "lgpu", Data: []byte(units.String())}}
	add := func(name, text string) { files = append(files, &api.File{Name: name, Data: []byte(text + "\n")}) }
	c := l.Config
	if c.Weight != nil {
		add("lgpu.weight", strconv.Itoa(*c.Weight))
	}
	if c.Cap != nil {
		add("compute.max", strconv.Itoa(*c.Cap)+"%")
	}
	if c.Minimum != nil {
		add("compute.min", strconv.Itoa(*c.Minimum)+"%")
	}
	if c.Priority != "" {
		add("lgpu.priority", c.Priority)
	}
	if c.Overcommit != nil && *c.Overcommit {
		add("memory.overcommit", "1")
	}
	return files
}

// Room returns why a device cannot bear what the claims' lgpus of a snapshot are promised and this one beside them: which
// capacity is lacking, and how much. The lgpu may be among those of the snapshot.
func (l Lgpu) Room(s *api.Snapshot) error {
	for _, own := range l.Shares {
		memory, units := own.Memory, own.Units
		for _, dir := range s.GetDirectories() {
			if !strings.HasPrefix(dir.GetPath(), Group+"/") || dir.GetPath() == l.Path {
				continue
			}
			for _, use := range dir.GetDevices() {
				if limits := use.GetRequested(); use.GetUuid() == own.UUID && limits.MemoryMax != nil {
					memory += limits.GetMemoryMax()
					units += uint64(limits.GetLgpu().GetCount()) * own.Step
				}
			}
		}
		if memory > own.Device.Memory {
			return fmt.Errorf("device %s: memory does not fit: %d bytes are promised with this claim, and there are %d", own.Name,
				memory, own.Device.Memory)
		}
		if units > own.Device.Units {
			return fmt.Errorf("device %s: units do not fit: %d are promised with this claim, and there are %d", own.Name, units,
				own.Device.Units)
		}
	}
	return nil
}
