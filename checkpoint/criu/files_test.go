package criu

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
)

// listOf is the file of files with some regular ones and one that is something else.
func listOf(files ...openFile) []byte {
	b := newList(filesMagic)
	add := func(entry message) { b = addEntry(b, entry) }
	var other message
	other.number(1, 5)
	other.number(2, 1)
	add(other)
	for i, f := range files {
		var reg, entry message
		reg.number(1, int64(i))
		reg.number(regFlags, int64(f.Flags))
		reg.number(regPos, f.Position)
		reg.text(regName, f.Name)
		if f.Size >= 0 {
			reg.number(regSize, f.Size)
		}
		reg.flag(regExt, f.External)
		reg.number(regMode, int64(f.Mode))
		entry.number(1, 1)
		entry.number(2, int64(i+2))
		entry.inner(fileReg, reg)
		add(entry)
	}
	return b
}

// TestAllowGrown: of the files that a program writes those that are longer now may be so, and nothing else is changed.
func TestAllowGrown(t *testing.T) {
	dir, root := t.TempDir(), t.TempDir()
	for name, size := range map[string]int{"grown": 9, "same": 4, "cut": 2, "read": 9, "outside": 9} {
		if err := os.WriteFile(filepath.Join(root, name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := func(name string, flags int) openFile {
		return openFile{Name: "/" + name, Flags: flags, Mode: unix.S_IFREG | 0o600, Position: 3, Size: 4}
	}
	files := []openFile{
		file("grown", os.O_WRONLY), file("grown", os.O_RDWR|os.O_APPEND), file("same", os.O_WRONLY), file("cut", os.O_WRONLY),
		file("read", os.O_RDONLY), file("gone", os.O_WRONLY),
		{Name: "file[1b:12]", Flags: os.O_WRONLY, Mode: unix.S_IFREG, Position: 7, Size: 4, External: true},
		{Name: "/outside", Mode: unix.S_IFIFO, Flags: os.O_RDWR, Size: -1},
	}
	list := filepath.Join(dir, filesName)
	if err := os.WriteFile(list, listOf(files...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := AllowGrown(dir, root); err != nil {
		t.Fatal(err)
	}
	files[0].Size, files[1].Size = -1, -1
	var got []openFile
	b, err := os.ReadFile(list)
	if err == nil {
		_, _, err = editList(b, forgetting(func(f openFile) bool { got = append(got, f); return false }))
	}
	if err != nil || len(got) != len(files) {
		t.Fatalf("%+v, %v", got, err)
	}
	for i := range files {
		if got[i] != files[i] {
			t.Errorf("%+v, want %+v", got[i], files[i])
		}
	}
	if at, err := Positions(dir); err != nil || len(at) != 1 || at["ile[1b:12]"] != 7 {
		t.Errorf("positions %v, %v", at, err)
	}
	if err := os.WriteFile(list, b[:len(b)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := AllowGrown(dir, root); err == nil {
		t.Error("a damaged file of files is taken")
	}
}

// timerOf is the file of files with a timer.
func timerOf(ticks, next, every, everyNanos int64) []byte {
	var timer, entry message
	timer.number(1, 3)
	for i, n := range []int64{ticks, 0, 0, next, every, everyNanos} {
		timer.number(protowire.Number(timerTicks+i), n)
	}
	entry.number(1, 17)
	entry.number(2, 3)
	entry.inner(fileTimer, timer)
	return addEntry(newList(filesMagic), entry)
}

// TestWind: a timer that has expired, was not read and is to expire again does so, and nothing else is changed.
func TestWind(t *testing.T) {
	for _, one := range []struct {
		ticks, next, every, everyNanos int64
		wound                          bool
	}{{1, 0, 2, 5, true}, {3, 0, 0, 5, true}, {1, 7, 2, 5, false}, {1, 0, 0, 0, false}, {0, 0, 2, 5, false}} {
		b := timerOf(one.ticks, one.next, one.every, one.everyNanos)
		out, changed, err := editList(b, wind)
		if err != nil || changed != one.wound || changed == bytes.Equal(out, b) {
			t.Errorf("%+v: %v, %v", one, changed, err)
			continue
		}
		if again, twice, err := editList(out, wind); err != nil || twice || !bytes.Equal(again, out) {
			t.Errorf("%+v: it is wound again: %v", one, err)
		}
	}
}

// FuzzFiles: what is no file of files is an error, and one that is stays one when sizes are forgotten.
func FuzzFiles(f *testing.F) {
	f.Add(listOf(openFile{Name: "/a", Flags: 1, Mode: unix.S_IFREG, Size: 3}, openFile{Name: "file[1:2]", External: true, Size: -1}))
	f.Add(timerOf(1, 0, 2, 5))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if out, _, err := editList(b, wind); err == nil {
			if _, again, err := editList(out, wind); again || err != nil {
				t.Errorf("it is wound again: %v", err)
			}
		}
		same, changed, err := editList(b, forgetting(func(openFile) bool { return false }))
		if err != nil {
			return
		}
		if changed || !bytes.Equal(same, b) {
			t.Error("it is changed without a reason")
		}
		out, _, err := editList(b, forgetting(func(openFile) bool { return true }))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := editList(out, forgetting(func(f openFile) bool {
			if f.Size >= 0 {
				t.Errorf("%+v has a size", f)
			}
			return false
		})); err != nil {
			t.Error(err)
		}
	})
}
