package hca

import (
	"math/rand/v2"

	"github.com/lgpu/lgpu/shmem/mlx5"
)

// villain makes the decisions of an Adversary for one queue.
type villain struct {
	on     bool
	config Adversary
	random *rand.Rand
	held   []*work // reads that are not carried out yet, in order
	seen   uint64  // the doorbell that was last decided about
	lost   bool    // it is ignored for good
	delay  int     // or for so many turns
}

func (v *villain) init(a *Adversary, number uint32) {
	if a == nil {
		return
	}
	v.on, v.config = true, *a
	v.random = rand.New(rand.NewPCG(a.Seed, uint64(number)))
}

// chance is true with a probability of p/256.
func (v *villain) chance(p uint8) bool { return p != 0 && uint8(v.random.Uint32()) < p }

// idle says whether the queue is passed over.
func (v *villain) idle() bool { return v.chance(v.config.Idle) }

// lateCompletion says whether completions wait for another turn.
func (v *villain) lateCompletion() bool { return v.chance(v.config.LateCompletion) }

// pause says whether other queues have their turn between two pieces.
func (v *villain) pause() bool { return v.chance(128) }

// doorbell says whether a new producer index stays unseen for now; only lossy ones do for good.
func (v *villain) doorbell(raw uint64, lossy bool) bool {
	if !v.on {
		return false
	}
	if raw != v.seen {
		v.seen, v.lost, v.delay = raw, lossy && v.chance(v.config.DropDoorbell), 0
		if v.chance(v.config.DelayDoorbell) {
			v.delay = 1 + v.random.IntN(16)
		}
	}
	if v.delay > 0 {
		v.delay--
		return true
	}
	return v.lost
}

// failure is the syndrome with which the entry that begins fails; 0: it does not.
func (v *villain) failure(q *Queue) uint8 {
	if !v.on || v.config.FailAt == 0 || q.executed != v.config.FailAt || v.config.FailQueue != 0 && v.config.FailQueue != q.config.Number {
		return 0
	}
	if v.config.FailWith == 0 {
		return mlx5.SyndromeRemoteOp
	}
	return v.config.FailWith
}

// maxPieces bounds the pieces of one entry.
const maxPieces = 64

// take cuts the work into pieces, and says whether it is kept back.
func (v *villain) take(q *Queue, w *work) bool {
	if v.config.Scatter > 0 && w.length > 8 && w.atomic.Bytes == 0 {
		size := max(uint64(v.config.Scatter), w.length/maxPieces+1)
		for at := uint64(0); at < w.length; {
			n := min(1+v.random.Uint64N(size), w.length-at, partBytes)
			if len(w.pieces) >= maxPieces {
				n = min(w.length-at, partBytes)
			}
			w.pieces = append(w.pieces, piece{at, n})
			at += n
		}
		v.random.Shuffle(len(w.pieces), func(i, j int) { w.pieces[i], w.pieces[j] = w.pieces[j], w.pieces[i] })
	}
	if w.opcode == mlx5.OpRead && (len(v.held) > 0 || v.chance(v.config.Late)) {
		v.held = append(v.held, w)
		return true
	}
	return false
}

// late lets the oldest read that was kept back go on, perhaps.
func (v *villain) late(q *Queue) bool {
	if q.issuing != nil || len(v.held) == 0 || !v.chance(64) {
		return false
	}
	q.issuing = v.held[0]
	v.held = append(v.held[:0], v.held[1:]...)
	return true
}
