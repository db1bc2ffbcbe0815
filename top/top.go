// Package top is the live view of devices and lgpus in a terminal: who has which device, how much of what was asked for
// arrives, and who is near a limit.
//
//	err := top.Run(ctx, client, top.Options{Interval: time.Second, In: os.Stdin, Out: os.Stdout})
package top

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/lgpu/lgpu/api"
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
	// JSON makes Once print the document that docs/cli.md describes.
	JSON bool
}

// Run shows frame after frame until the user quits (nil), ctx ends (nil too), or the daemon goes (its error). In and Out
// must be a terminal.
func Run(ctx context.Context, view api.ViewClient, o Options) error { return errors.ErrUnsupported }

// Once writes a single frame, or the JSON document, of the present state.
func Once(ctx context.Context, view api.ViewClient, o Options) error { return errors.ErrUnsupported }
