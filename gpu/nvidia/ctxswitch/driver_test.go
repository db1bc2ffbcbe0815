package ctxswitch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"github.com/lgpu/lgpu/gpu"
)

// driver stands in for the kernel and NVIDIA's driver with two GPUs. It holds every call against what the driver's
// headers demand, and can be told to fail at one of them.
type driver struct {
	t       *testing.T
	calls   []string // so far
	failAt  int      // index in calls; -1 for none
	failure error    // of the kernel, or a status
	reason  reason   // of a refused bind
	refuse  map[bool]status

	next    int
	files   map[int]string    // open, by descriptor
	mapped  map[*byte]int     // lengths, by address
	objects map[uint32]uint32 // classes, by handle
	parents map[uint32]uint32 // by handle
	pending map[int]uint32    // memory object that the next mmap of a file gives
	sizes   map[uint32]uint64 // of memory objects
	bound   map[bool]bool     // all users, or one
	enabled bool
	header  []byte
	ring    []byte
	queue   []record // that the next flush brings
	seq     uint16
	clock   uint64
	putAt   func(*driver) // called at the end of a flush
}

// gpus are the UUIDs of the GPUs whose RM instances are 0 and 1, behind device files 4 and 3.
var gpus = []gpu.Device{
	{UUID: gpu.UUID{0xaa, 15: 1}, Index: 0, Name: "A", Node: "195:4"},
	{UUID: gpu.UUID{0xbb, 15: 2}, Index: 1, Name: "B", Node: "195:3"},
}

func newDriver(t *testing.T) *driver {
	return &driver{
		t: t, failAt: -1, next: 10, files: map[int]string{}, mapped: map[*byte]int{}, objects: map[uint32]uint32{},
		parents: map[uint32]uint32{}, pending: map[int]uint32{}, sizes: map[uint32]uint64{}, bound: map[bool]bool{},
		refuse: map[bool]status{}, header: make([]byte, headerLength), ring: make([]byte, slots*recordSize),
	}
}

// call notes a call and returns the failure if it is the one to fail.
func (d *driver) call(name string) error {
	d.calls = append(d.calls, name)
	if len(d.calls)-1 == d.failAt {
		return d.failure
	}
	return nil
}

func (d *driver) open(path string) (int, error) {
	if err := d.call("open " + path); err != nil {
		if _, is := errors.AsType[status](err); is {
			err = syscall.EIO
		}
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	d.next++
	d.files[d.next] = path
	return d.next, nil
}

func (d *driver) close(fd int) error {
	if _, open := d.files[fd]; !open {
		d.t.Errorf("close of descriptor %d, which is not open", fd)
		return syscall.EBADF
	}
	delete(d.files, fd)
	return nil
}

func (d *driver) mmap(fd, length int) ([]byte, error) {
	if err := d.call("mmap"); err != nil {
		if _, is := errors.AsType[status](err); is {
			err = syscall.ENOMEM
		}
		return nil, err
	}
	object, prepared := d.pending[fd]
	if !prepared || d.files[fd] != controlFile || uint64(length) != d.sizes[object] {
		d.t.Errorf("mmap of %d bytes of descriptor %d (%s) for object %#x", length, fd, d.files[fd], object)
		return nil, syscall.EINVAL
	}
	memory := d.header
	if object == handleRing {
		memory = d.ring
	}
	d.mapped[&memory[0]] = length
	return memory, nil
}

func (d *driver) munmap(memory []byte) error {
	if d.mapped[&memory[0]] != len(memory) {
		d.t.Errorf("munmap of %d bytes that are not mapped", len(memory))
		return syscall.EINVAL
	}
	delete(d.mapped, &memory[0])
	return nil
}

func (d *driver) ioctl(fd int, request uintptr, argument unsafe.Pointer) error {
	if d.files[fd] != controlFile {
		d.t.Errorf("ioctl %#x of descriptor %d (%s)", request, fd, d.files[fd])
	}
	// Type, number, size and direction, spelt out: the numbers of nv_escape.h and the sizes of nvos.h.
	switch request {
	case 0xc020462b:
		a := (*allocation)(argument)
		a.status = d.answer(fmt.Sprintf("allocate %#x", a.class), func() status { return d.allocate(a) })
	case 0xc020462a:
		c := (*control)(argument)
		name := fmt.Sprintf("command %#x", c.command)
		if c.command == commandBind {
			name += fmt.Sprintf(" %v", (*bindParams)(c.params).allUsers)
		}
		c.status = d.answer(name, func() status { return d.command(c) })
	case 0xc038464e:
		m := (*mapping)(argument)
		m.status = d.answer(fmt.Sprintf("map %#x", m.memory), func() status { return d.mapMemory(m) })
	default:
		d.t.Errorf("ioctl %#x", request)
		return syscall.ENOTTY
	}
	if d.failAt == len(d.calls)-1 {
		if errno, is := errors.AsType[syscall.Errno](d.failure); is {
			return errno
		}
	}
	return nil
}

// answer notes a call and returns its status: that of act, unless it is the one to fail.
func (d *driver) answer(name string, act func() status) status {
	if err := d.call(name); err != nil {
		s, _ := errors.AsType[status](err) // 0 for an error of the kernel's, which ioctl returns
		return s
	}
	return act()
}

func (d *driver) allocate(a *allocation) status {
	type shape struct {
		parent uint32
		size   uint32
	}
	shapes := map[uint32]shape{
		0x41: {0, 0}, 0x80: {d.objectOf(0x41), 56}, 0x2080: {d.objectOf(0x80), 4}, 0x90ce: {d.objectOf(0x41), 128},
		0x90cd: {d.objectOf(0x41), 72},
	}
	want, known := shapes[a.class]
	if !known || a.parent != want.parent || a.size != want.size || (a.params == nil) != (a.size == 0) {
		d.t.Errorf("allocate class %#x below %#x with %d bytes", a.class, a.parent, a.size)
		return invalidClass
	}
	if a.class == 0x41 {
		a.object = 0xc1d00018 // the driver's choice
	} else if a.client != d.objectOf(0x41) || d.objects[a.object] != 0 || a.object == 0 {
		d.t.Errorf("allocate class %#x as %#x of client %#x", a.class, a.object, a.client)
		return invalidArgument
	}
	if s := d.construct(a); s != 0 {
		return s
	}
	d.objects[a.object], d.parents[a.object] = a.class, a.parent
	return 0
}

// construct checks the parameters of an object.
func (d *driver) construct(a *allocation) status {
	wrong := func(p any) status {
		d.t.Errorf("allocate class %#x with %+v", a.class, p)
		return invalidArgument
	}
	switch a.class {
	case 0x80:
		if p := *(*deviceParams)(a.params); p != (deviceParams{device: 1, clientShare: a.client}) {
			return wrong(p)
		}
	case 0x2080:
		if p := *(*subdeviceParams)(a.params); p != (subdeviceParams{subdevice: 7}) {
			return wrong(p)
		}
	case 0x90ce:
		p := *(*memoryParams)(a.params)
		if p != (memoryParams{attributes: 0x20000000, attributes2: 0x400000, size: p.size}) || p.size%4096 != 0 {
			return wrong(p)
		}
		d.sizes[a.object] = p.size
	case 0x90cd:
		p := *(*bufferParams)(a.params)
		if p.recordSize != 32 || uint64(p.records)*32 != d.sizes[p.ringMemory] || d.sizes[p.headerMemory] < 32 ||
			p.freeThreshold > p.records || d.objects[p.subdevice] != 0x2080 || p.flags != 0 || p.extra != 0 ||
			p.extraSize != 0 || p.extraThreshold != 0 || p.notification != 0 {
			return wrong(p)
		}
	}
	return 0
}

// objectOf is the handle of the object of a class.
func (d *driver) objectOf(class uint32) uint32 {
	for handle, c := range d.objects {
		if c == class {
			return handle
		}
	}
	return 0
}

func (d *driver) command(c *control) status {
	type shape struct{ class, size uint32 }
	want := map[uint32]shape{
		0x274: {0x41, 272}, 0x20800403: {0x2080, 8}, 0x20801238: {0x2080, 24}, 0x90cd0101: {0x90cd, 8},
		0x90cd0104: {0x90cd, 0},
	}[c.command]
	if want == (shape{}) || d.objects[c.object] != want.class || c.size != want.size ||
		(c.params == nil) != (c.size == 0) || c.client != d.objectOf(0x41) || c.flags != 0 {
		d.t.Errorf("command %#x to %#x with %d bytes", c.command, c.object, c.size)
		return invalidCommand
	}
	switch c.command {
	case 0x274:
		p := (*uuidParams)(c.params)
		for n, g := range gpus {
			if p.flags == 2 && gpu.UUID(p.uuid[:16]) == g.UUID && p.uuid[16] == 0 && d.holds("/dev/nvidia"+g.Node[4:]) {
				p.device, p.subdevice, p.id = uint32(n), 7, 0x100
				return 0
			}
		}
		return objectNotFound
	case 0x20800403:
		*(*uint64)(c.params) = d.clock
	case 0x20801238:
		p := (*bindParams)(c.params)
		if d.objects[p.buffer] != 0x90cd || p.recordSize != 32 || p.detail != 1 || p.filter != 0 || d.enabled {
			d.t.Errorf("bind with %+v", p)
		}
		if s := d.refuse[p.allUsers]; s != 0 {
			p.reason = d.reason
			return s
		}
		d.bound[p.allUsers] = true
	case 0x90cd0101:
		if p := *(*enableParams)(c.params); p != (enableParams{true, 2}) || len(d.bound) != 1 {
			d.t.Errorf("enable with %+v while bound to %v", p, d.bound)
		}
		d.enabled = true
	case 0x90cd0104:
		d.flush()
	}
	return 0
}

func (d *driver) holds(path string) bool {
	for _, open := range d.files {
		if open == path {
			return true
		}
	}
	return false
}

func (d *driver) mapMemory(m *mapping) status {
	if d.objects[m.memory] != 0x90ce || m.client != d.objectOf(0x41) || m.device != m.client || m.offset != 0 ||
		m.length != d.sizes[m.memory] || m.flags != 1 || d.files[int(m.file)] != controlFile {
		d.t.Errorf("map %+v", *m)
		return invalidArgument
	}
	if _, taken := d.pending[int(m.file)]; taken {
		d.t.Errorf("descriptor %d is to map two objects", m.file)
	}
	d.pending[int(m.file)] = m.memory
	return 0
}

// flush writes the queue into the ring as the driver does.
func (d *driver) flush() {
	h := (*header)(unsafe.Pointer(&d.header[0]))
	for _, r := range d.queue {
		put := h.put
		r.seq = d.seq
		d.seq++
		encode(d.ring[put*recordSize:], r)
		atomic.AddUint64(&h.count, 1)
		atomic.StoreUint32(&h.put, (put+1)%slots)
	}
	d.queue = d.queue[:0]
	if d.putAt != nil {
		d.putAt(d)
	}
}

// encode writes a record as the driver does, with marks where nothing is to be read.
func encode(slot []byte, r record) {
	binary.LittleEndian.PutUint16(slot, r.kind)
	binary.LittleEndian.PutUint16(slot[2:], 0x5555)
	binary.LittleEndian.PutUint32(slot[4:], 0x55555555)
	slot[8], slot[9] = r.tag, 0x55
	binary.LittleEndian.PutUint16(slot[10:], r.seq)
	binary.LittleEndian.PutUint32(slot[12:], 0x98)
	binary.LittleEndian.PutUint32(slot[16:], r.pid)
	binary.LittleEndian.PutUint16(slot[20:], 0)
	slot[22], slot[23] = 0xff, 0xff
	binary.LittleEndian.PutUint64(slot[24:], r.time)
}

// empty complains of what was not given back.
func (d *driver) empty() {
	d.t.Helper()
	if len(d.files)+len(d.mapped) > 0 {
		d.t.Errorf("left open: %v; left mapped: %v", maps.Values(d.files), d.mapped)
	}
}
