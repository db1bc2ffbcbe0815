package ctxswitch

import (
	"encoding/binary"
	"math"

	"github.com/lgpu/lgpu/gpu"
)

// record is one record of the ring: a context began or ceased to run.
type record struct {
	kind uint16
	tag  uint8
	seq  uint16
	pid  uint32
	time uint64
}

// decode copies a record before it looks at it, since the driver may write over it meanwhile.
func decode(slot []byte) record {
	var b [recordSize]byte
	copy(b[:], slot)
	return record{
		kind: binary.LittleEndian.Uint16(b[recordKind:]),
		tag:  b[recordTag],
		seq:  binary.LittleEndian.Uint16(b[recordSeq:]),
		pid:  binary.LittleEndian.Uint32(b[recordPID:]),
		time: binary.LittleEndian.Uint64(b[recordTime:]),
	}
}

// history makes turns of the records of a ring. It believes nothing of what the ring holds: a turn is told only if its
// start and its end were read and no record is missing between them. A device runs one context at a time, so whatever
// record comes after a start ends that turn. The zero history knows nothing yet.
type history struct {
	get     uint32 // index of the next record
	seq     uint16 // its number, if known
	known   bool
	waited  bool  // the record at get was not there yet when it was looked at
	time    int64 // of the record before
	turn    gpu.Turn
	running bool   // turn has begun and not ended
	lost    uint64 // records that are missing, as far as their numbers tell
}

// skip leaves out what the ring holds up to index put, because it cannot be trusted or is not wanted.
func (h *history) skip(put uint32) {
	h.get, h.known, h.waited = put, false, false
	h.doubt()
}

// doubt forgets the turn that has begun: its end may be missing.
func (h *history) doubt() { h.running = false }

// read appends the turns that the records before index put end.
func (h *history) read(ring []byte, put uint32, turns []gpu.Turn) []gpu.Turn {
	slots := uint32(len(ring) / recordSize)
	if put >= slots || h.get >= slots { // the driver's indices are less
		h.doubt()
		return turns
	}
	for h.get != put {
		r := decode(ring[h.get*recordSize : (h.get+1)*recordSize])
		if !h.waited && h.coming(r, slots) {
			h.waited = true
			return turns
		}
		h.waited = false
		h.get = (h.get + 1) % slots
		turns = h.take(r, turns)
	}
	return turns
}

// coming reports whether r is still what the ring held before the next record, nothing or one of the round before: the
// driver counts a record a moment before it writes it.
func (h *history) coming(r record, slots uint32) bool {
	return r.kind == 0 || h.known && r.seq != h.seq && (r.time == 0 || r.seq == h.seq-uint16(slots))
}

// take goes on by one record.
func (h *history) take(r record, turns []gpu.Turn) []gpu.Turn {
	if r.kind != kindSwitch {
		h.known = false
		h.lost++
		h.doubt()
		return turns
	}
	if h.known && r.seq != h.seq {
		h.lost += uint64(r.seq - h.seq)
		h.doubt()
	}
	h.seq, h.known = r.seq+1, true
	if r.time == 0 || r.time > math.MaxInt64 || r.tag == tagBadClock { // the driver did not know the time
		h.doubt()
		return turns
	}
	now, before := int64(r.time), h.time
	h.time = now
	if now < before { // neither this time nor those before can be trusted
		h.doubt()
		return turns
	}
	switch r.tag {
	case tagStart, tagSimple:
		turns = h.end(now, turns)
		h.turn = gpu.Turn{PID: pid(r.pid), Start: now}
		h.running = true
	case tagSaveEnd, tagEnd:
		turns = h.end(now, turns)
	case tagReset:
		h.doubt()
	}
	return turns
}

// end appends the turn that has begun, if any.
func (h *history) end(now int64, turns []gpu.Turn) []gpu.Turn {
	if !h.running {
		return turns
	}
	h.running = false
	h.turn.End = now
	return append(turns, h.turn)
}

// unfinished appends the turn that has begun, if any, as it is at time now.
func (h *history) unfinished(now int64, turns []gpu.Turn) []gpu.Turn {
	if !h.running {
		return turns
	}
	t := h.turn
	t.End, t.Unfinished = max(now, h.time), true
	return append(turns, t)
}

// pid is a process as gpu.Turn names it: 0 for the driver's own contexts and for those that the driver hides.
func pid(p uint32) int {
	if p == pidKernel {
		return 0
	}
	return int(p)
}
