package driver

import (
	"os"
	"path/filepath"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
)

// TestRooted: a device has the attribute of the root that it is below; one that the kernel does not know has none.
func TestRooted(t *testing.T) {
	root := t.TempDir()
	devices := filepath.Join(root, "bus/pci/devices")
	if err := os.MkdirAll(devices, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../../devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0", filepath.Join(devices, "0000:3b:00.0")); err != nil {
		t.Fatal(err)
	}
	for pci, want := range map[string]string{"0000:3b:00.0": "pci0000:3a", "0000:3c:00.0": "", "": ""} {
		d := rooted(resourceapi.Device{Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}}, pci,
			deviceattribute.WithFSFromRoot(root))
		got := ""
		if a, is := d.Attributes[deviceattribute.StandardDeviceAttributePCIeRoot]; is {
			got = *a.StringValue
		}
		if got != want {
			t.Errorf("%q: root %q, want %q", pci, got, want)
		}
	}
}
