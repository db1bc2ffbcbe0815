package hw

import (
	"testing"
	"time"
)

// TestEnergy: a device draws its idle power, and for each unit what it draws while a block is on it, to the millijoule.
func TestEnergy(t *testing.T) {
	d := machine(t, Config{Units: 4}).Devices[0]
	const cycles = 300_000 // of 1 µs
	for _, blocks := range []int64{4, 1, 6} {
		before := d.unitTime.sum()
		dones := make(chan ending, 1)
		g := &Grid{Program: fixed(cycles), Blocks: blocks, Needs: Needs{Threads: 2048}, Ready: d.Clock.Now()}
		g.Done = func(at Time, err error) { dones <- ending{at, err} }
		if err := d.NewChannel().Submit(g); err != nil {
			t.Fatal(err)
		}
		await(t, "grid", dones)
		if got, want := d.unitTime.sum()-before, time.Duration(blocks)*cycles*time.Microsecond; got != want {
			t.Errorf("units worked for %v, want %v", got, want)
		}
		if got, want := d.Energy(), millijoules(idlePower, d.Clock.Now())+millijoules(unitPower, Time(d.unitTime.sum())); got != want {
			t.Errorf("the counter is %d mJ, want %d", got, want)
		}
	}
	// The last grid ends with two units of four at work.
	if got := d.Power(); got < idlePower+2*unitPower-unitPower/10 || got > idlePower+2*unitPower+unitPower/10 {
		t.Errorf("power %d mW", got)
	}
	if got, want := d.Temperature(), uint32(coolest+(hottest-coolest)/2); got+1 < want || got > want+1 {
		t.Errorf("%d °C, want %d", got, want)
	}
	if d.PowerLimit() != 60_000 {
		t.Errorf("power limit %d mW", d.PowerLimit())
	}
	if got := millijoules(700_000, Time(30*24*time.Hour)+1_500_000); got != 700_000*30*24*3600+1050 {
		t.Errorf("a month at 700 W is %d mJ", got)
	}
}

// TestDivided: what the parts of a device draw, it draws.
func TestDivided(t *testing.T) {
	all := machine(t, Config{Units: 4}, Config{Units: 2}, Config{Units: 1}).Devices
	whole, part := all[0], all[1]
	whole.Divide(all[1:])
	dones := make(chan ending, 1)
	g := &Grid{Program: fixed(300_000), Blocks: 2, Needs: Needs{Threads: 2048}, Ready: part.Clock.Now()}
	g.Done = func(at Time, err error) { dones <- ending{at, err} }
	if err := part.NewChannel().Submit(g); err != nil {
		t.Fatal(err)
	}
	await(t, "grid", dones)
	worked := millijoules(unitPower, Time(part.unitTime.sum()))
	if got, want := whole.Energy(), millijoules(idlePower, whole.Clock.powered())+worked; got != want || worked == 0 {
		t.Errorf("the counter is %d mJ, want %d, of which %d are the part's", got, want, worked)
	}
	if got := whole.Power(); got < idlePower+2*unitPower-unitPower/10 || got > idlePower+2*unitPower+unitPower/10 {
		t.Errorf("power %d mW", got)
	}
}
