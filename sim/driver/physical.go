package driver

import (
	"os"

	"github.com/lgpu/lgpu/sim/hw"
	"golang.org/x/sys/unix"
)

// physical is memory of a device, without an address. Everything that takes device memory takes it as this. Several
// mappings, handles and processes may share one; it is freed when the last of them is gone.
type physical struct {
	d      *Driver
	owner  *Process // whose it is in the count of memory; nil when nobody has it any more but a descriptor in flight
	dev    *device
	frames *hw.Frames
	refs   int
	prop   properties // of memory made by cuMemCreate
}

// properties are what cuMemCreate was asked for, to be told again.
type properties struct {
	handleTypes uint32
	compression uint8
	rdma        uint8
	usage       uint16
}

// newPhysical takes size bytes, rounded up to frames, with one reference. Reserves of the process's pools are released
// if that helps.
func (p *Process) newPhysical(dev *device, size uint64) (*physical, Result) {
	frames, err := dev.hw.Memory.Alloc(size)
	if err != nil && p.reclaim(dev) {
		frames, err = dev.hw.Memory.Alloc(size)
	}
	if err != nil {
		return nil, errOutOfMemory
	}
	ph := &physical{d: p.d, dev: dev, frames: frames, refs: 1}
	ph.give(p)
	p.d.physicals[ph] = struct{}{}
	return ph, success
}

// give counts the memory as a process's, or as nobody's.
func (ph *physical) give(p *Process) {
	if ph.owner != nil {
		ph.owner.used[ph.dev.index] -= ph.frames.Size()
	}
	if ph.owner = p; p != nil {
		p.used[ph.dev.index] += ph.frames.Size()
	}
}

// release gives up one reference; the last one frees the memory. Memory of cuMemCreate of which its process has neither
// a handle nor a mapping any more is counted as somebody else's who has, or as nobody's, as drivers do it.
func (ph *physical) release() {
	if ph.refs--; ph.refs > 0 {
		if p := ph.owner; p != nil && ph.prop != (properties{}) && !p.holds(ph) {
			ph.pass(p)
		}
		return
	}
	delete(ph.d.physicals, ph)
	ph.give(nil)
	ph.frames.Release()
}

// bequeath finds new owners for memory of p that others still hold.
func (p *Process) bequeath() {
	for ph := range p.d.physicals {
		if ph.owner == p {
			ph.pass(p)
		}
	}
}

// pass counts the memory as that of a process other than p which holds it, or as nobody's.
func (ph *physical) pass(p *Process) {
	ph.give(nil)
	for o := range ph.d.processes {
		if o != p && o.holds(ph) {
			ph.give(o)
			break
		}
	}
}

func (p *Process) holds(ph *physical) bool {
	for _, a := range p.allocs.all() {
		if a.phys == ph {
			return true
		}
	}
	return p.names[ph] != 0
}

// name is a process's handle of physical memory (CUmemGenericAllocationHandle).
type name struct {
	ph    *physical
	count int // how often the program was given it and has not released it
}

// named gives the program a handle of ph: the one it has, or a new one.
func (p *Process) named(ph *physical) uint64 {
	h := p.names[ph]
	if h != 0 {
		lookup[name](&p.handles, h).count++
		return h
	}
	ph.refs++
	h = p.handles.add(kindPhysical, &name{ph: ph, count: 1})
	p.names[ph] = h
	return h
}

// unname takes one handle back.
func (p *Process) unname(h uint64) Result {
	n := lookup[name](&p.handles, h)
	if n == nil {
		return errInvalidValue
	}
	if n.count--; n.count == 0 {
		p.handles.remove(h)
		delete(p.names, n.ph)
		n.ph.release()
	}
	return success
}

// export is something that a process has given a name that other processes can use.
type export struct {
	owner *Process // gone with it; nil for descriptors
	alloc *allocation
	event *event
	ph    *physical
	pool  *pool
	read  *os.File // of a descriptor: the end of the pipe that sees all others closed
}

// share makes a descriptor for e: the writing end of a pipe. Whoever holds it can have e; the inode of the pipe says
// which it is and cannot be forged. When the last copy is closed, the reading end sees it and the export's reference to
// the memory is given up.
func (d *Driver) share(e *export) (*os.File, Result) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		d.log.Error("export: pipe", "error", err)
		return nil, errOperatingSystem
	}
	read, write := os.NewFile(uintptr(fds[0]), "export"), os.NewFile(uintptr(fds[1]), "export")
	key, err := pipeInode(write)
	if err != nil {
		read.Close()
		write.Close()
		d.log.Error("export: stat", "error", err)
		return nil, errOperatingSystem
	}
	e.read = read
	if e.ph != nil {
		e.ph.refs++
	}
	d.shared[key] = e
	go func() {
		var b [64]byte
		for {
			if _, err := read.Read(b[:]); err != nil {
				break
			}
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.unshare(key)
	}()
	return write, success
}

// collect forgets the descriptors of which no copy is open, at once and not when somebody comes to read it: a driver's
// memory is free when the last user has let go. d.mu is held.
func (d *Driver) collect() {
	for key, e := range d.shared {
		conn, err := e.read.SyscallConn()
		if err != nil {
			continue // it is closed, and forgotten soon
		}
		gone := false
		_ = conn.Control(func(fd uintptr) {
			poll := []unix.PollFd{{Fd: int32(fd)}}
			n, err := unix.Poll(poll, 0)
			gone = err == nil && n > 0 && poll[0].Revents&unix.POLLHUP != 0
		})
		if gone {
			d.unshare(key)
		}
	}
}

// unshare forgets a descriptor. A second time does nothing.
func (d *Driver) unshare(key inode) {
	if e := d.shared[key]; e != nil {
		delete(d.shared, key)
		e.read.Close()
		if e.ph != nil {
			e.ph.release()
		}
	}
}

// shareOf finds what a descriptor stands for.
func (d *Driver) shareOf(f *os.File) *export {
	if f == nil {
		return nil
	}
	key, err := pipeInode(f)
	if err != nil {
		return nil
	}
	return d.shared[key]
}

type inode struct{ dev, ino uint64 }

func pipeInode(f *os.File) (inode, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return inode{}, err
	}
	return inode{st.Dev, st.Ino}, nil
}
