package shmem

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sync/errgroup"

	"github.com/lgpu/lgpu/shmem/bootstrap"
	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport"
	"github.com/lgpu/lgpu/shmem/transport/p2p"
	"github.com/lgpu/lgpu/sim"
	"github.com/lgpu/lgpu/sim/simtest"
	"github.com/lgpu/lgpu/sim/wire"
)

// A test that needs a GPU runs in processes of their own, since a process has one driver: the test binary again, with the name
// of a role.
const roleVariable = "SHMEM_TEST_ROLE"

// roles are what a PE's process does. Those of alone start PEs themselves.
var (
	roles = map[string]func(p *PE) error{
		"operations": exerciseOperations, "collectives": exerciseCollectives, "streams": streams, "graph": graph, "shrink": shrink, "teams": gpuTeams,
		"killed": killed, "symmetric": symmetric, "hold": hold, "stalled": stalled, "network": network, "resident": resident, "leave": leave,
		"host": hostHeap,
	}
	alone = map[string]func() error{"instances": instances, "cycles": cycles, "measure": measure}
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		if err := play(role); err != nil {
			fmt.Fprintln(os.Stderr, role+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func play(role string) error {
	if f := alone[role]; f != nil {
		return f()
	}
	f := roles[role]
	if f == nil {
		return errors.New("no such role")
	}
	c, err := ConfigFrom(os.Environ())
	if err != nil {
		return err
	}
	p, err := Init(context.Background(), c)
	if err != nil {
		return err
	}
	if err := f(p); err != nil {
		err = fmt.Errorf("PE %d: %w", p.Rank(), err)
		p.Abort(1, err.Error())
		return errors.Join(err, p.Finalize())
	}
	return p.Finalize()
}

// machine is a software GPU and where its libraries are.
type machine struct {
	t         *testing.T
	libraries string
	socket    string
}

func newMachine(t *testing.T, devices int, memory uint64) *machine {
	t.Helper()
	shape := sim.DefaultShape
	shape.Devices, shape.Memory, shape.Units, shape.MHz, shape.Context = devices, memory, 4, 200, 16<<20
	return &machine{t: t, libraries: filepath.Join(libraries(t), "sim"), socket: simtest.Serve(t, shape)}
}

// libraries is the folder of the C libraries that make build makes.
func libraries(t *testing.T) string {
	t.Helper()
	lib, err := filepath.Abs("../assets/lib")
	if err == nil {
		_, err = os.Stat(filepath.Join(lib, "liblgpu.so"))
	}
	if err != nil {
		t.Fatalf("the C libraries are missing; run: make build (%v)", err)
	}
	return lib
}

// process makes the command of a role, not yet started.
func (m *machine) process(role string, env ...string) *exec.Cmd {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "LD_LIBRARY_PATH="+m.libraries, wire.Environment+"="+m.socket, roleVariable+"="+role,
		"LSHMEM_MAX_TEAMS=7", "LSHMEM_CHUNK=2M", "LSHMEM_TIMEOUT=20s", "LSHMEM_NIC=none", "LSHMEM_HEAP_MAX=256M")
	c.Env = append(c.Env, env...)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	return c
}

// job runs a role as n PEs, each in its process, and returns how each ended.
func (m *machine) job(n int, role string, env ...string) []error {
	m.t.Helper()
	ended := m.each(role, slices.Repeat([][]string{env}, n)...)
	for pe, err := range ended {
		if err != nil {
			ended[pe] = fmt.Errorf("PE %d: %w", pe, err)
		}
	}
	return ended
}

func (m *machine) run(n int, role string, env ...string) {
	m.t.Helper()
	if err := errors.Join(m.job(n, role, env...)...); err != nil {
		m.t.Error(role, err)
	}
}

func TestGPU(t *testing.T) {
	m := newMachine(t, 2, 1<<30)
	for _, c := range []struct {
		name string
		pes  int
		role string
		env  []string
	}{
		{"operations", 2, "operations", nil},
		{"operations of 3 on 2 GPUs", 3, "operations", nil},
		{"operations on one GPU", 2, "operations", []string{"LSHMEM_DEVICE=0"}},
		{"operations on a static heap", 2, "operations", []string{"LSHMEM_HEAP_STATIC=32M"}},
		{"operations without VMM", 2, "operations", []string{"LSHMEM_DISABLE_VMM=1", "LSHMEM_SYMMETRIC_SIZE=32M"}},
		{"streams", 2, "streams", nil},
		{"streams by driver operations", 2, "streams", []string{"LSHMEM_STREAM_WAIT=memop"}},
		{"network", 2, "network", []string{"LSHMEM_DISABLE_P2P=1", "LSHMEM_NIC=host", "LSHMEM_AMO=uniform"}},
		{"network on the GPU", 2, "resident", []string{"LSHMEM_DISABLE_P2P=1", "LSHMEM_NIC=gpu"}},
		{"collectives by a network", 2, "collectives", []string{"LSHMEM_DISABLE_P2P=1", "LSHMEM_NIC=host"}},
		{"leave at once", 2, "leave", nil},
		{"leave at once by a network", 2, "leave", []string{"LSHMEM_DISABLE_P2P=1", "LSHMEM_NIC=host"}},
		{"graph", 2, "graph", nil},
		{"collectives", 2, "collectives", nil},
		{"teams", 3, "teams", nil},
		{"shrink", 2, "shrink", nil},
		{"symmetric", 2, "symmetric", nil},
		{"operations on host memory", 2, "operations", []string{"LSHMEM_HEAP_MEMORY=host"}},
		{"collectives on host memory", 2, "collectives", []string{"LSHMEM_HEAP_MEMORY=host"}},
		{"host memory", 2, "host", []string{"LSHMEM_HEAP_MEMORY=host"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := *m
			m.t = t
			m.run(c.pes, c.role, c.env...)
		})
	}
	t.Run("allocations", func(t *testing.T) {
		if raceDetector {
			t.Skip("the race detector lets pools forget, so that calls allocate")
		}
		m := *m
		m.t = t
		m.run(2, "measure", roleVariable+"_SHORT=1")
	})
	for _, role := range []string{"instances", "cycles"} {
		t.Run(role, func(t *testing.T) {
			c := m.process(role)
			if err := c.Run(); err != nil {
				t.Fatalf("%v\n%s", err, c.Stdout)
			}
		})
	}
	t.Run("stalled", func(t *testing.T) {
		m := *m
		m.t = t
		m.run(1, "stalled", "LSHMEM_TIMEOUT=300ms")
	})
	t.Run("killed", func(t *testing.T) {
		for pe, err := range m.job(3, "killed") {
			if (err == nil) == (pe == 1) {
				t.Errorf("PE %d: %v", pe, err)
			}
		}
	})
}

// device is a piece of device memory outside of the heap.
func (p *PE) scratch(bytes uint64) (address uint64, err error) {
	err = p.ctx.Do(func() error {
		address, err = p.d.Alloc(bytes)
		return err
	})
	return address, err
}

// expect compares memory with what it should be.
func (p *PE) expect(what string, at uint64, want []byte) error {
	got := make([]byte, len(want))
	if err := p.read(got, at); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		i := 0
		for got[i] == want[i] {
			i++
		}
		return fmt.Errorf("%s: byte %d of %d is %#x, want %#x", what, i, len(want), got[i], want[i])
	}
	return nil
}

func (p *PE) expectWord(what string, at, want uint64) error {
	got, err := p.readWord(at)
	if err == nil && got != want {
		err = fmt.Errorf("%s: %#x, want %#x", what, got, want)
	}
	return err
}

func exerciseOperations(p *PE) error {
	const n = 3<<20 + 12345
	me, pes := p.Rank(), p.Size()
	next, before := (me+1)%pes, (me+pes-1)%pes
	if want := p.c.Memory == MemoryHost; (p.Kind() == transport.Host) != want {
		return fmt.Errorf("the heap is in %v memory", p.Kind())
	}
	a, err := p.Malloc(n)
	if err != nil {
		return err
	}
	b, err := p.Calloc(n, 1)
	if err != nil {
		return err
	}
	if err := p.expect("calloc", b, make([]byte, n)); err != nil {
		return err
	}
	outside, err := p.scratch(n)
	if err != nil {
		return err
	}
	if err := p.write(outside, pattern(me, n)); err != nil {
		return err
	}
	if err := p.Put(a, outside, n, next); err != nil {
		return err
	}
	if err := p.BarrierAll(); err != nil {
		return err
	}
	if err := p.expect("put", a, pattern(before, n)); err != nil {
		return err
	}
	if err := p.Get(b, a, n, next); err != nil {
		return err
	}
	if err := p.expect("get", b, pattern(me, n)); err != nil {
		return err
	}
	if at := p.Ptr(a, next); at != 0 {
		if err := p.expect("ptr", at, pattern(me, n)); err != nil {
			return err
		}
	} else if !p.c.DisableP2P {
		return errors.New("ptr of a mapped PE is 0")
	}
	if err := p.BarrierAll(); err != nil { // the other is done with b
		return err
	}
	if err := p.PutNBI(b, outside, 100, next); err != nil {
		return err
	}
	if err := errors.Join(p.Fence(), p.Quiet(), p.BarrierAll(), p.expect("put_nbi", b, pattern(before, 100)), p.BarrierAll()); err != nil {
		return err
	}
	if err := errors.Join(p.P(b, 0x0102030405060708, 8, next), p.P(b+8, 0xaabb, 2, next), p.P(b+12, 0xcc, 1, next)); err != nil {
		return err
	}
	if v, err := p.G(b, 8, next); err != nil || v != 0x0102030405060708 {
		return fmt.Errorf("g: %#x, %v", v, err)
	}
	if v, err := p.G(b+8, 8, next); err != nil || v&0xff0000ffff != 0xcc0000aabb {
		return fmt.Errorf("g of smaller elements: %#x, %v", v, err)
	}
	if err := p.BarrierAll(); err != nil {
		return err
	}
	if err := p.IPut(b, a, 3, 2, 4, 100, next); err != nil {
		return err
	}
	if v, err := p.G(b+12*99, 4, next); err != nil || v != element(pattern(before, n)[8*99:], 4) {
		return fmt.Errorf("iput: %#x, %v", v, err)
	}
	if err := p.BarrierAll(); err != nil {
		return err
	}
	words, err := p.Calloc(8, 8)
	if err != nil {
		return err
	}
	if p.choice.AMO[next] < 0 { // host memory that a GPU has no atomic operations on
		_, err := p.Atomic(layout.AtomicAdd, layout.TypeUint32, words, 7, 0, false, next)
		if Status(err) != layout.StatusSupport {
			return fmt.Errorf("atomic operation without: %v", err)
		}
		return p.BarrierAll()
	}
	for range 5 {
		if _, err := p.Atomic(layout.AtomicAdd, layout.TypeUint32, words, 7, 0, false, 0); err != nil {
			return err
		}
	}
	if err := p.BarrierAll(); err != nil {
		return err
	}
	if v, err := p.Atomic(layout.AtomicAdd, layout.TypeUint32, words, 0, 0, true, 0); err != nil || v != uint64(pes*35) {
		return fmt.Errorf("fetch: %d, %v", v, err)
	}
	if v, err := p.Atomic(layout.AtomicCompareSwap, layout.TypeUint64, words+8, 5, 0, true, me); err != nil || v != 0 {
		return fmt.Errorf("compare and swap: %d, %v", v, err)
	}
	if err := p.PutSignal(b, outside, 1000, words+16, 3, layout.SignalAdd, next); err != nil {
		return err
	}
	if v, err := p.SignalWait(words+16, layout.CompareGE, 3); err != nil || v != 3 {
		return fmt.Errorf("signal: %d, %v", v, err)
	}
	if err := p.expect("put_signal", b, pattern(before, 1000)); err != nil {
		return err
	}
	if err := errors.Join(p.SignalOp(words+24, 9, layout.SignalSet, next), p.WaitUntil(words+24, layout.TypeInt32, layout.CompareEQ, 9)); err != nil {
		return err
	}
	if ok, err := p.Test(words+24, layout.TypeInt64, layout.CompareLT, 9); ok || err != nil {
		return fmt.Errorf("test: %v, %v", ok, err)
	}
	if err := p.Sync(Node); err != nil {
		return err
	}
	for _, at := range []uint64{words, b, a} {
		if err := p.Free(at); err != nil {
			return err
		}
	}
	return p.Err()
}

// newStream makes a stream of the program's own.
func (p *PE) newStream() (s uintptr, err error) {
	err = p.ctx.Do(func() error {
		s, err = p.d.StreamCreate(cuda.StreamNonBlocking)
		return err
	})
	return s, err
}

func (p *PE) wait4(s uintptr) error {
	return errors.Join(p.ctx.Do(func() error { return p.d.StreamSynchronize(s) }), p.Err())
}

func streams(p *PE) error {
	const n = 1 << 20
	me := p.Rank()
	other := 1 - me
	a, err := p.Malloc(n)
	if err != nil {
		return err
	}
	words, err := p.Calloc(16, 8)
	if err != nil {
		return err
	}
	outside, err := p.scratch(n)
	if err != nil {
		return err
	}
	s, err := p.newStream()
	if err != nil {
		return err
	}
	if err := p.write(outside, pattern(me, n)); err != nil {
		return err
	}
	for _, err := range []error{
		p.PutSignalOnStream(a, outside, n, words, 1, layout.SignalSet, other, s),
		p.SignalWaitOnStream(words, layout.CompareEQ, 1, s),
		p.GetOnStream(outside, a, n, other, s), // what this PE put there
		p.SignalOpOnStream(words+8, 5, layout.SignalAdd, other, s),
		p.SignalWaitOnStream(words+8, layout.CompareGE, 5, s),
		p.POnStream(words+16, 77, 8, other, s),
		p.POnStream(words+24, 0x1234, 2, other, s),
		p.AtomicOnStream(layout.AtomicAdd, layout.TypeUint64, words+32, 3, 0, words+40, 0, s),
		p.BarrierOnStream(World, s),
		p.IPutOnStream(words+64, words+16, 1, 1, 8, 1, other, s),
		p.FenceOnStream(s), p.QuietOnStream(s),
		p.BarrierOnStream(World, s),
		p.PutOnStream(a, outside, 100, me, s),
		p.wait4(s),
		p.expect("put on stream", a, pattern(me, 100)),
		p.expect("put with signal", a+100, pattern(other, n)[100:]),
		p.expect("get on stream", outside, pattern(me, n)),
		p.expectWord("p", words+16, 77), p.expectWord("small p", words+24, 0x1234), p.expectWord("iput", words+64, 77),
	} {
		if err != nil {
			return err
		}
	}
	if v, err := p.G(words+32, 8, 0); err != nil || v != 6 {
		return fmt.Errorf("two atomic adds of 3: %d, %v", v, err)
	}
	old, err := p.readWord(words + 40)
	if err != nil || old != 0 && old != 3 {
		return fmt.Errorf("fetched %d, %v", old, err)
	}
	// Barriers of the host beside those on streams that nobody has waited for; Finalize waits.
	for range 5 {
		if err := p.BarrierOnStream(World, s); err != nil {
			return err
		}
		if err := p.BarrierAll(); err != nil {
			return err
		}
	}
	return p.BarrierOnStream(World, 0)
}

// leave leaves the job with work on streams that nobody has waited for.
func leave(p *PE) error {
	s, err := p.newStream()
	if err != nil {
		return err
	}
	for range 2 {
		if err := errors.Join(p.BarrierOnStream(World, 0), p.BarrierOnStream(Node, s)); err != nil {
			return err
		}
	}
	return nil
}

func graph(p *PE) error {
	const n = 64 << 10
	other := 1 - p.Rank()
	a, err := p.Calloc(3, n)
	if err != nil {
		return err
	}
	s, err := p.newStream()
	if err != nil {
		return err
	}
	words := a + 2*n
	source, err := p.scratch(n)
	if err != nil {
		return err
	}
	// Everything a graph needs is loaded while it is captured, if it was not before.
	for _, err := range []error{
		p.ctx.Do(func() error { return p.d.BeginCapture(s, cuda.CaptureThreadLocal) }),
		p.PutSignalOnStream(a, source, n, words, 1, layout.SignalAdd, other, s),
		p.BarrierOnStream(World, s),
		p.GetOnStream(a+n, a, n, other, s),
		p.BarrierOnStream(World, s),
	} {
		if err != nil {
			return err
		}
	}
	var exec uintptr
	if err := p.ctx.Do(func() error {
		g, err := p.d.EndCapture(s)
		if err != nil {
			return err
		}
		exec, err = p.d.GraphInstantiate(g)
		return errors.Join(err, p.d.GraphDestroy(g))
	}); err != nil {
		return err
	}
	const rounds = 3
	for round := range rounds {
		if err := p.write(source, pattern(p.Rank()+round, n)); err != nil {
			return err
		}
		if err := errors.Join(p.ctx.Do(func() error { return p.d.GraphLaunch(exec, s) }), p.wait4(s)); err != nil {
			return err
		}
		if err := errors.Join(p.expect("put in a graph", a, pattern(other+round, n)), p.expect("get in a graph", a+n, pattern(p.Rank()+round, n)),
			p.BarrierAll()); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	if err := p.expectWord("signals", words, rounds); err != nil {
		return err
	}
	return p.ctx.Do(func() error { return p.d.GraphExecDestroy(exec) })
}

func exerciseCollectives(p *PE) error {
	const n = 4 << 10
	me, pes := p.Rank(), p.Size()
	a, err := p.Malloc(n * uint64(pes))
	if err != nil {
		return err
	}
	b, err := p.Malloc(n * uint64(pes))
	if err != nil {
		return err
	}
	s, err := p.newStream()
	if err != nil {
		return err
	}
	if err := p.write(a, pattern(me, n*pes)); err != nil {
		return err
	}
	var all, mine []byte
	for pe := range pes {
		all = append(all, pattern(pe, n)...)
		mine = append(mine, pattern(pe, n*pes)[me*n:me*n+n]...)
	}
	for _, err := range []error{
		p.BroadcastOnStream(World, b, a, n, 1, s), p.wait4(s), p.expect("broadcast", b, pattern(1, n)), p.BarrierAll(),
		p.FCollectOnStream(World, b, a, n, s), p.wait4(s), p.expect("fcollect", b, all), p.BarrierAll(),
		p.AllToAll(World, b, a, n), p.expect("alltoall", b, mine), p.SyncAll(),
	} {
		if err != nil {
			return err
		}
	}
	ones := bytes.Repeat([]byte{1, 0, 0, 0}, n/4)
	sum := bytes.Repeat([]byte{byte(pes), 0, 0, 0}, n/4)
	for _, err := range []error{
		p.write(a, ones), p.BarrierAll(),
		p.ReduceOnStream(World, layout.TypeInt32, layout.ReduceSum, b, a, n/4, s), p.wait4(s), p.expect("sum", b, sum), p.BarrierAll(),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// gpuTeams: barriers of a team do not wait for who is not in it, and a number that is used again begins anew.
func gpuTeams(p *PE) error {
	for range 3 {
		t, err := p.TeamSplitStrided(World, 0, 2, 2)
		if err != nil {
			return err
		}
		if p.Rank() == 1 {
			continue
		}
		for range 3 {
			if err := p.Barrier(t); err != nil {
				return err
			}
		}
		if err := p.TeamDestroy(t); err != nil {
			return err
		}
	}
	return p.BarrierAll()
}

// free is the device's free memory.
func (p *PE) freeMemory() (free uint64, err error) {
	err = p.ctx.Do(func() error {
		free, _, err = p.d.MemInfo()
		return err
	})
	return free, err
}

func shrink(p *PE) error {
	const n = 64 << 20
	<-p.launcher.ready // what is loaded in the background takes memory too
	if err := p.BarrierAll(); err != nil {
		return err
	}
	before, err := p.freeMemory()
	if err != nil {
		return err
	}
	for range 3 {
		a, err := p.Malloc(n)
		if err != nil {
			return err
		}
		if err := p.BarrierAll(); err != nil {
			return err
		}
		grown, err := p.freeMemory()
		if err != nil || grown > before-n {
			return fmt.Errorf("%d bytes free with 64 MiB more, %d before, %v", grown, before, err)
		}
		if err := errors.Join(p.BarrierAll(), p.Free(a), p.BarrierAll()); err != nil {
			return err
		}
		after, err := p.freeMemory()
		if err != nil || after != before {
			return fmt.Errorf("%d bytes free after free, %d before, %v", after, before, err)
		}
		if err := p.BarrierAll(); err != nil {
			return err
		}
	}
	if _, err := p.Malloc(2 << 30); Status(err) != layout.StatusMemory {
		return fmt.Errorf("more than the heap can be: %v", err)
	}
	return nil
}

// symmetric: a program's own memory becomes part of the heap, and goes again.
func symmetric(p *PE) error {
	const n = 4 << 20
	d := p.d
	var own uint64
	if err := p.ctx.Do(func() error {
		prop := cuda.DeviceMemory(p.ctx.Device, false)
		h, err := d.Create(n, &prop)
		if err != nil {
			return err
		}
		defer d.Release(h)
		if own, err = d.Reserve(n, 0, 0); err != nil {
			return err
		}
		return errors.Join(d.Map(own, n, h), d.Allow(own, n, p.ctx.Device))
	}); err != nil {
		return err
	}
	a, err := p.RegisterSymmetric(own, n)
	if err != nil {
		return err
	}
	other := 1 - p.Rank()
	for _, err := range []error{
		p.write(own, pattern(p.Rank(), n)), p.BarrierAll(), p.expect("the other's buffer", p.Ptr(a, other), pattern(other, n)), p.BarrierAll(),
		p.Put(a+100, own, 50, other), p.BarrierAll(), p.expect("put into a buffer", own+100, pattern(other, 50)), p.BarrierAll(),
	} {
		if err != nil {
			return err
		}
	}
	if err := p.Free(a); Status(err) != layout.StatusArgument {
		return fmt.Errorf("free of a buffer: %v", err)
	}
	if err := p.UnregisterSymmetric(a); err != nil {
		return err
	}
	if err := p.expect("the buffer afterwards", own+200, pattern(p.Rank(), n)[200:]); err != nil {
		return err
	}
	pinned, err := p.scratch(n)
	if err != nil {
		return err
	}
	if _, err := p.RegisterSymmetric(pinned, n); Status(err) != layout.StatusSupport {
		return fmt.Errorf("memory without a handle: %v", err)
	}
	return nil
}

// hostHeap: a heap in host memory is the same pages to the GPUs and the CPUs of all PEs, and again after they were freed.
func hostHeap(p *PE) error {
	const n, ints = 5 << 20, 1 << 10 // n is more than a chunk
	me, pes := p.Rank(), p.Size()
	next, before := (me+1)%pes, (me+pes-1)%pes
	outside, err := p.scratch(n)
	if err != nil {
		return err
	}
	for round := range 2 {
		a, err := p.Malloc(n)
		if err != nil {
			return err
		}
		b, err := p.Malloc(4 * ints)
		if err != nil {
			return err
		}
		put := pattern(me+round, n)
		if err := errors.Join(p.write(outside, put), p.Put(a, outside, n, next), p.BarrierAll()); err != nil {
			return err
		}
		want := pattern(before+round, n)
		if !bytes.Equal(cuda.Bytes(a, n), want) || !bytes.Equal(cuda.Bytes(p.Ptr(a, next), n), put) {
			return fmt.Errorf("round %d: the CPU does not see what the GPUs put", round)
		}
		if err := errors.Join(p.expect("put", a, want), p.BarrierAll()); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		// What a CPU writes, here and in the other's heap, the GPUs read.
		copy(cuda.Bytes(p.Ptr(a, next), 4*ints), bytes.Repeat([]byte{byte(me + 1), 0, 0, 0}, ints))
		sum := bytes.Repeat([]byte{byte(pes * (pes + 1) / 2), 0, 0, 0}, ints)
		if err := errors.Join(p.BarrierAll(), p.Reduce(World, layout.TypeInt32, layout.ReduceSum, b, a, ints), p.expect("sum", b, sum),
			p.Free(b), p.Free(a), p.BarrierAll()); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	return nil
}

// instances: two PEs of one job, and another job of its own, in one process.
func instances() error {
	run := func(n int, base byte) error {
		bs, err := bootstrap.Local(n, bootstrap.Options{})
		if err != nil {
			return err
		}
		var g errgroup.Group
		for pe, b := range bs {
			g.Go(func() error {
				defer b.Close()
				c, err := ConfigFrom(os.Environ())
				if err != nil {
					return err
				}
				c.Bootstrap, c.Device = b, pe%2
				p, err := Init(context.Background(), c)
				if err != nil {
					return err
				}
				if err := exerciseOperations(p); err != nil {
					b.Abort(1, err.Error())
					return errors.Join(fmt.Errorf("PE %d of %d: %w", pe, n, err), p.Finalize())
				}
				return p.Finalize()
			})
		}
		return g.Wait()
	}
	var g errgroup.Group
	g.Go(func() error { return run(2, 1) })
	g.Go(func() error { return run(2, 2) })
	return g.Wait()
}

// cycles: what Init takes Finalize gives back.
func cycles() error {
	d, err := cuda.Load()
	if err != nil {
		return err
	}
	ctx, err := d.Primary(0) // stays, so that its own memory does not count
	if err != nil {
		return err
	}
	var free []uint64
	var fds []int
	for range 6 {
		bs, err := bootstrap.Local(2, bootstrap.Options{})
		if err != nil {
			return err
		}
		var g errgroup.Group
		for _, b := range bs {
			g.Go(func() error {
				defer b.Close()
				c, err := ConfigFrom(os.Environ())
				if err != nil {
					return err
				}
				c.Bootstrap, c.Device = b, 0
				p, err := Init(context.Background(), c)
				if err != nil {
					return err
				}
				_, err = p.Malloc(8 << 20)
				return errors.Join(err, p.BarrierAll(), p.Finalize())
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
		var now uint64
		if err := ctx.Do(func() error {
			now, _, err = d.MemInfo()
			return err
		}); err != nil {
			return err
		}
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return err
		}
		free, fds = append(free, now), append(fds, len(list))
	}
	// The software GPU has a channel for each thread, of which there may be more by and by.
	if free[5] < free[1] || fds[5] > fds[1]+3 {
		return fmt.Errorf("free device memory by cycle %d, descriptors %d", free, fds)
	}
	return nil
}

// killed: PE 1 dies while the others wait for it: in the host's barrier, and in a kernel.
func killed(p *PE) error {
	s, err := p.newStream()
	if err != nil {
		return err
	}
	a, err := p.Calloc(1, 8)
	if err != nil {
		return err
	}
	if err := p.BarrierAll(); err != nil && Status(err) != layout.StatusPeer { // PE 1 may be dead before this one looks again
		return err
	}
	if p.Rank() == 1 {
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	begun := time.Now()
	if err := p.SignalWaitOnStream(a, layout.CompareEQ, 1, s); err != nil && Status(err) != layout.StatusPeer {
		return err
	}
	err = p.BarrierAll()
	var e *Error
	if !errors.As(err, &e) || e.Status != layout.StatusPeer || e.PE != 1 {
		return fmt.Errorf("barrier with a dead PE: %v", err)
	}
	if err := p.ctx.Do(func() error { return p.d.StreamSynchronize(s) }); err != nil {
		return fmt.Errorf("the stream does not end: %w", err)
	}
	if took := time.Since(begun); took > 10*time.Second {
		return fmt.Errorf("it took %v", took)
	}
	if _, err := p.Malloc(8); Status(err) != layout.StatusPeer {
		return fmt.Errorf("malloc afterwards: %v", err)
	}
	fmt.Println("survived")
	return nil
}

// stalled: a wait for what never comes ends by the timeout, in a kernel too, and is an error then.
func stalled(p *PE) error {
	a, err := p.Calloc(1, 8)
	if err != nil {
		return err
	}
	s, err := p.newStream()
	if err != nil {
		return err
	}
	if err := p.SignalWaitOnStream(a, layout.CompareEQ, 1, s); err != nil {
		return err
	}
	if err := p.wait4(s); Status(err) != layout.StatusTimeout {
		return fmt.Errorf("status %d: %v", Status(err), err)
	}
	return nil
}

// hold says how much memory its lgpu has in use, by the driver, with 32 MiB of heap and without.
func hold(p *PE) error {
	<-p.launcher.ready // what is loaded in the background takes memory too
	before, err := p.freeMemory()
	if err != nil {
		return err
	}
	a, err := p.Malloc(32 << 20)
	if err != nil {
		return err
	}
	with, err := p.freeMemory()
	if err != nil {
		return err
	}
	if _, err := p.Malloc(128 << 20); Status(err) != layout.StatusMemory {
		return fmt.Errorf("more than the lgpu has: %v", err)
	}
	if err := p.Free(a); err != nil {
		return err
	}
	after, err := p.freeMemory()
	if err != nil {
		return err
	}
	if before-with != 32<<20 || after != before {
		return fmt.Errorf("%d free, with the heap %d, after %d", before, with, after)
	}
	return nil
}

// TestCounted: the heap counts against the memory of an lgpu.
func TestCounted(t *testing.T) {
	libraries(t)
	dir := t.TempDir()
	lgpu := filepath.Join(dir, "lgpu")
	build := exec.Command("go", "build", "-o", lgpu, "../cmd/lgpu")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	runtime, err := os.MkdirTemp("", "lshmem") // sockets' paths must be short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(runtime)
	c := exec.Command(lgpu, "run", "--sim=1GiB,sms=4,context=16MiB", "--memory", "128MiB", "--", os.Args[0])
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "LGPU_") && !strings.HasPrefix(v, "CUDA_") && !strings.HasPrefix(v, "LD_") {
			c.Env = append(c.Env, v)
		}
	}
	c.Env = append(c.Env, "LGPU_RUNTIME_DIR="+runtime, roleVariable+"=hold", "LSHMEM_MAX_TEAMS=6", "LSHMEM_CHUNK=2M", "LSHMEM_HEAP_MAX=512M")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// network: operations through queues, a few bytes each, since the software GPU interprets the device's part.
func network(p *PE) error {
	const n = 64
	next, before := (p.Rank()+1)%p.Size(), (p.Rank()+p.Size()-1)%p.Size()
	a, err := p.Calloc(4, n)
	if err != nil {
		return err
	}
	words := a + 3*n
	if p.Ptr(a, next) != 0 || p.Info().RMA[next] == "p2p" {
		return fmt.Errorf("PE %d is mapped", next)
	}
	outside, err := p.scratch(n)
	if err != nil {
		return err
	}
	if err := p.write(outside, pattern(p.Rank(), n)); err != nil {
		return err
	}
	at, err := p2p.AllocateHost(4096)
	if err != nil {
		return err
	}
	defer p2p.ReleaseHost(at, 4096)
	for i, b := range pattern(p.Rank()+1, n) {
		storeElement(at+uint64(i), uint64(b), 1)
	}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"put", func() error { return p.Put(a, outside, n, next) }}, // by way of the heap: it is not registered
		{"barrier", p.BarrierAll},
		{"expect", func() error { return p.expect("put", a, pattern(before, n)) }},
		{"get", func() error { return p.Get(a+n, a, n, next) }},
		{"expect", func() error { return p.expect("get", a+n, pattern(p.Rank(), n)) }},
		{"put_nbi", func() error { return p.PutNBI(a+2*n, a+n, n, next) }},
		{"quiet", p.Quiet},
		{"put_signal", func() error { return p.PutSignal(a+2*n, a, 8, words, 5, layout.SignalAdd, next) }},
		{"wait", func() error { _, err := p.SignalWait(words, layout.CompareEQ, 5); return err }},
		{"expect", func() error { return p.expect("put_signal", a+2*n, pattern((before+p.Size()-1)%p.Size(), 8)) }},
		{"atomic", func() error {
			for range 10 {
				if _, err := p.Atomic(layout.AtomicAdd, layout.TypeUint32, words+8, 7, 0, false, 0); err != nil {
					return err
				}
			}
			return nil
		}},
		{"barrier", p.BarrierAll},
		{"fetch", func() error {
			v, err := p.Atomic(layout.AtomicAdd, layout.TypeUint32, words+8, 0, 0, true, 0)
			if err == nil && v != uint64(p.Size()*70) {
				err = fmt.Errorf("%d after %d adds of 7", v, p.Size()*10)
			}
			return err
		}},
		{"register", func() error { return p.RegisterBuffer(outside, n) }},
		{"seen by kernels", func() error {
			var count [4]byte
			err := p.read(count[:], p.tables.self+uint64(unsafe.Offsetof(p.state.LocalCount)))
			if err == nil && count != [4]byte{1} {
				err = fmt.Errorf("%v buffers", count)
			}
			return err
		}},
		{"put", func() error { return p.Put(a+n, outside, n, next) }},
		{"barrier", p.BarrierAll},
		{"expect", func() error { return p.expect("put", a+n, pattern(before, n)) }},
		{"get", func() error { return p.Get(outside, a+n, n, next) }},
		{"expect", func() error { return p.expect("get", outside, pattern(p.Rank(), n)) }},
		{"register memory that the GPU does not reach", func() error { return p.RegisterBuffer(at, n) }},
		{"barrier", p.BarrierAll},
		{"put", func() error { return p.Put(a+n, at, 8, next) }},
		{"barrier", p.BarrierAll},
		{"expect", func() error { return p.expect("put", a+n, pattern(before+1, 8)) }},
		{"unregister", p.UnregisterAllBuffers},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// resident: the software HCA on the GPU, which the software GPU interprets too.
func resident(p *PE) error {
	const n = 64
	a, err := p.Malloc(n)
	if err != nil {
		return err
	}
	if err := errors.Join(p.write(a, pattern(p.Rank(), n)), p.BarrierAll()); err != nil {
		return err
	}
	next, plain := (p.Rank()+1)%p.Size(), make([]byte, n)
	if err := errors.Join(p.Get(a+n/2, a, n/2, next), p.expect("get", a+n/2, pattern(next, n/2))); err != nil {
		return err
	}
	if err := p.RegisterBuffer(uint64(uintptr(unsafe.Pointer(&plain[0]))), n); err == nil {
		return errors.New("memory was registered that the GPU does not reach")
	}
	return nil
}
