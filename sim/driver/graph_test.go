package driver

import (
	"testing"

	"github.com/lgpu/lgpu/sim/wire"
)

func (c *client) instantiate(g wire.CUgraph) wire.CUgraphExec {
	c.t.Helper()
	x, _, _, res := c.GraphInstantiate(c.call, g, 0)
	c.want(res, success)
	return x
}

func (c *client) kernelNode(g wire.CUgraph, deps []wire.CUgraphNode, f wire.CUfunction, args ...any) wire.CUgraphNode {
	c.t.Helper()
	n, res := c.GraphAddKernelNode(c.call, g, deps, &wire.KernelNode{Func: f, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}}, c.pack(f, args...))
	c.want(res, success)
	return n
}

func TestGraph(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	f := c.kernel(store, "store")
	p := c.alloc(4096)
	g, res := c.GraphCreate(c.call, 0)
	c.want(res, success)
	set, res := c.GraphAddMemsetNode(c.call, g, nil, &wire.CUDA_MEMSET_NODE_PARAMS{Dst: wire.CUdeviceptr(p), ElementSize: 4, Width: 64, Height: 1, Value: 1}, c.ctx)
	c.want(res, success)
	k := c.kernelNode(g, []wire.CUgraphNode{set}, f, p, uint64(4), uint32(2))
	back := make([]byte, 16)
	cp, res := c.GraphAddMemcpyNode(c.call, g, []wire.CUgraphNode{k}, &wire.CUDA_MEMCPY3D{SrcMemoryType: wire.CU_MEMORYTYPE_DEVICE, SrcDevice: wire.CUdeviceptr(p + 8),
		DstMemoryType: wire.CU_MEMORYTYPE_HOST, DstHost: c.prog.buffer(back), WidthInBytes: 16, Height: 1, Depth: 1}, c.ctx)
	c.want(res, success)
	ran := 0
	fn := c.prog.function(func(wire.InvokeKind, wire.HostAddr, wire.HostAddr, wire.HostAddr) { ran++ })
	_, res = c.GraphAddHostNode(c.call, g, []wire.CUgraphNode{cp}, &wire.CUDA_HOST_NODE_PARAMS{Fn: fn})
	c.want(res, success)
	x := c.instantiate(g)
	c.want(c.GraphDestroy(c.call, g), success)
	for range 2 {
		c.want(c.GraphLaunch(c.call, x, 0), success)
	}
	within(t, "graph", c.sync)
	if ran != 2 {
		t.Errorf("host node ran %d times", ran)
	}
	if back[0] != 2 || back[4] != 2 || back[8] != 1 {
		t.Errorf("copied %v", back)
	}
	c.want(c.GraphExecDestroy(c.call, x), success)
	c.want(c.GraphLaunch(c.call, x, 0), errInvalidValue)
}

func TestGraphEdges(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	g, _ := c.GraphCreate(c.call, 0)
	var n []wire.CUgraphNode
	for range 3 {
		h, res := c.GraphAddEmptyNode(c.call, g, nil)
		c.want(res, success)
		n = append(n, h)
	}
	c.want(c.GraphAddDependencies(c.call, g, n[:2], n[1:], nil), success)
	c.want(c.GraphAddDependencies(c.call, g, n[:1], n[1:2], nil), errInvalidValue)
	from, to, _, count, res := c.GraphGetEdges(c.call, g, 10)
	c.want(res, success)
	if count != 2 || from[0] != n[0] || to[0] != n[1] {
		t.Errorf("edges %v to %v", from, to)
	}
	roots, count, res := c.GraphGetRootNodes(c.call, g, 10)
	c.want(res, success)
	if count != 1 || roots[0] != n[0] {
		t.Errorf("roots %v", roots)
	}
	c.want(c.GraphAddDependencies(c.call, g, n[2:], n[:1], nil), success)
	_, _, why, res := c.GraphInstantiate(c.call, g, 0)
	if res != errInvalidValue || why != wire.CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE {
		t.Errorf("cycle: result %d, %d", res, why)
	}
	c.want(c.GraphRemoveDependencies(c.call, g, n[2:], n[:1], nil), success)
	c.instantiate(g)
	twin, res := c.GraphClone(c.call, g)
	c.want(res, success)
	tn, res := c.GraphNodeFindInClone(c.call, n[1], twin)
	c.want(res, success)
	deps, _, count, res := c.GraphNodeGetDependencies(c.call, tn, 10)
	c.want(res, success)
	if count != 1 || deps[0] == n[0] {
		t.Errorf("clone depends on %v", deps)
	}
	c.want(c.GraphDestroyNode(c.call, n[1]), success)
	_, count, _ = c.GraphGetNodes(c.call, g, 10)
	if count != 2 {
		t.Errorf("%d nodes", count)
	}
}

func TestGraphUpdate(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	f := c.kernel(store, "store")
	p := c.alloc(64)
	g, _ := c.GraphCreate(c.call, 0)
	n := c.kernelNode(g, nil, f, p, uint64(1), uint32(1))
	x := c.instantiate(g)
	run := func() uint32 {
		c.want(c.GraphLaunch(c.call, x, 0), success)
		c.sync()
		return c.word(p)
	}
	if v := run(); v != 1 {
		t.Errorf("first launch stored %d", v)
	}
	k, params, res := c.GraphKernelNodeGetParams(c.call, n, 1024)
	c.want(res, success)
	if len(params) == 0 || k.Func != f {
		t.Errorf("node's params are %+v %v", k, params)
	}
	c.want(c.GraphExecKernelNodeSetParams(c.call, x, n, &k, c.pack(f, p, uint64(1), uint32(2))), success)
	if v := run(); v != 2 {
		t.Errorf("after SetParams stored %d", v)
	}
	g2, _ := c.GraphCreate(c.call, 0)
	n2 := c.kernelNode(g2, nil, f, p, uint64(1), uint32(3))
	_, res = c.GraphExecUpdate(c.call, x, g2)
	c.want(res, success)
	if v := run(); v != 3 {
		t.Errorf("after update stored %d", v)
	}
	c.kernelNode(g2, []wire.CUgraphNode{n2}, f, p, uint64(1), uint32(4))
	info, res := c.GraphExecUpdate(c.call, x, g2)
	c.want(res, errGraphExecUpdate)
	if info.Result != wire.CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED {
		t.Errorf("update of another shape: %d", info.Result)
	}
	c.want(c.GraphNodeSetEnabled(c.call, x, n, 0), success)
	c.want(c.Memset(c.call, wire.CUdeviceptr(p), 0, 9, 4, 1, 1, 0, 0), success)
	if v := run(); v != 9 {
		t.Errorf("a disabled node stored %d", v)
	}
}

func TestGraphMemory(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	f := c.kernel(store, "store")
	out := c.alloc(64)
	before := c.free()
	g, _ := c.GraphCreate(c.call, 0)
	props := &wire.CUmemPoolProps{AllocType: wire.CU_MEM_ALLOCATION_TYPE_PINNED, Location: wire.CUmemLocation{Type: wire.CU_MEM_LOCATION_TYPE_DEVICE}}
	a, p, res := c.GraphAddMemAllocNode(c.call, g, nil, props, nil, 6<<20)
	c.want(res, success)
	k := c.kernelNode(g, []wire.CUgraphNode{a}, f, uint64(p), uint64(4), uint32(8))
	cp, res := c.GraphAddMemcpyNode(c.call, g, []wire.CUgraphNode{k}, &wire.CUDA_MEMCPY3D{SrcMemoryType: wire.CU_MEMORYTYPE_DEVICE, SrcDevice: p,
		DstMemoryType: wire.CU_MEMORYTYPE_DEVICE, DstDevice: wire.CUdeviceptr(out), WidthInBytes: 16, Height: 1, Depth: 1}, c.ctx)
	if res == errInvalidValue {
		t.Fatal("a copy from memory that a node allocates is refused")
	}
	c.want(res, success)
	x := c.instantiate(g)
	c.want(c.GraphLaunch(c.call, x, 0), success)
	c.want(c.GraphLaunch(c.call, x, 0), errInvalidValue) // not freed yet
	c.sync()
	if v := c.word(out); v != 8 {
		t.Errorf("copied %d", v)
	}
	if c.free() != before-6<<20 {
		t.Errorf("graph memory takes %d bytes", before-c.free())
	}
	c.want(c.MemFree(c.call, p), success)
	if c.free() != before {
		t.Error("graph memory is not free")
	}
	_, res = c.GraphAddMemFreeNode(c.call, g, []wire.CUgraphNode{cp}, p)
	c.want(res, success)
	y := c.instantiate(g)
	for range 3 {
		c.want(c.GraphLaunch(c.call, y, 0), success)
	}
	c.sync()
	if c.free() != before {
		t.Error("memory of a graph that frees it is not free")
	}
	// Too much memory: the launch fails and takes nothing.
	g2, _ := c.GraphCreate(c.call, 0)
	_, _, res = c.GraphAddMemAllocNode(c.call, g2, nil, props, nil, 20<<20)
	c.want(res, success)
	_, _, res = c.GraphAddMemAllocNode(c.call, g2, nil, props, nil, 60<<20)
	c.want(res, success)
	c.want(c.GraphLaunch(c.call, c.instantiate(g2), 0), errOutOfMemory)
	if c.free() != before {
		t.Error("a failed launch keeps memory")
	}
}

func TestCapture(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	f := c.kernel(store, "store")
	p := c.alloc(4096)
	c.want(c.Memset(c.call, wire.CUdeviceptr(p), 0, 0, 4, 16, 1, 0, 0), success)
	c.sync()
	s, side := c.stream(streamNonBlocking), c.stream(streamNonBlocking)
	c.want(c.StreamBeginCapture(c.call, 0, 0), errCaptureUnsupported)
	_, res := c.StreamEndCapture(c.call, s)
	c.want(res, errIllegalState)
	c.want(c.StreamBeginCapture(c.call, s, 0), success)
	c.want(c.StreamBeginCapture(c.call, s, 0), errIllegalState)
	fork, join := c.event(0), c.event(0)
	c.want(c.launch(f, shape(1, 32), s, p, uint64(4), uint32(1)), success)
	c.want(c.EventRecord(c.call, fork, s), success)
	c.want(c.StreamWaitEvent(c.call, side, fork, 0), success)
	c.want(c.launch(f, shape(1, 32), side, p+4, uint64(1), uint32(2)), success)
	c.want(c.launch(f, shape(1, 32), s, p+8, uint64(1), uint32(3)), success)
	c.want(c.EventRecord(c.call, join, side), success)
	c.want(c.StreamWaitEvent(c.call, s, join, 0), success)
	st, res := c.StreamIsCapturing(c.call, side)
	c.want(res, success)
	if st != wire.CU_STREAM_CAPTURE_STATUS_ACTIVE {
		t.Errorf("side stream's capture has status %d", st)
	}
	mem, res := c.MemAllocAsync(c.call, 4096, s)
	c.want(res, success)
	c.want(c.launch(f, shape(1, 32), s, uint64(mem), uint64(4), uint32(5)), success)
	c.want(c.MemFreeAsync(c.call, mem, s), success)
	g, res := c.StreamEndCapture(c.call, s)
	c.want(res, success)
	_, count, res := c.GraphGetNodes(c.call, g, 0)
	c.want(res, success)
	if count != 6 {
		t.Errorf("captured %d nodes, want 6", count)
	}
	if v := c.word(p); v != 0 {
		t.Fatalf("a captured kernel ran: %d", v)
	}
	c.want(c.GraphLaunch(c.call, c.instantiate(g), s), success)
	c.want(c.StreamSynchronize(c.call, s), success)
	if a, b, d := c.word(p), c.word(p+4), c.word(p+8); a != 1 || b != 2 || d != 3 {
		t.Errorf("graph stored %d %d %d", a, b, d)
	}
}

func TestCaptureErrors(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	f := c.kernel(store, "store")
	p := c.alloc(64)
	plain := c.event(0)
	c.want(c.EventRecord(c.call, plain, 0), success)
	c.sync()
	for _, tc := range []struct {
		name   string
		do     func(s, o wire.CUstream) Result
		want   Result
		ending Result
	}{
		{"synchronize", func(s, _ wire.CUstream) Result { return c.StreamSynchronize(c.call, s) }, errCaptureUnsupported, errCaptureInvalidated},
		{"query", func(s, _ wire.CUstream) Result { return c.StreamQuery(c.call, s) }, errCaptureUnsupported, errCaptureInvalidated},
		{"context", func(wire.CUstream, wire.CUstream) Result { return c.CtxSynchronize(c.call) }, errCaptureUnsupported, errCaptureInvalidated},
		{"allocate", func(wire.CUstream, wire.CUstream) Result { _, r := c.MemAlloc(c.call, 10); return r }, errCaptureUnsupported, errCaptureInvalidated},
		{"legacy", func(wire.CUstream, wire.CUstream) Result {
			return c.launch(f, shape(1, 1), 0, p, uint64(1), uint32(1))
		}, errCaptureImplicit, errCaptureInvalidated},
		{"outside event", func(s, _ wire.CUstream) Result { return c.StreamWaitEvent(c.call, s, plain, 0) }, errCaptureIsolation, errCaptureInvalidated},
		{"captured event", func(s, _ wire.CUstream) Result {
			e := c.event(0)
			c.want(c.EventRecord(c.call, e, s), success)
			return c.EventQuery(c.call, e)
		}, errCapturedEvent, errCaptureInvalidated},
		{"unjoined", func(s, o wire.CUstream) Result {
			e := c.event(0)
			c.want(c.EventRecord(c.call, e, s), success)
			c.want(c.StreamWaitEvent(c.call, o, e, 0), success)
			return c.launch(f, shape(1, 1), o, p, uint64(1), uint32(1))
		}, success, errCaptureUnjoined},
		{"nothing", func(wire.CUstream, wire.CUstream) Result { return success }, success, success},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, o := c.stream(0), c.stream(0)
			c.want(c.StreamBeginCapture(c.call, s, 0), success)
			if got := tc.do(s, o); got != tc.want {
				t.Errorf("result %d, want %d", got, tc.want)
			}
			if _, got := c.StreamEndCapture(c.call, s); got != tc.ending {
				t.Errorf("end of the capture: %d, want %d", got, tc.ending)
			}
			// Whatever happened, the stream is itself again.
			if got := c.launch(f, shape(1, 1), s, p, uint64(1), uint32(1)); got != success {
				t.Errorf("launch after the capture: %d", got)
			}
		})
	}
	s := c.stream(0)
	c.want(c.StreamBeginCapture(c.call, s, 1), success)
	other := wire.NewCall(c.ctx, 2, c.prog)
	if _, res := c.MemAlloc(other, 100); res != success {
		t.Errorf("another thread's allocation during a thread-local capture: %d", res)
	}
	_, res := c.StreamEndCapture(other, s)
	c.want(res, errCaptureWrongThread)
	old, res := c.ThreadExchangeStreamCaptureMode(c.call, wire.CU_STREAM_CAPTURE_MODE_RELAXED)
	c.want(res, success)
	c.alloc(100)
	_, res = c.ThreadExchangeStreamCaptureMode(c.call, old)
	c.want(res, success)
	_, res = c.StreamEndCapture(c.call, s)
	c.want(res, success)
}

func TestChildGraph(t *testing.T) {
	c := newBench(t, 1, 64<<20).connect()
	f := c.kernel(store, "store")
	p := c.alloc(64)
	inner, _ := c.GraphCreate(c.call, 0)
	k := c.kernelNode(inner, nil, f, p, uint64(1), uint32(1))
	outer, _ := c.GraphCreate(c.call, 0)
	n, res := c.GraphAddChildGraphNode(c.call, outer, nil, inner)
	c.want(res, success)
	c.kernelNode(outer, []wire.CUgraphNode{n}, f, p+4, uint64(1), uint32(2))
	kn, _, res := c.GraphKernelNodeGetParams(c.call, k, 1024)
	c.want(res, success)
	c.want(c.GraphKernelNodeSetParams(c.call, k, &kn, c.pack(f, p, uint64(1), uint32(7))), success) // not the copy
	c.want(c.GraphLaunch(c.call, c.instantiate(outer), 0), success)
	c.sync()
	if a, b := c.word(p), c.word(p+4); a != 1 || b != 2 {
		t.Errorf("stored %d %d", a, b)
	}
	typ, res := c.GraphNodeGetType(c.call, n)
	c.want(res, success)
	if typ != wire.CU_GRAPH_NODE_TYPE_GRAPH {
		t.Errorf("type %d", typ)
	}
}
