package ibgda

import (
	"bytes"
	"errors"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/shmem/layout"
)

// Where no provider can be made, Open says why, and nothing of one is closed.
func TestNoProvider(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	busy := l.Addr().String()
	for _, c := range []struct {
		nic, listen string
		is          error
		says        []string
	}{
		{Host, busy, unix.EADDRINUSE, []string{busy, "LSHMEM_HCA_LISTEN", "port 0"}},
		{Auto, busy, unix.EADDRINUSE, []string{busy, "LSHMEM_HCA_LISTEN", "port 0"}},
		{Host, "127.0.0.1:many", nil, []string{"127.0.0.1:many", "LSHMEM_HCA_LISTEN"}},
	} {
		_, err := openJob(t, 1, withSettings(func(s *Settings) { s.NIC, s.Prefix, s.Listen = c.nic, "nobody's", c.listen }))
		if err == nil || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("NIC %s at %s: %v", c.nic, c.listen, err)
			continue
		}
		for _, want := range c.says {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("NIC %s at %s: %v: does not say %q", c.nic, c.listen, err, want)
			}
		}
	}
	// Processes at one port: PEs of one process share it.
	if _, err := openJob(t, 2, withSettings(func(s *Settings) { s.Listen = "127.0.0.2:0" })); err != nil {
		t.Error(err)
	}
	if p, err := provider((*soft)(nil), errors.New("no")); p != nil || err == nil {
		t.Errorf("a provider that could not be made is a %T, not nil", p)
	}
}

// A piece need not end with an entry of the key table, as buffers of a program do not: its keys end where it does, and
// what is after it in its last entry stays unreachable.
func TestPartOfAnEntry(t *testing.T) {
	j := newJob(t, 2)
	const index, size = 4, 1<<testShift + 1<<testShift/4 // an entry and a quarter
	var blobs [][]byte
	for _, m := range j {
		c := m.chunk(index)
		c.Bytes = size
		b, err := m.Register(c)
		if err != nil {
			t.Fatal(err)
		}
		blobs = append(blobs, b)
	}
	for _, m := range j {
		if err := m.Attach(index, blobs); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.refresh(); err != nil {
		t.Fatal(err)
	}
	m, at := j[0], uint64(index)<<testShift
	for _, offset := range []uint64{at, at + 1<<testShift, at + size - 8} {
		pattern(m.heap[:8], int(offset), 1)
		if k := m.remoteKey(offset, 1, 0); k.End != at+size {
			t.Errorf("the remote key at %#x ends at %#x, not at %#x", offset, k.End, at+size)
		}
		if k := m.localKey(offset, 0); k.End != at+size {
			t.Errorf("the local key at %#x ends at %#x, not at %#x", offset, k.End, at+size)
		}
		if err := m.put(1, 0, offset, 0, 8); err != nil || !bytes.Equal(j[1].heap[offset:][:8], m.heap[:8]) {
			t.Errorf("a put to %#x: %v", offset, err)
		}
	}
	if k := m.remoteKey(at+2<<testShift, 1, 0); k != (layout.Key{}) {
		t.Errorf("the entry after the piece: %+v", k)
	}
	if err := m.put(1, 0, at+size-4, 0, 8); err == nil {
		t.Error("a put over the end of the piece succeeded")
	}
	for _, m := range j {
		if err := m.Detach(index); err != nil {
			t.Fatal(err)
		}
		if k := m.remoteKey(at+size-8, 1, 0); k != (layout.Key{}) {
			t.Errorf("the last entry after the piece has gone: %+v", k)
		}
		// Its place is free again, for a whole piece.
		if _, err := m.Register(m.chunk(index)); err != nil {
			t.Error(err)
		}
	}
	c := m.chunk(testHeap>>testShift - 1)
	c.Bytes = 1<<testShift + 8
	if _, err := m.Register(c); err == nil {
		t.Error("a piece over the end of the key table was registered")
	}
}

// What picks a caller's queue is in the State.
func TestQueuePicker(t *testing.T) {
	for by, want := range map[By]uint32{ByCTA: 0, ByWarp: layout.StateCallerWarp, BySM: layout.StateCallerSM} {
		j := newJob(t, 1, withSettings(func(s *Settings) { s.By = by }))
		if got := j[0].state.Flags; got != want {
			t.Errorf("LSHMEM_QP_BY=%v: flags %#x, want %#x", by, got, want)
		}
	}
	s := layout.State{Flags: layout.StateCallerSM}
	if err := newJob(t, 1)[0].State(&s); err != nil || s.Flags != 0 {
		t.Errorf("flags of a state that is filled anew: %#x, %v", s.Flags, err)
	}
}
