package treefs

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/lgpu/lgpu/policy/limits"
)

// Action is what somebody wants to do.
type Action string

// Actions.
const (
	ActionWrite Action = "write" // a file of the node Path
	ActionMkdir Action = "mkdir" // the node Path is to be made
	ActionRmdir Action = "rmdir" // the node Path is to be removed
	ActionChown Action = "chown" // the node Path is to have another owner
)

// Access is what a caller wants to do.
type Access struct {
	Action Action
	Path   string // of a node
	File   string // of ActionWrite
}

// Owners returns the usual rule, which the daemon's API can use too. Root and the daemon's own user may do everything.
// A node is its owner's: the owner and members of its group may make and remove nodes directly below it and write their
// files, but not the files of the node itself, which say what the owner gets. The error is EPERM.
func Owners(t *limits.Tree) func(limits.Author, Access) error {
	self := uint32(os.Geteuid())
	return func(c limits.Author, a Access) error {
		if c.UID == 0 || c.UID == self {
			return nil
		}
		if a.Action != ActionChown && a.Path != limits.Root {
			n, err := t.Directory(path.Dir(a.Path))
			if err != nil {
				return err
			}
			if c.UID == n.UID || in(c, n.GID) {
				return nil
			}
		}
		return fmt.Errorf("%s %s: user %d may not; the owner of the group above may, and root: %w",
			a.Action, path.Join(a.Path, a.File), c.UID, syscall.EPERM)
	}
}

// in reports whether c is a member of a group. The caller waits for the answer, so its process is still the one it was.
func in(c limits.Author, gid uint32) bool {
	if c.GID == gid {
		return true
	}
	if c.PID == 0 {
		return false
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.PID))
	return err == nil && slices.Contains(groups(status), gid)
}

// groups reads the line Groups: of /proc/PID/status.
func groups(status []byte) []uint32 {
	_, after, _ := bytes.Cut(status, []byte("\nGroups:"))
	line, _, _ := bytes.Cut(after, []byte("\n"))
	var gids []uint32
	for _, field := range strings.Fields(string(line)) {
		if gid, err := strconv.ParseUint(field, 10, 32); err == nil {
			gids = append(gids, uint32(gid))
		}
	}
	return gids
}
