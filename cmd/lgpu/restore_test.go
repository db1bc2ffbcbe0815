package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSweepCopies: what a command has left that was killed is removed, and nothing else.
func TestSweepCopies(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "no [pattern]*?")
	t.Setenv("TMPDIR", dir)
	old := time.Now().Add(-2 * copiesMade)
	for _, name := range []string{copiesPrefix + "left", copiesPrefix + "held", copiesPrefix + "new", "other"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Join(path, "pages"), 0o700); err != nil {
			t.Fatal(err)
		}
		if name != copiesPrefix+"new" {
			if err := os.Chtimes(path, old, old); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Symlink("other", filepath.Join(dir, copiesPrefix+"link")); err != nil {
		t.Fatal(err)
	}
	held, err := os.Open(filepath.Join(dir, copiesPrefix+"held"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := unix.Flock(int(held.Fd()), unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	sweepCopies()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if want := []string{copiesPrefix + "held", copiesPrefix + "link", copiesPrefix + "new", "other"}; !slices.Equal(left, want) {
		t.Errorf("left are %q, want %q", left, want)
	}
}
