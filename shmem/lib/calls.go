//go:build cgo

package main

import (
	"context"
	"fmt"
	"sync"
)

// calls guards what a program's callbacks are called through: it stays until the last call under way has returned, also
// one that was abandoned at its timeout, and no call begins after close.
type calls struct {
	free func() // of what the calls go through

	mu     sync.Mutex
	under  int
	closed bool
}

// do calls f unless the collective is over that asks for it, or close was called.
func (c *calls) do(ctx context.Context, what string, f func()) error {
	if ctx.Err() != nil {
		return fmt.Errorf("the program's %s callback is not called any more: %w", what, context.Cause(ctx))
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return fmt.Errorf("the program's %s callback is not called any more: the PE has left the job", what)
	}
	c.under++
	c.mu.Unlock()
	defer c.done()
	f()
	return nil
}

func (c *calls) done() {
	c.mu.Lock()
	c.under--
	last := c.closed && c.under == 0
	c.mu.Unlock()
	if last {
		c.free()
	}
}

// close lets no more calls begin. It waits for none.
func (c *calls) close() {
	c.mu.Lock()
	last := !c.closed && c.under == 0
	c.closed = true
	c.mu.Unlock()
	if last {
		c.free()
	}
}
