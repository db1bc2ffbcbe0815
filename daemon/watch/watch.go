// Package watch lets a process watch another that is to live: a daemon that was started by need, which no service manager
// watches. The daemon shows a pulse through a pipe; when there is none for long enough it hangs, and is ended and
// started anew.
//
//	watch.Keep(start, watch.Patience, log)   // in the one
//	watch.Pulse(ctx, alive)                  // in the other
package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Env is the descriptor to which a process shows its pulse.
const Env = "LGPU_WATCH_FD"

// Patience is how long a daemon shows no pulse before it is taken to hang. Its tenants have gone by their own credit by
// then, so it is long enough for a busy machine.
const Patience = 10 * time.Second

// looks is into how many looks the patience is divided: the time in which who watches was stopped itself counts as one.
const looks = 10

// lastWords is the time that a process that hangs has to say where, in its log, before it is killed.
const lastWords = 2 * time.Second

// Keep runs what start starts until it ends by itself, and returns how; when it hangs it is ended and started anew. start
// gives the process pulse as a descriptor, and its number in Env. INT and TERM are passed on to it.
func Keep(start func(pulse *os.File) (*exec.Cmd, error), patience time.Duration, log *slog.Logger) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM)
	defer signal.Stop(signals)
	for {
		hung, err := keep(start, patience, log, signals)
		if !hung {
			return err
		}
	}
}

// keep runs one process to its end.
func keep(start func(*os.File) (*exec.Cmd, error), patience time.Duration, log *slog.Logger, signals <-chan os.Signal,
) (hung bool, err error) {
	here, there, err := os.Pipe()
	if err != nil {
		return false, fmt.Errorf("make a pipe: %w", err)
	}
	defer here.Close()
	c, err := start(there)
	there.Close()
	if err != nil {
		return false, err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	pulses := make(chan struct{}, 1)
	go func() {
		for b := make([]byte, 16); ; {
			if _, err := here.Read(b); err != nil {
				return
			}
			select {
			case pulses <- struct{}{}:
			default:
			}
		}
	}()
	look := time.NewTicker(patience / looks)
	defer look.Stop()
	for silent := 0; ; {
		select {
		case err := <-ended:
			return hung, err
		case s := <-signals:
			_ = c.Process.Signal(s) // fails when it has just ended
		case <-pulses:
			silent = 0
		case <-look.C:
			if silent++; silent == looks {
				hung = true
				log.Error("the daemon hangs; it is ended and started anew", "pid", c.Process.Pid, "after", patience)
				_ = c.Process.Signal(unix.SIGQUIT) // where every goroutine is goes to its standard error
				time.AfterFunc(lastWords, func() { _ = c.Process.Kill() })
			}
		}
	}
}

// Pulse shows the process that watches this one that it lives, as long as alive returns, until ctx ends. It returns at
// once where nobody watches, or watches any more.
func Pulse(ctx context.Context, alive func()) error {
	fd, err := strconv.Atoi(os.Getenv(Env))
	os.Unsetenv(Env)
	if err != nil || fd < 3 {
		return nil
	}
	unix.CloseOnExec(fd)
	w := os.NewFile(uintptr(fd), "pulse")
	defer w.Close()
	tick := time.NewTicker(Patience / 4)
	defer tick.Stop()
	for {
		alive()
		if _, err := w.Write([]byte{1}); errors.Is(err, unix.EPIPE) {
			return nil // it goes on unwatched
		} else if err != nil {
			return fmt.Errorf("show a pulse: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
