package dispatch

import (
	"testing"

	"github.com/lgpu/lgpu/tenant/protocol"
)

// What a client says of its time slice is noted, and nothing of one that has gone.
func TestSliced(t *testing.T) {
	r := newRig(t, map[uint64]Params{1: {}})
	a := r.seat(1)
	r.sliced(a, protocol.Message{Kind: protocol.Sliced, Value: 50})
	r.mu.Lock()
	noted := r.clients[a].sliced
	r.mu.Unlock()
	if noted.Value != 50 {
		t.Errorf("noted %+v; want 50 µs", noted)
	}
	r.gone(a)
	r.sliced(a, protocol.Message{Kind: protocol.Sliced, Value: 50})
	if len(r.clients) != 0 {
		t.Errorf("a client that has gone was noted: %v", r.clients)
	}
}
