package bootstrap

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// connection is a PE's connection, seen from the root.
type connection struct {
	*link
	rank    int
	beats   time.Duration // how often this PE wants to hear from us; 0 is never
	listens time.Duration // how long it may be silent; 0 is forever
	queue   chan outgoing
	stopped chan struct{}
	ended   chan struct{} // write has returned
	once    sync.Once
	awake   pulse
}

// outgoing is what is posted: a frame, or a mark to be closed when all before it is sent.
type outgoing struct {
	frame
	bundle *bundle // the payload, if not nil
	mark   chan struct{}
}

func newConnection(l *link, rank int, silence time.Duration) *connection {
	return &connection{
		link: l, rank: rank, beats: silence / 4,
		queue: make(chan outgoing, 16), stopped: make(chan struct{}), ended: make(chan struct{}),
	}
}

// post gives a frame to the writer. A PE has at most one result and a handful of notices outstanding; if there are more
// it does not read.
func (s *connection) post(f frame) { s.enqueue(outgoing{frame: f}) }

func (s *connection) enqueue(o outgoing) {
	select {
	case s.queue <- o:
	default:
		s.stop()
	}
}

// mark returns what is closed when everything posted before has been sent, or cannot be.
func (s *connection) mark() chan struct{} {
	m := make(chan struct{})
	select {
	case s.queue <- outgoing{mark: m}:
	default:
		close(m)
	}
	return m
}

// drain waits until the writer has sent what was posted, and ends it.
func (s *connection) drain() {
	select {
	case <-s.mark():
	case <-s.ended:
	}
	close(s.queue)
	<-s.ended
}

// stop breaks the connection.
func (s *connection) stop() {
	s.once.Do(func() {
		close(s.stopped)
		s.conn.Close()
	})
}

// write sends what is posted, and beats.
func (s *connection) write() {
	defer close(s.ended)
	defer func() { // nobody waits for what is not sent any more
		for {
			select {
			case o, ok := <-s.queue:
				if !ok {
					return
				}
				if o.mark != nil {
					close(o.mark)
				}
			default:
				return
			}
		}
	}()
	every := often(s.beats, s.listens/4)
	var tick <-chan time.Time
	if every > 0 {
		t := time.NewTicker(every)
		defer t.Stop()
		tick = t.C
		s.awake.beat(every)
	}
	for {
		var err error
		select {
		case o, ok := <-s.queue:
			if !ok {
				return
			}
			if o.mark != nil {
				close(o.mark)
				continue
			}
			if o.bundle != nil {
				o.payload = o.bundle.encoded()
			}
			err = s.send(o.frame, time.Now().Add(sendTimeout(s.listens)))
		case <-tick:
			s.awake.beat(every)
			if s.beats > 0 {
				err = s.send(frame{kind: kindBeat}, time.Now().Add(sendTimeout(s.listens)))
			}
		case <-s.stopped:
			return
		}
		if err != nil {
			s.stop() // the reader will see why
			return
		}
	}
}

// often is the shorter of two intervals, of which 0 is never.
func often(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// The job's words.
func (s *connection) begin() { s.post(frame{kind: kindBegin}) }

func (s *connection) result(o op, seq uint64, b *bundle) {
	s.enqueue(outgoing{frame: frame{kind: kindResult, op: o, seq: seq}, bundle: b})
}

func (s *connection) end(e *ending) { s.post(frame{kind: kindEnd, payload: e.marshal()}) }

// serve reads what the PE says until it leaves or dies.
func (s *connection) serve(j *job) {
	defer func() {
		s.stop()
		<-s.ended
	}()
	for {
		f, err := s.next(maxCall, s.listens, &s.awake)
		if err != nil {
			j.lose(s.rank, describe(err, "its", s.listens))
			return
		}
		switch f.kind {
		case kindBeat:
		case kindBye:
			j.leave(s.rank)
			s.post(frame{kind: kindBye}) // so that it knows
			select {
			case <-s.mark():
			case <-s.ended:
			}
			return
		case kindAbort:
			code, why, err := parseAbort(f.payload)
			if err != nil {
				j.lose(s.rank, err.Error())
				return
			}
			j.abort(s.rank, code, why)
		case kindCall:
			timeout, parts, err := parseCall(f.payload, f.op, j.size)
			if err != nil {
				j.lose(s.rank, err.Error())
				return
			}
			j.call(s.rank, f.op, f.seq, timeout, parts)
		default:
			j.lose(s.rank, fmt.Sprintf("it sent a message of kind %d, which only a root sends", f.kind))
			return
		}
	}
}

// sendTimeout is how long a message may take to a side that may be silent so long.
func sendTimeout(silence time.Duration) time.Duration {
	if silence > 0 {
		return min(max(silence, DefaultHeartbeat), writeTimeout)
	}
	return writeTimeout
}

// next is the next frame; an error if the other side is silent for longer than silence, unless this process slept.
func (l *link) next(limit int, silence time.Duration, awake *pulse) (frame, error) {
	if silence <= 0 {
		return l.receive(limit)
	}
	wait := silence
	for {
		if err := l.conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
			return frame{}, err
		}
		// Only the wait for a frame's first byte may be taken up again.
		_, err := l.r.Peek(1)
		switch {
		case err == nil:
			if err := l.conn.SetReadDeadline(time.Now().Add(max(silence, writeTimeout))); err != nil {
				return frame{}, err
			}
			return l.receive(limit)
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return frame{}, err
		case awake.slept():
			wait = silence
		case wait == silence:
			wait = silence / 8 // a busy machine may be late to see what has come
		default:
			return frame{}, err
		}
	}
}

// describe says why a connection ended, of one whose process is called its.
func describe(err error, its string, silence time.Duration) string {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Sprintf("nothing was heard of %s machine for %v", its, silence)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET),
		errors.Is(err, syscall.EPIPE), errors.Is(err, net.ErrClosed):
		return its + " process ended without leaving the job"
	}
	return err.Error()
}

// heartbeat is how long the other end of c may be silent.
func heartbeat(option time.Duration, c net.Conn) time.Duration {
	switch {
	case option < 0:
		return 0
	case option > 0:
		return option
	}
	if oneMachine(c) {
		return 0 // the kernel knows who is dead
	}
	return DefaultHeartbeat
}

// pulse tells whether this process slept: stopped by a terminal, or with its machine. Its silence is then no sign that
// others are dead.
type pulse struct {
	mu    sync.Mutex
	every time.Duration
	last  time.Time // of the last beat
	until time.Time // a sleep was noticed; no silence before this means anything
}

// beat is to be called about every so often.
func (p *pulse) beat(every time.Duration) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.last.IsZero() && now.Sub(p.last) > 2*every {
		p.until = now.Add(4 * every)
	}
	p.every, p.last = every, now
}

// slept says whether this process did, not long ago.
func (p *pulse) slept() bool {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last.IsZero() || now.Sub(p.last) > 2*p.every || now.Before(p.until)
}
