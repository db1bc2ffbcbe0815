package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/gpu/gputest"
	"github.com/lgpu/lgpu/internal/dmem"
	"github.com/lgpu/lgpu/internal/dmem/dmemtest"
	"github.com/lgpu/lgpu/policy/limits"
)

const boundRegion = "nvidia/00000000:1b:00.0/vidmem"

// boundMachine is a device whose driver takes part in the controller dmem of a stand-in for the kernel.
func boundMachine(t *testing.T) (*dmemtest.Hierarchy, Config) {
	h := dmemtest.Mount(t, dmem.Region{Name: boundRegion, Bytes: 16 << 30})
	return h, Config{Dir: shortDir(t), Dmem: filepath.Join(h.Dir, "lgpu"), PolicePeriod: 20 * time.Millisecond}
}

// startBound starts a daemon of that device.
func startBound(t *testing.T, c Config) *rig {
	t.Helper()
	devices, err := gputest.Machine(1, 16<<30, 32).Devices()
	if err != nil {
		t.Fatal(err)
	}
	devices[0].PCI = "0000:1B:00.0"
	c.Inventories = []gpu.Inventory{gputest.New(devices...)}
	return start(t, c)
}

// TestBounds: the kernel bounds what a launcher starts, follows every limit that changes, and goes on to bound it while
// no daemon runs; nothing is left when the launcher has ended.
func TestBounds(t *testing.T) {
	h, c := boundMachine(t)
	r := startBound(t, c)
	launcher := program(t)
	pid := launcher.Process.Pid
	bound := func(want uint64) {
		t.Helper()
		if got := h.Bound(pid, boundRegion); got != want {
			t.Errorf("the kernel allows %d, not %d", got, want)
		}
	}
	if err := r.Tree().Mkdir("/team", 0, 0); err != nil {
		t.Fatal(err)
	}
	spec := AttachSpec{Path: "/team/a", Limits: memory(8 << 30), Launcher: limits.Author{PID: pid}}
	a := r.holds(t, spec)
	bound(8<<30 + tolerance(8<<30))
	for _, write := range []struct {
		path, text string
		want       uint64
	}{{a.Path, "max", dmem.Unlimited}, {a.Path, "6GiB", 6 << 30}, {"/team", "1GiB", 1 << 30}, {"/team", "max", 6 << 30}} {
		if err := r.Tree().Write(write.path, "memory.max", r.Tree().Devices()[0].UUID+" "+write.text); err != nil {
			t.Fatal(err)
		}
		if write.want != dmem.Unlimited {
			write.want += tolerance(write.want)
		}
		bound(write.want)
	}
	r.stop()
	bound(6<<30 + tolerance(6<<30))
	r = startBound(t, c)
	bound(6<<30 + tolerance(6<<30))
	if err := r.Tree().Write(a.Path, "memory.max", r.Tree().Devices()[0].UUID+" 2GiB"); err != nil {
		t.Fatal(err)
	}
	bound(2<<30 + tolerance(2<<30))

	events := r.events(t)
	launcher.Process.Kill()
	launcher.Wait()
	events.await(t, LgpuRemoved)
	for limit := time.Now().Add(20 * time.Second); len(h.Cgroups("lgpu")) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("left are %v", h.Cgroups("lgpu"))
		}
	}
}

// TestBoundsOfAGroup: what the lgpus of a group have together is bounded by the group's limit, whatever theirs are; also
// when a limit changes that is above all of theirs, and when a daemon begins anew.
func TestBoundsOfAGroup(t *testing.T) {
	h, c := boundMachine(t)
	r := startBound(t, c)
	allows := func(path string, want uint64) {
		t.Helper()
		dir, err := r.Tree().Directory(path)
		if err != nil {
			t.Fatal(err)
		}
		file := c.Dmem
		for _, id := range r.bounds.path(dir) {
			file = filepath.Join(file, fmt.Sprintf("%016x.group", id))
		}
		text, err := os.ReadFile(filepath.Join(file, "dmem.max"))
		if line := boundRegion + " " + strconv.FormatUint(want, 10) + "\n"; err != nil || string(text) != line {
			t.Errorf("%s: %q, %v; want %q", path, text, err, line)
		}
	}
	write := func(path, text string) {
		t.Helper()
		if err := r.Tree().Write(path, "memory.max", r.Tree().Devices()[0].UUID+" "+text); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"/team", "/team/part"} {
		if err := r.Tree().Mkdir(path, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	write("/team", "6GiB")
	var all []*Attachment
	for _, path := range []string{"/team/a", "/team/part/b"} {
		launcher := program(t)
		all = append(all, r.holds(t, AttachSpec{Path: path, Limits: memory(4 << 30), Launcher: limits.Author{PID: launcher.Process.Pid}}))
		if got, want := h.Bound(launcher.Process.Pid, boundRegion), uint64(4<<30+tolerance(4<<30)); got != want {
			t.Errorf("%s alone may have %d, not %d", path, got, want)
		}
	}
	allows("/team", 6<<30+2*toleranceBytes) // of two
	write("/team/part", "3GiB")
	allows("/team/part", 3<<30+tolerance(3<<30))
	write("/team", "5GiB") // above the lgpus' own
	allows("/team", 5<<30+2*toleranceBytes)
	r.stop()
	r = startBound(t, c)
	allows("/team", 5<<30+2*toleranceBytes)
	write("/team", "7GiB")
	allows("/team", 7<<30+tolerance(7<<30))
	write("/team", "5GiB")
	all[1] = r.holds(t, AttachSpec{Path: "/team/part/c", Limits: memory(1 << 30), Launcher: limits.Author{PID: program(t).Process.Pid}})
	allows("/team", 5<<30+3*toleranceBytes)
	all[1].Close() // with nothing in it
	allows("/team", 5<<30+2*toleranceBytes)
}

// TestBoundsStayOut: launchers in a cgroup that belongs to a directory stay where they are, since their programs belong
// to it by that; so do all without the administrator's word, and where the kernel cannot do it that is an event.
func TestBoundsStayOut(t *testing.T) {
	h, c := boundMachine(t)
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	r := startBound(t, c)
	if err := r.Tree().Mkdir("/team", 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := r.Tree().Write("/team", "cgroup.path", strings.SplitN(string(own), "\n", 2)[0]); err != nil {
		t.Fatal(err)
	}
	launcher := program(t)
	a := r.holds(t, AttachSpec{Path: "/team/a", Limits: memory(1 << 30), Launcher: limits.Author{PID: launcher.Process.Pid}})
	if got := h.Bound(launcher.Process.Pid, boundRegion); got != dmem.Unlimited {
		t.Errorf("a launcher of a bound cgroup may have %d", got)
	}
	a.Close()
	r.stop()

	c.Dmem = ""
	c.Dir = shortDir(t)
	r = startBound(t, c)
	a = r.holds(t, AttachSpec{Path: "/a", Limits: memory(1 << 30), Launcher: limits.Author{PID: launcher.Process.Pid}})
	if got := h.Bound(launcher.Process.Pid, boundRegion); got != dmem.Unlimited {
		t.Errorf("without being asked, it may have %d", got)
	}
	a.Close()
	r.stop()

	c.Dmem = filepath.Join(t.TempDir(), "lgpu")
	r = startBound(t, c)
	r.holds(t, AttachSpec{Path: "/b", Limits: memory(1 << 30), Launcher: limits.Author{PID: launcher.Process.Pid}})
	if n := r.Counters().Events[DmemFailed]; n != 1 {
		t.Errorf("%d events say that the kernel bounds nothing", n)
	}
}

// TestBoundsRefused: a launcher that the kernel does not move is refused, with nothing left of its lgpu.
func TestBoundsRefused(t *testing.T) {
	h, c := boundMachine(t)
	r := startBound(t, c)
	if err := r.Tree().Mkdir("/team", 0, 0); err != nil {
		t.Fatal(err)
	}
	first, second := program(t), program(t)
	a := r.holds(t, AttachSpec{Path: "/team/a", Limits: memory(1 << 30), Launcher: limits.Author{PID: first.Process.Pid}})
	inside := h.Cgroups("lgpu")
	if len(inside) == 1 {
		inside = h.Cgroups(inside[0])
	}
	if len(inside) != 1 {
		t.Fatalf("cgroups are %v", inside)
	}
	// What gives a controller to those below takes no process in, and does that only where it has none.
	for _, write := range [][2]string{{"cgroup.procs", strconv.Itoa(first.Process.Pid)},
		{inside[0] + "/cgroup.subtree_control", "+dmem"}} {
		if err := os.WriteFile(filepath.Join(h.Dir, write[0]), []byte(write[1]), 0); err != nil {
			t.Fatal(err)
		}
	}
	_, err := r.Attach(t.Context(), AttachSpec{Path: "/team/a", Launcher: limits.Author{PID: second.Process.Pid}})
	if !errors.Is(err, unix.EBUSY) || !errors.Is(err, ErrInvalid) {
		t.Errorf("a launcher that cannot be moved: %v", err)
	}
	if shown := r.lgpus.launchersOf(a.ID); len(shown) != 1 {
		t.Errorf("launchers are %v", shown)
	}
}
