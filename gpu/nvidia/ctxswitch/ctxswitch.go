// Package ctxswitch reads whose work an NVIDIA GPU ran when, from the driver's log of context switches: the same that
// profilers show as a GPU's context switches (NVIDIA calls them FECS events, after the unit that switches). A Trace of
// it is a gpu.Meter.
//
//	t, err := ctxswitch.Open(device)
//	if errors.Is(err, errors.ErrUnsupported) {
//		// err says why, and what would help
//	}
//	defer t.Close()
//	turns, err = t.Turns(turns[:0]) // 10 to 100 times a second
//
// The GPU's unit for switches writes a record when a context begins to run on the engine for compute and graphics, and
// when it ceases to. The driver copies the records of all contexts into a ring of our own, which this process can read
// and no other can change, so a program can neither hide its turns nor shorten them. Copy engines are not in it. The
// programs that share a context, by MPS, are one.
//
// A switch is in the log once it is over. So what is told as unfinished may turn out to have ended a little before, by
// no more than a switch takes (about 0.1 ms).
//
// What the driver hides has PID 0: contexts of its own and, where this process is no administrator, those of other
// users, whose times it blurs by as much as a switch takes.
package ctxswitch

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"unsafe"

	"github.com/lgpu/lgpu/gpu"
)

const controlFile = "/dev/nvidiactl"

// Handles of the objects, which are the client's choice.
const (
	handleDevice = 0xd0001 + iota
	handleSubdevice
	handleHeader
	handleRing
	handleBuffer
)

const (
	headerLength = 4096 // bytes
	// slots is how many records the ring holds: those of 2 s with 3000 switches a second, each of which has two, and a
	// quarter more. It divides 2^16, so that a number tells records of successive rounds apart.
	slots = 1 << 14
	// most is how many records may come between two looks: the rest of the ring is for those that come during a look.
	most = slots - slots/8
)

// Trace is the log of one GPU from its Open on. It implements gpu.Meter. One goroutine at a time may use it.
type Trace struct {
	client
	header  *header
	ring    []byte
	history history
	count   uint64 // the header's, when it was looked at last
	all     bool
	clock   uint64 // where the driver writes the time
}

var _ gpu.Meter = (*Trace)(nil)

// Open begins to read the log of a device that gpu/nvidia has found. It takes some milliseconds, and longer where
// nobody uses the GPU, which the driver then starts. An UnsupportedError says why nobody can read the log here and what
// would help; GPUs in MIG mode and their instances have none.
func Open(d gpu.Device) (*Trace, error) { return openOn(kernel{}, d) }

func openOn(f files, d gpu.Device) (*Trace, error) {
	t := &Trace{client: client{files: f, control: -1}}
	if err := t.start(d); err != nil {
		_ = t.release() // what went wrong first says more
		return nil, fmt.Errorf("context switches of device %s: %w", d.Names(), advise(err))
	}
	return t, nil
}

// start makes the objects and maps the ring.
func (t *Trace) start(d gpu.Device) error {
	if d.MIG() || d.Partitioned {
		return &UnsupportedError{fmt.Errorf("it is a GPU in MIG mode or an instance of one"),
			"the log has the switches of whole GPUs only"}
	}
	_, minor, found := strings.Cut(d.Node, ":")
	if _, err := strconv.ParseUint(minor, 10, 20); !found || err != nil {
		return &UnsupportedError{fmt.Errorf("it has no device file (%q)", d.Node), "only GPUs have the log"}
	}
	if err := t.connect(); err != nil {
		return err
	}
	if _, err := t.hold("/dev/nvidia" + minor); err != nil { // which starts the GPU and keeps it up
		return err
	}
	if err := t.reach(d.UUID); err != nil {
		return err
	}
	if err := t.prepare(); err != nil {
		return err
	}
	return t.begin()
}

// reach makes the objects that stand for the GPU.
func (t *Trace) reach(uuid gpu.UUID) error {
	which := &uuidParams{flags: uuidBinary}
	copy(which.uuid[:], uuid[:])
	err := t.command("find the GPU by its UUID", t.root, commandUUIDInfo, unsafe.Pointer(which), unsafe.Sizeof(*which))
	if err != nil {
		return err
	}
	device := &deviceParams{device: which.device, clientShare: t.root}
	_, err = t.allocate("the device", t.root, handleDevice, classDevice, unsafe.Pointer(device), unsafe.Sizeof(*device))
	if err != nil {
		return err
	}
	subdevice := &subdeviceParams{subdevice: which.subdevice}
	_, err = t.allocate("the subdevice", handleDevice, handleSubdevice, classSubdevice, unsafe.Pointer(subdevice),
		unsafe.Sizeof(*subdevice))
	return err
}

// prepare makes the ring and has the driver write switches into it.
func (t *Trace) prepare() error {
	for _, m := range []struct {
		what   string
		handle uint32
		length uint64
	}{{"the header's memory", handleHeader, headerLength}, {"the ring's memory", handleRing, slots * recordSize}} {
		p := &memoryParams{attributes: memoryCached, attributes2: memoryUserReadOnly, size: m.length}
		if _, err := t.allocate(m.what, t.root, m.handle, classMemory, unsafe.Pointer(p), unsafe.Sizeof(*p)); err != nil {
			return err
		}
	}
	b := &bufferParams{
		recordSize: recordSize, records: slots, freeThreshold: slots / 2, subdevice: handleSubdevice,
		headerMemory: handleHeader, ringMemory: handleRing,
	}
	_, err := t.allocate("the event buffer", t.root, handleBuffer, classEventBuffer, unsafe.Pointer(b), unsafe.Sizeof(*b))
	if err != nil {
		return err
	}
	if err := t.bind(); err != nil {
		return err
	}
	e := &enableParams{enable: true, flags: keepNewest}
	return t.command("enable the event buffer", handleBuffer, commandEnable, unsafe.Pointer(e), unsafe.Sizeof(*e))
}

// bind asks for the switches of all users, and where that is refused for those of this user's programs.
func (t *Trace) bind() error {
	var refused error
	for _, all := range []bool{true, false} {
		what := "log the switches of this user"
		if all {
			what = "log the switches of all users"
		}
		b := &bindParams{buffer: handleBuffer, recordSize: recordSize, detail: detailSimple, allUsers: all}
		err := t.command(what, handleSubdevice, commandBind, unsafe.Pointer(b), unsafe.Sizeof(*b))
		if err == nil {
			t.all = all
			return nil
		}
		if refused == nil {
			refused = refusal(err, b.reason)
		}
	}
	return refused // the first says more
}

// begin maps the ring and leaves out what the driver put there before.
func (t *Trace) begin() error {
	memory, err := t.share("the header", handleHeader, headerLength)
	if err != nil {
		return err
	}
	t.header = (*header)(unsafe.Pointer(&memory[0]))
	if t.ring, err = t.share("the ring", handleRing, slots*recordSize); err != nil {
		return err
	}
	if _, err := t.now(); err != nil {
		return err
	}
	if err := t.flush(); err != nil {
		return err
	}
	put := atomic.LoadUint32(&t.header.put)
	if put >= slots {
		return fmt.Errorf("the driver says that record %d of %d comes next", put, slots)
	}
	t.count = atomic.LoadUint64(&t.header.count)
	t.history.skip(put)
	return nil
}

// now reads the device's clock, which records have their times of.
func (t *Trace) now() (int64, error) {
	err := t.command("read the GPU's clock", handleSubdevice, commandTime, unsafe.Pointer(&t.clock),
		unsafe.Sizeof(t.clock))
	return int64(t.clock), err
}

// flush has the driver copy into the ring what the GPU has written so far.
func (t *Trace) flush() error {
	return t.command("flush the event buffer", handleBuffer, commandFlush, nil, 0)
}

// Turns implements gpu.Meter. It makes two calls to the driver, about 0.1 ms together, and needs no memory of its own.
// To lose nothing it must be called before 14,336 records have come, two for each switch: that is 2.3 s with 3000
// switches a second. If records are lost, the turns that they may have been part of are missing.
func (t *Trace) Turns(turns []gpu.Turn) ([]gpu.Turn, error) {
	if t.header == nil {
		return turns, fmt.Errorf("context switches: %w", os.ErrClosed)
	}
	// The clock is read first: whoever runs after the flush, and began before this time, ran at this time.
	now, err := t.now()
	if err == nil {
		err = t.flush()
	}
	if err != nil {
		return turns, fmt.Errorf("context switches: %w", err)
	}
	had := len(turns)
	put := atomic.LoadUint32(&t.header.put)
	turns = t.history.read(t.ring, put, turns)
	count := atomic.LoadUint64(&t.header.count)
	if count-t.count > most { // what was read may be newer than what was to be read
		t.history.lost += count - t.count
		t.history.skip(atomic.LoadUint32(&t.header.put) % slots)
		turns = turns[:had]
	}
	t.count = count
	return t.history.unfinished(now, turns), nil
}

// AllUsers reports whether the turns of all users' programs are told, rather than only those of this user's.
func (t *Trace) AllUsers() bool { return t.all }

// Lost is how many records were lost so far, at least.
func (t *Trace) Lost() uint64 { return t.history.lost }

// Close gives everything back to the driver. It may be called again, which does nothing.
func (t *Trace) Close() error {
	t.header, t.ring = nil, nil
	if err := t.release(); err != nil {
		return fmt.Errorf("context switches: %w", err)
	}
	return nil
}
