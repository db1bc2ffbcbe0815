package conformance

import (
	"bufio"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"time"
	"unsafe"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/internal/list"
)

//go:embed probe.ptx
var probePTX []byte

// ProbeSpec is what a probe does.
type ProbeSpec struct {
	// Iterations of a chunk of work, as Measurement.Iterations of a probe that was given none: work of a kernel that lasts
	// a few milliseconds on all of the device.
	Iterations uint32
	// Units is how many compute units the work of a kernel is sized for: that of the whole device, so that tenants do equal
	// work. 0 is as many as the device says it has, which is less inside a part of it that MPS grants.
	Units int
	// Lead is how long it works before it is measured, which Seconds says how long.
	Lead, Seconds float64
}

// Measurement is what a probe saw from inside its lgpu.
type Measurement struct {
	Device     string  `json:"device"`      // UUID
	Units      int     `json:"units"`       // compute units that the device query returns
	IDs        int     `json:"ids"`         // %nsmid: how many numbers units may have
	Seen       string  `json:"seen"`        // numbers that ran blocks, as a list
	Kernels    int     `json:"kernels"`     // in the measured time
	Rate       float64 `json:"rate"`        // kernels a second of device time, parts included
	KernelMS   float64 `json:"kernel_ms"`   // how long a kernel lasts, the median
	Iterations uint32  `json:"iterations"`  // of a chunk
	DeviceTime float64 `json:"device_time"` // part of the measured time in which its kernels ran
}

const (
	entrySize   = 24
	entries     = 1 << 15 // kernels that a probe can launch
	maxUnit     = 1 << 12
	inFlight    = 8
	slowClock   = 100_000 // kHz: below it is a device that is simulated
	warpThreads = 32
)

// geometry is how the work of a kernel is cut: more blocks than units hold would wait, fewer chunks would end unevenly.
type geometry struct{ blocks, chunks uint32 }

func geometryOf(ids int, clockKHz int32) geometry {
	perUnit, waves := 32, 64
	if clockKHz < slowClock {
		perUnit, waves = 4, 32
	}
	return geometry{blocks: uint32(ids * perUnit), chunks: uint32(ids * perUnit * waves)}
}

// Probe is the program that measures an lgpu from inside: it says "ready" on out when it has a context, waits for a line on
// in, works on the first device that it sees, and writes a Measurement as JSON on one line. It uses the driver API as any
// program does.
func Probe(spec ProbeSpec, in io.Reader, out io.Writer) error {
	runtime.LockOSThread() // the current context is the thread's
	defer runtime.UnlockOSThread()
	c, err := loadCUDA()
	if err != nil {
		return err
	}
	p := &probe{cuda: c}
	if err := p.open(spec.Units); err != nil {
		return err
	}
	if spec.Iterations == 0 {
		if err := p.calibrate(); err != nil {
			return err
		}
	} else {
		p.iterations = spec.Iterations
		if err := p.warm(); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(out, "ready"); err != nil {
		return fmt.Errorf("say that the probe is ready: %w", err)
	}
	if _, err := bufio.NewReader(in).ReadString('\n'); err != nil {
		return fmt.Errorf("%w: %w", errNoInput, err)
	}
	m, err := p.measure(spec)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(m)
}

// probe is a probe at work.
type probe struct {
	*cuda
	uuid       gpu.UUID
	units, ids int
	geometry   geometry
	work       uintptr // the function
	stream     uintptr
	events     [inFlight]uintptr
	journal    uint64 // device memory: entries, then the bits of units seen
	iterations uint32
	launched   int
}

func (p *probe) seen() uint64 { return p.journal + entries*entrySize }

// open makes a context and everything in it, for work of a device of so many units.
func (p *probe) open(sized int) error {
	var device, units, clock int32
	var context, module, count uintptr
	image := append(probePTX[:len(probePTX):len(probePTX)], 0)
	size := uintptr(entries*entrySize + maxUnit/8)
	steps := []struct {
		name string
		f    func() int32
	}{
		{"cuInit", func() int32 { return p.init(0) }},
		{"cuDeviceGet", func() int32 { return p.deviceGet(&device, 0) }},
		{"cuDeviceGetUuid", func() int32 { return p.deviceGetUUID(&p.uuid, device) }},
		{"cuDeviceGetAttribute", func() int32 { return p.attribute(&units, attributeUnits, device) }},
		{"cuDeviceGetAttribute", func() int32 { return p.attribute(&clock, attributeClock, device) }},
		{"cuDevicePrimaryCtxRetain", func() int32 { return p.primaryCtxRetain(&context, device) }},
		{"cuCtxSetCurrent", func() int32 { return p.ctxSetCurrent(context) }},
		{"cuModuleLoadData", func() int32 { return p.moduleLoadData(&module, &image[0]) }},
		{"cuModuleGetFunction", func() int32 { return p.moduleGetFunction(&p.work, module, "probe") }},
		{"cuModuleGetFunction", func() int32 { return p.moduleGetFunction(&count, module, "count") }},
		{"cuStreamCreate", func() int32 { return p.streamCreate(&p.stream, streamNonBlocking) }},
		{"cuMemAlloc", func() int32 { return p.memAlloc(&p.journal, size) }},
		{"cuMemsetD8", func() int32 { return p.memsetD8(p.journal, 0, size) }},
	}
	for i := range p.events {
		steps = append(steps, struct {
			name string
			f    func() int32
		}{"cuEventCreate", func() int32 { return p.eventCreate(&p.events[i], eventWithoutTiming) }})
	}
	for _, s := range steps {
		if err := p.check(s.name, s.f()); err != nil {
			return err
		}
	}
	var ids [4]byte
	if err := p.launch(count, 1, unsafe.Pointer(&p.journal)); err != nil {
		return err
	}
	if err := p.read(ids[:], p.journal); err != nil {
		return err
	}
	if err := p.check("cuMemsetD8", p.memsetD8(p.journal, 0, entrySize)); err != nil {
		return err
	}
	p.units, p.ids = int(units), int(binary.LittleEndian.Uint32(ids[:]))
	if p.ids < 1 || p.ids > maxUnit {
		return fmt.Errorf("the device says that it has %d compute units; the probe can count 1 to %d", p.ids, maxUnit)
	}
	if sized < 1 || sized > maxUnit {
		sized = p.ids
	}
	p.geometry = geometryOf(sized, clock)
	return nil
}

// launch starts a kernel of blocks of one warp.
func (p *probe) launch(f uintptr, blocks uint32, params ...unsafe.Pointer) error {
	pointers := make([]uintptr, len(params))
	var pin runtime.Pinner
	defer pin.Unpin()
	for i, v := range params {
		pin.Pin(v)
		pointers[i] = uintptr(v)
	}
	pin.Pin(&pointers[0])
	return p.check("cuLaunchKernel", p.launchKernel(f, blocks, 1, 1, warpThreads, 1, 1, 0, p.stream, &pointers[0], 0))
}

// read waits for the stream and copies from the device.
func (p *probe) read(to []byte, from uint64) error {
	if err := p.check("cuStreamSynchronize", p.streamSynchronize(p.stream)); err != nil {
		return err
	}
	return p.check("cuMemcpyDtoH", p.memcpyDtoH(&to[0], from, uintptr(len(to))))
}

// next launches the next kernel of the journal.
func (p *probe) next() error {
	entry, seen := p.journal+uint64(p.launched)*entrySize, p.seen()
	chunks, iterations := p.geometry.chunks, p.iterations
	p.launched++
	return p.launch(p.work, p.geometry.blocks, unsafe.Pointer(&entry), unsafe.Pointer(&seen), unsafe.Pointer(&chunks),
		unsafe.Pointer(&iterations))
}

// kernel is an entry of the journal, in ns of the device's clock.
type kernel struct{ start, end uint64 }

// kernels reads the journal from one entry on and forgets it.
func (p *probe) kernels(from int) ([]kernel, error) {
	n := p.launched - from
	if n == 0 {
		return nil, nil
	}
	bytes := make([]byte, n*entrySize)
	if err := p.read(bytes, p.journal+uint64(from)*entrySize); err != nil {
		return nil, err
	}
	out := make([]kernel, n)
	for i := range out {
		e := bytes[i*entrySize:]
		out[i] = kernel{binary.LittleEndian.Uint64(e), binary.LittleEndian.Uint64(e[8:])}
		if out[i].start == 0 || out[i].end <= out[i].start {
			return nil, fmt.Errorf("kernel %d left no times: %v", from+i, out[i])
		}
	}
	return out, nil
}

// calibrate finds how many iterations of a chunk make a kernel of a few milliseconds.
func (p *probe) calibrate() error {
	want := 4 * time.Millisecond
	p.iterations = 1
	for range 12 {
		from := p.launched
		if err := p.next(); err != nil {
			return err
		}
		done, err := p.kernels(from)
		if err != nil {
			return err
		}
		took := time.Duration(done[0].end - done[0].start)
		progress("%d iterations take %v", p.iterations, took)
		factor := min(float64(want)/float64(max(took, 1)), 20)
		if factor < 1.2 {
			return nil
		}
		p.iterations = max(uint32(float64(p.iterations)*factor), p.iterations+1)
	}
	return nil
}

// warm runs one kernel, so that code is loaded when the measurement begins.
func (p *probe) warm() error {
	from := p.launched
	if err := p.next(); err != nil {
		return err
	}
	_, err := p.kernels(from)
	return err
}

// measure keeps the device busy and reads the journal.
func (p *probe) measure(spec ProbeSpec) (Measurement, error) {
	m := Measurement{Device: p.uuid.String(), Units: p.units, IDs: p.ids, Iterations: p.iterations}
	if err := p.check("cuMemsetD8", p.memsetD8(p.seen(), 0, maxUnit/8)); err != nil {
		return m, err
	}
	from := p.launched
	lead, span := time.Duration(spec.Lead*1e9), time.Duration(spec.Seconds*1e9)
	stop := time.Now().Add(lead + span + 200*time.Millisecond)
	for i := 0; time.Now().Before(stop) && p.launched < entries; i++ {
		event := p.events[i%inFlight]
		if i >= inFlight {
			if err := p.check("cuEventSynchronize", p.eventSynchronize(event)); err != nil {
				return m, err
			}
		}
		if err := p.next(); err != nil {
			return m, err
		}
		if err := p.check("cuEventRecord", p.eventRecord(event, p.stream)); err != nil {
			return m, err
		}
	}
	done, err := p.kernels(from)
	if err != nil {
		return m, err
	}
	bits := make([]byte, maxUnit/8)
	if err := p.read(bits, p.seen()); err != nil {
		return m, err
	}
	var units []int
	for i := range maxUnit {
		if bits[i/8]>>(i%8)&1 != 0 {
			units = append(units, i)
		}
	}
	m.Seen = list.Of(units...).String()
	rateOf(&m, done, uint64(lead), uint64(span))
	return m, nil
}
