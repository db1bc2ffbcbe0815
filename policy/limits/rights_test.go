package limits

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// Users of the tests.
const (
	daemonUser = 500
	alice      = 1001
	bob        = 1002
	adminGroup = 70
	research   = 80
)

// admin is a member of the administrators' group by a supplementary group.
var admin = Author{UID: 1003, GID: 1003, Groups: func() []uint32 { return []uint32{5, adminGroup} }}

func user(uid uint32, groups ...uint32) Author {
	return Author{UID: uid, GID: uid, Groups: func() []uint32 { return groups }}
}

// governed is a tree with administrators, /users/alice of alice, /users/bob of bob, and /lab of the group research.
func governed(t *testing.T, o Options) *Tree {
	t.Helper()
	group := uint32(adminGroup)
	o.Rights.Owner, o.Rights.Admins = daemonUser, &group
	tr := New(o)
	if err := tr.SetDevices([]Device{{UUID: "GPU-1", Number: "195:0", Capacity: 100, UnitsPerBit: 1, Memory: 1 << 34}}); err != nil {
		t.Fatal(err)
	}
	for _, d := range []struct {
		path     string
		uid, gid uint32
	}{
		{"/users", 0, 0}, {"/users/alice", alice, 0}, {"/users/alice/a", alice, 0}, {"/users/alice/g", alice, 0},
		{"/users/alice/g/b", bob, 0}, {"/users/bob", bob, 0}, {"/lab", 0, research}, {"/lab/x", bob, research},
	} {
		if err := tr.Mkdir(d.path, d.uid, d.gid); err != nil {
			t.Fatal(err)
		}
	}
	return tr
}

// The one rule of who may do what where.
func TestRights(t *testing.T) {
	tr := governed(t, Options{})
	root, daemon := user(0), user(daemonUser)
	trusted := []Author{root, daemon, admin}
	for _, c := range []struct {
		action     Action
		path, file string
		by         []Author // who may beside the trusted
	}{
		{ActionCreate, "/new", "", nil},
		{ActionCreate, "/users/new", "", nil},
		{ActionCreate, "/users/alice/new", "", []Author{user(alice)}},
		{ActionCreate, "/users/alice/a/new", "", []Author{user(alice)}},
		{ActionCreate, "/users/alice/g/b/new", "", []Author{user(alice), user(bob)}},
		{ActionCreate, "/lab/new", "", []Author{user(alice, research)}},
		{ActionRemove, "/users/alice", "", nil},
		{ActionRemove, "/users/alice/a", "", []Author{user(alice)}},
		{ActionRemove, "/users/alice/g/b", "", []Author{user(alice)}},
		{ActionRemove, "/lab/x", "", []Author{user(alice, research)}},
		{ActionWrite, "/", "compute.max", nil},
		{ActionWrite, "/users/alice", "memory.max", nil},
		{ActionWrite, "/users/alice", "memory.peak", []Author{user(alice)}},
		{ActionWrite, "/users/alice", "procs.kill", []Author{user(alice)}},
		{ActionWrite, "/users/alice/a", "memory.max", []Author{user(alice)}},
		{ActionWrite, "/users/alice/a", "cgroup.path", nil},
		{ActionWrite, "/users/alice/g/b", "memory.max", []Author{user(alice)}},
		{ActionWrite, "/lab", "memory.max", nil},
		{ActionWrite, "/lab/x", "memory.max", []Author{user(alice, research)}},
		{ActionAttach, "/users/alice/a", "", []Author{user(alice)}},
		{ActionAttach, "/users/alice/g/b", "", []Author{user(alice), user(bob)}},
		{ActionAttach, "/lab/x", "", []Author{user(bob), user(alice, research)}},
		{ActionStop, "/users/alice", "", []Author{user(alice)}},
		{ActionStop, "/users/alice/g/b", "", []Author{user(alice), user(bob)}},
		{ActionStop, "/lab", "", []Author{user(alice, research)}},
	} {
		for _, by := range trusted {
			if err := tr.May(by, Access{c.action, c.path, c.file}); err != nil {
				t.Errorf("%s %s %s: %d may not: %v", c.action, c.path, c.file, by.UID, err)
			}
		}
		for _, by := range []Author{user(alice), user(bob), user(alice, research), user(4242), {UID: 4242, GID: 0}} {
			want := slices.ContainsFunc(c.by, func(a Author) bool {
				return a.UID == by.UID && len(a.Groups()) <= len(groupsOf(by))
			})
			err := tr.May(by, Access{c.action, c.path, c.file})
			if want != (err == nil) || err != nil && !errors.Is(err, syscall.EPERM) {
				t.Errorf("%s %s %s by %d of groups %d: %v", c.action, c.path, c.file, by.UID, groupsOf(by), err)
			}
		}
	}
}

func groupsOf(a Author) []uint32 {
	if a.Groups == nil {
		return nil
	}
	return a.Groups()
}

// A refusal calls users by their names, and by numbers where they have none; nobody is asked for names while the tree is
// locked.
func TestRefusalsNameUsers(t *testing.T) {
	var tr *Tree
	call := func(word string) func(uint32) string {
		return func(id uint32) string {
			if !tr.mu.TryLock() {
				t.Error("asked for a name with the tree locked")
				return ""
			}
			tr.mu.Unlock()
			return map[uint32]string{alice: word + "-a", research: word + "-r", adminGroup: word + "-x"}[id]
		}
	}
	tr = governed(t, Options{Names: Names{User: call("u"), Group: call("g")}})
	byAlice, stranger := tr.By(user(alice)), tr.By(user(4242))
	for _, c := range []struct {
		err  error
		says string
		hint string
	}{
		{byAlice.Update("/users/alice", []Assignment{{"compute.max", "90%"}}),
			"/users/alice: compute.max: user u-a may not; the owner of /users may, and administrators", "a member of group g-x;"},
		{stranger.Rmdir("/users/alice"), "user 4242 may not", "a member of group g-x;"},
		{byAlice.Chown("/users/alice", alice, research), "user u-a is no member of group g-r", "a member of group g-x;"},
		{byAlice.Chown("/users/alice", alice, 4242), "user u-a is no member of group 4242", "a member of group g-x;"},
		{tr.May(user(alice), Access{Action: ActionStop, Path: "/users/bob"}), "user u-a may not", "a member of group g-x;"},
	} {
		var e *Error
		if !errors.As(c.err, &e) || !strings.Contains(e.Error(), c.says) || !strings.Contains(e.Hint(), c.hint) {
			t.Errorf("%v, %q; it is to say %q, %q", c.err, e.Hint(), c.says, c.hint)
		}
	}
}

// An editor does what its author may, and nothing else; nobody is asked for groups that decide nothing.
func TestEditorsHaveRights(t *testing.T) {
	tr := governed(t, Options{})
	asked := 0
	by := Author{UID: alice, GID: alice, Groups: func() []uint32 { asked++; return nil }}
	if _, err := tr.By(by).Create(CreateSpec{Path: "/users/bob/x", UID: alice}); !errors.Is(err, syscall.EPERM) {
		t.Errorf("create: %v", err)
	}
	if asked == 0 {
		t.Error("the administrators' group was not looked for")
	}
	asked = 0
	if _, err := tr.By(Author{UID: 0, Groups: by.Groups}).Create(CreateSpec{Path: "/by-root"}); err != nil || asked > 0 {
		t.Errorf("root: %v, asked for groups %d times", err, asked)
	}
	if err := tr.By(by).Update("/users/alice", []Assignment{{"memory.max", "1GiB"}}); !errors.Is(err, syscall.EPERM) {
		t.Errorf("her own limits: %v", err)
	}
	if err := tr.By(by).Rmdir("/users/bob"); !errors.Is(err, syscall.EPERM) {
		t.Errorf("remove: %v", err)
	}
	bad := CreateSpec{Path: "/users/alice/n", UID: alice, Writes: []Assignment{{"cgroup.path", "/user.slice"}}}
	if _, err := tr.By(by).Create(bad); !errors.Is(err, syscall.EPERM) {
		t.Errorf("create with a cgroup: %v", err)
	}
	d, err := tr.By(user(alice, research)).Create(CreateSpec{Path: "/lab/y", UID: alice, GID: alice})
	if err != nil || d.GID != research {
		t.Errorf("below a group's directory: %+v, %v", d, err)
	}
}

// Owners take back and share; only administrators give away.
func TestChown(t *testing.T) {
	for _, c := range []struct {
		by       Author
		path     string
		uid, gid uint32
		ok       bool
	}{
		{admin, "/users/alice", bob, 0, true},
		{user(alice), "/users/alice/g/b", alice, 0, true},
		{user(alice), "/users/alice/a", bob, 0, false},
		{user(alice), "/users/alice", alice, research, false},
		{user(alice, research), "/users/alice", alice, research, true},
		{user(alice, research), "/users/alice/a", alice, research, true},
		{user(alice), "/users/bob", alice, 0, false},
		{user(bob), "/lab/x", bob, 0, true},
		{user(bob), "/users/alice/g", bob, 0, false},
	} {
		tr := governed(t, Options{})
		err := tr.By(c.by).Chown(c.path, c.uid, c.gid)
		if c.ok != (err == nil) || err != nil && !errors.Is(err, syscall.EPERM) {
			t.Errorf("%d gives %s to %d:%d: %v", c.by.UID, c.path, c.uid, c.gid, err)
		}
	}
}

// What a user may have is bounded, and the refusal names the bound.
func TestQuotas(t *testing.T) {
	tr := governed(t, Options{Rights: Rights{Quota: Quota{Directories: 5, Depth: 2}}})
	mkdir := func(by Author, path string) error {
		_, err := tr.By(by).Create(CreateSpec{Path: path, UID: by.UID, GID: by.GID})
		return err
	}
	if err := mkdir(user(alice), "/users/alice/g/c"); err != nil {
		t.Fatal(err)
	}
	if err := mkdir(user(alice), "/users/alice/g/c/d"); !errors.Is(err, syscall.EDQUOT) || !strings.Contains(err.Error(), "quota.depth") {
		t.Errorf("too deep: %v", err)
	}
	if err := mkdir(user(alice), "/users/alice/e"); err != nil {
		t.Fatal(err)
	}
	if err := mkdir(user(alice), "/users/alice/f"); !errors.Is(err, syscall.EDQUOT) || !strings.Contains(err.Error(), "quota.directories") {
		t.Errorf("too many: %v", err)
	}
	for i := range 9 {
		if err := mkdir(admin, fmt.Sprintf("/admin-%d", i)); err != nil {
			t.Fatal(err)
		}
	}
}

// A user promises herself no part of a device that nobody has promised her.
func TestGuaranteesComeFromAbove(t *testing.T) {
	tr := governed(t, Options{})
	set := func(by Author, path, value string) error {
		return tr.By(by).Update(path, []Assignment{{"compute.min", value}})
	}
	if err := set(user(alice), "/users/alice/a", "10%"); !errors.Is(err, syscall.EPERM) {
		t.Errorf("without one above: %v", err)
	}
	if err := set(admin, "/users/alice", "20%"); err != nil {
		t.Fatal(err)
	}
	if err := set(user(alice), "/users/alice/a", "10%"); err != nil {
		t.Error(err)
	}
	if err := set(user(alice), "/users/alice/a", "30%"); !errors.Is(err, syscall.ERANGE) {
		t.Errorf("more than above: %v", err)
	}
}

// What users see of each other; one by one and all at once say the same.
func TestSights(t *testing.T) {
	for _, c := range []struct {
		others Others
		by     Author
		whole  string
		frame  string
	}{
		{OthersAll, user(4242), "/ /lab /lab/x /users /users/alice /users/alice/a /users/alice/g /users/alice/g/b /users/bob", ""},
		{OthersNone, admin, "/ /lab /lab/x /users /users/alice /users/alice/a /users/alice/g /users/alice/g/b /users/bob", ""},
		{OthersNone, user(alice), "/users/alice /users/alice/a /users/alice/g /users/alice/g/b", "/ /users"},
		{OthersTotals, user(bob), "/lab/x /users/alice/g/b /users/bob", "/ /lab /users /users/alice /users/alice/g"},
		{OthersTotals, user(4242, research), "/lab /lab/x", "/"},
		{OthersTotals, user(4242), "", "/"},
	} {
		tr := governed(t, Options{Rights: Rights{Others: c.others}})
		all := tr.Sights(c.by)
		var whole, frame []string
		for _, d := range tr.Directories() {
			s := tr.Sight(c.by, d.Path)
			if !tr.Rights().SeesAll(c.by) && s != all[d.ID] {
				t.Errorf("%d sees of %s %d, and %d with the others", c.by.UID, d.Path, s, all[d.ID])
			}
			switch s {
			case Whole:
				whole = append(whole, d.Path)
			case Frame:
				frame = append(frame, d.Path)
			}
		}
		slices.Sort(whole)
		slices.Sort(frame)
		if strings.Join(whole, " ") != c.whole || strings.Join(frame, " ") != c.frame {
			t.Errorf("%s: %d sees %q, and of %q that they are there", c.others, c.by.UID, whole, frame)
		}
	}
	tr := governed(t, Options{Rights: Rights{Others: OthersNone}})
	if err := tr.May(user(bob), Access{ActionStop, "/users/alice/a", ""}); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("what is hidden: %v", err)
	}
}

// procs.kill tells whose programs are to end, after the change, and for whom.
func TestKill(t *testing.T) {
	var stopped []uint64
	tr := governed(t, Options{Stop: func(id uint64, by *Author) {
		if by == nil || by.UID != alice {
			t.Errorf("stopped by %v", by)
		}
		stopped = append(stopped, id)
	}})
	d, err := tr.Directory("/users/alice")
	if err != nil {
		t.Fatal(err)
	}
	kill := func(by Author, path, text string) error {
		return tr.By(by).Update(path, []Assignment{{"procs.kill", text}})
	}
	if err := kill(user(alice), "/users/alice", "2\n"); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("2: %v", err)
	}
	if err := kill(user(bob), "/users/alice", "1\n"); !errors.Is(err, syscall.EPERM) {
		t.Errorf("by another: %v", err)
	}
	if len(stopped) > 0 {
		t.Fatalf("%d were stopped", stopped)
	}
	if err := kill(user(alice), "/users/alice", "1\n"); err != nil || !slices.Equal(stopped, []uint64{d.ID}) {
		t.Errorf("stopped %d, %v", stopped, err)
	}
	if _, err := tr.Read("/users/alice", "procs.kill"); !errors.Is(err, syscall.EACCES) {
		t.Errorf("read: %v", err)
	}
}

// Who is not known owns nothing, and nothing can be given to the number that stands for nobody.
func TestNobodyOwnsNothing(t *testing.T) {
	group := Nobody
	tr := New(Options{Rights: Rights{Owner: daemonUser, Admins: &group, Others: OthersNone}})
	unknown := Author{UID: Nobody, GID: Nobody}
	if tr.Rights().Trusts(unknown) {
		t.Error("nobody is an administrator")
	}
	if err := tr.Mkdir("/given", Nobody, Nobody); err != nil {
		t.Fatal(err)
	}
	if tr.Owns(unknown) || tr.Sight(unknown, "/given") != Hidden {
		t.Error("nobody owns a directory")
	}
	if err := tr.May(unknown, Access{Action: ActionCreate, Path: "/given/x"}); err == nil {
		t.Error("nobody may make a directory")
	}
	for _, to := range [][2]uint32{{Nobody, 0}, {alice, Nobody}} {
		if err := tr.By(user(0)).Chown("/given", to[0], to[1]); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("given to %v: %v", to, err)
		}
	}
}

// What is hidden from somebody is answered as what does not exist, whatever she tries.
func TestHiddenIsAsIfMissing(t *testing.T) {
	tr := governed(t, Options{Rights: Rights{Others: OthersNone}})
	by := tr.By(user(alice))
	if err := tr.Mkdir("/users/bob/secret", bob, 0); err != nil {
		t.Fatal(err)
	}
	for what, try := range map[string]func(path string) error{
		"create it":                func(p string) error { _, err := by.Create(CreateSpec{Path: p, UID: alice}); return err },
		"create below":             func(p string) error { _, err := by.Create(CreateSpec{Path: p + "/x", UID: alice}); return err },
		"may create":               func(p string) error { return tr.May(user(alice), Access{Action: ActionCreate, Path: p + "/x"}) },
		"attach":                   func(p string) error { return tr.May(user(alice), Access{Action: ActionAttach, Path: p}) },
		"remove":                   by.Rmdir,
		"chown":                    func(p string) error { return by.Chown(p, alice, 0) },
		"write":                    func(p string) error { return by.Update(p, []Assignment{{"memory.max", "1GiB"}}) },
		"write a file that is not": func(p string) error { return by.Update(p, []Assignment{{"x", "1"}}) },
		"write nothing":            func(p string) error { return by.Update(p, nil) },
		"stop":                     func(p string) error { return by.Update(p, []Assignment{{"procs.kill", "1"}}) },
		"read":                     func(p string) error { _, err := by.Read(p, "memory.max"); return err },
		"list":                     func(p string) error { _, err := by.Directory(p); return err },
	} {
		for there, missing := range map[string]string{"/users/bob": "/users/eve", "/users/bob/secret": "/users/bob/nosecr"} {
			one, other := try(there), try(missing)
			if one == nil || other == nil || strings.ReplaceAll(one.Error(), there, missing) != other.Error() {
				t.Errorf("%s: of %s: %v; of %s: %v", what, there, one, missing, other)
			}
		}
	}
}

// To write nothing needs the right to write.
func TestWritingNothing(t *testing.T) {
	tr := governed(t, Options{})
	if err := tr.By(user(alice)).Update("/users/bob", nil); !errors.Is(err, syscall.EPERM) {
		t.Error(err)
	}
	if err := tr.By(user(alice)).Update("/users/alice/a", nil); err != nil {
		t.Error(err)
	}
}

// Directories that others made for her are no way round her quota.
func TestTakingBackIsBounded(t *testing.T) {
	tr := governed(t, Options{Rights: Rights{Quota: Quota{Directories: 4}}})
	for p, uid := range map[string]uint32{"/users/alice/g/more": bob, "/users/alice/last": alice} {
		if err := tr.Mkdir(p, uid, 0); err != nil {
			t.Fatal(err)
		}
	}
	by := tr.By(user(alice))
	if err := by.Chown("/users/alice/g/more", alice, 0); !errors.Is(err, syscall.EDQUOT) {
		t.Errorf("beyond the quota: %v", err)
	}
	if err := by.Chown("/users/alice/g", alice, 0); err != nil {
		t.Errorf("what is hers already: %v", err)
	}
	if err := by.Rmdir("/users/alice/a"); err != nil {
		t.Fatal(err)
	}
	if err := by.Chown("/users/alice/g/more", alice, 0); err != nil {
		t.Errorf("within the quota: %v", err)
	}
	if err := tr.By(admin).Chown("/users/alice/g/b", alice, 0); err != nil {
		t.Errorf("an administrator: %v", err)
	}
}
