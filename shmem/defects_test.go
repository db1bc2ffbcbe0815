package shmem

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport"
)

// TestNothing: no bytes are put and got whatever the addresses, but not to a PE that is not there.
func TestNothing(t *testing.T) {
	plainJob(t, 2, nil, func(p *PE) error {
		for name, f := range map[string]func(pe int) error{
			"put":                  func(pe int) error { return p.Put(0, 0, 0, pe) },
			"put of a wild source": func(pe int) error { return p.Put(p.heapBase, 5, 0, pe) },
			"get":                  func(pe int) error { return p.Get(0, 0, 0, pe) },
			"put on a stream":      func(pe int) error { return p.PutOnStream(0, 0, 0, pe, 0) },
			"get on a stream":      func(pe int) error { return p.GetOnStream(0, 0, 0, pe, 0) },
			"iput":                 func(pe int) error { return p.IPut(0, 0, 1, 1, 8, 0, pe) },
		} {
			if err := f(1); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if err := f(2); Status(err) != layout.StatusArgument {
				return fmt.Errorf("%s to PE 2 of 2: %v", name, err)
			}
		}
		return nil
	})
}

// TestOwnMemory: the library's own part of the heap is not the program's to write.
func TestOwnMemory(t *testing.T) {
	plainJob(t, 2, nil, func(p *PE) error {
		a, err := p.Calloc(1, 64)
		if err != nil {
			return err
		}
		for _, at := range []uint64{p.heapBase, p.heapBase + p.reserved.bytes - 8} {
			for name, err := range map[string]error{
				"put": p.Put(at, a, 8, 1), "get": p.Get(a, at, 8, 1), "p": p.P(at, 1, 8, 1), "signal": p.SignalOp(at&^7, 1, layout.SignalSet, 1),
			} {
				if Status(err) != layout.StatusArgument || !strings.Contains(err.Error(), "the library's own") {
					return fmt.Errorf("%s at offset %#x: %v", name, at-p.heapBase, err)
				}
			}
		}
		return p.Put(a, a, 8, 1)
	})
}

// TestBadPointers: a local address without memory is an argument's error, and the PE goes on.
func TestBadPointers(t *testing.T) {
	plainJob(t, 1, nil, func(p *PE) error {
		a, err := p.Calloc(1, 4096)
		if err != nil {
			return err
		}
		for _, wild := range []uint64{0, 8, 1 << 46, 0xdead000000} {
			for name, err := range map[string]error{
				"put": p.Put(a, wild, 64, 0), "get": p.Get(wild, a, 64, 0), "iput": p.IPut(a, wild, 1, 1, 8, 4, 0),
				"iget": p.IGet(wild, a, 1, 1, 8, 4, 0), "fetch": p.AtomicOnStream(layout.AtomicAdd, layout.TypeUint64, a, 1, 0, max(wild, 8), 0, 0),
			} {
				if Status(err) != layout.StatusArgument || strings.Contains(err.Error(), "goroutine") {
					return fmt.Errorf("%s with %#x: %v", name, wild, err)
				}
			}
		}
		cuda.Bytes(a, 1)[0] = 1
		return p.Put(a+8, a, 8, 0)
	})
}

// TestSplitsGiveBack: a split that finds no number for one of its teams is an error at all of the parent, and leaves
// none.
func TestSplitsGiveBack(t *testing.T) {
	const n = 4
	plainJob(t, n, nil, func(p *PE) error { // numbers for three teams
		free := func() (list []TeamID, err error) {
			for err == nil {
				var id TeamID
				if id, err = p.TeamCreate([]int{p.Rank()}); err == nil {
					list = append(list, id)
				}
			}
			if Status(err) != layout.StatusMemory {
				return nil, err
			}
			return list, nil
		}
		all, err := free()
		if err != nil || len(all) != 3 {
			return fmt.Errorf("%d teams: %v", len(all), err)
		}
		// One number is left at PE 3, all at the others: the rows have theirs, the column of PE 3 has none.
		keep := 0
		if p.Rank() == 3 {
			keep = 2
		}
		for _, id := range all[keep:] {
			if err := p.TeamDestroy(id); err != nil {
				return err
			}
		}
		for range 3 {
			if x, y, err := p.TeamSplit2D(World, 2); Status(err) != layout.StatusMemory || x != InvalidTeam || y != InvalidTeam {
				return fmt.Errorf("split 2d: %v %v %v", x, y, err)
			}
		}
		if p.Rank() == 3 {
			if _, err := p.TeamCreate([]int{3}); err != nil {
				return err
			}
		}
		// Now there is none at PE 3, and PE 1, which is not to be in the team, is told as well.
		if id, err := p.TeamSplitStrided(World, 2, 1, 2); Status(err) != layout.StatusMemory || id != InvalidTeam {
			return fmt.Errorf("split strided: %v %v", id, err)
		}
		if p.Rank() == 3 {
			return nil
		}
		left, err := free()
		if err != nil || len(left) != 3 {
			return fmt.Errorf("%d numbers are left of 3: %v", len(left), err)
		}
		return nil
	})
}

// TestPeerIsBlamed: an error whose cause is a peer is that peer's, and a descriptor that did not come in time a
// timeout.
func TestPeerIsBlamed(t *testing.T) {
	err := wrap("malloc", fmt.Errorf("p2p: %w", &transport.PeerError{PE: 2, Err: fmt.Errorf("map the heap: %w", os.ErrDeadlineExceeded)}))
	var e *Error
	if !errors.As(err, &e) || e.PE != 2 || e.Status != layout.StatusTimeout {
		t.Fatalf("%v: %+v", err, e)
	}
	_, status, blame, text, _, err := parseMessage(request{op: opMalloc}.message(err, nil), 0)
	if err != nil || status != layout.StatusTimeout || blame != 2 || !strings.Contains(text, "map the heap") {
		t.Fatalf("the others read %d, PE %d, %q, %v", status, blame, text, err)
	}
}

// TestFlushedCompletion: an error says when the completion that is left is not that of the first error.
func TestFlushedCompletion(t *testing.T) {
	p := &job{size: 2, control: &layout.Control{Status: layout.StatusQueue, PE: 1, Syndrome: 0x05}}
	if err := p.deviceError("put", layout.StatusQueue); !strings.Contains(err.Error(), "flushed because an earlier one had failed") {
		t.Error(err)
	}
	p.control.Syndrome = 0x13
	if err := p.deviceError("put", layout.StatusQueue); strings.Contains(err.Error(), "flushed") {
		t.Error(err)
	}
}
