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

// GPU is one of NVIDIA's, as its kernel module describes it.
type GPU struct {
	UUID  string // "GPU-…"
	Minor uint32 // of /dev/nvidiaN; the file's number
}

// File is the GPU's device file.
func (g GPU) File() string { return "/dev/nvidia" + strconv.FormatUint(uint64(g.Minor), 10) }

// gpus is where NVIDIA's kernel module describes its GPUs, each in a folder called by its PCI address.
const gpus = "/proc/driver/nvidia/gpus"

// Others returns the machine's GPUs but those with the UUIDs. It returns none of them, and why, if one of the UUIDs is
// none of a whole GPU, such as that of a MIG instance: then it is not known which device files are the program's.
func Others(uuids []string) ([]GPU, error) { return others(gpus, uuids) }

func others(dir string, uuids []string) ([]GPU, error) {
	paths, _ := filepath.Glob(filepath.Join(dir, "*", "information")) // the pattern is well formed
	var rest []GPU
	left := len(uuids)
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
		if slices.Contains(uuids, g.UUID) {
			left--
		} else {
			rest = append(rest, g)
		}
	}
	if left > 0 {
		return nil, fmt.Errorf("%s does not tell which files are those of all the lgpu's devices", dir)
	}
	return rest, nil
}

// parseGPU reads what the kernel module says of a GPU: lines of a name, a colon and a value.
func parseGPU(text string) (GPU, error) {
	var g GPU
	found := false
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); name {
		case "GPU UUID":
			g.UUID = value
		case "Device Minor":
			n, err := strconv.ParseUint(value, 10, 20)
			if err != nil {
				return GPU{}, fmt.Errorf("device minor: %w", err)
			}
			g.Minor, found = uint32(n), true
		}
	}
	if !strings.HasPrefix(g.UUID, "GPU-") || !found {
		return GPU{}, errors.New("it has no UUID or no device minor")
	}
	return g, nil
}

// Files returns the device files of GPUs that exist, and the devices that they are.
func Files(list []GPU) (paths []string, devices []Device) {
	for _, g := range list {
		var s unix.Stat_t
		if unix.Stat(g.File(), &s) == nil && s.Mode&unix.S_IFMT == unix.S_IFCHR {
			paths = append(paths, g.File())
			devices = append(devices, Device{unix.Major(s.Rdev), unix.Minor(s.Rdev)})
		}
	}
	return paths, devices
}
