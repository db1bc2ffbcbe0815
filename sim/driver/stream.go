package driver

import (
	"slices"

	"github.com/lgpu/lgpu/sim/hw"
	"github.com/lgpu/lgpu/sim/wire"
)

// Stream handles with a meaning of their own; see the protocol.
const (
	streamDefault   = 0 // the client sends 2 instead for per-thread calls
	streamLegacy    = 1
	streamPerThread = 2
)

// From cuda.h: CUstream_flags.
const streamNonBlocking = 1

// stream is a chain of works.
type stream struct {
	handle, id uint64
	ctx        *context
	flags      uint32
	priority   int // as CUDA counts: lower is more urgent
	tail       *work
	attrs      [4]wire.CUstreamAttrValue // kept for the program, without effect

	capture *capture
	deps    []*node // of the next captured node
}

func (c *context) newStream(flags uint32, priority int) *stream {
	s := &stream{id: c.p.d.id(), ctx: c, flags: flags, priority: priority}
	c.streams = append(c.streams, s)
	return s
}

// blocking reports whether s and the legacy stream wait for each other.
func (s *stream) blocking() bool { return s.flags&streamNonBlocking == 0 && s != s.ctx.legacy }

// stream finds the stream behind a handle. cur is the caller's context, thread the caller.
func (p *Process) stream(h uint64, cur *context, thread uint64) (*stream, Result) {
	switch h {
	case streamDefault, streamLegacy, streamPerThread:
		if cur == nil {
			return nil, errInvalidContext
		}
		if cur.fault != success {
			return nil, cur.fault
		}
		if h != streamPerThread {
			return cur.legacy, success
		}
		s := cur.threads[thread]
		if s == nil {
			s = cur.newStream(0, 0)
			cur.threads[thread] = s
		}
		return s, success
	}
	s := lookup[stream](&p.handles, h)
	if s == nil {
		return nil, errInvalidHandle
	}
	if s.ctx.fault != success {
		return nil, s.ctx.fault
	}
	return s, success
}

// submit puts an op on a stream, or into the graph that the stream is captured to.
func (s *stream) submit(o op) (*work, Result) {
	if res := s.capturable(); res != success {
		return nil, res
	}
	if s.capture != nil {
		s.deps = []*node{s.capture.graph.add(o, s.deps)}
		return nil, success
	}
	if res := s.admit(); res != success {
		return nil, res
	}
	w := s.next(o)
	s.ctx.p.d.arm(w)
	return w, success
}

// admit waits until the context may take more work.
func (s *stream) admit() Result {
	s.ctx.waitRoom()
	return s.ctx.fault
}

// next makes the work that follows everything before it in the order of the stream. The caller arms it.
func (s *stream) next(o op) *work {
	w := s.ctx.newWork(o)
	for _, last := range s.ends() {
		w.after(last)
	}
	s.tail = w
	return w
}

// ends are the works that the next one of s waits for; nil is one that has ended.
func (s *stream) ends() []*work {
	c := s.ctx
	all := []*work{s.tail}
	switch {
	case s == c.legacy:
		for _, o := range c.streams {
			if o.blocking() {
				all = append(all, o.tail)
			}
		}
	case s.blocking():
		all = append(all, c.legacy.tail)
	}
	return all
}

// follows reports whether the next work of s comes after w by the works there are.
func (s *stream) follows(w *work) bool {
	ends := s.ends()
	seen := map[*work]bool{}
	for next := []*work{w}; len(next) > 0; {
		w, next = next[len(next)-1], next[:len(next)-1]
		if slices.Contains(ends, w) {
			return true
		}
		for _, n := range w.waiters {
			if !seen[n] {
				seen[n] = true
				next = append(next, n)
			}
		}
	}
	return false
}

// idle reports whether all works of the stream have ended.
func (s *stream) idle() bool {
	if !s.tail.ended() {
		return false
	}
	if s != s.ctx.legacy {
		return true
	}
	for _, o := range s.ctx.streams {
		if o.blocking() && !o.tail.ended() {
			return false
		}
	}
	return true
}

// synchronize waits for the works submitted so far.
func (s *stream) synchronize() Result {
	c := s.ctx
	if s.capture != nil {
		s.capture.invalidate()
		return errCaptureUnsupported
	}
	if res := s.capturable(); res != success {
		return res
	}
	c.p.d.drain()
	tails := []*work{s.tail}
	if s == c.legacy {
		for _, o := range c.streams {
			if o.blocking() {
				tails = append(tails, o.tail)
			}
		}
	}
	for _, w := range tails {
		c.p.wait(w)
	}
	if c.fault == success {
		c.p.settle(c.dev)
	}
	return c.fault
}

// close ends a stream: what was submitted still runs, the handle is gone at once.
func (s *stream) close() {
	c := s.ctx
	c.p.handles.remove(s.handle)
	if s.capture != nil {
		s.capture.invalidate()
		s.capture.leave(s)
	}
	if s.blocking() && s.tail != nil && !s.tail.done {
		// The legacy stream must still wait for it.
		w := c.newWork(empty{})
		w.after(c.legacy.tail)
		w.after(s.tail)
		c.legacy.tail = w
		c.p.d.arm(w)
	}
	c.streams = slices.DeleteFunc(c.streams, func(o *stream) bool { return o == s })
}

// Range of stream priorities, as the device has them: least and greatest.
const (
	priorityLeast    = 0
	priorityGreatest = -5
)

func clampPriority(v int) int { return min(max(v, priorityGreatest), priorityLeast) }

// elapsed is the time from a to b in milliseconds.
func elapsed(a, b hw.Time) float32 { return float32(float64(b-a) / 1e6) }
