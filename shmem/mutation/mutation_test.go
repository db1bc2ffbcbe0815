package mutation

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lgpu/lgpu/shmem/model"
)

const headers = "../include"

// TestCopy: all defects are in a copy, and in no header that is installed.
func TestCopy(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "include")
	if err := Copy(headers, dir); err != nil {
		t.Fatal(err)
	}
	all := ""
	for _, name := range names(t, dir) {
		text := read(t, filepath.Join(dir, name))
		all += text
		original := read(t, filepath.Join(headers, name))
		if strings.Contains(original, "MUTAT") {
			t.Errorf("%s has the defects' switches", name)
		}
		if strings.Contains(text, Macro) == (text == original) {
			t.Errorf("%s is changed without a switch, or not changed although it has one", name)
		}
	}
	changes, err := parse(defects)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range changes {
		if !strings.Contains(all, p.want) {
			t.Errorf("M%d is not in the copy:\n%s", p.defect, p.want)
		}
	}
	if len(names(t, dir)) != len(names(t, headers)) {
		t.Error("the copy does not have all headers")
	}
}

// TestNumbers: the defects are those that the list in package model says the device header's tests find.
func TestNumbers(t *testing.T) {
	got, err := Numbers()
	if err != nil {
		t.Fatal(err)
	}
	var want []int
	for _, m := range model.Mutations() {
		for _, c := range m.Caught {
			if c.Switch != 0 {
				want = append(want, c.Switch)
			}
		}
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("defects %v, the list has %v", got, want)
	}
}

// TestApply: a change whose lines are not there, or there twice, is an error.
func TestApply(t *testing.T) {
	for name, text := range map[string]string{"absent": "other\n", "twice": "line\nline\n", "part of a line": "a line\n"} {
		if err := (change{1, "line\n", "changed\n"}).apply(map[string]string{"a.h": text}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	h := map[string]string{"a.h": "line\nmore\n", "b.h": "else\n"}
	if err := (change{1, "line\n", "changed\n"}).apply(h); err != nil || h["a.h"] != "changed\nmore\n" {
		t.Errorf("%q, %v", h["a.h"], err)
	}
	for _, bad := range []string{"-a", "M1\n*a", "Mx\n-a"} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}

func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
