package server

import (
	"context"
	"errors"
	"io"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/policy/limits"
)

// Hold implements api.ControlServer.
func (s *Server) Hold(stream grpc.BidiStreamingServer[api.HoldRequest, api.Held]) error {
	r, err := stream.Recv()
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return err
	}
	who, _ := callerOf(stream.Context())
	if who.pid == 0 {
		return withFailure(codes.PermissionDenied,
			"the daemon cannot see the process that asks: it is in another process namespace",
			&api.Failure{Errno: int32(unix.EPERM), Hint: "run lgpu where the daemon is, or a daemon where lgpu is"})
	}
	spec := holdSpec(r)
	spec.Launcher = who.peer()
	hold, err := s.node.Hold(stream.Context(), spec)
	if err != nil {
		return err
	}
	if err := stream.Send(held(hold)); err != nil {
		return errors.Join(err, hold.Close())
	}
	left := make(chan error, 1)
	go func() {
		for {
			if _, err := stream.Recv(); err != nil {
				left <- err
				return
			}
		}
	}()
	select {
	case <-s.ending: // the hold outlives the daemon: it is taken up again with the next
		return daemon.ErrClosed
	case err := <-left:
		select {
		case <-s.ending:
			return daemon.ErrClosed
		default:
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return errors.Join(err, hold.Close())
	}
}

func (c caller) peer() daemon.Peer { return daemon.Peer{PID: c.pid, UID: c.uid, GID: c.gid} }

// Create implements api.ControlServer.
func (s *Server) Create(ctx context.Context, r *api.CreateRequest) (*api.CreateReply, error) {
	writes, err := assignments(r.GetFiles())
	if err != nil {
		return nil, err
	}
	who, _ := callerOf(ctx)
	n, err := s.node.Create(ctx, daemon.CreateSpec{Path: r.GetPath(), Sim: r.GetSim(), Writes: writes, Owner: who.peer()})
	s.log(ctx, "create", r.GetPath(), err)
	if err != nil {
		return nil, err
	}
	return &api.CreateReply{Id: n.ID}, nil
}

// Remove implements api.ControlServer.
func (s *Server) Remove(ctx context.Context, r *api.RemoveRequest) (*api.RemoveReply, error) {
	err := s.node.Remove(ctx, r.GetPath())
	s.log(ctx, "remove", r.GetPath(), err)
	if err != nil {
		return nil, err
	}
	return &api.RemoveReply{}, nil
}

// Write implements api.ControlServer.
func (s *Server) Write(ctx context.Context, r *api.WriteRequest) (*api.WriteReply, error) {
	writes, err := assignments(r.GetFiles())
	if err != nil {
		return nil, err
	}
	who, _ := callerOf(ctx)
	err = s.node.Tree().UpdateBy(who.uid, r.GetPath(), writes)
	s.log(ctx, "write", r.GetPath(), err, "files", len(writes))
	if err != nil {
		return nil, err
	}
	return &api.WriteReply{}, nil
}

// Stop implements api.ControlServer.
func (s *Server) Stop(ctx context.Context, _ *api.StopRequest) (*api.StopReply, error) {
	s.log(ctx, "stop", "", nil)
	s.options.Stop()
	return &api.StopReply{}, nil
}

// log notes who changed what.
func (s *Server) log(ctx context.Context, act, path string, err error, more ...any) {
	who, _ := callerOf(ctx)
	args := append([]any{"path", path, "uid", who.uid, "pid", who.pid}, more...)
	if err != nil {
		s.options.Log.Info(act+" refused", append(args, "error", err)...)
		return
	}
	s.options.Log.Info(act, args...)
}

// assignments are files to be written, as the tree takes them.
func assignments(files []*api.File) ([]limits.Assignment, error) {
	var writes []limits.Assignment
	for _, f := range files {
		if !utf8.Valid(f.GetData()) || strings.ContainsRune(string(f.GetData()), 0) {
			return nil, refuse(f.GetName(), f.GetName()+": what is written is no text")
		}
		writes = append(writes, limits.Assignment{File: f.GetName(), Text: string(f.GetData())})
	}
	return writes, nil
}

// holdSpec is a request to hold an lgpu, as the daemon takes it.
func holdSpec(r *api.HoldRequest) daemon.HoldSpec {
	l := r.GetLimits()
	limits := daemon.Limits{Priority: priorityName(l.GetPriority())}
	if l != nil {
		limits.MemoryMax, limits.MemoryPercent = l.MemoryMax, l.MemoryPercent
		limits.ComputeMax, limits.ComputeMin = l.ComputeMax, l.ComputeMin
		limits.Weight, limits.HostMax = l.Weight, l.HostMax
		if l.Count != nil {
			count := int(*l.Count)
			limits.Count = &count
		}
	}
	return daemon.HoldSpec{
		Path: r.GetPath(), Group: r.GetGroup(), Program: r.GetProgram(), ID: r.GetReattach(), Limits: limits,
		Devices: r.GetDevices(), Sim: r.GetSim(), Gang: r.GetGang(), Spatial: r.GetSpatial(),
	}
}
