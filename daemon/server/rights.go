package server

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/daemon/view"
	"github.com/lgpu/lgpu/internal/users"
	"github.com/lgpu/lgpu/policy/limits"
)

// rule is who may make a call at all. What she may do by it, the tree says.
type rule int

const (
	forAdmins   rule = iota // also for calls that are not listed
	forAll                  // it shows what the caller may see
	watching                // forAll, of a call that waits, of which a user has so many
	byDirectory             // the tree's rights decide
)

// rules are those of all calls of the API.
var rules = map[string]rule{
	api.View_Info_FullMethodName:          forAll,
	api.View_Snapshot_FullMethodName:      forAll,
	api.View_Energy_FullMethodName:        forAll,
	api.View_Watch_FullMethodName:         watching,
	api.View_Events_FullMethodName:        watching,
	api.View_Slices_FullMethodName:        watching,
	api.View_List_FullMethodName:          forAll,
	api.View_Read_FullMethodName:          forAll,
	api.Control_Attach_FullMethodName:     byDirectory,
	api.Control_Create_FullMethodName:     byDirectory,
	api.Control_Remove_FullMethodName:     byDirectory,
	api.Control_Write_FullMethodName:      byDirectory,
	api.Control_Release_FullMethodName:    byDirectory,
	api.Control_Migrate_FullMethodName:    byDirectory,
	api.Control_Checkpoint_FullMethodName: forAdmins,
	api.Control_Restore_FullMethodName:    forAdmins,
	api.Control_Chown_FullMethodName:      byDirectory,
	api.Control_Page_FullMethodName:       forAll,
	api.Control_Stop_FullMethodName:       forAdmins,
}

// allow returns why the caller may not make a call.
func (s *Server) allow(ctx context.Context, method string) error {
	who, ok := callerOf(ctx)
	if !ok {
		return status.Error(codes.Unauthenticated, "the kernel does not say who calls")
	}
	if rules[method] != forAdmins || s.rights().Trusts(who.author()) {
		return nil
	}
	return withFailure(codes.PermissionDenied, fmt.Sprintf("user %s may not: it is for administrators", users.Name(who.uid)),
		&api.Failure{Errno: int32(unix.EPERM), Hint: "this daemon obeys " + s.admins()})
}

func (s *Server) rights() limits.Rights { return s.daemon.Tree().Rights() }

// author is the caller as the tree knows callers.
func (c caller) author() limits.Author {
	return limits.Author{UID: c.uid, GID: c.gid, PID: c.pid, Groups: func() []uint32 { return c.groups }}
}

// by is the tree as the caller may see and change it.
func (s *Server) by(ctx context.Context) limits.Editor {
	who, _ := callerOf(ctx)
	return s.daemon.Tree().By(who.author())
}

// look is what the caller sees now.
func (s *Server) look(ctx context.Context) view.Look {
	who, _ := callerOf(ctx)
	return view.By(s.daemon.Tree(), who.author())
}

// watch counts a call that waits, until release is called, or returns why there may be no more of the caller's.
func (s *Server) watch(ctx context.Context, method string) (release func(), err error) {
	who, _ := callerOf(ctx)
	if rules[method] != watching {
		return func() {}, nil
	}
	if s.rights().Trusts(who.author()) {
		return who.conn.hold(), nil
	}
	most := s.rights().Quota.Watches
	if !s.begin(who.uid, most) {
		return nil, withFailure(codes.ResourceExhausted, fmt.Sprintf(
			"user %s has %d calls that wait, which is all one user may have (quota.watches)", users.Name(who.uid), most),
			&api.Failure{Errno: int32(unix.EUSERS), Hint: "end some, such as lgpu top or lgpu events -f, or ask an administrator for more"})
	}
	free := who.conn.hold()
	return func() {
		free()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.watches[who.uid]--; s.watches[who.uid] == 0 {
			delete(s.watches, who.uid)
		}
	}, nil
}

// begin counts a call of a user that waits, unless she has as many as one may have.
func (s *Server) begin(uid uint32, most int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watches[uid] >= most {
		return false
	}
	s.watches[uid]++
	return true
}

// admins says in words who may do everything.
func (s *Server) admins() string {
	who := "root"
	if uid := unix.Geteuid(); uid != 0 {
		who += fmt.Sprintf(" and user %s", users.Name(uint32(uid)))
	}
	if group := s.rights().Admins; group != nil {
		return who + fmt.Sprintf(" and members of group %s", users.GroupName(*group))
	}
	return who + "; to let others, make a group lgpu, add them, and restart it"
}
