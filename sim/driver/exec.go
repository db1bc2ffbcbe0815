package driver

import (
	"reflect"
	"slices"

	"github.com/lgpu/lgpu/sim/wire"
)

// exec is an executable graph: a private clone, so that the graph it came from may change.
type exec struct {
	handle uint64
	p      *Process
	graph  *graph
	flags  uint64
	last   *work // the end of its last launch; launches follow one another
}

// instantiate makes an executable graph.
func (g *graph) instantiate(flags uint64) (*exec, wire.CUgraphInstantiateResult, Result) {
	const known = uint64(wire.CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | wire.CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
		wire.CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | wire.CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)
	if flags&^known != 0 {
		return nil, wire.CUDA_GRAPH_INSTANTIATE_ERROR, errInvalidValue
	}
	if flags&uint64(wire.CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0 {
		return nil, wire.CUDA_GRAPH_INSTANTIATE_ERROR, errNotSupported
	}
	cyclic := false
	var check func(*graph)
	check = func(g *graph) {
		if _, ok := g.order(); !ok {
			cyclic = true
		}
		for _, n := range g.nodes {
			if ch, ok := n.op.(*child); ok {
				check(ch.graph)
			}
		}
	}
	if check(g); cyclic {
		return nil, wire.CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE, errInvalidValue
	}
	x := &exec{p: g.p, graph: g.clone(false), flags: flags}
	x.handle = g.p.handles.add(kindExec, x)
	return x, wire.CUDA_GRAPH_INSTANTIATE_SUCCESS, success
}

// destroy drops the executable graph; a launch that runs goes on.
func (x *exec) destroy() {
	x.p.handles.remove(x.handle)
	x.graph.destroy()
}

// context is where an op of a graph runs: its own context, or that of the stream that the graph is launched on.
func contextOf(o op, launched *context) *context {
	switch o := o.(type) {
	case *kernelOp:
		return o.fn.module.ctx
	case *box:
		if o.ctx != nil {
			return o.ctx
		}
	case *fill:
		if o.ctx != nil {
			return o.ctx
		}
	case *memops:
		if o.ctx != nil {
			return o.ctx
		}
	}
	return launched
}

// launch puts all of the graph on a stream.
func (x *exec) launch(s *stream) Result {
	if res := s.capturable(); res != success {
		return res
	}
	if s.capture != nil {
		s.deps = []*node{s.capture.graph.add(&child{x.graph.clone(true)}, s.deps)}
		return success
	}
	res := success
	x.graph.walk(func(n *node) {
		c := contextOf(n.op, s.ctx)
		if c.fault != success && res == success {
			res = c.fault
		}
		if o, ok := n.op.(*kernelOp); ok && res == success {
			if c.units == 0 {
				res = errLaunchOutOfResources
			} else {
				res = c.deepen(o.fn)
			}
		}
	})
	if res == success {
		res = s.admit()
	}
	if res == success {
		res = x.allocate()
	}
	if res != success {
		return res
	}
	d := s.ctx.p.d
	start := s.next(empty{})
	start.after(x.last)
	end := s.expand(x.graph, start)
	s.tail, x.last = end, end
	d.arm(start)
	return success
}

// allocate takes the memory of the graph's allocation nodes, all or nothing.
func (x *exec) allocate() Result {
	freed := map[*allocNode]bool{}
	var nodes []*allocNode
	x.graph.walk(func(n *node) {
		switch o := n.op.(type) {
		case *freeNode:
			freed[o.from] = true
		case *allocNode:
			if !n.disabled {
				nodes = append(nodes, o)
			}
		}
	})
	auto := x.flags&uint64(wire.CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0
	var fresh []*allocNode
	for _, o := range nodes {
		res := success
		switch {
		case !o.live():
			if res = o.materialise(); res == success {
				fresh = append(fresh, o)
			}
		case !freed[o] && !auto:
			res = errInvalidValue // the memory of the last launch has not been freed
		}
		if res != success {
			for _, f := range fresh {
				x.p.drop(f.alloc)
			}
			return res
		}
	}
	for _, o := range nodes {
		o.uses++
	}
	return success
}

// expand makes works of a graph's nodes, after start, and returns the one that ends it all.
func (s *stream) expand(g *graph, start *work) *work {
	d := s.ctx.p.d
	sorted, _ := g.order()
	works := make(map[*node]*work, len(sorted))
	end := s.ctx.newWork(empty{})
	end.after(start)
	for _, n := range sorted {
		o := n.op
		if n.disabled {
			o = empty{}
		}
		c := contextOf(o, s.ctx)
		ch, nested := o.(*child)
		if nested {
			o = empty{}
		}
		w := c.newWork(o)
		w.after(start)
		for _, in := range n.in {
			w.after(works[in])
		}
		switch o := o.(type) {
		case waitPoint:
			w.after(o.point.work)
		case record:
			o.point.work, o.point.recorded = w, true
		}
		works[n] = w
		if nested {
			works[n] = s.expand(ch.graph, w)
		}
		if len(n.out) == 0 {
			end.after(works[n])
		}
		d.arm(w)
	}
	d.arm(end)
	return end
}

// node finds the node of the executable graph that stands for one of the graph it came from.
func (x *exec) node(n *node) *node {
	if n == nil {
		return nil
	}
	return x.graph.find(n)
}

// update takes over the parameters of a graph of the same shape.
func (x *exec) update(g *graph) (wire.CUgraphExecUpdateResultInfo, Result) {
	pairs, info := match(x.graph, g, nil)
	if info.Result != wire.CU_GRAPH_EXEC_UPDATE_SUCCESS {
		return info, errGraphExecUpdate
	}
	for _, pr := range pairs {
		pr[0].op = pr[1].op
	}
	return info, success
}

// match pairs the nodes of two graphs in the order in which they were added.
func match(old, new *graph, pairs [][2]*node) ([][2]*node, wire.CUgraphExecUpdateResultInfo) {
	fail := func(r wire.CUgraphExecUpdateResult, n *node) ([][2]*node, wire.CUgraphExecUpdateResultInfo) {
		info := wire.CUgraphExecUpdateResultInfo{Result: r}
		if n != nil {
			info.ErrorNode = wire.CUgraphNode(n.handle)
		}
		return nil, info
	}
	if len(old.nodes) != len(new.nodes) {
		return fail(wire.CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, nil)
	}
	for i, a := range old.nodes {
		b := new.nodes[i]
		if reflect.TypeOf(a.op) != reflect.TypeOf(b.op) {
			return fail(wire.CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, b)
		}
		if len(a.in) != len(b.in) {
			return fail(wire.CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, b)
		}
		for _, in := range a.in {
			j := slices.Index(old.nodes, in)
			if !slices.Contains(b.in, new.nodes[j]) {
				return fail(wire.CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, b)
			}
		}
		switch o := a.op.(type) {
		case *child:
			var info wire.CUgraphExecUpdateResultInfo
			if pairs, info = match(o.graph, b.op.(*child).graph, pairs); info.Result != wire.CU_GRAPH_EXEC_UPDATE_SUCCESS {
				return nil, info
			}
			continue
		case *kernelOp:
			if o.fn.module.ctx != b.op.(*kernelOp).fn.module.ctx {
				return fail(wire.CU_GRAPH_EXEC_UPDATE_ERROR_FUNCTION_CHANGED, b)
			}
		case *allocNode, *freeNode:
			if a.op != b.op {
				return fail(wire.CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED, b)
			}
			continue
		}
		pairs = append(pairs, [2]*node{a, b})
	}
	return pairs, wire.CUgraphExecUpdateResultInfo{Result: wire.CU_GRAPH_EXEC_UPDATE_SUCCESS}
}
