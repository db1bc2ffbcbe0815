package driver

import (
	"slices"
)

func (l *loader) makeGraphs() {
	for _, r := range l.img.Users {
		u := &userObject{ptr: r.Ptr, destroy: r.Destroy, refs: r.Refs}
		u.handle = l.name(kindUser, r.Handle, u)
		l.users = append(l.users, u)
	}
	for _, r := range l.img.AllocNodes {
		l.allocNodes = append(l.allocNodes, l.allocNode(r))
	}
	for _, r := range l.img.FreeNodes {
		l.freeNodes = append(l.freeNodes, &freeNode{p: l.p, addr: r.Addr, from: maybe(l, "allocation node", l.allocNodes, r.From)})
	}
	for _, r := range l.img.Memory {
		o := at(l, "allocation node", l.allocNodes, r)
		l.p.graphMemory[o.addr] = o
	}
	for _, r := range l.img.Graphs {
		g := &graph{p: l.p, objects: map[*userObject]uint32{}}
		if r.Handle != 0 {
			g.handle = l.name(kindGraph, r.Handle, g)
		}
		for _, rn := range r.Nodes {
			n := &node{graph: g, disabled: rn.Disabled}
			if rn.Handle != 0 {
				n.handle = l.name(kindNode, rn.Handle, n)
			}
			g.nodes = append(g.nodes, n)
		}
		l.graphs = append(l.graphs, g)
	}
	for i, r := range l.img.Graphs {
		l.fillGraph(l.graphs[i], r)
	}
	l.checkNesting()
}

func (l *loader) allocNode(r allocNodeImage) *allocNode {
	o := &allocNode{p: l.p, dev: l.device(r.Dev), addr: r.Addr, size: r.Size, props: r.Props, uses: r.Uses}
	l.check(r.Size > 0 && r.Size <= copyMost && r.Addr >= addressFirst && r.Addr < addressLast, "memory of a graph at %#x", r.Addr)
	if r.Live {
		a, ok := l.p.allocs.find(r.Addr)
		l.check(ok && a.base == r.Addr && a.typ == memGraph && a.size == r.Size, "a graph has no memory at %#x", r.Addr)
		o.alloc = a
	}
	return o
}

func (l *loader) fillGraph(g *graph, r graphImage) {
	for i, rn := range r.Nodes {
		n := g.nodes[i]
		n.op = l.op(n, rn.Op)
		for _, in := range rn.In {
			l.check(in >= 0 && in < len(g.nodes) && in != i, "node %d depends on %d", i, in)
			n.in = append(n.in, g.nodes[in])
			g.nodes[in].out = append(g.nodes[in].out, n)
		}
		if rn.Origin != nil {
			n.origin = l.node(*rn.Origin)
		}
	}
	for u, count := range r.Objects {
		o := at(l, "user object", l.users, u)
		l.check(count > 0 && count <= o.refs, "a graph has %d of %d references", count, o.refs)
		g.objects[o] = count
	}
}

func (l *loader) node(r nodeRef) *node {
	g := at(l, "graph", l.graphs, r.Graph)
	l.check(r.Node >= 0 && r.Node < len(g.nodes), "graph %d has no node %d", r.Graph, r.Node)
	return g.nodes[r.Node]
}

func (l *loader) nodes(list []nodeRef) (out []*node) {
	for _, r := range list {
		out = append(out, l.node(r))
	}
	return out
}

// checkNesting fails where a graph is in itself, and where graphs are nested deeper than any program does.
func (l *loader) checkNesting() {
	const deepest = 1000
	for i, g := range l.graphs {
		depth := 0
		for n := g.parent; n != nil; n = n.graph.parent {
			depth++
			l.check(depth <= deepest, "graph %d is in itself", i+1)
		}
	}
}

// op makes the op of a node. What the calls of the API check is checked again.
func (l *loader) op(n *node, r opImage) op {
	switch {
	case r.Kernel != nil:
		return l.kernelOp(r.Kernel)
	case r.Copy != nil:
		return l.copyOp(r.Copy)
	case r.Fill != nil:
		f := &fill{ctx: maybe(l, "context", l.contexts, r.Fill.Context), params: r.Fill.Params}
		l.check(f.sound(), "a memset of %+v", f.params)
		return f
	case r.Host != nil:
		return &hostFn{params: r.Host.Params, callback: r.Host.Callback, stream: r.Host.Stream}
	case r.MemOps != nil:
		m, res := newMemops(maybe(l, "context", l.contexts, r.MemOps.Context), r.MemOps.Raw, r.MemOps.Flag)
		l.check(res == success, "operations on memory")
		return m
	case r.Child != 0:
		g := at(l, "graph", l.graphs, r.Child)
		l.check(g.parent == nil, "graph %d is in two others", r.Child)
		g.parent = n
		return &child{g}
	case r.Alloc != 0:
		return at(l, "allocation node", l.allocNodes, r.Alloc)
	case r.Free != 0:
		return at(l, "free node", l.freeNodes, r.Free)
	case r.Record != 0:
		return record{at(l, "point", l.points, r.Record)}
	case r.Wait != 0:
		return waitPoint{at(l, "point", l.points, r.Wait)}
	}
	return empty{}
}

func (l *loader) kernelOp(r *kernelImage) op {
	o := &kernelOp{fn: at(l, "function", l.functions, r.Function), grid: r.Grid, block: r.Block, shared: r.Shared, params: r.Params,
		cooperative: r.Cooperative, priority: r.Priority, stream: clampPriority(r.Stream), kern: r.Kern, attrs: slices.Clone(r.Attrs)}
	if o.priority != nil {
		*o.priority = int32(clampPriority(int(*o.priority)))
	}
	if o.fn.module.ctx.space == nil {
		return o // it is never launched
	}
	fn := *o.fn
	fn.maxDynamic = sharedOptIn // what it may take now says nothing of when the node was made
	probe := *o
	probe.fn = &fn
	res := probe.check()
	l.check(res == success || o.fn.module.ctx.units == 0, "a launch of %q is refused with %d", fn.kernel.Name, res)
	return o
}

func (l *loader) copyOp(r *copyImage) op {
	b := &box{dst: r.Dst.side(), src: r.Src.side(), width: r.Width, height: r.Height, depth: r.Depth, params: r.Params,
		ctx: maybe(l, "context", l.contexts, r.Context)}
	ok := b.width <= copyMost && b.height <= copyMost && b.depth <= copyMost
	ok = ok && (b.width == 0 || b.height <= copyMost/b.width) && (b.width*b.height == 0 || b.depth <= copyMost/(b.width*b.height))
	l.check(ok, "a copy of %d × %d × %d bytes", b.width, b.height, b.depth)
	return b
}

func (s sideImage) side() side {
	return side{addr: s.Addr, pitch: s.Pitch, slice: s.Slice, pageable: s.Pageable, device: s.Device}
}
