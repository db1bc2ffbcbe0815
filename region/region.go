package region

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Errors of Create, Join and Open, beside those of the file system. Create also returns fs.ErrExist, Join and Open
// fs.ErrNotExist.
var (
	// ErrSpec: what Create was asked for cannot be laid out.
	ErrSpec = errors.New("not a possible lgpu")
	// ErrInvalid: the file is not a region of this version, or its limits make no sense.
	ErrInvalid = errors.New("not a valid region")
	// ErrBusy: somebody has kept the launcher's lock to himself for over a second.
	ErrBusy = errors.New("region is locked by another process")
)

// Bytes is the size of a region whose base is 0.
const Bytes = LimitsBytes + int64(unsafe.Sizeof(Usage{}))

// hamiMagic is the first word of HAMi's region v1.2.
const hamiMagic = 19920718

// newPrefix begins the name of a file that Create has not finished.
const newPrefix = ".new-"

// Spec is what a new region grants.
type Spec struct {
	ID         uint64         // 0: one is drawn
	Name       string         // as CheckName has it
	HostMemory uint64         // limit on page-locked host memory in bytes, or NoLimit
	Devices    []DeviceLimits // 1 to MaxDevices, in the order in which the tenant sees them
}

// Region is an open region file. Its contents are read by read(2) and never mapped here: a tenant that truncates its own
// region cannot hurt a reader. Methods may be called by several goroutines, Close once.
type Region struct {
	path   string
	file   *os.File
	base   int64
	limits Limits
	leased bool
}

// CheckName reports why name cannot name an lgpu: names have 1 to 63 letters, digits, dots, dashes and underscores and
// begin with a letter or a digit.
func CheckName(name string) error {
	if len(name) == 0 || len(name) > 63 {
		return fmt.Errorf("name %q has %d characters; 1 to 63 are possible", name, len(name))
	}
	for i, r := range []byte(name) {
		letter := 'a' <= r|0x20 && r|0x20 <= 'z' || '0' <= r && r <= '9'
		if !letter && (i == 0 || r != '.' && r != '-' && r != '_') {
			return fmt.Errorf("name %q: %q is not possible there; names are letters, digits, dots, dashes and underscores", name, string(r))
		}
	}
	return nil
}

// Create makes the region file of a new lgpu, whole or not at all: nobody sees a half-made one. The caller holds a
// launcher's lease on it until Close. An error wraps fs.ErrExist where path exists.
func Create(path string, spec Spec) (*Region, error) {
	r := &Region{path: path, leased: true}
	limits, err := spec.limits()
	if err != nil {
		return nil, fmt.Errorf("region %s: %w", path, err)
	}
	r.limits = limits
	file, err := os.CreateTemp(filepath.Dir(path), newPrefix+"*")
	if err != nil {
		return nil, fmt.Errorf("create region: %w", err)
	}
	r.file = file
	err = r.publish()
	if removed := os.Remove(file.Name()); err == nil {
		err = removed
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("create region %s: %w", path, err)
	}
	return r, nil
}

// Check says why no region can be made of s; the error wraps ErrSpec.
func (s Spec) Check() error {
	_, err := s.limits()
	return err
}

// limits returns what was asked for as a region has it.
func (s Spec) limits() (Limits, error) {
	if err := CheckName(s.Name); err != nil {
		return Limits{}, fmt.Errorf("%w: %w", ErrSpec, err)
	}
	if len(s.Devices) < 1 || len(s.Devices) > MaxDevices {
		return Limits{}, fmt.Errorf("%w: %d devices; 1 to %d are possible", ErrSpec, len(s.Devices), MaxDevices)
	}
	l := Limits{
		Magic: Magic, Version: Version, Devices: uint32(len(s.Devices)),
		ID: s.ID, HostMemory: s.HostMemory, CreatedUnixNano: time.Now().UnixNano(),
	}
	if l.ID == 0 {
		var id [8]byte
		rand.Read(id[:])
		l.ID = binary.LittleEndian.Uint64(id[:]) | 1
	}
	copy(l.Name[:], s.Name)
	copy(l.Device[:], s.Devices)
	if err := l.check(); err != nil {
		return Limits{}, fmt.Errorf("%w: %w", ErrSpec, err)
	}
	return l, nil
}

// publish writes the file, takes the lease and gives the file its name.
func (r *Region) publish() error {
	// Blocks are reserved now, since a full file system would otherwise kill tenants (SIGBUS) at a later store.
	if err := unix.Fallocate(int(r.file.Fd()), 0, 0, Bytes); err != nil {
		if !errors.Is(err, unix.EOPNOTSUPP) {
			return fmt.Errorf("reserve %d bytes: %w", Bytes, err)
		}
		if _, err := r.file.WriteAt(make([]byte, Bytes), 0); err != nil {
			return err
		}
	}
	if _, err := r.file.WriteAt(bytesOf(&r.limits), 0); err != nil {
		return err
	}
	if err := r.lock(unix.F_RDLCK); err != nil {
		return err
	}
	return os.Link(r.file.Name(), r.path)
}

// Open reads the region at path, which may also be a file that begins with HAMi's region. It takes no lease.
func Open(path string) (*Region, error) {
	return open(path, unix.O_RDONLY)
}

// Join opens the region at path and takes a launcher's lease on it, so that it stays until Close.
func Join(path string) (*Region, error) {
	for start := time.Now(); ; {
		r, err := open(path, unix.O_RDWR)
		if err != nil {
			return nil, err
		}
		err = r.lock(unix.F_RDLCK)
		if err == nil && r.named() {
			r.leased = true
			return r, nil
		}
		r.file.Close()
		switch {
		case err != nil && !errors.Is(err, unix.EAGAIN):
			return nil, fmt.Errorf("lock region %s: %w", path, err)
		case time.Since(start) > time.Second:
			return nil, fmt.Errorf("region %s: %w", path, ErrBusy)
		}
		time.Sleep(time.Millisecond) // its last launcher is about to remove it
	}
}

func open(path string, flags int) (*Region, error) {
	// Not blocking: whoever can write the folder could have put a FIFO there.
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open region", Path: path, Err: err}
	}
	r := &Region{path: path, file: os.NewFile(uintptr(fd), path)}
	if err := r.load(); err != nil {
		r.file.Close()
		return nil, fmt.Errorf("region %s: %w", path, err)
	}
	return r, nil
}

// load finds the base and reads and checks the limits.
func (r *Region) load() error {
	info, err := r.file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%w: it is no regular file", ErrInvalid)
	}
	var first [4]byte
	if _, err := r.file.ReadAt(first[:], 0); err != nil {
		return fmt.Errorf("%w: it has %d bytes", ErrInvalid, info.Size())
	}
	if binary.LittleEndian.Uint32(first[:]) == hamiMagic {
		r.base = HAMiBase
	}
	if info.Size() < r.base+Bytes {
		return fmt.Errorf("%w: it has %d bytes instead of %d", ErrInvalid, info.Size(), r.base+Bytes)
	}
	if _, err := r.file.ReadAt(bytesOf(&r.limits), r.base); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := r.limits.check(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}

// check says what makes l unusable.
func (l *Limits) check() error {
	if l.Magic != Magic {
		return fmt.Errorf("it begins with %#x", l.Magic)
	}
	if l.Version != Version {
		return fmt.Errorf("its layout has version %d, this program knows %d", l.Version, Version)
	}
	if l.Devices < 1 || l.Devices > MaxDevices {
		return fmt.Errorf("it has %d devices", l.Devices)
	}
	if name := l.name(); name != "" { // regions made from HAMi's environment have no name
		if err := CheckName(name); err != nil {
			return err
		}
	}
	for i, d := range l.Device[:l.Devices] {
		if d.Compute > FullCompute {
			return fmt.Errorf("device %d has a compute share of %d hundredths of a percent", i, d.Compute)
		}
		for j, other := range l.Device[:i] {
			if d.UUID == other.UUID {
				return fmt.Errorf("devices %d and %d are the same", j, i)
			}
		}
	}
	return nil
}

func (l *Limits) name() string {
	name, _, _ := bytes.Cut(l.Name[:], []byte{0})
	return string(name)
}

// Path returns the path under which the region was created or opened.
func (r *Region) Path() string { return r.path }

// Spec returns what the region grants, as it was when the region was opened.
func (r *Region) Spec() Spec {
	devices := append([]DeviceLimits(nil), r.limits.Device[:r.limits.Devices]...)
	return Spec{Name: r.limits.name(), HostMemory: r.limits.HostMemory, Devices: devices}
}

// Close gives the lease back, if there is one. The last launcher to leave removes the file, unless processes of the lgpu
// still live: then Collect removes it later.
func (r *Region) Close() error {
	defer r.file.Close()
	if !r.leased {
		return nil
	}
	return r.removeUnused()
}

// Collect removes the regions in dir that have neither a launcher nor a live process, which is what crashes leave behind.
// Files that are no valid regions are left alone, but for those that died unborn in Create.
func Collect(dir string) error {
	paths, err := List(dir)
	if err != nil {
		return err
	}
	var failed error
	unborn, _ := filepath.Glob(filepath.Join(dir, newPrefix+"*")) // the pattern is well formed
	for _, path := range unborn {
		if info, err := os.Lstat(path); err == nil && time.Since(info.ModTime()) > time.Minute {
			failed = errors.Join(failed, os.Remove(path))
		}
	}
	for _, path := range paths {
		r, err := open(path, unix.O_RDWR)
		if err != nil {
			continue // gone meanwhile, or invalid: the reader that shows it will say so
		}
		failed = errors.Join(failed, r.removeUnused())
		r.file.Close()
	}
	return failed
}

// removeUnused removes the file if nobody else holds the launcher's lock and no client lives.
//
// The own lease goes first: of several launchers that leave at once, the last to let go then finds nobody.
func (r *Region) removeUnused() error {
	err := r.lock(unix.F_UNLCK)
	if err == nil {
		err = r.lock(unix.F_WRLCK)
	}
	if errors.Is(err, unix.EAGAIN) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lock region %s: %w", r.path, err)
	}
	s, err := r.Snapshot()
	if err != nil || len(s.Clients) > 0 || !r.named() {
		return err
	}
	if err := os.Remove(r.path); err != nil {
		return fmt.Errorf("remove region: %w", err)
	}
	return nil
}

// lock takes the launcher's lock as an open-file-description lock, which, unlike a record lock, is not lost when some
// other descriptor of the file is closed. EAGAIN: somebody else has it.
func (r *Region) lock(kind int16) error {
	return unix.FcntlFlock(r.file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind, Start: LauncherLockOffset, Len: 1})
}

// named reports whether the path still names this file.
func (r *Region) named() bool {
	mine, err := r.file.Stat()
	if err != nil {
		return false
	}
	now, err := os.Lstat(r.path)
	return err == nil && os.SameFile(mine, now)
}

// bytesOf returns the memory of v. The layout's types have no pointers and no padding, and every machine lgpu runs on is
// little-endian.
func bytesOf[T Limits | Usage](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}
