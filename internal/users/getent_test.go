package users

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// directoryService makes a stand-in for getent, as a shell script.
func directoryService(t *testing.T, script string) *getent {
	t.Helper()
	path := filepath.Join(t.TempDir(), "getent")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1e9, 0)
	return &getent{programs: []string{"/nonexistent/getent", path}, patience: 10 * time.Second, now: func() time.Time { return at }}
}

// TestDirectory: users of a directory service are found by name and number, with what they answer checked; users that
// there are not are none; nothing that is asked is taken for an option or a command.
func TestDirectory(t *testing.T) {
	g := directoryService(t, `test "$#" = 3 && test "$1" = -- || exit 9
test -z "$(env | grep -v -e ^PWD= -e ^_= -e ^SHLVL= -e ^OLDPWD=)" || exit 8
case "$2 $3" in
"passwd 70001"|"passwd alice") echo 'alice:*:70001:100:Alice:/home/alice:/bin/sh' ;;
"group team"|"group 500") echo 'team:*:500:alice,bob' ;;
"passwd 70002") echo 'eve:*:0:0::/:' ;;
"passwd 70003") echo 'short' ;;
*) exit 2 ;;
esac`)
	for number, want := range map[string]string{"70001": "alice", "70002": "", "70003": "", "70004": ""} {
		if name, err := g.nameOf("passwd", number); name != want || want == "" && !errors.Is(err, errNone) {
			t.Errorf("%s is %q, %v", number, name, err)
		}
	}
	for text, want := range map[string]uint32{"alice": 70001, "123": 123} {
		if id, err := g.number("passwd", text, ErrNoUser); err != nil || id != want {
			t.Errorf("%s is %d, %v", text, id, err)
		}
	}
	if id, err := g.number("group", "team", ErrNoGroup); err != nil || id != 500 {
		t.Errorf("team is %d, %v", id, err)
	}
	for _, text := range []string{"", "--help", "a\nb", "a:b", "$(id)", "team", "4294967295"} {
		if id, err := g.number("passwd", text, ErrNoUser); !errors.Is(err, ErrNoUser) {
			t.Errorf("%q is %d, %v", text, id, err)
		}
	}
	if name, err := (&getent{programs: []string{"/nonexistent/getent"}, now: time.Now}).nameOf("passwd", "1"); !errors.Is(err, errNone) {
		t.Errorf("without getent: %q, %v", name, err)
	}
}

// TestDirectoryAway: a service that hangs, fails or talks without end is not waited for long, and is left alone for a
// while; who was known keeps her name meanwhile.
func TestDirectoryAway(t *testing.T) {
	for name, script := range map[string]string{"hangs": "exec sleep 600", "fails": "exit 3", "talks": "exec yes"} {
		t.Run(name, func(t *testing.T) {
			g := directoryService(t, script)
			if name == "hangs" {
				g.patience = 100 * time.Millisecond
			}
			if _, err := g.nameOf("passwd", "70001"); !errors.Is(err, ErrUnsure) {
				t.Errorf("it is %v", err)
			}
			g.programs = []string{"/nonexistent/getent"} // it is not even started
			if _, err := g.nameOf("passwd", "70001"); !errors.Is(err, ErrUnsure) {
				t.Errorf("at once again: %v", err)
			}
			later := g.now().Add(pause)
			g.now = func() time.Time { return later }
			if _, err := g.nameOf("passwd", "70001"); !errors.Is(err, errNone) {
				t.Errorf("later: %v", err)
			}
		})
	}
	at, down := time.Unix(1e9, 0), false
	c := &cache{now: func() time.Time { return at }, names: map[uint32]entry{}, lookup: func(string) (string, error) {
		if down {
			return "", fmt.Errorf("%w: away", ErrUnsure)
		}
		return "alice", nil
	}}
	for range 2 {
		if name, err := c.find(70001); name != "alice" || down != errors.Is(err, ErrUnsure) {
			t.Errorf("down %v: %q, %v", down, name, err)
		}
		at, down = at.Add(fresh), true
	}
	if name, err := c.find(70002); name != "" || !errors.Is(err, ErrUnsure) {
		t.Errorf("somebody new: %q, %v", name, err)
	}
}

// TestDirectoryHere asks this machine's own.
func TestDirectoryHere(t *testing.T) {
	if _, err := exec.LookPath(service.programs[0]); err != nil {
		t.Skip("no getent here")
	}
	if name, err := service.nameOf("passwd", "0"); err != nil || name != "root" {
		t.Errorf("0 is %q, %v", name, err)
	}
	if _, err := service.nameOf("passwd", "4294967294"); !errors.Is(err, errNone) {
		t.Errorf("nobody: %v", err)
	}
}
