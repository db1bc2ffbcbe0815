package server

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/daemon/view"
	"github.com/lgpu/lgpu/internal/names"
	"github.com/lgpu/lgpu/policy/limits"
)

// maxKinds is how many kinds of events a request may name.
const maxKinds = 64

// selection is which events somebody asks for.
type selection struct {
	path         string // of these and below; empty is all
	since, until time.Time
	kinds        []string // empty is all
	user         *uint32
}

// selected reads a request. An error is the status of the call.
func selected(r *api.EventsRequest) (selection, error) {
	s := selection{path: r.GetPath(), kinds: r.GetKinds(), user: r.User}
	if r.Since != nil {
		s.since = r.GetSince().AsTime()
	}
	if r.Until != nil {
		s.until = r.GetUntil().AsTime()
		if r.GetFollow() {
			return s, refuse("until", "new events have no end: it is either follow or until")
		}
	}
	if len(s.kinds) > maxKinds {
		return s, refuse("kinds", fmt.Sprintf("%d are asked for; at most %d can be", len(s.kinds), maxKinds))
	}
	for _, kind := range s.kinds {
		known := func(k daemon.Kind) bool { return isKind(string(k), kind) }
		if !slices.ContainsFunc(daemon.Kinds(), known) {
			return s, refuse("kinds", fmt.Sprintf("there is no kind of event %q", kind))
		}
	}
	return s, nil
}

// narrow reports whether less is asked for than what happened at a path.
func (s *selection) narrow() bool {
	return !s.since.IsZero() || !s.until.IsZero() || len(s.kinds) > 0 || s.user != nil
}

// has reports whether an event at or below the path is asked for.
func (s *selection) has(e *daemon.Event) bool {
	named := func(kind string) bool { return isKind(string(e.Kind), kind) }
	switch {
	case e.Time.Before(s.since), !s.until.IsZero() && !e.Time.Before(s.until):
		return false
	case len(s.kinds) > 0 && !slices.ContainsFunc(s.kinds, named):
		return false
	}
	return s.user == nil || e.By != nil && e.By.UID == *s.user
}

// isKind reports whether a kind is of the kind that somebody names, which may lack its last part.
func isKind(kind, named string) bool { return kind == named || strings.HasPrefix(kind, named+".") }

// Events implements api.ViewServer. All that callers are given of events passes here.
func (s *Server) Events(r *api.EventsRequest, stream grpc.ServerStreamingServer[api.Event]) error {
	wanted, err := selected(r)
	if err != nil {
		return err
	}
	_, missing := s.by(stream.Context()).Directory(wanted.path)
	if wanted.path == "" {
		missing = nil
	}
	if missing != nil && r.GetFollow() && !s.heardOf(stream.Context(), wanted.path) {
		return missing
	}
	known := view.NamesIn(s.daemon.Snapshot())
	who, _ := callerOf(stream.Context())
	what := daemon.EventRange{All: wanted.narrow(), Since: wanted.since, Reader: who.author().UID, Follow: r.GetFollow()}
	err = s.daemon.Events(stream.Context(), what, func(events []daemon.Event) error {
		look := s.look(stream.Context())
		for i := range events {
			if !look.Event(events[i]) {
				continue
			}
			if !below(events[i].Path, wanted.path) {
				continue
			}
			missing = nil // it is not there now, but was
			if !wanted.has(&events[i]) {
				continue
			}
			told := view.Event(events[i], known)
			if !look.All() {
				told.Number = 0 // its gaps would say how much others do
			}
			if err := stream.Send(told); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return missing
}

// heardOf reports whether one of the last events that the caller sees is about a path.
func (s *Server) heardOf(ctx context.Context, path string) bool {
	look := s.look(ctx)
	return slices.ContainsFunc(s.daemon.Recent(), func(e daemon.Event) bool { return below(e.Path, path) && look.Event(e) })
}

// below reports whether path is that of a directory or of one below it. Everything is below the empty path.
func below(path, ancestor string) bool {
	return names.Within(path, cmp.Or(strings.TrimSuffix(ancestor, "/"), limits.Root))
}
