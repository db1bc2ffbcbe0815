package daemon

import (
	"context"
	"sync"
)

// Subscription is one reader's view of a stream of values: it keeps the newest that the reader has not taken. One
// goroutine at a time may call Next.
type Subscription[T any] struct {
	source *source[T]
	wake   chan struct{} // holds a token when there is something to take or the end was reached

	mu     sync.Mutex // guards the fields below
	items  []T        // oldest first
	lost   uint64
	closed error
}

// SliceSubscription is a Subscription to turns, in a form that a test of who shows them can stand in for.
type SliceSubscription interface {
	Next(context.Context) (turns []Slice, lost uint64, err error)
	Close()
}

// Next waits for values and returns all that there are, oldest first, and how many older ones the reader was too slow
// for. It ends with ctx's error, or with ErrClosed when the daemon or the subscription has.
func (s *Subscription[T]) Next(ctx context.Context) (items []T, lost uint64, err error) {
	for {
		s.mu.Lock()
		items, lost, err = s.items, s.lost, s.closed
		s.items, s.lost = nil, 0
		s.mu.Unlock()
		if len(items) > 0 || lost > 0 {
			return items, lost, nil
		}
		if err != nil {
			return nil, 0, err
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return nil, 0, context.Cause(ctx)
		}
	}
}

// Close ends the subscription: Next returns what is left, then ErrClosed.
func (s *Subscription[T]) Close() {
	s.source.mu.Lock()
	delete(s.source.subscriptions, s)
	s.source.mu.Unlock()
	s.end(ErrClosed)
}

func (s *Subscription[T]) end(err error) {
	s.mu.Lock()
	s.closed = err
	s.mu.Unlock()
	s.signal()
}

func (s *Subscription[T]) put(v T, limit int) {
	s.mu.Lock()
	if len(s.items) >= limit {
		s.items = append(s.items[:0:0], s.items[1:]...)
		s.lost++
	}
	s.items = append(s.items, v)
	s.mu.Unlock()
	s.signal()
}

func (s *Subscription[T]) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// source gives values to subscriptions and never waits for one. The zero value is ready once limit is set.
type source[T any] struct {
	limit int // values kept for each subscription

	mu            sync.Mutex                // guards the fields below
	subscriptions map[*Subscription[T]]bool // nil once closed
	ended         bool
}

func (s *source[T]) subscribe() *Subscription[T] {
	f := &Subscription[T]{source: s, wake: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		f.end(ErrClosed)
		return f
	}
	if s.subscriptions == nil {
		s.subscriptions = map[*Subscription[T]]bool{}
	}
	s.subscriptions[f] = true
	return f
}

// publish gives v to every subscription. A slow reader loses its oldest value.
func (s *source[T]) publish(v T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for f := range s.subscriptions {
		f.put(v, s.limit)
	}
}

func (s *source[T]) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for f := range s.subscriptions {
		f.end(ErrClosed)
	}
	s.subscriptions = nil
}
