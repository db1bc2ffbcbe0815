// Package fence keeps programs away from GPUs that are not theirs: it knows the device files of NVIDIA's GPUs, and makes
// cgroups whose processes may not open some of them. Only root can make such a cgroup.
//
//	f, err := fence.Make(denied)
//	// each program is started in f.Cgroup, or its thread enters itself in f.Tasks
//	defer f.Close()
//
// A fence is a cgroup below the one that this process is in, so limits that hold for this process hold for the programs
// too. Its name has this process's id. Where this process is killed the cgroup is left, empty once its programs have
// ended; the next Make in the same place removes it.
package fence

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Device is a character device.
type Device struct{ Major, Minor uint32 }

// Fence is what Make has made: a cgroup of one of the two versions. The ways to get into it are those for which the kernel
// does not stop all forks of the machine, which takes 5 to 36 ms: as entering cgroup.procs does.
type Fence struct {
	// Cgroup is the folder of a cgroup of version 2, in which processes can be started (clone3(2), CLONE_INTO_CGROUP).
	Cgroup string
	// Tasks is the file of a cgroup of version 1 in which a thread enters itself by writing "0". A process that it becomes
	// by execve(2) is there as a whole, and all that it starts.
	Tasks string

	dirs []string
}

// Entries are the files in which a process is entered from outside, by its number: for one that others start. The kernel stops
// forks for that, as said above.
func (f *Fence) Entries() (files []string) {
	if f.Cgroup != "" {
		files = append(files, filepath.Join(f.Cgroup, "cgroup.procs"))
	}
	if f.Tasks != "" {
		files = append(files, f.Tasks)
	}
	return files
}

// prefix begins the names of fences; the id of the process that made it follows.
const prefix = "lgpu-"

// Make makes a cgroup whose processes may not open the denied devices: in the hierarchy of version 2 by a BPF program, and
// in the controller "devices" of version 1, where that is mounted. An error says why neither is possible.
func Make(denied []Device) (*Fence, error) {
	h, err := find("/proc/self/mountinfo", "/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	return h.fence(prefix+strconv.Itoa(os.Getpid()), denied)
}

// hierarchies are the folders of the cgroups that this process is in; empty where there is none.
type hierarchies struct{ v2, devices string }

// fence makes the cgroup called name below those of h.
func (h hierarchies) fence(name string, denied []Device) (*Fence, error) {
	f := &Fence{}
	var failures []error
	for _, one := range []struct {
		parent string
		deny   func(dir string, denied []Device) error
		way    func(dir string)
	}{
		{h.devices, denyV1, func(dir string) { f.Tasks = filepath.Join(dir, "tasks") }},
		{h.v2, denyV2, func(dir string) { f.Cgroup = dir }},
	} {
		if one.parent == "" {
			continue
		}
		sweep(one.parent)
		dir := filepath.Join(one.parent, name)
		err := os.Mkdir(dir, 0o755)
		if err == nil {
			f.dirs = append(f.dirs, dir)
			err = one.deny(dir, denied)
		}
		if err == nil {
			one.way(dir)
			return f, nil
		}
		failures = append(failures, fmt.Errorf("cgroup %s: %w", dir, err))
	}
	f.Close()
	if len(failures) == 0 {
		return nil, errors.New("no hierarchy of cgroups is mounted that knows devices")
	}
	return nil, errors.Join(failures...)
}

// Change has the fence that a process is in deny other devices: denied from now on, and allowed no more. Nothing is done for one
// that is in none.
func Change(pid int, allowed, denied []Device) error {
	h, err := find("/proc/self/mountinfo", fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return err
	}
	if dir := within(h.v2); dir != "" {
		if err := changeV2(dir, denied); err != nil {
			return fmt.Errorf("cgroup %s: %w", dir, err)
		}
	}
	if dir := within(h.devices); dir != "" {
		for _, d := range allowed {
			line := fmt.Sprintf("c %d:%d rwm", d.Major, d.Minor)
			if err := os.WriteFile(filepath.Join(dir, "devices.allow"), []byte(line), 0); err != nil {
				return fmt.Errorf("cgroup %s: %w", dir, err)
			}
		}
		if err := denyV1(dir, denied); err != nil {
			return fmt.Errorf("cgroup %s: %w", dir, err)
		}
	}
	return nil
}

// within is the fence that a cgroup is, or is below; empty if there is none.
func within(dir string) string {
	for ; len(dir) > 1; dir = filepath.Dir(dir) {
		number, is := strings.CutPrefix(filepath.Base(dir), prefix)
		if _, err := strconv.Atoi(number); is && err == nil {
			return dir
		}
	}
	return ""
}

// Close removes the cgroups. One that still has processes, which programs left in the background, stays for them.
func (f *Fence) Close() {
	for _, dir := range f.dirs {
		_ = os.Remove(dir) // refused while it has processes; a later sweep removes it
	}
}

// sweep removes the empty fences of processes that have ended.
func sweep(parent string) {
	left, _ := filepath.Glob(filepath.Join(parent, prefix+"[0-9]*")) // the pattern is well formed
	for _, dir := range left {
		pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), prefix))
		if err == nil && (pid == os.Getpid() || errors.Is(unix.Kill(pid, 0), unix.ESRCH)) {
			_ = os.Remove(dir) // refused while it has processes
		}
	}
}

// denyV1 writes the devices that the controller "devices" shall deny.
func denyV1(dir string, denied []Device) error {
	for _, d := range denied {
		line := fmt.Sprintf("c %d:%d rwm", d.Major, d.Minor)
		if err := os.WriteFile(filepath.Join(dir, "devices.deny"), []byte(line), 0); err != nil {
			return err
		}
	}
	return nil
}

// find finds this process's cgroups in the texts of mountinfo and cgroup (proc(5)).
func find(mountinfo, cgroup string) (hierarchies, error) {
	own, err := os.ReadFile(cgroup)
	if err != nil {
		return hierarchies{}, fmt.Errorf("find this process's cgroup: %w", err)
	}
	mounts, err := os.Open(mountinfo)
	if err != nil {
		return hierarchies{}, fmt.Errorf("find the cgroups: %w", err)
	}
	defer mounts.Close()
	var h hierarchies
	lines := bufio.NewScanner(mounts)
	for lines.Scan() {
		m, ok := parseMount(lines.Text())
		if !ok {
			continue
		}
		if dir, ok := m.dir(string(own)); ok {
			if m.controllers == "" {
				h.v2 = dir
			} else {
				h.devices = dir
			}
		}
	}
	return h, lines.Err()
}

// hierarchy is a mounted hierarchy of cgroups: that of version 2, without controllers, or that of "devices".
type hierarchy struct{ root, at, controllers string }

// parseMount reads a line of mountinfo.
func parseMount(line string) (hierarchy, bool) {
	before, after, found := strings.Cut(line, " - ")
	left, right := strings.Fields(before), strings.Fields(after)
	if !found || len(left) < 5 || len(right) < 3 {
		return hierarchy{}, false
	}
	h := hierarchy{root: left[3], at: left[4]}
	switch right[0] {
	case "cgroup2":
		return h, true
	case "cgroup":
		for _, option := range strings.Split(right[2], ",") {
			if option == "devices" {
				h.controllers = option
				return h, true
			}
		}
	}
	return hierarchy{}, false
}

// dir is the folder of the process whose /proc/PID/cgroup is own.
func (h hierarchy) dir(own string) (string, bool) {
	for line := range strings.Lines(own) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		is := parts[1] == "" && h.controllers == ""
		for _, c := range strings.Split(parts[1], ",") {
			is = is || h.controllers != "" && c == h.controllers
		}
		if !is {
			continue
		}
		below, inside := strings.CutPrefix(parts[2], strings.TrimSuffix(h.root, "/"))
		if !inside || strings.Contains(below, "..") {
			return "", false // a mount of a part that this process is not in
		}
		dir := filepath.Join(h.at, below)
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return "", false
		}
		return dir, true
	}
	return "", false
}
