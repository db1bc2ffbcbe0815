// Package hostcopy makes the files in which memory lies that has left its device: for each client and device one of
// memory, touched ahead of need, as far as a budget goes, and one on a disk for what is beyond it.
//
//	k := hostcopy.New(hostcopy.Options{Budget: tree.HostBudget, Dir: dir})
//	c := k.Copy(hostcopy.Memory, node)
//	grown, err := c.Grow(8<<30, hostcopy.Ahead)
//
// A file belongs to one client and is never given to another: its pages go when the client and the daemon have closed
// it. It only grows, so what a client has mapped stays mapped. A Keeper may be used by several goroutines, a Copy by one
// at a time; Close and Hurry may be called beside Grow: one ends it early, the other has it end soon.
package hostcopy

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Errors, wrapped with what they are about.
var (
	// ErrRoom: neither the budget nor the disk has room for more.
	ErrRoom = errors.New("no room for copies of memory that is to leave its device")
	// ErrForeign: a file is not the one that was made for the client.
	ErrForeign = errors.New("not the file that was made for it")
	// ErrClosed: the client is gone.
	ErrClosed = errors.New("closed")
)

const (
	// piece is what one thread touches at a time, in bytes: so little that the last one ends soon after the others.
	piece = 16 << 20
	// unit is what sizes are rounded up to, in bytes.
	unit = 2 << 20
	// spare is what stays free on the disk, in bytes.
	spare = 256 << 20
	// most is the largest file, in bytes.
	most = 1 << 46
	// threads touch pages at once, at most.
	threads = 16
	// niceness of threads that touch pages ahead of need.
	niceness = 19
)

// Tier is what a file is made of.
type Tier int

// The tiers, faster ones first.
const (
	Memory Tier = iota // page-locked by the client once it is touched
	Disk
	Tiers
)

// String returns the tier's name.
func (t Tier) String() string {
	if t == Memory {
		return "memory"
	}
	return "disk"
}

// Pace is how a file grows.
type Pace int

// The paces.
const (
	Ahead  Pace = iota // of need: beside other programs, which are to notice nothing
	Urgent             // somebody waits for it
)

// Options of a Keeper.
type Options struct {
	// Budget returns how many bytes of host memory files may take, of all clients together.
	Budget func() uint64
	// Available returns how many bytes of host memory are free to be taken now; nil: that does not matter.
	Available func() uint64
	// Dir is the folder for files beyond it; it must exist. Empty: there are none.
	Dir string
	// Reserve takes room on the disk for a file, in place of fallocate(2); for tests.
	Reserve func(fd int, from, bytes int64) error
}

// Keeper makes files, and knows how much host memory they take.
type Keeper struct {
	options Options
	threads int        // that touch one file at once, at most
	mu      sync.Mutex // guards what follows
	used    [Tiers]uint64
	mount   *os.File // of huge pages; nil: not tried, or there is none
	tried   bool
}

// New makes a Keeper without files.
func New(o Options) *Keeper {
	if o.Reserve == nil {
		o.Reserve = func(fd int, from, bytes int64) error { return unix.Fallocate(fd, 0, from, bytes) }
	}
	return &Keeper{options: o, threads: threads}
}

// Close ends the use of k; its files stay.
func (k *Keeper) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mount != nil {
		k.mount.Close()
		k.mount = nil
	}
	k.tried = true
}

// mountHuge mounts a file system of memory in huge pages, which are touched, mapped and page-locked many times as fast,
// where nobody sees it. Memory files that are made elsewhere have huge pages only if all of the machine's may. A daemon
// that may not mount has none.
func mountHuge() *os.File {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil
	}
	defer unix.Close(fs)
	for _, o := range [][2]string{{"huge", "always"}, {"size", "0"}, {"nr_inodes", "0"}, {"mode", "0700"}} { // 0: no bound
		if unix.FsconfigSetString(fs, o[0], o[1]) != nil {
			return nil
		}
	}
	if unix.FsconfigCreate(fs) != nil {
		return nil
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOEXEC|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOSUID)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(mount), "huge pages")
}

// memoryFile makes an empty file of memory.
func (k *Keeper) memoryFile() (*os.File, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.tried {
		k.tried, k.mount = true, mountHuge()
	}
	if k.mount != nil {
		if fd, err := unix.Openat(int(k.mount.Fd()), ".", unix.O_TMPFILE|unix.O_EXCL|unix.O_RDWR|unix.O_CLOEXEC, 0o600); err == nil {
			return os.NewFile(uintptr(fd), "lgpu-copy"), nil
		}
	}
	fd, err := unix.MemfdCreate("lgpu-copy", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memory file for copies: %w", err)
	}
	return os.NewFile(uintptr(fd), "lgpu-copy"), nil
}

// Used returns how many bytes files of a tier take.
func (k *Keeper) Used(t Tier) uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.used[t]
}

// charge takes bytes of memory's budget, or none.
func (k *Keeper) charge(bytes uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if budget, used := k.options.Budget(), k.used[Memory]; used > budget || bytes > budget-used {
		return false
	}
	k.used[Memory] += bytes
	return true
}

func (k *Keeper) add(t Tier, bytes uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.used[t] += bytes
}

func (k *Keeper) release(t Tier, bytes uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.used[t] -= bytes
}

// Identity names a file; the zero value is none.
type Identity struct{ Device, Inode uint64 }

// Copy is a file of one client and device.
type Copy struct {
	keeper *Keeper
	tier   Tier
	node   int      // of NUMA, on which memory is best; below 0: any
	file   *os.File // nil before the first Grow
	size   uint64   // what it is charged for
	closed atomic.Bool
	hurry  atomic.Bool // somebody waits for the Grow that is under way
	mu     sync.Mutex  // held by Grow, and by Close once that has ended
}

// Copy returns a file that is not there yet. The device it is for is nearest to a NUMA node; below 0 none is.
func (k *Keeper) Copy(t Tier, node int) *Copy { return &Copy{keeper: k, tier: t, node: node} }

// Adopt makes c the file that a client has brought back to a new daemon: fd, which stays the caller's, must be the one
// with an identity, and not larger than a client with a device of so many bytes needs. c has no file before. An error
// wraps ErrForeign. What it takes is charged even beyond the budget, since it is there.
func (c *Copy) Adopt(fd int, was Identity, largest uint64) error {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return fmt.Errorf("file with what has left a device: %w", err)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	switch has := (Identity{stat.Dev, stat.Ino}); {
	case err != nil || was == Identity{} || has != was || stat.Mode&unix.S_IFMT != unix.S_IFREG || stat.Nlink != 0:
		return fmt.Errorf("inode %d: %w", stat.Ino, ErrForeign)
	case flags&unix.O_ACCMODE != unix.O_RDWR || stat.Size < 0 || uint64(stat.Size) > roundUp(largest):
		return fmt.Errorf("inode %d of %d bytes: %w", stat.Ino, stat.Size, ErrForeign)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("file with what has left a device: %w", err)
	}
	file := os.NewFile(uintptr(own), "copy")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.file, c.size = file, uint64(stat.Size)
	c.keeper.add(c.tier, c.size)
	return nil
}

// Grown is a file after Grow.
type Grown struct {
	FD   int    // of the file, for as long as the Copy is open
	Size uint64 // bytes; of memory all are touched
	New  bool   // the client does not have it yet
	Identity
}

// Grow makes the file at least so large, and waits until all of it is there. An error wraps ErrRoom, ErrClosed, or what
// the system says; then it is as large as before.
func (c *Copy) Grow(bytes uint64, pace Pace) (Grown, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed.Load() {
		return Grown{}, ErrClosed
	}
	defer c.hurry.Store(false)
	fresh := c.file == nil
	if bytes > most {
		return Grown{}, fmt.Errorf("a file of %d bytes: %w", bytes, ErrRoom)
	}
	if bytes = roundUp(bytes); bytes > c.size {
		extend := c.extendDisk
		if c.tier == Memory {
			extend = func(bytes uint64) error { return c.extendMemory(bytes, pace) }
		}
		if err := extend(bytes); err != nil {
			if fresh && c.file != nil {
				c.file.Close()
				c.file = nil
			}
			return Grown{}, err
		}
	}
	if c.file == nil {
		return Grown{}, nil
	}
	g := Grown{FD: int(c.file.Fd()), Size: c.size, New: fresh}
	var stat unix.Stat_t
	if err := unix.Fstat(g.FD, &stat); err != nil {
		return Grown{}, fmt.Errorf("file for copies: %w", err)
	}
	g.Identity = Identity{stat.Dev, stat.Ino}
	return g, nil
}

// Hurry has a Grow that is under way go on as an Urgent one. Without one it may be the next that does.
func (c *Copy) Hurry() { c.hurry.Store(true) }

// extendMemory makes a memory file so large and touches what is new. Called with mu held.
func (c *Copy) extendMemory(bytes uint64, pace Pace) error {
	more := bytes - c.size
	if !c.keeper.charge(more) {
		return fmt.Errorf("host.budget has less than %d bytes left: %w", more, ErrRoom)
	}
	if available := c.keeper.options.Available; available != nil && available() < more {
		c.keeper.release(Memory, more)
		return fmt.Errorf("the machine has less than %d bytes of memory left: %w", more, ErrRoom)
	}
	if err := c.enlarge(bytes, pace); err != nil {
		c.keeper.release(Memory, more)
		if c.file != nil { // pages that were touched go back, as far as they can
			_ = unix.Fallocate(int(c.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(c.size), int64(more))
		}
		return err
	}
	c.size = bytes
	return nil
}

// enlarge makes a memory file so large and touches what is new. It has been charged.
func (c *Copy) enlarge(bytes uint64, pace Pace) error {
	if c.file == nil {
		file, err := c.keeper.memoryFile()
		if err != nil {
			return err
		}
		c.file = file
	}
	fd := int(c.file.Fd())
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return fmt.Errorf("memory file for copies: %w", err)
	}
	if stat.Size < int64(bytes) { // a client may have made it larger itself
		if err := unix.Ftruncate(fd, int64(bytes)); err != nil {
			return fmt.Errorf("make memory file larger: %w", err)
		}
	}
	return c.touch(fd, bytes, pace)
}

// touch has the kernel give pages to what is new of the file. All of it is mapped at once: a thread that maps or unmaps
// waits for all that touch, and they for it.
func (c *Copy) touch(fd int, to uint64, pace Pace) error {
	data, err := unix.Mmap(fd, int64(c.size), int(to-c.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map memory file: %w", err)
	}
	defer unix.Munmap(data)
	prefer(data, c.node)
	t := touching{copy: c, fd: fd, data: data, offset: c.size}
	if pace == Ahead {
		t.run((runtime.NumCPU()+1)/2, Ahead)
	}
	t.run(runtime.NumCPU(), Urgent) // all, or what is left as somebody waits for it
	if err := t.failed.Load(); err != nil {
		return fmt.Errorf("touch memory file: %w", *err)
	}
	return nil
}

// touching is the work of several threads on what is new of a file.
type touching struct {
	copy   *Copy
	fd     int
	data   []byte // mapped
	offset uint64 // of data in the file
	next   atomic.Uint64
	failed atomic.Pointer[error]
}

// left is how many bytes no thread has begun with.
func (t *touching) left() uint64 {
	return uint64(len(t.data)) - min(t.next.Load(), uint64(len(t.data)))
}

// run touches what is left, by so many threads at most. Those that work ahead run when nobody else wants to, and leave the
// rest once somebody waits for it.
func (t *touching) run(count int, pace Pace) {
	var work sync.WaitGroup
	for range min(uint64(count), uint64(t.copy.keeper.threads), (t.left()+piece-1)/piece) {
		work.Go(func() {
			if pace == Ahead {
				runtime.LockOSThread() // the thread ends with its niceness
				// At worst it is not nicer than others.
				_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), niceness)
			}
			for t.failed.Load() == nil && !(pace == Ahead && t.copy.hurry.Load()) && t.step() {
			}
		})
	}
	work.Wait()
}

// step touches the next piece. False: there is none left.
func (t *touching) step() bool {
	at := t.next.Add(piece) - piece
	if at >= uint64(len(t.data)) {
		return false
	}
	err := ErrClosed
	if !t.copy.closed.Load() {
		err = populate(t.fd, t.data[at:min(at+piece, uint64(len(t.data)))], t.offset+at)
	}
	if err != nil {
		t.failed.Store(&err)
	}
	return true
}

// preferred is MPOL_PREFERRED of mbind(2).
const preferred = 1

// prefer has pages of what is mapped come from a NUMA node if that has some; below 0 from any.
func prefer(data []byte, node int) {
	if node < 0 || node >= 64 {
		return
	}
	nodes := uint64(1) << node
	// Where that is refused, the kernel takes the node of the thread.
	_, _, _ = unix.Syscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(&data[0])), uintptr(len(data)), preferred,
		uintptr(unsafe.Pointer(&nodes)), 64+1, 0)
}

// populate gives pages to a piece of a file that is mapped, and that begins at an offset.
func populate(fd int, data []byte, offset uint64) error {
	var err error
	for {
		err = unix.Madvise(data, unix.MADV_POPULATE_WRITE)
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	if errors.Is(err, unix.EINVAL) { // before Linux 5.14
		err = unix.Fallocate(fd, 0, int64(offset), int64(len(data)))
	}
	if errors.Is(err, unix.EFAULT) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOSPC) {
		err = fmt.Errorf("the machine has no memory left: %w: %w", ErrRoom, err)
	}
	return err
}

// extendDisk makes a file on the disk so large, with room reserved: a client that writes to it must not find the disk
// full. Called with mu held.
func (c *Copy) extendDisk(bytes uint64) error {
	o := c.keeper.options
	if o.Dir == "" {
		return fmt.Errorf("there is no folder for files beyond host.budget: %w", ErrRoom)
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(o.Dir, &disk); err != nil {
		return fmt.Errorf("disk of %s: %w", o.Dir, err)
	}
	more := bytes - c.size
	if free := disk.Bavail * uint64(disk.Bsize); free < more || free-more < spare {
		return fmt.Errorf("the disk of %s has %d bytes left: %w", o.Dir, free, ErrRoom)
	}
	if c.file == nil {
		file, err := temporary(o.Dir)
		if err != nil {
			return err
		}
		c.file = file
	}
	fd := int(c.file.Fd())
	err := o.Reserve(fd, int64(c.size), int64(more))
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		err = fmt.Errorf("disk of %s: %w: %w", o.Dir, ErrRoom, err)
	} else if err != nil {
		err = fmt.Errorf("reserve room in %s: %w", o.Dir, err)
	}
	if err != nil {
		return errors.Join(err, c.file.Truncate(int64(c.size)))
	}
	c.keeper.add(Disk, more)
	c.size = bytes
	return nil
}

// temporary makes a file that has no name, so that it goes with whoever has it open.
func temporary(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_EXCL|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), "lgpu-copy"), nil
	}
	file, err := os.CreateTemp(dir, "lgpu-copy-*") // a file system without O_TMPFILE
	if err != nil {
		return nil, fmt.Errorf("file for copies: %w", err)
	}
	if err := os.Remove(file.Name()); err != nil {
		file.Close()
		return nil, fmt.Errorf("file for copies: %w", err)
	}
	return file, nil
}

// Close gives the file up: the client has died. Its pages go with its last descriptor.
func (c *Copy) Close() {
	c.closed.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file == nil {
		return
	}
	c.keeper.release(c.tier, c.size)
	c.file.Close()
	c.file, c.size = nil, 0
}

// roundUp rounds up to whole units, without going round.
func roundUp(bytes uint64) uint64 {
	if bytes > most {
		return most
	}
	return (bytes + unit - 1) / unit * unit
}
