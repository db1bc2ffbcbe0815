package server

import (
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lgpu/lgpu/api"
)

// all returns the events that a request is answered with.
func all(t *testing.T, c *api.Conn, r *api.EventsRequest) ([]*api.Event, error) {
	t.Helper()
	stream, err := c.Events(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	var events []*api.Event
	for {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return events, nil
		}
		if err != nil {
			return nil, err
		}
		events = append(events, e)
	}
}

// A change is one event, which says who made it, and what is what now that was something else.
func TestEventsSayWho(t *testing.T) {
	c, _, _ := serve(t)
	file := func(name, text string) *api.File { return &api.File{Name: name, Data: []byte(text)} }
	if _, err := c.Create(t.Context(), &api.CreateRequest{Path: "/team", Files: []*api.File{file("gang", "a")}}); err != nil {
		t.Fatal(err)
	}
	_, err := c.Write(t.Context(), &api.WriteRequest{Path: "/team", Files: []*api.File{
		file("gang", "b"), file("lgpu.weight", "300"), file("host.max", "1GiB"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Remove(t.Context(), &api.RemoveRequest{Path: "/team"}); err != nil {
		t.Fatal(err)
	}
	events, err := all(t, c, &api.EventsRequest{Path: "/team"})
	if err != nil || len(events) != 3 {
		t.Fatalf("%d events, %v: %v", len(events), err, events)
	}
	for i, want := range []string{
		"lgpu.created gang:>a", "limit.changed lgpu.weight:100>300 host.max:max>1 GiB gang:a>b", "lgpu.removed",
	} {
		got := events[i].GetKind()
		for _, c := range events[i].GetChanges() {
			got += " " + c.GetFile() + ":" + c.GetOld() + ">" + c.GetNew()
		}
		if got != want {
			t.Errorf("event %d is %q, want %q", i, got, want)
		}
		by := events[i].GetBy()
		if by.GetUid() != uint32(os.Getuid()) || by.GetPid() != int32(os.Getpid()) || !strings.HasPrefix(by.GetCommand(), "server") ||
			!strings.Contains(events[i].GetText(), ", by user ") {
			t.Errorf("event %d is by %v: %s", i, by, events[i].GetText())
		}
	}
}

// Those who ask get what they ask for: of a time, of kinds, of a user, at a place.
func TestEventsSelected(t *testing.T) {
	c, _, _ := serve(t)
	for _, path := range []string{"/a", "/b"} {
		if _, err := c.Create(t.Context(), &api.CreateRequest{Path: path}); err != nil {
			t.Fatal(err)
		}
	}
	middle := timestamppb.Now()
	if _, err := c.Remove(t.Context(), &api.RemoveRequest{Path: "/a"}); err != nil {
		t.Fatal(err)
	}
	me, other := uint32(os.Getuid()), uint32(4242)
	for _, test := range []struct {
		r    *api.EventsRequest
		want []string
	}{
		{&api.EventsRequest{Kinds: []string{"lgpu"}}, []string{"lgpu.created /a", "lgpu.created /b", "lgpu.removed /a"}},
		{&api.EventsRequest{Kinds: []string{"lgpu.removed", "oom"}}, []string{"lgpu.removed /a"}},
		{&api.EventsRequest{Kinds: []string{"lgpu"}, Since: middle}, []string{"lgpu.removed /a"}},
		{&api.EventsRequest{Kinds: []string{"lgpu"}, Until: middle}, []string{"lgpu.created /a", "lgpu.created /b"}},
		{&api.EventsRequest{User: &me, Path: "/b"}, []string{"lgpu.created /b"}},
		{&api.EventsRequest{User: &other}, nil},
		{&api.EventsRequest{Since: timestamppb.New(time.Now().Add(time.Hour))}, nil},
		{&api.EventsRequest{Path: "/a", Kinds: []string{"oom"}}, nil}, // it was there
	} {
		events, err := all(t, c, test.r)
		var got []string
		for _, e := range events {
			got = append(got, e.GetKind()+" "+e.GetPath())
		}
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%v: %q, %v; want %q", test.r, got, err, test.want)
		}
	}
	for _, r := range []*api.EventsRequest{
		{Kinds: []string{"lgp"}}, {Kinds: []string{""}}, {Kinds: slices.Repeat([]string{"oom"}, maxKinds+1)},
		{Follow: true, Until: middle},
	} {
		if _, err := all(t, c, r); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%v: %v", r, err)
		}
	}
	for _, follow := range []bool{false, true} {
		if _, err := all(t, c, &api.EventsRequest{Path: "/nosuch", Follow: follow}); !errors.Is(err, syscall.ENOENT) {
			t.Errorf("of a path that never was: %v", err)
		}
	}
}
