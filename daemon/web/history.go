package web

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/daemon/view"
	"github.com/lgpu/lgpu/gpu"
)

// Bounds of the history.
const (
	maxSamples = 600 // ten minutes
	maxRows    = 128 // lgpus times devices in one sample
)

// history is what lgpus asked for and got over the last minutes. The zero value is empty and ready.
type history struct {
	mu      sync.Mutex
	samples []sample // guarded by mu; oldest first
}

type sample struct {
	at     int64 // Unix ms
	shares []share
}

type share struct {
	id               uint64
	device           gpu.UUID
	name, path       string
	asked, delivered uint16 // hundredths of a percent
}

// add takes a sample. Of too many lgpus the busiest are kept.
func (h *history) add(s *daemon.Snapshot) {
	names := map[gpu.UUID]string{}
	for i := range s.Devices {
		names[s.Devices[i].UUID] = s.Devices[i].Identity()
	}
	next := sample{at: s.At.UnixMilli()}
	for i := range s.Directories {
		n := &s.Directories[i]
		if n.Kind != daemon.KindLgpu {
			continue
		}
		for j := range n.Devices {
			d := &n.Devices[j]
			if !d.Measured {
				continue
			}
			next.shares = append(next.shares, share{n.ID, d.Device, names[d.Device], n.Path, hundredths(d.Asked),
				hundredths(d.Delivered)})
		}
	}
	if len(next.shares) > maxRows {
		slices.SortStableFunc(next.shares, func(a, b share) int { return cmp.Compare(b.delivered, a.delivered) })
		next.shares = slices.Clone(next.shares[:maxRows])
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.samples) == maxSamples {
		h.samples = append(h.samples[:0], h.samples[1:]...)
	}
	h.samples = append(h.samples, next)
}

// hundredths bounds a share to what can be.
func hundredths(v uint32) uint16 { return uint16(min(v, 10000)) }

// percent is a share of hundredths of a percent as the page reads it.
func percent(share uint16) *float64 {
	p := float64(share) / 100
	return &p
}

// past is the history as the page reads it: for each lgpu on a device a value in percent for each time, null where it
// was not there or not measured.
type (
	past struct {
		Times []int64   `json:"times"` // Unix ms
		Rows  []pastRow `json:"rows"`
	}
	pastRow struct {
		ID        string     `json:"id"`
		Device    string     `json:"device"`
		Path      string     `json:"path"`
		Asked     []*float64 `json:"asked"`
		Delivered []*float64 `json:"delivered"`
	}
)

// document is what of the history is seen.
func (h *history) document(look view.Look) past {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := past{Times: make([]int64, len(h.samples)), Rows: []pastRow{}}
	type key struct {
		id     uint64
		device gpu.UUID
	}
	rows := map[key]int{}
	for i, s := range h.samples {
		out.Times[i] = s.at
		for j := range s.shares {
			v := &s.shares[j]
			if !look.Lgpu(v.id) {
				continue
			}
			at, known := rows[key{v.id, v.device}]
			if !known {
				at = len(out.Rows)
				rows[key{v.id, v.device}] = at
				out.Rows = append(out.Rows, pastRow{
					ID: identifier(v.id), Device: v.name, Path: v.path,
					Asked: make([]*float64, len(h.samples)), Delivered: make([]*float64, len(h.samples)),
				})
			}
			out.Rows[at].Asked[i], out.Rows[at].Delivered[i] = percent(v.asked), percent(v.delivered)
		}
	}
	slices.SortStableFunc(out.Rows, func(a, b pastRow) int { return strings.Compare(a.Path, b.Path) })
	return out
}
