package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lgpu/lgpu/api"
)

func eventsCommand() *cobra.Command {
	var e events
	c := &cobra.Command{
		Use:   "events [options] [PATH]",
		Short: "Show what happened to logical GPUs",
		Long: `Show the last events that the daemon keeps, of all lgpus, or of the group or
lgpu at PATH and below: lgpus created and removed; clients that joined, left and
were refused; limits changed; memory above memory.high; processes on a device
that belong to no lgpu or use too much; work that overran its slice. With -f,
also show new events until interrupted.

Exit status: 0; 2 if PATH is not a group or lgpu and no event is about it; 1 if
the daemon cannot be reached, or ends.`,
		Example: `  lgpu events
  lgpu events -f /team
  lgpu events --json | jq 'select(.kind == "oom")'`,
		DisableFlagsInUseLine: true,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return noArguments(c, args[1:])
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return e.show(c, args) },
	}
	f := c.Flags()
	f.BoolVarP(&e.follow, "follow", "f", false, "go on with new events")
	f.BoolVar(&e.json, "json", false, "print one JSON object on each line")
	socketFlag(c)
	return c
}

// events is one lgpu events.
type events struct {
	follow, json bool
}

func (e events) show(c *cobra.Command, args []string) error {
	n := toLook
	if e.follow {
		n = toAsk
	}
	conn, err := connect(c, n)
	if err != nil {
		return err
	}
	request := &api.EventsRequest{Follow: e.follow}
	if len(args) > 0 {
		request.Path = rooted(args[0])
		if conn != nil {
			request.Path = at(conn, args[0])
		}
	}
	if conn == nil {
		if p := request.GetPath(); p != "" && p != rootPath {
			return usage("", "%s: there is no such group or lgpu", p)
		}
		return nil
	}
	defer conn.Close()
	stream, err := conn.Events(c.Context(), request)
	if err != nil {
		return explain(err)
	}
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return explain(err)
		}
		if err := e.print(c.OutOrStdout(), event); err != nil {
			return failed(fmt.Errorf("write: %w", err))
		}
	}
}

// jsonEvent is a line of lgpu events --json. docs/cli.md promises these names.
type jsonEvent struct {
	Number uint64    `json:"number"`
	Time   time.Time `json:"time"`
	Kind   string    `json:"kind"`
	Path   string    `json:"path,omitempty"`
	Device string    `json:"device,omitempty"`
	PID    int32     `json:"pid,omitempty"`
	Bytes  uint64    `json:"bytes,omitempty"`
	Text   string    `json:"text"`
}

func (e events) print(out io.Writer, event *api.Event) error {
	if e.json {
		return json.NewEncoder(out).Encode(jsonEvent{
			Number: event.GetNumber(), Time: event.GetTime().AsTime(), Kind: event.GetKind(), Path: event.GetPath(),
			Device: event.GetDevice(), PID: event.GetPid(), Bytes: event.GetBytes(), Text: event.GetText(),
		})
	}
	where := event.GetPath()
	if where == "" {
		where = "-"
	}
	text := strings.TrimPrefix(strings.TrimPrefix(event.GetText(), where), ":") // said in the column before
	text = strings.TrimPrefix(text, " ")
	_, err := fmt.Fprintf(out, "%s  %-16s %-18s %s\n",
		event.GetTime().AsTime().Local().Format("2006-01-02 15:04:05.000"), event.GetKind(), where, text)
	return err
}
