package dispatch

import (
	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/tenant/protocol"
)

// Sliced implements tenant.GateHandler: it notes what the client says of its time slice.
func (r *Runner) Sliced(g *tenant.Gate, m protocol.Message) { r.sliced(g, m) }

func (r *Runner) sliced(g gate, m protocol.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.clients[g]; c != nil {
		c.sliced = m
	}
}
