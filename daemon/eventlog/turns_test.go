package eventlog

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
)

// TestTurns: a user with many readers has as many turns as one with one, and each reader of hers in order.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q turns
		if err := q.take(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		var had []int // who had a turn: user times 10, and the reader's number
		wait := func(user uint32, reader, turns int) {
			go func() {
				for range turns {
					if err := q.take(t.Context(), user); err != nil {
						t.Error(err)
						return
					}
					had = append(had, int(user)*10+reader)
					q.pass()
				}
			}()
			synctest.Wait()
		}
		for reader := range 5 {
			wait(1, reader, 1)
		}
		wait(2, 0, 1)
		wait(3, 0, 1)
		wait(2, 1, 1)
		q.pass()
		synctest.Wait()
		if want := []int{10, 20, 30, 11, 21, 12, 13, 14}; !slices.Equal(had, want) {
			t.Errorf("turns were %v, not %v", had, want)
		}
		if q.taken || len(q.order) > 0 || len(q.waiting) > 0 {
			t.Errorf("left is %+v", &q)
		}
	})
}

// TestTurnsGiveUp: a reader that no longer waits costs nobody a turn, also if it is told at the same moment.
func TestTurnsGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, late := range []bool{false, true} {
			var q turns
			if err := q.take(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			left, next := make(chan error, 1), make(chan error, 1)
			go func() { left <- q.take(ctx, 2) }()
			synctest.Wait()
			go func() { next <- q.take(t.Context(), 3) }()
			synctest.Wait()
			if late { // both have happened when it looks
				q.mu.Lock()
				cancel()
				q.passLocked()
				q.mu.Unlock()
				synctest.Wait()
				if err := <-left; err == nil {
					q.pass()
				} else if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			} else {
				cancel()
				if err := <-left; !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				q.pass()
			}
			if err := <-next; err != nil {
				t.Error(err)
			}
			q.pass()
			if q.taken || len(q.waiting) > 0 {
				t.Errorf("left is %+v", &q)
			}
		}
	})
}
