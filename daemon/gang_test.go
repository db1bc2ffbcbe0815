package daemon

import (
	"testing"

	"github.com/lgpu/lgpu/policy/limits"
)

// Gangs of one name are one only where the same owner has them: who uses the name of another's gang joins nothing.
func TestGangsAreTheirOwners(t *testing.T) {
	r := start(t, Config{})
	const alice, bob, research = 424201, 424202, 424270
	for _, d := range []struct {
		path     string
		uid, gid uint32
	}{
		{"/users", 0, 0}, {"/users/alice", alice, 0}, {"/users/alice/x", alice, 0}, {"/users/alice/of-root", 0, 0},
		{"/users/bob", bob, 0}, {"/users/bob/x", bob, 0}, {"/lab", 0, research}, {"/lab/x", 0, research},
		{"/admins", 0, 0}, {"/admins/x", 0, 0}, {"/y", 0, 0},
	} {
		if err := r.tree.Mkdir(d.path, d.uid, d.gid); err != nil {
			t.Fatal(err)
		}
	}
	gang := func(path string) string {
		dir, err := r.tree.Directory(path)
		if err != nil {
			t.Fatal(err)
		}
		name, _ := r.gates.gangs.Load(dir.ID)
		return name.(string)
	}
	for _, path := range []string{"/users/alice/x", "/users/alice/of-root", "/users/bob/x", "/lab/x", "/admins/x", "/y"} {
		if got := gang(path); got != "" {
			t.Errorf("%s is in the gang %q", path, got)
		}
		if err := r.tree.Update(path, []limits.Assignment{{File: "gang", Text: "job"}}); err != nil {
			t.Fatal(err)
		}
	}
	same := func(one, other string, want bool) {
		t.Helper()
		if is := gang(one) == gang(other); is != want {
			t.Errorf("%s is in %q, %s in %q", one, gang(one), other, gang(other))
		}
	}
	same("/users/alice/x", "/users/alice/of-root", true)
	same("/admins/x", "/y", true)
	same("/users/alice/x", "/users/bob/x", false)
	same("/users/alice/of-root", "/y", false)
	same("/lab/x", "/y", false)
	same("/lab/x", "/users/bob/x", false)
	if err := r.tree.Chown("/users/bob", alice, 0); err != nil {
		t.Fatal(err)
	}
	same("/users/alice/x", "/users/bob/x", true)
	if err := r.tree.Chown("/admins", bob, 0); err != nil {
		t.Fatal(err)
	}
	same("/admins/x", "/y", false)
}
