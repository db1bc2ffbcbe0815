package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/daemon/view"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/internal/list"
	"github.com/lgpu/lgpu/policy/limits"
)

type hinted struct{ error }

func (hinted) Hint() string    { return "do this" }
func (h hinted) Unwrap() error { return h.error }

func TestFailures(t *testing.T) {
	for _, c := range []struct {
		err   error
		code  codes.Code
		errno syscall.Errno
	}{
		{&limits.Error{Errno: syscall.ERANGE, Path: "/x", File: "lgpu"}, codes.OutOfRange, syscall.ERANGE},
		{fmt.Errorf("create: %w", &limits.Error{Errno: syscall.EEXIST, Path: "/x"}), codes.AlreadyExists, syscall.EEXIST},
		{fmt.Errorf("/x: %w", daemon.ErrNotFound), codes.NotFound, syscall.ENOENT},
		{fmt.Errorf("/x: %w", daemon.ErrBusy), codes.FailedPrecondition, syscall.EBUSY},
		{hinted{fmt.Errorf("--memory: %w", daemon.ErrInvalid)}, codes.InvalidArgument, syscall.EINVAL},
		{fmt.Errorf("device 9: %w", daemon.ErrNoDevice), codes.NotFound, syscall.ENODEV},
		{daemon.ErrClosed, codes.Unavailable, 0},
		{context.Canceled, codes.Canceled, 0},
		{errors.New("odd"), codes.Unknown, 0},
		{fmt.Errorf("read: %w", syscall.EIO), codes.Internal, syscall.EIO},
	} {
		s := status.Convert(failure(c.err))
		if s.Code() != c.code || s.Message() != c.err.Error() || len(s.Details()) != 1 {
			t.Errorf("%v becomes %v", c.err, s)
			continue
		}
		f := s.Details()[0].(*api.Failure)
		if syscall.Errno(f.GetErrno()) != c.errno {
			t.Errorf("%v has errno %v", c.err, syscall.Errno(f.GetErrno()))
		}
		var h hinted
		if errors.As(c.err, &h) != (f.GetHint() == "do this") {
			t.Errorf("%v has the hint %q", c.err, f.GetHint())
		}
	}
	for _, c := range []struct {
		err            error
		field, subject string
	}{
		{&daemon.Error{Class: daemon.ErrInvalid, Field: "devices", Reason: "why"}, "devices", ""},
		{fmt.Errorf("create: %w", &limits.Error{Errno: syscall.ERANGE, Path: "/x", File: "memory.max", Reason: "why"}), "memory.max", "/x"},
		{refuse("files", "why"), "files", ""},
	} {
		f := status.Convert(failure(c.err)).Details()[0].(*api.Failure)
		if f.GetField() != c.field || f.GetSubject() != c.subject || f.GetReason() != "why" {
			t.Errorf("%v is about %v", c.err, f)
		}
	}
	if failure(nil) != nil {
		t.Error("no error is one")
	}
}

// What is shown of limits can be asked for, and is the same then.
func TestLimitsAsMessages(t *testing.T) {
	count, share, priority, set := 3, uint32(2550), limits.Latency, list.Of(1, 2, 9)
	for _, l := range []limits.Limits{
		{},
		{Count: &count, Weight: 300, Priority: &priority, ComputeMax: &share, ComputeMin: &share, MemoryMax: limits.AtMost(1 << 30),
			MemoryHigh: limits.AtMost(0)},
		{List: &set, Exclusive: true},
		{Follow: limits.FollowDefault},
	} {
		shown := view.Snapshot(daemon.Snapshot{Directories: []daemon.Directory{{Devices: []daemon.DeviceUse{{Requested: l}}}}})
		got, err := asked(&api.AttachRequest{Limits: shown.GetDirectories()[0].GetDevices()[0].GetRequested()})
		if err != nil || !reflect.DeepEqual(got.Limits, l) {
			t.Errorf("%+v becomes %+v, %v", l, got.Limits, err)
		}
	}
	zero, wrong := uint32(0), "1-"
	for field, m := range map[string]*api.Limits{
		"lgpu.weight": {LgpuWeight: &zero}, "lgpu.priority": {LgpuPriority: 99}, "lgpu": {Lgpu: &api.Units{List: &wrong}},
	} {
		_, err := asked(&api.AttachRequest{Limits: m})
		if f := status.Convert(err).Details(); err == nil || f[0].(*api.Failure).GetField() != field {
			t.Errorf("%v: %v", m, err)
		}
	}
}

// The kernel says who is at the other end.
func TestCallers(t *testing.T) {
	l, err := Listen(filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p := &peers{trusts: func(uint32) bool { return false }, limit: 1, total: 1, open: map[uint32]int{}}
	served, err := admission{l, p}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	counted, info, err := p.ServerHandshake(served)
	if err != nil {
		t.Fatal(err)
	}
	who := info.(caller)
	groups, err := unix.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	if who.pid != os.Getpid() || who.uid != uint32(os.Getuid()) || who.gid != uint32(os.Getgid()) || len(who.groups) != len(groups) {
		t.Errorf("the caller is %+v; this is process %d of %d:%d with groups %v", who, os.Getpid(), os.Getuid(), os.Getgid(), groups)
	}
	if p.open[who.uid] != 1 {
		t.Errorf("connections: %v", p.open)
	}
	// One too many is closed before anything is made for it; the next has room again.
	refused, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer refused.Close()
	accepted := make(chan net.Conn)
	go func() {
		c, _ := admission{l, p}.Accept()
		accepted <- c
	}()
	if _, err := refused.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("a connection too many: %v", err)
	}
	counted.Close()
	counted.Close()
	next, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	(<-accepted).Close()
	if len(p.open) != 0 {
		t.Errorf("connections after the end: %v", p.open)
	}
	if info, err := os.Stat(l.Addr().String()); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	if _, _, err := p.ServerHandshake(near); err == nil {
		t.Error("a connection of no socket has a caller")
	}
}

// Neither one user nor all others together keep root out.
func TestConnectionsAreBounded(t *testing.T) {
	p := &peers{trusts: trusted, limit: 2, total: 3, open: map[uint32]int{}}
	for i, c := range []struct {
		uid uint32
		in  bool
	}{{1001, true}, {1001, true}, {1001, false}, {1002, true}, {1002, false}, {0, true}, {0, true}, {0, true}, {0, true}} {
		if in := p.enter(c.uid); in != c.in {
			t.Errorf("connection %d, of user %d: %v", i, c.uid, in)
		}
	}
	p.leave(1001)
	if !p.enter(1002) {
		t.Error("no room for a user after another has gone")
	}
}

// A connection is not counted while a call holds it that a quota bounds, as long as there are not too many such.
func TestHeldConnections(t *testing.T) {
	p := &peers{trusts: trusted, limit: 1, total: 9, most: 1, open: map[uint32]int{}}
	conn := func(uid uint32) *counted {
		t.Helper()
		near, far := net.Pipe()
		t.Cleanup(func() { far.Close() })
		if !p.enter(uid) {
			t.Fatalf("no room for user %d: %+v", uid, p)
		}
		return &counted{Conn: near, who: caller{uid: uid}, peers: p}
	}
	is := func(when string, open, all, held int) {
		t.Helper()
		if p.open[1001] != open || p.all != all || p.held != held {
			t.Errorf("%s: %d, %d, %d; want %d, %d, %d", when, p.open[1001], p.all, p.held, open, all, held)
		}
	}
	a := conn(1001)
	first, second := a.hold(), a.hold()
	is("held twice", 0, 0, 1)
	first()
	is("held once", 0, 0, 1)
	b := conn(1001)
	beyond := b.hold()
	is("one more than can be held", 1, 1, 1)
	beyond()
	is("which has ended", 1, 1, 1)
	second()
	is("held no more", 2, 2, 0)
	if p.enter(1001) {
		t.Error("a connection too many")
	}
	third := a.hold()
	a.Close()
	is("closed while held", 1, 1, 1)
	third()
	is("and let go", 1, 1, 0)
	b.Close()
	b.Close()
	is("in the end", 0, 0, 0)
	root := conn(0)
	root.hold()()
	is("root's", 0, 0, 0)
	root.Close()
	if len(p.open) != 0 {
		t.Errorf("connections after the end: %v", p.open)
	}
}

// card is a machine with one GPU that nobody uses.
type card struct{}

func (card) Devices() ([]gpu.Device, error) {
	return []gpu.Device{{UUID: gpu.UUID{1}, Name: "card", Memory: 8 << 30, Units: 16}}, nil
}
func (card) Facts(gpu.UUID) (gpu.Facts, error) {
	return gpu.Facts{Utilisation: -1, MemoryUtilisation: -1}, nil
}
func (card) Describe(gpu.UUID) (gpu.Description, error) {
	return gpu.Description{}, errors.ErrUnsupported
}
func (card) Energy(gpu.UUID) (uint64, error)   { return 0, errors.ErrUnsupported }
func (card) Meter(gpu.UUID) (gpu.Meter, error) { return nil, errors.ErrUnsupported }
func (card) Close() error                      { return nil }

// serve runs a daemon of one GPU and returns a connection to it, and how to end its server.
func serve(t testing.TB) (*api.Conn, *daemon.Daemon, context.CancelFunc) {
	t.Helper()
	dir, err := os.MkdirTemp("", "server-")
	if err != nil {
		t.Fatal(err)
	}
	n, err := daemon.Open(daemon.Config{Dir: dir, Inventories: []gpu.Inventory{card{}}, Mount: daemon.MountOff, Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s, err := New(n, Options{Stop: cancel})
	if err != nil {
		t.Fatal(err)
	}
	l, err := Listen(filepath.Join(dir, api.Socket))
	if err != nil {
		t.Fatal(err)
	}
	served, ran := make(chan error, 1), make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	go func() { ran <- n.Run(ctx) }()
	conn, err := api.Dial(t.Context(), api.Options{Dir: dir, Change: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		cancel()
		if err := errors.Join(<-served, <-ran, n.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return conn, n, cancel
}

func TestCalls(t *testing.T) {
	c, _, _ := serve(t)
	ctx := t.Context()
	info, err := c.Info(ctx, &api.InfoRequest{})
	if err != nil || info.GetDaemon().GetPid() != int32(os.Getpid()) || info.GetDaemon().GetVersion() != "test" || !info.GetMayChange() {
		t.Errorf("%v, %v", info, err)
	}
	created, err := c.Create(ctx, &api.CreateRequest{Path: "/team", Files: []*api.File{{Name: "host.max", Data: []byte("1GiB\n")}}})
	if err != nil || created.GetId() == 0 {
		t.Fatalf("%v, %v", created, err)
	}
	if _, err := c.Create(ctx, &api.CreateRequest{Path: "/team"}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("again: %v", err)
	}
	if _, err := c.Create(ctx, &api.CreateRequest{Path: "/no/team"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a parent: %v", err)
	}
	if _, err := c.Create(ctx, &api.CreateRequest{Path: "/bad", Files: []*api.File{{Name: "host.max", Data: []byte("much\n")}}}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("with a bad limit: %v", err)
	}
	if _, err := c.Create(ctx, &api.CreateRequest{Path: "/team/below"}); err != nil {
		t.Error(err)
	}
	list, err := c.List(ctx, &api.ListRequest{Path: "/"})
	if err != nil || !slices.Contains(list.GetChildren(), "team") || slices.Contains(list.GetChildren(), "bad") {
		t.Errorf("the root has %v, %v", list, err)
	}
	writes := []*api.File{{Name: "host.max", Data: []byte("2GiB")}, {Name: "lgpu.weight", Data: []byte("x")}}
	if _, err := c.Write(ctx, &api.WriteRequest{Path: "/team", Files: writes}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a write with an error in it: %v", err)
	}
	files, err := c.Read(ctx, &api.ReadRequest{Path: "/team", Files: []string{"host.max"}})
	if err != nil || len(files.GetFiles()) != 1 || string(files.GetFiles()[0].GetData()) != "1073741824\n" || !files.GetFiles()[0].GetWritable() {
		t.Errorf("after it host.max is %v, %v", files, err)
	}
	all, err := c.Read(ctx, &api.ReadRequest{Path: "/team/below"})
	if err != nil || len(all.GetFiles()) < 10 {
		t.Errorf("all files are %v, %v", all, err)
	}
	many := slices.Repeat([]string{"events"}, 1000)
	if _, err := c.Read(ctx, &api.ReadRequest{Path: "/team", Files: many}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("more files than there are: %v", err)
	}
	for _, f := range all.GetFiles() {
		if f.GetName() == "lgpu.default" {
			t.Error("a file of the root's below it")
		}
	}
	for _, data := range []string{"a\x00b", "\xff\xfe"} {
		if _, err := c.Write(ctx, &api.WriteRequest{Path: "/team", Files: []*api.File{{Name: "host.max", Data: []byte(data)}}}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("writing %q: %v", data, err)
		}
	}
	long := []*api.File{{Name: "host.max", Data: make([]byte, maxRequest+1)}}
	if _, err := c.Write(ctx, &api.WriteRequest{Path: "/team", Files: long}); !errors.Is(err, syscall.E2BIG) {
		t.Errorf("a request without measure: %v", err)
	}
	if _, err := c.Remove(ctx, &api.RemoveRequest{Path: "/team"}); err == nil {
		t.Error("a group with nodes in it was removed")
	}
	s, err := c.Snapshot(ctx, &api.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	paths := []string{}
	for _, n := range s.GetDirectories() {
		paths = append(paths, n.GetPath())
	}
	if !slices.Equal(paths, []string{"/", "/team", "/team/below"}) {
		t.Errorf("nodes are %q", paths)
	}
	watch, err := c.Watch(ctx, &api.WatchRequest{IntervalNs: 1})
	if err == nil {
		_, err = watch.Recv()
	}
	if !errors.Is(err, syscall.EINVAL) {
		t.Errorf("an interval of 1 ns: %v", err)
	}
	if watch, err = c.Watch(ctx, &api.WatchRequest{}); err != nil {
		t.Fatal(err)
	}
	if s, err := watch.Recv(); err != nil || len(s.GetDirectories()) != 3 {
		t.Errorf("watching: %v, %v", s, err)
	}
	for _, p := range []string{"/team/below", "/team"} {
		if _, err := c.Remove(ctx, &api.RemoveRequest{Path: p}); err != nil {
			t.Error(err)
		}
	}
	events, err := c.Events(ctx, &api.EventsRequest{Path: "/team"})
	if err != nil {
		t.Fatal(err)
	}
	kinds := []string{}
	for last := uint64(0); ; {
		e, err := events.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e.GetNumber() <= last || e.GetTime() == nil || !strings.HasPrefix(e.GetPath(), "/team") {
			t.Errorf("event %v after number %d", e, last)
		}
		last = e.GetNumber()
		kinds = append(kinds, e.GetKind()+" "+e.GetPath())
	}
	for _, want := range []string{"lgpu.created /team", "lgpu.created /team/below", "lgpu.removed /team/below", "lgpu.removed /team"} {
		if !slices.Contains(kinds, want) {
			t.Errorf("no %q among %q", want, kinds)
		}
	}
}

// hold asks for the lgpu at path until ctx ends.
func hold(t *testing.T, ctx context.Context, c *api.Conn, path string) (api.Control_AttachClient, *api.Attachment) {
	t.Helper()
	stream, err := c.Attach(ctx)
	if err != nil {
		t.Fatal(err)
	}
	size := uint64(1 << 30)
	if err := stream.Send(&api.AttachRequest{Path: path, Program: "test", Limits: &api.Limits{MemoryMax: &size}}); err != nil {
		t.Fatal(err)
	}
	held, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return stream, held
}

// has reports whether the daemon has a directory.
func has(n *daemon.Daemon, path string) bool {
	return slices.ContainsFunc(n.Snapshot().Directories, func(s daemon.Directory) bool { return s.Path == path })
}

// A launcher's end gives its lgpu back, however it ends; the server's end does not.
func TestHolds(t *testing.T) {
	c, n, stop := serve(t)
	refused, err := c.Attach(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := refused.Send(&api.AttachRequest{Path: "/none/x"}); err != nil {
		t.Fatal(err)
	}
	if _, err := refused.Recv(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a group that is not there: %v", err)
	}

	stream, held := hold(t, t.Context(), c, "/x")
	if held.GetPath() != "/x" || held.GetId() == 0 || held.GetEnvironment()["LGPU_SOCKET"] == "" || len(held.GetDevices()) != 1 {
		t.Errorf("held is %v", held)
	}
	if !has(n, "/x") {
		t.Error("the lgpu is not there")
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("giving back ends with %v", err)
	}
	if has(n, "/x") {
		t.Error("the lgpu is there after it was given back")
	}

	ctx, die := context.WithCancel(t.Context())
	hold(t, ctx, c, "/y")
	die()
	gone := errors.New("it is removed")
	err = n.Events(t.Context(), daemon.EventRange{Follow: true}, func(events []daemon.Event) error {
		if slices.ContainsFunc(events, func(e daemon.Event) bool { return e.Kind == daemon.LgpuRemoved && e.Path == "/y" }) {
			return gone
		}
		return nil
	})
	if !errors.Is(err, gone) {
		t.Fatal(err)
	}

	stream, _ = hold(t, t.Context(), c, "/z")
	stop()
	if _, err := stream.Recv(); !errors.Is(err, syscall.ESHUTDOWN) {
		t.Errorf("the server's end is %v to a launcher", err)
	}
	if !has(n, "/z") {
		t.Error("the lgpu went with the server")
	}
}

func TestStopEndsEverything(t *testing.T) {
	c, _, _ := serve(t)
	events, err := c.Events(t.Context(), &api.EventsRequest{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := events.Recv(); err != nil { // daemon.started
		t.Fatal(err)
	}
	if _, err := c.Stop(t.Context(), &api.StopRequest{}); err != nil {
		t.Error(err)
	}
	for err == nil {
		_, err = events.Recv()
	}
	if !errors.Is(err, api.ErrGone) || !errors.Is(err, syscall.ESHUTDOWN) {
		t.Errorf("the stream ends with %v", err)
	}
}

func TestBelow(t *testing.T) {
	for _, c := range []struct {
		path, ancestor string
		want           bool
	}{{"/a/b", "/a", true}, {"/a", "/a", true}, {"/ab", "/a", false}, {"/a", "/a/b", false}, {"/a", "/", true}, {"", "", true}, {"", "/a", false}, {"", "/", true}} {
		if below(c.path, c.ancestor) != c.want {
			t.Errorf("below(%q, %q) is %v", c.path, c.ancestor, !c.want)
		}
	}
}

// No request, however odd, stops the daemon or leaves it in a state that it cannot show.
func FuzzRequests(f *testing.F) {
	seed := func(kind byte, m proto.Message) {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(kind, b)
	}
	huge, negative := uint64(math.MaxUint64), uint32(math.MaxUint32)
	seed(0, &api.AttachRequest{Path: "/a", Devices: []string{"0", "GPU-"}, Limits: &api.Limits{
		MemoryMax: &huge, ComputeMax: &negative, ComputeMin: &negative, Lgpu: &api.Units{Count: &negative}, LgpuWeight: &negative,
		LgpuPriority: 99,
	}, MemoryPart: &negative, HostMax: &huge})
	seed(0, &api.AttachRequest{Limits: &api.Limits{Lgpu: &api.Units{List: new(string), Exclusive: true}}, MemoryPart: &negative})
	seed(0, &api.AttachRequest{Group: "/../..", Program: "\x00/", Gang: "g", Spatial: true})
	seed(0, &api.AttachRequest{Path: "/", Reattach: 1})
	seed(1, &api.CreateRequest{Path: "//", Files: []*api.File{{Name: "lgpu", Data: []byte("0 count=1 list=0")}}})
	seed(1, &api.CreateRequest{Path: "/a", Sim: "1x1GiB"})
	seed(2, &api.WriteRequest{Path: "/", Files: []*api.File{{Name: "lgpu", Data: []byte("max")}, {Name: "gang", Data: []byte("x")}}})
	seed(3, &api.RemoveRequest{Path: "/a/b"})
	seed(4, &api.ReadRequest{Path: "/", Files: []string{"", "lgpu"}})
	seed(5, &api.SlicesRequest{Device: "GPU-00"})
	seed(6, &api.WatchRequest{IntervalNs: -1})
	c, _, _ := serve(f)
	f.Fuzz(func(t *testing.T, kind byte, b []byte) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		read := func(m proto.Message) { // what cannot be read would be refused before
			if proto.Unmarshal(b, m) != nil {
				t.Skip()
			}
		}
		var err error
		switch kind % 7 {
		case 0:
			r := &api.AttachRequest{}
			read(r)
			stream, openErr := c.Attach(ctx)
			if openErr != nil {
				t.Fatal(openErr)
			}
			_ = stream.Send(r) // Recv has the reason
			if _, err = stream.Recv(); err == nil {
				_ = stream.CloseSend()
				_, err = stream.Recv()
			}
		case 1:
			r := &api.CreateRequest{}
			read(r)
			if _, err = c.Create(ctx, r); err == nil {
				_, err = c.Remove(ctx, &api.RemoveRequest{Path: r.GetPath()})
			}
		case 2:
			r := &api.WriteRequest{}
			read(r)
			_, err = c.Write(ctx, r)
		case 3:
			r := &api.RemoveRequest{}
			read(r)
			_, err = c.Remove(ctx, r)
		case 4:
			r := &api.ReadRequest{}
			read(r)
			_, err = c.Read(ctx, r)
		case 5:
			r := &api.SlicesRequest{}
			read(r)
			if r.GetDevice() == "" {
				t.Skip("it would wait for a slice")
			}
			stream, openErr := c.Slices(ctx, r)
			if openErr != nil {
				t.Fatal(openErr)
			}
			if _, parseErr := gpu.ParseUUID(r.GetDevice()); parseErr != nil {
				_, err = stream.Recv()
			}
		case 6:
			r := &api.WatchRequest{}
			read(r)
			stream, openErr := c.Watch(ctx, r)
			if openErr != nil {
				t.Fatal(openErr)
			}
			_, err = stream.Recv()
		}
		if errors.Is(err, api.ErrGone) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the daemon: %v", err)
		}
		if _, err := c.Snapshot(ctx, &api.SnapshotRequest{}); err != nil {
			t.Errorf("the daemon cannot show itself: %v", err)
		}
	})
}
