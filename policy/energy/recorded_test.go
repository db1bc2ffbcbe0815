package energy

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
)

// recording are readings of a physical GPU: what a daemon's Meter was told while a hot and a cool program worked alone
// and beside each other, and how much each of them did. Each began a window 0.1 s after its begin and ended 1.6 s before
// its end; meanwhile the device was without work.
type recording struct {
	windows  []window
	readings []reading
}

type window struct {
	name     string
	from, to int64      // µs
	pieces   [2]float64 // of work, by hot and cool
}

type reading struct {
	at      int64 // µs
	counter uint64
	uses    []Use // IDs are those of recordedIDs
}

// recordedIDs are the lgpus of a recording. Hot is PyTorch's bf16 products, and cool is kernels of 200 µs.
var recordedIDs = map[string]uint64{"other": Nobody, "hot": 1, "cool": 2}

// readRecording reads a file of testdata; its head says what is in a line.
func readRecording(t *testing.T, path string) (r recording) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		kind, rest, _ := strings.Cut(lines.Text(), " ")
		switch in := strings.NewReader(rest); kind {
		case "#":
		case "window":
			var w window
			if _, err := fmt.Fscan(in, &w.name, &w.from, &w.to, &w.pieces[0], &w.pieces[1]); err != nil {
				t.Fatalf("%q: %v", lines.Text(), err)
			}
			r.windows = append(r.windows, w)
		case "read":
			var now reading
			if _, err := fmt.Fscan(in, &now.at, &now.counter); err != nil {
				t.Fatalf("%q: %v", lines.Text(), err)
			}
			for in.Len() > 0 {
				var name string
				var u Use
				if _, err := fmt.Fscan(in, &name, &u.Weight, &u.Time); err != nil {
					t.Fatalf("%q: %v", lines.Text(), err)
				}
				u.ID = recordedIDs[name]
				now.uses = append(now.uses, u)
			}
			r.readings = append(r.readings, now)
		}
	}
	return r
}

// given is what a meter gives in a window: to nobody, hot and cool, in joules.
type given struct {
	parts [3]float64
	card  float64 // what the counter rose by
	took  float64 // seconds
	idle  [2]float64
}

// replay has a new meter read a recording. What the device draws anyway is put down by the weights of the moment.
func (r recording) replay(standing float64) []given {
	out := make([]given, len(r.windows))
	m := New(0)
	var last reading
	for _, now := range r.readings {
		shares := m.Read(now.at*1000, now.counter, now.uses)
		for i, w := range r.windows {
			if now.at <= w.from || now.at > w.to || last.at == 0 {
				continue
			}
			g := &out[i]
			g.took += float64(now.at-last.at) / 1e6
			g.card += float64(now.counter-last.counter) / 1e3
			for _, s := range shares {
				g.parts[s.ID] += float64(s.Energy) / 1e3
			}
			var sum float64
			for _, u := range now.uses {
				sum += float64(u.Weight)
			}
			for _, u := range now.uses {
				if u.ID != Nobody && sum > 0 {
					g.idle[u.ID-1] += standing * float64(now.at-last.at) / 1e6 * float64(u.Weight) / sum
				}
			}
		}
		last = now
	}
	return out
}

// TestRecorded: parts on a recording of an H100. What each should have is its part of what the device draws anyway, and of
// the rest as much as its pieces of work took when it was alone; what a mix draws more is on both in proportion. The
// errors are those that docs/energy.md states.
func TestRecorded(t *testing.T) {
	r := readRecording(t, "testdata/h100.txt")
	first := r.replay(0)
	standing := first[0].card / first[0].took // the first window is without work
	windows := r.replay(standing)
	var piece [2]float64 // joules beyond what is drawn anyway
	var alone [2]float64 // pieces
	for i, w := range r.windows {
		for j := range piece {
			if w.pieces[j] > 0 && w.pieces[1-j] == 0 {
				piece[j] += windows[i].card - standing*windows[i].took
				alone[j] += w.pieces[j]
			}
		}
	}
	for i, w := range r.windows {
		g := windows[i]
		if sum := g.parts[0] + g.parts[1] + g.parts[2]; math.Abs(sum-g.card) > 0.001 {
			t.Errorf("%s: %.3f J are given of %.3f", w.name, sum, g.card)
		}
		if w.pieces[0] == 0 || w.pieces[1] == 0 {
			continue
		}
		worked := [2]float64{w.pieces[0] * piece[0] / alone[0], w.pieces[1] * piece[1] / alone[1]}
		rest := g.card - g.idle[0] - g.idle[1]
		most := 0.03
		if w.name == "both-never-alone" { // nothing is known of either
			most = 0.25
		}
		for j, name := range []string{"hot", "cool"} {
			should := g.idle[j] + rest*worked[j]/(worked[0]+worked[1])
			off := (g.parts[j+1] - should) / g.card
			t.Logf("%s: %s is given %.0f J of %.0f, should %.0f (%+.1f %%, %+.1f %% of all)", w.name, name, g.parts[j+1], g.card, should,
				100*(g.parts[j+1]/should-1), 100*off)
			if math.Abs(off) > most {
				t.Errorf("%s: %s is off by %+.1f %% of all", w.name, name, 100*off)
			}
		}
	}
}
