package host

import (
	"slices"
	"testing"
)

// Where the control groups of a process are, with version 1, 2 and both.
func TestGroups(t *testing.T) {
	const both = "25 24 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n" +
		"26 25 0:23 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct\n" +
		"27 25 0:24 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n" +
		"28 25 0:25 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n" +
		"29 25 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
	for _, c := range []struct {
		name, lines, mounts string
		want                []group
	}{
		{"both", "4:name=systemd:/init.scope\n3:cpuacct,cpu:/\n2:devices:/a:b\n5:pids:/\n0::/x\n", both,
			[]group{{"/sys/fs/cgroup/systemd/init.scope", 1}, {"/sys/fs/cgroup/cpu,cpuacct", 1}, {"/sys/fs/cgroup/devices/a:b", 1},
				{"/sys/fs/cgroup/unified/x", 2}}},
		{"version 2", "0::/init.scope\n", "30 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup rw\n",
			[]group{{"/sys/fs/cgroup/init.scope", 2}}},
		{"a part mounted", "0::/node/init\n", "30 24 0:26 /node /cg rw - cgroup2 cgroup rw\n", []group{{"/cg/init", 2}}},
		{"another part mounted", "0::/other\n", "30 24 0:26 /node /cg rw - cgroup2 cgroup rw\n", nil},
		{"nonsense", "x\n:::\n", "x - y\n", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := groups(c.lines, c.mounts); !slices.Equal(got, c.want) {
				t.Errorf("%+v, not %+v", got, c.want)
			}
		})
	}
}
