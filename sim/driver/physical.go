package driver

import (
	"os"

	"github.com/lgpu/lgpu/sim/hw"
	"golang.org/x/sys/unix"
)

// physical is memory of a device, without an address. All device memory is allocated as this. Several
// mappings, handles and processes may refer to it; it is freed when the last reference is gone.
type physical struct {
	d      *Driver
	owner  *Process // the process that it counts against; nil when only a descriptor in flight refers to it
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

// newPhysical allocates size bytes, rounded up to frames, with one reference. Reserves of the process's pools are
// released if that helps.
func (p *Process) newPhysical(dev *device, size uint64) (*physical, Result) {
	frames, err := dev.hw.Memory.Alloc(size)
	if err != nil && p.reclaim(dev) {
		frames, err = dev.hw.Memory.Alloc(size)
	}
	if err != nil {
		return nil, errOutOfMemory
	}
	ph := &physical{d: p.d, dev: dev, frames: frames, refs: 1}
	ph.setOwner(p)
	p.d.physicals[ph] = struct{}{}
	return ph, success
}

// setOwner counts the memory against a process, or against none.
func (ph *physical) setOwner(p *Process) {
	if ph.owner != nil {
		ph.owner.used[ph.dev.index] -= ph.frames.Size()
	}
	if ph.owner = p; p != nil {
		p.used[ph.dev.index] += ph.frames.Size()
	}
}

// release gives up one reference; the last one frees the memory. Memory of cuMemCreate
// to which its process has neither a handle nor a mapping any more counts against another process that has one, or
// against none, as with real drivers.
func (ph *physical) release() {
	if ph.refs--; ph.refs > 0 {
		if p := ph.owner; p != nil && ph.prop != (properties{}) && !p.refersTo(ph) {
			ph.passOn(p)
		}
		return
	}
	delete(ph.d.physicals, ph)
	ph.setOwner(nil)
	ph.frames.Release()
}

// passOnMemory finds new owners for memory of p that other processes still refer to.
func (p *Process) passOnMemory() {
	for ph := range p.d.physicals {
		if ph.owner == p {
			ph.passOn(p)
		}
	}
}

// passOn counts the memory against a process other than p that refers to it, or against none.
func (ph *physical) passOn(p *Process) {
	ph.setOwner(nil)
	for o := range ph.d.processes {
		if o != p && o.refersTo(ph) {
			ph.setOwner(o)
			break
		}
	}
}

// refersTo reports whether the process has a mapping or a handle of the memory.
func (p *Process) refersTo(ph *physical) bool {
	for _, a := range p.allocs.all() {
		if a.phys == ph {
			return true
		}
	}
	return p.handlesOf[ph] != 0
}

// physicalHandle is a process's handle of physical memory (CUmemGenericAllocationHandle).
type physicalHandle struct {
	ph    *physical
	count int // how often the program was given it and has not released it
}

// handleOf gives the program a handle of ph: the one it has, or a new one.
func (p *Process) handleOf(ph *physical) uint64 {
	h := p.handlesOf[ph]
	if h != 0 {
		lookup[physicalHandle](&p.handles, h).count++
		return h
	}
	ph.refs++
	h = p.handles.add(kindPhysical, &physicalHandle{ph: ph, count: 1})
	p.handlesOf[ph] = h
	return h
}

// dropHandle releases a handle once.
func (p *Process) dropHandle(h uint64) Result {
	n := lookup[physicalHandle](&p.handles, h)
	if n == nil {
		return errInvalidValue
	}
	if n.count--; n.count == 0 {
		p.handles.remove(h)
		delete(p.handlesOf, n.ph)
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

// newDescriptor makes a descriptor for e: the writing end of a pipe. A process that has it can import e; the pipe's
// inode identifies e and cannot be forged. When the last copy is closed, the reading end sees it and the export's
// reference to the memory is released.
func (d *Driver) newDescriptor(e *export) (*os.File, Result) {
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
		d.forgetDescriptor(key)
	}()
	return write, success
}

// collect forgets the descriptors of which no copy is open, at once and not only when the end of a pipe is read: a real
// driver's memory is free when its last user has released it. Called with d.mu locked.
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
			d.forgetDescriptor(key)
		}
	}
}

// forgetDescriptor forgets a descriptor. A second time does nothing.
func (d *Driver) forgetDescriptor(key inode) {
	if e := d.shared[key]; e != nil {
		delete(d.shared, key)
		e.read.Close()
		if e.ph != nil {
			e.ph.release()
		}
	}
}

// exportOf finds the export of a descriptor.
func (d *Driver) exportOf(f *os.File) *export {
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
