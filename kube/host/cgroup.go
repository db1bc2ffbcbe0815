package host

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The daemon runs in the control groups of the node's process, not in those of the container. When a container ends, its runtime
// kills all that is in its control groups: what the daemon has started for programs, such as a software GPU or MPS, would end
// under them at each upgrade.

// group is a control group of the node: its folder, and whether it is one of version 2.
type group struct {
	folder  string
	version int
}

// join moves this thread into the node's control groups of version 1, and returns how to start a process in that of version 2,
// which threads cannot enter alone. The process holds a file that done closes.
func (n Node) join() (attributes *syscall.SysProcAttr, done func(), err error) {
	lines, err := os.ReadFile(filepath.Join(n.Root, "cgroup"))
	if err != nil {
		return nil, nil, fmt.Errorf("find the node's control groups: %w", err)
	}
	mounts, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, nil, fmt.Errorf("find where control groups are mounted: %w", err)
	}
	attributes, done = &syscall.SysProcAttr{}, func() {}
	for _, g := range groups(string(lines), string(mounts)) {
		if g.version == 2 {
			fd, err := os.Open(g.folder)
			if err != nil {
				return nil, nil, fmt.Errorf("open the node's control group: %w", err)
			}
			attributes.UseCgroupFD, attributes.CgroupFD = true, int(fd.Fd())
			done = func() { fd.Close() }
			continue
		}
		if err := os.WriteFile(filepath.Join(g.folder, "tasks"), []byte(strconv.Itoa(unix.Gettid())), 0); err != nil {
			return nil, nil, fmt.Errorf("enter the node's control group: %w", err)
		}
	}
	return attributes, done, nil
}

// groups returns the control groups of a process by the lines of its file cgroup (cgroups(7)), and where those are mounted. What
// is not mounted no runtime uses.
func groups(lines, mounts string) []group {
	var all []group
	for line := range strings.Lines(lines) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 {
			continue
		}
		for mount := range strings.Lines(mounts) {
			before, after, _ := strings.Cut(strings.TrimSuffix(mount, "\n"), " - ")
			place, kind := strings.Fields(before), strings.Fields(after)
			if len(place) < 5 || len(kind) < 3 || !mounted(fields[1], kind[0], kind[2]) {
				continue
			}
			below, err := filepath.Rel(place[3], fields[2])
			if err != nil || below == ".." || strings.HasPrefix(below, "../") {
				continue
			}
			version := 1
			if fields[1] == "" {
				version = 2
			}
			all = append(all, group{filepath.Join(place[4], below), version})
			break
		}
	}
	return all
}

// mounted reports whether a mount of a type, with options, is that of a hierarchy by its controllers; version 2 names none.
func mounted(controllers, kind, options string) bool {
	if controllers == "" {
		return kind == "cgroup2"
	}
	if kind != "cgroup" {
		return false
	}
	has := strings.Split(options, ",")
	for _, c := range strings.Split(controllers, ",") {
		if !slices.Contains(has, c) {
			return false
		}
	}
	return true
}
