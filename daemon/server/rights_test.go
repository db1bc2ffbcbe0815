package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/limits"
)

// Users of the tests: no user of the machine has these numbers.
// last reads a stream to its end, unless it could not be begun, and returns why it ended: nil if it was not refused.
func last[T any](stream interface{ Recv() (*T, error) }, err error) error {
	for err == nil {
		_, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

const (
	stranger   = 424201
	owner      = 424202
	adminUser  = 424203
	adminGroup = 424270
)

// disguise is a listener whose connections are somebody's, whoever opens them.
type disguise struct {
	net.Listener
	who caller
}

func (d disguise) Accept() (net.Conn, error) {
	c, err := d.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return admitted(c, d.who), nil
}

// admitted is a connection of somebody whom nothing bounds.
func admitted(c net.Conn, who caller) *counted {
	p := &peers{trusts: func(uint32) bool { return true }, open: map[uint32]int{}}
	p.enter(who.uid)
	return &counted{Conn: c, who: who, peers: p}
}

// many is a daemon with connections of several users.
type many struct {
	*daemon.Daemon
	server *Server
	dir    string
	t      *testing.T
}

func serveMany(t *testing.T, c daemon.Config) *many {
	t.Helper()
	dir, err := os.MkdirTemp("", "server-")
	if err != nil {
		t.Fatal(err)
	}
	group := uint32(adminGroup)
	c.Dir, c.Inventories, c.Mount, c.Rights.Admins = dir, []gpu.Inventory{card{}}, daemon.MountOff, &group
	n, err := daemon.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s, err := New(n, Options{Page: func(a limits.Author) []string { return []string{fmt.Sprint(a.UID)} }})
	if err != nil {
		t.Fatal(err)
	}
	ran := make(chan error, 1)
	go func() { ran <- n.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		s.stop()
		if err := errors.Join(<-ran, n.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return &many{n, s, dir, t}
}

// as returns a connection of a user.
func (m *many) as(uid uint32, groups ...uint32) *api.Conn {
	m.t.Helper()
	path := filepath.Join(m.dir, fmt.Sprintf("%d.sock", uid))
	l, err := net.Listen("unix", path)
	if err != nil {
		m.t.Fatal(err)
	}
	who := caller{pid: os.Getpid(), uid: uid, gid: uid, groups: groups}
	go m.server.grpc.Serve(disguise{l, who})
	c, err := api.Dial(m.t.Context(), api.Options{Socket: path})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { c.Close() })
	return c
}

// first ends a stream after its first message.
func first[T any](ctx context.Context, open func(context.Context) (grpc.ServerStreamingClient[T], error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := open(ctx)
	if err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}

// runIn attaches to an lgpu and leaves it.
func runIn(ctx context.Context, c *api.Conn, r *api.AttachRequest) (string, error) {
	stream, err := c.Attach(ctx)
	if err != nil {
		return "", err
	}
	if err := stream.Send(r); err != nil {
		return "", err
	}
	a, err := stream.Recv()
	if err != nil {
		return "", err
	}
	if err := stream.CloseSend(); err != nil {
		return "", err
	}
	_, _ = stream.Recv() // its end
	return a.GetPath(), nil
}

// Each call of the API, by somebody who owns nothing, by the owner of /mine, and by an administrator. Calls that act on a
// directory act on /mine/x.
func TestEveryCall(t *testing.T) {
	refused := fs.ErrPermission
	for method, c := range map[string]struct {
		call                   func(context.Context, *api.Conn) error
		stranger, owner, admin error
	}{
		api.View_Info_FullMethodName: {call: func(ctx context.Context, c *api.Conn) error {
			_, err := c.Info(ctx, &api.InfoRequest{})
			return err
		}},
		api.View_Snapshot_FullMethodName: {call: func(ctx context.Context, c *api.Conn) error {
			_, err := c.Snapshot(ctx, &api.SnapshotRequest{})
			return err
		}},
		api.View_Energy_FullMethodName: {call: func(ctx context.Context, c *api.Conn) error {
			_, err := c.Energy(ctx, &api.EnergyRequest{At: timestamppb.Now()})
			if errors.Is(err, fs.ErrNotExist) { // a new daemon has no history yet
				return nil
			}
			return err
		}},
		api.View_Watch_FullMethodName: {call: func(ctx context.Context, c *api.Conn) error {
			return first(ctx, func(ctx context.Context) (grpc.ServerStreamingClient[api.Snapshot], error) {
				return c.Watch(ctx, &api.WatchRequest{})
			})
		}},
		api.View_Events_FullMethodName: {call: func(ctx context.Context, c *api.Conn) error {
			return first(ctx, func(ctx context.Context) (grpc.ServerStreamingClient[api.Event], error) {
				return c.Events(ctx, &api.EventsRequest{})
			})
		}},
		api.View_Slices_FullMethodName: {call: func(ctx context.Context, c *api.Conn) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			_, err := c.Slices(ctx, &api.SlicesRequest{}) // there are none
			return err
		}},
		api.View_List_FullMethodName: {call: func(ctx context.Context, c *api.Conn) error {
			_, err := c.List(ctx, &api.ListRequest{Path: "/mine/x"})
			return err
		}},
		api.View_Read_FullMethodName: {call: func(ctx context.Context, c *api.Conn) error {
			_, err := c.Read(ctx, &api.ReadRequest{Path: "/mine/x"})
			return err
		}},
		api.Control_Attach_FullMethodName: {stranger: refused, call: func(ctx context.Context, c *api.Conn) error {
			_, err := runIn(ctx, c, &api.AttachRequest{Path: "/mine/x"})
			return err
		}},
		api.Control_Create_FullMethodName: {stranger: refused, call: func(ctx context.Context, c *api.Conn) error {
			_, err := c.Create(ctx, &api.CreateRequest{Path: "/mine/new"})
			return err
		}},
		api.Control_Remove_FullMethodName: {stranger: refused, call: func(ctx context.Context, c *api.Conn) error {
			_, err := c.Remove(ctx, &api.RemoveRequest{Path: "/mine/x"})
			return err
		}},
		api.Control_Write_FullMethodName: {stranger: refused, call: func(ctx context.Context, c *api.Conn) error {
			_, err := c.Write(ctx, &api.WriteRequest{Path: "/mine/x", Files: []*api.File{{Name: "memory.max", Data: []byte("1GiB")}}})
			return err
		}},
		api.Control_Release_FullMethodName: {stranger: refused, call: func(ctx context.Context, c *api.Conn) error {
			stream, err := c.Release(ctx, &api.ReleaseRequest{Path: "/mine/x", Back: true})
			return last(stream, err)
		}},
		api.Control_Migrate_FullMethodName: {stranger: refused, owner: syscall.EINVAL, admin: syscall.EINVAL, call: func(ctx context.Context, c *api.Conn) error {
			stream, err := c.Migrate(ctx, &api.MigrateRequest{Path: "/mine/x", Devices: []string{"0"}})
			return last(stream, err)
		}},
		api.Control_Checkpoint_FullMethodName: {stranger: refused, owner: refused, call: func(ctx context.Context, c *api.Conn) error {
			stream, err := c.Checkpoint(ctx)
			if err == nil {
				err = stream.CloseSend()
			}
			return last(stream, err)
		}},
		api.Control_Restore_FullMethodName: {stranger: refused, owner: refused, call: func(ctx context.Context, c *api.Conn) error {
			stream, err := c.Restore(ctx)
			if err == nil {
				err = stream.CloseSend()
			}
			return last(stream, err)
		}},
		api.Control_Chown_FullMethodName: {stranger: refused, owner: refused, call: func(ctx context.Context, c *api.Conn) error {
			uid := uint32(stranger)
			_, err := c.Chown(ctx, &api.ChownRequest{Path: "/mine/x", Uid: &uid})
			return err
		}},
		api.Control_Page_FullMethodName: {call: func(ctx context.Context, c *api.Conn) error {
			_, err := c.Page(ctx, &api.PageRequest{})
			return err
		}},
		api.Control_Stop_FullMethodName: {stranger: refused, owner: refused, call: func(ctx context.Context, c *api.Conn) error {
			_, err := c.Stop(ctx, &api.StopRequest{})
			return err
		}},
	} {
		t.Run(strings.ReplaceAll(method, "/", " "), func(t *testing.T) {
			if _, listed := rules[method]; !listed {
				t.Error("it has no rule")
			}
			m := serveMany(t, daemon.Config{})
			for _, path := range []string{"/mine", "/mine/x"} {
				if err := m.Tree().Mkdir(path, owner, 0); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.call(t.Context(), m.as(stranger, 1, 2)); !errors.Is(err, c.stranger) || c.stranger == nil && err != nil {
				t.Errorf("a stranger: %v", err)
			}
			if err := c.call(t.Context(), m.as(owner)); !errors.Is(err, c.owner) || c.owner == nil && err != nil {
				t.Errorf("the owner: %v", err)
			}
			if method == api.Control_Create_FullMethodName || method == api.Control_Remove_FullMethodName {
				return // it is done
			}
			if err := c.call(t.Context(), m.as(adminUser, adminGroup)); !errors.Is(err, c.admin) || c.admin == nil && err != nil {
				t.Errorf("an administrator: %v", err)
			}
		})
	}
	all := 0
	for _, d := range []grpc.ServiceDesc{api.View_ServiceDesc, api.Control_ServiceDesc} {
		for _, m := range d.Methods {
			if _, listed := rules["/"+d.ServiceName+"/"+m.MethodName]; !listed {
				t.Errorf("%s has no rule, and this test no case", m.MethodName)
			}
			all++
		}
		for _, m := range d.Streams {
			if _, listed := rules["/"+d.ServiceName+"/"+m.StreamName]; !listed {
				t.Errorf("%s has no rule, and this test no case", m.StreamName)
			}
			all++
		}
	}
	if all != 19 || len(rules) != all {
		t.Errorf("there are %d calls and %d rules", all, len(rules))
	}
	if err := (&Server{}).allow(context.Background(), api.View_Info_FullMethodName); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a caller that the kernel does not know: %v", err)
	}
}

// Who says nothing of where has her place, with the limits of the administrator, which she cannot change; and no other's.
func TestPlaces(t *testing.T) {
	m := serveMany(t, daemon.Config{Places: daemon.Places{Limits: map[string]string{"memory.max": "2GiB", "host.max": "1GiB"}}})
	c, other := m.as(owner), m.as(stranger)
	place := fmt.Sprintf("/users/%d", owner)
	if c.Place != place || c.Administrator {
		t.Fatalf("the place is %q", c.Place)
	}
	path, err := runIn(t.Context(), c, &api.AttachRequest{Program: "train"})
	if err != nil || !strings.HasPrefix(path, place+"/train-") {
		t.Fatalf("%q, %v", path, err)
	}
	dir, err := m.Tree().Directory(place)
	if err != nil || dir.UID != owner || dir.HostMax != limits.AtMost(1<<30) || dir.Devices[0].OwnMemoryMax != limits.AtMost(2<<30) {
		t.Errorf("%+v, %v", dir, err)
	}
	if p := dir.Requests[0].Priority; p == nil || *p != limits.Normal {
		t.Errorf("priority %v", p)
	}
	high := []*api.File{{Name: "lgpu.priority", Data: []byte("latency")}}
	if _, err := c.Create(t.Context(), &api.CreateRequest{Path: place + "/x", Files: high}); err != nil {
		t.Error(err)
	}
	if x, err := m.Tree().Directory(place + "/x"); err != nil || x.Devices[0].Priority != limits.Normal {
		t.Errorf("her lgpu goes before others: %+v, %v", x, err)
	}
	if _, err := c.Write(t.Context(), &api.WriteRequest{Path: place, Files: high}); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("her own limits: %v", err)
	}
	for _, r := range []*api.AttachRequest{{Group: place, Program: "x"}, {Path: place + "/x"}, {Group: "/", Program: "x"}} {
		if _, err := runIn(t.Context(), other, r); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%v by another: %v", r, err)
		}
	}
	if path, err := runIn(t.Context(), m.as(adminUser, adminGroup), &api.AttachRequest{Program: "a"}); err != nil || !strings.HasPrefix(path, "/a-") {
		t.Errorf("an administrator: %q, %v", path, err)
	}
}

// Where the administrator lets nobody in by himself, users have what they were given.
func TestRefused(t *testing.T) {
	m := serveMany(t, daemon.Config{Places: daemon.Places{Refuse: true}})
	c := m.as(owner)
	_, err := runIn(t.Context(), c, &api.AttachRequest{Program: "x"})
	var e *api.Error
	if !errors.As(err, &e) || e.Errno != syscall.EPERM || !strings.Contains(e.Hint, "administrator") {
		t.Errorf("%v", err)
	}
	if info, err := c.Info(t.Context(), &api.InfoRequest{}); err != nil || info.GetMayChange() || info.GetPlace() != "" {
		t.Errorf("%v, %v", info, err)
	}
	if err := m.Tree().Mkdir("/given", owner, 0); err != nil {
		t.Fatal(err)
	}
	if info, err := c.Info(t.Context(), &api.InfoRequest{}); err != nil || !info.GetMayChange() {
		t.Errorf("%v, %v", info, err)
	}
	if _, err := runIn(t.Context(), c, &api.AttachRequest{Group: "/given", Program: "x"}); err != nil {
		t.Error(err)
	}
}

// A user has so many processes and calls that wait, and no more.
func TestQuotasOfCalls(t *testing.T) {
	m := serveMany(t, daemon.Config{Rights: limits.Rights{Quota: limits.Quota{Processes: 1, Watches: 1}}})
	c := m.as(owner)
	held, _ := hold(t, t.Context(), c, c.Place+"/a")
	_, err := runIn(t.Context(), c, &api.AttachRequest{Program: "x"})
	if !errors.Is(err, syscall.EUSERS) || !strings.Contains(err.Error(), "quota.processes") {
		t.Errorf("one process more: %v", err)
	}
	if err := held.CloseSend(); err != nil {
		t.Fatal(err)
	}
	watch, err := c.Watch(t.Context(), &api.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	second := func(ctx context.Context) (grpc.ServerStreamingClient[api.Event], error) {
		return c.Events(ctx, &api.EventsRequest{Follow: true})
	}
	if err := first(t.Context(), second); !errors.Is(err, syscall.EUSERS) || !strings.Contains(err.Error(), "quota.watches") {
		t.Errorf("one more that waits: %v", err)
	}
	admin := m.as(adminUser, adminGroup)
	for range 3 {
		w, err := admin.Watch(t.Context(), &api.WatchRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Recv(); err != nil {
			t.Error(err)
		}
	}
}

// Who asks many times at once gets no more than who asks one by one.
func TestQuotaOfProcessesHasNoRace(t *testing.T) {
	const most = 2
	m := serveMany(t, daemon.Config{Rights: limits.Rights{Quota: limits.Quota{Processes: most}}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := m.as(owner)
	var asking sync.WaitGroup
	var attached atomic.Int32
	for i := range maxStreams {
		asking.Go(func() {
			stream, err := c.Attach(ctx)
			if err == nil {
				err = stream.Send(&api.AttachRequest{Program: fmt.Sprint("p", i)})
			}
			if err == nil {
				_, err = stream.Recv()
			}
			switch {
			case err == nil:
				attached.Add(1)
			case !errors.Is(err, syscall.EUSERS):
				t.Error(err)
			}
		})
	}
	asking.Wait()
	if n := attached.Load(); n != most {
		t.Errorf("%d processes keep lgpus, %d may", n, most)
	}
}

// awaitStart waits for the event that says that the daemon has started, which may come after its first answers.
func awaitStart(t *testing.T, c *api.Conn) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	stream, err := c.Events(ctx, &api.EventsRequest{Follow: true})
	for err == nil {
		var e *api.Event
		if e, err = stream.Recv(); err == nil && e.GetKind() == string(daemon.DaemonStarted) {
			return
		}
	}
	t.Fatal(err)
}

// Users see of each other what the administrator allows, in every call.
func TestOthersAreHidden(t *testing.T) {
	for _, others := range []limits.Others{limits.OthersTotals, limits.OthersNone} {
		m := serveMany(t, daemon.Config{Rights: limits.Rights{Others: others}})
		c, other, admin := m.as(owner), m.as(stranger), m.as(adminUser, adminGroup)
		_, held := hold(t, t.Context(), c, c.Place+"/secret")
		paths := func(c *api.Conn) (all []string) {
			s, err := c.Snapshot(t.Context(), &api.SnapshotRequest{})
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range s.GetDirectories() {
				all = append(all, d.GetPath())
			}
			return all
		}
		if got := paths(other); !slices.Equal(got, []string{"/"}) {
			t.Errorf("%s: another sees %q", others, got)
		}
		want := []string{"/", "/users", c.Place, held.GetPath()}
		if got := paths(c); !slices.Equal(got, want) {
			t.Errorf("%s: the owner sees %q", others, got)
		}
		if got := paths(admin); !slices.Equal(got, want) {
			t.Errorf("%s: an administrator sees %q", others, got)
		}
		if _, err := other.Read(t.Context(), &api.ReadRequest{Path: held.GetPath()}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: read: %v", others, err)
		}
		if l, err := other.List(t.Context(), &api.ListRequest{Path: "/"}); err != nil || len(l.GetChildren()) > 0 {
			t.Errorf("%s: list: %v, %v", others, l, err)
		}
		_, err := other.Read(t.Context(), &api.ReadRequest{Path: "/", Files: []string{"memory.current"}})
		if (others == limits.OthersTotals) != (err == nil) || err != nil && !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s: the totals: %v", others, err)
		}
		events := func(c *api.Conn) (about []string) {
			stream, err := c.Events(t.Context(), &api.EventsRequest{})
			if err != nil {
				t.Fatal(err)
			}
			for {
				e, err := stream.Recv()
				if err != nil {
					return about
				}
				about = append(about, e.GetPath())
				if (e.GetNumber() != 0) != (c == admin) {
					t.Errorf("%s: an event has the number %d", others, e.GetNumber())
				}
			}
		}
		awaitStart(t, admin)
		if got := events(other); slices.Contains(got, held.GetPath()) || len(got) == 0 {
			t.Errorf("%s: another hears of %q", others, got)
		}
		for _, c := range []*api.Conn{c, admin} {
			if got := events(c); !slices.Contains(got, held.GetPath()) {
				t.Errorf("%s: the owner or an administrator hears of %q", others, got)
			}
		}
	}
}
