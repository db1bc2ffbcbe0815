package criu

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// remapsOf is the list of files that CRIU finds by others, each with its number, that of the other one and how.
func remapsOf(remaps ...[3]int64) []byte {
	b := newList(remapMagic)
	for _, r := range remaps {
		var entry message
		entry.number(remapFile, r[0])
		entry.number(remapTo, r[1])
		if r[2] >= 0 {
			entry.number(remapKind, r[2])
		}
		b = addEntry(b, entry)
	}
	return b
}

// TestRelinked: a file with a link has a living name instead, the link is no file any more, and nothing else is changed.
func TestRelinked(t *testing.T) {
	regular := func(name string) openFile { return openFile{Name: name, Mode: unix.S_IFREG, Position: 5, Size: 4} }
	text := listOf(regular("/a/lost"), regular("/a/link_remap.9"), regular("/b"), regular("/c")) // numbers from 2 on
	remaps := remapsOf([3]int64{2, 3, kindLinked}, [3]int64{4, 7, 1}, [3]int64{5, 3, noRemapKind})
	linked, rest, err := parseRemaps(remaps)
	others := remapsOf([3]int64{4, 7, 1}, [3]int64{5, 3, noRemapKind})
	if err != nil || len(linked) != 1 || linked[2] != 3 || !bytes.Equal(rest, others) {
		t.Fatalf("%v, %x, %v", linked, rest, err)
	}
	out, err := relinked(text, linked, func(link, lost string) (string, error) { return link + " " + lost, nil })
	var got []openFile
	if err == nil {
		_, _, err = editList(out, forgetting(func(f openFile) bool { got = append(got, f); return false }))
	}
	if want := []openFile{regular("/a/link_remap.9 /a/lost"), regular("/b"), regular("/c")}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	nameless := errors.New("it has none")
	if _, err := relinked(text, linked, func(string, string) (string, error) { return "", nameless }); !errors.Is(err, nameless) {
		t.Errorf("without a living name: %v", err)
	}
	for name, linked := range map[string]map[int64]int64{
		"no such link": {2: 77}, "no such file": {77: 3}, "a link that has one": {2: 3, 3: 4},
	} {
		if _, err := relinked(text, linked, func(string, string) (string, error) { return "/x", nil }); !errors.Is(err, errDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, damaged := range [][]byte{
		remaps[:len(remaps)-1], remapsOf([3]int64{2, 2, kindLinked}), remapsOf([3]int64{2, 3, kindLinked}, [3]int64{2, 4, kindLinked}),
	} {
		if _, _, err := parseRemaps(damaged); !errors.Is(err, errDamaged) {
			t.Errorf("%x: %v", damaged, err)
		}
	}
}

// TestNamedIn: the files in memory that a program has by their names are found, each once.
func TestNamedIn(t *testing.T) {
	dir := t.TempDir()
	regular := func(name string) openFile { return openFile{Name: name, Mode: unix.S_IFREG | 0o600} }
	text := listOf(regular(namedFolder+"/b"), regular(namedFolder+"/a"), regular(namedFolder+"/b"), regular(namedFolder+"/ghost"),
		openFile{Name: namedFolder + "/pipe", Mode: unix.S_IFIFO}, openFile{Name: namedFolder, Mode: unix.S_IFDIR},
		openFile{Name: namedFolder + "/other", Mode: unix.S_IFREG, External: true}, regular("/tmp/c"))
	if err := os.WriteFile(filepath.Join(dir, filesName), text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, remapName), remapsOf([3]int64{5, 1, 1}), 0o600); err != nil {
		t.Fatal(err)
	}
	if names, err := NamedIn(dir); err != nil || !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("%q, %v", names, err)
	}
}

// FuzzRemaps: what is no list of such files is an error, and nothing else; what is one has none with a link afterwards.
func FuzzRemaps(f *testing.F) {
	f.Add(remapsOf([3]int64{2, 3, kindLinked}, [3]int64{4, 7, 1}), listOf(openFile{Name: "/a"}, openFile{Name: "/link_remap.1"}))
	f.Add(remapsOf(), listOf())
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, remaps, files []byte) {
		linked, rest, err := parseRemaps(remaps)
		if err != nil {
			return
		}
		if again, _, err := parseRemaps(rest); err != nil || len(again) > 0 {
			t.Errorf("%v has links still, %v", again, err)
		}
		out, err := relinked(files, linked, func(string, string) (string, error) { return "/x", nil })
		if err != nil {
			return
		}
		if _, _, err := editList(out, func(entry []byte) ([]byte, error) {
			id, _, _, err := regularFile(entry)
			for _, link := range linked {
				if id == link {
					t.Errorf("link %d is a file still", link)
				}
			}
			return nil, err
		}); err != nil {
			t.Error(err)
		}
	})
}

// memoryFolder is a new folder of files in memory.
func memoryFolder(t *testing.T) string {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(namedFolder, &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		t.Skip("files in memory are NOT TESTED: /dev/shm is none")
	}
	dir, err := os.MkdirTemp(namedFolder, "lgpu-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// names are those in a folder.
func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// TestDumpRelinked: a file that has lost the name by which a program has it is in the image by its other one, if that is in the
// same folder, and no link of CRIU's stays, whatever becomes of the dump.
func TestDumpRelinked(t *testing.T) {
	p := installed(t)
	for _, after := range []After{Running, Stopped, Killed} {
		dir := memoryFolder(t)
		c := startShell(t, fmt.Sprintf(`exec 5<>%[1]s/lost; echo mine >&5; ln %[1]s/lost %[1]s/kept; rm %[1]s/lost; %s`, dir, counting))
		count(t, c.in, c.out, 1, "one")
		// What a killed CRIU has left goes, too, but nobody else's file.
		if err := errors.Join(os.Link(dir+"/kept", dir+"/link_remap.77"), os.WriteFile(dir+"/link_remap.88", nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		there := []string{"kept", "link_remap.88"}
		failing := errors.New("it is not wanted")
		d := Dump{PID: c.cmd.Process.Pid, Dir: t.TempDir(), After: Running, Named: func(*os.File, []string) error { return failing }}
		if err := p.Dump(patience(t), d); !errors.Is(err, failing) {
			t.Errorf("a dump that fails: %v", err)
		}
		if all := names(t, dir); !slices.Equal(all, there) {
			t.Errorf("after a dump that has failed there are %q", all)
		}
		count(t, c.in, c.out, 2, "two")
		var had []string
		d = Dump{PID: c.cmd.Process.Pid, Dir: t.TempDir(), After: after, Named: func(folder *os.File, all []string) error {
			had = all
			f, err := OpenName(folder, all[0], os.O_RDONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			text, err := io.ReadAll(f)
			if string(text) != "mine\n" {
				t.Errorf("it has %q", text)
			}
			return err
		}}
		streams := keys(t, d.PID)
		explain(t, p.Dump(patience(t), d))
		if all := names(t, dir); !slices.Equal(all, there) || len(had) != 1 || had[0] != filepath.Base(dir)+"/kept" {
			t.Errorf("%v: there are %q, in the image %q", after, all, had)
		}
		_, _ = c.cmd.Process.Kill(), c.cmd.Wait()
		for range 2 {
			its, in, out := pipes(t)
			process, err := p.Restore(patience(t), again(t, d.Dir, streams, its))
			explain(t, err)
			process.Commit()
			_, _ = its[0].Close(), its[1].Close()
			count(t, in, out, 3, "three")
			var st, open unix.Stat_t
			err = errors.Join(unix.Stat(dir+"/kept", &st), unix.Stat(fmt.Sprintf("/proc/%d/fd/5", process.Pid), &open))
			if err != nil || inodeOf(&st) != inodeOf(&open) {
				t.Errorf("it has another file, %v", err)
			}
			_ = in.Close()
			if _, err := process.Wait(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestDumpNameless: a file whose other name is elsewhere is refused by name, and the program goes on.
func TestDumpNameless(t *testing.T) {
	p := installed(t)
	dir := memoryFolder(t)
	if err := os.Mkdir(dir+"/else", 0o700); err != nil {
		t.Fatal(err)
	}
	c := startShell(t, fmt.Sprintf(`exec 5<>%[1]s/lost; ln %[1]s/lost %[1]s/else/kept; rm %[1]s/lost; %s`, dir, counting))
	count(t, c.in, c.out, 1, "one")
	err := p.Dump(patience(t), Dump{PID: c.cmd.Process.Pid, Dir: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q is open and has lost this name", dir+"/lost")) {
		t.Errorf("%v", err)
	}
	if all := names(t, dir); !slices.Equal(all, []string{"else"}) {
		t.Errorf("there are %q", all)
	}
	count(t, c.in, c.out, 2, "two")
}

// TestUserOf: who has a file open, or maps it, is found, and nobody else.
func TestUserOf(t *testing.T) {
	dir := memoryFolder(t)
	f, err := os.Create(dir + "/one")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if pid, name, err := UserOf(f); pid != 0 || err != nil {
		t.Errorf("nobody has it: %d %s, %v", pid, name, err)
	}
	c := startShell(t, fmt.Sprintf(`exec 5<>%s/one; %s`, dir, counting))
	count(t, c.in, c.out, 1, "one")
	if pid, name, err := UserOf(f); pid != c.cmd.Process.Pid || name != `"sh"` || err != nil {
		t.Errorf("%d %s, %v", pid, name, err)
	}
	if err := f.Truncate(1); err != nil {
		t.Fatal(err)
	}
	memory, err := unix.Mmap(int(f.Fd()), 0, 1, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || !hasMapped(os.Getpid(), &st) {
		t.Errorf("it is not found to be mapped, %v", err)
	}
	if err := errors.Join(unix.Munmap(memory), unix.Fstat(int(f.Fd()), &st)); err != nil || hasMapped(os.Getpid(), &st) {
		t.Errorf("it is found to be mapped, %v", err)
	}
}
