package driver

import (
	"encoding/binary"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lgpu/lgpu/sim/hw"
	"github.com/lgpu/lgpu/sim/wire"
)

// program plays a program: its memory is a map of buffers by address, its functions are Go functions by address.
type program struct {
	mu      sync.Mutex
	memory  map[wire.HostAddr][]byte
	funcs   map[wire.HostAddr]func(kind wire.InvokeKind, a, b, c wire.HostAddr)
	next    wire.HostAddr
	goneCh  chan struct{}
	invoked int
}

func newProgram() *program {
	return &program{memory: map[wire.HostAddr][]byte{}, funcs: map[wire.HostAddr]func(wire.InvokeKind, wire.HostAddr, wire.HostAddr, wire.HostAddr){},
		next: 0x500000, goneCh: make(chan struct{})}
}

func (g *program) Gone() <-chan struct{} { return g.goneCh }

func (g *program) Invoke(kind wire.InvokeKind, fn, a, b, c wire.HostAddr) error {
	g.mu.Lock()
	f := g.funcs[fn]
	g.invoked++
	g.mu.Unlock()
	if f != nil {
		f(kind, a, b, c)
	}
	return nil
}

// buffer makes pageable memory.
func (g *program) buffer(b []byte) wire.HostAddr {
	g.mu.Lock()
	defer g.mu.Unlock()
	addr := g.next
	g.memory[addr] = b
	g.next += wire.HostAddr(len(b)+0xfff) &^ 0xfff
	return addr
}

// function makes a function of the program's.
func (g *program) function(f func(kind wire.InvokeKind, a, b, c wire.HostAddr)) wire.HostAddr {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next += 0x1000
	g.funcs[g.next] = f
	return g.next
}

func (g *program) at(addr wire.HostAddr, n int) []byte {
	for base, b := range g.memory {
		if addr >= base && n <= len(b) && addr-base <= wire.HostAddr(len(b)-n) {
			return b[addr-base:][:n]
		}
	}
	return nil
}

func (g *program) left() error {
	select {
	case <-g.goneCh:
		return wire.ErrGone
	default:
		return nil
	}
}

func (g *program) ReadHost(addr wire.HostAddr, p []byte) error {
	if err := g.left(); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	copy(p, g.at(addr, len(p)))
	return nil
}

func (g *program) WriteHost(addr wire.HostAddr, p []byte) error {
	if err := g.left(); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	copy(g.at(addr, len(p)), p)
	return nil
}

// bench is a machine with a driver, in virtual time.
type bench struct {
	t *testing.T
	m *hw.Machine
	d *Driver
}

func newBench(t *testing.T, devices int, memory uint64) *bench {
	t.Helper()
	return newBenchOf(t, devices, hw.Config{Memory: memory}, Options{})
}

// newBenchOf is a bench of devices with a configuration of their own.
func newBenchOf(t *testing.T, devices int, config hw.Config, o Options) *bench {
	t.Helper()
	config.Units, config.Virtual = 4, true
	m, err := hw.NewMachine(slices.Repeat([]hw.Config{config}, devices)...)
	if err != nil {
		t.Fatal(err)
	}
	o.ContextBytes, o.Seed = 4<<20, t.Name()
	d, err := New(m, o)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t, m, d}
	t.Cleanup(func() {
		d.Close()
		for i, dev := range m.Devices {
			if free := dev.Memory.Free(); free != dev.Memory.Total() {
				t.Errorf("device %d: %d bytes are not free after the last process", i, dev.Memory.Total()-free)
			}
		}
		if err := m.Close(); err != nil {
			t.Errorf("close machine: %v", err)
		}
	})
	return b
}

// client is a connected process with a context.
type client struct {
	*Process
	t    *testing.T
	prog *program
	call *wire.Call
	ctx  wire.CUcontext
}

func (b *bench) connect() *client {
	b.t.Helper()
	g := newProgram()
	p, err := b.d.Connect(wire.Peer{PID: 1000 + len(b.d.processes), Host: g})
	if err != nil {
		b.t.Fatal(err)
	}
	c := &client{Process: p, t: b.t, prog: g}
	c.use(0)
	return c
}

// use makes the primary context of a device current.
func (c *client) use(dev wire.CUdevice) {
	c.t.Helper()
	ctx, res := c.DevicePrimaryCtxRetain(wire.NewCall(0, 1, c.prog), dev)
	c.want(res, success)
	c.ctx = ctx
	c.call = wire.NewCall(ctx, 1, c.prog)
}

func (c *client) want(got, want Result) {
	c.t.Helper()
	if got != want {
		c.t.Fatalf("result %d, want %d", got, want)
	}
}

func (c *client) alloc(n uint64) uint64 {
	c.t.Helper()
	p, res := c.MemAlloc(c.call, n)
	c.want(res, success)
	return uint64(p)
}

func (c *client) put(dst uint64, b []byte) {
	c.t.Helper()
	c.want(c.Memcpy(c.call, wire.CUdeviceptr(dst), wire.CUdeviceptr(c.prog.buffer(b)), uint64(len(b)), copyHtoD, 0, 0), success)
}

func (c *client) get(src uint64, n int) []byte {
	c.t.Helper()
	b := make([]byte, n)
	c.want(c.Memcpy(c.call, wire.CUdeviceptr(c.prog.buffer(b)), wire.CUdeviceptr(src), uint64(n), copyDtoH, 0, 0), success)
	return b
}

func floats(v ...float32) []byte {
	var b []byte
	for _, f := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	return b
}

func float(b []byte, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
}

// load loads a module of the test kernels.
func (c *client) load(src []byte) wire.CUmodule {
	c.t.Helper()
	m, _, log, res := c.ModuleLoadData(c.call, src, nil, nil, 1024, 1024)
	if res != success {
		c.t.Fatalf("load module: result %d: %s", res, log)
	}
	return m
}

func (c *client) kernel(src []byte, name string) wire.CUfunction {
	c.t.Helper()
	f, res := c.ModuleGetFunction(c.call, c.load(src), name)
	c.want(res, success)
	return f
}

// pack lays out arguments as the kernel has its parameters.
func (c *client) pack(f wire.CUfunction, args ...any) []byte {
	c.t.Helper()
	layout, n, bytes, res := c.FuncParamLayout(c.call, f, 64)
	c.want(res, success)
	if int(n) != len(args) {
		c.t.Fatalf("%d arguments for %d parameters", len(args), n)
	}
	b := make([]byte, bytes)
	for i, a := range args {
		if _, err := binary.Encode(b[layout[i].Offset:], binary.LittleEndian, a); err != nil {
			c.t.Fatal(err)
		}
	}
	return b
}

func shape(grid, block uint32) *wire.Launch {
	return &wire.Launch{Grid: [3]uint32{grid, 1, 1}, Block: [3]uint32{block, 1, 1}}
}

func (c *client) launch(f wire.CUfunction, l *wire.Launch, s wire.CUstream, args ...any) Result {
	c.t.Helper()
	l.Function = f
	return c.Launch(c.call, l, s, c.pack(f, args...), nil)
}

func (c *client) sync() {
	c.t.Helper()
	c.want(c.CtxSynchronize(c.call), success)
}

func (c *client) stream(flags uint32) wire.CUstream {
	c.t.Helper()
	s, res := c.StreamCreate(c.call, flags, 0)
	c.want(res, success)
	return s
}

// within fails the test when f does not return in time.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: does not return", what)
	}
}

// store is a kernel that stores a word at an index a thread: store(u64 to, u64 count, u32 word).
var store = []byte(`.version 6.0
.target sm_70
.address_size 64
.visible .entry store(.param .u64 to, .param .u64 count, .param .u32 word)
{
	.reg .pred %p<2>;
	.reg .b32 %r<6>;
	.reg .b64 %rd<7>;
	ld.param.u64 %rd1, [to];
	ld.param.u64 %rd2, [count];
	ld.param.u32 %r1, [word];
	mov.u32 %r2, %ctaid.x;
	mov.u32 %r3, %ntid.x;
	mov.u32 %r4, %tid.x;
	mad.lo.s32 %r5, %r2, %r3, %r4;
	cvt.u64.u32 %rd3, %r5;
	setp.ge.u64 %p1, %rd3, %rd2;
	@%p1 bra done;
	shl.b64 %rd4, %rd3, 2;
	add.s64 %rd5, %rd1, %rd4;
	st.global.u32 [%rd5], %r1;
done:
	ret;
}
`)

// tick lets other goroutines run for a moment.
func tick() { time.Sleep(time.Millisecond) }
