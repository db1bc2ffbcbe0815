package tenant

import (
	"testing"

	"github.com/lgpu/lgpu/tenant/protocol"
)

// TestSliced: a Slice reaches the client, and what it answers the handler of its gate, with the device that it names.
func TestSliced(t *testing.T) {
	d := serve(t)
	d.lgpu(1, 0, 100)
	p := d.client(1)
	p.want("ok", "say %d 1 0 0", protocol.Gate)
	gate := d.awaitGate("attach").gate
	gate.Send(protocol.Message{Kind: protocol.Slice, Value: 50})
	p.want("14 1 50", "hear")
	p.want("ok", "say %d 1 2048 %d", protocol.Sliced, protocol.FlagRefused)
	c := d.awaitGate("sliced")
	if c.gate != gate || c.m.Value != 2048 || c.m.Flags != protocol.FlagRefused {
		t.Errorf("the handler was told %+v; want 2048 and FlagRefused, of the gate of device 1", c.m)
	}
}
