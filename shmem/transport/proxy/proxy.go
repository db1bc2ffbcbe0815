// Package proxy posts for devices that cannot reach a NIC's doorbell: a device raises a word in host memory to the
// number of blocks that are ready, and a thread of the host writes the doorbell record and rings.
//
// A Poster is that thread for the queues of one PE. It looks at all words in turn for as long as any of them moves and
// a little longer, and then ever more seldom, so that an idle PE costs little; what an idle PE posts first waits for
// Idle at most.
package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/mlx5"
)

const (
	// busy is for how long a Poster looks without a pause after the last post.
	busy = 100 * time.Microsecond
	// Idle is the longest pause of a Poster.
	Idle = 200 * time.Microsecond
	// look is how many turns pass between looks at the clock.
	look = 64
)

// Word is one queue of a Poster.
type Word struct {
	// Posted is what the device raises: blocks since the queue was made, 8 aligned bytes in host byte order.
	Posted []byte
	// Record is the send queue's word of the doorbell record: 4 aligned bytes.
	Record []byte
	// Number is the queue pair's.
	Number uint32
	// Ring writes the doorbell. Only the Poster's thread calls it.
	Ring func([8]byte)
}

// queue is a Word as the thread uses it.
type queue struct {
	posted *uint64
	record *uint32
	number uint32
	ring   func([8]byte)
	done   uint64
}

// Poster is a running thread. Its methods are safe for concurrent use.
type Poster struct {
	queues []queue
	stop   chan struct{}
	ended  sync.WaitGroup
	once   sync.Once
	posts  atomic.Uint64
}

// ErrWord is in errors about memory that cannot be a queue's words.
var ErrWord = errors.New("misaligned or short")

// Start starts a thread for some queues, whose words must stay where they are until Close.
func Start(words []Word) (*Poster, error) {
	p := &Poster{stop: make(chan struct{})}
	for i, w := range words {
		if len(w.Posted) < 8 || len(w.Record) < 4 || uintptr(unsafe.Pointer(&w.Posted[0]))%8 != 0 ||
			uintptr(unsafe.Pointer(&w.Record[0]))%4 != 0 {
			return nil, fmt.Errorf("proxy: words of queue %d (%#x): %w", i, w.Number, ErrWord)
		}
		p.queues = append(p.queues, queue{posted: (*uint64)(unsafe.Pointer(&w.Posted[0])), record: (*uint32)(unsafe.Pointer(&w.Record[0])),
			number: w.Number, ring: w.Ring})
	}
	for i := range p.queues {
		q := &p.queues[i]
		q.done = atomic.LoadUint64(q.posted) // what was there before is not to be posted
	}
	p.ended.Add(1)
	go p.run()
	return p, nil
}

// Posts is how often the thread rang, with the doorbell that it is about to ring.
func (p *Poster) Posts() uint64 { return p.posts.Load() }

// Close ends the thread, after a last look at every word. A second call does nothing.
func (p *Poster) Close() error {
	p.once.Do(func() { close(p.stop) })
	p.ended.Wait()
	return nil
}

// run is the thread. It has an OS thread of its own, so that the queues' latency does not depend on other goroutines.
func (p *Poster) run() {
	runtime.LockOSThread() // not unlocked: the thread ends with the goroutine
	defer p.ended.Done()
	last, pause := time.Now(), time.Microsecond
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for turn := 1; ; turn++ {
		if p.pass() {
			last, pause, turn = time.Now(), time.Microsecond, 0
			continue
		}
		if turn%look != 0 {
			continue
		}
		select {
		case <-p.stop:
			p.pass()
			return
		default:
		}
		if time.Since(last) < busy {
			runtime.Gosched()
			continue
		}
		timer.Reset(pause)
		select {
		case <-p.stop:
			p.pass()
			return
		case <-timer.C:
		}
		pause = min(2*pause, Idle)
		turn = look - 1 // one look at the words, then the next pause
	}
}

// pass looks at every word once and says whether any had moved.
func (p *Poster) pass() bool {
	moved := false
	for i := range p.queues {
		q := &p.queues[i]
		posted := atomic.LoadUint64(q.posted) // acquires what the device wrote before
		if posted <= q.done {
			continue
		}
		q.done, moved = posted, true
		// The record before the doorbell: the NIC may read it as soon as it is rung.
		var word [4]byte
		binary.BigEndian.PutUint32(word[:], uint32(posted&mlx5.IndexMask))
		atomic.StoreUint32(q.record, binary.NativeEndian.Uint32(word[:]))
		p.posts.Add(1) // before the doorbell, too: what it sets off finds the post counted
		q.ring(mlx5.Doorbell{Index: uint16(posted & mlx5.IndexMask), Queue: q.number}.Bytes())
	}
	return moved
}
