package dmem_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/internal/dmem"
	"github.com/lgpu/lgpu/internal/dmem/dmemtest"
)

const (
	one   = "nvidia/00000000:1b:00.0/vidmem"
	other = "drm/0000:03:00.0/vram0"
)

func mount(t *testing.T) *dmemtest.Hierarchy {
	return dmemtest.Mount(t, dmem.Region{Name: one, Bytes: 80 << 30}, dmem.Region{Name: other, Bytes: 8 << 30})
}

// sleeper is a process that lives until the test ends, or until its input does.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	c := exec.Command("cat")
	if _, err := c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	return c
}

// TestBound: what is set holds for who joins, for each device by itself, and changes later; a removed cgroup stays for as
// long as it has processes.
func TestBound(t *testing.T) {
	h := mount(t)
	tree, err := dmem.Open(filepath.Join(h.Dir, "machine/lgpu"))
	if err != nil {
		t.Fatal(err)
	}
	unknown, err := tree.Set(dmem.Path{0x1f}, []dmem.Limit{
		{PCI: "0000:1B:00.0", Bytes: 4 << 30}, {PCI: "00000000:03:00.0", Bytes: dmem.Unlimited}, {PCI: "0000:99:00.0", Bytes: 1},
	})
	if err != nil || len(unknown) != 1 || unknown[0].PCI != "0000:99:00.0" {
		t.Fatalf("unknown are %v, %v", unknown, err)
	}
	p := sleeper(t)
	if err := tree.Join(0x1f, p.Process.Pid); err != nil {
		t.Fatal(err)
	}
	bound := func(region string, want uint64) {
		t.Helper()
		if got := h.Bound(p.Process.Pid, region); got != want {
			t.Errorf("it may have %d of %s, not %d", got, region, want)
		}
	}
	bound(one, 4<<30)
	bound(other, dmem.Unlimited)
	if _, err := tree.Set(dmem.Path{0x1f}, []dmem.Limit{{PCI: "0000:1b:00.0", Bytes: 1 << 30}, {PCI: "0000:03:00.0", Bytes: 2 << 30}}); err != nil {
		t.Fatal(err)
	}
	bound(one, 1<<30)
	bound(other, 2<<30)

	tree.Remove(0x1f)
	tree.Sweep()
	bound(one, 1<<30)
	p.Process.Kill()
	p.Wait()
	tree.Sweep()
	if left := h.Cgroups("machine/lgpu"); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

// TestSweep: the cgroups of a process before are removed once they have no processes, with what programs have made
// below them; those in use, and folders with other names, are not.
func TestSweep(t *testing.T) {
	h := mount(t)
	dir := filepath.Join(h.Dir, "lgpu")
	before, err := dmem.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []uint64{1, 2, 3} {
		if _, err := before.Set(dmem.Path{id}, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"other", "0000000000000001/fence"} {
		if err := os.Mkdir(filepath.Join(dir, path), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p := sleeper(t)
	if err := before.Join(3, p.Process.Pid); err != nil {
		t.Fatal(err)
	}
	after, err := dmem.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := after.Set(dmem.Path{2}, []dmem.Limit{{PCI: "0000:1b:00.0", Bytes: 1 << 30}}); err != nil {
		t.Fatal(err)
	}
	after.Sweep()
	want := []string{"lgpu/0000000000000002", "lgpu/0000000000000003", "lgpu/other"}
	if left := h.Cgroups("lgpu"); !slices.Equal(left, want) {
		t.Errorf("left are %v, not %v", left, want)
	}
	p.Process.Kill()
	p.Wait()
	after.Sweep()
	if left := h.Cgroups("lgpu"); !slices.Equal(left, []string{"lgpu/0000000000000002", "lgpu/other"}) {
		t.Errorf("left are %v", left)
	}
}

// TestGroups: the cgroups lie as the lgpus do, a group's bounds those below it, and goes with the last of them.
func TestGroups(t *testing.T) {
	h := mount(t)
	tree, err := dmem.Open(filepath.Join(h.Dir, "lgpu"))
	if err != nil {
		t.Fatal(err)
	}
	limit := func(bytes uint64) []dmem.Limit { return []dmem.Limit{{PCI: "0000:1b:00.0", Bytes: bytes}} }
	set := func(at dmem.Path, bytes uint64) {
		t.Helper()
		if unknown, err := tree.Set(at, limit(bytes)); err != nil || len(unknown) > 0 {
			t.Fatal(unknown, err)
		}
	}
	group := func(at dmem.Path, bytes uint64) {
		t.Helper()
		if err := tree.SetGroup(at, append(limit(bytes), dmem.Limit{PCI: "0000:99:00.0", Bytes: 1})); err != nil {
			t.Fatal(err)
		}
	}
	set(dmem.Path{1, 2, 3}, 4<<30)
	set(dmem.Path{1, 4}, 4<<30)
	set(dmem.Path{5}, 4<<30)
	below, beside, alone := sleeper(t), sleeper(t), sleeper(t)
	for id, p := range map[uint64]*exec.Cmd{3: below, 4: beside, 5: alone} {
		if err := tree.Join(id, p.Process.Pid); err != nil {
			t.Fatal(err)
		}
	}
	const unlimited = dmem.Unlimited >> 30 // of a process that has ended
	bound := func(want ...uint64) {
		t.Helper()
		for i, p := range []*exec.Cmd{below, beside, alone} {
			if got := h.Bound(p.Process.Pid, one); got>>30 != want[i] {
				t.Errorf("process %d may have %d GiB, not %d", i, got>>30, want[i])
			}
		}
	}
	bound(4, 4, 4)
	group(dmem.Path{1}, 3<<30)
	bound(3, 3, 4)
	group(dmem.Path{1, 2}, 2<<30)
	bound(2, 3, 4)
	group(nil, 1<<30)
	bound(1, 1, 1)
	group(nil, dmem.Unlimited)
	group(dmem.Path{1}, dmem.Unlimited)
	bound(2, 4, 4)

	// One of a group that has no processes stays while there is one that has; so does its bound.
	tree.Remove(3)
	bound(2, 4, 4)
	below.Process.Kill()
	below.Wait()
	tree.Sweep()
	want := []string{"lgpu/0000000000000001.group/0000000000000004"}
	if left := h.Cgroups("lgpu/0000000000000001.group"); !slices.Equal(left, want) {
		t.Errorf("left are %v, not %v", left, want)
	}
	// What was an lgpu, and has a process still, is a group from now on.
	tree.Remove(5)
	set(dmem.Path{5, 6}, 2<<30)
	bound(unlimited, 4, 4)
	for _, p := range []*exec.Cmd{beside, alone} {
		p.Process.Kill()
		p.Wait()
	}
	tree.Remove(4)
	tree.Remove(6)
	tree.Sweep()
	if left := h.Cgroups("lgpu"); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
	// A group alone, which an lgpu was to come to.
	group(dmem.Path{7}, 1<<30)
	tree.Sweep()
	if left := h.Cgroups("lgpu"); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

// TestRefused: what cannot be is said, and nothing is left behind.
func TestRefused(t *testing.T) {
	plain := t.TempDir()
	if _, err := dmem.Open(filepath.Join(plain, "lgpu")); !errors.Is(err, dmem.ErrNoHierarchy) {
		t.Errorf("a plain folder: %v", err)
	}
	if entries, err := os.ReadDir(plain); err != nil || len(entries) > 0 {
		t.Errorf("left are %v, %v", entries, err)
	}
	if _, err := dmem.Open(filepath.Join(dmemtest.Mount(t).Dir, "lgpu")); !errors.Is(err, dmem.ErrNoController) {
		t.Errorf("a kernel without dmem: %v", err)
	}
	h := mount(t)
	if _, err := dmem.Open(h.Dir); err == nil {
		t.Error("the root is no cgroup for lgpus")
	}
	busy := filepath.Join(h.Dir, "busy")
	if err := os.Mkdir(busy, 0o755); err != nil {
		t.Fatal(err)
	}
	p := sleeper(t)
	if err := os.WriteFile(filepath.Join(busy, "cgroup.procs"), []byte(strconv.Itoa(p.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := dmem.Open(filepath.Join(busy, "lgpu")); !errors.Is(err, unix.EBUSY) {
		t.Errorf("below a cgroup with processes: %v", err)
	}
	tree, err := dmem.Open(filepath.Join(h.Dir, "lgpu"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tree.Set(dmem.Path{1}, nil); err != nil {
		t.Fatal(err)
	}
	gone := sleeper(t)
	gone.Process.Kill()
	gone.Wait()
	if err := tree.Join(1, gone.Process.Pid); !errors.Is(err, unix.ESRCH) {
		t.Errorf("a process that has ended: %v", err)
	}
	if err := tree.Join(2, p.Process.Pid); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an lgpu without a cgroup: %v", err)
	}
}

// TestFind: the region of a device is the largest that has its address.
func TestFind(t *testing.T) {
	all := dmem.ParseRegions([]byte("drm/0000:03:00.0/stolen 67108864\ndrm/0000:03:00.0/vram0 8514437120\n" +
		"nvidia/00000000:02:00.0/vidmem 102641958912\nno number\n\nshort\n"))
	for pci, want := range map[string]string{
		"0000:03:00.0": other, "00000000:02:00.0": "nvidia/00000000:02:00.0/vidmem", "0001:02:00.0": "", "": "", "vidmem": "",
	} {
		if r, found := dmem.Find(all, pci); r.Name != want || found != (want != "") {
			t.Errorf("%s has %+v", pci, r)
		}
	}
}

// FuzzParseRegions: any text; what is found is in it.
func FuzzParseRegions(f *testing.F) {
	f.Add("drm/0000:03:00.0/vram0 8514437120\n", "0000:03:00.0")
	f.Add("nvidia/00000000:02:00.0/vidmem max\n x 1", "x")
	f.Fuzz(func(t *testing.T, text, pci string) {
		all := dmem.ParseRegions([]byte(text))
		for _, r := range all {
			if r.Name == "" || !strings.Contains(text, r.Name) {
				t.Errorf("%q has no region %+v", text, r)
			}
		}
		if r, found := dmem.Find(all, pci); found && !slices.Contains(all, r) {
			t.Errorf("%+v is none of %v", r, all)
		}
	})
}
