package cdi

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	listed, err := List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range listed {
		all = append(all, l.Name)
	}
	return all
}

// TestFolder: a specification is there from Write to Remove, as it was written; Keep removes those of this daemon alone.
func TestFolder(t *testing.T) {
	f := Folder{Dir: filepath.Join(t.TempDir(), "cdi"), Tag: "a"}
	other := Folder{Dir: f.Dir, Tag: "b"}
	if err := f.Keep(nil); err != nil {
		t.Error("no folder:", err)
	}
	edits := Edits{
		Nodes: []Node{{"/dev/nvidia0"}}, Mounts: []Mount{ReadOnly("/x", "/run/lgpu/lib")},
		Hooks: []Hook{{CreateContainer, "/bin/lgpu", []string{"lgpu", "cdi", "hook"}}},
	}
	for _, w := range []struct {
		f    Folder
		id   uint64
		name string
	}{{f, 1, "one"}, {f, 0xff, "two"}, {other, 1, "others"}} {
		if err := w.f.Write(w.id, Device{w.name, edits}); err != nil {
			t.Fatal(err)
		}
	}
	listed, err := List(f.Dir)
	if err != nil || len(listed) != 3 || listed[0].Name != "one" || listed[0].Edits.Nodes[0].Path != "/dev/nvidia0" {
		t.Errorf("%+v, %v", listed, err)
	}
	before, err := os.Stat(f.file(1))
	if err != nil || before.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v", before, err)
	}
	if err := f.Write(1, Device{"one", edits}); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(f.file(1)); err != nil || !os.SameFile(before, after) {
		t.Errorf("the same has been written anew: %v", err)
	}
	if err := f.Keep([]uint64{0xff}); err != nil || !slices.Equal(names(t, f.Dir), []string{"others", "two"}) {
		t.Errorf("%v, %v", names(t, f.Dir), err)
	}
	for range 2 {
		if err := f.Remove(0xff); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(f.Dir); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}

func TestName(t *testing.T) {
	for path, want := range map[string]string{"/team": "team", "/a/b.c/0": "a:b.c:0"} {
		if got, err := Name(path); got != want || err != nil || Path(got) != path {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	for _, path := range []string{"/", "/a-", "/a/b."} {
		if got, err := Name(path); err == nil {
			t.Errorf("%s: %q", path, got)
		}
	}
}

// FuzzList: what somebody has put into the folder is read, or named in an error.
func FuzzList(f *testing.F) {
	f.Add([]byte(`{"cdiVersion":"0.5.0","kind":"lgpu.io/lgpu","devices":[{"name":"a","containerEdits":{}}]}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "x.json")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, l := range func() []Listed { l, _ := List(filepath.Dir(path)); return l }() {
			if l.File != path {
				t.Errorf("%+v", l)
			}
		}
	})
}
