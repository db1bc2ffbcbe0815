package ctxswitch

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/lgpu/lgpu/gpu"
)

// numbered gives records their numbers, from first on.
func numbered(first uint16, records ...record) []record {
	for n := range records {
		records[n].seq = first + uint16(n)
	}
	return records
}

// without leaves out the record at index n.
func without(n int, records []record) []record { return slices.Delete(slices.Clone(records), n, n+1) }

func TestHistory(t *testing.T) {
	tagged := func(tag uint8, r record) record { r.tag = tag; return r }
	three := numbered(65534, start(1, 10), end(1, 20), start(2, 30), end(2, 40), start(3, 50), end(3, 60))
	one, two, last := gpu.Turn{PID: 1, Start: 10, End: 20}, gpu.Turn{PID: 2, Start: 30, End: 40}, gpu.Turn{PID: 3, Start: 50, End: 60}
	tests := []struct {
		name    string
		records []record
		want    []gpu.Turn
		lost    uint64
	}{
		{"nothing", nil, nil, 0},
		{"all", three, []gpu.Turn{one, two, last}, 0},
		{"records of the long form", numbered(0, tagged(tagStart, start(1, 10)), tagged(tagSaveEnd, end(1, 20))), []gpu.Turn{one}, 0},
		{"end without start", without(0, three), []gpu.Turn{two, last}, 0},
		{"an end is missing", without(1, three), []gpu.Turn{two, last}, 1},
		{"a start is missing", without(2, three), []gpu.Turn{one, last}, 1},
		{"start and end are missing", without(1, without(1, three)), []gpu.Turn{last}, 2},
		{"a turn is missing", without(2, without(2, three)), []gpu.Turn{one, last}, 2},
		{"start after start", numbered(0, start(1, 10), start(2, 20), end(2, 30)),
			[]gpu.Turn{{PID: 1, Start: 10, End: 20}, {PID: 2, Start: 20, End: 30}}, 0},
		{"end after end", numbered(0, start(1, 10), end(1, 20), end(1, 25), start(2, 30), end(2, 40)), []gpu.Turn{one, two}, 0},
		{"end of a context that is gone", numbered(0, start(1, 10), end(pidKernel, 20)), []gpu.Turn{one}, 0},
		{"out of order", []record{three[0], three[1], three[3], three[2], three[4], three[5]}, []gpu.Turn{one, last}, 1 + 65534 + 1},
		{"twice the same", []record{three[0], three[0], three[1]}, []gpu.Turn{one}, 65535},
		{"an end goes back", numbered(0, start(1, 10), end(1, 9), start(2, 30), end(2, 40)), []gpu.Turn{two}, 0},
		{"a start goes back", numbered(0, start(1, 10), end(1, 20), start(2, 19), end(2, 25), start(2, 30), end(2, 40)),
			[]gpu.Turn{one, two}, 0},
		{"a time far ahead", numbered(0, start(1, 10), end(1, 20), start(9, math.MaxInt64), end(9, 25), start(2, 30), end(2, 40)),
			[]gpu.Turn{one, two}, 0},
		{"no time", numbered(0, start(1, 0), end(1, 20), start(2, 30), end(2, 0), end(2, 35), start(3, 50), end(3, 60)),
			[]gpu.Turn{last}, 0},
		{"no time that fits", numbered(0, start(1, 10), end(1, 1<<63), start(2, 30), end(2, 40)), []gpu.Turn{two}, 0},
		{"bad clock", numbered(0, start(1, 10), tagged(tagBadClock, end(1, 15)), end(1, 20), start(2, 30), end(2, 40)), []gpu.Turn{two}, 0},
		{"reset", numbered(0, start(1, 10), tagged(tagReset, end(1, 15)), end(1, 20), start(2, 30), end(2, 40)), []gpu.Turn{two}, 0},
		{"other tags", numbered(0, start(1, 10), tagged(1, end(1, 15)), end(1, 20)), []gpu.Turn{one}, 0},
		{"other kinds", numbered(0, start(1, 10), record{kind: 134, tag: tagEnd, time: 15}, end(1, 20), start(2, 30), end(2, 40)),
			[]gpu.Turn{two}, 1},
	}
	for _, test := range tests {
		// In one look, and in a look for each record.
		for _, each := range []bool{false, true} {
			var h history
			var got []gpu.Turn
			ring := make([]byte, 32*recordSize)
			for n, r := range test.records {
				encode(ring[n*recordSize:], r)
				if each {
					got = h.read(ring, uint32(n+1), got)
				}
			}
			got = h.read(ring, uint32(len(test.records)), got)
			if !slices.Equal(got, test.want) || h.lost != test.lost {
				t.Errorf("%s: %+v, %d lost; want %+v, %d", test.name, got, h.lost, test.want, test.lost)
			}
		}
	}
}

// TestComing: a record that is counted before it is written is waited for, once.
func TestComing(t *testing.T) {
	const size = 8
	ring := make([]byte, size*recordSize)
	write := func(seq uint16, r record) {
		r.seq = seq
		encode(ring[int(seq)%size*recordSize:], r)
	}
	var h history
	look := func(put uint32, want ...gpu.Turn) {
		t.Helper()
		if got := h.read(ring, put, nil); !slices.Equal(got, want) || h.lost != 0 {
			t.Errorf("%+v, %d lost; want %+v", got, h.lost, want)
		}
	}
	write(0, start(1, 10))
	look(2)
	write(1, end(1, 20)) // in the first round there was nothing before it
	look(2, gpu.Turn{PID: 1, Start: 10, End: 20})
	write(2, start(2, 30))
	write(3, end(2, 40))
	look(4, gpu.Turn{PID: 2, Start: 30, End: 40})
	for seq := uint16(4); seq < 8; seq += 2 {
		write(seq, start(3, 10*uint64(seq)+10))
		write(seq+1, end(3, 10*uint64(seq)+20))
	}
	write(8, start(4, 90))
	look(2, gpu.Turn{PID: 3, Start: 50, End: 60}, gpu.Turn{PID: 3, Start: 70, End: 80})
	write(9, end(4, 100)) // before it there was number 1
	look(2, gpu.Turn{PID: 4, Start: 90, End: 100})
	// One that never comes is lost.
	for range 2 {
		h.read(ring, 3, nil)
	}
	if h.lost == 0 || h.get != 3 {
		t.Errorf("%+v", h)
	}
}

// FuzzHistory reads a ring of any bytes, with any indices. What it tells must be made of times that the ring had.
func FuzzHistory(f *testing.F) {
	slot := make([]byte, recordSize)
	var whole []byte
	for _, r := range numbered(0, start(1, 10), end(1, 20), start(2, 30), end(2, 40)) {
		encode(slot, r)
		whole = append(whole, slot...)
	}
	f.Add(whole, []byte{1, 3, 0, 2})
	f.Add(whole[:70], []byte{2, 1, 255, 0})
	f.Add([]byte{}, []byte{0, 1})
	f.Fuzz(func(t *testing.T, ring, puts []byte) {
		times := map[int64]bool{}
		for n := range len(ring) / recordSize {
			times[int64(binary.LittleEndian.Uint64(ring[n*recordSize+recordTime:]))] = true
		}
		var h history
		for _, put := range puts {
			turns := h.read(ring, uint32(put), nil)
			if len(turns) > len(ring)/recordSize {
				t.Fatalf("%d turns of %d bytes", len(turns), len(ring))
			}
			for _, turn := range turns {
				if turn.Start > turn.End || turn.Start <= 0 || !times[turn.Start] || !times[turn.End] || turn.Unfinished {
					t.Fatalf("%+v", turn)
				}
			}
			for _, turn := range h.unfinished(int64(put), nil) {
				if turn.Start > turn.End || !turn.Unfinished {
					t.Fatalf("%+v", turn)
				}
			}
			if put == 255 {
				h.skip(uint32(len(ring)))
			}
		}
	})
}

// FuzzLoss takes records out of a log that is sound. Every turn that is told must be one of the sound log's.
func FuzzLoss(f *testing.F) {
	f.Add([]byte{0b10110111, 0, 0xff, 0x0f}, uint16(65530))
	f.Add([]byte{0xff, 0xfe, 0xff}, uint16(0))
	f.Fuzz(func(t *testing.T, keep []byte, first uint16) {
		if len(keep) > 500 {
			return
		}
		var log []record
		real := map[gpu.Turn]bool{}
		for n := range uint32(4 * len(keep)) {
			turn := gpu.Turn{PID: int(1 + n%3), Start: int64(100 + 10*n), End: int64(107 + 10*n)}
			log = append(log, start(uint32(turn.PID), uint64(turn.Start)), end(uint32(turn.PID), uint64(turn.End)))
			real[turn] = true
		}
		numbered(first, log...)
		ring := make([]byte, (len(log)+1)*recordSize)
		kept := 0
		for n, r := range log {
			if keep[n/8]>>(n%8)&1 == 1 {
				encode(ring[kept*recordSize:], r)
				kept++
			}
		}
		var h history
		turns := h.read(ring, uint32(kept), nil)
		turns = h.read(ring, uint32(kept), turns) // what looked as if it were coming
		for n, turn := range turns {
			if !real[turn] || n > 0 && turn.Start < turns[n-1].End {
				t.Fatalf("turn %d: %+v never was", n, turn)
			}
		}
		if kept == len(log) && len(turns) != len(real) {
			t.Fatalf("%d turns of %d", len(turns), len(real))
		}
	})
}
