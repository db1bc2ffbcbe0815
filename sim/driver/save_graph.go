package driver

// node names a node; ok is false for one that is in its graph no more.
func (s *saver) node(n *node) (r nodeRef, ok bool) {
	at, ok := s.places(n.graph)[n]
	if !ok {
		return r, false
	}
	return nodeRef{s.graphs.ref(n.graph), at}, true
}

// places says where in its graph each node is.
func (s *saver) places(g *graph) map[*node]int {
	at, known := s.nodePlaces[g]
	if !known {
		at = make(map[*node]int, len(g.nodes))
		for i, n := range g.nodes {
			at[n] = i
		}
		s.nodePlaces[g] = at
	}
	return at
}

func (s *saver) nodes(list []*node) (out []nodeRef) {
	for _, n := range list {
		if r, ok := s.node(n); ok {
			out = append(out, r)
		}
	}
	return out
}

func (s *saver) graph(g *graph) graphImage {
	r := graphImage{Objects: map[ref]uint32{}}
	if s.p.handles.objects[g.handle] == any(g) {
		r.Handle = g.handle
	}
	places := s.places(g)
	for _, n := range g.nodes {
		ni := nodeImage{Disabled: n.disabled, Op: s.op(n.op)}
		if s.p.handles.objects[n.handle] == any(n) {
			ni.Handle = n.handle
		}
		for _, in := range n.in {
			ni.In = append(ni.In, places[in])
		}
		if n.origin != nil && s.p.handles.objects[n.origin.handle] == any(n.origin) { // nobody can ask for another
			if origin, ok := s.node(n.origin); ok {
				ni.Origin = &origin
			}
		}
		r.Nodes = append(r.Nodes, ni)
	}
	for u, count := range g.objects {
		r.Objects[s.users.ref(u)] = count
	}
	return r
}

func (s *saver) op(o op) (r opImage) {
	switch o := o.(type) {
	case *kernelOp:
		r.Kernel = &kernelImage{Function: s.functions.ref(o.fn), Grid: o.grid, Block: o.block, Shared: o.shared, Params: o.params,
			Cooperative: o.cooperative, Priority: o.priority, Stream: o.stream, Attrs: o.attrs, Kern: o.kern}
	case *box:
		r.Copy = &copyImage{Dst: o.dst.image(), Src: o.src.image(), Width: o.width, Height: o.height, Depth: o.depth,
			Params: o.params, Context: s.contexts.ref(o.ctx)}
	case *fill:
		r.Fill = &fillImage{s.contexts.ref(o.ctx), o.params}
	case *hostFn:
		r.Host = &hostImage{o.params, o.callback, o.stream}
	case *memops:
		r.MemOps = &memopsImage{s.contexts.ref(o.ctx), o.raw, o.flag}
	case *child:
		r.Child = s.graphs.ref(o.graph)
	case *allocNode:
		r.Alloc = s.allocNodes.ref(o)
	case *freeNode:
		r.Free = s.freeNodes.ref(o)
	case record:
		r.Record = s.points.ref(o.point)
	case waitPoint:
		r.Wait = s.points.ref(o.point)
	}
	return r
}

func (s *side) image() sideImage { return sideImage{s.addr, s.pitch, s.slice, s.pageable, s.device} }

func (s *saver) allocNode(o *allocNode) allocNodeImage {
	return allocNodeImage{Dev: o.dev.index, Addr: o.addr, Size: o.size, Props: o.props, Live: o.live(), Uses: o.uses}
}

func (s *saver) freeNode(o *freeNode) freeNodeImage {
	return freeNodeImage{o.addr, s.allocNodes.ref(o.from)}
}

func (s *saver) capture(cp *capture) captureImage {
	r := captureImage{ID: cp.id, Mode: cp.mode, Thread: cp.thread, Invalid: cp.invalid, Over: cp.over, Own: cp.own}
	if cp.over {
		return r
	}
	r.Graph, r.Origin = s.graphs.ref(cp.graph), s.streams.ref(cp.origin)
	for _, st := range cp.streams {
		r.Streams = append(r.Streams, s.streams.ref(st))
	}
	return r
}
