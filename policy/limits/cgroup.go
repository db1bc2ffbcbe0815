package limits

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"
)

// maxCgroup is the length of the longest path of a cgroup, in bytes.
const maxCgroup = 4096

// cgroup is a cgroup bound to a directory, or one that a process is in.
type cgroup struct {
	hierarchy string // anyHierarchy, unified, or the name of a controller of a v1 hierarchy
	path      string
}

const (
	anyHierarchy = ""
	unified      = "0:" // what comes before the second colon in /proc/PID/cgroup
)

// String writes c as parseCgroup reads it.
func (c cgroup) String() string {
	if c.hierarchy == anyHierarchy {
		return c.path
	}
	return c.hierarchy + ":" + c.path
}

// parseCgroup reads what people give: PATH, CONTROLLER:PATH, or a line of /proc/PID/cgroup.
func parseCgroup(text string) (cgroup, error) {
	var c cgroup
	slash := strings.IndexByte(text, '/')
	if slash < 0 {
		return c, invalid{errno: syscall.EINVAL,
			reason: "a cgroup is /PATH, or CONTROLLER:/PATH, or a line of /proc/PID/cgroup; a path begins with /"}
	}
	c.path = text[slash:]
	switch prefix := strings.TrimSuffix(text[:slash], ":"); {
	case slash == 0:
	case prefix == text[:slash]:
		return c, invalid{errno: syscall.EINVAL, reason: "a colon is missing between controller and path"}
	case prefix == unified:
		c.hierarchy = unified
	default:
		id, controllers, found := strings.Cut(prefix, ":")
		if found && !digits(id) {
			return c, invalid{errno: syscall.EINVAL, reason: "the number of the hierarchy is not a number"}
		}
		if !found {
			controllers = id
		}
		c.hierarchy, _, _ = strings.Cut(controllers, ",") // one of those mounted together stands for all
		if c.hierarchy == "" || strings.ContainsFunc(c.hierarchy, unprintable) || strings.Contains(c.hierarchy, ":") ||
			!utf8.ValidString(c.hierarchy) {
			return c, invalid{errno: syscall.EINVAL, reason: "the controller has no possible name"}
		}
	}
	if !plain(c.path) {
		return c, invalid{errno: syscall.EINVAL,
			reason: "a cgroup's path has no . or .. or // or control characters, and no / at its end"}
	}
	return c, nil
}

// plain says that p is an absolute path without anything to resolve, and fit to be written down.
func plain(p string) bool {
	return strings.HasPrefix(p, "/") && path.Clean(p) == p && len(p) <= maxCgroup &&
		!strings.ContainsFunc(p, unprintable) && utf8.ValidString(p)
}

// certain says that the kernel's path of a process's cgroup is one from the root of what the reader sees. Whatever else
// its names are made of, ancestors count: a tenant names the cgroups below its own.
func certain(p string) bool {
	return strings.HasPrefix(p, "/") && !slices.Contains(strings.Split(p, "/"), "..")
}

func unprintable(r rune) bool { return r < ' ' || r == 0x7f }

// holds says that a process in the cgroups of one line of /proc/PID/cgroup is in c or below it.
func (c cgroup) holds(hierarchy string, controllers []string, at string) bool {
	if c.hierarchy != anyHierarchy && c.hierarchy != hierarchy && !slices.Contains(controllers, c.hierarchy) {
		return false
	}
	return c.path == "/" || at == c.path || strings.HasPrefix(at, c.path+"/")
}

// Bound returns the path of the directory to which the nearest ancestor of a process's cgroup is bound, given the
// content of its /proc/PID/cgroup. The process can be in several hierarchies (v1) and so below several bound cgroups:
// the deepest decides, then one that is bound in its hierarchy before one bound in any, then the order of the lines.
// Lines that say nothing certain, as of a cgroup outside of the reader's namespace, are passed over.
func (t *Tree) Bound(procCgroup []byte) (path string, ok bool) {
	type binding struct {
		cgroup
		dir *directory
	}
	var bindings []binding
	t.state.Load().root.walk(func(n *directory) {
		for _, text := range n.Cgroups {
			if c, err := parseCgroup(text); err == nil {
				bindings = append(bindings, binding{c, n})
			}
		}
	})
	best := -1
	for line := range strings.SplitSeq(string(procCgroup), "\n") {
		parts := strings.SplitN(line, ":", 3)
		if len(parts) != 3 || !digits(parts[0]) || !certain(parts[2]) {
			continue
		}
		hierarchy, controllers := "", strings.Split(parts[1], ",")
		if parts[0] == "0" && parts[1] == "" {
			hierarchy, controllers = unified, nil
		}
		for _, b := range bindings {
			if !b.holds(hierarchy, controllers, parts[2]) {
				continue
			}
			rank := 2 * depth(b.path)
			if b.hierarchy != anyHierarchy {
				rank++
			}
			if rank > best {
				best, path = rank, b.dir.Path
			}
		}
	}
	return path, best >= 0
}

// depth is the number of names in an absolute path.
func depth(p string) int {
	if p == "/" {
		return 0
	}
	return strings.Count(p, "/")
}

func readCgroups(_ *Tree, _ *state, n *directory) string {
	return ended(strings.Join(n.Cgroups, "\n"))
}

// writeCgroups binds the cgroups of the lines, instead of those bound before. No line unbinds.
func writeCgroups(s *state, n *directory, text string) *Error {
	var bound []string
	for i, raw := range strings.Split(text, "\n") {
		raw = strings.Trim(raw, " \t\r")
		if raw == "" {
			continue
		}
		c, err := parseCgroup(raw)
		if err == nil && slices.Contains(bound, c.String()) {
			err = invalid{errno: syscall.EINVAL, reason: "it is there twice"}
		}
		if other := s.boundTo(c.String()); err == nil && other != nil && other != n {
			err = invalid{errno: syscall.EBUSY, reason: fmt.Sprintf("it is bound to %s", other.Path)}
		}
		if err != nil {
			return &Error{Errno: errnoOf(err), Line: i + 1, Token: raw, Reason: err.Error()}
		}
		bound = append(bound, c.String())
	}
	n.Cgroups, n.revision = bound, s.sequence
	return nil
}

// boundTo returns the directory to which exactly this is bound, or nil.
func (s *state) boundTo(text string) *directory {
	var found *directory
	s.root.walk(func(n *directory) {
		if slices.Contains(n.Cgroups, text) {
			found = n
		}
	})
	return found
}
