package server

import (
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/daemon/view"
	"github.com/lgpu/lgpu/gpu"
)

// Release implements api.ControlServer.
func (s *Server) Release(r *api.ReleaseRequest, stream grpc.ServerStreamingServer[api.ReleaseProgress]) error {
	who, _ := callerOf(stream.Context())
	err := s.daemon.Releases.Move(stream.Context(), who.author(), r.GetPath(), r.GetBack(), func(p daemon.Release) {
		stream.Send(view.Release(p)) // who has gone is noticed by the context
	})
	s.log(stream.Context(), "release", r.GetPath(), err)
	return err
}

// Migrate implements api.ControlServer.
func (s *Server) Migrate(r *api.MigrateRequest, stream grpc.ServerStreamingServer[api.MigrateProgress]) error {
	who, _ := callerOf(stream.Context())
	err := s.daemon.Releases.Migrate(stream.Context(), who.author(), r.GetPath(), r.GetDevices(), func(m daemon.Migration) {
		stream.Send(view.Migration(m)) // likewise
	})
	s.log(stream.Context(), "migrate", r.GetPath(), err)
	return err
}

// Checkpoint implements api.ControlServer.
func (s *Server) Checkpoint(stream grpc.BidiStreamingServer[api.CheckpointRequest, api.CheckpointReply]) error {
	r, err := stream.Recv()
	if err != nil {
		return ended(err)
	}
	c, err := s.daemon.Releases.Checkpoint(r.GetPath())
	if err != nil {
		s.log(stream.Context(), "checkpoint", r.GetPath(), err)
		return err
	}
	if err = stream.Send(&api.CheckpointReply{Found: view.Found(c)}); err == nil {
		err = s.checkpoint(stream, c)
	}
	back := c.GoOn(func(p daemon.Release) {
		stream.Send(&api.CheckpointReply{Progress: view.Release(p)}) // likewise
	})
	if err == nil {
		err = back
	}
	s.log(stream.Context(), "checkpoint", r.GetPath(), err, "back", back)
	return err
}

// checkpoint takes the steps that the caller asks for, up to END or GO_ON.
func (s *Server) checkpoint(stream grpc.BidiStreamingServer[api.CheckpointRequest, api.CheckpointReply], c *daemon.Checkpoint) error {
	for left := false; ; {
		r, err := stream.Recv()
		if err != nil {
			return ended(err)
		}
		switch step := r.GetStep(); {
		case step == api.CheckpointRequest_LEAVE && !left:
			var last *api.ReleaseProgress
			err := c.Leave(stream.Context(), func(p daemon.Release) {
				if last = view.Release(p); p.Stage != "" {
					stream.Send(&api.CheckpointReply{Progress: last}) // likewise
				}
			})
			if err == nil {
				err = stream.Send(&api.CheckpointReply{Progress: last, Files: view.MemoryFiles(c.Files)})
			}
			if err != nil {
				return err
			}
			left = true
		case step == api.CheckpointRequest_GO_ON && left:
			return nil
		case step == api.CheckpointRequest_END && left:
			return c.End()
		default:
			return refuse("step", fmt.Sprintf("%v is no step now", step))
		}
	}
}

// ended is an error of a stream, unless the caller has closed it.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// Restore implements api.ControlServer.
func (s *Server) Restore(stream grpc.BidiStreamingServer[api.RestoreRequest, api.RestoreReply]) error {
	r, err := stream.Recv()
	if err != nil {
		return ended(err)
	}
	err = s.restore(stream, r)
	s.log(stream.Context(), "restore", r.GetPath(), err)
	return err
}

func (s *Server) restore(stream grpc.BidiStreamingServer[api.RestoreRequest, api.RestoreReply], r *api.RestoreRequest) error {
	pairs := map[gpu.UUID]gpu.UUID{}
	for old, to := range r.GetDevices() {
		from, err := gpu.ParseUUID(old)
		if err != nil {
			return refuse("devices", err.Error())
		}
		other, err := gpu.ParseUUID(to)
		if err != nil {
			return refuse("devices", err.Error())
		}
		pairs[from] = other
	}
	var clients []int
	for _, pid := range r.GetClients() {
		clients = append(clients, int(pid))
	}
	var files []daemon.MemoryFile
	for _, f := range r.GetFiles() {
		files = append(files, daemon.MemoryFile{Client: int(f.GetClient()), Device: int(f.GetDevice()), Disk: f.GetDisk(), Size: f.GetSize()})
	}
	who, _ := callerOf(stream.Context())
	a, err := s.daemon.Releases.Expect(who.author(), r.GetPath(), clients, pairs, files)
	if err != nil {
		return err
	}
	defer a.Close()
	if err := stream.Send(&api.RestoreReply{Files: view.MemoryFiles(a.Files)}); err != nil {
		return err
	}
	if _, err := stream.Recv(); err != nil {
		return ended(err)
	}
	return a.Enter(stream.Context(), func(p daemon.Release) { stream.Send(&api.RestoreReply{Progress: view.Release(p)}) })
}
