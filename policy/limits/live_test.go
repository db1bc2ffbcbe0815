package limits

import (
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// meter is a Usage that a test sets.
type meter struct {
	mu    sync.Mutex
	stats map[uint64]map[string]Stat
	procs map[uint64][]int
	event map[uint64][]Count
}

func (m *meter) Stat(id uint64, device string) Stat {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stats[id][device]
}

func (m *meter) ResetPeak(id uint64, device string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s, there := m.stats[id][device]; there {
		s.Peak = s.Memory
		m.stats[id][device] = s
	}
}

func (m *meter) Procs(id uint64) []int    { return m.procs[id] }
func (m *meter) Events(id uint64) []Count { return m.event[id] }

func (m *meter) set(id uint64, device string, s Stat) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stats == nil {
		m.stats = map[uint64]map[string]Stat{}
	}
	if m.stats[id] == nil {
		m.stats[id] = map[string]Stat{}
	}
	m.stats[id][device] = s
}

// TestEnergy: a group draws what all below it draw, and what its Usage says of itself.
func TestEnergy(t *testing.T) {
	m := &meter{}
	tr := newTree(t, Options{Usage: m}, "/g", "/g/x", "/g/y")
	for path, mj := range map[string]uint64{"/g": 1, "/g/x": 2_000_050, "/g/y": 900} {
		dir, _ := tr.Directory(path)
		m.set(dir.ID, uuidA, Stat{Energy: mj, Power: uint32(mj / 2), Metered: true})
	}
	for path, want := range map[string]string{
		"/g": "joules=2000.951 watts=1000.475", "/g/x": "joules=2000.050 watts=1000.025", "/": "joules=2000.951 watts=1000.475",
	} {
		if got := first(t, tr, path, "energy.stat"); got != want {
			t.Errorf("energy.stat of %s is %q, want %q", path, got, want)
		}
	}
	if err := tr.Write("/g", "energy.stat", "0"); err == nil {
		t.Error("energy.stat can be written")
	}
}

func TestUsage(t *testing.T) {
	m := &meter{}
	tr := newTree(t, Options{Usage: m}, "/g", "/g/x", "/g/y")
	x, _ := tr.Directory("/g/x")
	y, _ := tr.Directory("/g/y")
	m.procs = map[uint64][]int{x.ID: {7, 12}}
	m.event = map[uint64][]Count{x.ID: {{"joined", 2}, {"oom", 1}}, y.ID: {{"oom", 4}, {"left", 1}}}
	m.set(x.ID, uuidA, Stat{Memory: 100, Peak: 300, BusyUsec: 10, Launches: 1, Asked: 5000, Delivered: 2500})
	m.set(y.ID, uuidA, Stat{Memory: 50, Peak: 60, BusyUsec: 20, Launches: 2, Asked: 100, Delivered: 1})

	want := func(at, line string) {
		t.Helper()
		path, file, _ := strings.Cut(at, " ")
		if got := first(t, tr, path, file); got != line {
			t.Errorf("%s is %q, want %q", at, got, line)
		}
	}
	text := func(path, file, want string) {
		t.Helper()
		if got, err := tr.Read(path, file); got != want || err != nil {
			t.Errorf("%s %s is %q, %v; want %q", path, file, got, err, want)
		}
	}
	m.set(y.ID, uuidB, Stat{BusyUsec: 5, Asked: 7, Delivered: 7, Unmeasured: true})
	for at, measured := range map[string]bool{"/g/x": true, "/g/y": false, "/g": false} {
		text, err := tr.Read(at, "compute.stat")
		if err != nil || strings.Contains(text, "asked=- delivered=-") == measured {
			t.Errorf("compute.stat of %s, which is measured: %v, is %q, %v", at, measured, text, err)
		}
	}
	m.set(y.ID, uuidB, Stat{})
	want("/g/x memory.current", "100")
	want("/g memory.current", "150")
	want("/ memory.current", "150")
	want("/g/x memory.peak", "300")
	want("/g compute.stat", "busy_usec=30 launches=3 asked=51% delivered=25.01%")
	want("/g energy.stat", "joules=- watts=-")
	text("/g/x", "procs", "7\n12\n")
	text("/g", "procs", "")
	text("/g/x", "events", "populated 1\njoined 2\noom 1\n")
	text("/g", "events", "populated 1\njoined 2\noom 5\nleft 1\n")
	text("/g/y", "events", "populated 0\noom 4\nleft 1\n")

	// The peak of a group is the highest sum that was seen.
	tr.Observe()
	m.set(y.ID, uuidA, Stat{Memory: 500, Peak: 500, BusyUsec: 20, Launches: 2})
	tr.Observe()
	m.set(y.ID, uuidA, Stat{Memory: 10, Peak: 500, BusyUsec: 20, Launches: 2})
	want("/g memory.peak", "600")
	want("/ memory.peak", "600")
	for _, reset := range []struct{ path, text string }{{"/g", "1:0 0"}, {"/g/y", "\n"}, {"/g/x", "1:1"}} {
		if err := tr.Write(reset.path, "memory.peak", reset.text); err != nil {
			t.Fatal(err)
		}
	}
	want("/g memory.peak", "110")
	want("/ memory.peak", "600")
	want("/g/y memory.peak", "10")
	want("/g/x memory.peak", "300")
	for text, errno := range map[string]syscall.Errno{"1:0 5": syscall.EINVAL, "now": syscall.EINVAL, "9:9": syscall.ENODEV, "1:0\n1:0": syscall.EINVAL} {
		if err := tr.Write("/g/x", "memory.peak", text); !errors.Is(err, errno) {
			t.Errorf("%q > memory.peak: %v", text, err)
		}
	}
	if err := tr.Update("/g/x", []Assignment{{"memory.peak", "0"}, {"lgpu", "nonsense"}}); err == nil {
		t.Error("nonsense was taken")
	}
	want("/g/x memory.peak", "300")

	// What a removed directory used stays with its ancestors.
	if err := tr.Rmdir("/g/y"); err != nil {
		t.Fatal(err)
	}
	m.set(y.ID, uuidA, Stat{})
	want("/g compute.stat", "busy_usec=30 launches=3 asked=50% delivered=25%")
	want("/g memory.current", "100")
	if err := tr.Rmdir("/g/x"); err != nil {
		t.Fatal(err)
	}
	if err := tr.Rmdir("/g"); err != nil {
		t.Fatal(err)
	}
	m.set(x.ID, uuidA, Stat{})
	want("/ compute.stat", "busy_usec=30 launches=3 asked=0% delivered=0%")
	if s := tr.Stat("/", uuidA); s.BusyUsec != 30 || s.Peak != 600 {
		t.Errorf("%+v", s)
	}
	if s := tr.Stat("/none", uuidA); s != (Stat{}) {
		t.Errorf("%+v", s)
	}
}

func TestBound(t *testing.T) {
	tr := newTree(t, Options{}, "/team", "/team/alice", "/v1", "/box", "/exact")
	for path, text := range map[string]string{
		"/team": "/user.slice", "/team/alice": "/user.slice/user-7.slice\n0::/user.slice/user-7:b.slice", "/v1": "memory:/docker\n3:cpu,cpuacct:/jobs\n",
		"/box": "name=systemd:/machine", "/exact": "0::/docker/one",
	} {
		if err := tr.Write(path, "cgroup.path", text); err != nil {
			t.Fatal(err)
		}
	}
	if text, _ := tr.Read("/v1", "cgroup.path"); text != "memory:/docker\ncpu:/jobs\n" {
		t.Errorf("cgroup.path is %q", text)
	}
	for _, c := range []struct{ proc, want string }{
		{"0::/user.slice\n", "/team"},
		{"0::/user.slice/user-7.slice/session-3.scope", "/team/alice"},
		{"0::/user.slice/user-7.slices", "/team"},
		{"0::/user.slicer", ""},
		{"0::/", ""}, {"", ""}, {"\n\n", ""},
		{"0::/user.slice/user-7:b.slice/x:y\n", "/team/alice"},
		{"12:memory:/docker/abc\n0::/\n", "/v1"},
		{"12:cpuset,memory:/docker/abc\n", "/v1"},
		{"12:cpuset:/docker/abc\n", ""},
		{"12:cpu,cpuacct:/jobs/1\n", "/v1"},
		{"12:cpuacct:/jobs/1\n", ""}, // cpu stands for the hierarchy
		{"1:name=systemd:/machine/x\n", "/box"},
		{"0::/machine/x\n", ""},
		{"4:pids:/user.slice/user-7.slice\n0::/user.slice\n", "/team/alice"}, // the deepest decides
		{"12:memory:/docker/one\n0::/docker/one\n", "/exact"},
		{"12:memory:/docker/one\n0::/docker/two\n", "/v1"},
		// What says nothing certain.
		{"0::/../user.slice", ""}, {"0::/user.slice/../x", ""}, {"0::/..", ""}, {"0::user.slice", ""}, {"0:/user.slice", ""}, {"x::/user.slice", ""},
		{"::/user.slice", ""}, {"0::/user.slice (deleted)", ""}, {"0::/user.slice\x00", ""},
		// Names below do not hide where they are.
		{"0::/user.slice/" + strings.Repeat("x", 5000), "/team"}, {"0::/user.slice/x (deleted)", "/team"}, {"0::/user.slice/\x01\xff /...", "/team"},
	} {
		got, ok := tr.Bound([]byte(c.proc))
		if got != c.want || ok != (c.want != "") {
			t.Errorf("Bound(%.60q) = %q, %v; want %q", c.proc, got, ok, c.want)
		}
	}
	for _, bad := range []struct {
		text string
		want syscall.Errno
	}{
		{"relative", syscall.EINVAL}, {"memory/docker", syscall.EINVAL}, {"x:memory:/a", syscall.EINVAL}, {":/a", syscall.EINVAL}, {"1::/a", syscall.EINVAL},
		{"/a/../b", syscall.EINVAL}, {"/a/", syscall.EINVAL}, {"//a", syscall.EINVAL}, {"/a\x01", syscall.EINVAL}, {"/a\xff", syscall.EINVAL}, {"\xff:/a", syscall.EINVAL}, {"/a\n/a", syscall.EINVAL}, {"1:a:b:/c", syscall.EINVAL},
		{"/user.slice", syscall.EBUSY}, {"/" + strings.Repeat("x", maxCgroup), syscall.EINVAL},
	} {
		if err := tr.Write("/exact", "cgroup.path", bad.text); !errors.Is(err, bad.want) {
			t.Errorf("%.40q > cgroup.path: %v, want %v", bad.text, err, bad.want)
		}
	}
	if got, _ := tr.Bound([]byte("0::/docker/one")); got != "/exact" {
		t.Error("a refused write changed a binding")
	}
	// Everything, when nothing nearer is bound; and unbinding.
	for _, text := range []string{"/", "\n"} {
		if err := tr.Write("/exact", "cgroup.path", text); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"/": "/exact", "\n": ""}[text]
		if got, _ := tr.Bound([]byte("0::/elsewhere")); got != want {
			t.Errorf("with %q bound: %q, want %q", text, got, want)
		}
	}
}

// FuzzBound: hostile content names a directory that is bound to an ancestor of a path in it, or none.
func FuzzBound(f *testing.F) {
	for _, s := range []string{"0::/a/b/c\n", "1:memory:/a\n0::/x\n", "0::/a/../b", "9999999999:x:/a", ":::", "0::/a\x00/b", "1:,,:/a"} {
		f.Add(s, "/a/b")
		f.Add(s, "memory:/a")
	}
	f.Fuzz(func(t *testing.T, proc, bound string) {
		tr := newTree(t, Options{}, "/n")
		if tr.Write("/n", "cgroup.path", bound) != nil {
			return
		}
		n, _ := tr.Directory("/n")
		path, ok := tr.Bound([]byte(proc))
		if ok != (path == "/n") {
			t.Fatalf("%q, %v", path, ok)
		}
		if !ok {
			return
		}
		for _, text := range n.Cgroups {
			c, err := parseCgroup(text)
			if err != nil || c.String() != text {
				t.Fatalf("%q is kept as %q: %v", bound, text, err)
			}
			if strings.Contains(proc, ":"+c.path) {
				return
			}
		}
		t.Fatalf("%q is said to be in %q", proc, n.Cgroups)
	})
}
