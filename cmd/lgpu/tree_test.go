package main

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"

	"google.golang.org/grpc"

	"github.com/lgpu/lgpu/api"
)

// tree is a daemon with a tree in which what is listed below a group may have gone when it is removed.
type tree struct {
	api.ViewClient
	api.ControlClient
	below   map[string][]string      // the names below each directory
	errors  map[string]syscall.Errno // what removing a directory fails with
	removed []string
}

func (t *tree) List(_ context.Context, r *api.ListRequest, _ ...grpc.CallOption) (*api.Listing, error) {
	if names, there := t.below[r.GetPath()]; there {
		return &api.Listing{Children: names}, nil
	}
	return nil, &api.Error{Errno: syscall.ENOENT}
}

func (t *tree) Remove(_ context.Context, r *api.RemoveRequest, _ ...grpc.CallOption) (*api.RemoveReply, error) {
	if errno := t.errors[r.GetPath()]; errno != 0 {
		return nil, &api.Error{Errno: errno}
	}
	t.removed = append(t.removed, r.GetPath())
	return &api.RemoveReply{}, nil
}

// What goes by itself while a group is being removed is no error; anything else is, and what was asked for must exist.
func TestRemove(t *testing.T) {
	below := map[string][]string{"/team": {"gone", "going", "left"}, "/team/going": nil, "/team/left": nil}
	for name, c := range map[string]struct {
		path    string
		errors  map[string]syscall.Errno
		want    syscall.Errno
		removed []string
	}{
		"gone":  {"/team", map[string]syscall.Errno{"/team/going": syscall.ENOENT}, 0, []string{"/team/left", "/team"}},
		"busy":  {"/team", map[string]syscall.Errno{"/team/going": syscall.EBUSY}, syscall.EBUSY, nil},
		"never": {"/none", nil, syscall.ENOENT, nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := &tree{below: below, errors: c.errors}
			err := remove(t.Context(), &api.Conn{ViewClient: d, ControlClient: d}, c.path, true)
			if (c.want == 0) != (err == nil) || c.want != 0 && !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
			if !slices.Equal(d.removed, c.removed) {
				t.Errorf("removed %q, want %q", d.removed, c.removed)
			}
		})
	}
}
