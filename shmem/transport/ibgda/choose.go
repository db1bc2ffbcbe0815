package ibgda

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport/ibgda/nic"
)

// Location is where a device is in the machine.
type Location struct {
	// Path is the device's in sysfs, links resolved, with all bridges above it:
	// /sys/devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0.
	Path string
	NUMA int // -1: unknown
}

// LocationOf is the location of a PCI device, given as domain<<16 | bus<<8 | device; the zero Location where sysfs does
// not know it.
func LocationOf(pci uint64) Location { return locationOf("/sys", pci) }

func locationOf(sysfs string, pci uint64) Location {
	folder := filepath.Join(sysfs, "bus/pci/devices", fmt.Sprintf("%04x:%02x:%02x.0", pci>>16, pci>>8&0xff, pci&0xff))
	resolved, err := filepath.EvalSymlinks(folder)
	if err != nil {
		return Location{NUMA: -1}
	}
	p := Location{Path: resolved, NUMA: -1}
	if text, err := os.ReadFile(filepath.Join(folder, "numa_node")); err == nil {
		if node, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			p.NUMA = node
		}
	}
	return p
}

// closeness is how far a NIC is from a GPU: less is closer.
type closeness struct {
	level int // 0: below one switch; 1: below one root complex; 2: on one NUMA node; 3: farther, or unknown
	hops  int // bridges between
}

// between is the distance of a NIC from a device.
func between(device Location, n *nic.Info) closeness {
	if device.Path == "" || n.Path == "" {
		return closeness{level: 3}
	}
	a, b := strings.Split(device.Path, "/"), strings.Split(n.Path, "/")
	common, root := 0, 0
	for common < min(len(a), len(b)) && a[common] == b[common] {
		if strings.HasPrefix(a[common], "pci") {
			root = common + 1
		}
		common++
	}
	hops := len(a) + len(b) - 2*common
	switch {
	case root > 0 && common > root:
		return closeness{0, hops}
	case root > 0:
		return closeness{1, hops}
	case device.NUMA >= 0 && device.NUMA == n.NUMA:
		return closeness{2, 0}
	}
	return closeness{3, 0}
}

// choose picks the ports that a PE uses, the closest to its device first. turn is the PE's number among those on this
// machine: NICs that are equally close are dealt out in turn, so that PEs of one switch do not all begin with the same.
func choose(s *Settings, infos []nic.Info, device Location, turn int) ([]nic.Info, error) {
	var usable []nic.Info
	var reasons []string
	for _, n := range infos {
		name := n.Name + ":" + strconv.Itoa(n.Port)
		if why := unusable(s, &n); why != "" {
			reasons = append(reasons, name+" "+why)
			continue
		}
		usable = append(usable, n)
	}
	if len(usable) == 0 {
		if len(reasons) == 0 {
			return nil, fmt.Errorf("%w: none found", nic.ErrNoDevice)
		}
		return nil, fmt.Errorf("%w: %s", nic.ErrNoDevice, strings.Join(reasons, "; "))
	}
	distance := func(n nic.Info) closeness { return between(device, &n) }
	slices.SortStableFunc(usable, func(a, b nic.Info) int {
		x, y := distance(a), distance(b)
		return cmp.Or(cmp.Compare(x.level, y.level), cmp.Compare(x.hops, y.hops))
	})
	nearest := 1
	for nearest < len(usable) && distance(usable[nearest]) == distance(usable[0]) {
		nearest++
	}
	shift := turn % nearest
	usable = append(slices.Clone(usable[shift:nearest]), append(slices.Clone(usable[:shift]), usable[nearest:]...)...)
	count := s.MaxNICs
	if count == 0 {
		count = nearest
	}
	return usable[:min(count, len(usable), layout.MaxNICs)], nil
}

// unusable says why a port is not to be used; "": it is.
func unusable(s *Settings, n *nic.Info) string {
	if n.Link != nic.Software && !strings.HasPrefix(n.Name, s.Prefix) {
		return "does not begin with " + s.Prefix
	}
	listed, negative := false, false
	for _, want := range s.NICs {
		name, not := strings.CutPrefix(want, "^")
		negative = negative || not
		pattern, port, hasPort := strings.Cut(name, ":")
		match, err := path.Match(pattern, n.Name)
		if err != nil || !match || hasPort && port != strconv.Itoa(n.Port) {
			continue
		}
		if not {
			return "is excluded"
		}
		listed = true
	}
	if len(s.NICs) > 0 && !negative && !listed {
		return "is not listed"
	}
	if !n.Up {
		return "is down"
	}
	return ""
}
