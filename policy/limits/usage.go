package limits

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// noUsage is the Usage of a tree without one.
type noUsage struct{}

func (noUsage) Stat(uint64, string) Stat { return Stat{} }
func (noUsage) ResetPeak(uint64, string) {}
func (noUsage) Procs(uint64) []int       { return nil }
func (noUsage) Events(uint64) []Count    { return nil }

// past is what the tree itself remembers of usage: peaks of groups, which no process has, and the times of directories
// that were removed, so that the counters of their ancestors never go back.
type past struct {
	mu    sync.Mutex
	times map[uint64]map[string]Stat   // by directory and device: BusyUsec and Launches
	peaks map[uint64]map[string]uint64 // by group and device
}

// inherit gives what is left of a removed directory to its parent.
func (p *past) inherit(parent, gone uint64, left map[string]Stat) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for device, stat := range left {
		if p.times == nil {
			p.times = map[uint64]map[string]Stat{}
		}
		if p.times[parent] == nil {
			p.times[parent] = map[string]Stat{}
		}
		sum := p.times[parent][device]
		sum.BusyUsec += stat.BusyUsec
		sum.Launches += stat.Launches
		p.times[parent][device] = sum
	}
	delete(p.times, gone)
	delete(p.peaks, gone)
}

// of returns the times that a directory has inherited.
func (p *past) of(id uint64, device string) Stat {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.times[id][device]
}

// peak raises a group's peak to what is in use now, and returns it.
func (p *past) peak(id uint64, device string, now uint64) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now == 0 {
		return p.peaks[id][device]
	}
	if p.peaks == nil {
		p.peaks = map[uint64]map[string]uint64{}
	}
	if p.peaks[id] == nil {
		p.peaks[id] = map[string]uint64{}
	}
	peak := max(p.peaks[id][device], now)
	p.peaks[id][device] = peak
	return peak
}

// forget takes a group's peak back.
func (p *past) forget(id uint64, device string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.peaks[id], device)
}

// own is what a directory used without its children.
func (t *Tree) own(id uint64) map[string]Stat {
	stats := map[string]Stat{}
	for _, d := range t.state.Load().devices {
		stat := t.usage.Stat(id, d.UUID)
		inherited := t.past.of(id, d.UUID)
		stat.BusyUsec += inherited.BusyUsec
		stat.Launches += inherited.Launches
		stats[d.UUID] = stat
	}
	return stats
}

// stat is what the subtree of n uses of a device.
func (t *Tree) stat(n *directory, device string) Stat {
	var sum Stat
	n.walk(func(below *directory) {
		stat := t.usage.Stat(below.ID, device)
		inherited := t.past.of(below.ID, device)
		sum.Memory += stat.Memory
		sum.Evicted += min(stat.Evicted, stat.Memory)
		sum.BusyUsec += stat.BusyUsec + inherited.BusyUsec
		sum.Launches += stat.Launches + inherited.Launches
		sum.Asked += stat.Asked
		sum.Delivered += stat.Delivered
		sum.Unmeasured = sum.Unmeasured || stat.Unmeasured
		sum.Energy += stat.Energy
		sum.Power += stat.Power
		sum.Metered = sum.Metered || stat.Metered
		sum.Peak = stat.Peak // of use only for a directory without children
	})
	if len(n.children) > 0 {
		sum.Peak = t.past.peak(n.ID, device, sum.Memory)
	} else {
		sum.Peak = max(sum.Peak, t.past.peak(n.ID, device, 0)) // it may have had children
	}
	return sum
}

// Stat is what a directory and everything below it use of a device. The peak of a group is the highest of the sums that
// Observe, Stat and readers of its files have seen. A directory that is not there uses nothing.
func (t *Tree) Stat(path, device string) Stat {
	n, err := t.find(path)
	if err != nil {
		return Stat{}
	}
	return t.stat(n, device)
}

// Observe looks at what groups use now, for their peaks. The owner of the tree calls it as often as peaks are to be
// exact.
func (t *Tree) Observe() {
	s := t.state.Load()
	s.root.walk(func(n *directory) {
		if len(n.children) > 0 {
			for _, d := range s.devices {
				t.stat(n, d.UUID)
			}
		}
	})
}

// reset is a peak to forget.
type reset struct {
	id     uint64
	device string
}

// resetPeak makes the peak what is in use now.
func (t *Tree) resetPeak(r reset) {
	t.past.forget(r.id, r.device)
	t.usage.ResetPeak(r.id, r.device)
}

func readMemoryCurrent(t *Tree, s *state, n *directory) string {
	return s.table(func(d int) string { return fmt.Sprint(t.stat(n, s.devices[d].UUID).Memory) })
}

func readMemoryPeak(t *Tree, s *state, n *directory) string {
	return s.table(func(d int) string { return fmt.Sprint(t.stat(n, s.devices[d].UUID).Peak) })
}

// writeMemoryPeak reads [DEVICE] 0; nothing at all means all devices too.
func writeMemoryPeak(s *state, n *directory, text string) *Error {
	if strings.TrimSpace(text) == "" {
		text = "0"
	}
	lines, err := s.lines(text)
	if err != nil {
		return err
	}
	for _, line := range lines {
		if len(line.fields) > 1 || len(line.fields) == 1 && line.fields[0] != "0" {
			return line.fault(syscall.EINVAL, "", strings.Join(line.fields, " "), "a peak can only be reset, by 0")
		}
		for _, d := range line.devices {
			s.resets = append(s.resets, reset{n.ID, s.devices[d].UUID})
		}
	}
	return nil
}

func readComputeStat(t *Tree, s *state, n *directory) string {
	return s.table(func(d int) string {
		stat := t.stat(n, s.devices[d].UUID)
		asked, delivered := formatShare(stat.Asked), formatShare(stat.Delivered)
		if stat.Unmeasured {
			asked, delivered = "-", "-"
		}
		return fmt.Sprintf("busy_usec=%d launches=%d asked=%s delivered=%s", stat.BusyUsec, stat.Launches, asked, delivered)
	})
}

func readEnergyStat(t *Tree, s *state, n *directory) string {
	return s.table(func(d int) string {
		stat := t.stat(n, s.devices[d].UUID)
		if !stat.Metered {
			return "joules=- watts=-"
		}
		return fmt.Sprintf("joules=%d.%03d watts=%d.%03d", stat.Energy/1000, stat.Energy%1000, stat.Power/1000, stat.Power%1000)
	})
}

func readProcs(t *Tree, _ *state, n *directory) string {
	var b strings.Builder
	for _, pid := range t.usage.Procs(n.ID) {
		fmt.Fprintln(&b, pid)
	}
	return b.String()
}

// readEvents adds up the events of a subtree, in the order in which they are first met.
func readEvents(t *Tree, _ *state, n *directory) string {
	populated := 0
	var sums []Count
	n.walk(func(below *directory) {
		if len(t.usage.Procs(below.ID)) > 0 {
			populated = 1
		}
		for _, event := range t.usage.Events(below.ID) {
			i := slices.IndexFunc(sums, func(c Count) bool { return c.Name == event.Name })
			if i < 0 {
				sums, i = append(sums, Count{Name: event.Name}), len(sums)
			}
			sums[i].N += event.N
		}
	})
	var b strings.Builder
	fmt.Fprintf(&b, "populated %d\n", populated)
	for _, c := range sums {
		fmt.Fprintf(&b, "%s %d\n", c.Name, c.N)
	}
	return b.String()
}
