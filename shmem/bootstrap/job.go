package bootstrap

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// outlet is how a job speaks to one of its PEs. Its methods do not block, and do not call the job.
type outlet interface {
	begin()
	result(o op, seq uint64, b *bundle)
	end(e *ending)
}

// bundle is what a PE gets from a collective, or several do.
type bundle struct {
	parts [][]byte
	once  sync.Once
	bytes []byte
}

// encoded is the bundle as a payload.
func (b *bundle) encoded() []byte {
	b.once.Do(func() { b.bytes = putParts(nil, b.parts) })
	return b.bytes
}

// peer is what the root knows of one PE of a job.
type peer struct {
	out  outlet
	who  string   // process and machine, for messages
	gone bool     // left, or died
	here bool     // has called the collective of the current round
	mine [][]byte // what it brought
}

// job is the root's view of one job: who is there, and the collective under way. It knows nothing of connections.
type job struct {
	size int
	over func(*job)    // called once, outside of mu, when every PE that joined is gone
	done chan struct{} // closed after it

	mu      sync.Mutex
	peers   []*peer // by rank; nil has not joined
	joined  int
	left    int
	begun   bool
	ended   *ending
	seq     uint64 // of the round
	op      op     // of the round, once here > 0
	first   int    // who called first
	here    int
	bytes   int
	timer   *time.Timer // of joining, then of the round
	timerID uint64      // tells a timer that was replaced
	until   time.Time   // when it fires
	limit   time.Duration
}

func newJob(size int, over func(*job)) *job {
	return &job{size: size, over: over, done: make(chan struct{}), peers: make([]*peer, size), seq: 1}
}

// admit lets a PE in, or says why not. When it is the last, the job begins.
func (j *job) admit(rank, size int, who string, timeout time.Duration, out outlet) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.ended != nil:
		return fmt.Errorf("the job is over: %s", j.ended.err())
	case size != j.size:
		return fmt.Errorf("PE %d (%s) says that the job has %d PEs, %s says %d", rank, who, size, j.someone(), j.size)
	case j.peers[rank] != nil:
		return fmt.Errorf("PE %d joined already, as %s; this is %s", rank, j.peers[rank].who, who)
	}
	j.peers[rank] = &peer{out: out, who: who}
	j.joined++
	if j.joined < j.size {
		j.expect(timeout)
		return nil
	}
	j.begun = true
	j.stopTimer()
	for _, s := range j.peers {
		s.out.begin()
	}
	return nil
}

// someone names a PE that has joined, for messages.
func (j *job) someone() string {
	for rank, s := range j.peers {
		if s != nil {
			return fmt.Sprintf("PE %d (%s)", rank, s.who)
		}
	}
	return "the launcher"
}

// expect makes the timer fire after d, if it would not before.
func (j *job) expect(d time.Duration) {
	until := time.Now().Add(d)
	if j.timer != nil && !until.Before(j.until) {
		return
	}
	j.stopTimer()
	j.until, j.limit = until, d
	id := j.timerID
	j.timer = time.AfterFunc(d, func() { j.expired(id) })
}

func (j *job) stopTimer() {
	if j.timer != nil {
		j.timer.Stop()
		j.timer = nil
	}
	j.timerID++
}

// expired ends the job: somebody did not come in time.
func (j *job) expired(id uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if id != j.timerID || j.ended != nil {
		return
	}
	var missing []int
	for rank, s := range j.peers {
		if s == nil || j.begun && !s.here {
			missing = append(missing, rank)
		}
	}
	e := &ending{kind: endTimeout, pe: -1, other: -1}
	if len(missing) == 1 {
		e.pe = missing[0]
	}
	if j.begun {
		e.other = j.first
		e.text = fmt.Sprintf("%s did not come to the bootstrap's %s (collective %d) within %v of PE %d; init, finalize and what changes the heap need all PEs",
			ranks(missing), j.op, j.seq, rounded(j.limit), j.first)
	} else {
		e.text = fmt.Sprintf("%s of %d did not join within %v: were %d started? (LSHMEM_PES, or lgpu run --pes, says how many there are)",
			ranks(missing), j.size, rounded(j.limit), j.size)
	}
	j.endLocked(e)
}

// rounded is d for people.
func rounded(d time.Duration) time.Duration {
	if d > time.Millisecond {
		return d.Round(time.Millisecond)
	}
	return d
}

// call is a PE's call of a collective.
func (j *job) call(rank int, o op, seq uint64, timeout time.Duration, parts [][]byte) {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.peers[rank]
	if j.ended != nil || s.gone {
		return // it will see
	}
	switch {
	case !j.begun || s.here || seq != j.seq:
		j.endLocked(&ending{kind: endBad, pe: rank, other: -1,
			text: fmt.Sprintf("PE %d calls collective %d (%s) when %d is under way", rank, seq, o, j.seq)})
		return
	case j.here > 0 && o != j.op:
		j.endLocked(&ending{kind: endMismatch, pe: rank, other: j.first,
			text: fmt.Sprintf("PE %d calls %s where PE %d calls %s (collective %d)", rank, o, j.first, j.op, seq)})
		return
	}
	if j.here == 0 {
		j.op, j.first, j.bytes = o, rank, 0
	}
	for _, p := range parts {
		j.bytes += len(p)
	}
	s.here, s.mine = true, parts
	j.here++
	if j.bytes > maxRound {
		j.endLocked(&ending{kind: endBad, pe: -1, other: -1,
			text: fmt.Sprintf("%s (collective %d) has more than %d MiB in all", o, seq, maxRound>>20)})
		return
	}
	if j.here == j.size {
		j.complete()
		return
	}
	j.expect(timeout)
	j.missLocked()
}

// missLocked ends the job if the collective under way needs a PE that has left.
func (j *job) missLocked() {
	if j.here == 0 || j.left == 0 {
		return
	}
	for rank, s := range j.peers {
		if s.gone && !s.here {
			j.endLocked(&ending{kind: endMismatch, pe: rank, other: j.first,
				text: fmt.Sprintf("PE %d has left the job, PE %d calls %s (collective %d)", rank, j.first, j.op, j.seq)})
			return
		}
	}
}

// complete gives all what they came for.
func (j *job) complete() {
	j.stopTimer()
	o, seq := j.op, j.seq
	j.seq++
	j.here = 0
	shared := &bundle{}
	if o == opAllGather {
		shared.parts = make([][]byte, j.size)
		for rank, s := range j.peers {
			shared.parts[rank] = s.mine[0]
		}
	}
	for rank, s := range j.peers {
		b := shared
		if o == opAllToAll {
			b = &bundle{parts: make([][]byte, j.size)}
			for from, other := range j.peers {
				b.parts[from] = other.mine[rank]
			}
		}
		if !s.gone {
			s.out.result(o, seq, b)
		}
	}
	for _, s := range j.peers {
		s.here, s.mine = false, nil
	}
}

// leave is a PE's end in order.
func (j *job) leave(rank int) {
	j.depart(rank, func() {
		if !j.begun {
			j.endLocked(&ending{kind: endAbort, pe: rank, other: -1, code: GaveUp, text: "it gave up joining"})
		}
		j.missLocked()
	})
}

// lose is a PE's death.
func (j *job) lose(rank int, why string) {
	j.depart(rank, func() {
		j.endLocked(&ending{kind: endLost, pe: rank, other: -1, text: why + " (" + j.peers[rank].who + ")"})
	})
}

// missing says that a PE's process is dead, as somebody says who knows: it may be one that never joined.
func (j *job) missing(rank int, why string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if rank >= j.size || j.ended != nil {
		return
	}
	if s := j.peers[rank]; s == nil || !s.gone {
		j.endLocked(&ending{kind: endLost, pe: rank, other: -1, text: why})
	}
}

// depart marks that a PE is gone, and calls then under mu.
func (j *job) depart(rank int, then func()) {
	j.mu.Lock()
	s := j.peers[rank]
	if s.gone {
		j.mu.Unlock()
		return
	}
	s.gone = true
	j.left++
	then()
	last := j.left == j.joined && (j.begun || j.ended != nil)
	if last {
		j.stopTimer()
	}
	j.mu.Unlock()
	if last {
		if j.over != nil {
			j.over(j)
		}
		close(j.done)
	}
}

// without says whether a PE was here and has left.
func (j *job) without(rank int) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return rank < j.size && j.peers[rank] != nil && j.peers[rank].gone && j.ended == nil
}

// abort ends the job on behalf of a PE, or with rank -1 of the root.
func (j *job) abort(rank, code int, why string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.endLocked(&ending{kind: endAbort, pe: rank, other: -1, code: code, text: why})
}

// stop lets nothing happen any more, and tells nobody: the root ends.
func (j *job) stop() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.stopTimer()
	if j.ended == nil {
		j.ended = &ending{kind: endBad, pe: -1, other: -1, text: "the root has ended"}
	}
}

// endLocked tells all, once.
func (j *job) endLocked(e *ending) {
	if j.ended != nil {
		return
	}
	j.ended = e
	j.stopTimer()
	for _, s := range j.peers {
		if s == nil {
			continue
		}
		s.mine = nil
		if !s.gone {
			s.out.end(e)
		}
	}
}

// state is a word about the job for one who comes late.
func (j *job) state() (begun bool, e *ending) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.begun, j.ended
}

// ranks names PEs: "PE 3", "PEs 1, 3-5".
func ranks(list []int) string {
	const most = 16
	var b strings.Builder
	b.WriteString("PE")
	if len(list) != 1 {
		b.WriteByte('s')
	}
	for i, shown := 0, 0; i < len(list); shown++ {
		last := i
		for last+1 < len(list) && list[last+1] == list[last]+1 {
			last++
		}
		if shown == most {
			fmt.Fprintf(&b, " and %d more", len(list)-i)
			break
		}
		if shown > 0 {
			b.WriteByte(',')
		}
		switch {
		case last == i:
			fmt.Fprintf(&b, " %d", list[i])
		case last == i+1:
			fmt.Fprintf(&b, " %d, %d", list[i], list[last])
		default:
			fmt.Fprintf(&b, " %d-%d", list[i], list[last])
		}
		i = last + 1
	}
	return b.String()
}
