package test

import (
	"fmt"
	"io"
	"math"
	"testing"

	"github.com/lgpu/lgpu/api"
)

// drawn is what a place's only device has drawn, in joules: by its counter, for lgpus by path, and for none of them.
type drawn struct {
	counter, others float64
	of              map[string]float64
}

func (p *place) drawn(conn *api.Conn) drawn {
	p.t.Helper()
	s, err := conn.Snapshot(p.t.Context(), &api.SnapshotRequest{})
	if err != nil {
		p.t.Fatal(err)
	}
	out := drawn{of: map[string]float64{}}
	for _, d := range s.GetDevices() {
		out.counter, out.others = float64(d.GetEnergyMj())/1e3, float64(d.GetEnergyOtherMj())/1e3
	}
	for _, n := range s.GetDirectories() {
		for _, d := range n.GetDevices() {
			out.of[n.GetPath()] = float64(d.GetEnergyMj()) / 1e3
		}
	}
	return out
}

// Two unlike programs share a device: one keeps all its units busy, the other one of them. Each is given what it used, and
// all together what the device has drawn. What an lgpu used stays with its group when it has ended, and survives the
// daemon.
func TestEnergy(t *testing.T) {
	const (
		units, unitWatts, idleWatts = 8, 5.0, 40.0 // of the software GPU
		kernels, seconds            = 3000, 0.001  // of each program, and of each kernel
	)
	p := newPlace(t)
	daemon := p.serve("--mount", "off", "--guests", "off")
	conn := p.daemon()
	p.must("create", "/team")
	keeper := p.start("lgpu", "run", "--sim=1x16GiB,sms=8", "--", "cat") // the device is there while it is used
	programs := map[string]*tenant{}
	for _, name := range []string{"hot", "cool"} {
		programs[name] = p.start("lgpu", "run", "--sim=1x16GiB,sms=8", "--group", "/team", "--name", name, "--", "obey", control)
		programs[name].until("ready")
	}
	p.wait("what the device draws without work", func() bool {
		d := p.drawn(conn)
		return d.of["/team/hot"] > idleWatts && d.of["/team/cool"] > idleWatts
	})
	before := p.drawn(conn)
	launch := func(name string, count, blocks int) {
		if _, err := io.WriteString(programs[name].in, fmt.Sprintf("launch %d %d %d\n", count, int(seconds*1e6), blocks)); err != nil {
			t.Fatal(err)
		}
	}
	launch("hot", kernels, units)
	p.wait("the hot one alone", func() bool { return p.drawn(conn).of["/team/hot"] > before.of["/team/hot"]+2*idleWatts })
	launch("cool", kernels, 1)
	for _, c := range programs {
		c.read("the end of its kernels", func(line string) bool { return len(line) > len("launched ") })
	}
	after := p.drawn(conn)
	p.wait("the counter after the work", func() bool {
		last := after
		after = p.drawn(conn)
		return after.counter > last.counter && after.counter-last.counter < 1.2*idleWatts
	})
	use := func(path string) float64 { return after.of[path] - before.of[path] }
	total := after.counter - before.counter
	work := kernels * seconds * unitWatts
	standing := (total - work*(units+1)) / 2
	t.Logf("%.1f J: hot %.1f, cool %.1f; by its units %.1f and %.1f and half of %.1f", total, use("/team/hot"), use("/team/cool"),
		work*units, work, 2*standing)
	if sum := use("/") + after.others - before.others; math.Abs(sum-total) > 0.02*total {
		t.Errorf("%.1f J are given away of %.1f", sum, total)
	}
	for path, want := range map[string]float64{"/team/hot": work*units + standing, "/team/cool": work + standing} {
		if got := use(path); math.Abs(got-want) > 0.15*want {
			t.Errorf("%s has used %.1f J, and is given %.1f", path, want, got)
		}
	}
	// Both have half of what the device draws without work, so that they differ by their work alone.
	if got, want := use("/team/hot")-use("/team/cool"), work*(units-1); math.Abs(got-want) > want/2 {
		t.Errorf("the work of both differs by %.1f J, and is given as %.1f", want, got)
	}
	for _, c := range programs {
		c.in.Close()
		c.status()
	}
	left := p.drawn(conn)
	if left.of["/team"] < after.of["/team"] || left.of["/team/hot"] != 0 {
		t.Errorf("of %v remains %v", after.of, left.of)
	}
	p.must("daemon", "stop")
	daemon.status()
	p.serve("--mount", "off")
	p.wait("what was used before", func() bool { return p.drawn(p.daemon()).of["/team"] >= left.of["/team"] })
	keeper.in.Close()
	keeper.status()
}
