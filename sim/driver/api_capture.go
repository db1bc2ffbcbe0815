package driver

import (
	"slices"

	"github.com/lgpu/lgpu/sim/wire"
)

// captureSet is the flag of cuStreamUpdateCaptureDependencies to replace rather than add, from cuda.h.
const captureSet = 1

// captureStream finds the stream of a capture call; a dead context does not matter to queries.
func (p *Process) captureStream(call *wire.Call, h wire.CUstream) (*stream, Result) {
	return p.stream(uint64(h), p.currentOf(call), call.Thread)
}

// StreamBeginCapture is cuStreamBeginCapture.
func (p *Process) StreamBeginCapture(call *wire.Call, h wire.CUstream, mode wire.CUstreamCaptureMode) wire.CUresult {
	defer p.lock()()
	s, res := p.captureStream(call, h)
	if res != success {
		return res
	}
	return s.beginCapture(mode, call.Thread, nil, nil)
}

// StreamBeginCaptureToGraph is cuStreamBeginCaptureToGraph.
func (p *Process) StreamBeginCaptureToGraph(call *wire.Call, h wire.CUstream, hg wire.CUgraph, deps []wire.CUgraphNode, data []wire.CUgraphEdgeData, mode wire.CUstreamCaptureMode) wire.CUresult {
	defer p.lock()()
	s, res := p.captureStream(call, h)
	if res != success {
		return res
	}
	g := lookup[graph](&p.handles, uint64(hg))
	if g == nil {
		return errInvalidValue
	}
	if res := plainEdges(data); res != success {
		return res
	}
	nodes, res := g.nodesOf(deps)
	if res != success {
		return res
	}
	return s.beginCapture(mode, call.Thread, g, nodes)
}

// StreamEndCapture is cuStreamEndCapture.
func (p *Process) StreamEndCapture(call *wire.Call, h wire.CUstream) (wire.CUgraph, wire.CUresult) {
	defer p.lock()()
	s, res := p.captureStream(call, h)
	if res != success {
		return 0, res
	}
	g, res := s.endCapture(call.Thread)
	if res != success {
		return 0, res
	}
	return wire.CUgraph(g.handle), success
}

// status is how far the capture of a stream is.
func (s *stream) status() wire.CUstreamCaptureStatus {
	switch {
	case s.capture == nil:
		return wire.CU_STREAM_CAPTURE_STATUS_NONE
	case s.capture.invalid:
		return wire.CU_STREAM_CAPTURE_STATUS_INVALIDATED
	}
	return wire.CU_STREAM_CAPTURE_STATUS_ACTIVE
}

// StreamIsCapturing is cuStreamIsCapturing.
func (p *Process) StreamIsCapturing(call *wire.Call, h wire.CUstream) (wire.CUstreamCaptureStatus, wire.CUresult) {
	defer p.lock()()
	s, res := p.captureStream(call, h)
	if res != success {
		return 0, res
	}
	if res := s.capturable(); res == errCaptureImplicit {
		return 0, res
	}
	return s.status(), success
}

// StreamGetCaptureInfo is cuStreamGetCaptureInfo.
func (p *Process) StreamGetCaptureInfo(call *wire.Call, h wire.CUstream, capacity uint32) (wire.CUstreamCaptureStatus, uint64, wire.CUgraph, []wire.CUgraphNode, []wire.CUgraphEdgeData, uint64, wire.CUresult) {
	defer p.lock()()
	s, res := p.captureStream(call, h)
	if res == success {
		if r := s.capturable(); r == errCaptureImplicit {
			res = r
		}
	}
	if res != success {
		return 0, 0, 0, nil, nil, 0, res
	}
	st := s.status()
	if st != wire.CU_STREAM_CAPTURE_STATUS_ACTIVE {
		return st, 0, 0, nil, nil, 0, success
	}
	nodes := handlesOf(s.deps, uint64(capacity))
	return st, s.capture.id, wire.CUgraph(s.capture.graph.handle), nodes, make([]wire.CUgraphEdgeData, len(nodes)), uint64(len(s.deps)), success
}

// StreamUpdateCaptureDependencies is cuStreamUpdateCaptureDependencies.
func (p *Process) StreamUpdateCaptureDependencies(call *wire.Call, h wire.CUstream, deps []wire.CUgraphNode, data []wire.CUgraphEdgeData, flags uint32) wire.CUresult {
	defer p.lock()()
	s, res := p.captureStream(call, h)
	if res != success {
		return res
	}
	if s.capture == nil {
		return errIllegalState
	}
	if s.capture.invalid {
		return errCaptureInvalidated
	}
	if flags > captureSet {
		return errInvalidValue
	}
	if res := plainEdges(data); res != success {
		return res
	}
	nodes, res := s.capture.graph.nodesOf(deps)
	if res != success {
		return res
	}
	if flags == captureSet {
		s.deps = slices.Clone(nodes)
	} else {
		s.deps = union(s.deps, nodes)
	}
	return success
}

// ThreadExchangeStreamCaptureMode is cuThreadExchangeStreamCaptureMode.
func (p *Process) ThreadExchangeStreamCaptureMode(call *wire.Call, mode wire.CUstreamCaptureMode) (wire.CUstreamCaptureMode, wire.CUresult) {
	defer p.lock()()
	if mode < 0 || mode > wire.CU_STREAM_CAPTURE_MODE_RELAXED {
		return 0, errInvalidValue
	}
	old := p.modes[call.Thread]
	p.modes[call.Thread] = mode
	return old, success
}
