package daemon

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/daemon/tenant"
)

// uidOf returns the user of a process, or 0 with false if it is gone.
func uidOf(pid int) (uint32, bool) {
	var stat unix.Stat_t
	if unix.Stat(fmt.Sprintf("/proc/%d", pid), &stat) != nil {
		return 0, false
	}
	return stat.Uid, true
}

// cgroupText is /proc/PID/cgroup again.
func cgroupText(cgroups []tenant.Cgroup) []byte {
	var b bytes.Buffer
	for i, c := range cgroups {
		hierarchy := i + 1
		if c.Controllers == "" {
			hierarchy = 0
		}
		fmt.Fprintf(&b, "%d:%s:%s\n", hierarchy, c.Controllers, c.Path)
	}
	return b.Bytes()
}

// bootID tells this boot of the machine from all others.
func bootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}
