package shmem

import (
	"fmt"
	"log/slog"
	"math/bits"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lgpu/lgpu/internal/slip"
	"github.com/lgpu/lgpu/internal/units"
	"github.com/lgpu/lgpu/shmem/bootstrap"
	"github.com/lgpu/lgpu/shmem/heap"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport/ibgda"
)

// Memory is where a heap is to lie.
type Memory string

// Places of a heap. All PEs of a job have the same.
const (
	// MemoryAuto is device memory if every PE has a GPU, else host memory.
	MemoryAuto   Memory = "auto"
	MemoryDevice Memory = "device"
	MemoryHost   Memory = "host"
)

// Config is what a PE is made from. Begin with Defaults or ConfigFrom. What all PEs must agree on they do at Init, as
// the fields say.
type Config struct {
	// Bootstrap is how the PEs find each other. Nil: what the environment says (bootstrap.FromEnv); such a one is
	// closed by Finalize, one that is given is not.
	Bootstrap bootstrap.Bootstrap
	// Device is the ordinal of the PE's GPU, -1: that of the calling thread's context, or else the PE's number among
	// those of its node modulo the GPUs it sees. A plain CPU PE has MemoryHost and NoGPU.
	Device int
	// NoGPU: do not look for a GPU.
	NoGPU bool
	// Memory is where the heap lies.
	Memory Memory
	// HeapMax is the size of the heap in addresses, the most it can grow to; 0: the GPU's memory, or the machine's. The
	// largest among the PEs counts.
	HeapMax uint64
	// Chunk is the unit in which the heap gets memory, a power of two of 2 MiB or more; 0: HeapMax/2048, between 2 and
	// 64 MiB. The largest among the PEs counts.
	Chunk uint64
	// Static, if not 0, is the size of a heap that gets all its memory at Init and neither grows nor shrinks. The
	// largest among the PEs counts. Without VMM every heap is static.
	Static uint64
	// Symmetric is the size of the heap where it must be static because there is no VMM. The largest counts.
	Symmetric uint64
	// Keep is how much unused memory the heap may keep when something is freed, instead of giving it back. The largest
	// counts.
	Keep uint64
	// MaxTeams is how many teams a PE can be in at once, with those that exist from the start. The smallest counts.
	// Each costs heap: see layout.TeamBytes.
	MaxTeams int
	// Timeout bounds each wait for another PE, in kernels too; 0 is for ever. The largest counts.
	Timeout time.Duration
	// MaxCTAs bounds the CTAs of a collective kernel; 0: the GPU's units divided among its PEs. The smallest counts.
	MaxCTAs int
	// UniformAMO (the default): atomic operations on a PE's memory, signals that add included, go the same way from all
	// PEs. Else each PE takes its fastest, and those that came by a mapping and by the network are not atomic to each
	// other: a NIC's are atomic only among themselves, and additions are lost. One PE's wish is enough.
	UniformAMO bool
	// DisableP2P: do not use mapped memory of other PEs, but the network. DisableVMM: static heaps by IPC handles.
	DisableP2P, DisableVMM bool
	// StreamWaitMemop makes signal waits on streams driver operations instead of kernels: cheaper, but nothing ends one
	// when the signal does not come, and "greater or equal" compares cyclically.
	StreamWaitMemop bool
	// Logger gets decisions and warnings. Nil: slog's default, warnings and errors only.
	Logger *slog.Logger
	// Settings are all settings by name as they were read, for the network transport and for Info.
	Settings map[string]string
	// Warnings are what ConfigFrom noticed; Init logs them.
	Warnings []string
}

// Variable is a setting from the environment.
type Variable struct {
	Name    string   // with its prefix LSHMEM_
	Aliases []string // other names that are read where Name is not set
	Default string
	Help    string // one sentence or two
	set     func(c *Config, value string) error
}

// Defaults are the settings without any environment.
func Defaults() Config {
	return Config{Device: -1, Memory: MemoryAuto, UniformAMO: true, MaxTeams: 16, Symmetric: 1 << 30, Timeout: 10 * time.Minute, Settings: map[string]string{}}
}

// Variables lists the settings that this package reads itself, by name.
func Variables() []Variable {
	return slices.Clone(variables)
}

var variables = []Variable{
	{"LSHMEM_AMO", nil, "uniform", "way of atomic operations and adding signals: uniform, the same from all PEs to one, so that all are atomic to each other; or fastest, by pair of PEs, if all say so",
		func(c *Config, v string) error {
			if v != "fastest" && v != "uniform" {
				return fmt.Errorf("it must be fastest or uniform")
			}
			c.UniformAMO = v == "uniform"
			return nil
		}},
	{"LSHMEM_CHUNK", []string{"NVSHMEM_CUMEM_GRANULARITY"}, "LSHMEM_HEAP_MAX/2048, 2M to 64M",
		"unit in which the heap gets memory and gives it back, a power of two of at least 2M", size(func(c *Config) *uint64 { return &c.Chunk })},
	{"LSHMEM_DEBUG", []string{"NVSHMEM_DEBUG"}, "warn", "what to log on standard error: error, warn, info or debug", setLog},
	{"LSHMEM_DEVICE", nil, "auto", "ordinal of the PE's GPU; auto: that of the thread's context, or by the PE's number on its node; none: no GPU",
		func(c *Config, v string) error {
			switch v {
			case "auto":
				c.Device = -1
				return nil
			case "none":
				c.NoGPU = true
				return nil
			}
			n, err := strconv.ParseUint(v, 10, 16)
			if err != nil {
				return fmt.Errorf("it must be auto, none or a number")
			}
			c.Device = int(n)
			return nil
		}},
	{"LSHMEM_DISABLE_P2P", []string{"NVSHMEM_DISABLE_P2P"}, "0", "1: reach other PEs by the network transport only", boolean(func(c *Config) *bool { return &c.DisableP2P })},
	{"LSHMEM_DISABLE_VMM", []string{"NVSHMEM_DISABLE_CUDA_VMM"}, "0", "1: a static heap, shared by IPC handles", boolean(func(c *Config) *bool { return &c.DisableVMM })},
	{"LSHMEM_HEAP_KEEP", nil, "0", "unused memory that the heap keeps when something is freed", size(func(c *Config) *uint64 { return &c.Keep })},
	{"LSHMEM_HEAP_MAX", []string{"NVSHMEM_MAX_MEMORY_PER_GPU"}, "the GPU's memory", "the most the heap can grow to; it costs addresses, no memory",
		size(func(c *Config) *uint64 { return &c.HeapMax })},
	{"LSHMEM_HEAP_MEMORY", []string{"NVSHMEM_HEAP_KIND"}, "auto", "where the heap lies: device, host, or auto: device if all PEs have a GPU",
		func(c *Config, v string) error {
			switch m := Memory(strings.ToLower(v)); m {
			case MemoryAuto, MemoryDevice, MemoryHost:
				c.Memory = m
				return nil
			case "sysmem": // NVSHMEM's word
				c.Memory = MemoryHost
				return nil
			}
			return fmt.Errorf("it must be auto, device or host")
		}},
	{"LSHMEM_HEAP_STATIC", nil, "0", "size of a heap that gets all its memory at once; 0: it grows and shrinks",
		size(func(c *Config) *uint64 { return &c.Static })},
	{"LSHMEM_MAX_CTAS", []string{"NVSHMEM_MAX_CTAS"}, "all units", "most CTAs of a collective kernel", count(1, layout.Channels, func(c *Config) *int { return &c.MaxCTAs })},
	{"LSHMEM_MAX_TEAMS", []string{"NVSHMEM_MAX_TEAMS"}, "16", "teams that a PE can be in at once, from 6; each costs about 2 MiB of heap",
		func(c *Config, v string) error {
			n, err := strconv.ParseUint(v, 10, 16)
			if err != nil {
				return fmt.Errorf("it must be a number, up to 65535")
			}
			// Programs for NVSHMEM count differently what exists from the start.
			c.MaxTeams = min(max(int(n), int(layout.TeamFirstOwned)+1), layout.MaxTeams)
			return nil
		}},
	{"LSHMEM_STREAM_WAIT", nil, "kernel", "how a stream waits for a signal: kernel (ends when a PE dies or at the timeout) or memop (cheaper, ends with the signal only)",
		func(c *Config, v string) error {
			if v != "kernel" && v != "memop" {
				return fmt.Errorf("it must be kernel or memop")
			}
			c.StreamWaitMemop = v == "memop"
			return nil
		}},
	{"LSHMEM_SYMMETRIC_SIZE", []string{"NVSHMEM_SYMMETRIC_SIZE"}, "1G", "size of the heap where it is static because there is no VMM", size(func(c *Config) *uint64 { return &c.Symmetric })},
	{"LSHMEM_TIMEOUT", nil, "10m", "longest wait for another PE, on host and device, such as 90s; 0: for ever",
		func(c *Config, v string) error {
			if n, err := strconv.ParseUint(v, 10, 32); err == nil {
				c.Timeout = time.Duration(n) * time.Second
				return nil
			}
			d, err := time.ParseDuration(v)
			if err != nil || d < 0 {
				return fmt.Errorf("it must be a number of seconds, or such as 90s or 5m")
			}
			c.Timeout = d
			return nil
		}},
}

// size sets an amount of memory.
func size(field func(*Config) *uint64) func(*Config, string) error {
	return func(c *Config, v string) error {
		n, err := units.ParseSize(v)
		if err != nil {
			return err
		}
		*field(c) = n
		return nil
	}
}

func boolean(field func(*Config) *bool) func(*Config, string) error {
	return func(c *Config, v string) error {
		switch strings.ToLower(v) {
		case "1", "true", "yes", "on":
			*field(c) = true
		case "0", "false", "no", "off":
			*field(c) = false
		default:
			return fmt.Errorf("it must be 0 or 1")
		}
		return nil
	}
}

func count(least, most int, field func(*Config) *int) func(*Config, string) error {
	return func(c *Config, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < least || n > most {
			return fmt.Errorf("it must be a number from %d to %d", least, most)
		}
		*field(c) = n
		return nil
	}
}

func setLog(c *Config, v string) error {
	level, ok := map[string]slog.Level{"error": slog.LevelError, "warn": slog.LevelWarn, "info": slog.LevelInfo, "debug": slog.LevelDebug,
		"version": slog.LevelWarn, "trace": slog.LevelDebug}[strings.ToLower(v)]
	if !ok {
		return fmt.Errorf("it must be error, warn, info or debug")
	}
	c.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	return nil
}

// ConfigFrom makes a Config from an environment: NAME=value lines such as os.Environ's. Of two lines with one name the
// later one counts; names that do not begin with LSHMEM_ or NVSHMEM_ are ignored. Unknown LSHMEM_ names give warnings,
// which name similar settings, and so do values of NVSHMEM's settings that only NVSHMEM knows.
func ConfigFrom(environ []string) (Config, error) {
	c := Defaults()
	for _, line := range environ {
		name, value, ok := strings.Cut(line, "=")
		if ok && (strings.HasPrefix(name, "LSHMEM_") || strings.HasPrefix(name, "NVSHMEM_")) {
			c.Settings[name] = value
		}
	}
	for _, v := range variables {
		for _, name := range append([]string{v.Name}, v.Aliases...) {
			value, ok := c.Settings[name]
			if !ok || value == "" {
				continue
			}
			if err := v.set(&c, value); err != nil && name == v.Name {
				return Config{}, fault(layout.StatusArgument, "settings", -1, "%s=%q: %w", name, value, err)
			} else if err != nil { // a value that only NVSHMEM knows
				c.Warnings = append(c.Warnings, fmt.Sprintf("not used: %s=%q: %v", name, value, err))
			}
			break
		}
	}
	_, unused, _ := c.network() // check asks for the error
	for _, err := range unused {
		c.Warnings = append(c.Warnings, fmt.Sprintf("not used: %v", err))
	}
	known := knownNames()
	var names []string
	for name := range c.Settings {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if !strings.HasPrefix(name, "LSHMEM_") || slices.Contains(known, name) {
			continue
		}
		text := "unknown setting " + name
		if near := similar(name, known); len(near) > 0 {
			text += "; did you mean " + strings.Join(near, " or ") + "?"
		}
		c.Warnings = append(c.Warnings, text)
	}
	return c, c.check()
}

// similar are the names that have at most three slips, and less than a third of the name, away.
func similar(name string, among []string) []string {
	most := min(3, (len(name)-len("LSHMEM_"))/3)
	var out []string
	for near := 1; near <= most && len(out) == 0; near++ {
		for _, other := range among {
			if slip.Distance(name, other) == near {
				out = append(out, other)
			}
		}
	}
	return out
}

// check says what of a Config cannot be.
func (c *Config) check() error {
	const op = "settings"
	if c.Chunk != 0 && (c.Chunk < heap.MinChunk || bits.OnesCount64(c.Chunk) != 1) {
		return fault(layout.StatusArgument, op, -1, "a chunk of %s: a power of two of at least %s is needed", units.FormatSize(c.Chunk), units.FormatSize(heap.MinChunk))
	}
	if c.MaxTeams != 0 && (c.MaxTeams < int(layout.TeamFirstOwned) || c.MaxTeams > layout.MaxTeams) {
		return fault(layout.StatusArgument, op, -1, "%d teams: %d to %d are possible", c.MaxTeams, layout.TeamFirstOwned, layout.MaxTeams)
	}
	switch c.Memory {
	case "", MemoryAuto, MemoryDevice, MemoryHost:
	default:
		return fault(layout.StatusArgument, op, -1, "a heap in %q: auto, device or host", c.Memory)
	}
	if c.Memory == MemoryDevice && c.NoGPU {
		return fault(layout.StatusArgument, op, -1, "a heap in device memory without a GPU")
	}
	if c.HeapMax > 1<<46 || c.Static > 1<<46 || c.Chunk > 1<<40 {
		return fault(layout.StatusArgument, op, -1, "more than 64 TiB of heap")
	}
	if _, _, err := c.network(); err != nil { // also where no PE will need it
		return fault(layout.StatusArgument, op, -1, "%w", err)
	}
	return nil
}

// network are the settings of the network transport, and which of NVSHMEM's were of no use.
func (c *Config) network() (s ibgda.Settings, unused []error, err error) {
	s, unused, err = ibgda.FromEnvironment(func(name string) (string, bool) {
		v, ok := c.Settings[name]
		return v, ok
	})
	if err == nil {
		err = s.Check()
	}
	return s, unused, err
}
