package tenant

import (
	"maps"
	"slices"
	"testing"
)

// orphaned is an lgpu of which a client has died that had so many MiB and had given away some of them.
func orphaned(d *daemon, lgpu, had, gave uint64) (index string) {
	d.t.Helper()
	c := d.client(lgpu)
	index = c.ask("index")
	c.want("true", "alloc 0 %d", had*mib)
	c.want("ok", "export 0 %d", gave*mib)
	pid := c.pid()
	c.kill()
	d.await("left", pid)
	return index
}

// claims are the claims on the first device, in MiB: of orphans, and of what was left.
func (d *daemon) claims() (sums [][3]uint64) {
	for _, c := range d.Exports([16]byte{1}).Claims {
		sums = append(sums, [3]uint64{c.LGPU, c.Orphans / mib, c.Released / mib})
	}
	return sums
}

// TestOrphans: what a dead client gave away stays charged, under an index that nobody else gets, until the device has
// it no more.
func TestOrphans(t *testing.T) {
	d := serve(t)
	d.lgpu(1, 0, 100)
	live := d.client(1)
	indices := map[string]bool{live.ask("index"): true, orphaned(d, 1, 50, 40): true}
	d.wantUsed(1, 40*mib)
	indices[orphaned(d, 1, 20, 10)] = true
	d.wantUsed(1, 50*mib)
	if have := d.claims(); !slices.Equal(have, [][3]uint64{{1, 50, 0}}) {
		t.Errorf("%v", have)
	}
	// They are within the limit like all else.
	live.want("false", "alloc 0 %d", 51*mib)
	live.want("true", "alloc 0 %d", 30*mib)
	next := d.client(1)
	indices[next.ask("index")] = true
	if len(indices) != 4 {
		t.Errorf("the indices %v are not four", indices)
	}
	d.ReleaseExports([16]byte{2}, 1, 100*mib) // another device
	d.ReleaseExports([16]byte{1}, 2, 100*mib) // another lgpu
	d.ReleaseExports([16]byte{1}, 1, 5*mib)   // of no orphan the most
	d.wantUsed(1, 80*mib)
	// The oldest is gone but for what drivers have besides. The other is not.
	d.ReleaseExports([16]byte{1}, 1, 38*mib)
	d.wantUsed(1, 40*mib)
	d.ReleaseExports([16]byte{1}, 1, 10*mib)
	d.wantUsed(1, 30*mib)
	if have := d.claims(); have != nil {
		t.Errorf("%v", have)
	}
	// The indices are free again, and those who get them have given away nothing.
	for range 2 {
		if !indices[orphaned(d, 1, 1, 0)] {
			t.Error("an index that was kept is not used again")
		}
	}
	d.wantUsed(1, 30*mib)
}

// TestExports: what is known of the living.
func TestExports(t *testing.T) {
	d := serve(t)
	d.lgpu(1, 0, 100)
	d.lgpu(2, 0, 100)
	a, b := d.client(1), d.client(2)
	a.want("true", "alloc 0 %d", 50*mib)
	a.want("ok", "export 0 %d", 30*mib)
	a.want("ok", "leave 0 %d", 20*mib)
	b.want("true", "alloc 0 %d", 7*mib)
	b.want("ok", "export 0 %d", 1<<40) // no more than it has
	b.want("ok", "leave 0 %d", 1<<40)
	want := map[int]uint64{a.pid(): 50 * mib, b.pid(): 7 * mib}
	if e := d.Exports([16]byte{1}); !maps.Equal(e.Charged, want) {
		t.Errorf("%+v, want %v", e, want)
	}
	if have := d.claims(); !slices.Equal(have, [][3]uint64{{1, 0, 20}, {2, 0, 7}}) {
		t.Errorf("%v", have)
	}
	a.kill()
	d.await("left", a.pid())
	if have := d.claims(); !slices.Equal(have, [][3]uint64{{1, 30, 0}, {2, 0, 7}}) {
		t.Errorf("%v", have)
	}
}

// TestOrphansOfRemoved: an lgpu may be removed with what dead clients of it gave away.
func TestOrphansOfRemoved(t *testing.T) {
	d := serve(t)
	d.lgpu(1, 0, 100)
	orphaned(d, 1, 50, 40)
	if err := d.RemoveLGPU(1); err != nil {
		t.Fatal(err)
	}
	d.ReleaseExports([16]byte{1}, 1, 40*mib)
	if have := d.claims(); have != nil {
		t.Errorf("%v", have)
	}
}
