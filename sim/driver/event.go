package driver

import "github.com/lgpu/lgpu/sim/hw"

// From cuda.h: CUevent_flags, CUevent_record_flags.
const (
	eventBlockingSync  = 1
	eventDisableTiming = 2
	eventInterprocess  = 4

	recordExternal = 1
)

// event marks a point in a stream. Several processes may have handles of one that is made for it.
type event struct {
	handle   uint64
	ctx      *context
	flags    uint32
	point    *point  // shared by processes
	exported *secret // nil for one that is not
	foreign  bool    // point is another process's too

	capture *capture // last recorded in a captured stream
	deps    []*node
}

// point is what an event last recorded.
type point struct {
	work     *work
	recorded bool
}

// record is the op that an event waits for.
type record struct{ point *point }

func (o record) begin(d *Driver, w *work, at hw.Time) {
	o.point.work, o.point.recorded = w, true
	d.end(w, at)
}

// record marks the present end of s.
func (e *event) record(s *stream, flags uint32) Result {
	if s.ctx != e.ctx {
		return errInvalidHandle
	}
	if res := s.capturable(); res != success {
		return res
	}
	if s.capture != nil {
		if flags&recordExternal != 0 {
			s.deps = []*node{s.capture.graph.add(record{e.point}, s.deps)}
			return success
		}
		e.capture, e.deps = s.capture, append([]*node(nil), s.deps...)
		return success
	}
	if flags&recordExternal != 0 {
		return errInvalidValue
	}
	if res := s.admit(); res != success {
		return res
	}
	w := s.next(record{e.point})
	// From now on the event means this point, even while it has not been reached.
	e.point.work, e.point.recorded = w, true
	e.capture, e.deps = nil, nil
	s.ctx.p.d.arm(w)
	return success
}

// waitPoint is the op of an event wait node: what the event means is looked up when the graph is launched.
type waitPoint struct{ point *point }

func (o waitPoint) begin(d *Driver, w *work, at hw.Time) { d.end(w, at) }

// await makes s wait for what e marks.
func (s *stream) await(e *event, external bool) Result {
	if res := s.capturable(); res != success {
		return res
	}
	switch {
	case external && s.capture != nil:
		s.deps = []*node{s.capture.graph.add(waitPoint{e.point}, s.deps)}
		return success
	case external:
		return errInvalidValue
	case e.capture != nil && e.capture.over:
		return errCaptureIsolation
	case e.capture != nil && s.capture == nil:
		if s == s.ctx.legacy {
			e.capture.invalidate()
			return errCaptureImplicit
		}
		e.capture.join(s, e.deps)
		return success
	case e.capture != nil && s.capture == e.capture:
		s.deps = union(s.deps, e.deps)
		return success
	case e.capture != nil:
		s.capture.invalidate()
		e.capture.invalidate()
		return errCaptureMerge
	case s.capture != nil:
		s.capture.invalidate()
		return errCaptureIsolation
	}
	if e.point.work.ended() {
		return success
	}
	if res := s.admit(); res != success {
		return res
	}
	w := s.next(empty{})
	w.after(e.point.work)
	s.ctx.p.d.arm(w)
	return success
}

// query says whether the event has been reached.
func (e *event) query() Result {
	switch {
	case e.capture != nil && !e.capture.over:
		e.capture.invalidate()
		return errCapturedEvent
	case e.ctx.fault != success:
		return e.ctx.fault
	case !e.point.work.ended():
		return errNotReady
	}
	return success
}

// synchronize waits until the event has been reached.
func (e *event) synchronize() Result {
	if e.capture != nil && !e.capture.over {
		e.capture.invalidate()
		return errCapturedEvent
	}
	if e.ctx.fault == success {
		e.ctx.p.wait(e.point.work)
	}
	if e.ctx.fault == success {
		e.ctx.p.settle(e.ctx.dev)
	}
	return e.ctx.fault
}

// since is the time between two events, in milliseconds.
func (e *event) since(from *event) (float32, Result) {
	if e.ctx.dev != from.ctx.dev || (e.flags|from.flags)&eventDisableTiming != 0 {
		return 0, errInvalidHandle
	}
	if e.ctx.fault != success {
		return 0, e.ctx.fault
	}
	if !e.point.recorded || !from.point.recorded {
		return 0, errInvalidHandle
	}
	if !e.point.work.ended() || !from.point.work.ended() {
		return 0, errNotReady
	}
	return elapsed(from.point.work.at, e.point.work.at), success
}
