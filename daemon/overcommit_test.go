package daemon

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/lgpu/lgpu/daemon/tenant"
)

// The least bound of a cgroup and those above it holds.
func TestCgroupBound(t *testing.T) {
	root := t.TempDir()
	for at, most := range map[string]string{
		"memory.max": "", "system.slice/memory.max": "8589934592\n", "system.slice/lgpud.service/memory.max": "max\n",
		"user.slice/memory.max": "max\n", "small/memory.max": "4096\n", "small/large/memory.max": "8192\n", "odd/memory.max": "much\n",
	} {
		if most == "" {
			continue // the root has none
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, at)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, at), []byte(most), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		in   tenant.Cgroup
		want uint64
	}{
		{tenant.Cgroup{Path: "/system.slice/lgpud.service"}, 8 << 30},
		{tenant.Cgroup{Path: "/user.slice"}, math.MaxUint64},
		{tenant.Cgroup{Path: "/small/large"}, 4096},
		{tenant.Cgroup{Path: "/"}, math.MaxUint64},
		{tenant.Cgroup{Path: "/odd"}, math.MaxUint64},
		{tenant.Cgroup{Path: "/../small"}, math.MaxUint64}, // outside of what is mounted
		{tenant.Cgroup{Path: "/small", Controllers: "memory"}, math.MaxUint64},
	} {
		other := tenant.Cgroup{Path: "/user.slice", Controllers: "name=systemd"}
		if got := cgroupBound(root, []tenant.Cgroup{other, c.in}); got != c.want {
			t.Errorf("%+v: %d, want %d", c.in, got, c.want)
		}
	}
}
