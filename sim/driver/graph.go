package driver

import (
	"slices"

	"github.com/lgpu/lgpu/sim/hw"
	"github.com/lgpu/lgpu/sim/wire"
)

// graph is ops with edges.
type graph struct {
	handle  uint64 // 0 for one that programs do not see
	p       *Process
	nodes   []*node // in the order in which they were added
	parent  *node   // of a child graph
	objects map[*userObject]uint32
}

// node is an op of a graph. An op is never changed once it is in a graph, only replaced, since clones share it.
type node struct {
	handle   uint64
	graph    *graph
	op       op
	in, out  []*node
	disabled bool
	origin   *node // the node that this one is a clone of
}

// setOp makes o what the node does, unless making it has failed.
func (n *node) setOp(o op, res Result) Result {
	if res == success {
		n.op = o
	}
	return res
}

// child is the op of a child graph's node.
type child struct{ graph *graph }

func (o *child) begin(d *Driver, w *work, at hw.Time) { d.end(w, at) }

// allocNode is the op of a memory allocation node. Its address is fixed; the memory is there from a launch until it is
// freed.
type allocNode struct {
	p     *Process
	dev   *device
	addr  uint64
	size  uint64
	props wire.CUmemPoolProps
	alloc *allocation // of the present launches
	uses  int         // launches that have not freed it yet
}

func (o *allocNode) begin(d *Driver, w *work, at hw.Time) { d.end(w, at) }

// live reports whether the memory is there.
func (o *allocNode) live() bool {
	a, ok := o.p.allocs.find(o.addr)
	return ok && a == o.alloc
}

// materialise takes the memory, if it is not there.
func (o *allocNode) materialise() Result {
	if o.live() {
		return success
	}
	phys, res := o.p.newPhysical(o.dev, o.size)
	if res != success {
		return res
	}
	rights := make([]access, len(o.p.d.devices))
	rights[o.dev.index] = accessWrite
	a := &allocation{typ: memGraph, base: o.addr, size: o.size, dev: o.dev, phys: phys, id: o.p.d.id(),
		region: &region{base: o.addr, size: phys.frames.Size(), store: phys.frames, access: rights}}
	if res := o.p.expose(a.region); res != success {
		phys.release()
		return res
	}
	o.p.allocs.add(a.base, a.size, a)
	o.alloc, o.uses = a, 0
	return success
}

// freeNode is the op of a memory free node.
type freeNode struct {
	p    *Process
	addr uint64
	from *allocNode // nil where the memory is not a graph's
}

func (o *freeNode) begin(d *Driver, w *work, at hw.Time) {
	if o.from != nil {
		if o.from.uses--; o.from.uses <= 0 && o.from.live() {
			o.p.drop(o.from.alloc)
		}
	} else if a, ok := o.p.allocs.find(o.addr); ok && a.base == o.addr {
		o.p.drop(a)
	}
	d.end(w, at)
}

func (p *Process) newGraph() *graph {
	g := &graph{p: p, objects: map[*userObject]uint32{}}
	g.handle = p.handles.add(kindGraph, g)
	return g
}

// add puts an op into the graph, after deps.
func (g *graph) add(o op, deps []*node) *node {
	n := &node{graph: g, op: o}
	if g.handle != 0 {
		n.handle = g.p.handles.add(kindNode, n)
	}
	if ch, ok := o.(*child); ok {
		ch.graph.parent = n
	}
	g.nodes = append(g.nodes, n)
	for _, d := range deps {
		n.link(d)
	}
	return n
}

// link adds an edge from d to n, if it is not there.
func (n *node) link(d *node) bool {
	if slices.Contains(n.in, d) {
		return false
	}
	n.in = append(n.in, d)
	d.out = append(d.out, n)
	return true
}

// unlink removes an edge.
func (n *node) unlink(d *node) bool {
	i := slices.Index(n.in, d)
	if i < 0 {
		return false
	}
	n.in = slices.Delete(n.in, i, i+1)
	d.out = slices.DeleteFunc(d.out, func(o *node) bool { return o == n })
	return true
}

// remove takes a node out of its graph.
func (n *node) remove() {
	for _, d := range slices.Clone(n.in) {
		n.unlink(d)
	}
	for _, o := range slices.Clone(n.out) {
		o.unlink(n)
	}
	g := n.graph
	g.nodes = slices.DeleteFunc(g.nodes, func(o *node) bool { return o == n })
	n.forget()
}

// forget drops what programs see of a node.
func (n *node) forget() {
	n.graph.p.handles.remove(n.handle)
	if ch, ok := n.op.(*child); ok {
		ch.graph.destroy()
	}
}

// destroy drops the graph and its nodes' handles.
func (g *graph) destroy() {
	for _, n := range g.nodes {
		n.forget()
	}
	g.p.handles.remove(g.handle)
	for u, count := range g.objects {
		g.p.put(u, count)
	}
	g.objects = nil
}

// clone copies a graph with its child graphs. visible gives the copy handles.
func (g *graph) clone(visible bool) *graph {
	c := &graph{p: g.p, objects: map[*userObject]uint32{}}
	if visible {
		c.handle = g.p.handles.add(kindGraph, c)
	}
	for u, count := range g.objects {
		u.refs += count
		c.objects[u] = count
	}
	twin := make(map[*node]*node, len(g.nodes))
	for _, n := range g.nodes {
		o := n.op
		if ch, ok := o.(*child); ok {
			o = &child{ch.graph.clone(visible)}
		}
		t := c.add(o, nil)
		t.disabled, t.origin = n.disabled, n
		twin[n] = t
	}
	for _, n := range g.nodes {
		for _, d := range n.in {
			twin[n].link(twin[d])
		}
	}
	return c
}

// find is the node of a clone that stands for n, in child graphs too.
func (g *graph) find(n *node) *node {
	for _, t := range g.nodes {
		if t.origin == n {
			return t
		}
		if ch, ok := t.op.(*child); ok {
			if f := ch.graph.find(n); f != nil {
				return f
			}
		}
	}
	return nil
}

// order is the nodes so that each follows those it depends on; ok is false when there is a cycle.
func (g *graph) order() (sorted []*node, ok bool) {
	missing := make(map[*node]int, len(g.nodes))
	for _, n := range g.nodes {
		missing[n] = len(n.in)
		if len(n.in) == 0 {
			sorted = append(sorted, n)
		}
	}
	for i := 0; i < len(sorted); i++ {
		for _, o := range sorted[i].out {
			if missing[o]--; missing[o] == 0 {
				sorted = append(sorted, o)
			}
		}
	}
	return sorted, len(sorted) == len(g.nodes)
}

// walk calls f for all nodes, those of child graphs too.
func (g *graph) walk(f func(*node)) {
	for _, n := range g.nodes {
		f(n)
		if ch, ok := n.op.(*child); ok {
			ch.graph.walk(f)
		}
	}
}

// roots are the nodes that depend on none.
func (g *graph) roots() []*node {
	var out []*node
	for _, n := range g.nodes {
		if len(n.in) == 0 {
			out = append(out, n)
		}
	}
	return out
}

// ancestors are the nodes and all they depend on.
func ancestors(of []*node) map[*node]bool {
	seen := map[*node]bool{}
	for stack := slices.Clone(of); len(stack) > 0; {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if !seen[n] {
			seen[n] = true
			stack = append(stack, n.in...)
		}
	}
	return seen
}

// union is a and what of b is not in it.
func union(a, b []*node) []*node {
	out := slices.Clone(a)
	for _, n := range b {
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// nodeType is how the API calls a node's op.
func nodeType(o op) wire.CUgraphNodeType {
	switch o.(type) {
	case *kernelOp:
		return wire.CU_GRAPH_NODE_TYPE_KERNEL
	case *box:
		return wire.CU_GRAPH_NODE_TYPE_MEMCPY
	case *fill:
		return wire.CU_GRAPH_NODE_TYPE_MEMSET
	case *hostFn:
		return wire.CU_GRAPH_NODE_TYPE_HOST
	case *child:
		return wire.CU_GRAPH_NODE_TYPE_GRAPH
	case waitPoint:
		return wire.CU_GRAPH_NODE_TYPE_WAIT_EVENT
	case record:
		return wire.CU_GRAPH_NODE_TYPE_EVENT_RECORD
	case *allocNode:
		return wire.CU_GRAPH_NODE_TYPE_MEM_ALLOC
	case *freeNode:
		return wire.CU_GRAPH_NODE_TYPE_MEM_FREE
	case *memops:
		return wire.CU_GRAPH_NODE_TYPE_BATCH_MEM_OP
	}
	return wire.CU_GRAPH_NODE_TYPE_EMPTY
}
