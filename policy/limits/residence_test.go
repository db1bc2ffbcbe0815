package limits

import (
	"errors"
	"strings"
	"syscall"
	"testing"
)

func residenceTree(t *testing.T, o Options) *Tree {
	t.Helper()
	tr := New(o)
	if err := tr.SetDevices([]Device{{UUID: "GPU-a", Capacity: 8, UnitsPerBit: 1, Memory: 100 << 30}}); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/g", "/g/a"} {
		if err := tr.Mkdir(path, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	return tr
}

func wantErrno(t *testing.T, err error, errno syscall.Errno) {
	t.Helper()
	if !errors.Is(err, errno) {
		t.Errorf("got %v, not %v", err, errno)
	}
}

// TestOvercommitIsDecidedBeforePrograms: what was told to programs at their start does not change.
func TestOvercommitIsDecidedBeforePrograms(t *testing.T) {
	had := map[uint64]bool{}
	tr := residenceTree(t, Options{Used: func(id uint64) bool { return had[id] }})
	for _, text := range []string{"2", "", "yes", "0\n1"} {
		wantErrno(t, tr.Write("/g/a", "memory.overcommit", text), syscall.EINVAL)
	}
	if err := tr.Enter("/g/a"); err != nil {
		t.Fatal(err)
	}
	wantErrno(t, tr.Write("/g/a", "memory.overcommit", "1"), syscall.EBUSY)
	if err := tr.Write("/g/a", "memory.overcommit", "0"); err != nil {
		t.Errorf("what it is already is refused: %v", err)
	}
	tr.Leave("/g/a")
	if err := tr.Write("/g/a", "memory.overcommit", "1"); err != nil {
		t.Fatal(err)
	}
	a, _ := tr.Directory("/g/a")
	had[a.ID] = true
	wantErrno(t, tr.Write("/g/a", "memory.overcommit", "0"), syscall.EBUSY)
	if !a.Overcommit {
		t.Error("it was not set")
	}
}

// TestOvercommitIsADefault: a group gives it to what is made in it later.
func TestOvercommitIsADefault(t *testing.T) {
	tr := residenceTree(t, Options{})
	if err := tr.Write("/g", "memory.overcommit", "1"); err != nil {
		t.Fatal(err)
	}
	made, err := tr.Create(CreateSpec{Path: "/g/b"})
	if err != nil {
		t.Fatal(err)
	}
	before, _ := tr.Directory("/g/a")
	if !made.Overcommit || before.Overcommit {
		t.Errorf("made later %v, made before %v", made.Overcommit, before.Overcommit)
	}
	if why := tr.Differs(before.ID, Request{Overcommit: true}); why != "memory.overcommit 0, not 1" {
		t.Errorf("differs: %q", why)
	}
	asked, err := tr.Create(CreateSpec{Path: "/c", Request: Request{Overcommit: true}})
	if err != nil || !asked.Overcommit {
		t.Errorf("asked for: %v, %v", asked.Overcommit, err)
	}
}

// TestOvercommitSpatial: in spatial mode nothing leaves a device.
func TestOvercommitSpatial(t *testing.T) {
	tr := residenceTree(t, Options{})
	if err := tr.SetDevices([]Device{{UUID: "GPU-a", Capacity: 8, UnitsPerBit: 1, Memory: 100 << 30, Kind: Spatial}}); err != nil {
		t.Fatal(err)
	}
	wantErrno(t, tr.Write("/g/a", "memory.overcommit", "1"), syscall.EOPNOTSUPP)
}

// TestSuspend holds for all below, and watchers learn of those.
func TestSuspend(t *testing.T) {
	tr := residenceTree(t, Options{})
	var changed []uint64
	tr.Watch(func(c Change) { changed = c.Changed })
	if err := tr.Write("/g", "memory.suspend", "1"); err != nil {
		t.Fatal(err)
	}
	g, _ := tr.Directory("/g")
	a, _ := tr.Directory("/g/a")
	if !g.Suspended || !a.Suspended || a.Suspend {
		t.Errorf("group %+v, below %+v", g, a)
	}
	if len(changed) != 2 {
		t.Errorf("changed %v, not both", changed)
	}
	if text, _ := tr.Read("/g/a", "memory.suspend"); text != "0\n" {
		t.Errorf("the file of what is below says %q", text)
	}
	again := New(Options{})
	if problems := again.Load(tr.State()); len(problems) != 0 {
		t.Fatal(problems)
	}
	if a, _ := again.Directory("/g/a"); !a.Suspended {
		t.Error("lost when loaded")
	}
}

// TestSuspendRights: who owns a group suspends what is in it, and does not undo what was done to her.
func TestSuspendRights(t *testing.T) {
	tr := residenceTree(t, Options{})
	if err := tr.Chown("/g", 1000, 0); err != nil {
		t.Fatal(err)
	}
	her := tr.By(Author{UID: 1000, GID: 1000})
	if err := her.Update("/g/a", []Assignment{{"memory.suspend", "1"}}); err != nil {
		t.Errorf("below her own: %v", err)
	}
	wantErrno(t, her.Update("/g", []Assignment{{"memory.suspend", "0"}}), syscall.EPERM)
	for _, file := range []string{"memory.budget", "host.budget"} {
		wantErrno(t, her.Update("/", []Assignment{{file, "1GiB"}}), syscall.EPERM)
	}
}

// TestBudgets: bytes with units, and what is there without them.
func TestBudgets(t *testing.T) {
	tr := residenceTree(t, Options{HostBudget: 7 << 30})
	read := func(file string) string {
		text, err := tr.Read("/", file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(text)
	}
	if read("memory.budget") != "GPU-a 105226698752" || read("host.budget") != "7516192768" {
		t.Errorf("defaults are %s and %s", read("memory.budget"), read("host.budget"))
	}
	for _, c := range []struct {
		file, text string
		errno      syscall.Errno
	}{
		{"memory.budget", "GPU-a 8 GiB", 0}, {"memory.budget", "101GiB", syscall.ERANGE}, {"memory.budget", "max", syscall.EINVAL},
		{"memory.budget", "8", syscall.EINVAL}, {"memory.budget", "GPU-x 8GiB", syscall.ENODEV}, {"host.budget", "max", syscall.EINVAL},
		{"host.budget", "GPU-a 1GiB", syscall.EINVAL}, {"host.budget", "0", 0}, {"memory.resident", "1", syscall.EACCES},
	} {
		err := tr.Write("/", c.file, c.text)
		if c.errno == 0 && err != nil {
			t.Errorf("%s %q: %v", c.file, c.text, err)
		} else if c.errno != 0 {
			wantErrno(t, err, c.errno)
		}
	}
	if tr.Budget("GPU-a") != 8<<30 || tr.HostBudget() != 0 || tr.Budget("GPU-x") != 0 {
		t.Errorf("budgets %d and %d", tr.Budget("GPU-a"), tr.HostBudget())
	}
	again := New(Options{})
	if problems := again.Load(tr.State()); len(problems) != 0 {
		t.Fatal(problems)
	}
	if err := again.SetDevices(tr.Devices()); err != nil {
		t.Fatal(err)
	}
	if again.Budget("GPU-a") != 8<<30 || again.HostBudget() != 0 {
		t.Errorf("loaded: budgets %d and %d", again.Budget("GPU-a"), again.HostBudget())
	}
	if err := tr.Write("/", "memory.budget", "default"); err != nil || tr.Budget("GPU-a") != DefaultBudget(100<<30) {
		t.Errorf("default: %v, %d", err, tr.Budget("GPU-a"))
	}
	if DefaultBudget(1<<30) != 512<<20 || DefaultBudget(1<<20) != 0 {
		t.Error("a small device has another budget")
	}
	if _, err := tr.Read("/g", "memory.budget"); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a group has the file: %v", err)
	}
}
