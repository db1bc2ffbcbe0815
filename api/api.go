// Package api is how programs talk to the daemon: the calls of lgpu.proto over a unix socket, and a client that
// finds the daemon, or starts one.
//
//	conn, err := api.Dial(ctx, api.Options{})
//	…
//	defer conn.Close()
//	snapshot, err := conn.Snapshot(ctx, &api.SnapshotRequest{})
//
// Every error of a call is an *Error, which wraps the errno that the same operation on the mounted tree would give:
// errors.Is(err, fs.ErrNotExist) works as it does on files.
package api

//go:generate go run ./gen

import (
	"google.golang.org/grpc"
)

// Names in the runtime folder.
const (
	Socket = "lgpud.sock" // of this API
	Log    = "lgpud.log"  // what a daemon that was started on demand says
)

// EnvSocket is the environment variable that names the socket, in place of looking for it.
const EnvSocket = "LGPU_SOCKET_API"

// System is the socket of the system's daemon.
const System = "/run/lgpu/" + Socket

// MaxMessage is the largest message that either side takes, in bytes.
const MaxMessage = 16 << 20

// Conn is a connection to a daemon. Its methods may be called by any number of goroutines.
type Conn struct {
	ViewClient
	ControlClient
	// Socket is the path of the daemon's socket.
	Socket string
	// Daemon is what the daemon said of itself when it was called.
	Daemon *Daemon
	// Place is the directory of the tree where the caller's programs run who says nothing else; empty for none.
	Place string
	// Administrator says whether the caller may do everything.
	Administrator bool

	grpc *grpc.ClientConn
}

// Close ends the connection and all calls on it.
func (c *Conn) Close() error { return c.grpc.Close() }
