package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/lgpu/lgpu/api"
)

// mover is a daemon whose lgpus go from one state to the next each time that somebody looks.
type mover struct {
	api.ViewClient
	api.ControlClient
	states []*api.Snapshot // the first is there before anything is written, the last stays

	mu      sync.Mutex
	looked  int
	written []string
	refuse  syscall.Errno
}

func (m *mover) Snapshot(ctx context.Context, _ *api.SnapshotRequest, _ ...grpc.CallOption) (*api.Snapshot, error) {
	m.mu.Lock()
	m.looked++
	at := m.looked - 1
	m.mu.Unlock()
	if at < len(m.states) {
		return m.states[at], nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (m *mover) List(_ context.Context, r *api.ListRequest, _ ...grpc.CallOption) (*api.Listing, error) {
	for _, n := range m.states[0].GetDirectories() {
		if n.GetPath() == r.GetPath() {
			return &api.Listing{}, nil
		}
	}
	return nil, &api.Error{Errno: syscall.ENOENT, Text: r.GetPath() + ": there is no such group or lgpu"}
}

func (m *mover) Write(_ context.Context, r *api.WriteRequest, _ ...grpc.CallOption) (*api.WriteReply, error) {
	if m.refuse != 0 {
		return nil, &api.Error{Errno: m.refuse, Text: "not yours"}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range r.GetFiles() {
		m.written = append(m.written, r.GetPath()+" "+f.GetName()+"="+string(f.GetData()))
	}
	return &api.WriteReply{}, nil
}

// memory is a state with a group, two lgpus in it and one that takes no part.
func memory(state api.State, evicted uint64, why string, suspended ...string) *api.Snapshot {
	const all = 16 << 30
	s := &api.Snapshot{Directories: []*api.Directory{{Path: "/", Id: 1}, {Path: "/team", Id: 2}}}
	for i, p := range []string{"/plain", "/team/a", "/team/b"} {
		n := &api.Directory{Path: p, Id: uint64(10 + i), Kind: api.Directory_LGPU}
		d := &api.DeviceUse{Uuid: "GPU-11111111-0000", MemoryUsed: all, State: api.State_RUNNING}
		if p != "/plain" {
			resident := all - evicted
			d.MemoryResident, d.MemoryEvicted, d.State, d.ResidenceFailure = &resident, &evicted, state, why
			n.MemoryOvercommit = true
		}
		n.Devices = []*api.DeviceUse{d}
		s.Directories = append(s.Directories, n)
	}
	for _, n := range s.GetDirectories() {
		n.MemorySuspend = slices.Contains(suspended, n.GetPath())
	}
	return s
}

// try runs a command against a daemon and returns what it prints and fails with.
func (m *mover) try(t *testing.T, v *move, args ...string) (out, said string, err error) {
	t.Helper()
	c := root()
	var stdout, stderr bytes.Buffer
	c.SetOut(&stdout)
	c.SetErr(&stderr)
	c.SetContext(t.Context())
	if v.timeout == 0 {
		v.timeout = time.Hour
	}
	m.looked = 0
	err = v.run(c, &api.Conn{ViewClient: m, ControlClient: m}, args)
	return stdout.String(), stderr.String(), err
}

const most = 15 << 30 // of 16 GiB can be moved

func TestSuspend(t *testing.T) {
	m := &mover{states: []*api.Snapshot{
		memory(api.State_RUNNING, 0, ""), memory(api.State_SUSPENDING, 0, ""), memory(api.State_SUSPENDING, most, ""),
		memory(api.State_SUSPENDED, most, "", "/team"),
	}}
	out, said, err := m.try(t, &move{}, "team", "/team/a", "/team")
	if err != nil || said != "" {
		t.Errorf("%v, said %q", err, said)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "suspended /team: 30 GiB in 0.0 s, ") ||
		!strings.HasPrefix(lines[1], "suspended /team/a: 15 GiB in ") || !strings.HasSuffix(lines[1], "/s") {
		t.Errorf("%q", lines)
	}
	if want := []string{"/team memory.suspend=1\n", "/team/a memory.suspend=1\n"}; !slices.Equal(m.written, want) {
		t.Errorf("wrote %q", m.written)
	}

	// What is suspended already is so at once.
	m = &mover{states: []*api.Snapshot{memory(api.State_SUSPENDED, most, ""), memory(api.State_SUSPENDED, most, "")}}
	if out, _, err := m.try(t, &move{}, "/team/a"); err != nil || out != "suspended /team/a: nothing had to be moved\n" {
		t.Errorf("%q, %v", out, err)
	}
}

func TestResume(t *testing.T) {
	m := &mover{states: []*api.Snapshot{
		memory(api.State_SUSPENDED, most, "", "/team"), memory(api.State_SUSPENDED, most, ""), memory(api.State_WAITING, most/2, ""),
		memory(api.State_RUNNING, 0, ""),
	}}
	out, _, err := m.try(t, &move{resume: true, json: true}, "/team")
	var got struct {
		Version int
		Results []moved
	}
	if err != nil || json.Unmarshal([]byte(out), &got) != nil || got.Version != 1 || len(got.Results) != 1 {
		t.Fatalf("%v in %s", err, out)
	}
	if r := got.Results[0]; r.Path != "/team" || r.State != "resumed" || r.LGPUs != 2 || r.Bytes != 2*most || r.Left != 0 || r.Failures == nil {
		t.Errorf("%+v", r)
	}
	if want := []string{"/team memory.suspend=0\n"}; !slices.Equal(m.written, want) {
		t.Errorf("wrote %q", m.written)
	}

	// One below that has been suspended by itself is left so.
	m.states = []*api.Snapshot{memory(api.State_SUSPENDED, most, ""), memory(api.State_SUSPENDED, most, "", "/team/a", "/team/b")}
	if out, _, err := m.try(t, &move{resume: true}, "/team"); err != nil || out != "resumed /team: nothing had to be moved\n" {
		t.Errorf("%q, %v", out, err)
	}
	// What was back, and has made room for others before anybody looked, has been resumed. What asks for its memory has not.
	m.states = []*api.Snapshot{memory(api.State_SUSPENDED, most, ""), memory(api.State_WAITING, most, ""), memory(api.State_EVICTED, most/2, "")}
	if out, _, err := m.try(t, &move{resume: true}, "/team"); err != nil || !strings.HasSuffix(out, "; 15 GiB made room for others\n") {
		t.Errorf("%q, %v", out, err)
	}
	// One in a group that is suspended stays so, and it is said.
	m.states = []*api.Snapshot{memory(api.State_SUSPENDED, most, ""), memory(api.State_SUSPENDED, most, "", "/team")}
	_, _, err = m.try(t, &move{resume: true}, "/team/a")
	if e := exitOf(t, err); e.status != statusFailed || e.hint != "lgpu resume /team" || !strings.Contains(e.Error(), "/team/a: it stays suspended, since /team is") {
		t.Errorf("%+v", e)
	}
}

// What does not come to an end is said with its reason, the wish stays, and a hint says how to take it back.
func TestSuspendTakesTooLong(t *testing.T) {
	const why = "a kernel does not end"
	m := &mover{states: []*api.Snapshot{
		memory(api.State_RUNNING, 0, ""), memory(api.State_SUSPENDING, 0, ""), memory(api.State_SUSPENDING, 0, why), memory(api.State_SUSPENDING, 0, why),
	}}
	out, said, err := m.try(t, &move{timeout: 50 * time.Millisecond}, "/team/a")
	e := exitOf(t, err)
	if e.status != statusFailed || e.Error() != "suspend /team/a: not done after 50ms: /team/a on GPU-11111111: "+why ||
		e.hint != "it goes on; to take it back: lgpu resume /team/a" {
		t.Errorf("%v, hint %q", e, e.hint)
	}
	if out != "" || said != "lgpu: /team/a on GPU-11111111: "+why+"\n" {
		t.Errorf("%q, said %q", out, said)
	}
	m.states = m.states[:2] // no reason is known
	_, _, err = m.try(t, &move{timeout: 50 * time.Millisecond}, "/team/a")
	if e := exitOf(t, err); !strings.HasSuffix(e.Error(), ": 16 GiB of /team/a are still on the device") {
		t.Error(e)
	}

	// Somebody who will not wait: Ctrl-C ends the context.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	v := &move{}
	e = exitOf(t, v.verdict(ctx, &waiter{move: v, paths: []string{"/team/a"}}))
	if e.status != 130 || e.hint != "it goes on; to take it back: lgpu resume /team/a" || m.written[0] != "/team/a memory.suspend=1\n" {
		t.Errorf("%+v, wrote %q", e, m.written)
	}
}

// Nothing is written unless all names can be suspended.
func TestSuspendRefused(t *testing.T) {
	for name, c := range map[string]struct {
		resume bool
		args   []string
		refuse syscall.Errno
		status int
		text   string
		hint   string
	}{
		"unknown":  {args: []string{"/team/a", "/taem"}, status: statusUsage, text: "/taem: there is no such", hint: "did you mean /team?"},
		"far":      {args: []string{"/something"}, status: statusUsage, text: "no such", hint: "lgpu ps --tree shows what there is"},
		"plain":    {args: []string{"/plain"}, status: statusUsage, text: "suspend /plain: its memory cannot leave", hint: "--overcommit"},
		"stranger": {args: []string{"/team/a"}, refuse: syscall.EPERM, status: statusFailed, text: "not yours"},
	} {
		t.Run(name, func(t *testing.T) {
			m := &mover{states: []*api.Snapshot{memory(api.State_RUNNING, 0, "")}, refuse: c.refuse}
			_, _, err := m.try(t, &move{resume: c.resume}, c.args...)
			err = explain(err)
			if e := exitOf(t, err); e.status != c.status || !strings.Contains(e.Error(), c.text) || !strings.Contains(e.hint, c.hint) {
				t.Errorf("status %d, %v, hint %q", e.status, e, e.hint)
			}
			if len(m.written) > 0 {
				t.Errorf("wrote %q", m.written)
			}
		})
	}
}

func exitOf(t *testing.T, err error) *exit {
	t.Helper()
	var e *exit
	if !errors.As(err, &e) {
		t.Fatalf("%v", err)
	}
	return e
}

// A daemon that ends is waited for, as far as there is time.
func TestSuspendAcrossDaemons(t *testing.T) {
	v := &move{}
	w := &waiter{move: v, paths: []string{"/a"}, out: io.Discard}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	gone := &leaver{}
	if err := w.until(ctx, &api.Conn{ViewClient: gone, Socket: filepath.Join(t.TempDir(), "none")}); err != nil {
		t.Error(err)
	}
	if gone.looked != 1 {
		t.Errorf("looked %d times", gone.looked)
	}
}

// leaver is a daemon that ends when it is looked at.
type leaver struct {
	api.ViewClient
	looked int
}

func (l *leaver) Snapshot(context.Context, *api.SnapshotRequest, ...grpc.CallOption) (*api.Snapshot, error) {
	l.looked++
	return nil, api.ErrGone
}

func TestOvercommitOption(t *testing.T) {
	for name, c := range map[string]struct {
		args        []string
		environment string
		want        bool
		text        string
	}{
		"none":        {},
		"asked":       {args: []string{"--overcommit"}, want: true},
		"HAMi":        {environment: "true", want: true},
		"HAMi not":    {environment: "false"},
		"not":         {args: []string{"--overcommit=false"}, environment: "true"},
		"spatial":     {args: []string{"--overcommit", "--spatial"}, text: "--overcommit: with --spatial"},
		"HAMi in MPS": {args: []string{"--spatial"}, environment: "true"},
		"strict":      {args: []string{"--overcommit", "--strict"}, want: true},
		"strict HAMi": {args: []string{"--strict"}, environment: "true", want: true},
		"strict only": {args: []string{"--strict"}, text: "--strict: without --overcommit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(oversubscribe, c.environment)
			var r run
			flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
			r.register(flags)
			if err := flags.Parse(c.args); err != nil {
				t.Fatal(err)
			}
			request, err := r.request()
			if (err != nil) != (c.text != "") || err != nil && !strings.Contains(err.Error(), c.text) || request.GetMemoryOvercommit() != c.want {
				t.Errorf("%v, %v", request, err)
			}
		})
	}
}
