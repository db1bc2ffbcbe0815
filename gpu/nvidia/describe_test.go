package nvidia

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/lgpu/lgpu/gpu"
)

func TestDescribe(t *testing.T) {
	i := openFake(t)
	devices, err := i.Devices()
	if err != nil {
		t.Fatal(err)
	}
	common := gpu.Description{Architecture: "Hopper", Capability: "9.0", Driver: "580.1", NUMA: -1}
	whole, instance, second := common, common, common
	whole.Links = []gpu.Link{{Peer: devices[3].UUID, Path: "NV", NVLinks: 3}}
	whole.MIG = []gpu.Profile{{Name: "3g.48gb", ID: 9, Memory: 48 << 30, Units: 60, Count: 2, Placements: []int{0, 4}, Size: 4}}
	second.Links = []gpu.Link{{Peer: devices[0].UUID, Path: "NV", NVLinks: 2}}
	for n, want := range []gpu.Description{whole, instance, instance, second} {
		if got, err := i.Describe(devices[n].UUID); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%d: %+v, %v\nwant %+v", n, got, err, want)
		}
	}
	if _, err := i.Describe(gpu.UUID{1}); err == nil {
		t.Error("an unknown device is described")
	}
}

// TestFault: a device is not well for what it did itself, and its instances with it; not for what programs did.
func TestFault(t *testing.T) {
	i := openFake(t)
	for range 2 { // listed again, it is listened to once
		if _, err := i.Devices(); err != nil {
			t.Fatal(err)
		}
	}
	const fault = "the driver reports Xid 79"
	for n, want := range []string{fault, fault, fault, ""} {
		f, err := i.Facts(i.devices[n].UUID)
		if err != nil || f.Fault != want {
			t.Errorf("%d: %q, %v; want %q", n, f.Fault, err, want)
		}
	}
}

func TestNUMANode(t *testing.T) {
	devices := t.TempDir()
	for address, text := range map[string]string{"0000:1b:00.0": "1\n", "0001:00:00.0": "-1\n"} {
		if err := os.Mkdir(filepath.Join(devices, address), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(devices, address, "numa_node"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for address, want := range map[string]int{"00000000:1B:00.0": 1, "00000001:00:00.0": -1, "00000000:02:00.0": -1, "": -1, "../x": -1} {
		if got := numaNode(devices, address); got != want {
			t.Errorf("%s: %d, not %d", address, got, want)
		}
	}
}
