package server

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/daemon/view"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/limits"
)

// Intervals of Watch.
const (
	defaultInterval = time.Second
	minInterval     = 100 * time.Millisecond
)

// Info implements api.ViewServer.
func (s *Server) Info(ctx context.Context, _ *api.InfoRequest) (*api.Info, error) {
	who, _ := callerOf(ctx) // allow has seen to it
	by := who.author()
	info := &api.Info{
		Daemon: view.Daemon(s.daemon.Info()), WhoMayChange: s.admins(), Administrator: s.rights().Trusts(by),
	}
	place, err := s.daemon.Place(by)
	info.Place = place
	info.MayChange = err == nil || s.daemon.Tree().Owns(by)
	return info, nil
}

// Snapshot implements api.ViewServer.
func (s *Server) Snapshot(ctx context.Context, _ *api.SnapshotRequest) (*api.Snapshot, error) {
	return view.Snapshot(s.look(ctx).Snapshot(s.daemon.Snapshot())), nil
}

// Energy implements api.ViewServer.
func (s *Server) Energy(ctx context.Context, r *api.EnergyRequest) (*api.EnergyPoint, error) {
	who, _ := callerOf(ctx)
	at, used, err := s.daemon.EnergyAt(ctx, r.GetAt().AsTime(), who.author().UID)
	if err != nil {
		return nil, err
	}
	return view.EnergyPoint(at, used, s.look(ctx).Snapshot(s.daemon.Snapshot())), nil
}

// Watch implements api.ViewServer.
func (s *Server) Watch(r *api.WatchRequest, stream grpc.ServerStreamingServer[api.Snapshot]) error {
	interval := time.Duration(r.GetIntervalNs())
	switch {
	case interval == 0:
		interval = defaultInterval
	case interval < minInterval:
		return refuse("interval_ns", fmt.Sprintf("%v is too short: the shortest is %v", interval, minInterval))
	}
	return s.daemon.Watch(stream.Context(), interval, func(n daemon.Snapshot) error {
		return stream.Send(view.Snapshot(s.look(stream.Context()).Snapshot(n)))
	})
}

// Slices implements api.ViewServer.
func (s *Server) Slices(r *api.SlicesRequest, stream grpc.ServerStreamingServer[api.SliceBatch]) error {
	var only *gpu.UUID
	if r.GetDevice() != "" {
		var have []gpu.Device
		for _, d := range s.daemon.Snapshot().Devices {
			have = append(have, d.Device)
		}
		chosen, err := gpu.Select(have, []string{r.GetDevice()})
		if err != nil {
			return withFailure(codes.NotFound, err.Error(), &api.Failure{Errno: int32(syscall.ENODEV), Field: "device",
				Reason: err.Error()})
		}
		only = &chosen[0].UUID
	}
	subscription := s.daemon.Slices()
	defer subscription.Close()
	known := view.NamesIn(s.daemon.Snapshot())
	for {
		turns, lost, err := subscription.Next(stream.Context())
		if err != nil {
			return err
		}
		turns, lost, _ = s.look(stream.Context()).Turns(turns, lost)
		batch := &api.SliceBatch{Lost: lost}
		for _, t := range turns {
			if only == nil || t.Device == *only {
				batch.Slices = append(batch.Slices, view.Slice(t, known))
			}
		}
		if len(batch.Slices) == 0 && lost == 0 {
			continue
		}
		if err := stream.Send(batch); err != nil {
			return err
		}
	}
}

// List implements api.ViewServer.
func (s *Server) List(ctx context.Context, r *api.ListRequest) (*api.Listing, error) {
	n, err := s.by(ctx).Directory(r.GetPath())
	if err != nil {
		return nil, err
	}
	l := &api.Listing{Children: n.Children}
	for _, f := range s.by(ctx).Files(r.GetPath()) {
		l.Files = append(l.Files, &api.File{Name: f.Name, Writable: f.Writable})
	}
	return l, nil
}

// Read implements api.ViewServer.
func (s *Server) Read(ctx context.Context, r *api.ReadRequest) (*api.Files, error) {
	by := s.by(ctx)
	if _, err := by.Directory(r.GetPath()); err != nil {
		return nil, err
	}
	writable := map[string]bool{}
	names := r.GetFiles()
	if most := len(limits.Files()); len(names) > most { // anybody may ask, and each takes a while
		return nil, refuse("files", fmt.Sprintf("%d are asked for: a group has %d", len(names), most))
	}
	for _, f := range by.Files(r.GetPath()) {
		writable[f.Name] = f.Writable
		if len(r.GetFiles()) == 0 && f.Readable {
			names = append(names, f.Name)
		}
	}
	files := &api.Files{}
	for _, name := range names {
		text, err := by.Read(r.GetPath(), name)
		if err != nil {
			return nil, err
		}
		files.Files = append(files.Files, &api.File{Name: name, Data: []byte(text), Writable: writable[name]})
	}
	return files, nil
}
