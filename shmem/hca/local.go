package hca

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/lgpu/lgpu/shmem/mlx5"
)

// Errors of Connect.
var (
	errNotHere = errors.New("no such address in this fabric")
	ErrToken   = errors.New("the token is not the device's")
	ErrQueue   = errors.New("the device has no such queue, or it has failed")
)

// Local is the fabric of the devices of one process. Requests are carried out by the goroutine of the device that makes
// them, straight from memory to memory.
//
// The memory of a device of another process on the same host can be reached so too: let a device of this process stand
// in for it, with the other's Address and Token and AnyQueue, and register with it what this process has mapped of the
// other's memory, under the other's addresses and keys.
type Local struct {
	mu      sync.Mutex
	devices map[string]*Device
}

// NewLocal is an empty fabric.
func NewLocal() *Local { return &Local{devices: map[string]*Device{}} }

var locals atomic.Int64 // makes addresses unique in the process

func (l *Local) attach(d *Device, address string) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if address == "" {
		address = fmt.Sprintf("local:%d", locals.Add(1))
	}
	if l.devices[address] != nil {
		return "", fmt.Errorf("hca: a device with address %s: %w", address, ErrExists)
	}
	l.devices[address] = d
	return address, nil
}

func (l *Local) detach(d *Device) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.devices[d.address] == d {
		delete(l.devices, d.address)
	}
}

func (l *Local) dial(_ context.Context, q *Queue, remote Endpoint) (link, error) {
	l.mu.Lock()
	d := l.devices[remote.Address]
	l.mu.Unlock()
	if d == nil {
		return nil, errNotHere
	}
	r, err := d.responder(remote)
	if err != nil {
		return nil, err
	}
	return &localLink{queue: q, responder: r}, nil
}

// responder is a device's side of a connection to one of its queues.
type responder struct {
	device *Device
	queue  *Queue // nil: any
}

// responder checks who wants to reach a queue.
func (d *Device) responder(remote Endpoint) (responder, error) {
	if subtle.ConstantTimeCompare(remote.Token[:], d.token[:]) != 1 {
		return responder{}, ErrToken
	}
	r := responder{device: d}
	if !d.config.AnyQueue {
		if r.queue = d.queue(remote.Queue); r.queue == nil || !r.answers() {
			return responder{}, ErrQueue
		}
	}
	return r, nil
}

// answers says whether the queue is in a state in which requests are carried out.
func (r *responder) answers() bool {
	if r.device.gone.Load() {
		return false
	}
	if r.queue == nil {
		return true
	}
	s := r.queue.State()
	return s != StateReset && s != StateError
}

// request is what one side asks of the other: a piece of a message of total bytes at address.
type request struct {
	address, total uint64
	piece
	key uint32
}

// acquire finds the memory of a request, or says why there is none. All of the message must be there before any of it
// moves.
func (r *responder) acquire(q *request, access Access) (*region, uint8) {
	if !r.answers() {
		return nil, mlx5.SyndromeRetry
	}
	if q.offset > q.total || q.n > q.total-q.offset {
		return nil, mlx5.SyndromeRemoteRequest
	}
	if m := r.device.acquire(q.key, q.address, q.total, access); m != nil {
		return m, 0
	}
	return nil, mlx5.SyndromeRemoteAccess
}

// failed reports an error of the device's own memory.
func (r *responder) failed(err error) uint8 {
	r.device.config.Logf("hca: request from another device: %v", err)
	return mlx5.SyndromeRemoteOp
}

// write stores b.
func (r *responder) write(q *request, b []byte) uint8 {
	m, syndrome := r.acquire(q, RemoteWrite)
	if m == nil {
		return syndrome
	}
	defer m.release()
	if err := m.memory.WriteAt(b, q.address+q.offset); err != nil {
		return r.failed(err)
	}
	return 0
}

// read fills b.
func (r *responder) read(q *request, b []byte) uint8 {
	m, syndrome := r.acquire(q, RemoteRead)
	if m == nil {
		return syndrome
	}
	defer m.release()
	if err := m.memory.ReadAt(b, q.address+q.offset); err != nil {
		return r.failed(err)
	}
	return 0
}

// atomic carries out op.
func (r *responder) atomic(q *request, op *mlx5.Atomic) (uint64, uint8) {
	if q.address%uint64(op.Bytes) != 0 {
		return 0, mlx5.SyndromeRemoteRequest
	}
	m, syndrome := r.acquire(q, RemoteAtomic)
	if m == nil {
		return 0, syndrome
	}
	defer m.release()
	old, err := r.device.atomic(m, q.address, op)
	if err != nil {
		return 0, r.failed(err)
	}
	return old, 0
}

// localLink is a connection inside the process.
type localLink struct {
	queue *Queue
	responder
}

func (l *localLink) submit(p part) bool {
	w := p.work
	q := request{address: w.remoteAt, total: w.length, piece: p.piece, key: w.key}
	switch {
	case w.atomic.Bytes != 0:
		old, syndrome := l.atomic(&q, &w.atomic)
		w.old = old
		w.partDone(syndrome)
	case w.inline != nil:
		w.partDone(l.write(&q, w.inline[p.offset:p.offset+p.n]))
	default:
		w.partDone(l.move(w, q))
	}
	return true
}

// bounceBytes is the size of the buffer for memory that this process cannot address.
const bounceBytes = 64 << 10

// move carries out a piece of a write or a read, range by range of the local side.
func (l *localLink) move(w *work, q request) uint8 {
	access := Access(0)
	if w.returns {
		access = LocalWrite
	}
	i, within := find(w.data, q.offset)
	for left := q.n; left > 0 && i < len(w.data); {
		s := w.data[i]
		q.n = min(s.Length()-within, left)
		m := l.queue.device.acquire(s.Key, s.Address+within, q.n, access)
		if m == nil {
			return mlx5.SyndromeLocalProtect
		}
		if m.view == nil {
			q.n = min(q.n, bounceBytes)
		}
		syndrome := l.segment(w, &q, m, s.Address+within)
		m.release()
		if syndrome != 0 {
			return syndrome
		}
		q.offset += q.n
		left -= q.n
		if within += q.n; within == s.Length() {
			i, within = i+1, 0
		}
	}
	return 0
}

// segment moves one range.
func (l *localLink) segment(w *work, q *request, m *region, address uint64) uint8 {
	local := l.queue.small[:]
	var err error
	switch {
	case q.n <= 8:
		local = local[:q.n]
	case m.view != nil:
		local, err = m.view.View(address, q.n)
	default:
		if l.queue.bounce == nil {
			l.queue.bounce = make([]byte, bounceBytes)
		}
		local = l.queue.bounce[:q.n]
	}
	buffered := m.view == nil || q.n <= 8
	if w.returns {
		if err == nil {
			if syndrome := l.read(q, local); syndrome != 0 {
				return syndrome
			}
			if buffered {
				err = m.memory.WriteAt(local, address)
			}
		}
	} else {
		if err == nil && buffered {
			err = m.memory.ReadAt(local, address)
		}
		if err == nil {
			return l.write(q, local)
		}
	}
	if err != nil {
		l.queue.device.config.Logf("hca: queue %#x: %v", l.queue.config.Number, err)
		return mlx5.SyndromeLocalProtect
	}
	return 0
}

func (l *localLink) flush() {}
func (l *localLink) close() {}

// joined is a fabric of several.
type joined []Fabric

// Join is a fabric that reaches a device by the first of several fabrics that can. A device's address is that of the
// last.
func Join(fabrics ...Fabric) Fabric { return joined(fabrics) }

func (j joined) attach(d *Device, address string) (string, error) {
	for i := len(j) - 1; i >= 0; i-- {
		a, err := j[i].attach(d, address)
		if err != nil {
			for _, done := range j[i+1:] {
				done.detach(d)
			}
			return "", err
		}
		address = a
	}
	return address, nil
}

func (j joined) detach(d *Device) {
	for _, f := range j {
		f.detach(d)
	}
}

func (j joined) dial(ctx context.Context, q *Queue, remote Endpoint) (link, error) {
	for _, f := range j {
		l, err := f.dial(ctx, q, remote)
		if !errors.Is(err, errNotHere) {
			return l, err
		}
	}
	return nil, errNotHere
}
