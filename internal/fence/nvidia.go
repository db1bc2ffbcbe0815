package fence

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Owned is a device that a program may use.
type Owned struct {
	GPU string // UUID of the GPU, "GPU-…"
	// Instance is the MIG instance of that GPU; nil is the whole GPU.
	Instance *Instance
}

// Instance are the numbers of a MIG instance: of the GPU instance, and of the compute instance in it.
type Instance struct{ GPU, Compute uint32 }

// describedGPU is one of NVIDIA's GPUs, as its kernel module describes it.
type describedGPU struct {
	uuid  string
	minor uint32 // of /dev/nvidiaN; the file's number
}

// Where NVIDIA's kernel module describes its GPUs, each in a folder called by its PCI address, and which device file
// gives access to which MIG instance.
const (
	gpusFolder = "proc/driver/nvidia/gpus"
	minorsFile = "proc/driver/nvidia-caps/mig-minors"
	capsFolder = "dev/nvidia-caps"
)

// Others returns the device files of this machine's GPUs and MIG instances that are none of the owned ones; those of MIG
// instances only if they exist. It returns none, and why, if the kernel module does not know a GPU that is owned: then it
// is not known which files are the program's.
func Others(owned []Owned) ([]string, error) {
	_, others, err := files("/", owned)
	return others, err
}

// Own returns the device files that a program needs to use a device, beside those that are the same for all: the GPU's, and
// of a MIG instance those of its GPU instance and its compute instance. An error says which it cannot find.
func Own(o Owned) ([]string, error) { return own("/", o) }

func own(root string, o Owned) ([]string, error) {
	paths, _, err := files(root, []Owned{o})
	if err != nil {
		return nil, err
	}
	if need := 1 + 2; o.Instance != nil && len(paths) < need {
		return nil, fmt.Errorf("%s and %s have %d of the %d device files of MIG instance %d/%d of %s", filepath.Join(root, minorsFile),
			filepath.Join(root, capsFolder), len(paths)-1, need-1, o.Instance.GPU, o.Instance.Compute, o.GPU)
	}
	return paths, nil
}

// files are the device files of the owned devices, and those of all others, each GPU's before those of MIG instances. With an
// error there may be some of the others.
func files(root string, owned []Owned) (own, others []string, err error) {
	all, err := describedGPUs(filepath.Join(root, gpusFolder))
	if err != nil {
		return nil, nil, err
	}
	by := map[uint32][]Owned{} // the GPU's minor
	found := 0
	for _, g := range all {
		for _, o := range owned {
			if o.GPU == g.uuid {
				by[g.minor] = append(by[g.minor], o)
				found++
			}
		}
		file := filepath.Join(root, "dev", "nvidia"+strconv.FormatUint(uint64(g.minor), 10))
		if by[g.minor] == nil {
			others = append(others, file)
		} else {
			own = append(own, file)
		}
	}
	if found < len(owned) {
		return nil, nil, fmt.Errorf("%s does not tell which files are those of all the lgpu's devices", filepath.Join(root, gpusFolder))
	}
	text, err := os.ReadFile(filepath.Join(root, minorsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return own, others, nil // a driver without MIG
	}
	if err != nil {
		return own, others, err
	}
	for line := range strings.Lines(string(text)) {
		c, ok := parseCapability(line)
		file := filepath.Join(root, capsFolder, "nvidia-cap"+strconv.FormatUint(uint64(c.file), 10))
		if !ok {
			continue
		}
		if _, err := os.Lstat(file); err != nil { // the list has all that could ever be
			continue
		}
		if slices.ContainsFunc(by[c.gpu], c.of) {
			own = append(own, file)
		} else {
			others = append(others, file)
		}
	}
	return own, others, nil
}

// describedGPUs reads what the kernel module says of all its GPUs.
func describedGPUs(dir string) (all []describedGPU, err error) {
	paths, _ := filepath.Glob(filepath.Join(dir, "*", "information")) // the pattern is well formed
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has just been unplugged
		}
		if err != nil {
			return nil, err
		}
		g, err := parseGPU(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, g)
	}
	return all, nil
}

// parseGPU reads what the kernel module says of a GPU: lines of a name, a colon and a value.
func parseGPU(text string) (describedGPU, error) {
	var g describedGPU
	found := false
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); name {
		case "GPU UUID":
			g.uuid = value
		case "Device Minor":
			n, err := strconv.ParseUint(value, 10, 20)
			if err != nil {
				return describedGPU{}, fmt.Errorf("device minor: %w", err)
			}
			g.minor, found = uint32(n), true
		}
	}
	if !strings.HasPrefix(g.uuid, "GPU-") || !found {
		return describedGPU{}, errors.New("it has no UUID or no device minor")
	}
	return g, nil
}

// capability is what a file of /dev/nvidia-caps gives access to: a GPU instance, or a compute instance in one.
type capability struct {
	file, gpu uint32 // minors, of nvidia-capN and of the GPU's nvidiaN
	instance  uint32
	compute   *uint32 // nil: the GPU instance
}

// of reports whether a program of a device needs the capability.
func (c capability) of(o Owned) bool {
	return o.Instance != nil && o.Instance.GPU == c.instance && (c.compute == nil || *c.compute == o.Instance.Compute)
}

// parseCapability reads a line of the kernel module's mig-minors: "gpu0/gi1/access 12" or "gpu0/gi1/ci0/access 13". Others,
// such as "config 1", are about no instance.
func parseCapability(line string) (capability, bool) {
	name, file, _ := strings.Cut(strings.TrimSpace(line), " ")
	parts := strings.Split(name, "/")
	number := func(text, prefix string) (uint32, bool) {
		digits, found := strings.CutPrefix(text, prefix)
		n, err := strconv.ParseUint(digits, 10, 20)
		return uint32(n), found && err == nil
	}
	var c capability
	var ok [4]bool
	if len(parts) < 3 || len(parts) > 4 || parts[len(parts)-1] != "access" {
		return c, false
	}
	c.file, ok[0] = number(file, "")
	c.gpu, ok[1] = number(parts[0], "gpu")
	c.instance, ok[2] = number(parts[1], "gi")
	ok[3] = true
	if len(parts) == 4 {
		var compute uint32
		compute, ok[3] = number(parts[2], "ci")
		c.compute = &compute
	}
	return c, ok == [4]bool{true, true, true, true}
}

// Files returns those of some device files that exist, and the devices that they are.
func Files(files []string) (paths []string, devices []Device) {
	for _, file := range files {
		var s unix.Stat_t
		if unix.Stat(file, &s) == nil && s.Mode&unix.S_IFMT == unix.S_IFCHR {
			paths = append(paths, file)
			devices = append(devices, Device{unix.Major(s.Rdev), unix.Minor(s.Rdev)})
		}
	}
	return paths, devices
}
