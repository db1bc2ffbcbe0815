// Package fs shows a tree of limits as a file system: directories are nodes, and writing to a file is a transaction whose
// errno the writer gets.
package fs

import (
	"log/slog"

	"github.com/lgpu/lgpu/tree"
)

// Options of a mount.
type Options struct {
	// Authorise says whether a caller may do something; nil lets everybody read and the daemon's own user and root write.
	// It is asked when a file is opened for writing and before every other change. An errno in its error is the caller's.
	Authorise func(Caller, Access) error
	// AllowOther lets users other than the daemon's own in. It needs root, or user_allow_other in /etc/fuse.conf.
	AllowOther bool
	// Log gets refused operations with their full text; nil discards them.
	Log *slog.Logger
}

// Caller is who asks, as the kernel says.
type Caller struct {
	UID, GID uint32
	PID      uint32
}

// Action is what somebody wants to do.
type Action string

// Actions.
const (
	ActionWrite Action = "write" // a file of the node Path
	ActionMkdir Action = "mkdir" // Path is the parent
	ActionRmdir Action = "rmdir" // Path is the node to remove
	ActionChown Action = "chown" // the node Path
)

// Access is what a caller wants to do.
type Access struct {
	Action Action
	Path   string // of a node
	File   string // of ActionWrite
}

// Server is a mounted tree.
type Server struct{}

// Mount shows t at dir, which it makes if need be. A mount there that lost its daemon is cleaned up first. As root it
// mounts itself; otherwise it needs fusermount3.
func Mount(dir string, t *tree.Tree, options Options) (*Server, error) { return nil, nil }

// Close unmounts, even while somebody has files of the tree open, and waits until no request is served any more.
func (s *Server) Close() error { return nil }

// Wait returns when the tree is no longer mounted, by Close or by an administrator.
func (s *Server) Wait() {}

// Notify wakes up who polls the events file of the node at path.
func (s *Server) Notify(path string) {}
