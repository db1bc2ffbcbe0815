package hw

import (
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Time is device time: nanoseconds since the device was switched on.
type Time int64

// Clock tells device time. It follows the wall clock less the time lost in steps that the host could not execute fast
// enough. It never goes back.
type Clock struct {
	mu      sync.Mutex
	virtual bool
	origin  time.Time
	lost    Time // wall time that was not device time
	limit   Time // while the engine has work: device time does not pass what it will have executed; else 0
	last    Time // highest time told
}

func newClock(virtual bool) *Clock {
	return &Clock{virtual: virtual, origin: time.Now()}
}

// Now is the present device time.
func (c *Clock) Now() Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nowLocked()
}

func (c *Clock) nowLocked() Time {
	if c.virtual {
		return c.last
	}
	t := Time(time.Since(c.origin)) - c.lost
	if c.limit > 0 && t > c.limit {
		t = c.limit
	}
	if t > c.last {
		c.last = t
	}
	return c.last
}

// powered is the time since the device was switched on, with what the host took out of device time.
func (c *Clock) powered() Time {
	if c.virtual {
		return c.Now()
	}
	return Time(time.Since(c.origin))
}

// Wait returns when device time has reached t. In virtual mode it returns at once, with time at t or later.
func (c *Clock) Wait(t Time) {
	for {
		c.mu.Lock()
		now := c.nowLocked()
		if c.virtual && t > c.last {
			c.last = t
		}
		virtual := c.virtual
		c.mu.Unlock()
		if virtual || now >= t {
			return
		}
		Sleep(time.Duration(t - now))
	}
}

// begin starts a step that ends at end.
func (c *Clock) begin(end Time) {
	c.mu.Lock()
	c.settle()
	c.limit = end
	c.mu.Unlock()
}

// release says that the engine has nothing to do for now: device time passes without it.
func (c *Clock) release() {
	c.mu.Lock()
	c.settle()
	c.limit = 0
	c.mu.Unlock()
}

// settle takes out of device time what the host was late beyond the limit.
func (c *Clock) settle() {
	if c.virtual || c.limit == 0 {
		return
	}
	if late := Time(time.Since(c.origin)) - c.lost - c.limit; late > 0 {
		c.lost += late
	}
}

// finish ends the step at device time end. Wall time beyond end plus grace is taken out of device time, until the next
// step begins or release is called: a host that is late between two steps is late as well.
func (c *Clock) finish(end, grace Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = end + grace
	if c.virtual {
		if end > c.last {
			c.last = end
		}
		return
	}
	if late := Time(time.Since(c.origin)) - c.lost - end; late > grace {
		c.lost += late - grace
	}
}

// Sleep returns after d, with the precision of the kernel's timer. The runtime's own timers round up to a millisecond
// when nothing else runs, which is longer than most kernels here.
func Sleep(d time.Duration) {
	const coarse = 20 * time.Millisecond
	if d > coarse {
		time.Sleep(d - coarse/2)
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// The default slack of 50 microseconds would be a quarter of a short kernel. An error leaves the default, which is
	// safe.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	ts := unix.NsecToTimespec(int64(d))
	// Interrupted early is fine: the caller looks at the clock again.
	_ = unix.Nanosleep(&ts, nil)
}
