package hw

import (
	"sync"
	"time"
)

// moveChunk is how much a mover does for one move while others wait.
const moveChunk = 2 << 20

// Move is a transfer of Bytes, done part by part.
type Move struct {
	Bytes uint64
	Ready Time // not before this time
	Owner any  // moves of different owners take turns
	// Chunk is how many bytes one Step may do at most; 0 for the mover's own choice. It keeps steps short that have
	// much to do for few bytes.
	Chunk uint64
	// Step does the bytes [off, off+n) with memory held in place. An error ends the move.
	Step func(off, n uint64) error
	// Done is told when the move ended, or failed, once.
	Done func(at Time, err error)

	off     uint64
	started bool
}

// Mover is a copy engine: it does moves one chunk after the other, at its bandwidth, beside the compute engine.
type Mover struct {
	dev       *Device
	barrier   *sync.RWMutex
	nsPerByte float64

	mu     sync.Mutex
	wake   sync.Cond
	queue  []*Move
	inHand *Move // being done; nil when it has been cancelled
	at     Time  // end of what was done last
	busy   meter
	closed bool
	ended  chan struct{}
}

func newMover(d *Device, barrier *sync.RWMutex, bandwidth float64) *Mover {
	m := &Mover{dev: d, barrier: barrier, nsPerByte: 1e9 / bandwidth, ended: make(chan struct{})}
	m.wake.L = &m.mu
	go m.loop()
	return m
}

// Submit queues a move.
func (m *Mover) Submit(v *Move) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queue = append(m.queue, v)
	m.wake.Signal()
}

// Cancel drops the moves of an owner that have not ended; their Done is not called, save for a chunk in hand.
func (m *Mover) Cancel(owner any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	kept := m.queue[:0]
	for _, v := range m.queue {
		if v.Owner != owner {
			kept = append(kept, v)
		}
	}
	clear(m.queue[len(kept):])
	m.queue = kept
	if m.inHand != nil && m.inHand.Owner == owner {
		m.inHand = nil
	}
}

// Busy is the device time in the window before now in which the mover worked.
func (m *Mover) Busy(window time.Duration) time.Duration {
	return m.busy.last(m.dev.Clock.Now(), window)
}

func (m *Mover) loop() {
	defer close(m.ended)
	for {
		m.mu.Lock()
		for len(m.queue) == 0 && !m.closed {
			m.wake.Wait()
		}
		if m.closed {
			m.mu.Unlock()
			return
		}
		v := m.queue[0]
		m.queue[0] = nil
		m.queue = m.queue[1:]
		m.inHand = v
		m.mu.Unlock()
		if m.chunk(v) {
			continue
		}
		m.mu.Lock()
		if m.inHand == nil {
			m.mu.Unlock()
			continue
		}
		i := 0 // not ended: it goes on after one of each other owner's
		for seen := map[any]bool{}; i < len(m.queue) && m.queue[i].Owner != v.Owner && !seen[m.queue[i].Owner]; i++ {
			seen[m.queue[i].Owner] = true
		}
		m.queue = append(m.queue, nil)
		copy(m.queue[i+1:], m.queue[i:])
		m.queue[i] = v
		m.mu.Unlock()
	}
}

// chunk does the next part of v and reports whether v ended.
func (m *Mover) chunk(v *Move) bool {
	start := max(m.at, v.Ready)
	if now := m.dev.Clock.Now(); now-start > Time(m.dev.Config.Quantum) && !m.dev.Config.Virtual {
		start = now // what the host did not do in time is lost, not made up for
	}
	n := min(v.Bytes-v.off, moveChunk)
	if v.Chunk > 0 {
		n = min(n, v.Chunk)
	}
	cost := Time(float64(n) * m.nsPerByte)
	if !v.started {
		v.started = true
		cost += Time(m.dev.Config.MoveLatency)
	}
	m.dev.Clock.Wait(start)
	m.barrier.RLock()
	err := v.Step(v.off, n)
	m.barrier.RUnlock()
	v.off += n
	m.at = start + cost
	m.busy.add(start, m.at)
	m.dev.Clock.Wait(m.at)
	if v.off < v.Bytes && err == nil {
		return false
	}
	v.Done(m.at, err)
	return true
}

func (m *Mover) close() {
	m.mu.Lock()
	m.closed = true
	m.queue = nil
	m.wake.Broadcast()
	m.mu.Unlock()
	<-m.ended
}
