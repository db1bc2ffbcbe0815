package driver

import (
	"github.com/lgpu/lgpu/sim/wire"
)

// nodesOf finds nodes of g by their handles.
func (g *graph) nodesOf(hs []wire.CUgraphNode) ([]*node, Result) {
	var out []*node
	for _, h := range hs {
		n := lookup[node](&g.p.handles, uint64(h))
		if n == nil || n.graph != g {
			return nil, errInvalidValue
		}
		out = append(out, n)
	}
	return out, success
}

// handlesOf are the handles of nodes, at most so many.
func handlesOf(nodes []*node, capacity uint64) []wire.CUgraphNode {
	var out []wire.CUgraphNode
	for _, n := range nodes {
		if uint64(len(out)) == capacity {
			break
		}
		out = append(out, wire.CUgraphNode(n.handle))
	}
	return out
}

// plainEdges refuses edges with ports: kernels here end as a whole.
func plainEdges(data []wire.CUgraphEdgeData) Result {
	for _, e := range data {
		if e != (wire.CUgraphEdgeData{}) {
			return errNotSupported
		}
	}
	return success
}

// graph finds a graph and nodes in it.
func (p *Process) graph(h wire.CUgraph, deps []wire.CUgraphNode) (*graph, []*node, Result) {
	g := lookup[graph](&p.handles, uint64(h))
	if g == nil {
		return nil, nil, errInvalidValue
	}
	nodes, res := g.nodesOf(deps)
	return g, nodes, res
}

// GraphCreate is cuGraphCreate.
func (p *Process) GraphCreate(_ *wire.Call, flags uint32) (wire.CUgraph, wire.CUresult) {
	defer p.lock()()
	if flags != 0 {
		return 0, errInvalidValue
	}
	return wire.CUgraph(p.newGraph().handle), success
}

// GraphDestroy is cuGraphDestroy.
func (p *Process) GraphDestroy(_ *wire.Call, h wire.CUgraph) wire.CUresult {
	defer p.lock()()
	g, _, res := p.graph(h, nil)
	if res != success {
		return res
	}
	if g.parent != nil {
		return errInvalidValue
	}
	for _, cp := range p.captures {
		if cp.graph == g {
			return errIllegalState
		}
	}
	g.destroy()
	return success
}

// GraphClone is cuGraphClone.
func (p *Process) GraphClone(_ *wire.Call, h wire.CUgraph) (wire.CUgraph, wire.CUresult) {
	defer p.lock()()
	g, _, res := p.graph(h, nil)
	if res != success {
		return 0, res
	}
	return wire.CUgraph(g.clone(true).handle), success
}

// GraphNodeFindInClone is cuGraphNodeFindInClone.
func (p *Process) GraphNodeFindInClone(_ *wire.Call, h wire.CUgraphNode, hg wire.CUgraph) (wire.CUgraphNode, wire.CUresult) {
	defer p.lock()()
	g, _, res := p.graph(hg, nil)
	if res != success {
		return 0, res
	}
	n := lookup[node](&p.handles, uint64(h))
	if n == nil {
		return 0, errInvalidValue
	}
	t := g.find(n)
	if t == nil {
		return 0, errInvalidValue
	}
	return wire.CUgraphNode(t.handle), success
}

// GraphDestroyNode is cuGraphDestroyNode. Memory nodes cannot go, since others know their address.
func (p *Process) GraphDestroyNode(_ *wire.Call, h wire.CUgraphNode) wire.CUresult {
	defer p.lock()()
	n := lookup[node](&p.handles, uint64(h))
	if n == nil {
		return errInvalidValue
	}
	switch n.op.(type) {
	case *allocNode, *freeNode:
		return errNotSupported
	}
	n.remove()
	return success
}

// GraphNodeGetType is cuGraphNodeGetType.
func (p *Process) GraphNodeGetType(_ *wire.Call, h wire.CUgraphNode) (wire.CUgraphNodeType, wire.CUresult) {
	defer p.lock()()
	n := lookup[node](&p.handles, uint64(h))
	if n == nil {
		return 0, errInvalidValue
	}
	return nodeType(n.op), success
}

// edges finds both ends of edges.
func (p *Process) edges(h wire.CUgraph, from, to []wire.CUgraphNode, data []wire.CUgraphEdgeData) (a, b []*node, res Result) {
	g, a, res := p.graph(h, from)
	if res != success {
		return nil, nil, res
	}
	if b, res = g.nodesOf(to); res != success {
		return nil, nil, res
	}
	if len(a) != len(b) {
		return nil, nil, errInvalidValue
	}
	return a, b, plainEdges(data)
}

// GraphAddDependencies is cuGraphAddDependencies, all or nothing.
func (p *Process) GraphAddDependencies(_ *wire.Call, h wire.CUgraph, from, to []wire.CUgraphNode, data []wire.CUgraphEdgeData) wire.CUresult {
	defer p.lock()()
	a, b, res := p.edges(h, from, to, data)
	if res != success {
		return res
	}
	for i := range a {
		if a[i] == b[i] || !b[i].link(a[i]) {
			for j := range i {
				b[j].unlink(a[j])
			}
			return errInvalidValue
		}
	}
	return success
}

// GraphRemoveDependencies is cuGraphRemoveDependencies, all or nothing.
func (p *Process) GraphRemoveDependencies(_ *wire.Call, h wire.CUgraph, from, to []wire.CUgraphNode, data []wire.CUgraphEdgeData) wire.CUresult {
	defer p.lock()()
	a, b, res := p.edges(h, from, to, data)
	if res != success {
		return res
	}
	for i := range a {
		if !b[i].unlink(a[i]) {
			for j := range i {
				b[j].link(a[j])
			}
			return errInvalidValue
		}
	}
	return success
}

// GraphGetNodes is cuGraphGetNodes.
func (p *Process) GraphGetNodes(_ *wire.Call, h wire.CUgraph, capacity uint64) ([]wire.CUgraphNode, uint64, wire.CUresult) {
	defer p.lock()()
	g, _, res := p.graph(h, nil)
	if res != success {
		return nil, 0, res
	}
	return handlesOf(g.nodes, capacity), uint64(len(g.nodes)), success
}

// GraphGetRootNodes is cuGraphGetRootNodes.
func (p *Process) GraphGetRootNodes(_ *wire.Call, h wire.CUgraph, capacity uint64) ([]wire.CUgraphNode, uint64, wire.CUresult) {
	defer p.lock()()
	g, _, res := p.graph(h, nil)
	if res != success {
		return nil, 0, res
	}
	roots := g.roots()
	return handlesOf(roots, capacity), uint64(len(roots)), success
}

// GraphGetEdges is cuGraphGetEdges.
func (p *Process) GraphGetEdges(_ *wire.Call, h wire.CUgraph, capacity uint64) ([]wire.CUgraphNode, []wire.CUgraphNode, []wire.CUgraphEdgeData, uint64, wire.CUresult) {
	defer p.lock()()
	g, _, res := p.graph(h, nil)
	if res != success {
		return nil, nil, nil, 0, res
	}
	var from, to []*node
	for _, n := range g.nodes {
		for _, d := range n.in {
			from, to = append(from, d), append(to, n)
		}
	}
	a := handlesOf(from, capacity)
	return a, handlesOf(to, capacity), make([]wire.CUgraphEdgeData, len(a)), uint64(len(from)), success
}

// neighbours are the nodes next to one.
func (p *Process) neighbours(h wire.CUgraphNode, capacity uint64, of func(*node) []*node) ([]wire.CUgraphNode, []wire.CUgraphEdgeData, uint64, Result) {
	defer p.lock()()
	n := lookup[node](&p.handles, uint64(h))
	if n == nil {
		return nil, nil, 0, errInvalidValue
	}
	list := of(n)
	hs := handlesOf(list, capacity)
	return hs, make([]wire.CUgraphEdgeData, len(hs)), uint64(len(list)), success
}

// GraphNodeGetDependencies is cuGraphNodeGetDependencies.
func (p *Process) GraphNodeGetDependencies(_ *wire.Call, h wire.CUgraphNode, capacity uint64) ([]wire.CUgraphNode, []wire.CUgraphEdgeData, uint64, wire.CUresult) {
	return p.neighbours(h, capacity, func(n *node) []*node { return n.in })
}

// GraphNodeGetDependentNodes is cuGraphNodeGetDependentNodes.
func (p *Process) GraphNodeGetDependentNodes(_ *wire.Call, h wire.CUgraphNode, capacity uint64) ([]wire.CUgraphNode, []wire.CUgraphEdgeData, uint64, wire.CUresult) {
	return p.neighbours(h, capacity, func(n *node) []*node { return n.out })
}

// GraphInstantiate is cuGraphInstantiateWithParams.
func (p *Process) GraphInstantiate(_ *wire.Call, h wire.CUgraph, flags uint64) (wire.CUgraphExec, wire.CUgraphNode, wire.CUgraphInstantiateResult, wire.CUresult) {
	defer p.lock()()
	g, _, res := p.graph(h, nil)
	if res != success {
		return 0, 0, wire.CUDA_GRAPH_INSTANTIATE_ERROR, res
	}
	x, why, res := g.instantiate(flags)
	if res != success {
		return 0, 0, why, res
	}
	return wire.CUgraphExec(x.handle), 0, why, success
}

// GraphExecGetFlags is cuGraphExecGetFlags.
func (p *Process) GraphExecGetFlags(_ *wire.Call, h wire.CUgraphExec) (uint64, wire.CUresult) {
	defer p.lock()()
	x := lookup[exec](&p.handles, uint64(h))
	if x == nil {
		return 0, errInvalidValue
	}
	return x.flags, success
}

// execAndStream finds what a launch needs.
func (p *Process) execAndStream(call *wire.Call, h wire.CUgraphExec, hs wire.CUstream) (*exec, *stream, Result) {
	s, res := p.stream(uint64(hs), p.currentOf(call), call.Thread)
	if res != success {
		return nil, nil, res
	}
	x := lookup[exec](&p.handles, uint64(h))
	if x == nil {
		return nil, nil, errInvalidValue
	}
	return x, s, success
}

// GraphUpload is cuGraphUpload: there is nothing to upload, the order of the stream is kept.
func (p *Process) GraphUpload(call *wire.Call, h wire.CUgraphExec, hs wire.CUstream) wire.CUresult {
	defer p.lock()()
	_, s, res := p.execAndStream(call, h, hs)
	if res != success {
		return res
	}
	_, res = s.submit(empty{})
	return res
}

// GraphLaunch is cuGraphLaunch.
func (p *Process) GraphLaunch(call *wire.Call, h wire.CUgraphExec, hs wire.CUstream) wire.CUresult {
	defer p.lock()()
	x, s, res := p.execAndStream(call, h, hs)
	if res != success {
		return res
	}
	return x.launch(s)
}

// GraphExecDestroy is cuGraphExecDestroy.
func (p *Process) GraphExecDestroy(_ *wire.Call, h wire.CUgraphExec) wire.CUresult {
	defer p.lock()()
	x := lookup[exec](&p.handles, uint64(h))
	if x == nil {
		return errInvalidValue
	}
	x.destroy()
	return success
}

// GraphExecUpdate is cuGraphExecUpdate.
func (p *Process) GraphExecUpdate(_ *wire.Call, h wire.CUgraphExec, hg wire.CUgraph) (wire.CUgraphExecUpdateResultInfo, wire.CUresult) {
	defer p.lock()()
	x := lookup[exec](&p.handles, uint64(h))
	g, _, res := p.graph(hg, nil)
	if x == nil || res != success {
		return wire.CUgraphExecUpdateResultInfo{Result: wire.CU_GRAPH_EXEC_UPDATE_ERROR}, errInvalidValue
	}
	return x.update(g)
}

// execNode finds the node of an executable graph that stands for one of the program's.
func (p *Process) execNode(h wire.CUgraphExec, hn wire.CUgraphNode) (*node, Result) {
	x := lookup[exec](&p.handles, uint64(h))
	if x == nil {
		return nil, errInvalidValue
	}
	n := x.node(lookup[node](&p.handles, uint64(hn)))
	if n == nil {
		return nil, errInvalidValue
	}
	return n, success
}

// GraphNodeSetEnabled is cuGraphNodeSetEnabled: kernels, copies and sets can be left out.
func (p *Process) GraphNodeSetEnabled(_ *wire.Call, h wire.CUgraphExec, hn wire.CUgraphNode, enabled uint32) wire.CUresult {
	defer p.lock()()
	n, res := p.execNode(h, hn)
	if res != success {
		return res
	}
	switch n.op.(type) {
	case *kernelOp, *box, *fill:
		n.disabled = enabled == 0
		return success
	}
	return errInvalidValue
}

// GraphNodeGetEnabled is cuGraphNodeGetEnabled.
func (p *Process) GraphNodeGetEnabled(_ *wire.Call, h wire.CUgraphExec, hn wire.CUgraphNode) (uint32, wire.CUresult) {
	defer p.lock()()
	n, res := p.execNode(h, hn)
	if res != success || n.disabled {
		return 0, res
	}
	return 1, success
}

// UserObjectCreate is cuUserObjectCreate.
func (p *Process) UserObjectCreate(_ *wire.Call, ptr, destroy wire.HostAddr, refs, flags uint32) (wire.CUuserObject, wire.CUresult) {
	defer p.lock()()
	if destroy == 0 || refs == 0 || refs > 1<<31-1 || flags != 1 {
		return 0, errInvalidValue
	}
	u := &userObject{ptr: ptr, destroy: destroy, refs: refs}
	u.handle = p.handles.add(kindUser, u)
	return wire.CUuserObject(u.handle), success
}

// userObject finds an object and checks a count of references to take or give.
func (p *Process) userObject(h wire.CUuserObject, count uint32) (*userObject, Result) {
	u := lookup[userObject](&p.handles, uint64(h))
	if u == nil || count == 0 || count > 1<<31-1 {
		return nil, errInvalidValue
	}
	return u, success
}

// UserObjectRetain is cuUserObjectRetain.
func (p *Process) UserObjectRetain(_ *wire.Call, h wire.CUuserObject, count uint32) wire.CUresult {
	defer p.lock()()
	u, res := p.userObject(h, count)
	if res == success {
		u.refs += count
	}
	return res
}

// UserObjectRelease is cuUserObjectRelease.
func (p *Process) UserObjectRelease(_ *wire.Call, h wire.CUuserObject, count uint32) wire.CUresult {
	defer p.lock()()
	u, res := p.userObject(h, count)
	if res != success {
		return res
	}
	if count > u.refs {
		return errInvalidValue
	}
	p.put(u, count)
	return success
}

// graphObject finds a graph, and a user object of which count references are moved.
func (p *Process) graphObject(h wire.CUgraph, hu wire.CUuserObject, count uint32) (*graph, *userObject, Result) {
	g, _, res := p.graph(h, nil)
	if res != success {
		return nil, nil, res
	}
	u, res := p.userObject(hu, count)
	return g, u, res
}

// GraphRetainUserObject is cuGraphRetainUserObject; flag 1 moves references from the caller to the graph.
func (p *Process) GraphRetainUserObject(_ *wire.Call, h wire.CUgraph, hu wire.CUuserObject, count, flags uint32) wire.CUresult {
	defer p.lock()()
	g, u, res := p.graphObject(h, hu, count)
	if res != success {
		return res
	}
	if flags&^1 != 0 {
		return errInvalidValue
	}
	if flags == 0 {
		u.refs += count
	}
	g.objects[u] += count
	return success
}

// GraphReleaseUserObject is cuGraphReleaseUserObject.
func (p *Process) GraphReleaseUserObject(_ *wire.Call, h wire.CUgraph, hu wire.CUuserObject, count uint32) wire.CUresult {
	defer p.lock()()
	g, u, res := p.graphObject(h, hu, count)
	if res != success {
		return res
	}
	if g.objects[u] < count {
		return errInvalidValue
	}
	if g.objects[u] -= count; g.objects[u] == 0 {
		delete(g.objects, u)
	}
	p.put(u, count)
	return success
}
