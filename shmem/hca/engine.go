package hca

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// How the engine looks for work: see "Who notices a doorbell" in the package's comment.
const (
	spin      = 50 * time.Microsecond
	nap       = 20 * time.Microsecond
	napFor    = 100 * time.Millisecond
	longSleep = time.Millisecond
)

// engine is a device's goroutine.
type engine struct {
	device   *Device
	random   *rand.Rand // of the adversary
	order    []*Queue
	sleeping atomic.Bool
	wake     chan struct{}
	quit     chan struct{}
	once     sync.Once
	done     chan struct{}
}

func (e *engine) start(d *Device) {
	e.device, e.wake, e.quit, e.done = d, make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	if a := d.config.Adversary; a != nil {
		e.random = rand.New(rand.NewPCG(a.Seed, 0))
	}
	go e.run()
}

func (e *engine) stop() {
	e.once.Do(func() { close(e.quit) })
	<-e.done
}

func (e *engine) kick() {
	if e.sleeping.Load() {
		select {
		case e.wake <- struct{}{}:
		default:
		}
	}
}

func (e *engine) run() {
	defer close(e.done)
	timer := time.NewTimer(longSleep)
	defer timer.Stop()
	idleSince := time.Now()
	for {
		select {
		case <-e.quit:
			return
		default:
		}
		now := time.Now()
		if e.turn(now) {
			idleSince = now
			runtime.Gosched()
			continue
		}
		switch idle := now.Sub(idleSince); {
		case idle < spin:
			runtime.Gosched()
		case idle < napFor || e.waiting():
			// Without this the kernel adds its default slack of 50 microseconds.
			_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
			_ = unix.Nanosleep(&unix.Timespec{Nsec: int64(nap)}, nil)
		default:
			e.sleeping.Store(true)
			timer.Reset(longSleep)
			select {
			case <-timer.C:
			case <-e.wake:
				idleSince = now
			case <-e.quit:
				return
			}
			e.sleeping.Store(false)
		}
	}
}

// turn gives each queue its turn.
func (e *engine) turn(now time.Time) (busy bool) {
	queues := *e.device.queues.Load()
	if e.random != nil {
		e.order = append(e.order[:0], queues...)
		e.random.Shuffle(len(e.order), func(i, j int) { e.order[i], e.order[j] = e.order[j], e.order[i] })
		queues = e.order
	}
	for _, q := range queues {
		if q.step(now) {
			busy = true
		}
	}
	return busy
}

// waiting says whether some queue waits for the other side.
func (e *engine) waiting() bool {
	for _, q := range *e.device.queues.Load() {
		if q.waiting() {
			return true
		}
	}
	return false
}
