package limits

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"path"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/lgpu/lgpu/internal/list"
)

// reload saves a tree as JSON and loads it into another.
func reload(t testing.TB, tr *Tree) *Tree {
	t.Helper()
	text, err := json.Marshal(tr.State())
	if err != nil {
		t.Fatal(err)
	}
	var saved State
	if err := json.Unmarshal(text, &saved); err != nil {
		t.Fatal(err)
	}
	back := New(Options{})
	if err := back.SetDevices(tr.Devices()); err != nil {
		t.Fatal(err)
	}
	if problems := back.Load(saved); problems != nil {
		t.Fatal(problems)
	}
	if !reflect.DeepEqual(tr.State(), back.State()) {
		t.Fatalf("loaded %+v\nfrom %s", back.State(), text)
	}
	return back
}

// TestLoadIsLenient: what cannot be is left out, the rest holds.
func TestLoadIsLenient(t *testing.T) {
	const saved = `{"version":1,"last_id":3,"nodes":[
		{"id":1,"path":"/","devices":{"` + uuidA + `":{"weight":7}}},
		{"id":9,"path":"/a","gang":"no gang","cgroups":["/x","relative"],"host_max":5,"devices":{
			"` + uuidA + `":{"count":-3,"weight":90000,"compute_max":0,"compute_min":20000,"memory_max":5},
			"` + uuidB + `":{"follow":"nothing","memory_max":6}, "GPU-gone":{"count":4}}},
		{"id":9,"path":"/b","devices":{"` + uuidA + `":{"list":"0-3","exclusive":true}}},
		{"id":4,"path":"/c","devices":{"` + uuidA + `":{"list":"2-70","exclusive":true}}},
		{"id":5,"path":"/d","devices":{"` + uuidA + `":{"count":2,"list":"0"}}},
		{"id":6,"path":"/x/y"},{"id":7,"path":"/bad name"},{"id":8,"path":"/a"}]}`
	var s State
	if err := json.Unmarshal([]byte(saved), &s); err != nil {
		t.Fatal(err)
	}
	tr := newTree(t, Options{}, "/old")
	told := 0
	tr.Watch(func(c Change) { told++ })
	if problems := tr.Load(s); len(problems) != 11 {
		t.Errorf("%d problems:", len(problems))
		for _, p := range problems {
			t.Error(p)
		}
	}
	if told != 1 {
		t.Errorf("watchers were told %d times", told)
	}
	var paths []string
	for _, n := range tr.Directories() {
		paths = append(paths, n.Path)
	}
	if want := []string{"/", "/a", "/b", "/c", "/d"}; !slices.Equal(paths, want) {
		t.Fatalf("loaded %v", paths)
	}
	for at, want := range map[string]string{
		"/ lgpu.weight": "7", "/a lgpu": "max", "/a lgpu.weight": "100", "/a compute.max": "max", "/a compute.min": "0%", "/a memory.max": "5",
		"/b lgpu.effective": "count=4 list=0-3", "/c lgpu.effective": "count=60 list=4-63", "/d lgpu.effective": "count=0 list=",
	} {
		path, file, _ := strings.Cut(at, " ")
		if got := first(t, tr, path, file); got != want {
			t.Errorf("%s is %q, want %q", at, got, want)
		}
	}
	a, _ := tr.Directory("/a")
	b, _ := tr.Directory("/b")
	if a.ID != 9 || b.ID == 9 || a.HostMax != AtMost(5) || a.Gang != "" {
		t.Errorf("%+v %+v", a, b)
	}
	if s := tr.State(); s.LastID < b.ID || s.Directories[1].Devices["GPU-gone"].Count == nil {
		t.Errorf("%+v", s)
	}
	if problems := tr.Load(State{Version: 99}); len(problems) != 1 || len(tr.Directories()) != 1 {
		t.Errorf("a state of another version: %v", problems)
	}
	if err := tr.Mkdir("/new", 0, 0); err != nil {
		t.Fatal(err)
	}
	if n, _ := tr.Directory("/new"); n.ID <= b.ID {
		t.Errorf("ID %d was given before", n.ID)
	}
	if err := tr.Enter("/new"); err != nil {
		t.Fatal(err)
	}
	if problems := tr.Load(s); len(problems) != 1 || !errors.Is(problems[0], syscall.EBUSY) {
		t.Errorf("a tree in use was replaced: %v", problems)
	}
}

// TestRandom makes random writes and looks after each that the rules hold, that a refused one changed nothing, and now
// and then that the state survives.
func TestRandom(t *testing.T) {
	paths := []string{"/a", "/a/x", "/a/y", "/a/z", "/a/x/p", "/a/x/q", "/b", "/b/x"}
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 1))
		tr := newTree(t, Options{}, paths...)
		all := append([]string{"/"}, paths...)
		refused := 0
		const steps = 400
		for step := range steps {
			path := all[r.IntN(len(all))]
			file, text := randomWrite(r)
			before := tr.Directories()
			was := picture(t, tr)
			err := tr.Write(path, file, text)
			if err != nil {
				refused++
				if !maps.Equal(was, picture(t, tr)) {
					t.Fatalf("seed %d step %d: %s %s %q: %v, and something changed", seed, step, path, file, text, err)
				}
				continue
			}
			if broken := check(tr, before, path); broken != "" {
				t.Fatalf("seed %d step %d: after %s %s %q: %s", seed, step, path, file, text, broken)
			}
			// What a file shows can be given back, unless the parent has shrunk since it was asked for.
			shown, _ := tr.Read(path, file)
			now := picture(t, tr)
			if err := tr.Write(path, file, shown); err != nil && !short(tr, path) || !maps.Equal(now, picture(t, tr)) {
				t.Fatalf("seed %d step %d: %s %s shows %q, which given back: %v", seed, step, path, file, shown, err)
			}
			if step%40 == 0 {
				if back := reload(t, tr); !maps.Equal(picture(t, back), picture(t, tr)) {
					t.Fatalf("seed %d step %d: a loaded tree differs", seed, step)
				}
			}
		}
		if refused > steps*4/5 || refused < steps/20 {
			t.Errorf("seed %d: %d of %d writes were refused", seed, refused, steps)
		}
		// An ancestor that loses everything and gets it back: whatever is not anonymous is as before.
		before := tr.Directories()
		root, _ := tr.Read("/", "lgpu")
		for _, text := range []string{"count=0", root} {
			if err := tr.Write("/", "lgpu", text); err != nil {
				t.Fatal(err)
			}
		}
		for _, n := range before {
			now, _ := tr.ByID(n.ID)
			for d, e := range n.Devices {
				if got := now.Devices[d].Bits; !anonymous(tr, n.Path, d) && !got.Equal(e.Bits) {
					t.Errorf("seed %d: %s had %s of device %d and after healing has %s", seed, n.Path, e.Bits, d, got)
				}
			}
		}
	}
}

// short says that a directory has not all bits that it asked for.
func short(tr *Tree, path string) bool {
	n, _ := tr.Directory(path)
	for d, l := range n.Requests {
		if l.Count != nil && *l.Count > n.Devices[d].Bits.Count() || l.List != nil && !l.List.Equal(n.Devices[d].Bits) {
			return true
		}
	}
	return false
}

// anonymous says that a directory, an ancestor or a sibling of either asks by count, so that other bits may come back.
func anonymous(tr *Tree, at string, d int) bool {
	for ; at != "/"; at = path.Dir(at) {
		parent, _ := tr.Directory(path.Dir(at))
		for _, name := range parent.Children {
			if n, _ := tr.Directory(path.Join(parent.Path, name)); n.Requests[d].Count != nil {
				return true
			}
		}
	}
	root, _ := tr.Directory("/")
	return root.Requests[d].Count != nil
}

func randomWrite(r *rand.Rand) (file, text string) {
	device := []string{"1:0 ", "1:1 ", uuidC + " ", ""}
	share := fmt.Sprintf("%d%%", 1+r.IntN(100))
	switch r.IntN(12) {
	case 0:
		return "compute.max", device[r.IntN(4)] + []string{share, "max"}[r.IntN(2)]
	case 1:
		return "compute.min", device[r.IntN(4)] + []string{fmt.Sprintf("%d%%", r.IntN(40)), "0"}[r.IntN(2)]
	case 2:
		return "memory.max", device[r.IntN(4)] + []string{fmt.Sprintf("%dMiB", r.IntN(9000)), "max"}[r.IntN(2)]
	case 3:
		return "lgpu.priority", device[r.IntN(4)] + []string{"normal", "high", "latency", "default"}[r.IntN(4)]
	}
	var b strings.Builder
	for d, capacity := range []int{64, 132, 7} {
		if r.IntN(3) == 0 {
			continue
		}
		b.WriteString(device[d])
		first := r.IntN(capacity)
		named := fmt.Sprintf("list=%d-%d", first, min(first+r.IntN(capacity), capacity-1+r.IntN(20)/19))
		switch r.IntN(5) {
		case 0:
			b.WriteString([]string{"max", "default"}[r.IntN(2)])
		case 1:
			fmt.Fprintf(&b, "count=%d", r.IntN(capacity+1))
		case 2:
			fmt.Fprintf(&b, "count=%d exclusive=1", r.IntN(capacity/3+1))
		case 3:
			b.WriteString(named)
		case 4:
			fmt.Fprintf(&b, "list=%d exclusive=1", first)
		}
		if d == 1 && r.IntN(8) > 0 { // mostly what a temporal device takes
			b.Reset()
			fmt.Fprintf(&b, "1:1 count=%d", r.IntN(capacity+1))
		}
		b.WriteByte('\n')
	}
	return "lgpu", b.String()
}

// check looks whether the rules of the tree hold, given the directories before a write to the directory at written. It
// returns what does not hold.
func check(tr *Tree, before []Directory, written string) string {
	devices := tr.Devices()
	for _, n := range tr.Directories() {
		var parent, old Directory
		siblings := []Directory{}
		if n.Path == Root {
			for _, d := range devices {
				parent.Devices = append(parent.Devices, Effective{Device: d.UUID, Bits: d.All(), ComputeMax: 10000, ComputeMin: 10000})
			}
		} else {
			parent, _ = tr.ByID(n.Parent)
			for _, name := range parent.Children {
				if s, _ := tr.Directory(path.Join(parent.Path, name)); s.ID != n.ID {
					siblings = append(siblings, s)
				}
			}
		}
		for _, o := range before {
			if o.ID == n.ID {
				old = o
			}
		}
		for d, device := range devices {
			e, p, l := n.Devices[d], parent.Devices[d], n.Requests[d]
			fail := func(format string, args ...any) string {
				return fmt.Sprintf("%s on %s (%s of %s): ", n.Path, device.Key(), l.Lgpu(), p.Bits) + fmt.Sprintf(format, args...)
			}
			var taken list.Set // what siblings have for themselves
			for _, s := range siblings {
				if s.Requests[d].Exclusive {
					taken = taken.Or(s.Devices[d].Bits)
				}
				if device.Kind == Spatial && (l.Exclusive || s.Requests[d].Exclusive) && s.Devices[d].Bits.Overlaps(e.Bits) {
					return fail("%s overlaps %s of %s, and one is exclusive", e.Bits, s.Devices[d].Bits, s.Path)
				}
			}
			free := p.Bits.Without(taken)
			switch {
			case !e.Bits.In(p.Bits):
				return fail("has %s", e.Bits)
			case device.Kind == Temporal && !e.Bits.Equal(list.Upto(e.Bits.Count())):
				return fail("bits of time %s", e.Bits)
			case device.Kind == Temporal && l.Count != nil && e.Bits.Count() != min(*l.Count, p.Bits.Count()):
				return fail("%d bits", e.Bits.Count())
			case l.List != nil && !e.Bits.Equal(l.List.And(p.Bits)):
				return fail("has %s", e.Bits)
			case l.Count == nil && l.List == nil && l.Follow == FollowMax && !e.Bits.Equal(free):
				return fail("follows with %s", e.Bits)
			case l.Count == nil && l.List == nil && l.Follow == FollowDefault && !e.Bits.Equal(free.And(device.defaults())):
				return fail("follows with %s", e.Bits)
			case e.ComputeMax > p.ComputeMax || e.ComputeMin > e.ComputeMax || e.MemoryMax.Or(math.MaxUint64) > p.MemoryMax.Or(math.MaxUint64) || e.MemoryMax.Or(math.MaxUint64) > e.OwnMemoryMax.Or(math.MaxUint64):
				return fail("%+v beside the parent's %+v", e, p)
			case e.Units != e.Bits.Count()*device.UnitsPerBit || e.Whole != (e.Bits.Count() == device.Capacity):
				return fail("%d units, whole %v", e.Units, e.Whole)
			}
			if l.Count != nil && device.Kind == Spatial {
				for _, s := range siblings {
					if r := s.Requests[d]; l.Exclusive && (r.Count != nil || r.List != nil) {
						free = free.Without(s.Devices[d].Bits)
					}
				}
				if want := min(*l.Count, free.Count()); e.Bits.Count() != want {
					return fail("has %s, could have %d", e.Bits, want)
				}
				if kept := old.Devices[d].Bits.And(p.Bits); n.Path != written && !kept.In(e.Bits) {
					return fail("had %s and now %s: it lost what survived", old.Devices[d].Bits, e.Bits)
				}
			}
			sum := uint32(0)
			for _, name := range n.Children {
				child, _ := tr.Directory(path.Join(n.Path, name))
				sum += child.Devices[d].ComputeMin
			}
			if sum > e.ComputeMin {
				return fail("guarantees %d and its children %d", e.ComputeMin, sum)
			}
		}
	}
	return ""
}

// TestConcurrent: readers see whole states, in which both devices have what one write gave.
func TestConcurrent(t *testing.T) {
	tr := newTree(t, Options{}, "/a", "/a/x")
	var writers, readers sync.WaitGroup
	done := make(chan struct{})
	for w := range 3 {
		writers.Go(func() {
			for i := range 100 {
				n := 1 + (i*7+w)%60
				if err := tr.Write("/a", "lgpu", fmt.Sprintf("1:0 count=%d\n1:1 count=%d", n, n)); err != nil {
					t.Error(err)
				}
				path := fmt.Sprintf("/a/w%d", w)
				if err := tr.Mkdir(path, 0, 0); err != nil {
					t.Error(err)
				}
				if err := tr.Enter(path); err != nil {
					t.Error(err)
				}
				tr.Leave(path)
				if err := tr.Rmdir(path); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				text, err := tr.Read("/a/x", "lgpu.effective")
				var a, b int
				var list string
				if n, _ := fmt.Sscanf(text, "1:0 count=%d list=%s\n1:1 count=%d", &a, &list, &b); n != 3 || err != nil || a != b && a != 64 {
					t.Errorf("read %q, %v", text, err)
					return
				}
			}
		})
	}
	writers.Wait()
	close(done)
	readers.Wait()
}

// FuzzWrite: whatever is written, there is an error and no change, or what is shown then can be given back.
func FuzzWrite(f *testing.F) {
	for i, file := range Files() {
		f.Add(uint8(i), "1:0 count=4 list=0-3 exclusive=1\n1:1 count=3\n")
		f.Add(uint8(i), "1:0 25%\n"+uuidC+" max")
		f.Add(uint8(i), "default")
		if file.Writable {
			f.Add(uint8(i), "0::/a/b\nmemory:/c")
			f.Add(uint8(i), "8GiB")
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, text string) {
		tr := newTree(t, Options{}, "/a", "/a/x")
		file := Files()[int(which)%len(Files())].Name
		before := picture(t, tr)
		err := tr.Write("/a", file, text)
		var e *Error
		switch {
		case err != nil && (!errors.As(err, &e) || e.Errno == 0 || !maps.Equal(before, picture(t, tr))):
			t.Fatalf("%q > %s: %v, or something changed", text, file, err)
		case err != nil || file == "memory.peak" || file == "procs.kill":
			return
		}
		if broken := check(tr, tr.Directories(), "/a"); broken != "" {
			t.Fatalf("%q > %s: %s", text, file, broken)
		}
		after := picture(t, tr)
		shown, _ := tr.Read("/a", file)
		if shown == "" {
			shown = "\n"
		}
		if err := tr.Write("/a", file, shown); err != nil || !maps.Equal(after, picture(t, tr)) {
			t.Fatalf("%q > %s shows %q, which given back: %v", text, file, shown, err)
		}
		if back := reload(t, tr); !maps.Equal(after, picture(t, back)) {
			t.Fatalf("%q > %s: a loaded tree differs", text, file)
		}
	})
}

// BenchmarkWrite is a write to one of a thousand lgpus on eight devices.
func BenchmarkWrite(b *testing.B) {
	tr := New(Options{Commit: func(Change) error { return nil }})
	var devices []Device
	for i := range 8 {
		devices = append(devices, Device{UUID: fmt.Sprintf("GPU-%d", i), Capacity: 16, UnitsPerBit: 8, Kind: Spatial})
	}
	if err := tr.SetDevices(devices); err != nil {
		b.Fatal(err)
	}
	for i := range 1000 {
		if err := tr.Mkdir(fmt.Sprintf("/l%d", i), 0, 0); err != nil {
			b.Fatal(err)
		}
	}
	for i := 0; b.Loop(); i++ {
		if err := tr.Write(fmt.Sprintf("/l%d", i%1000), "lgpu", fmt.Sprintf("count=%d", 1+i%16)); err != nil {
			b.Fatal(err)
		}
	}
}

func TestDevicesComeAndGo(t *testing.T) {
	tr := newTree(t, Options{}, "/a", "/a/x")
	for _, w := range [][3]string{{"/a", "lgpu", "1:0 list=8-15\n1:1 count=10"}, {"/a/x", "lgpu", "1:0 list=9 exclusive=1"}, {"/a", "memory.max", "1:0 1GiB"}} {
		if err := tr.Write(w[0], w[1], w[2]); err != nil {
			t.Fatal(err)
		}
	}
	before := picture(t, tr)
	if err := tr.SetDevices(machine()[1:]); err != nil {
		t.Fatal(err)
	}
	if text, _ := tr.Read("/a", "lgpu"); text != "1:1 count=10\n"+uuidC+" max\n" {
		t.Errorf("%q", text)
	}
	if err := tr.Write("/a", "lgpu", "1:0 max"); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("a write to a device that is gone: %v", err)
	}
	if err := tr.SetDevices(machine()); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(before, picture(t, tr)) {
		t.Error("a device that was gone has not its requests again")
	}
	// The same device comes back as a temporal one: names become amounts.
	changed := machine()
	changed[0].Kind = Temporal
	changed[0].Default = list.Set{}
	if err := tr.SetDevices(changed); err != nil {
		t.Fatal(err)
	}
	if got := first(t, tr, "/a/x", "lgpu") + ", " + first(t, tr, "/a/x", "lgpu.effective"); got != "count=1, count=1" {
		t.Error(got)
	}
	if err := tr.SetDevices(machine()); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(before, picture(t, tr)) {
		t.Error("names are lost")
	}
	if err := tr.SetDevices(nil); err != nil {
		t.Fatal(err)
	}
	if err := tr.Write("/a", "lgpu", "max"); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("a write without devices: %v", err)
	}
	for _, bad := range []Device{
		{UUID: "", Capacity: 1, UnitsPerBit: 1}, {UUID: "a b", Capacity: 1, UnitsPerBit: 1}, {UUID: "x", Capacity: 0, UnitsPerBit: 1},
		{UUID: "x", Capacity: list.MaxBits + 1, UnitsPerBit: 1}, {UUID: "x", Capacity: 1}, {UUID: "x", Capacity: 1, UnitsPerBit: 1, Remainder: -1},
		{UUID: "x", Capacity: 1, UnitsPerBit: 1, Number: "195"}, {UUID: "x", Capacity: 1, UnitsPerBit: 1, Default: list.Of(1)},
		{UUID: "GPU-Y", Capacity: 1, UnitsPerBit: 1}, {UUID: "x", Number: "1:1", Capacity: 1, UnitsPerBit: 1},
	} {
		good := Device{UUID: "GPU-y", Number: "1:1", Capacity: 1, UnitsPerBit: 1}
		if err := tr.SetDevices([]Device{good, bad}); !errors.Is(err, syscall.EINVAL) || len(tr.Devices()) != 0 {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// One user's directories are bounded, so that they are not all there can be; root's and those of the daemon's user are
// not.
func TestQuota(t *testing.T) {
	tr := New(Options{Rights: Rights{Owner: 500}})
	for _, uid := range []uint32{0, 500, 1001} {
		for i := range DefaultQuota.Directories {
			if err := tr.Mkdir(fmt.Sprintf("/u%d-%d", uid, i), uid, uid); err != nil {
				t.Fatal(err)
			}
		}
		err := tr.Mkdir(fmt.Sprintf("/more-%d", uid), uid, uid)
		if bounded := uid == 1001; bounded != errors.Is(err, syscall.EDQUOT) || !bounded && err != nil {
			t.Errorf("one node more of user %d: %v", uid, err)
		}
	}
	if err := tr.Mkdir("/another", 1002, 1002); err != nil {
		t.Errorf("another user's node: %v", err)
	}
	if err := tr.Rmdir("/u1001-7"); err != nil {
		t.Fatal(err)
	}
	if err := tr.Mkdir("/in-its-place", 1001, 1001); err != nil {
		t.Errorf("a node in the place of one that was removed: %v", err)
	}
}
