package limits

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"syscall"
)

// Author is who makes a change: a process, as the kernel vouches for it.
type Author struct {
	UID, GID uint32
	PID      int // 0 if it is in a process namespace that cannot be seen from here
	// Groups returns the supplementary groups; nil is none. It is called only where a decision depends on them, with the
	// writers' lock held for a change.
	Groups func() []uint32 `json:"-"`
}

// Nobody is a user and a group that no process can have: the kernel's -1. It stands for somebody who is not known, who
// owns nothing and is in no group.
const Nobody = ^uint32(0)

// member reports whether an author is a member of a group.
func (a Author) member(gid uint32) bool {
	return gid != Nobody && (a.GID == gid || a.Groups != nil && slices.Contains(a.Groups(), gid))
}

// Action is what somebody wants to do.
type Action string

// Actions.
const (
	ActionCreate Action = "create" // the directory Path is to be made
	ActionRemove Action = "remove" // the directory Path is to be removed
	ActionWrite  Action = "write"  // the file File of Path
	ActionAttach Action = "run in" // a program is to run in the lgpu Path, which exists
	ActionStop   Action = "stop"   // the programs in and below Path
)

// Access is something that somebody wants to do. Giving a directory to others has a rule of its own: see Editor.Chown.
type Access struct {
	Action Action
	Path   string
	File   string // of ActionWrite
}

// Others is what users see of each other.
type Others string

// Choices of Rights.Others. The administrators see everything with each of them.
const (
	OthersAll    Others = "all"    // everything
	OthersTotals Others = "totals" // what all together use of devices and of groups with something of hers
	OthersNone   Others = "none"   // not even that
)

// Quota bounds what one user other than the administrators may have. 0 is the default.
type Quota struct {
	// Directories is the number of groups and lgpus that belong to her.
	Directories int
	// Depth is how many levels there may be below the topmost directory that she owns.
	Depth int
	// Processes is the number of her processes that use lgpus or keep them in existence.
	Processes int
	// Watches is the number of calls that wait for what happens: snapshots, events and slices.
	Watches int
}

// DefaultQuota is what a user may have where the administrator says nothing.
var DefaultQuota = Quota{Directories: 1024, Depth: MaxDepth, Processes: 1024, Watches: 64}

// Complete returns q with defaults in place of zeros.
func (q Quota) Complete() Quota {
	for _, f := range []struct {
		value  *int
		normal int
	}{
		{&q.Directories, DefaultQuota.Directories}, {&q.Depth, DefaultQuota.Depth},
		{&q.Processes, DefaultQuota.Processes}, {&q.Watches, DefaultQuota.Watches},
	} {
		if *f.value == 0 {
			*f.value = f.normal
		}
	}
	return q
}

// Rights say who may do and see what. There is one rule for the API, the mounted tree and the page: root, the daemon's
// user and the administrators may do everything. The owner of a directory, and members of its group unless that is
// group 0, may do everything below it, and run and stop programs in it; but they do not write the directory's own
// limits, which say what the owner gets, nor bind cgroups, which could take in processes of others.
type Rights struct {
	// Owner is the user whose daemon it is.
	Owner uint32
	// Admins is the group of the administrators, nil for none.
	Admins *uint32
	Quota  Quota
	// Others is what users see of each other; empty is OthersAll.
	Others Others
}

// Trusts reports whether somebody may do and see everything.
func (r Rights) Trusts(a Author) bool {
	return r.trustsUser(a.UID) || r.Admins != nil && a.member(*r.Admins)
}

// trustsUser reports whether a user is trusted whatever her groups are.
func (r Rights) trustsUser(uid uint32) bool { return uid == 0 || uid == r.Owner }

// SeesAll reports whether somebody sees everything.
func (r Rights) SeesAll(a Author) bool {
	return r.Others == "" || r.Others == OthersAll || r.Trusts(a)
}

// owns reports whether a directory is an author's own, by user or by group.
func (a Author) owns(n *directory) bool {
	return n.UID == a.UID && n.UID != Nobody || n.GID != 0 && a.member(n.GID)
}

// topmost returns the highest directory from n upwards that an author owns, or nil.
func (a Author) topmost(n *directory) (top *directory) {
	for ; n != nil; n = n.parent {
		if a.owns(n) {
			top = n
		}
	}
	return top
}

// May returns why somebody may not do something, nil if she may. Errors are *Error: EPERM, and ENOENT for what is not
// there or is hidden from her.
func (t *Tree) May(by Author, a Access) error {
	if err := t.rights.may(t.state.Load(), &by, a); err != nil {
		return err.named(t.names)
	}
	return nil
}

// Raiser returns who besides administrators may raise the limits of a directory: the owner of the lowest group above it
// that belongs to a user. False: there is none.
func (t *Tree) Raiser(path string) (uid uint32, exists bool) {
	n, err := t.find(path)
	if err != nil {
		return 0, false
	}
	for n = n.parent; n != nil; n = n.parent {
		if n.UID != 0 && n.UID != Nobody {
			return n.UID, true
		}
	}
	return 0, false
}

// Rights returns who may do and see what.
func (t *Tree) Rights() Rights { return t.rights }

// Owns reports whether an author owns any directory.
func (t *Tree) Owns(by Author) bool {
	for _, n := range t.state.Load().byID {
		if by.owns(n) {
			return true
		}
	}
	return false
}

// may is May in a state. by is nil for those who hold the tree.
func (r Rights) may(s *state, by *Author, a Access) *Error {
	if by == nil || r.Trusts(*by) {
		return nil
	}
	n := s.byPath[a.Path]
	if n == nil && a.Action != ActionCreate {
		return notFound(a.Path)
	}
	from := n // the lowest directory that the author may own for it
	switch {
	case a.Action == ActionCreate:
		from = s.byPath[path.Dir(a.Path)]
		if !strings.HasPrefix(a.Path, Root) || path.Clean(a.Path) != a.Path { // which is refused for what it is
			return nil
		}
		if from == nil || r.sight(*by, from) == Hidden {
			return noParent(a.Path)
		}
	case a.Action == ActionAttach, a.Action == ActionStop, a.Action == ActionWrite && files[a.File].ofUsers():
	case a.Action == ActionWrite && files[a.File].ofAdmins():
		return r.refuse(a, saying("it is for administrators, since it takes in processes of everybody"))
	default:
		from = n.parent
	}
	if by.topmost(from) != nil {
		return nil
	}
	if a.Action != ActionCreate && r.sight(*by, n) == Hidden {
		return notFound(a.Path)
	}
	return r.refuse(a, notOwner(by.UID, from))
}

// whose names the directories one of whose owners may do something in or below n.
func whose(n *directory) string {
	if n == nil {
		return Root
	}
	if n.parent == nil || n.parent.parent == nil {
		return n.Path
	}
	return n.Path + ", or of a group above,"
}

// refuse is the error of what an author may not do.
func (r Rights) refuse(a Access, reason func(Names) string) *Error {
	return about(Error{Errno: syscall.EPERM, Path: a.Path, File: a.File}, func(n Names) (string, string) {
		remedy := "ask root"
		if r.Admins != nil {
			remedy += " or a member of " + n.group(*r.Admins)
		}
		return reason(n), remedy + "; lgpu chown gives a directory to a user"
	})
}

// saying is a reason that names nobody.
func saying(reason string) func(Names) string { return func(Names) string { return reason } }

// notOwner is why a user may do nothing in or below n.
func notOwner(uid uint32, n *directory) func(Names) string {
	owners := whose(n)
	return func(names Names) string {
		return names.user(uid) + " may not; the owner of " + owners + " may, and administrators"
	}
}

// ofUsers reports whether a file is about the programs in a directory, not about its limits.
func (f *file) ofUsers() bool { return f != nil && f.users }

// ofAdmins reports whether a file is never an owner's.
func (f *file) ofAdmins() bool { return f != nil && f.admins }

// mayChown returns why somebody may not give a directory to a user and a group. An owner below whose directory it is may
// take it back, and may give it to a group that she is in; who owns it herself may do the latter.
func (r Rights) mayChown(by *Author, n *directory, uid, gid uint32) *Error {
	if by == nil || r.Trusts(*by) {
		return nil
	}
	above := by.topmost(n.parent) != nil
	a := Access{Action: "chown", Path: n.Path}
	switch {
	case r.sight(*by, n) == Hidden:
		return notFound(n.Path)
	case !above && n.UID != by.UID:
		return r.refuse(a, notOwner(by.UID, n.parent))
	case uid != n.UID && uid != by.UID:
		return r.refuse(a, saying("an administrator may give it to another user; its owner only takes it back"))
	case gid != n.GID && gid != 0 && !by.member(gid):
		return r.refuse(a, func(n Names) string { return n.user(by.UID) + " is no member of " + n.group(gid) })
	}
	return nil
}

// mayOwn returns why a user may not own one directory more, at a path.
func (r Rights) mayOwn(s *state, by *Author, uid uint32, at string) *Error {
	most := r.Quota.Complete().Directories
	if r.trustsUser(uid) || by != nil && r.Trusts(*by) || s.owned(uid) < most {
		return nil
	}
	return about(Error{Errno: syscall.EDQUOT, Path: at}, func(n Names) (string, string) {
		return fmt.Sprintf("%s has %d groups and lgpus, which is all one user may have (quota.directories)", n.user(uid), most),
			"remove some, or ask an administrator for more"
	})
}

// mayHave returns why somebody may not have one directory more at a path.
func (r Rights) mayHave(s *state, by *Author, spec CreateSpec) *Error {
	if err := r.mayOwn(s, by, spec.UID, spec.Path); err != nil {
		return err
	}
	if r.trustsUser(spec.UID) || by == nil || r.Trusts(*by) {
		return nil
	}
	quota := r.Quota.Complete()
	top := by.topmost(s.byPath[path.Dir(spec.Path)])
	if top == nil {
		return nil
	}
	if depth := level(spec.Path) - level(top.Path); depth > quota.Depth {
		return &Error{Errno: syscall.EDQUOT, Path: spec.Path, Remedy: "use fewer levels, or ask an administrator for more",
			Reason: fmt.Sprintf("it would be %d levels below %s; one user may have %d (quota.depth)", depth, top.Path,
				quota.Depth)}
	}
	return nil
}

// level is how many directories a path has below the root.
func level(p string) int { return strings.Count(strings.TrimSuffix(p, Root), "/") }

// Sight is how much somebody sees of a directory.
type Sight uint8

// Sights.
const (
	Hidden Sight = iota // nothing: as if it were not there
	Frame               // that it is there, and its limits, since something of hers is below it
	Whole               // everything
)

// sight is how much somebody sees of n.
func (r Rights) sight(by Author, n *directory) Sight {
	switch {
	case r.SeesAll(by) || by.topmost(n) != nil:
		return Whole
	case n.parent == nil || by.below(n):
		return Frame
	}
	return Hidden
}

// below reports whether an author owns something below n.
func (a Author) below(n *directory) bool {
	return slices.ContainsFunc(n.children, func(c *directory) bool { return a.owns(c) || a.below(c) })
}

// Sight returns how much somebody sees of the directory at a path. One that does not exist any more is seen by who sees
// the nearest above it whole.
func (t *Tree) Sight(by Author, at string) Sight {
	s := t.state.Load()
	if n := s.byPath[at]; n != nil {
		return t.rights.sight(by, n)
	}
	for strings.HasPrefix(at, Root) && at != Root {
		at = path.Dir(at)
		if n := s.byPath[at]; n != nil {
			if t.rights.sight(by, n) == Whole {
				return Whole
			}
			break
		}
	}
	return Hidden
}

// Sights returns how much somebody sees of which directories, by ID. Those that are left out are Hidden.
func (t *Tree) Sights(by Author) map[uint64]Sight {
	sights := map[uint64]Sight{}
	var look func(n *directory, inherited Sight) Sight
	look = func(n *directory, inherited Sight) Sight {
		seen := inherited
		if seen == Whole || by.owns(n) {
			seen = Whole
		} else if n.parent == nil {
			seen = Frame
		}
		from := Hidden
		if seen == Whole {
			from = Whole
		}
		for _, c := range n.children {
			if look(c, from) != Hidden && seen == Hidden {
				seen = Frame
			}
		}
		if seen != Hidden {
			sights[n.ID] = seen
		}
		return seen
	}
	look(t.state.Load().root, Hidden)
	return sights
}

// shows reports whether somebody who sees so much of a directory may read a file of it.
func (r Rights) shows(seen Sight, f File) bool {
	switch {
	case seen == Frame && f.Usage:
		return r.Others == OthersTotals
	case seen == Frame:
		return !f.Private
	}
	return seen == Whole
}

// Directory is Tree.Directory as far as the author sees it: what is hidden is not there.
func (e Editor) Directory(path string) (Directory, error) {
	out, err := e.tree.Directory(path)
	if err != nil || e.by == nil || e.tree.rights.SeesAll(*e.by) {
		return out, err
	}
	if e.tree.Sight(*e.by, path) == Hidden {
		return Directory{}, notFound(path)
	}
	out.Children = slices.DeleteFunc(out.Children, func(name string) bool {
		return e.tree.Sight(*e.by, strings.TrimSuffix(path, Root)+Root+name) == Hidden
	})
	return out, nil
}

// Files returns the files that a directory has and shows to the author.
func (e Editor) Files(path string) []File {
	seen := Whole
	if e.by != nil && !e.tree.rights.SeesAll(*e.by) {
		seen = e.tree.Sight(*e.by, path)
	}
	return slices.DeleteFunc(Files(), func(f File) bool {
		return f.Root && path != Root || !e.tree.rights.shows(seen, f)
	})
}

// Read is Tree.Read as far as the author sees it. An error is also EPERM, for a file that is hidden from her.
func (e Editor) Read(path, file string) (string, error) {
	if e.by == nil || e.tree.rights.SeesAll(*e.by) {
		return e.tree.Read(path, file)
	}
	seen := e.tree.Sight(*e.by, path)
	if f := files[file]; f != nil && seen == Frame && !e.tree.rights.shows(seen, f.describe()) {
		return "", e.tree.rights.refuse(Access{Path: path, File: file},
			saying("it says what others use, which is not shown here")).named(e.tree.names)
	}
	if _, err := e.Directory(path); err != nil {
		return "", err
	}
	return e.tree.Read(path, file)
}
