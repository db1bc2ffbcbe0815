package driver

import (
	"encoding/binary"
	"testing"

	"github.com/lgpu/lgpu/sim/kernels"
	"github.com/lgpu/lgpu/sim/wire"
)

func TestSaxpy(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	const n = 5000
	f := c.kernel(kernels.Linear, "saxpy")
	x, y := c.alloc(4*n), c.alloc(4*n)
	var xs, ys []float32
	for i := range n {
		xs, ys = append(xs, float32(i)), append(ys, float32(2*i))
	}
	c.put(x, floats(xs...))
	c.put(y, floats(ys...))
	c.want(c.launch(f, shape(n/256+1, 256), 0, uint32(n), float32(3), x, y), success)
	out := c.get(y, 4*n)
	for i := range n {
		if got, want := float(out, i), 3*xs[i]+ys[i]; got != want {
			t.Fatalf("y[%d] = %g, want %g", i, got, want)
		}
	}
}

func TestReduction(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	const n = 10000
	f := c.kernel(kernels.Compute, "reduce_sum")
	in, out := c.alloc(4*n), c.alloc(8)
	var vals []float32
	for i := range n {
		vals = append(vals, float32(i%7))
	}
	c.put(in, floats(vals...))
	c.want(c.Memset(c.call, wire.CUdeviceptr(out), 0, 0, 4, 2, 1, 0, 0), success)
	c.want(c.launch(f, shape(16, 256), 0, uint32(n), in, out), success)
	var want float32
	for _, v := range vals {
		want += v
	}
	if got := float(c.get(out, 4), 0); got != want {
		t.Fatalf("sum = %g, want %g", got, want)
	}
}

func TestMatmul(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	const n = 64
	f := c.kernel(kernels.Compute, "matmul")
	var a, b []float32
	for i := range n * n {
		a, b = append(a, float32(i%5)), append(b, float32(i%3))
	}
	pa, pb, pc := c.alloc(4*n*n), c.alloc(4*n*n), c.alloc(4*n*n)
	c.put(pa, floats(a...))
	c.put(pb, floats(b...))
	l := &wire.Launch{Grid: [3]uint32{n / 16, n / 16, 1}, Block: [3]uint32{16, 16, 1}}
	c.want(c.launch(f, l, 0, uint32(n), pa, pb, pc), success)
	out := c.get(pc, 4*n*n)
	for i := range n {
		for j := range n {
			var want float32
			for k := range n {
				want += a[i*n+k] * b[k*n+j]
			}
			if got := float(out, i*n+j); got != want {
				t.Fatalf("c[%d][%d] = %g, want %g", i, j, got, want)
			}
		}
	}
}

func TestLaunchChecks(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	f := c.kernel(kernels.Compute, "dynamic_reverse")
	p := c.alloc(4096)
	for _, tc := range []struct {
		name string
		l    wire.Launch
		want Result
	}{
		{"zero grid", wire.Launch{Grid: [3]uint32{0, 1, 1}, Block: [3]uint32{32, 1, 1}}, errInvalidValue},
		{"zero block", wire.Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{0, 1, 1}}, errInvalidValue},
		{"grid y", wire.Launch{Grid: [3]uint32{1, 65536, 1}, Block: [3]uint32{32, 1, 1}}, errInvalidValue},
		{"grid x", wire.Launch{Grid: [3]uint32{1 << 31, 1, 1}, Block: [3]uint32{32, 1, 1}}, errInvalidValue},
		{"threads", wire.Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1025, 1, 1}}, errInvalidValue},
		{"threads in all", wire.Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{64, 32, 1}}, errInvalidValue},
		{"block z", wire.Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 65}}, errInvalidValue},
		{"shared", wire.Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}, SharedMemBytes: 100 << 10}, errInvalidValue},
		{"cooperative", wire.Launch{Grid: [3]uint32{1 << 20, 1, 1}, Block: [3]uint32{256, 1, 1}, Cooperative: 1}, errCooperativeTooLarge},
		{"good", wire.Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}, SharedMemBytes: 4096}, success},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := c.launch(f, &tc.l, 0, p); got != tc.want {
				t.Fatalf("result %d, want %d", got, tc.want)
			}
		})
	}
	if res := c.Launch(c.call, &wire.Launch{Function: 77, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}}, 0, nil, nil); res != errInvalidHandle {
		t.Errorf("launch of no function: result %d, want %d", res, errInvalidHandle)
	}
	c.want(c.FuncSetAttribute(c.call, f, wire.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 200<<10), success)
	c.want(c.launch(f, &wire.Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}, SharedMemBytes: 100 << 10}, 0, p), success)
	c.want(c.FuncSetAttribute(c.call, f, wire.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 228<<10), errInvalidValue)
	cluster := []wire.CUlaunchAttribute{{Id: wire.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, Value: wire.CUlaunchAttributeValue{2 | 1<<32, 1}}}
	l := &wire.Launch{Function: f, Grid: [3]uint32{2, 1, 1}, Block: [3]uint32{32, 1, 1}, SharedMemBytes: 256}
	c.want(c.Launch(c.call, l, 0, c.pack(f, p), cluster), errInvalidClusterSize)
	c.sync()
}

func TestFaultIsSticky(t *testing.T) {
	b := newBench(t, 1, 64<<20)
	c, other := b.connect(), b.connect()
	f := c.kernel(store, "store")
	p := c.alloc(4 << 20)
	c.want(c.MemFree(c.call, wire.CUdeviceptr(p)), success)
	// The address is stale: nothing is mapped there any more.
	c.want(c.launch(f, shape(1, 32), 0, p, uint64(64), uint32(1)), success)
	c.want(c.CtxSynchronize(c.call), errIllegalAddress)
	_, res := c.MemAlloc(c.call, 4096)
	c.want(res, errIllegalAddress)
	c.want(c.StreamSynchronize(c.call, 0), errIllegalAddress)
	// Others do not notice.
	q := other.alloc(256)
	g := other.kernel(store, "store")
	other.want(other.launch(g, shape(1, 32), 0, q, uint64(64), uint32(7)), success)
	if v := binary.LittleEndian.Uint32(other.get(q, 4)); v != 7 {
		t.Fatalf("other process reads %d, want 7", v)
	}
	// No new context helps.
	c.want(c.DevicePrimaryCtxReset(c.call, 0), success)
	_, res = c.DevicePrimaryCtxRetain(c.call, 0)
	c.want(res, errIllegalAddress)
	_, res = c.CtxCreate(c.call, 0, 0)
	c.want(res, errIllegalAddress)
}

func TestSpinBlocksNobody(t *testing.T) {
	b := newBench(t, 1, 64<<20)
	c, other := b.connect(), b.connect()
	f := c.kernel(kernels.Control, "wait_flag")
	flag, out := c.alloc(4), c.alloc(4)
	c.want(c.Memset(c.call, wire.CUdeviceptr(flag), 0, 0, 4, 1, 1, 0, 0), success)
	c.sync()
	s := c.stream(streamNonBlocking)
	c.want(c.launch(f, shape(1, 32), s, flag, uint32(1), out), success)
	if res := c.StreamQuery(c.call, s); res != errNotReady {
		t.Fatalf("query of a spinning stream: %d, want %d", res, errNotReady)
	}
	// Another process computes meanwhile.
	within(t, "other process", func() {
		g := other.kernel(store, "store")
		q := other.alloc(256)
		other.want(other.launch(g, shape(1, 32), 0, q, uint64(64), uint32(7)), success)
		other.sync()
	})
	// A copy on another stream ends the wait.
	s2 := c.stream(streamNonBlocking)
	within(t, "release of the flag", func() {
		one := c.prog.buffer([]byte{1, 0, 0, 0})
		c.want(c.Memcpy(c.call, wire.CUdeviceptr(flag), wire.CUdeviceptr(one), 4, copyHtoD, s2, 1), success)
		c.want(c.StreamSynchronize(c.call, s), success)
	})
}

func TestOccupancy(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	f := c.kernel(kernels.Linear, "saxpy")
	n, res := c.OccupancyMaxActiveBlocksPerMultiprocessor(c.call, f, 256, 0)
	c.want(res, success)
	if n != 8 {
		t.Errorf("blocks of 256 threads on a unit: %d, want 8", n)
	}
	n, res = c.OccupancyMaxActiveBlocksPerMultiprocessor(c.call, f, 32, 40<<10)
	c.want(res, success)
	if n != 5 {
		t.Errorf("blocks with 40 KiB on a unit: %d, want 5", n)
	}
	_, res = c.OccupancyMaxActiveBlocksPerMultiprocessor(c.call, f, 0, 0)
	c.want(res, errInvalidValue)
}

func TestModuleErrors(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	free := c.d.devices[0].hw.Memory.Free()
	_, _, log, res := c.ModuleLoadData(c.call, []byte(".version 6.0\n.target sm_70\n.address_size 64\n.visible .entry k() { frobnicate.u32 %r1; }"), nil, nil, 64, 256)
	c.want(res, errInvalidPTX)
	if len(log) < 2 {
		t.Error("no error log")
	}
	if now := c.d.devices[0].hw.Memory.Free(); now != free {
		t.Errorf("a module that did not load keeps %d bytes", free-now)
	}
	m := c.load(kernels.Control)
	_, res = c.ModuleGetFunction(c.call, m, "nothing")
	c.want(res, errNotFound)
	addr, size, res := c.ModuleGetGlobal(c.call, m, "counter")
	c.want(res, success)
	if addr == 0 || size == 0 {
		t.Errorf("counter is at %#x with %d bytes", addr, size)
	}
	c.want(c.ModuleUnload(c.call, m), success)
	c.want(c.ModuleUnload(c.call, m), errInvalidHandle)
}
