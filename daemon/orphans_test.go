package daemon

import (
	"maps"
	"testing"

	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/gpu"
)

// What clients gave away and have no more stays charged exactly as long as the device has it.
func TestOrphanWatch(t *testing.T) {
	const mib = 1 << 20
	type claims = map[uint64]uint64
	var w orphanWatch
	for _, s := range []struct {
		what                   string
		used, process, charged uint64 // MiB
		claims, gone           claims // MiB, by lgpu
		again                  bool
	}{
		{"the driver has memory of its own", 1100, 500, 500, nil, nil, false},
		{"it has what it had", 1100, 500, 500, nil, nil, false},
		{"somebody has let go of something", 1400, 500, 500, claims{1: 300}, nil, false},
		{"one has died, too", 1600, 500, 500, claims{1: 500}, nil, false},
		{"some seems to be gone", 1400, 500, 500, claims{1: 500}, nil, true},
		{"it was not: the figures were of two moments", 1600, 500, 500, claims{1: 500}, nil, false},
		{"a part seems to be gone", 1500, 500, 500, claims{1: 500}, nil, true},
		{"a part is", 1500, 500, 500, claims{1: 500}, claims{1: 100}, false},
		{"another part is a client's that is not charged for it", 1500, 600, 500, claims{1: 400}, nil, false},
		{"now it is, it seems", 1500, 600, 600, claims{1: 400}, nil, true},
		{"now it is", 1500, 600, 600, claims{1: 400}, claims{1: 100}, false},
		{"another lgpu has some, too", 1600, 600, 600, claims{1: 300, 2: 100}, nil, false},
		{"a part is gone, but whose?", 1500, 600, 600, claims{1: 300, 2: 100}, nil, false},
		{"all but what drivers take seems to be gone", 1210, 600, 600, claims{1: 300, 2: 100}, nil, true},
		{"all is gone", 1210, 600, 600, claims{1: 300, 2: 100}, claims{1: 300, 2: 100}, false},
	} {
		facts := gpu.Facts{MemoryUsed: s.used * mib, Processes: []gpu.Process{{PID: 7, Memory: s.process * mib}}}
		e := tenant.Exports{Charged: map[int]uint64{7: s.charged * mib}}
		for lgpu, bytes := range s.claims {
			e.Claims = append(e.Claims, tenant.Claim{LGPU: lgpu, Orphans: bytes / 2 * mib, Released: (bytes - bytes/2) * mib})
		}
		gone, again := w.look(facts, e)
		for lgpu := range gone {
			gone[lgpu] /= mib
		}
		if !maps.Equal(gone, s.gone) || again != s.again {
			t.Errorf("%s: gone %v, again %v; want %v, %v", s.what, gone, again, s.gone, s.again)
		}
	}
}
