package region

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// UsageBytes is the size of a Usage in memory of its own: whole pages.
const UsageBytes = (int(unsafe.Sizeof(Usage{})) + 4095) &^ 4095

// UsageName is the name of the counters' memory file: in /proc/PID/maps, "/memfd:" and this.
const UsageName = "lgpu-usage"

// Seals of the memory files. Neither can be made shorter while processes map it; limits can be changed only through the
// mapping that the authority made before.
const (
	usageSeals  = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	limitsSeals = usageSeals | unix.F_SEAL_FUTURE_WRITE
	writeSeals  = unix.F_SEAL_WRITE | unix.F_SEAL_FUTURE_WRITE
)

// Shared is the authority's side of a region in memory files: the only mapping through which its limits can be written,
// and a view of its counters. Methods may be called by several goroutines; after Close, those that set do nothing and
// those that read give zeros.
type Shared struct {
	mu          sync.RWMutex // guards the life of the mappings; their words are read and written atomically
	limits      *Limits      // nil once closed
	usage       *Usage       // written by tenants
	limitsMem   []byte
	usageMem    []byte
	limitsFile  *os.File
	usageFile   *os.File
	usageInode  Inode
	deviceCount int
}

// Inode names a file of the machine while it exists.
type Inode struct{ Device, Number uint64 }

// New makes a region that no process uses yet. Spec.ID 0 draws one.
func New(spec Spec) (*Shared, error) {
	usage, err := memoryFile(UsageName, UsageBytes)
	if err != nil {
		return nil, fmt.Errorf("region of lgpu %s: %w", spec.Name, err)
	}
	if _, err = unix.FcntlInt(usage.Fd(), unix.F_ADD_SEALS, usageSeals); err != nil {
		usage.Close()
		return nil, fmt.Errorf("region of lgpu %s: seal usage: %w", spec.Name, err)
	}
	return adopt(spec, usage)
}

// Adopt makes a region of new limits and of counters that have been in use under an authority that is gone. fd stays
// the caller's. An error wraps ErrInvalid where fd is not what New makes; what the counters say is up to the tenant.
func Adopt(spec Spec, fd int) (*Shared, error) {
	if _, err := CheckUsage(fd); err != nil {
		return nil, fmt.Errorf("region of lgpu %s: %w", spec.Name, err)
	}
	// A duplicate: to open the file again would need the rights of its creator.
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("region of lgpu %s: %w", spec.Name, err)
	}
	return adopt(spec, os.NewFile(uintptr(own), UsageName))
}

// CheckUsage reports whether fd is a sealed memory file of the size of a Usage, and which.
func CheckUsage(fd int) (Inode, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return Inode{}, fmt.Errorf("%w: usage is not a memory file: %w", ErrInvalid, err)
	}
	// Ordinary files of a tmpfs have seals too, but never these.
	if seals&(usageSeals|writeSeals) != usageSeals {
		return Inode{}, fmt.Errorf("%w: usage has seals %#x", ErrInvalid, seals)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return Inode{}, fmt.Errorf("%w: usage: %w", ErrInvalid, err)
	}
	if stat.Size != int64(UsageBytes) {
		return Inode{}, fmt.Errorf("%w: usage has %d bytes instead of %d", ErrInvalid, stat.Size, UsageBytes)
	}
	return Inode{stat.Dev, stat.Ino}, nil
}

// adopt makes the limits and maps both parts. usage is its own from here on.
func adopt(spec Spec, usage *os.File) (*Shared, error) {
	s := &Shared{usageFile: usage}
	if err := s.build(spec); err != nil {
		s.Close()
		return nil, fmt.Errorf("region of lgpu %s: %w", spec.Name, err)
	}
	return s, nil
}

func (s *Shared) build(spec Spec) (err error) {
	limits, err := spec.Limits()
	if err != nil {
		return err
	}
	s.deviceCount = len(spec.Devices)
	if s.usageInode, err = CheckUsage(int(s.usageFile.Fd())); err != nil {
		return err
	}
	if s.usageMem, err = mapWritable(s.usageFile, UsageBytes); err != nil {
		return fmt.Errorf("%w: map usage: %w", ErrInvalid, err)
	}
	s.usage = (*Usage)(unsafe.Pointer(&s.usageMem[0]))
	if s.limitsFile, err = memoryFile("lgpu-limits", LimitsBytes); err != nil {
		return err
	}
	if s.limitsMem, err = mapWritable(s.limitsFile, LimitsBytes); err != nil {
		return fmt.Errorf("map limits: %w", err)
	}
	s.limits = (*Limits)(unsafe.Pointer(&s.limitsMem[0]))
	*s.limits = limits
	for i := range s.deviceCount {
		s.limits.Device[i].Beat = 1
	}
	if _, err := unix.FcntlInt(s.limitsFile.Fd(), unix.F_ADD_SEALS, limitsSeals); err != nil {
		return fmt.Errorf("seal limits: %w", err)
	}
	return nil
}

func memoryFile(name string, size int) (*os.File, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return nil, fmt.Errorf("create memory file: %w", err)
	}
	file := os.NewFile(uintptr(fd), name)
	if err := file.Truncate(int64(size)); err != nil {
		file.Close()
		return nil, fmt.Errorf("size memory file: %w", err)
	}
	return file, nil
}

func mapWritable(f *os.File, size int) ([]byte, error) {
	return unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// Close gives up the mappings and files; tenants keep theirs.
func (s *Shared) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limits, s.usage = nil, nil
	for _, mem := range [][]byte{s.limitsMem, s.usageMem} {
		if mem != nil {
			unix.Munmap(mem)
		}
	}
	s.limitsMem, s.usageMem = nil, nil
	for _, f := range []*os.File{s.limitsFile, s.usageFile} {
		if f != nil {
			f.Close()
		}
	}
	s.limitsFile, s.usageFile = nil, nil
}

// Files calls fn with descriptors of both parts, good until it returns.
func (s *Shared) Files(fn func(limits, usage int) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.limits == nil {
		return os.ErrClosed
	}
	return fn(int(s.limitsFile.Fd()), int(s.usageFile.Fd()))
}

// UsageInode names the memory file of the counters.
func (s *Shared) UsageInode() Inode { return s.usageInode }

// SetHostMemory sets the limit on page-locked host memory, in bytes. What SetGranted says of order holds here too.
func (s *Shared) SetHostMemory(bytes uint64) {
	s.set(0, func(l *Limits, _ *DeviceLimits) { atomic.SwapUint64(&l.HostMemory, bytes) })
}

// SetMemory sets the memory that the tenant is shown of a device, in bytes.
func (s *Shared) SetMemory(device int, bytes uint64) {
	s.set(device, func(_ *Limits, d *DeviceLimits) { atomic.StoreUint64(&d.Memory, bytes) })
}

// SetGranted sets the memory of a device that may be used now, in bytes. Once it returns, every process that adds sees
// it: of a SetGranted with a Used after it and an addition with a look at Granted after it, one at least sees the
// other.
func (s *Shared) SetGranted(device int, bytes uint64) {
	// A swap, not a store: the reads that follow must not pass it.
	s.set(device, func(_ *Limits, d *DeviceLimits) { atomic.SwapUint64(&d.Granted, bytes) })
}

// SetCompute sets the cap on a device's time, in hundredths of a percent.
func (s *Shared) SetCompute(device int, share uint32) {
	s.set(device, func(_ *Limits, d *DeviceLimits) { atomic.StoreUint32(&d.Compute, share) })
}

// SetUnits sets the number of compute units that the tenant is shown of a device; 0 is all.
func (s *Shared) SetUnits(device int, units uint32) {
	s.set(device, func(_ *Limits, d *DeviceLimits) { atomic.StoreUint32(&d.Units, units) })
}

// Beat shows the lgpu's processes that the authority lives, which gives them their turns on a device.
func (s *Shared) Beat(device int) {
	s.set(device, func(_ *Limits, d *DeviceLimits) { atomic.AddUint64(&d.Beat, 1) })
}

func (s *Shared) set(device int, store func(*Limits, *DeviceLimits)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.limits != nil && device >= 0 && device < s.deviceCount {
		store(s.limits, &s.limits.Device[device])
	}
}

// read calls fn with the counters, if there still are any.
func (s *Shared) read(fn func(*Usage)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.usage != nil {
		fn(s.usage)
	}
}

// Host returns the bytes of page-locked host memory in use.
func (s *Shared) Host() (bytes uint64) {
	s.read(func(u *Usage) { bytes = atomic.LoadUint64(&u.Host.Bytes) })
	return bytes
}

// Used returns the bytes of a device's memory in use, those of dead clients that are not settled included.
func (s *Shared) Used(device int) (bytes uint64) {
	s.device(device, func(d *DeviceUsage) { bytes = atomic.LoadUint64(&d.Memory.Bytes) })
	return bytes
}

// Busy returns the device time charged, in ns.
func (s *Shared) Busy(device int) (nanos uint64) {
	s.device(device, func(d *DeviceUsage) { nanos = atomic.LoadUint64(&d.Busy) })
	return nanos
}

// Launches returns how many launches on a device were charged.
func (s *Shared) Launches(device int) (launches uint64) {
	s.device(device, func(d *DeviceUsage) { launches = atomic.LoadUint64(&d.Launches) })
	return launches
}

func (s *Shared) device(device int, fn func(*DeviceUsage)) {
	s.read(func(u *Usage) {
		if device >= 0 && device < s.deviceCount {
			fn(&u.Device[device])
		}
	})
}

// State is what an lgpu's counters say at one moment. All of it but Granted is the tenant's word.
type State struct {
	Host    uint64 // bytes of page-locked host memory
	Devices []DeviceUse
}

// DeviceUse is what an lgpu uses of one device.
type DeviceUse struct {
	Used     uint64        // bytes
	Peak     uint64        // bytes, the most the lgpu ever held
	Granted  uint64        // bytes it may use now without asking, or NoLimit
	Share    uint32        // device time used over the last second, in hundredths of a percent
	Busy     time.Duration // device time used since the lgpu was made
	Launches uint64        // since the lgpu was made
	Evicted  uint64        // bytes that have left the device since the lgpu was made
	Clean    uint64        // bytes of them that did not have to be copied
}

// State reads the counters.
func (s *Shared) State() State {
	state := State{Devices: make([]DeviceUse, s.deviceCount)}
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // cannot fail on Linux
	s.read(func(u *Usage) {
		state.Host = atomic.LoadUint64(&u.Host.Bytes)
		for i := range state.Devices {
			d := &u.Device[i]
			var history [Windows]Window
			for w := range history {
				history[w] = Window{atomic.LoadUint64(&d.History[w].Epoch), atomic.LoadUint64(&d.History[w].Busy)}
			}
			state.Devices[i] = DeviceUse{
				Used: atomic.LoadUint64(&d.Memory.Bytes), Peak: atomic.LoadUint64(&d.Peak),
				Granted:  atomic.LoadUint64(&s.limits.Device[i].Granted),
				Share:    lastSecond(&history, uint64(now.Nano())/WindowNanos),
				Busy:     time.Duration(min(atomic.LoadUint64(&d.Busy), 1<<63-1)),
				Launches: atomic.LoadUint64(&d.Launches),
				Evicted:  atomic.LoadUint64(&d.Evicted), Clean: atomic.LoadUint64(&d.Clean),
			}
		}
	})
	return state
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

// Charged returns what a client is charged for by its own ledgers, in bytes: page-locked host memory and each device's.
func (s *Shared) Charged(client int) (host uint64, devices []uint64) {
	devices = make([]uint64, s.deviceCount)
	s.read(func(u *Usage) {
		if client < 0 || client >= MaxClients {
			return
		}
		host = uint64(max(u.hostAccount().held(client), 0))
		for i := range devices {
			devices[i] = uint64(max(u.deviceAccount(i).held(client), 0))
		}
	})
	return host, devices
}

// Owner is the process that is a client.
type Owner struct {
	PID       int    // as the process knows itself
	Start     uint64 // field 22 of /proc/PID/stat
	Namespace uint64 // inode of its PID namespace, or 0
	Comm      string
}

// Claim writes who a client is, for the other processes of the lgpu to show.
func (s *Shared) Claim(client int, h Owner) {
	s.read(func(u *Usage) {
		if client < 0 || client >= MaxClients {
			return
		}
		c := &u.Client[client]
		c.Start, c.Namespace, c.Comm = h.Start, h.Namespace, [16]byte{}
		c.Exported, c.Released = [MaxDevices]uint64{}, [MaxDevices]uint64{}
		copy(c.Comm[:15], h.Comm)
		atomic.StoreUint32(&c.PID, uint32(h.PID))
		atomic.StoreUint32(&c.State, ClientLive)
	})
}

// Exports returns what a client has given away under descriptors, in bytes of each device, never more than it holds;
// and what of that it has released.
func (s *Shared) Exports(client int) (exported, released []uint64) {
	exported, released = make([]uint64, s.deviceCount), make([]uint64, s.deviceCount)
	s.read(func(u *Usage) {
		if client < 0 || client >= MaxClients {
			return
		}
		for i := range exported {
			held := uint64(max(u.deviceAccount(i).held(client), 0))
			exported[i] = min(atomic.LoadUint64(&u.Client[client].Exported[i]), held)
			released[i] = min(atomic.LoadUint64(&u.Client[client].Released[i]), exported[i])
		}
	})
	return exported, released
}

// Charge charges a client that is not live for bytes more: of the device with an index, or with -1 of page-locked host memory.
// False: a tenant writes so often that it cannot be done now.
func (s *Shared) Charge(client, device int, bytes uint64) (done bool) {
	s.read(func(u *Usage) {
		if client < 0 || client >= MaxClients || device >= s.deviceCount || bytes > math.MaxInt64 {
			return
		}
		a := u.hostAccount()
		if device >= 0 {
			a = u.deviceAccount(device)
		}
		done = a.change(client, a.held(client), int64(bytes))
	})
	return done
}

// Settle gives back what a dead client holds beyond keep, in bytes of each device, and frees its index if it keeps
// nothing; a nil keep is nothing. Live clients may go on meanwhile; nobody else may settle the same client. False: a
// tenant writes so often that it cannot be done now.
func (s *Shared) Settle(client int, keep []uint64) bool {
	done := true
	s.read(func(u *Usage) {
		if client < 0 || client >= MaxClients {
			return
		}
		keeps := false
		done = u.hostAccount().settle(client, 0)
		for i := range s.deviceCount {
			var bytes uint64
			if i < len(keep) {
				bytes = keep[i]
			}
			keeps = keeps || bytes != 0
			done = u.deviceAccount(i).settle(client, bytes) && done
		}
		if done && !keeps {
			atomic.StoreUint32(&u.Client[client].State, ClientFree)
		}
	})
	return done
}
