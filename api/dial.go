package api

import (
	"context"
	"errors"
)

// Options say which daemon to talk to.
type Options struct {
	// Socket of the daemon. The default is EnvSocket, else the first of the runtime folder's and the system's that answers.
	Socket string
	// Dir is the runtime folder; the default is region.Dir.
	Dir string
	// Change says that the caller means to use Control: a daemon that would refuse it is passed over.
	Change bool
	// Start is the command that becomes a daemon of Dir, started if none answers; nil is never. It is to be a daemon that
	// leaves by itself, with EnvReady understood.
	Start []string
}

// Dial returns a connection to a daemon that answers. An error wraps ErrNoDaemon if there is none and none was to be
// started.
func Dial(ctx context.Context, o Options) (*Conn, error) {
	return nil, errors.ErrUnsupported
}
