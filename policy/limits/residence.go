package limits

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
)

// Files of memory that can leave its device.
const (
	fileOvercommit = "memory.overcommit"
	fileSuspend    = "memory.suspend"
	fileBudget     = "memory.budget"
	fileHostBudget = "host.budget"
)

// DefaultBudget is how many bytes of a device's memory lgpus may have resident, where memory.budget says nothing: all but
// 2 %, and at least 512 MiB, which drivers take for themselves.
func DefaultBudget(memory uint64) uint64 {
	return memory - min(max(memory/50, 512<<20), memory)
}

// memoryBudget is a limit that the root alone has.
var memoryBudget = limit{fileBudget,
	func(l Limits) bool { return l.MemoryBudget != Bytes{} },
	func(l *Limits, from Limits) { l.MemoryBudget = from.MemoryBudget },
	func(l Limits, d Device) error { return checkMemory(l.MemoryBudget, d) }}

// residenceFiles are the files of memory that can leave its device.
func residenceFiles() []*file {
	return []*file{
		{name: fileHostBudget, root: true,
			read:  func(t *Tree, s *state, _ *directory) string { return fmt.Sprintln(t.hostBudget(s)) },
			write: single(func(n *directory, value string) (err error) { n.HostBudget, err = parseBudget(value); return err })},
		{name: fileBudget, root: true,
			read: func(_ *Tree, s *state, _ *directory) string {
				return s.table(func(d int) string { return strconv.FormatUint(s.budget(d), 10) })
			},
			write: perDevice(&memoryBudget, func(l *Limits, value string) (err error) {
				l.MemoryBudget, err = parseBudget(value)
				return err
			})},
		{name: "memory.evicted", usage: true, read: func(t *Tree, s *state, n *directory) string {
			return s.table(func(d int) string { return strconv.FormatUint(t.stat(n, s.devices[d].UUID).Evicted, 10) })
		}},
		{name: fileOvercommit,
			read:  func(_ *Tree, _ *state, n *directory) string { return formatBit(n.Overcommit) },
			write: writeOvercommit},
		{name: "memory.resident", usage: true, read: func(t *Tree, s *state, n *directory) string {
			return s.table(func(d int) string {
				stat := t.stat(n, s.devices[d].UUID)
				return strconv.FormatUint(stat.Memory-min(stat.Evicted, stat.Memory), 10)
			})
		}},
		{name: fileSuspend,
			read: func(_ *Tree, _ *state, n *directory) string { return formatBit(n.Suspend) },
			write: single(func(n *directory, value string) (err error) {
				n.Suspend, err = parseBit(value)
				return err
			})},
	}
}

// writeOvercommit reads whether memory may leave its devices. What programs were told at their start stays.
func writeOvercommit(s *state, n *directory, text string) *Error {
	return single(func(n *directory, value string) error {
		on, err := parseBit(value)
		if err != nil || on == n.Overcommit {
			return err
		}
		if on {
			if err := s.movable(); err != nil {
				return err
			}
		}
		if s.used != nil && s.used(n.ID) {
			return invalid{syscall.EBUSY, "programs have run in it, and were told at their start whether memory can leave its devices",
				"make another lgpu, or write it to the group before lgpus are made in it"}
		}
		n.Overcommit = on
		return nil
	})(s, n, text)
}

// movable says why memory cannot leave any device that there is.
func (s *state) movable() error {
	for _, d := range s.devices {
		if d.Kind == Temporal {
			return nil
		}
	}
	if len(s.devices) == 0 {
		return nil
	}
	return invalid{syscall.EOPNOTSUPP, "on devices in spatial mode (MPS) memory cannot leave the device", ""}
}

// setOvercommit is a request for memory.overcommit.
func (s *state) setOvercommit(n *directory) *Error {
	if err := writeOvercommit(s, n, "1"); err != nil {
		err.Path, err.File = n.Path, fileOvercommit
		return err
	}
	return nil
}

// budget is what lgpus may have resident on device number d, in bytes.
func (s *state) budget(d int) uint64 {
	return s.root.limits(s.devices[d].UUID).MemoryBudget.Or(DefaultBudget(s.devices[d].Memory))
}

func (t *Tree) hostBudget(s *state) uint64 { return s.root.HostBudget.Or(t.hostMemory) }

// Budget returns how many bytes of memory lgpus may have resident on the device with a UUID; 0 for one that is not there.
func (t *Tree) Budget(uuid string) uint64 {
	s := t.state.Load()
	for d, device := range s.devices {
		if device.UUID == uuid {
			return s.budget(d)
		}
	}
	return 0
}

// HostBudget returns how many bytes of host memory copies of what has left devices may take.
func (t *Tree) HostBudget() uint64 { return t.hostBudget(t.state.Load()) }

// parseBudget is parseBytes with default in place of max.
func parseBudget(value string) (Bytes, error) {
	switch value {
	case wordDefault:
		return Bytes{}, nil
	case wordMax:
		return Bytes{}, errors.New("a budget is a size, or default")
	}
	b, err := parseBytes(value)
	if err == nil {
		err = checkBytes(b)
	}
	return b, err
}

func parseBit(value string) (bool, error) {
	switch strings.TrimSpace(value) {
	case "0":
		return false, nil
	case "1":
		return true, nil
	}
	return false, errors.New("it is 0 or 1")
}

func formatBit(on bool) string {
	if on {
		return "1\n"
	}
	return "0\n"
}
