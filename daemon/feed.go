package daemon

import (
	"context"
	"sync"
)

// Feed is one reader's view of a stream of values: it keeps the newest that the reader has not taken. One goroutine at
// a time may call Next.
type Feed[T any] struct {
	source *source[T]
	wake   chan struct{} // holds a token when there is something to take or the end was reached

	mu     sync.Mutex
	items  []T    // guarded by mu; oldest first
	lost   uint64 // guarded by mu
	closed error  // guarded by mu
}

// SliceFeed is a Feed of turns, in a form that whoever shows them can stand in for.
type SliceFeed interface {
	Next(context.Context) (turns []Slice, lost uint64, err error)
	Close()
}

// Next waits for values and returns all that there are, oldest first, and how many older ones the reader was too slow
// for. It ends with ctx's error, or with ErrClosed when the daemon or the feed has.
func (f *Feed[T]) Next(ctx context.Context) (items []T, lost uint64, err error) {
	for {
		f.mu.Lock()
		items, lost, err = f.items, f.lost, f.closed
		f.items, f.lost = nil, 0
		f.mu.Unlock()
		if len(items) > 0 || lost > 0 {
			return items, lost, nil
		}
		if err != nil {
			return nil, 0, err
		}
		select {
		case <-f.wake:
		case <-ctx.Done():
			return nil, 0, context.Cause(ctx)
		}
	}
}

// Close ends the feed: Next returns what is left, then ErrClosed.
func (f *Feed[T]) Close() {
	f.source.mu.Lock()
	delete(f.source.feeds, f)
	f.source.mu.Unlock()
	f.end(ErrClosed)
}

func (f *Feed[T]) end(err error) {
	f.mu.Lock()
	f.closed = err
	f.mu.Unlock()
	f.signal()
}

func (f *Feed[T]) put(v T, limit int) {
	f.mu.Lock()
	if len(f.items) >= limit {
		f.items = append(f.items[:0:0], f.items[1:]...)
		f.lost++
	}
	f.items = append(f.items, v)
	f.mu.Unlock()
	f.signal()
}

func (f *Feed[T]) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// source gives values to feeds and never waits for one. The zero value is ready once limit is set.
type source[T any] struct {
	limit int // values kept for each feed

	mu    sync.Mutex
	feeds map[*Feed[T]]bool // guarded by mu; nil once closed
	ended bool              // guarded by mu
}

func (s *source[T]) subscribe() *Feed[T] {
	f := &Feed[T]{source: s, wake: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		f.end(ErrClosed)
		return f
	}
	if s.feeds == nil {
		s.feeds = map[*Feed[T]]bool{}
	}
	s.feeds[f] = true
	return f
}

// publish gives v to every feed. A slow reader loses its oldest value.
func (s *source[T]) publish(v T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for f := range s.feeds {
		f.put(v, s.limit)
	}
}

func (s *source[T]) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for f := range s.feeds {
		f.end(ErrClosed)
	}
	s.feeds = nil
}
