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
	"github.com/lgpu/lgpu/daemon/view"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/limits"
)

// Attach implements api.ControlServer.
func (s *Server) Attach(stream grpc.BidiStreamingServer[api.AttachRequest, api.Attachment]) error {
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
	spec, err := attachSpec(r)
	if err != nil {
		return err
	}
	spec.Launcher, spec.Lives = who.author(), who.lives
	attachment, err := s.daemon.Attach(stream.Context(), spec)
	if err != nil {
		return err
	}
	defer who.conn.hold()()
	if err := stream.Send(view.Attachment(attachment)); err != nil {
		return errors.Join(err, attachment.Close())
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
	case <-s.ending: // the attachment outlives the daemon: the launcher attaches to the next
		return daemon.ErrClosed
	case err := <-left:
		select {
		case <-s.ending:
			return daemon.ErrClosed
		default:
		}
		refused := attachment.Refused(spec.Launcher)
		closed := attachment.Close()
		if !errors.Is(err, io.EOF) || closed != nil || refused.Count == 0 {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return errors.Join(err, closed)
		}
		return stream.Send(&api.Attachment{Refused: view.Refusals(refused)})
	}
}

// Create implements api.ControlServer.
func (s *Server) Create(ctx context.Context, r *api.CreateRequest) (*api.CreateReply, error) {
	writes, err := assignments(r.GetFiles())
	if err != nil {
		return nil, err
	}
	who, _ := callerOf(ctx)
	spec := daemon.CreateSpec{Path: r.GetPath(), Sim: r.GetSim(), Writes: writes, By: who.author()}
	for _, text := range r.GetDevices() {
		uuid, err := gpu.ParseUUID(text)
		if err != nil {
			return nil, &daemon.Error{Class: daemon.ErrInvalid, Field: "devices", Value: text, Reason: err.Error(), Cause: err}
		}
		spec.Devices = append(spec.Devices, uuid)
	}
	n, err := s.daemon.Create(ctx, spec)
	s.log(ctx, "create", r.GetPath(), err)
	if err != nil {
		return nil, err
	}
	return &api.CreateReply{Id: n.ID}, nil
}

// Remove implements api.ControlServer.
func (s *Server) Remove(ctx context.Context, r *api.RemoveRequest) (*api.RemoveReply, error) {
	who, _ := callerOf(ctx)
	err := s.daemon.Remove(ctx, who.author(), r.GetPath())
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
	err = s.by(ctx).Update(r.GetPath(), writes)
	s.log(ctx, "write", r.GetPath(), err, "files", len(writes))
	if err != nil {
		return nil, err
	}
	return &api.WriteReply{}, nil
}

// Chown implements api.ControlServer.
func (s *Server) Chown(ctx context.Context, r *api.ChownRequest) (*api.ChownReply, error) {
	n, err := s.by(ctx).Directory(r.GetPath())
	if err != nil {
		return nil, err
	}
	uid, gid := n.UID, n.GID
	if r.Uid != nil {
		uid = r.GetUid()
	}
	if r.Gid != nil {
		gid = r.GetGid()
	}
	err = s.by(ctx).Chown(r.GetPath(), uid, gid)
	s.log(ctx, "chown", r.GetPath(), err, "owner", uid, "group", gid)
	if err != nil {
		return nil, err
	}
	return &api.ChownReply{}, nil
}

// Page implements api.ControlServer.
func (s *Server) Page(ctx context.Context, _ *api.PageRequest) (*api.PageReply, error) {
	if s.options.Page == nil {
		return &api.PageReply{}, nil
	}
	who, _ := callerOf(ctx)
	return &api.PageReply{Urls: s.options.Page(who.author())}, nil
}

// Stop implements api.ControlServer.
func (s *Server) Stop(ctx context.Context, r *api.StopRequest) (*api.StopReply, error) {
	if r.GetUnused() && !s.daemon.LeaveIfUnused() {
		return nil, withFailure(codes.FailedPrecondition, "programs use its lgpus", &api.Failure{Errno: int32(unix.EBUSY)})
	}
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
			return nil, refuse(f.GetName(), "what is written is not text")
		}
		writes = append(writes, limits.Assignment{File: f.GetName(), Text: string(f.GetData())})
	}
	return writes, nil
}

// attachSpec is a request to attach, as the daemon takes it.
func attachSpec(r *api.AttachRequest) (daemon.AttachSpec, error) {
	request, err := asked(r)
	return daemon.AttachSpec{
		Path: r.GetPath(), Group: r.GetGroup(), Program: r.GetProgram(), ID: r.GetReattach(), Limits: request,
		Devices: r.GetDevices(), Sim: r.GetSim(), Gang: r.GetGang(), Spatial: r.GetSpatial(),
	}, err
}
