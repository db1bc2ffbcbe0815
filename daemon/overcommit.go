package daemon

import (
	"math"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/internal/meminfo"
	"github.com/lgpu/lgpu/policy/limits"
)

// halfOfMemory is half of the machine's memory in bytes.
func halfOfMemory() uint64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return uint64(info.Totalram) * uint64(info.Unit) / 2
}

// spareOfBound is what of the bound on its own memory the daemon keeps for itself.
const spareOfBound = 1 << 30

// ownBound is how much host memory copies may take at most, whatever host.budget says: their pages count as the daemon's
// own, and beyond the bound of its cgroup the kernel would kill it.
func ownBound() uint64 {
	cgroups, err := tenant.Cgroups(os.Getpid())
	if err != nil {
		return math.MaxUint64
	}
	bound := cgroupBound("/sys/fs/cgroup", cgroups)
	if bound == math.MaxUint64 {
		return bound
	}
	return bound - min(bound, spareOfBound)
}

// cgroupBound is the least memory.max of a process's cgroup of version 2 and those above it, in bytes. root is where that
// hierarchy is mounted.
func cgroupBound(root string, cgroups []tenant.Cgroup) uint64 {
	bound := uint64(math.MaxUint64)
	for _, c := range cgroups {
		for at := c.Path; c.Controllers == ""; at = path.Dir(at) {
			if most, err := os.ReadFile(filepath.Join(root, at, "memory.max")); err == nil {
				if n, err := strconv.ParseUint(strings.TrimSpace(string(most)), 10, 64); err == nil { // else "max"
					bound = min(bound, n)
				}
			}
			if at == "/" {
				break
			}
		}
	}
	return bound
}

// spareOfMachine is what of the machine's memory copies leave free.
const spareOfMachine = 512 << 20

// available is how much more host memory there is for copies, in bytes.
func available() uint64 {
	m := meminfo.Read()
	if m.Total == 0 {
		return math.MaxUint64
	}
	return m.Available - min(m.Available, spareOfMachine)
}

// nodeOf is the NUMA node that a device with a PCI address is nearest to, -1 for none.
func nodeOf(pci string) int {
	pci = pci[max(len(pci)-len("0000:00:00.0"), 0):] // some say the domain with more digits
	text, err := os.ReadFile(filepath.Join("/sys/bus/pci/devices", strings.ToLower(pci), "numa_node"))
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return -1
	}
	return n
}

// hadPrograms reports whether programs use an lgpu, or have used it: it has devices from its first use on.
func (g *lgpus) hadPrograms(id uint64) bool {
	record, known := g.record(id)
	return known && len(record.Devices) > 0
}

// checkOvercommit refuses spatial mode to an lgpu whose memory may leave its devices.
func checkOvercommit(tree *limits.Tree, spec AttachSpec, at string) error {
	dir, err := tree.Directory(at)
	if err != nil { // one that is made has what the group above it has
		dir, _ = tree.Directory(path.Dir(at))
	}
	if spec.Spatial && (spec.Limits.Overcommit || dir.Overcommit) {
		return &Error{Class: ErrInvalid, Field: "memory_overcommit", Value: "1",
			Reason: "in spatial mode (MPS) memory cannot leave the device", Remedy: "leave out one of --overcommit and --spatial"}
	}
	return nil
}
