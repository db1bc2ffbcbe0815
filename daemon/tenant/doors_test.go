package tenant

import (
	"strings"
	"testing"
)

// TestCgroupOf: the cgroup of a container is found by the names that runtimes give it, and nobody else's is taken for one.
func TestCgroupOf(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	for path, want := range map[string]string{
		"/libpod_parent/libpod-" + id:                                    "/libpod_parent/libpod-" + id,
		"/machine.slice/libpod-" + id + ".scope/container":               "/machine.slice/libpod-" + id + ".scope",
		"/docker/" + id + "/init":                                        "/docker/" + id,
		"/kubepods.slice/pod1.slice/cri-containerd-" + id + ".scope/x/y": "/kubepods.slice/pod1.slice/cri-containerd-" + id + ".scope",
		"/user.slice/user-1000.slice":                                    "",
		"/" + id[:63]:                                                    "",
	} {
		if got := cgroupOf([]Cgroup{{Path: "/"}, {Path: path}}); got != want {
			t.Errorf("%s: %q, not %q", path, got, want)
		}
	}
}
