package claim

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/kube/slice"
)

const (
	id   = "0a1b2c3d-0000-4000-8000-0123456789ab"
	head = `{"apiVersion":"lgpu.io/v1","kind":"LgpuConfig"`
)

var devices = []slice.Device{
	{Name: "gpu-0", UUID: "GPU-0", Key: "195:0", Memory: 16 << 30, Units: 132, Step: 2},
	{Name: "gpu-1", UUID: "GPU-1", Key: "195:1", Memory: 16 << 30, Units: 132, Step: 2},
}

// result is what the scheduler gave of a device.
func result(device, memory, units string) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: slice.Driver, Pool: "node0", Device: device,
		ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
			slice.Memory: resource.MustParse(memory), slice.Units: resource.MustParse(units)}}
}

func allocated(results ...resourceapi.DeviceRequestAllocationResult) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{}
	c.UID = types.UID(id)
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}}
	return c
}

func configured(c *resourceapi.ResourceClaim, source resourceapi.AllocationConfigSource, text string, requests ...string) {
	all := &c.Status.Allocation.Devices.Config
	*all = append(*all, resourceapi.DeviceAllocationConfiguration{Source: source, Requests: requests,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: slice.Driver, Parameters: runtime.RawExtension{Raw: []byte(text)}}}})
}

// What was allocated becomes the limits, on each of several devices; the claim's configuration goes before its class's, and
// one for another request counts for nothing.
func TestFiles(t *testing.T) {
	c := allocated(result("gpu-1", "4Gi", "66"), result("gpu-0", "1Gi", "2"))
	configured(c, resourceapi.AllocationConfigSourceClaim, head+`,"weight":200,"cap":50,"overcommit":true}`, "gpu")
	configured(c, resourceapi.AllocationConfigSourceClass, head+`,"weight":300,"minimum":10,"priority":"high"}`)
	configured(c, resourceapi.AllocationConfigSourceClaim, head+`,"weight":400}`, "other")
	l, err := Of(c, "node0", devices)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, f := range l.Files() {
		fmt.Fprintf(&got, "%s: %s", f.GetName(), f.GetData())
	}
	const want = "memory.max: 195:1 4294967296\n195:0 1073741824\nlgpu: 195:1 count=33\n195:0 count=1\n" +
		"lgpu.weight: 200\ncompute.max: 50%\ncompute.min: 10%\nlgpu.priority: high\nmemory.overcommit: 1\n"
	if l.Path != "/kube/"+id || got.String() != want {
		t.Errorf("%s:\n%s\nnot\n%s", l.Path, &got, want)
	}
}

// An allocation that cannot be given is refused, and the reason names what is wrong.
func TestRefused(t *testing.T) {
	admin, is := result("gpu-0", "1Gi", "2"), true
	admin.AdminAccess = &is
	elsewhere := result("gpu-0", "1Gi", "2")
	elsewhere.Pool = "node1"
	without := result("gpu-0", "1Gi", "2")
	without.ConsumedCapacity = nil
	both := allocated(result("gpu-0", "1Gi", "2"))
	configured(both, resourceapi.AllocationConfigSourceClass, head+`,"cap":5}`)
	configured(both, resourceapi.AllocationConfigSourceClaim, head+`,"minimum":6}`)
	hostile := allocated(result("gpu-0", "1Gi", "2"))
	hostile.UID = "../../root"
	for says, c := range map[string]*resourceapi.ResourceClaim{
		"no device of":          allocated(),
		"twice":                 allocated(result("gpu-0", "1Gi", "2"), result("gpu-0", "1Gi", "2")),
		"3 units cannot":        allocated(result("gpu-0", "1Gi", "3")),
		"134 units cannot":      allocated(result("gpu-0", "1Gi", "134")),
		"0 memory cannot":       allocated(result("gpu-0", "0", "2")),
		"500m memory cannot":    allocated(result("gpu-0", "500m", "2")),
		"17Gi memory cannot":    allocated(result("gpu-0", "17Gi", "2")),
		"gpu-9 is not there":    allocated(result("gpu-9", "1Gi", "2")),
		"adminAccess":           allocated(admin),
		"node1 is not":          allocated(elsewhere),
		"DRAConsumableCapacity": allocated(without),
		"minimum 6 is above":    both,
		"no UID":                hostile,
		"not allocated":         {ObjectMeta: allocated().ObjectMeta},
	} {
		if _, err := Of(c, "node0", devices); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, not %q", err, says)
		}
	}
}

// A list is written beside the number of units that were allocated, so that the daemon refuses one of another length.
func TestList(t *testing.T) {
	c := allocated(result("gpu-0", "1Gi", "4"))
	configured(c, resourceapi.AllocationConfigSourceClaim, head+`,"list":"0-1"}`)
	l, err := Of(c, "node0", devices)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(l.Files()[1].GetData()); got != "195:0 count=2 list=0-1\n" {
		t.Errorf("the file lgpu: %q", got)
	}
}

// What other claims were promised counts, and what the lgpu itself has does not; the capacity that lacks is named.
func TestRoom(t *testing.T) {
	promised := func(path string, memory uint64, count uint32) *api.Directory {
		return &api.Directory{Path: path, Devices: []*api.DeviceUse{{Uuid: "GPU-0",
			Requested: &api.Limits{MemoryMax: &memory, Lgpu: &api.Units{Count: &count}}}}}
	}
	l, err := Of(allocated(result("gpu-0", "8Gi", "66")), "node0", devices)
	if err != nil {
		t.Fatal(err)
	}
	for says, d := range map[string]*api.Directory{
		"":       promised("/kube/other", 8<<30, 33),
		"memory": promised("/kube/other", 8<<30+1, 1),
		"units":  promised("/kube/other", 1, 34),
	} {
		s := &api.Snapshot{Directories: []*api.Directory{promised("/kube/"+id, 16<<30, 66), d, promised("/team", 16<<30, 66)}}
		err := l.Room(s)
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says+" do")) {
			t.Errorf("%q: %v", says, err)
		}
	}
}

// Hostile configurations do not panic, and what is accepted holds what the daemon's files take.
func FuzzConfig(f *testing.F) {
	for _, s := range []string{head + "}", head + `,"weight":0}`, head + `,"weight":1e9}`, head + `,"x":1}`, head + "}{}", "null", "[]",
		`{}`, head + `,"priority":"realtime"}`, head + `,"cap":101}`, head + `,"minimum":-1}`, head + `,"cap":1,"minimum":2}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseConfig(data)
		if err != nil {
			return
		}
		if c.Kind != ConfigKind || c.Weight != nil && (*c.Weight < 1 || *c.Weight > 10000) || c.Cap != nil && (*c.Cap < 1 || *c.Cap > 100) ||
			c.Minimum != nil && (*c.Minimum < 0 || *c.Minimum > 100) || strings.ContainsAny(c.Priority+c.List, " =\n") {
			t.Errorf("%s is accepted as %+v", data, c)
		}
	})
}

// Only the first seed is one to accept.
func TestConfigIsStrict(t *testing.T) {
	for text, fine := range map[string]bool{head + "}": true, head + `,"weight":0}`: false, head + `,"x":1}`: false,
		head + "}{}": false, "null": false, head + `,"cap":101}`: false, head + `,"priority":"realtime"}`: false,
		head + `,"list":"0-3,8"}`: true, head + `,"list":"0 exclusive=1"}`: false, head + `,"list":"0\n195:1 max"}`: false} {
		if _, err := ParseConfig([]byte(text)); (err == nil) != fine {
			t.Errorf("%s: %v", text, err)
		}
	}
}
