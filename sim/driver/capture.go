package driver

import (
	"slices"

	"github.com/lgpu/lgpu/sim/wire"
)

type captureMode = wire.CUstreamCaptureMode

// capture is a graph that streams are recorded to.
type capture struct {
	id      uint64
	p       *Process
	graph   *graph
	origin  *stream
	mode    captureMode
	thread  uint64
	streams []*stream // origin and those that joined through events
	invalid bool
	over    bool
	own     bool // the graph was made for it, and is dropped with it
}

// begin starts to capture s.
func (s *stream) beginCapture(mode captureMode, thread uint64, g *graph, deps []*node) Result {
	if mode < 0 || mode > wire.CU_STREAM_CAPTURE_MODE_RELAXED {
		return errInvalidValue
	}
	if s == s.ctx.legacy {
		return errCaptureUnsupported
	}
	if s.capture != nil {
		return errIllegalState
	}
	p := s.ctx.p
	cp := &capture{id: p.d.id(), p: p, graph: g, origin: s, mode: mode, thread: thread}
	if g == nil {
		cp.graph, cp.own = p.newGraph(), true
	}
	p.captures = append(p.captures, cp)
	cp.join(s, deps)
	return success
}

// join makes s part of the capture.
func (cp *capture) join(s *stream, deps []*node) {
	s.capture, s.deps = cp, slices.Clone(deps)
	cp.streams = append(cp.streams, s)
}

// leave takes s out of the capture.
func (cp *capture) leave(s *stream) {
	s.capture, s.deps = nil, nil
	cp.streams = slices.DeleteFunc(cp.streams, func(o *stream) bool { return o == s })
}

// invalidate makes the capture one that can only be ended.
func (cp *capture) invalidate() { cp.invalid = true }

// drop ends the capture and its graph, whatever state it is in.
func (cp *capture) drop() {
	cp.finish()
	if cp.own {
		cp.graph.destroy()
	}
}

func (cp *capture) finish() {
	for _, s := range slices.Clone(cp.streams) {
		cp.leave(s)
	}
	cp.over = true
	cp.p.captures = slices.DeleteFunc(cp.p.captures, func(o *capture) bool { return o == cp })
}

// endCapture ends the capture that began on s and returns its graph.
func (s *stream) endCapture(thread uint64) (*graph, Result) {
	cp := s.capture
	switch {
	case cp == nil:
		return nil, errIllegalState
	case cp.origin != s:
		cp.invalidate()
		return nil, errCaptureUnmatched
	case cp.thread != thread && cp.mode != wire.CU_STREAM_CAPTURE_MODE_RELAXED:
		return nil, errCaptureWrongThread
	case cp.invalid:
		cp.drop()
		return nil, errCaptureInvalidated
	}
	joined := ancestors(s.deps)
	for _, o := range cp.streams {
		for _, n := range o.deps {
			if !joined[n] {
				cp.drop()
				return nil, errCaptureUnjoined
			}
		}
	}
	cp.finish()
	return cp.graph, success
}

// capturable says whether an op may be put on s: a broken capture takes none, and the legacy stream takes none while a
// stream that it waits for is captured.
func (s *stream) capturable() Result {
	if s.capture != nil {
		if s.capture.invalid {
			return errCaptureInvalidated
		}
		return success
	}
	if s == s.ctx.legacy {
		implicit := false
		for _, o := range s.ctx.streams {
			if o.blocking() && o.capture != nil {
				o.capture.invalidate()
				implicit = true
			}
		}
		if implicit {
			return errCaptureImplicit
		}
	}
	return success
}

// safe says whether a thread may make a call that is not allowed during a capture; captures that forbid it are broken.
func (p *Process) safe(thread uint64) Result {
	mine := p.modes[thread]
	if mine == wire.CU_STREAM_CAPTURE_MODE_RELAXED {
		return success
	}
	res := success
	for _, cp := range p.captures {
		if cp.mode == wire.CU_STREAM_CAPTURE_MODE_RELAXED || cp.invalid {
			continue
		}
		others := cp.mode == wire.CU_STREAM_CAPTURE_MODE_GLOBAL && mine == wire.CU_STREAM_CAPTURE_MODE_GLOBAL
		if cp.thread == thread || others {
			cp.invalidate()
			res = errCaptureUnsupported
		}
	}
	return res
}

func (c *context) safe(thread uint64) Result { return c.p.safe(thread) }

// quiet says whether the context may be waited for: not while a stream of it is captured.
func (c *context) quiet() Result {
	res := success
	for _, s := range c.streams {
		if s.capture != nil {
			s.capture.invalidate()
			res = errCaptureUnsupported
		}
	}
	return res
}
