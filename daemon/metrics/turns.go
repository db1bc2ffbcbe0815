package metrics

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/gpu"
)

// turns counts what comes through a subscription to slices. newTurns makes one.
type turns struct {
	mu      sync.Mutex
	count   map[turn]uint64           // guarded by mu
	devices map[gpu.UUID]*deviceTurns // guarded by mu
	missed  uint64                    // guarded by mu
}

// turn is what turns are counted by: the directory's ID and the device.
type turn struct {
	id     uint64
	device gpu.UUID
}

type deviceTurns struct {
	length, change histogram
	last           daemon.Slice // the newest; the zero value where that is not known
}

// Upper bounds of the histograms' buckets, in seconds.
var (
	lengthBounds = []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1}
	changeBounds = []float64{5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, .001, .002, .005, .01}
)

// longestSwitch is the longest gap between two slices that counts as the cost of the change. In a longer one nobody
// wanted the device.
const longestSwitch = 10 * time.Millisecond

func newTurns() *turns {
	return &turns{count: map[turn]uint64{}, devices: map[gpu.UUID]*deviceTurns{}}
}

func (t *turns) add(slices []daemon.Slice, lost uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if lost > 0 {
		t.missed += lost
		for _, d := range t.devices {
			d.last = daemon.Slice{} // what came before the loss is not the predecessor of what follows
		}
	}
	for _, s := range slices {
		t.count[turn{s.ID, s.Device}]++
		d := t.devices[s.Device]
		if d == nil {
			d = &deviceTurns{length: newHistogram(lengthBounds), change: newHistogram(changeBounds)}
			t.devices[s.Device] = d
		}
		d.length.observe(s.End.Sub(s.Start))
		if gap := s.Start.Sub(d.last.End); !d.last.End.IsZero() && d.last.ID != s.ID && gap >= 0 && gap <= longestSwitch {
			d.change.observe(gap)
		}
		d.last = s
	}
}

// collect emits the counts of shown lgpus and of devices, and forgets those of what is gone.
func (t *turns) collect(e *emitter, shown []*daemon.Directory) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.emit(slicesMissed, float64(t.missed))
	kept := make(map[turn]uint64, len(t.count))
	for _, n := range shown {
		if n.Kind != daemon.KindLgpu {
			continue
		}
		for _, d := range n.Devices {
			count, counted := t.count[turn{n.ID, d.Device}]
			if counted {
				kept[turn{n.ID, d.Device}] = count
			}
			e.emit(nodeSlices, float64(count), n.Path, n.Kind, e.name(d.Device))
		}
	}
	t.count = kept
	for device, d := range t.devices {
		if _, here := e.names[device]; !here {
			delete(t.devices, device)
			continue
		}
		e.metrics <- d.length.metric(sliceLength, e.name(device))
		e.metrics <- d.change.metric(sliceSwitch, e.name(device))
	}
}

// histogram counts durations by size.
type histogram struct {
	bounds []float64 // upper, in seconds, ascending
	counts []uint64  // of each bucket, the last beyond all bounds
	sum    float64
}

func newHistogram(bounds []float64) histogram {
	return histogram{bounds: bounds, counts: make([]uint64, len(bounds)+1)}
}

func (h *histogram) observe(d time.Duration) {
	seconds := max(d, 0).Seconds()
	bucket, _ := slices.BinarySearch(h.bounds, seconds)
	h.counts[bucket]++
	h.sum += seconds
}

func (h *histogram) metric(f *family, labels ...string) prometheus.Metric {
	buckets := make(map[float64]uint64, len(h.bounds))
	var total uint64
	for i, bound := range h.bounds {
		total += h.counts[i]
		buckets[bound] = total
	}
	return prometheus.MustNewConstHistogram(f.desc, total+h.counts[len(h.bounds)], h.sum, buckets, labels...)
}
