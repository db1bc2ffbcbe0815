package ldcache

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// machine is the cache of this machine, as ldconfig wrote it.
func machine(t testing.TB) []byte {
	data, err := os.ReadFile("/etc/ld.so.cache")
	if err != nil {
		t.Skip("this machine has no cache: ", err)
	}
	return data
}

// TestParse: what is read is what ldconfig prints.
func TestParse(t *testing.T) {
	c, err := Parse(machine(t))
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("ldconfig", "-p").Output()
	if err != nil {
		t.Skip("ldconfig: ", err)
	}
	var want, got []string
	for _, line := range strings.Split(string(out), "\n")[1:] {
		name, path, found := strings.Cut(line, " => ")
		if found {
			want = append(want, strings.Fields(name)[0]+" "+path)
		}
	}
	for _, e := range c.entries {
		got = append(got, e.Name+" "+e.Path)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d entries\n%q\nnot %d\n%q", len(got), got, len(want), want)
	}
}

// TestWith: ldconfig, which reads the copy by its own code, prints the old entries and the added ones, in the order in
// which the loader searches.
func TestWith(t *testing.T) {
	c, err := Parse(machine(t))
	if err != nil {
		t.Fatal(err)
	}
	libc := c.Lookup("libc.so.6")
	if len(libc) == 0 {
		t.Fatal("no libc.so.6")
	}
	data, err := c.With(Entry{Name: "libcuda.so.1", Path: "/a/libcuda.so.1", Flags: libc[0].Flags},
		Entry{Name: "libc.so.6", Path: "/a/libc.so.6", Flags: libc[0].Flags})
	if err != nil {
		t.Fatal(err)
	}
	copied, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	if got := copied.Lookup("libc.so.6"); len(got) != len(libc)+1 || got[0].Path != "/a/libc.so.6" || got[1] != libc[0] {
		t.Errorf("libc.so.6: %v", got)
	}
	if got := copied.Lookup("libcuda.so.1"); len(got) == 0 || got[0].Path != "/a/libcuda.so.1" {
		t.Errorf("libcuda.so.1: %v", got)
	}
	if !slices.IsSortedFunc(copied.entries, func(a, b Entry) int { return compare(b.Name, a.Name) }) {
		t.Error("the entries are not in falling order")
	}
	path := filepath.Join(t.TempDir(), "cache")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("ldconfig", "-C", path, "-p").CombinedOutput()
	if err != nil {
		t.Fatalf("ldconfig: %v\n%s", err, out)
	}
	if n := strings.Count(string(out), " => "); n != len(c.entries)+2 || !strings.Contains(string(out), "=> /a/libcuda.so.1\n") {
		t.Errorf("ldconfig prints %d entries, not %d", n, len(c.entries)+2)
	}
}

// TestOld: a file that begins with the older format.
func TestOld(t *testing.T) {
	old := append([]byte(oldMagic+"\x00"), 1, 0, 0, 0)
	old = append(old, make([]byte, oldEntry+4)...) // one entry, and up to a multiple of 8
	c, err := Parse(append(old, machine(t)...))
	if err != nil || len(c.Lookup("libc.so.6")) == 0 {
		t.Error(err)
	}
}

func TestCompare(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{
		{"libc.so.6", "libc.so.6", 0}, {"libc.so.10", "libc.so.6", 1}, {"libc.so.6", "libcuda.so.1", -1},
		{"liba", "lib1", -1}, {"lib1", "liba", 1}, {"lib", "liba", -1}, {"liba", "lib", 1}, {"l01", "l1", 0},
	} {
		if got := compare(test.a, test.b); max(-1, min(1, got)) != test.want {
			t.Errorf("compare(%q, %q) = %d", test.a, test.b, got)
		}
	}
}

// FuzzParse: an error, or a cache to which a library can be added so that it is found, and the others as before.
func FuzzParse(f *testing.F) {
	empty := append([]byte(magic), make([]byte, headerBytes-len(magic))...)
	f.Add(empty)
	one := slices.Clone(empty)
	binary.LittleEndian.PutUint32(one[countAt:], 1)
	one = append(one, make([]byte, entryBytes)...)
	binary.LittleEndian.PutUint32(one[headerBytes+4:], headerBytes+entryBytes)
	binary.LittleEndian.PutUint32(one[headerBytes+8:], headerBytes+entryBytes)
	f.Add(append(one, "libx.so\x00"...))
	if data, err := os.ReadFile("/etc/ld.so.cache"); err == nil {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data)
		if err != nil {
			return
		}
		out, err := c.With(Entry{Name: "libcuda.so.1", Path: "/x"})
		if err != nil {
			return
		}
		d, err := Parse(out)
		if err != nil {
			t.Fatal(err)
		}
		if len(d.entries) != len(c.entries)+1 {
			t.Fatalf("%d entries, not %d", len(d.entries), len(c.entries)+1)
		}
		before := c.Lookup("libcuda.so.1")
		if got := d.Lookup("libcuda.so.1"); len(got) != len(before)+1 {
			t.Fatalf("%v, before %v", got, before)
		}
	})
}

// TestEmpty: a cache that is made from nothing is one to ldconfig.
func TestEmpty(t *testing.T) {
	data, err := Empty().With(Entry{Name: "libcuda.so.1", Path: "/a/libcuda.so.1", Flags: 0x0303})
	if err != nil {
		t.Fatal(err)
	}
	if c, err := Parse(data); err != nil || len(c.Lookup("libcuda.so.1")) != 1 {
		t.Errorf("%v", err)
	}
	path := filepath.Join(t.TempDir(), "cache")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("ldconfig", "-C", path, "-p").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "=> /a/libcuda.so.1\n") {
		t.Errorf("ldconfig: %v\n%s", err, out)
	}
}
