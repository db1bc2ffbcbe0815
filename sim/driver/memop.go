package driver

import (
	"encoding/binary"
	"time"

	"github.com/lgpu/lgpu/sim/hw"
	"github.com/lgpu/lgpu/sim/wire"
)

// memop is a wait for a value in memory, or a write of one.
type memop struct {
	addr, value uint64
	bytes       int // 4 or 8
	wait        bool
	flags       uint32
}

// memops is the op of cuStreamWaitValue, cuStreamWriteValue and cuStreamBatchMemOp: one after the other.
type memops struct {
	ctx  *context
	list []memop
	raw  []wire.CUstreamBatchMemOpParams
	flag uint32
}

func (m *memops) begin(d *Driver, w *work, at hw.Time) { d.step(&poll{work: w, rest: m.list}, at) }

// poll is a work that waits for memory to have a value.
type poll struct {
	work *work
	rest []memop
}

// step does the operations of a poll up to a wait that does not hold yet; then the poll is looked at again and again.
func (d *Driver) step(pl *poll, at hw.Time) {
	if d.advance(pl, at) {
		return
	}
	d.polls = append(d.polls, pl)
	if !d.polling {
		d.polling = true
		go d.pollLoop()
	}
}

// advance reports whether the poll is over.
func (d *Driver) advance(pl *poll, at hw.Time) bool {
	w := pl.work
	for ; len(pl.rest) > 0 && !w.done; pl.rest = pl.rest[1:] {
		o := pl.rest[0]
		var b [8]byte
		var err error
		holds := true
		d.machine.Hold(func() {
			if !o.wait {
				binary.LittleEndian.PutUint64(b[:], o.value)
				err = w.ctx.p.uva.Write(b[:o.bytes], o.addr)
				return
			}
			if err = w.ctx.p.uva.Read(b[:o.bytes], o.addr); err == nil {
				holds = o.holds(binary.LittleEndian.Uint64(b[:]))
			}
		})
		if err != nil {
			w.ctx.fail(err)
			return true
		}
		if !holds {
			return false
		}
	}
	d.end(w, at)
	return true
}

// holds compares as the flags of the wait say.
func (o memop) holds(have uint64) bool {
	if o.bytes == 4 {
		have, want := uint32(have), uint32(o.value)
		switch o.flags & 3 {
		case uint32(wire.CU_STREAM_WAIT_VALUE_GEQ):
			return int32(have-want) >= 0
		case uint32(wire.CU_STREAM_WAIT_VALUE_EQ):
			return have == want
		case uint32(wire.CU_STREAM_WAIT_VALUE_AND):
			return have&want != 0
		}
		return ^(have | want) != 0
	}
	switch o.flags & 3 {
	case uint32(wire.CU_STREAM_WAIT_VALUE_GEQ):
		return int64(have-o.value) >= 0
	case uint32(wire.CU_STREAM_WAIT_VALUE_EQ):
		return have == o.value
	case uint32(wire.CU_STREAM_WAIT_VALUE_AND):
		return have&o.value != 0
	}
	return ^(have | o.value) != 0
}

// pollEvery is the time between two looks at memory that works wait for: programs write it without a call.
const pollEvery = 50 * time.Microsecond

// pollLoop runs while there are polls.
func (d *Driver) pollLoop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.polls) > 0 {
		d.mu.Unlock()
		hw.Sleep(pollEvery)
		d.mu.Lock()
		list := d.polls
		d.polls = nil
		for _, pl := range list {
			if !pl.work.done && !d.advance(pl, pl.work.ctx.dev.hw.Clock.Now()) {
				d.polls = append(d.polls, pl)
			}
		}
		d.drain()
	}
	d.polling = false
}

// memops makes an op of what the program gave, which must be of memory that is there.
func (p *Process) memops(c *context, raw []wire.CUstreamBatchMemOpParams, flags uint32) (*memops, Result) {
	m, res := newMemops(c, raw, flags)
	if res != success {
		return nil, res
	}
	for _, o := range m.list {
		if !p.uva.Mapped(o.addr, uint64(o.bytes), false) {
			return nil, errInvalidValue
		}
	}
	return m, success
}

// newMemops checks operations on memory, but for what lies at their addresses.
func newMemops(c *context, raw []wire.CUstreamBatchMemOpParams, flags uint32) (*memops, Result) {
	if len(raw) == 0 || len(raw) > 256 || flags != 0 {
		return nil, errInvalidValue
	}
	m := &memops{ctx: c, raw: append([]wire.CUstreamBatchMemOpParams(nil), raw...), flag: flags}
	for _, r := range raw {
		o := memop{addr: uint64(r.Address), value: r.Value, flags: r.Flags, bytes: 4}
		switch r.Operation {
		case wire.CU_STREAM_MEM_OP_WAIT_VALUE_64:
			o.wait, o.bytes = true, 8
		case wire.CU_STREAM_MEM_OP_WAIT_VALUE_32:
			o.wait = true
		case wire.CU_STREAM_MEM_OP_WRITE_VALUE_64:
			o.bytes = 8
		case wire.CU_STREAM_MEM_OP_WRITE_VALUE_32:
		case wire.CU_STREAM_MEM_OP_BARRIER, wire.CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
			continue // memory here is always in order
		default:
			return nil, errInvalidValue
		}
		known := uint32(wire.CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)
		if o.wait {
			known = 3 | uint32(wire.CU_STREAM_WAIT_VALUE_FLUSH)
		}
		if o.addr == 0 || o.addr%uint64(o.bytes) != 0 || o.flags&^known != 0 {
			return nil, errInvalidValue
		}
		m.list = append(m.list, o)
	}
	return m, success
}
