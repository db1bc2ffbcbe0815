package limits

import (
	"fmt"
	"path"
	"syscall"
)

// Editor changes and reads a tree, as far as its author may: errors are also *Error with EPERM, and ENOENT for what is
// hidden from the author. Its methods may be called by several goroutines.
type Editor struct {
	tree *Tree
	by   *Author // nil for the owner of the tree itself
}

// By changes the tree in somebody's name, whom Change.By tells.
func (t *Tree) By(a Author) Editor { return Editor{tree: t, by: &a} }

// keeper changes the tree for those who hold it.
func (t *Tree) keeper() Editor { return Editor{tree: t} }

// CreateSpec describes a directory to make.
type CreateSpec struct {
	Path string
	// Temporary directories belong to a launcher, which removes them; they are marked in State.
	Temporary bool
	// UID and GID own the node: they may make children and write the children's limits.
	UID, GID uint32
	// Request and then Writes are applied to the directory in the same transaction.
	Request Request
	Writes  []Assignment
	// Enter makes the creator the directory's first user, before anybody else can remove it.
	Enter bool
	// Note is for Commit, which finds it in the Change: what belongs to the directory and must be kept with it or not at all.
	Note any
}

// Assignment is the text for one file.
type Assignment struct {
	File, Text string
}

// Create makes a directory below one that exists. Errors are *Error: EEXIST (also for the name of a file), ENOENT (no
// parent), EINVAL (name), EBUSY (the parent has processes), ENAMETOOLONG or ENOSPC (too deep, too many), EDQUOT (too
// many of the owner's), ENODEV, and those of Update.
func (e Editor) Create(spec CreateSpec) (Directory, error) {
	t := e.tree
	var made *directory
	var out Directory
	err := t.change(e.by, spec.Path, func(next *state) (err *Error) {
		if err := t.rights.may(next, e.by, Access{Action: ActionCreate, Path: spec.Path}); err != nil {
			return err
		}
		if err := t.rights.mayHave(next, e.by, spec); err != nil {
			return err
		}
		if parent := next.byPath[path.Dir(spec.Path)]; e.by != nil && parent != nil {
			spec.GID = parent.GID // as with the set-group-ID bit: what a group was given, it has below
		}
		if made, err = next.create(spec, t.users); err != nil {
			return err
		}
		next.note = spec.Note
		if err := next.request(made, spec.Request); err != nil {
			return err
		}
		return e.write(next, made, spec.Writes)
	}, func() {
		if spec.Enter {
			t.users[made.ID]++
		}
		out = t.state.Load().export(made)
	})
	return out, err
}

// Rmdir removes a directory. Errors are *Error: ENOENT, ENOTEMPTY (it has children), EBUSY (it has users, or is the
// root), EIO.
func (e Editor) Rmdir(path string) error {
	t := e.tree
	var parent, gone uint64
	var seen uint64
	var left map[string]Stat
	if n, err := t.find(path); err == nil {
		seen, left = n.ID, t.own(n.ID)
	}
	return t.change(e.by, path, func(next *state) *Error {
		n, err := next.find(path)
		switch {
		case err != nil:
			return err
		case n.parent == nil:
			return &Error{Errno: syscall.EBUSY, Path: path, Reason: "the root stays"}
		}
		if err := t.rights.may(next, e.by, Access{Action: ActionRemove, Path: path}); err != nil {
			return err
		}
		switch {
		case len(n.children) > 0:
			return &Error{Errno: syscall.ENOTEMPTY, Path: path,
				Reason: "it has " + counted(len(n.children)) + " below it", Remedy: "lgpu rm -r removes them too"}
		case t.users[n.ID] > 0:
			return &Error{Errno: syscall.EBUSY, Path: path, Reason: "processes use it; stop them first"}
		}
		parent, gone = n.parent.ID, n.ID
		next.remove(n)
		return nil
	}, func() {
		if gone == seen {
			t.past.inherit(parent, gone, left)
		}
	})
}

// Chown gives a directory to another owner. An author who is no administrator may take back what is below a directory of
// hers, and may give it, or her own directory, to a group that she is in, or to none (0). Errors are *Error: ENOENT,
// EINVAL (Nobody), EDQUOT (she has all that she may have), EIO.
func (e Editor) Chown(path string, uid, gid uint32) error {
	return e.tree.change(e.by, path, func(next *state) *Error {
		n, err := next.find(path)
		if err != nil {
			return err
		}
		if err := e.tree.rights.mayChown(e.by, n, uid, gid); err != nil {
			return err
		}
		if e.by != nil && uid != n.UID {
			if err := e.tree.rights.mayOwn(next, e.by, uid, path); err != nil {
				return err
			}
		}
		if uid == Nobody || gid == Nobody {
			return &Error{Errno: syscall.EINVAL, Path: path, Reason: fmt.Sprintf("%d is no user and no group", Nobody)}
		}
		n.UID, n.GID, n.revision = uid, gid, next.sequence
		return nil
	})
}

// Update writes several files of a directory as one transaction, in order, each checked against what those before it
// made. What is no state of the tree is done after all else took effect: memory.peak is reset, and programs are stopped
// for procs.kill. Errors are *Error: ENOENT (directory or file), EACCES (the file is read-only), those of the file's
// grammar, and EIO if the change could not be kept.
func (e Editor) Update(path string, writes []Assignment) error {
	var resets []reset
	var kill *uint64
	err := e.tree.change(e.by, path, func(next *state) *Error {
		n, err := next.find(path)
		if err != nil {
			return err
		}
		if len(writes) == 0 { // which changes nothing: what is not there cannot be told from what is hidden
			return e.tree.rights.may(next, e.by, Access{Action: ActionWrite, Path: path})
		}
		if err := e.write(next, n, writes); err != nil {
			return err
		}
		resets, kill = next.resets, next.kill
		return nil
	})
	if err != nil {
		return err
	}
	for _, r := range resets {
		e.tree.resetPeak(r)
	}
	if kill != nil && e.tree.stop != nil {
		e.tree.stop(*kill, e.by)
	}
	return nil
}

// Exchange has a directory ask for on each device what it asked for on another: pairs are the UUIDs from and to, each device
// at most once on either side. What it asked for on a device that only comes goes to one that only leaves, in the order of
// pairs; so pairs the other way round take it back. note is for Commit, as that of a CreateSpec. Errors are *Error: ENOENT,
// ENODEV, EINVAL (a device twice), EIO, and those of Update.
func (t *Tree) Exchange(path string, pairs [][2]string, note any) error {
	return t.change(nil, path, func(next *state) *Error {
		n, err := next.find(path)
		if err != nil {
			return err
		}
		next.note = note
		return next.exchange(n, pairs)
	})
}

// write is state.write as far as the author may.
func (e Editor) write(next *state, n *directory, writes []Assignment) *Error {
	for _, w := range writes {
		if err := e.tree.rights.may(next, e.by, Access{Action: ActionWrite, Path: n.Path, File: w.File}); err != nil {
			return err
		}
	}
	return next.write(n, writes)
}

// Create is Editor.Create by those who hold the tree.
func (t *Tree) Create(spec CreateSpec) (Directory, error) { return t.keeper().Create(spec) }

// Mkdir makes a persistent directory owned by a user. Errors are those of Create.
func (t *Tree) Mkdir(path string, uid, gid uint32) error {
	_, err := t.Create(CreateSpec{Path: path, UID: uid, GID: gid})
	return err
}

// Rmdir is Editor.Rmdir by those who hold the tree.
func (t *Tree) Rmdir(path string) error { return t.keeper().Rmdir(path) }

// Chown is Editor.Chown by those who hold the tree.
func (t *Tree) Chown(path string, uid, gid uint32) error { return t.keeper().Chown(path, uid, gid) }

// Update is Editor.Update by those who hold the tree.
func (t *Tree) Update(path string, writes []Assignment) error { return t.keeper().Update(path, writes) }

// Write is Update of one file.
func (t *Tree) Write(path, file, text string) error {
	return t.Update(path, []Assignment{{file, text}})
}
