package limits

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/lgpu/lgpu/internal/list"
)

const (
	uuidA = "GPU-00000000-0000-0000-0000-00000000000a"
	uuidB = "GPU-00000000-0000-0000-0000-00000000000b"
	uuidC = "GPU-00000000-0000-0000-0000-00000000000c"
)

// machine has a spatial device 1:0 with 64 bits, a temporal one 1:1 with 132, and a spatial one without number.
func machine() []Device {
	return []Device{
		{UUID: uuidA, Number: "1:0", Ordinal: "0", Capacity: 64, UnitsPerBit: 2, Kind: Spatial, Default: list.Upto(32), Memory: 8 << 30},
		{UUID: uuidB, Number: "1:1", Ordinal: "1", Capacity: 132, UnitsPerBit: 1, Kind: Temporal, Memory: 80 << 30},
		{UUID: uuidC, Capacity: 7, UnitsPerBit: 8, Remainder: 4, Kind: Spatial},
	}
}

func newTree(t testing.TB, options Options, paths ...string) *Tree {
	t.Helper()
	tr := New(options)
	if err := tr.SetDevices(machine()); err != nil {
		t.Fatal(err)
	}
	for _, p := range paths {
		if err := tr.Mkdir(p, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	return tr
}

// first returns the first line of a file without the device.
func first(t testing.TB, tr *Tree, path, file string) string {
	t.Helper()
	text, err := tr.Read(path, file)
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(text, "\n")
	_, value, _ := strings.Cut(line, " ")
	return value
}

// picture is every file of every directory, but for the live ones.
func picture(t testing.TB, tr *Tree) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, n := range tr.Directories() {
		for _, f := range Files() {
			if f.Root && n.Path != Root || !f.Readable {
				continue
			}
			text, err := tr.Read(n.Path, f.Name)
			if err != nil {
				t.Fatal(err)
			}
			files[path.Join(n.Path, f.Name)] = text
		}
	}
	return files
}

// TestScripts runs through what the files promise. A step is "PATH FILE TEXT" and either an errno, or after => what the
// first device's line of a file is then: "PATH FILE => LINE".
func TestScripts(t *testing.T) {
	for name, steps := range map[string]string{
		"a new node follows its parent": `
			/a lgpu => max
			/a lgpu.effective => count=64 list=0-63
			/a lgpu 1:0 list=32-63
			/a/x lgpu.effective => count=32 list=32-63
			/a/x lgpu => max`,
		"count is taken from the parent, lowest first": `
			/a lgpu 1:0 list=32-63
			/a/x lgpu 1:0 count=4
			/a/x lgpu.effective => count=4 list=32-35
			/a lgpu 1:0 list=2-5
			/a/x lgpu.effective => count=4 list=2-5
			/a/y lgpu 1:0 count=5 ! ERANGE
			/a/y lgpu 1:0 count=4294967296 ! ERANGE
			/a/y lgpu 1:0 count=-1 ! EINVAL
			/a/y lgpu 1:0 count= ! EINVAL`,
		"counts of siblings are disjoint as long as that is possible": `
			/a lgpu 1:0 list=0-5
			/a/x lgpu 1:0 count=2
			/a/y lgpu 1:0 count=3
			/a/y lgpu.effective => count=3 list=2-4
			/a/z lgpu 1:0 count=2
			/a/z lgpu.effective => count=2 list=0,5`,
		"a count keeps what survives and is topped up": `
			/a/x lgpu 1:0 count=4
			/a lgpu 1:0 list=2-3,10-20
			/a/x lgpu.effective => count=4 list=2-3,10-11
			/a lgpu 1:0 list=11
			/a/x lgpu.effective => count=1 list=11
			/a/x lgpu => count=4
			/a lgpu max
			/a/x lgpu.effective => count=4 list=0-2,11
			/a/x lgpu 1:0 count=2
			/a/x lgpu.effective => count=2 list=0-1
			/a/x lgpu 1:0 count=3
			/a/x lgpu.effective => count=3 list=0-2`,
		"a list must be the parent's": `
			/a lgpu 1:0 list=8-15
			/a/x lgpu 1:0 list=7-8 ! EINVAL
			/a/x lgpu 1:0 list=16 ! EINVAL
			/a/x lgpu 1:0 list=8,15
			/a/x lgpu.effective => count=2 list=8,15
			/a/x lgpu 1:0 list=all ! EINVAL
			/ lgpu 1:0 list=all
			/ lgpu 1:0 list=64 ! ERANGE
			/ lgpu 1:0 list=0-1023:2/256 ! ERANGE
			/ lgpu 1:0 list=all:1/32,N
			/ lgpu.effective => count=3 list=0,32,63`,
		"shrinking acts on the subtree, growing heals": `
			/a/x lgpu 1:0 list=4-7
			/a/y lgpu 1:0 list=0-3
			/a lgpu 1:0 list=0-5
			/a/x lgpu.effective => count=2 list=4-5
			/a/x lgpu => count=4 list=4-7
			/a lgpu 1:0 list=20
			/a/x lgpu.effective => count=0 list=
			/a/y lgpu.effective => count=0 list=
			/a lgpu max
			/a/x lgpu.effective => count=4 list=4-7
			/a/y lgpu.effective => count=4 list=0-3`,
		"default follows the device's default within the parent": `
			/a lgpu default
			/a lgpu => default
			/a lgpu.effective => count=32 list=0-31
			/ lgpu 1:0 list=30-40
			/a lgpu.effective => count=2 list=30-31
			/a lgpu 1:0 list=default
			/a lgpu => default
			/a lgpu 1:0 count=max
			/a lgpu.effective => count=11 list=30-40
			/a lgpu 1:0 count=default list=default
			/a lgpu.effective => count=2 list=30-31
			/a lgpu 1:0 count=max list=default ! EINVAL
			/a lgpu 1:0 count=11 list=max ! EINVAL
			/a lgpu 1:0 count=max list=30-40 ! EINVAL`,
		"both keys agree": `
			/a lgpu 1:0 count=3 list=1-3
			/a lgpu => count=3 list=1-3
			/a lgpu 1:0 list=5,7 count=2
			/a lgpu => count=2 list=5,7
			/a lgpu 1:0 list=5,7 count=3 ! EINVAL
			/a lgpu 1:0 list=64,65 count=9 ! ERANGE
			/a lgpu 1:0 count=1 count=1 ! EINVAL`,
		"the empty set is legal everywhere": `
			/ lgpu 1:0 count=0
			/a/x lgpu.effective => count=0 list=
			/a/x lgpu 1:0 count=0
			/a/x lgpu 1:0 list=
			/a/x lgpu => count=0 list=
			/a/x lgpu 1:0 count=0 list=
			/ lgpu max
			/a/x lgpu.effective => count=0 list=`,
		"exclusive bits": `
			/a lgpu 1:0 list=0-9
			/a/x lgpu 1:0 list=0-3 exclusive=1
			/a/x lgpu => count=4 list=0-3 exclusive=1
			/a/y lgpu.effective => count=6 list=4-9
			/a/y lgpu 1:0 list=3-4 ! EBUSY
			/a/y lgpu 1:0 count=7 ! EBUSY
			/a/y lgpu 1:0 count=11 ! ERANGE
			/a/y lgpu 1:0 count=5
			/a/y lgpu.effective => count=5 list=4-8
			/a/z lgpu 1:0 count=2 exclusive=1 ! EBUSY
			/a/z lgpu 1:0 list=8 exclusive=1 ! EBUSY
			/a/z lgpu 1:0 count=1 exclusive=1
			/a/z lgpu.effective => count=1 list=9
			/a/x lgpu 1:0 list=0-4 exclusive=1 ! EBUSY
			/a/x lgpu 1:0 list=0-4 exclusive=0 
			/a/z lgpu.effective => count=1 list=9
			/a/y lgpu max
			/a/y lgpu.effective => count=9 list=0-8
			/a/y lgpu 1:0 max exclusive=1 ! EINVAL
			/a/y lgpu 1:0 count=max exclusive=1 ! EINVAL
			/a/y lgpu 1:0 exclusive=1 ! EINVAL
			/a/y lgpu 1:0 count=1 exclusive=2 ! EINVAL
			/b lgpu 1:0 list=0-63
			/b lgpu.effective => count=64 list=0-63`,
		"exclusive bits come back to their owner": `
			/a/x lgpu 1:0 list=0-3 exclusive=1
			/a lgpu 1:0 list=2-9
			/a/y lgpu 1:0 count=6
			/a/y lgpu.effective => count=6 list=4-9
			/a/y lgpu 1:0 list=2 ! EBUSY
			/a lgpu max
			/a/x lgpu.effective => count=4 list=0-3
			/a/y lgpu.effective => count=6 list=4-9`,
		"lines": `
			/a lgpu 1:0 ! EINVAL
			/a lgpu 1:9 max ! ENODEV
			/a lgpu GPU-x max ! ENODEV
			/a lgpu nonsense ! EINVAL
			/a lgpu 1:0 nonsense ! EINVAL
			/a lgpu 1:0 max max ! EINVAL
			/a lgpu 1:0 max count=1 ! EINVAL
			/a lgpu 1:0 colour=red ! EINVAL
			/a lgpu 1:0 Count=1 ! EINVAL
			/a lgpu 1:0 count=1 list ! EINVAL
			/a lgpu 1:0 count=1;1:1 count=2;1:0 count=3 ! EINVAL
			/a lgpu 1:0 count=1;max ! EINVAL
			/a lgpu 1:0 count=1;;1:1 count=2;
			/a lgpu => count=1
			/a lgpu ; ! EINVAL
			/a nofile max ! ENOENT
			/nowhere lgpu max ! ENOENT
			/a lgpu.unit max ! ENOENT
			/ lgpu.unit max ! EACCES
			/a lgpu.effective max ! EACCES
			/a lgpu gpu-00000000-0000-0000-0000-00000000000A count=3
			/a lgpu => count=3`,
		"time has no names": `
			/a lgpu 1:1 list=0-3 ! EOPNOTSUPP
			/a lgpu 1:1 list=max ! EOPNOTSUPP
			/a lgpu 1:1 count=3 exclusive=1 ! EOPNOTSUPP
			/a lgpu 1:1 count=3 exclusive=0
			/a lgpu 1:1 count=133 ! ERANGE
			/a lgpu 1:0 count=1;1:1 list=0 ! EOPNOTSUPP
			/a lgpu => max`,
		"weights": `
			/a lgpu.weight => 100
			/a lgpu.weight 1:0 1
			/a lgpu.weight => 1
			/a lgpu.weight 10000
			/a lgpu.weight => 10000
			/a lgpu.weight 10001 ! ERANGE
			/a lgpu.weight 0 ! ERANGE
			/a lgpu.weight 99999999999999999999 ! ERANGE
			/a lgpu.weight -1 ! EINVAL
			/a lgpu.weight 0 2
			/a lgpu.weight => 2
			/a lgpu.weight 1 2 3 ! EINVAL
			/a lgpu.weight 3 2 ! ENODEV
			/a lgpu.weight 1:0 ! EINVAL
			/a lgpu.weight default
			/a lgpu.weight => 100`,
		"shares of time": `
			/a compute.max => max
			/a compute.max 25
			/a compute.max => 25%
			/a compute.max 1:0 12.5 %
			/a compute.max => 12.5%
			/a compute.max 0 ! ERANGE
			/a compute.max 100.5 ! ERANGE
			/a compute.max 0.001 ! EINVAL
			/a compute.max fast ! EINVAL
			/a compute.max max
			/a compute.max => max
			/a compute.min => 0%
			/a compute.min 20%
			/a compute.min => 20%
			/a compute.min 0
			/a compute.min => 0%
			/a compute.min max ! EINVAL`,
		"guarantees can be kept": `
			/a compute.min 60%
			/b compute.min 50% ! ERANGE
			/b compute.min 40%
			/a/x compute.min 61% ! ERANGE
			/a/x compute.min 40%
			/a/y compute.min 20%
			/a/z compute.min 1% ! ERANGE
			/a/y compute.min 0.00%
			/a/z compute.min 1%
			/b compute.max 30%
			/b/x compute.min 31% ! ERANGE
			/b/x compute.min 30%`,
		"memory": `
			/a memory.max => max
			/a memory.max 8GiB
			/a memory.max => 8589934592
			/a memory.max 1:0 1.5 G
			/a memory.max => 1610612736
			/a memory.max 0
			/a memory.max => 0
			/a memory.max max
			/a memory.max => max
			/a memory.max 18446744073709551615
			/a memory.max => max
			/a memory.max much ! EINVAL
			/a memory.max 1:0 ! EINVAL
			/a memory.max 17179869184T ! ERANGE
			/a memory.high 1:0 5 MiB
			/a memory.high => 5242880`,
		"a size has a unit, or is bytes as files print them": `
			/a memory.max 8 ! EINVAL
			/a memory.max 1:0 8 ! EINVAL
			/a memory.max 8192 ! EINVAL
			/a memory.max 1048575 ! EINVAL
			/a memory.max 1048576
			/a memory.max => 1048576
			/a memory.max 8B ! ERANGE
			/a memory.max 1023KiB ! ERANGE
			/a memory.max 1048576B
			/a memory.max => 1048576
			/a memory.high 4 ! EINVAL
			/a memory.high 4B ! ERANGE
			/a host.max 8 ! EINVAL
			/a host.max 64KiB ! ERANGE
			/a host.max 0
			/a host.max 1MiB`,
		"a device has no more memory than it has": `
			/a memory.max 1:0 8GiB
			/a memory.max 1:0 8589934593 ! ERANGE
			/a memory.max 20TiB ! ERANGE
			/a memory.high 1:0 9GiB ! ERANGE
			/a memory.max 1:1 80GiB
			/a memory.max 9GiB ! ERANGE
			/a memory.max ` + uuidC + ` 9TiB
			/a memory.max => 8589934592`,
		"devices have several names": `
			/a memory.max 0 1GiB
			/a memory.max => 1073741824
			/a memory.max 0 2 GiB
			/a memory.max => 2147483648
			/a memory.max 2 GiB
			/a memory.max => 2147483648
			/a memory.max 1 GPU ! EINVAL
			/a compute.max 0 25
			/a compute.max => 25%
			/a compute.max 30 %
			/a compute.max => 30%
			/a lgpu 0 list=0-3
			/a lgpu => count=4 list=0-3
			/a lgpu 0 max
			/a lgpu.priority 0 high
			/a lgpu.priority => high
			/a lgpu.weight 7 30 ! ENODEV
			/a lgpu.weight GPU-0000 30 ! ENODEV
			/a lgpu.weight gpu-00000000-0000-0000-0000-00000000000A 40
			/a lgpu.weight => 40
			/a lgpu.weight GPU-00000000-0000-0000-0000-00000000000 41 ! ENODEV`,
		"priorities": `
			/a lgpu.priority => default
			/a lgpu.priority high
			/a lgpu.priority => high
			/a lgpu.priority latency
			/a lgpu.priority urgent ! EINVAL
			/a lgpu.priority default
			/a lgpu.priority => default`,
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTree(t, Options{}, "/a", "/a/x", "/a/y", "/a/z", "/b", "/b/x")
			for step := range strings.Lines(strings.TrimSpace(steps)) {
				step = strings.TrimSpace(step)
				if at, want, found := strings.Cut(step, "=>"); found {
					fields := strings.Fields(at)
					if got := first(t, tr, fields[0], fields[1]); got != strings.TrimSpace(want) {
						t.Fatalf("%s\nis %s", step, got)
					}
					continue
				}
				write, want, _ := strings.Cut(step, " ! ")
				parts := strings.SplitN(write, " ", 3)
				before, saved := picture(t, tr), tr.State()
				err := tr.Write(parts[0], parts[1], strings.ReplaceAll(parts[2], ";", "\n"))
				var e *Error
				switch {
				case want == "" && err != nil:
					t.Fatalf("%s\n%v", step, err)
				case want == "":
				case !errors.As(err, &e) || errnoName(e.Errno) != want:
					t.Fatalf("%s\n%v", step, err)
				case !maps.Equal(before, picture(t, tr)) || !reflect.DeepEqual(saved, tr.State()):
					t.Fatalf("%s\nchanged something", step)
				case e.Path != parts[0] || !strings.Contains(err.Error(), parts[1]) && e.Errno != syscall.ENOENT || e.Reason == "":
					t.Fatalf("%s\nthe error does not say where and why: %v", step, err)
				}
			}
		})
	}
}

func errnoName(e syscall.Errno) string {
	return map[syscall.Errno]string{syscall.EINVAL: "EINVAL", syscall.ERANGE: "ERANGE", syscall.EOVERFLOW: "EOVERFLOW", syscall.EBUSY: "EBUSY",
		syscall.ENODEV: "ENODEV", syscall.ENOENT: "ENOENT", syscall.EACCES: "EACCES", syscall.EOPNOTSUPP: "EOPNOTSUPP"}[e]
}

// TestErrorsSayWhere: line, key and token of what was wrong.
func TestErrorsSayWhere(t *testing.T) {
	tr := newTree(t, Options{}, "/a")
	for _, c := range []struct {
		file, text string
		want       Error
	}{
		{"lgpu", "1:0 count=1\n\n1:1 count=x\n", Error{Errno: syscall.EINVAL, Line: 3, Key: "count", Token: "x"}},
		{"lgpu", "1:0 list=0-3,8-99", Error{Errno: syscall.ERANGE, Line: 1, Key: "list", Token: "8-99"}},
		{"lgpu", "1:0 list=3,4-", Error{Errno: syscall.EINVAL, Line: 1, Key: "list", Token: "end of text"}},
		{"lgpu", "1:0 color=1", Error{Errno: syscall.EINVAL, Line: 1, Key: "color", Token: "1"}},
		{"lgpu", "max\n9:9 max", Error{Errno: syscall.ENODEV, Line: 2}},
		{"lgpu.weight", "1:0 1\n1:1 heavy", Error{Errno: syscall.EINVAL, Line: 2, Token: "heavy"}},
		{"memory.max", "1:0 1G\n1:1 five apples", Error{Errno: syscall.EINVAL, Line: 2, Token: "five apples"}},
		{"memory.max", "8", Error{Errno: syscall.EINVAL, Line: 1, Token: "8", Remedy: "8GiB? bytes are written 8B"}},
		{"memory.max", "0 8192", Error{Errno: syscall.EINVAL, Line: 1, Token: "8192", Remedy: "8192MiB? bytes are written 8192B"}},
		{"memory.max", "4B", Error{Errno: syscall.ERANGE, Line: 1, Token: "4B", Remedy: "0 is nothing at all, max no limit"}},
		{"memory.max", "20TiB", Error{Errno: syscall.ERANGE, Line: 1, Token: "20TiB", Remedy: "max is all of it"}},
		{"compute.min", "1:1 101", Error{Errno: syscall.ERANGE, Line: 1, Token: "101"}},
		{"gang", "a b", Error{Errno: syscall.EINVAL, Line: 1, Token: "a b"}},
	} {
		err := tr.Write("/a", c.file, c.text)
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%q > %s: %v", c.text, c.file, err)
			continue
		}
		c.want.Path, c.want.File, c.want.Reason = "/a", c.file, e.Reason
		if !reflect.DeepEqual(*e, c.want) {
			t.Errorf("%q > %s: %+v, want %+v", c.text, c.file, *e, c.want)
		}
		for _, part := range []string{"/a", c.file, c.want.Key, c.want.Token, fmt.Sprint(c.want.Line)} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not name %q", err, part)
			}
		}
	}
}

func TestEffective(t *testing.T) {
	tr := newTree(t, Options{}, "/a", "/a/x", "/a/x/y")
	for _, w := range []struct{ path, file, text string }{
		{"/a", "lgpu", "1:0 list=0-15\n1:1 count=66"}, {"/a", "compute.max", "1:0 40%"}, {"/a", "memory.max", "4GiB"}, {"/a", "lgpu.priority", "1:1 high"},
		{"/a", "host.max", "1GiB"}, {"/a/x", "compute.max", "60%"}, {"/a/x", "memory.max", "1:0 1GiB"}, {"/a/x", "lgpu.priority", "latency"},
		{"/a/x", "lgpu.weight", "1:1 7"}, {"/a/x", "memory.high", "1:0 1MiB"}, {"/a/x/y", "lgpu", "1:1 count=33"}, {"/a/x/y", "compute.min", "1:1 10%"},
		{"/a/x/y", "host.max", "2GiB"},
	} {
		if err := tr.Write(w.path, w.file, w.text); err != nil {
			t.Fatal(err)
		}
	}
	y, err := tr.Directory("/a/x/y")
	if err != nil {
		t.Fatal(err)
	}
	if y.Host != AtMost(1<<30) || y.HostMax != AtMost(2<<30) || len(y.Devices) != 3 || len(y.Requests) != 3 || y.Requests[1].Lgpu() != "count=33" {
		t.Errorf("%+v", y)
	}
	want := []Effective{
		{Device: uuidA, Bits: list.Upto(16), Units: 32, ComputeMax: 4000, Weight: 100, Priority: Latency, MemoryMax: AtMost(1 << 30)},
		{Device: uuidB, Bits: list.Upto(33), Units: 33, ComputeMax: 2500, ComputeMin: 1000, Weight: 100, Priority: High, MemoryMax: AtMost(4 << 30)},
		{Device: uuidC, Bits: list.Upto(7), Whole: true, Units: 56, ComputeMax: 6000, Weight: 100, Priority: Latency, MemoryMax: AtMost(4 << 30)},
	}
	for i, e := range y.Devices {
		if !e.equal(want[i]) {
			t.Errorf("/a/x/y has %+v\nwant %+v", e, want[i])
		}
	}
	x, _ := tr.Directory("/a/x")
	if e, ok := x.Device(uuidB); !ok || e.ComputeMin != 1000 || e.Weight != 7 || e.ComputeMax != 5000 || x.Parent == 0 || !slices.Equal(x.Children, []string{"y"}) {
		t.Errorf("/a/x has %+v", x)
	}
	if e, _ := x.Device(uuidA); e.MemoryHigh != AtMost(1<<20) || e.OwnMemoryMax != AtMost(1<<30) {
		t.Errorf("/a/x has %+v", e)
	}
	if _, ok := x.Device("GPU-none"); ok {
		t.Error("an unknown device is there")
	}
	// The guarantee shrinks with the cap of the group and comes back.
	for _, step := range []struct {
		max  string
		want uint32
	}{{"1:1 4%", 400}, {"1:1 max", 1000}} {
		if err := tr.Write("/a", "compute.max", step.max); err != nil {
			t.Fatal(err)
		}
		y, _ := tr.Directory("/a/x/y")
		if got := y.Devices[1].ComputeMin; got != step.want {
			t.Errorf("with compute.max %s of the group the guarantee is %d, want %d", step.max, got, step.want)
		}
	}
	// No bits are no time.
	if err := tr.Write("/a", "lgpu", "1:0 count=0\n1:1 count=0"); err != nil {
		t.Fatal(err)
	}
	y, _ = tr.Directory("/a/x/y")
	if y.Devices[0].ComputeMax != 0 || y.Devices[1].ComputeMax != 0 || y.Devices[1].ComputeMin != 0 || y.Devices[2].ComputeMax != 6000 {
		t.Errorf("without bits: %+v", y.Devices)
	}
}

// TestGuaranteesShrink: what a parent can no longer keep is taken from its children in proportion.
func TestGuaranteesShrink(t *testing.T) {
	tr := newTree(t, Options{}, "/a", "/a/x", "/a/y")
	for path, share := range map[string]string{"/a/x": "60%", "/a/y": "30%"} {
		if err := tr.Write(path, "compute.min", "1:1 "+share); err != nil {
			t.Fatal(err)
		}
	}
	if err := tr.Write("/a", "compute.min", "1:1 30%"); !errors.Is(err, nil) {
		t.Fatal(err)
	}
	x, _ := tr.Directory("/a/x")
	y, _ := tr.Directory("/a/y")
	if x.Devices[1].ComputeMin != 2000 || y.Devices[1].ComputeMin != 1000 {
		t.Errorf("guarantees of 60 and 30 within 30 are %d and %d", x.Devices[1].ComputeMin, y.Devices[1].ComputeMin)
	}
}

func TestCreateAndRemove(t *testing.T) {
	tr := newTree(t, Options{}, "/g")
	deep := ""
	for range MaxDepth {
		deep += "/d"
		if err := tr.Mkdir(deep, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		path string
		want syscall.Errno
	}{
		{"/g", syscall.EEXIST}, {"/", syscall.EEXIST}, {"", syscall.EINVAL}, {"x", syscall.EINVAL}, {"/x/", syscall.EINVAL}, {"//x", syscall.EINVAL},
		{"/no/x", syscall.ENOENT}, {"/g/lgpu", syscall.EEXIST}, {"/g/lgpu.unit", syscall.EEXIST}, {"/.hidden", syscall.EINVAL}, {"/g/..", syscall.EINVAL},
		{"/a b", syscall.EINVAL}, {"/" + strings.Repeat("x", 64), syscall.EINVAL}, {deep + "/d", syscall.ENAMETOOLONG}, {"/g/\n", syscall.EINVAL},
	} {
		if err := tr.Mkdir(c.path, 0, 0); !errors.Is(err, c.want) {
			t.Errorf("mkdir %q: %v, want %v", c.path, err, c.want)
		}
	}
	made, err := tr.Create(CreateSpec{Path: "/g/run", Temporary: true, UID: 7, GID: 8, Enter: true,
		Writes: []Assignment{{"lgpu", "1:0 count=4"}, {"memory.max", "1GiB"}, {"gang", "job"}}})
	if err != nil || made.UID != 7 || !made.Temporary || made.Gang != "job" || made.Devices[0].Bits.Count() != 4 || made.Devices[1].MemoryMax != AtMost(1<<30) {
		t.Fatalf("%+v, %v", made, err)
	}
	before := picture(t, tr)
	_, err = tr.Create(CreateSpec{Path: "/g/bad", Writes: []Assignment{{"lgpu", "1:0 count=4"}, {"memory.max", "x"}}})
	if !errors.Is(err, syscall.EINVAL) || !maps.Equal(before, picture(t, tr)) {
		t.Errorf("%v; a node was left behind", err)
	}
	if n := tr.Users("/g/run"); n != 1 {
		t.Errorf("%d users after Create with Enter", n)
	}
	for _, c := range []struct {
		what string
		err  error
		want syscall.Errno
	}{
		{"enter a group", tr.Enter("/g"), syscall.EBUSY}, {"enter nothing", tr.Enter("/nix"), syscall.ENOENT}, {"enter", tr.Enter("/g/run"), 0},
		{"mkdir below an lgpu", tr.Mkdir("/g/run/x", 0, 0), syscall.EBUSY}, {"rmdir a group", tr.Rmdir("/g"), syscall.ENOTEMPTY},
		{"rmdir in use", tr.Rmdir("/g/run"), syscall.EBUSY}, {"rmdir root", tr.Rmdir("/"), syscall.EBUSY}, {"rmdir nothing", tr.Rmdir("/nix"), syscall.ENOENT},
		{"chown", tr.Chown("/g/run", 1, 2), 0}, {"chown nothing", tr.Chown("/nix", 1, 2), syscall.ENOENT}, {"persist", tr.Persist("/g/run"), 0},
	} {
		if c.want == 0 && c.err != nil || c.want != 0 && !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %v", c.what, c.err, c.want)
		}
	}
	if n, ok := tr.ByID(made.ID); !ok || n.UID != 1 || n.GID != 2 || n.Temporary {
		t.Errorf("%+v", n)
	}
	if tr.Leave("/g/run") != 1 || tr.Leave("/g/run") != 0 || tr.Leave("/g/run") != 0 || tr.Leave("/nix") != 0 || tr.Users("/nix") != 0 {
		t.Error("Leave does not count")
	}
	if err := tr.Rmdir("/g/run"); err != nil {
		t.Error(err)
	}
	again, err := tr.Create(CreateSpec{Path: "/g/run"})
	if err != nil || again.ID == made.ID {
		t.Errorf("ID %d is used again, %v", again.ID, err)
	}
	if _, err := tr.Directory("/g/none"); !errors.Is(err, syscall.ENOENT) {
		t.Error(err)
	}
	if _, err := tr.Read("/g/none", "lgpu"); !errors.Is(err, syscall.ENOENT) {
		t.Error(err)
	}
	if _, err := tr.Read("/g", "lgpu.unit"); !errors.Is(err, syscall.ENOENT) {
		t.Error(err)
	}
}

// TestUpdate: several files are one transaction, each sees those before it.
func TestUpdate(t *testing.T) {
	tr := newTree(t, Options{}, "/a")
	before := picture(t, tr)
	err := tr.Update("/a", []Assignment{{"lgpu.weight", "5"}, {"compute.max", "30%"}, {"compute.min", "31%"}})
	if !errors.Is(err, syscall.ERANGE) || !maps.Equal(before, picture(t, tr)) {
		t.Fatalf("%v, or something changed", err)
	}
	if err := tr.Update("/a", []Assignment{{"compute.max", "30%"}, {"compute.min", "30%"}, {"lgpu", "1:0 count=9"}, {"lgpu", "1:0 count=3"}}); err != nil {
		t.Fatal(err)
	}
	if got := first(t, tr, "/a", "lgpu"); got != "count=3" {
		t.Error(got)
	}
}

func TestCommitAndWatch(t *testing.T) {
	var committed, watched []Change
	var refuse error
	var tr *Tree
	tr = newTree(t, Options{Commit: func(c Change) error {
		if tr != nil && tr.State().LastID > c.State.LastID {
			t.Error("Commit sees a state after the change")
		}
		committed = append(committed, c)
		return refuse
	}}, "/a", "/a/x", "/b")
	stop := tr.Watch(func(c Change) {
		if got := tr.State(); !reflect.DeepEqual(got, c.State) {
			t.Error("a watcher sees another state than the change's")
		}
		watched = append(watched, c)
	})
	a, _ := tr.Directory("/a")
	x, _ := tr.Directory("/a/x")
	committed = nil

	refuse = errors.New("disk full")
	before := picture(t, tr)
	err := tr.Write("/a", "lgpu", "1:0 count=3")
	if !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "disk full") || !maps.Equal(before, picture(t, tr)) || len(watched) != 0 {
		t.Fatalf("%v, %d watched", err, len(watched))
	}
	if err := tr.Rmdir("/b"); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	if err := tr.SetDevices(nil); !errors.Is(err, syscall.EIO) || len(tr.Devices()) != 3 {
		t.Fatal(err)
	}
	refuse, committed = nil, nil

	if err := tr.Write("/a", "lgpu", "1:0 count=3"); err != nil {
		t.Fatal(err)
	}
	if err := tr.Write("/a/x", "gang", "job"); err != nil {
		t.Fatal(err)
	}
	if err := tr.Mkdir("/c", 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := tr.Rmdir("/a/x"); err != nil {
		t.Fatal(err)
	}
	if err := tr.Write("/a", "memory.peak", "0"); err != nil { // no change of the tree
		t.Fatal(err)
	}
	c, _ := tr.Directory("/c")
	want := []Change{{Changed: []uint64{a.ID, x.ID}}, {Changed: []uint64{x.ID}}, {Created: []uint64{c.ID}}, {Removed: []uint64{x.ID}}}
	if len(watched) != len(want) || len(committed) != len(want) {
		t.Fatalf("%d watched, %d committed, want %d", len(watched), len(committed), len(want))
	}
	for i, w := range want {
		got := watched[i]
		if !slices.Equal(got.Created, w.Created) || !slices.Equal(got.Changed, w.Changed) || !slices.Equal(got.Removed, w.Removed) ||
			i > 0 && got.Sequence <= watched[i-1].Sequence {
			t.Errorf("change %d is %+v, want %+v", i, got, w)
		}
	}
	stop()
	if err := tr.Rmdir("/c"); err != nil || len(watched) != len(want) {
		t.Errorf("%v, %d watched after stop", err, len(watched))
	}
}
