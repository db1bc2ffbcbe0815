package hca

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/mlx5"
)

const (
	// window is the most entries of a queue that are begun and not complete.
	window = 256
	// turnEntries and turnBytes bound what one queue does before the next has its turn.
	turnEntries = 64
	turnBytes   = 1 << 20
	// partBytes is the most that moves at once.
	partBytes = 256 << 10
	// recoverAfter is how long a doorbell record may be ahead of the doorbell before the doorbell counts as lost.
	recoverAfter = 100 * time.Microsecond
)

// Queue is a queue pair and its completion queue. Its fields below mu belong to whoever holds it: mostly the engine.
type Queue struct {
	device *Device
	config QueueConfig
	depth  uint64 // blocks

	doorbell *uint64 // raw words, in the machine's order
	record   *uint32
	posts    *uint64
	cqRecord *uint32
	rung     atomic.Uint64 // Ring's last doorbell, in the order of doorbell

	state     atomic.Uint32 // State
	completed atomic.Uint64 // completions written

	mu       sync.Mutex
	link     link
	remote   Endpoint
	posted   uint64    // blocks
	head     uint64    // first block that is not fetched yet
	behind   time.Time // since when the record is ahead of the doorbell; zero: it is not
	entry    mlx5.Entry
	fetched  bool // entry waits to be begun
	parseErr error
	works    []work // a ring: begun is the next to be begun, retired the oldest
	begun    uint64
	retired  uint64
	issuing  *work  // the one of which parts are not submitted yet
	reads    int    // reads and atomics begun and not retired
	executed uint64 // entries begun
	failed   bool   // nothing may begin any more; the failed entry is in works or was retired
	flushing bool   // the failed entry was retired
	overrun  bool   // no completion can be written
	err      error
	small    [8]byte
	bounce   []byte

	evil villain
}

// work is an entry that was begun.
type work struct {
	queue    *Queue
	counter  uint16 // of its first block
	opcode   uint8
	signal   bool // wants a completion
	returns  bool // a read or an atomic
	counted  bool // in Queue.reads
	remoteAt uint64
	key      uint32
	data     []mlx5.Data
	inline   []byte // of the queue's entry: valid until all parts are submitted
	length   uint64
	offset   uint64 // submitted so far
	pieces   []piece
	atomic   mlx5.Atomic
	old      uint64 // what the atomic found
	left     atomic.Int32
	failure  atomic.Uint32 // the first failed part's syndrome
}

// CreateQueue makes a queue in the state INIT.
func (d *Device) CreateQueue(config QueueConfig) (*Queue, error) {
	q := &Queue{device: d, config: config, posted: config.Start, head: config.Start}
	fail := func(err error) (*Queue, error) { return nil, fmt.Errorf("hca: queue %#x: %w", config.Number, err) }
	if config.Number == 0 || config.Number >= 1<<24 {
		return fail(errors.New("the number is not one of 1..2^24-1"))
	}
	if err := q.bindRings(); err != nil {
		return fail(err)
	}
	if err := q.bindWords(); err != nil {
		return fail(err)
	}
	q.works = make([]work, min(window, q.depth))
	for i := range q.works {
		q.works[i].queue = q
	}
	q.evil.init(d.config.Adversary, config.Number)
	q.state.Store(uint32(StateInit))
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fail(ErrClosed)
	}
	if d.queue(config.Number) != nil {
		return fail(ErrExists)
	}
	table := append(slices.Clone(*d.queues.Load()), q)
	d.queues.Store(&table)
	return q, nil
}

// bindRings checks the memory of the work queue and of the completion queue.
func (q *Queue) bindRings() error {
	config := &q.config
	n := len(config.WQ)
	if n < mlx5.BlockBytes || n&(n-1) != 0 || n > layout.MaxDepth*mlx5.BlockBytes {
		return fmt.Errorf("a work queue of %d bytes is not a power of two of blocks, up to %d", n, layout.MaxDepth)
	}
	q.depth = uint64(n / mlx5.BlockBytes)
	if _, err := word("the work queue", config.WQ, n); err != nil {
		return err
	}
	c := len(config.CQ)
	if c < mlx5.BlockBytes || c&(c-1) != 0 {
		return fmt.Errorf("a completion queue of %d bytes is not a power of two of entries", c)
	}
	if _, err := word("the completion queue", config.CQ, c); err != nil {
		return err
	}
	depth := config.CQDepth
	switch {
	case config.CQForm == CQCyclic:
		config.CQDepth = c / mlx5.BlockBytes
	case depth == 0:
		config.CQDepth = int(q.depth)
	}
	if config.CQDepth <= 0 || config.CQDepth&(config.CQDepth-1) != 0 {
		return fmt.Errorf("a completion queue of depth %d, not a power of two", depth)
	}
	return nil
}

// bindWords checks and finds the words by which queue and producer tell each other how far they are.
func (q *Queue) bindWords() error {
	config := &q.config
	if config.CQRecord != nil {
		if len(config.CQRecord) < 4 || uintptr(unsafe.Pointer(&config.CQRecord[0]))%4 != 0 {
			return errors.New("the completion queue's record is not an aligned word of 4 bytes")
		}
		q.cqRecord = (*uint32)(unsafe.Pointer(&config.CQRecord[0]))
	}
	if config.Record != nil || config.Producer != ProducerHostPosts {
		p, err := word("the doorbell record", config.Record, 8)
		if err != nil {
			return err
		}
		q.record = (*uint32)(unsafe.Add(p, 4*mlx5.DoorbellSend))
		if got := q.recordIndex(); got != uint16(config.Start) {
			return fmt.Errorf("the doorbell record has index %d, not the start's %d", got, uint16(config.Start))
		}
	}
	if config.Producer == ProducerDoorbell && config.Doorbell != nil {
		p, err := word("the doorbell", config.Doorbell, 8)
		if err != nil {
			return err
		}
		q.doorbell = (*uint64)(p)
	}
	if config.Producer == ProducerHostPosts {
		p, err := word("the posted count", config.HostPosts, 8)
		if err != nil {
			return err
		}
		q.posts = (*uint64)(p)
	}
	return nil
}

// queue is the one of that number, or nil.
func (d *Device) queue(number uint32) *Queue {
	for _, q := range *d.queues.Load() {
		if q.config.Number == number {
			return q
		}
	}
	return nil
}

// Number is the queue's number.
func (q *Queue) Number() uint32 { return q.config.Number }

// State is the queue's state.
func (q *Queue) State() State { return State(q.state.Load()) }

// Completions is how many completions the device wrote.
func (q *Queue) Completions() uint64 { return q.completed.Load() }

// Err says why the queue is in the state ERR, with the entry that failed first; nil: it is not.
func (q *Queue) Err() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err
}

// Endpoint is what the other side connects its queue to.
func (q *Queue) Endpoint() Endpoint {
	return Endpoint{Address: q.device.address, Token: q.device.token, Queue: q.config.Number}
}

// Connect connects the queue to the one at the other side and begins to execute its entries: RTS. A queue is connected
// once.
func (q *Queue) Connect(ctx context.Context, remote Endpoint) error {
	ctx, cancel := context.WithTimeout(ctx, q.device.config.Retry)
	defer cancel()
	if !q.state.CompareAndSwap(uint32(StateInit), uint32(StateRTR)) {
		return fmt.Errorf("hca: connect queue %#x to %v: it is in state %v", q.config.Number, remote, q.State())
	}
	l, err := q.device.config.Fabric.dial(ctx, q, remote)
	if err != nil {
		q.state.CompareAndSwap(uint32(StateRTR), uint32(StateInit))
		return fmt.Errorf("hca: connect queue %#x to %v: %w", q.config.Number, remote, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.state.CompareAndSwap(uint32(StateRTR), uint32(StateRTS)) {
		l.close()
		return fmt.Errorf("hca: connect queue %#x to %v: %w", q.config.Number, remote, ErrClosed)
	}
	q.link, q.remote = l, remote
	q.device.Kick()
	return nil
}

// Ring is a store to the doorbell register by somebody without access to the word that the queue was made with.
func (q *Queue) Ring(doorbell mlx5.Doorbell) {
	b := doorbell.Bytes()
	q.rung.Store(binary.NativeEndian.Uint64(b[:]))
	q.device.Kick()
}

// Close ends the queue. Nothing touches its memory when Close has returned.
func (q *Queue) Close() error {
	d := q.device
	d.mu.Lock()
	table := slices.DeleteFunc(slices.Clone(*d.queues.Load()), func(o *Queue) bool { return o == q })
	d.queues.Store(&table)
	d.mu.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.state.Store(uint32(StateReset))
	if q.link != nil {
		q.link.close()
		q.link = nil
	}
	return nil
}

// recordIndex is the doorbell record's index.
func (q *Queue) recordIndex() uint16 {
	v := atomic.LoadUint32(q.record)
	return binary.BigEndian.Uint16((*[4]byte)(unsafe.Pointer(&v))[2:])
}

// advance makes index, of which the lower 16 bits are known, the posted count if it can be.
func (q *Queue) advance(index uint16) bool {
	next := q.posted + uint64(index-uint16(q.posted))
	if next == q.posted || next-q.head > q.depth {
		return false // nothing new, or older than what is known
	}
	q.posted = next
	return true
}

// poll looks how far entries are posted and says whether that changed.
func (q *Queue) poll(now time.Time) bool {
	switch q.config.Producer {
	case ProducerRecord:
		if q.recordIndex() == uint16(q.posted) || q.evil.doorbell(uint64(q.recordIndex()), false) {
			return false
		}
		return q.advance(q.recordIndex())
	case ProducerHostPosts:
		posts := atomic.LoadUint64(q.posts)
		if posts == q.posted || q.evil.doorbell(posts, false) {
			return false
		}
		if posts-q.posted > 1<<63 {
			return false // raised by a maximum only
		}
		if posts-q.head > q.depth {
			q.fail(fmt.Errorf("the posted count %d is more than the depth %d beyond the executed %d", posts, q.depth, q.head))
			return true
		}
		q.posted = posts
		return true
	}
	if q.doorbell != nil && q.ring(atomic.LoadUint64(q.doorbell)) || q.ring(q.rung.Load()) {
		q.behind = time.Time{}
		return true
	}
	index := q.recordIndex()
	if index == uint16(q.posted) {
		q.behind = time.Time{}
		return false
	}
	if q.behind.IsZero() {
		q.behind = now
	}
	if now.Sub(q.behind) < recoverAfter {
		return false
	}
	q.behind = time.Time{}
	return q.advance(index)
}

// ring takes a doorbell into account.
func (q *Queue) ring(raw uint64) bool {
	if raw == 0 {
		return false
	}
	d := mlx5.ParseDoorbell((*[8]byte)(unsafe.Pointer(&raw)))
	if d.Queue != q.config.Number || d.Index == uint16(q.posted) || q.evil.doorbell(raw, true) {
		return false
	}
	return q.advance(d.Index)
}

// fail is for what no entry is to blame for: the next one is.
func (q *Queue) fail(err error) {
	if q.err == nil {
		q.err = fmt.Errorf("hca: queue %#x: %w", q.config.Number, err)
		q.device.config.Logf("%v", q.err)
	}
	q.failed, q.flushing = true, true
	q.state.Store(uint32(StateError))
}

// step does a turn's work and says whether there was any.
func (q *Queue) step(now time.Time) (busy bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if s := q.State(); s != StateRTS && s != StateError || q.overrun {
		return false
	}
	if q.evil.on && q.evil.idle() {
		return q.posted != q.head || q.begun != q.retired
	}
	busy = q.poll(now)
	budget := uint64(turnBytes)
	for range turnEntries {
		if q.retire() {
			busy = true
		}
		if q.evil.on && q.evil.late(q) {
			busy = true
		}
		if q.issuing != nil {
			if !q.issue(&budget) {
				break
			}
			busy = true
			if budget == 0 {
				break
			}
			continue
		}
		if q.begun-q.retired == uint64(len(q.works)) || !q.fetch() {
			break
		}
		busy = true
	}
	if q.link != nil {
		q.link.flush()
	}
	if q.retire() {
		busy = true
	}
	return busy
}

// waiting says whether there is something that ends without an entry being posted.
func (q *Queue) waiting() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.begun != q.retired || q.head != q.posted
}

// fetch begins the next entry, if there is one that may.
func (q *Queue) fetch() bool {
	if q.head == q.posted {
		return false
	}
	if !q.fetched {
		q.parseErr = q.entry.Parse(q.config.WQ, q.head, mlx5.Strictness(q.device.config.Strict))
		q.fetched = true
	}
	e := &q.entry
	blocks := uint64(e.Blocks())
	broken := q.parseErr
	switch {
	case e.Index != uint16(q.head):
		broken, blocks = mlx5.FormatError(fmt.Sprintf("the control segment's index is %d", e.Index)), 1
	case e.Queue != q.config.Number:
		broken, blocks = mlx5.FormatError(fmt.Sprintf("the control segment's queue is %#x", e.Queue)), 1
	case blocks == 0:
		blocks = 1
	case blocks > q.posted-q.head:
		broken, blocks = mlx5.FormatError(fmt.Sprintf("%d blocks, of which %d are posted", blocks, q.posted-q.head)), 1
	}
	if broken == nil && !q.failed {
		if e.WaitsForReads() && q.reads > 0 {
			return false
		}
		if e.Opcode == mlx5.OpWait {
			other := q.device.completionQueue(e.WaitQueue)
			if other == nil {
				broken = mlx5.FormatError(fmt.Sprintf("WAIT for a completion queue %#x that is not there", e.WaitQueue))
			} else if int32(uint32(other.completed.Load())-e.WaitIndex) < 0 {
				return false
			}
		}
	}
	w := &q.works[q.begun%uint64(len(q.works))]
	w.counter, w.opcode, w.signal = uint16(q.head), e.Opcode, e.Flags&mlx5.CtrlCompletion != 0
	w.remoteAt, w.key, w.inline, w.atomic = e.RemoteAddress, e.RemoteKey, e.Inline, e.Atomic
	w.data = append(w.data[:0], e.Data...)
	w.pieces, w.offset, w.length, w.old = w.pieces[:0], 0, 0, 0
	w.left.Store(0)
	w.failure.Store(0)
	w.returns, w.counted = false, false
	q.fetched = false
	q.head += blocks
	q.begun++
	q.executed++
	switch {
	case q.failed:
	case broken != nil:
		q.refuse(w, mlx5.SyndromeLocalQueue, broken)
	default:
		q.begin(w)
	}
	return true
}

// completionQueue is the queue that has that completion queue, or nil.
func (d *Device) completionQueue(number uint32) *Queue {
	for _, q := range *d.queues.Load() {
		if q.config.CQNumber == number {
			return q
		}
	}
	return nil
}

// refuse fails a work of which nothing was sent.
func (q *Queue) refuse(w *work, syndrome uint8, why error) {
	w.failure.CompareAndSwap(0, uint32(syndrome))
	q.failed = true
	if q.err == nil {
		q.err = q.blame(w, syndrome, why)
	}
}

func (q *Queue) blame(w *work, syndrome uint8, why error) error {
	if why == nil {
		return fmt.Errorf("hca: queue %#x: entry at block %d, opcode %#x: %s", q.config.Number, w.counter, w.opcode,
			mlx5.SyndromeText(syndrome))
	}
	return fmt.Errorf("hca: queue %#x: entry at block %d, opcode %#x: %s: %w", q.config.Number, w.counter, w.opcode,
		mlx5.SyndromeText(syndrome), why)
}

// begin checks a work's local side and makes it the one whose parts are submitted.
func (q *Queue) begin(w *work) {
	if syndrome := q.evil.failure(q); syndrome != 0 {
		q.refuse(w, syndrome, errors.New("the adversary's choice"))
		return
	}
	access := Access(0)
	switch w.opcode {
	case mlx5.OpNOP, mlx5.OpWait:
		return
	case mlx5.OpSend, mlx5.OpSendImm, mlx5.OpWriteImm:
		q.refuse(w, mlx5.SyndromeNotReady, errors.New("queues of the other side have no receive buffers"))
		return
	case mlx5.OpRead:
		w.returns, access = true, LocalWrite
	case mlx5.OpCompareSwap, mlx5.OpFetchAdd, mlx5.OpMaskedSwap, mlx5.OpMaskedAdd:
		w.returns, access = true, LocalWrite
	}
	w.length = uint64(len(w.inline))
	for _, d := range w.data {
		w.length += d.Length()
	}
	if w.length > maxMessage {
		q.refuse(w, mlx5.SyndromeLocalLength, fmt.Errorf("%d bytes", w.length))
		return
	}
	for _, d := range w.data {
		r := q.device.acquire(d.Key, d.Address, d.Length(), access)
		if r == nil {
			q.refuse(w, mlx5.SyndromeLocalProtect, fmt.Errorf("%d bytes at %#x with key %#x", d.Length(), d.Address, d.Key))
			return
		}
		r.release()
	}
	if w.opcode == mlx5.OpDump {
		return // what was written before is visible: nothing is cached here
	}
	if w.atomic.Bytes != 0 {
		if w.length < uint64(w.atomic.Bytes) {
			q.refuse(w, mlx5.SyndromeLocalLength, fmt.Errorf("%d bytes for the result of an atomic operation on %d", w.length, w.atomic.Bytes))
			return
		}
		w.length = uint64(w.atomic.Bytes)
	}
	if w.length == 0 {
		return
	}
	if w.returns {
		w.counted = true
		q.reads++
	}
	w.left.Store(1) // given back when the last part is submitted
	if q.evil.on && q.evil.take(q, w) {
		return
	}
	q.issuing = w
}

// issue submits parts of the work that is being begun; false: there is no room, or not in this turn.
func (q *Queue) issue(budget *uint64) bool {
	w := q.issuing
	for {
		if q.failed || w.failure.Load() != 0 {
			q.failed = true
			break
		}
		p := part{w, piece{w.offset, min(w.length-w.offset, partBytes)}}
		last := w.offset+p.n == w.length
		if n := len(w.pieces); n > 0 {
			p.piece, last = w.pieces[n-1], n == 1
		}
		w.left.Add(1)
		if !q.link.submit(p) {
			w.left.Add(-1)
			return false
		}
		w.offset += p.n
		if n := len(w.pieces); n > 0 {
			w.pieces = w.pieces[:n-1]
		}
		if last {
			break
		}
		if *budget -= min(*budget, p.n); *budget == 0 || q.evil.on && q.evil.pause() {
			*budget = 0
			return true
		}
	}
	if w.failure.Load() != 0 {
		q.failed = true
	}
	*budget -= min(*budget, w.length)
	q.issuing = nil
	w.left.Add(-1)
	return true
}

// retire ends the works that are complete, in order.
func (q *Queue) retire() (any bool) {
	for q.retired != q.begun {
		w := &q.works[q.retired%uint64(len(q.works))]
		if w.left.Load() != 0 || w == q.issuing || q.evil.on && q.evil.lateCompletion() {
			break
		}
		if w.counted {
			q.reads--
		}
		q.retired++
		q.finish(w)
		any = true
		if q.overrun {
			break
		}
	}
	return any
}

// finish writes a work's completion.
func (q *Queue) finish(w *work) {
	syndrome := uint8(w.failure.Load())
	if q.flushing {
		q.complete(w, mlx5.SyndromeFlushed)
		return
	}
	if syndrome == 0 && w.atomic.Bytes != 0 {
		syndrome = q.scatterOld(w)
	}
	if syndrome != 0 {
		q.failed, q.flushing = true, true
		if q.err == nil {
			q.err = q.blame(w, syndrome, nil)
		}
		q.state.Store(uint32(StateError))
		q.device.config.Logf("%v", q.err)
		q.complete(w, syndrome)
		return
	}
	if w.signal {
		q.complete(w, 0)
	}
}

// complete writes a completion.
func (q *Queue) complete(w *work, syndrome uint8) {
	n := q.completed.Load()
	depth := uint64(q.config.CQDepth)
	index := uint64(0)
	if q.config.CQForm == CQCyclic {
		index = n & (depth - 1)
		if q.cqRecord != nil {
			v := atomic.LoadUint32(q.cqRecord)
			consumed := uint64(binary.BigEndian.Uint32((*[4]byte)(unsafe.Pointer(&v))[:]))
			if (n-consumed)&0xffffff >= depth {
				q.fail(fmt.Errorf("the completion queue is full: %d entries, %d consumed", n, consumed))
				q.overrun = true
				return
			}
		}
	}
	c := mlx5.Completion{Opcode: mlx5.CompletionRequester, SendOpcode: w.opcode, Queue: q.config.Number, Counter: w.counter,
		Owner: uint8(n / depth & 1)}
	if syndrome != 0 {
		c.Opcode, c.Syndrome = mlx5.CompletionError, syndrome
	} else {
		c.Timestamp = uint64(time.Since(q.device.started))
		if w.returns {
			c.ByteCount = uint32(w.length)
		}
	}
	var b [mlx5.BlockBytes]byte
	c.Put(&b)
	dst := unsafe.Pointer(&q.config.CQ[index*mlx5.BlockBytes])
	for i := 0; i < mlx5.BlockBytes; i += 8 { // the last word makes it valid
		atomic.StoreUint64((*uint64)(unsafe.Add(dst, i)), binary.NativeEndian.Uint64(b[i:]))
	}
	q.completed.Store(n + 1)
}
