// Package top is the live view of devices and lgpus in a terminal: who has which device, how much of what was asked for
// arrives, and who is near a limit.
//
//	err := top.Run(ctx, view, top.Options{Interval: time.Second, In: os.Stdin, Out: os.Stdout})
package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
	"github.com/charmbracelet/x/ansi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/api/state"
	"github.com/lgpu/lgpu/internal/users"
)

// Options say how to show.
type Options struct {
	// Interval is the time between two frames; the default is one second, the least 100 ms.
	Interval time.Duration
	In       io.Reader // keys
	Out      io.Writer
	// Width is the number of columns of Once; the default is 80. Run asks the terminal.
	Width int
	// Color makes Once use colours. Run decides by what the terminal can do and NO_COLOR.
	Color bool
	// Write writes one FILE=VALUE to a group or lgpu, for Run; nil is a view that changes nothing. The error is shown. A
	// "1" for procs.kill ends the programs in it.
	Write func(ctx context.Context, path, assignment string) error
	// JSON makes Once print the document that docs/json.md describes.
	JSON bool
}

// retry is the time between two attempts to reach a daemon that is gone.
const retry = time.Second

// patience is how long a change is waited for.
const patience = 15 * time.Second

// Run shows frame after frame until the user quits or ctx ends, which both return nil. In and Out must be a terminal. A
// daemon that goes away while it is being watched is waited for; one that does not answer the first time is an error.
func Run(ctx context.Context, view api.ViewClient, o Options) error { return run(ctx, view, o) }

func run(ctx context.Context, view api.ViewClient, o Options, more ...tea.ProgramOption) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, first, err := watch(ctx, view, o.Interval)
	if err != nil {
		return fmt.Errorf("watch the daemon: %w", reason(err))
	}
	messages := make(chan tea.Msg)
	go func() {
		send := func(m tea.Msg) bool {
			select {
			case messages <- m:
				return true
			case <-ctx.Done():
				return false
			}
		}
		for err := error(nil); ; {
			for err == nil && send(arrived{first}) {
				first, err = stream.Recv()
			}
			if !send(broken{reason(err)}) {
				return
			}
			select {
			case <-time.After(retry):
			case <-ctx.Done():
				return
			}
			stream, first, err = watch(ctx, view, o.Interval)
		}
	}()
	options := append(more, tea.WithContext(ctx), tea.WithInput(o.In), tea.WithOutput(o.Out))
	colored := os.Getenv("NO_COLOR") == ""
	if !colored {
		options = append(options, tea.WithColorProfile(colorprofile.Ascii))
	}
	var write func(path, assignment string) error
	if o.Write != nil {
		write = func(path, assignment string) error {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			return o.Write(ctx, path, assignment)
		}
	}
	_, err = tea.NewProgram(newModel(messages, paint(colored), write), options...).Run()
	if err != nil && !errors.Is(err, tea.ErrProgramKilled) && !errors.Is(err, tea.ErrInterrupted) {
		return fmt.Errorf("show in the terminal: %w", err)
	}
	return nil
}

// watch opens a stream of snapshots and waits for the first.
func watch(ctx context.Context, view api.ViewClient, interval time.Duration) (api.View_WatchClient, *api.Snapshot,
	error) {
	stream, err := view.Watch(ctx, &api.WatchRequest{IntervalNs: int64(interval)})
	if err != nil {
		return nil, nil, err
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, nil, err
	}
	return stream, first, nil
}

// reason is a call's error without what only matters to programs.
func reason(err error) error {
	s, ok := status.FromError(err)
	switch {
	case errors.Is(err, api.ErrGone):
		return errors.New("it does not answer")
	case errors.Is(err, io.EOF):
		return errors.New("it has ended")
	case !ok:
		return err
	case s.Code() == codes.Unavailable:
		return errors.New("it does not answer")
	}
	return errors.New(s.Message())
}

// Once writes a single frame, or the JSON document, of the present state.
func Once(ctx context.Context, view api.ViewClient, o Options) error {
	s, err := view.Snapshot(ctx, &api.SnapshotRequest{})
	if err != nil {
		return fmt.Errorf("ask the daemon: %w", reason(err))
	}
	if o.JSON {
		return state.Of(s).Write(o.Out)
	}
	f := frame{snapshot: s, width: o.Width, paint: paint(o.Color), zone: time.Local, once: true, user: users.Name}
	if f.width <= 0 {
		f.width = 80
	}
	if _, err := io.WriteString(o.Out, f.text()); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// text is the whole frame.
func (f *frame) text() string {
	var b strings.Builder
	write := func(text string) { b.WriteString(strings.TrimRight(ansi.Truncate(text, f.width, ""), " ") + "\n") }
	write(f.title(false, ""))
	write(f.heading())
	for _, l := range f.lines() {
		write(l.text)
	}
	return b.String()
}
