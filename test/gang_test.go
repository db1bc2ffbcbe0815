package test

import (
	"fmt"
	"strings"
	"testing"
)

// Two tenants, each with kernels on two devices that wait for each other, begin on opposite devices. If each device went
// by itself, each tenant would have one and wait for the other. They come to their end, and no turn has to be ended by
// force: the devices of a tenant are given to it together.
func TestCollectivesInOppositeOrder(t *testing.T) {
	const rounds = 40
	p := newPlace(t)
	var tenants []*tenant
	for first, name := range []string{"a", "b"} {
		c := p.start("lgpu", "run", "--sim=2x2GiB,sms=4", "--name", name, "--", "collective", control, fmt.Sprint(first), fmt.Sprint(rounds))
		c.until("ready")
		tenants = append(tenants, c)
	}
	for _, c := range tenants {
		if _, err := fmt.Fprintln(c.in, "go"); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range tenants {
		c.until(fmt.Sprintf("rounds %d", rounds))
	}
	if events := p.must("events"); strings.Contains(events, "drain.overrun") {
		t.Errorf("a turn had to be ended by force:\n%s", events)
	}
	for _, c := range tenants {
		if s := c.status(); s != 0 {
			t.Errorf("status %d, %s", s, c.stderr.String())
		}
	}
}
