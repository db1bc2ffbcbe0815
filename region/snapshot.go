package region

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Snapshot is the state of an lgpu at one moment. A process's figures may lack its operation in flight.
type Snapshot struct {
	Name      string
	ID        uint64
	Created   time.Time
	Launched  bool // a launcher holds a lease
	Host      uint64
	HostLimit uint64 // bytes, or NoLimit
	Devices   []DeviceState
	Clients   []ClientState
}

// DeviceState is what an lgpu may use and uses of one device.
type DeviceState struct {
	DeviceLimits
	Used     uint64        // bytes held by live processes
	Peak     uint64        // bytes, the most the lgpu ever held
	Share    uint32        // device time used over the last second, in hundredths of a percent
	Busy     time.Duration // device time used since the lgpu was made
	Launches uint64        // since the lgpu was made
}

// ClientState is one live process of an lgpu.
type ClientState struct {
	PID    int      // in the reader's PID namespace where the kernel could tell, else in the process's own
	Comm   string   // the program's short name; printable
	Host   uint64   // bytes of page-locked host memory, where that is limited
	Memory []uint64 // bytes, for each device
}

// Snapshot reads the region's counters. What dead processes held and nobody has reclaimed yet does not count.
func (r *Region) Snapshot() (*Snapshot, error) {
	usage := new(Usage)
	if _, err := r.file.ReadAt(bytesOf(usage), r.base+LimitsBytes); err != nil {
		return nil, fmt.Errorf("read region %s: %w: %w", r.path, ErrInvalid, err)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return nil, fmt.Errorf("read the monotonic clock: %w", err)
	}
	launched, _, err := r.held(LauncherLockOffset)
	if err != nil {
		return nil, err
	}
	l := &r.limits
	s := &Snapshot{
		Name: l.name(), ID: l.ID, Created: time.Unix(0, l.CreatedUnixNano), Launched: launched,
		HostLimit: l.HostMemory, Devices: make([]DeviceState, l.Devices),
	}
	for i := range s.Devices {
		u := &usage.Device[i]
		s.Devices[i] = DeviceState{
			DeviceLimits: l.Device[i], Peak: u.Peak, Busy: time.Duration(min(u.Busy, 1<<63-1)), Launches: u.Launches,
			Share: lastSecond(&u.History, uint64(now.Nano())/WindowNanos),
		}
	}
	namespace := pidNamespace()
	for i := range usage.Client {
		c := &usage.Client[i]
		if c.State == ClientFree {
			continue
		}
		held, pid, err := r.held(ClientLockOffset + int64(i))
		if err != nil {
			return nil, err
		}
		if !held && !(c.Namespace == namespace && c.Start != 0 && c.Start == startTime(c.PID)) {
			continue
		}
		if pid <= 0 {
			pid = int(c.PID)
		}
		client := ClientState{PID: pid, Comm: printable(c.Comm[:]), Host: c.Host.held(i, &usage.Host), Memory: make([]uint64, l.Devices)}
		s.Host += client.Host
		for d := range client.Memory {
			client.Memory[d] = c.Device[d].held(i, &usage.Device[d].Memory)
			s.Devices[d].Used += client.Memory[d]
		}
		s.Clients = append(s.Clients, client)
	}
	return s, nil
}

// held is what the ledger of client index holds of counter c: Ledger says when an operation has taken effect.
func (l *Ledger) held(index int, c *Counter) uint64 {
	if l.Begun == 0 {
		return 0
	}
	op := l.Record[l.Begun&1]
	bytes := op.Before
	if l.Applied >= l.Begun || c.Last == uint64(index)<<48|l.Begun {
		bytes += op.Delta
	}
	return uint64(max(bytes, 0))
}

// lastSecond adds up the windows that lie whole in the second before epoch.
func lastSecond(history *[Windows]Window, epoch uint64) uint32 {
	const span = 1_000_000_000 / WindowNanos
	var busy uint64
	for _, w := range history {
		if w.Epoch < epoch && w.Epoch+span >= epoch {
			busy += min(w.Busy, 1_000_000_000_000) // whatever a tenant wrote, the sum stays small
		}
	}
	return uint32(busy * uint64(FullCompute) / (span * WindowNanos))
}

// held asks the kernel whether a process has the lock on the byte at offset, and which; -1 where that is not one process.
func (r *Region) held(offset int64) (held bool, pid int, err error) {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: offset, Len: 1}
	if err := unix.FcntlFlock(r.file.Fd(), unix.F_GETLK, &lock); err != nil {
		return false, 0, fmt.Errorf("query locks of region %s: %w", r.path, err)
	}
	return lock.Type != unix.F_UNLCK, int(lock.Pid), nil
}

// pidNamespace returns the inode that names this process's PID namespace, or 0.
func pidNamespace() uint64 {
	info, err := os.Stat("/proc/self/ns/pid")
	if err != nil {
		return 0
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Ino
	}
	return 0
}

// startTime returns field 22 of /proc/PID/stat, or 0 if there is no such process or it is dead already.
func startTime(pid uint32) uint64 {
	stat, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(pid), 10) + "/stat")
	if err != nil {
		return 0
	}
	// The second field is the program's name in parentheses and may hold anything, spaces and parentheses included.
	end := bytes.LastIndexByte(stat, ')')
	fields := strings.Fields(string(stat[end+1:]))
	if end < 0 || len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return 0
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return 0
	}
	return start
}

// printable makes a tenant's NUL-padded bytes harmless for a terminal.
func printable(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, string(b))
}
