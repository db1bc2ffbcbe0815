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
		for _, own := range [][]Cgroup{nil, {{Path: "/"}}, {{Path: "/system.slice/lgpud.service"}}} {
			if got := cgroupOf([]Cgroup{{Path: "/"}, {Path: path}}, own); got != want {
				t.Errorf("%s beside %v: %q, not %q", path, own, got, want)
			}
		}
	}
	own := []Cgroup{{Controllers: "cpu", Path: "/docker/" + id}, {Path: "/docker/" + id + "/init"}}
	for _, c := range []struct {
		cgroup Cgroup
		want   string
	}{
		{Cgroup{Controllers: "cpu", Path: "/docker/" + id}, ""},
		{Cgroup{Controllers: "cpu", Path: "/docker/" + id + "/job"}, ""},
		{Cgroup{Controllers: "cpu", Path: "/docker/" + id + "/libpod-" + id + "/x"}, "/docker/" + id + "/libpod-" + id},
		{Cgroup{Path: "/docker/" + id + "/init"}, ""},
		{Cgroup{Path: "/"}, ""},
	} {
		if got := cgroupOf([]Cgroup{c.cgroup}, own); got != c.want {
			t.Errorf("beside a daemon in a container, %+v: %q, not %q", c.cgroup, got, c.want)
		}
	}
}
