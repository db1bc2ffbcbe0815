package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/api/state"
	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/internal/users"
)

func eventsCommand() *cobra.Command {
	var e events
	c := &cobra.Command{
		Use:   "events [options] [PATH]",
		Short: "Show what happened to logical GPUs",
		Long: `Show what happened to all lgpus, or to the group or lgpu at PATH and below:
lgpus created and removed; clients that joined, left and were refused; limits
changed: which, by whom, from what to what; memory above memory.high, or
refused; processes on a device that belong to no lgpu or use too much; work that
overran its slice. With -f, also show new events until interrupted.

The daemon keeps events on disk, also over its restarts. Without --since,
--until, --kind and --user there are the last 256 of them; with any of these,
all that are kept and match.

A TIME is how long ago (90s, 2h, 3d), a time of today (15:04), a date
(2026-11-01), or both ("2026-11-01 15:04", 2026-11-01T15:04:05Z). Without a zone
it is local time, as is all that is printed.

A KIND without its last part means all that begin with it: police is
police.stranger, police.stopped and others. A kind that a program causes again
and again is shown at once, and then as one event with a count, ever more
rarely while it goes on.

Exit status: 0; 2 if PATH is not a group or lgpu and no event is about it, or if
an option is wrong; 1 if the daemon cannot be reached, or ends.`,
		Example: `  lgpu events
  lgpu events -f /team
  lgpu events --since 2h --kind oom,limit.changed
  lgpu events --since 2026-11-01 --until 2026-11-02 --user alice
  lgpu events --since 1d --kind limit --json | jq '.by.user, .changes'`,
		DisableFlagsInUseLine: true,
		Args:                  atMostOne,
		RunE:                  func(c *cobra.Command, args []string) error { return e.show(c, args) },
	}
	f := c.Flags()
	f.SortFlags = false
	f.BoolVarP(&e.follow, "follow", "f", false, "go on with new events")
	f.StringVar(&e.since, "since", "", "only events at `TIME` and later")
	f.StringVar(&e.until, "until", "", "only events before `TIME`")
	f.StringSliceVar(&e.kinds, "kind", nil, "only events of these `KINDS`, separated by commas")
	f.StringVar(&e.user, "user", "", "only events that processes of `USER` caused, a name or a number")
	f.BoolVar(&e.json, "json", false, "print one JSON object on each line")
	socketFlag(c)
	return c
}

// events is one lgpu events.
type events struct {
	follow, json bool
	since, until string
	kinds        []string
	user         string
}

// request is what is asked of the daemon.
func (e *events) request(args []string, now time.Time) (*api.EventsRequest, error) {
	r := &api.EventsRequest{Follow: e.follow, Kinds: e.kinds}
	if len(args) > 0 {
		r.Path = rooted(args[0])
	}
	for _, moment := range []struct {
		option, text string
		field        **timestamppb.Timestamp
	}{{"since", e.since, &r.Since}, {"until", e.until, &r.Until}} {
		if moment.text == "" {
			continue
		}
		t, err := parseMoment(moment.text, now)
		if err != nil {
			return nil, usage("", "--%s %q: %w", moment.option, moment.text, err)
		}
		*moment.field = timestamppb.New(t)
	}
	if e.follow && e.until != "" {
		return nil, usage("", "--until: with -f there is no end")
	}
	if e.user != "" {
		uid, err := users.ID(e.user)
		if err != nil {
			return nil, usage("", "--user %q: %w", e.user, err)
		}
		r.User = &uid
	}
	return r, nil
}

func (e *events) show(c *cobra.Command, args []string) error {
	request, err := e.request(args, time.Now())
	if err != nil {
		return err
	}
	n := toLook
	if e.follow {
		n = toAsk
	}
	conn, err := connect(c, n)
	if err != nil {
		return err
	}
	if conn != nil && len(args) > 0 {
		request.Path = at(conn, args[0])
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
		return e.explain(err)
	}
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return e.explain(err)
		}
		if err := e.print(c.OutOrStdout(), event); err != nil {
			return failed(fmt.Errorf("write: %w", err))
		}
	}
}

func (e *events) print(out io.Writer, event *api.Event) error {
	if e.json {
		return json.NewEncoder(out).Encode(state.EventOf(event))
	}
	where := event.GetPath()
	if where == "" {
		where = "-"
	}
	text := strings.TrimPrefix(strings.TrimPrefix(event.GetText(), where), ":") // said in the column before
	text = strings.TrimPrefix(text, " ")
	_, err := fmt.Fprintf(out, "%s  %-16s %-18s %s\n",
		event.GetTime().AsTime().Local().Format("2006-01-02 15:04:05.000 -0700"), event.GetKind(), where, text)
	return err
}

// explain is explain for the call, in which kinds of events are named.
func (e *events) explain(err error) error {
	var call *api.Error
	if errors.As(err, &call) && call.Field == "kinds" {
		call.Text, call.Hint = "--kind: "+call.Reason, "kinds are such as oom, limit.changed, police"
		names := kindNames()
		for _, kind := range e.kinds {
			if !slices.Contains(names, kind) {
				call.Hint = didYouMean("", kind, names, call.Hint)
				break
			}
		}
	}
	return explain(err)
}

// kindNames are the names of all kinds of events, and of groups of kinds: what comes before a point.
func kindNames() (names []string) {
	for _, kind := range daemon.Kinds() {
		group, _, _ := strings.Cut(string(kind), ".")
		names = append(names, group, string(kind))
	}
	slices.Sort(names)
	return slices.Compact(names)
}
