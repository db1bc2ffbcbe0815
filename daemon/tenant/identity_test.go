package tenant

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/lgpu/lgpu/tenant/region"
)

// table is a /proc in which something happens before each look at a pid.
type table struct {
	now   map[int]status
	looks int
	then  map[int]func(map[int]status) // by number of look
}

func (p *table) status(pid int) (status, error) {
	p.looks++
	if change := p.then[p.looks]; change != nil {
		change(p.now)
	}
	s, ok := p.now[pid]
	if !ok {
		return status{}, errEnded
	}
	return s, nil
}

func TestAncestors(t *testing.T) {
	family := func() map[int]status { // 1 <- 10 <- 20 <- 30
		return map[int]status{
			1: {parent: 0, start: 1}, 10: {parent: 1, start: 100}, 20: {parent: 10, start: 200}, 30: {parent: 20, start: 300},
		}
	}
	never := func(Process) bool { return false }
	line := func(pids ...int) (all []Process) {
		starts := map[int]uint64{1: 1, 10: 100, 20: 200, 30: 300}
		for _, pid := range pids {
			all = append(all, Process{PID: pid, Start: starts[pid]})
		}
		return all
	}
	for what, c := range map[string]struct {
		change map[int]func(map[int]status)
		self   Process
		last   func(Process) bool
		want   []Process // nil: an error
	}{
		"all":             {self: Process{30, 300}, last: never, want: line(30, 20, 10, 1)},
		"up to one":       {self: Process{30, 300}, last: func(p Process) bool { return p.PID == 20 }, want: line(30, 20)},
		"itself":          {self: Process{30, 300}, last: func(p Process) bool { return p.PID == 30 }, want: line(30)},
		"another's pid":   {self: Process{30, 299}, last: never},
		"no such process": {self: Process{31, 1}, last: never},
		"it ends": {
			change: map[int]func(map[int]status){3: func(m map[int]status) { delete(m, 30) }},
			self:   Process{30, 300}, last: never,
		},
		"its pid is used again": {
			change: map[int]func(map[int]status){3: func(m map[int]status) { m[30] = status{parent: 20, start: 900} }},
			self:   Process{30, 300}, last: never,
		},
		"the parent ends, and its pid is used again at once, by a launcher": {
			change: map[int]func(map[int]status){2: func(m map[int]status) {
				m[20] = status{parent: 1, start: 250}
				m[30] = status{parent: 10, start: 300}
			}},
			self: Process{30, 300}, last: never, want: line(30, 10, 1),
		},
		"the parent ends, and its pid is used again by a younger one": {
			change: map[int]func(map[int]status){2: func(m map[int]status) { m[20] = status{parent: 1, start: 900} }},
			self:   Process{30, 300}, last: never,
		},
		"the grandparent's place is taken while it is looked at": {
			change: map[int]func(map[int]status){
				4: func(m map[int]status) {
					m[10] = status{parent: 1, start: 150}
					m[20] = status{parent: 1, start: 200}
				},
			},
			self: Process{30, 300}, last: never, want: line(30, 20, 1),
		},
		"the parent ends after it was passed": {
			change: map[int]func(map[int]status){5: func(m map[int]status) {
				delete(m, 20)
				m[30] = status{parent: 10, start: 300}
			}},
			self: Process{30, 300}, last: never, want: line(30, 10, 1),
		},
		"a parent that cannot be seen": {
			change: map[int]func(map[int]status){1: func(m map[int]status) { delete(m, 10) }},
			self:   Process{30, 300}, last: never, want: line(30, 20),
		},
		"a loop": {
			change: map[int]func(map[int]status){1: func(m map[int]status) { m[10] = status{parent: 30, start: 100} }},
			self:   Process{30, 300}, last: never,
		},
	} {
		got, err := ancestors(&table{now: family(), then: c.change}, c.self, c.last)
		if (err == nil) == (got == nil) || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, %v; want %v", what, got, err, c.want)
		}
	}

	equal := map[int]status{} // as old as each other, in a loop, so that starts do not tell
	for pid := range 10 {
		equal[pid+1] = status{parent: (pid+1)%10 + 1, start: 5}
	}
	if got, err := ancestors(&table{now: equal}, Process{1, 5}, never); err != nil || len(got) != maxAncestors {
		t.Errorf("a loop of equals: %d ancestors, %v", len(got), err)
	}
	restless := &restless{}
	if got, err := ancestors(restless, Process{1, 5}, never); err == nil {
		t.Errorf("ancestors that always change: %v", got)
	}
}

// restless shows another parent at every look.
type restless struct{ looks int }

func (p *restless) status(int) (status, error) {
	p.looks++
	return status{parent: p.looks + 1, start: 5}, nil
}

func TestParseCgroups(t *testing.T) {
	got := parseCgroups("9:name=systemd:/a\n8:cpu,cpuacct:/b:c\n0::/d/e\n\nnonsense\n1:x:relative\n")
	want := []Cgroup{{"name=systemd", "/a"}, {"cpu,cpuacct", "/b:c"}, {"", "/d/e"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestRoster(t *testing.T) {
	dir := t.TempDir()
	open := func(machine string) *roster {
		t.Helper()
		r, err := openRoster(dir, 0xabc, machine)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := open("boot 1")
	last := region.MaxClients - 1
	for _, err := range []error{
		r.put(0, Process{10, 100}), r.put(last, Process{20, 200}), r.put(5, Process{30, 300}), r.put(5, Process{}),
		r.hold(hostKind, 7), r.hold(region.MaxDevices, 9),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	r.close()
	again := open("boot 1")
	for i, p := range again.slot {
		if want := map[int]Process{0: {10, 100}, last: {20, 200}}[i]; p != want {
			t.Errorf("slot %d is %v's, want %v", i, p, want)
		}
	}
	if again.held[hostKind] != 7 || again.held[region.MaxDevices] != 9 || again.held[1] != 0 {
		t.Errorf("held: %v", again.held)
	}
	again.close()
	if err := os.Truncate(rosterPath(dir, 0xabc), rosterBytes-1); err != nil {
		t.Fatal(err)
	}
	cut := open("boot 1")
	if cut.slot[0] != (Process{}) || cut.held[hostKind] != 0 {
		t.Error("a roster that was cut short is believed")
	}
	if err := cut.put(0, Process{10, 100}); err != nil {
		t.Fatal(err)
	}
	cut.close()
	other := open("boot 2")
	if other.slot[0] != (Process{}) {
		t.Error("a roster of another boot is believed")
	}
	other.close()
	for _, name := range []string{"notes", "00000000000000AB", "abd"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := sweepRosters(dir, func(id uint64) bool { return id == 0xabc }); err != nil {
			t.Fatal(err)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 4 {
		t.Errorf("left: %v", left)
	}
	if err := sweepRosters(dir, func(uint64) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(rosterPath(dir, 0xabc)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the roster of a forgotten lgpu: %v", err)
	}
}

func TestObserve(t *testing.T) {
	d := serve(t)
	d.lgpu(1, 0, 100)
	p := d.client(1)
	e, err := Observe(p.pid(), d.lgpuOf)
	if err != nil || e.Process != p.process() || e.UID != uint32(os.Getuid()) || len(e.Cgroups) == 0 ||
		!reflect.DeepEqual(e.Ancestors, []Ancestor{{p.process(), 1}}) {
		t.Errorf("a client: %+v, %v", e, err)
	}
	e, err = Observe(os.Getpid(), d.lgpuOf)
	if err != nil || len(e.Ancestors) == 0 || e.Ancestors[0] != (Ancestor{self(t), 0}) {
		t.Errorf("another process: %+v, %v", e, err)
	}
	p.kill()
	if e, err := Observe(p.pid(), d.lgpuOf); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("a dead process: %+v, %v", e, err)
	}
}

func TestRefusal(t *testing.T) {
	err := fmt.Errorf("resolve: %w", &Refusal{Errno: 1, Text: "no"})
	var refusal *Refusal
	if !errors.As(err, &refusal) || refusal.Text != "no" || err.Error() != "resolve: no (operation not permitted)" {
		t.Errorf("%v", err)
	}
}
