// Package foreign takes in what strangers send through the daemon's unix sockets, and gets rid of it.
//
// Whoever can connect to a socket can put descriptors of any kind into it (SCM_RIGHTS), and whoever closes the last
// copy of a descriptor waits for whatever that takes: a TCP socket with SO_LINGER and data that nobody reads waits for
// as long as its maker wishes, a file of a file system in user space for its server. It is the same whether the
// descriptor was received and is closed, or its packet is thrown away unread, as with the connection that it waits in.
// In Go every such close holds a thread, and a process that has 10,000 is ended. So this package
//
//   - has the kernel refuse descriptors at the sender where none are due (SO_PASSRIGHTS, Linux 6.16);
//   - looks whether a packet has any before it takes it (Conn.Peek);
//   - closes what is foreign only on a bounded number of threads, whose wait for a socket it cuts short (Closers).
package foreign

import (
	"io"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of what is being closed, of one user and of all.
const (
	// MaxClosers is the number of threads that close, MaxClosersUser how many of them one user's descriptors can hold.
	MaxClosers     = 8
	MaxClosersUser = 2
	// MaxClosing is the number of descriptors that wait to be closed, MaxClosingUser that of one user's. Who has one
	// more to close waits.
	MaxClosing     = 256
	MaxClosingUser = 64
)

// The wait of a close for a socket's data is cut short after firstNudge, and again after times that double up to
// lastNudge, since another wait may follow.
const (
	firstNudge = time.Millisecond
	lastNudge  = time.Second
)

// Closers close what is foreign. The zero value is ready; methods may be called by several goroutines.
type Closers struct {
	mu      sync.Mutex
	room    *sync.Cond // mu; there is less to close
	queues  map[uint32]*queue
	order   []uint32 // users with something that waits; the first is next
	waiting int      // descriptors in queues
	running int      // closers
}

// queue is what is to be closed of one user.
type queue struct {
	waiting []io.Closer
	running int // closers that are at it
}

// Close has f closed, on behalf of a user. It returns as soon as there is room for it in the queue, which is at once
// but under attack; so no lock must be held. What closing f returns is nobody's concern.
func (c *Closers) Close(uid uint32, f io.Closer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queues == nil {
		c.queues, c.room = map[uint32]*queue{}, sync.NewCond(&c.mu)
	}
	q := c.queues[uid]
	for ; q != nil && len(q.waiting) >= MaxClosingUser || c.waiting >= MaxClosing; q = c.queues[uid] {
		c.room.Wait()
	}
	if q == nil {
		q = &queue{}
		c.queues[uid] = q
	}
	if len(q.waiting) == 0 {
		c.order = append(c.order, uid)
	}
	q.waiting = append(q.waiting, f)
	c.waiting++
	if c.running < MaxClosers && q.running < MaxClosersUser {
		c.running++
		go c.run()
	}
}

// take returns the next to close, or nil. Called with mu held.
func (c *Closers) take() (q *queue, uid uint32, f io.Closer) {
	for i, uid := range c.order {
		q := c.queues[uid]
		if q.running >= MaxClosersUser {
			continue
		}
		f, q.waiting = q.waiting[0], q.waiting[1:]
		c.order = append(c.order[:i], c.order[i+1:]...)
		if len(q.waiting) > 0 { // behind the others
			c.order = append(c.order, uid)
		}
		q.running++
		c.waiting--
		c.room.Broadcast()
		return q, uid, f
	}
	return nil, 0, nil
}

// run closes what there is, on a thread of its own.
func (c *Closers) run() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c.mu.Lock()
	defer c.mu.Unlock()
	for q, uid, f := c.take(); f != nil; q, uid, f = c.take() {
		c.mu.Unlock()
		closeNudged(f)
		c.mu.Lock()
		q.running--
		if q.running == 0 && len(q.waiting) == 0 {
			delete(c.queues, uid)
		}
	}
	c.running--
}

// closeNudged closes f. A socket's wait for its data ends with any signal: SIGURG is one that Go's runtime handles, and
// takes for one that came in vain.
func closeNudged(f io.Closer) {
	done := make(chan struct{})
	thread := unix.Gettid()
	process := unix.Getpid()
	timer := time.AfterFunc(firstNudge, func() {
		for wait := firstNudge; ; wait = min(2*wait, lastNudge) {
			_ = unix.Tgkill(process, thread, unix.SIGURG) // fails only when the thread has ended
			select {
			case <-done:
				return
			case <-time.After(wait):
			}
		}
	})
	_ = f.Close()
	timer.Stop()
	close(done)
}

// File is a descriptor to be closed.
type File int

// Close implements io.Closer.
func (f File) Close() error { return unix.Close(int(f)) }
