package shmem

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lgpu/lgpu/shmem/bootstrap"
	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/heap"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport"
)

func TestConfig(t *testing.T) {
	c, err := ConfigFrom([]string{"PATH=/bin", "NVSHMEM_SYMMETRIC_SIZE=2G", "NVSHMEM_MAX_TEAMS=2", "NVSHMEM_CUMEM_GRANULARITY=536870912",
		"LSHMEM_CHUNK=4M", "LSHMEM_TIMEOUT=90", "LSHMEM_HEAP_MEMORY=host", "LSHMEM_DEVICE=none", "LSHMEM_DISABLE_P2P=yes", "LSHMEM_HEAP_MAX="})
	if err != nil {
		t.Fatal(err)
	}
	if c.Symmetric != 2<<30 || c.MaxTeams != int(layout.TeamFirstOwned)+1 || c.Chunk != 4<<20 || c.Timeout != 90*time.Second ||
		c.Memory != MemoryHost || !c.NoGPU || !c.DisableP2P || c.HeapMax != 0 || len(c.Warnings) != 0 {
		t.Errorf("%+v", c)
	}
	if _, ok := c.Settings["PATH"]; ok {
		t.Error("a foreign variable became a setting")
	}
	for _, bad := range []string{"LSHMEM_CHUNK=3M", "LSHMEM_CHUNK=1M", "LSHMEM_CHUNK=lots", "LSHMEM_TIMEOUT=-1s", "LSHMEM_HEAP_MEMORY=moon",
		"LSHMEM_DEVICE=first", "LSHMEM_DISABLE_VMM=2", "LSHMEM_MAX_CTAS=0", "LSHMEM_STREAM_WAIT=spin", "LSHMEM_DEBUG=loud", "LSHMEM_AMO=best",
		"LSHMEM_NIC_HANDLER=nobody", "LSHMEM_QP_DEPTH=deep"} {
		name, value, _ := strings.Cut(bad, "=")
		if _, err := ConfigFrom([]string{bad}); Status(err) != layout.StatusArgument || !strings.Contains(err.Error(), name) && !strings.Contains(err.Error(), "chunk") {
			t.Errorf("%s=%s: %v", name, value, err)
		}
	}
	// The network's settings too, whether it is needed or not.
	if _, err := ConfigFrom([]string{"LSHMEM_QP_DEPTH=100"}); Status(err) != layout.StatusArgument || !strings.Contains(err.Error(), "queue depth 100") {
		t.Error(err)
	}
}

// TestBootstrapOptions: how long calls wait for other PEs is one setting, unless the bootstrap has its own.
func TestBootstrapOptions(t *testing.T) {
	for _, c := range []struct {
		settings []string
		want     time.Duration
	}{
		{nil, 10 * time.Minute},
		{[]string{"LSHMEM_TIMEOUT=1h"}, time.Hour},
		{[]string{"LSHMEM_TIMEOUT=0"}, bootstrap.Forever},
		{[]string{"LSHMEM_TIMEOUT=1"}, time.Minute}, // for Init; calls bring their own bound
		{[]string{"LSHMEM_TIMEOUT=1h", "LSHMEM_BOOTSTRAP_TIMEOUT=5m"}, 5 * time.Minute},
		{[]string{"LSHMEM_TIMEOUT=1h", "LSHMEM_BOOTSTRAP_TIMEOUT="}, time.Hour},
	} {
		config, err := ConfigFrom(c.settings)
		if err != nil {
			t.Fatal(err)
		}
		if o, err := config.BootstrapOptions(nil); err != nil || o.Timeout != c.want || o.JoinTimeout != 0 {
			t.Errorf("%q: %+v, %v", c.settings, o, err)
		}
	}
	config := Defaults()
	config.Settings["LSHMEM_BOOTSTRAP_HEARTBEAT"] = "often"
	if _, err := config.BootstrapOptions(nil); Status(err) != layout.StatusArgument || !strings.Contains(err.Error(), `LSHMEM_BOOTSTRAP_HEARTBEAT: "often" is not a duration`) {
		t.Error(err)
	}
	t.Setenv("LSHMEM_BOOTSTRAP_JOIN_TIMEOUT", "7")
	config = Defaults()
	if o, err := config.BootstrapOptions(nil); err != nil || o.JoinTimeout != 7*time.Second {
		t.Errorf("from the environment: %+v, %v", o, err)
	}
	one := func(name string) (string, bool) {
		v, ok := map[string]string{"LSHMEM_BOOTSTRAP_TIMEOUT": "8"}[name]
		return v, ok
	}
	if o, err := config.BootstrapOptions(one); err != nil || o.Timeout != 8*time.Second || o.JoinTimeout != 0 {
		t.Errorf("from a program's: %+v, %v", o, err)
	}
}

// TestBootstrapSettings: Init's bootstrap is the one that the settings name, not only the environment.
func TestBootstrapSettings(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	c, err := ConfigFrom([]string{"LSHMEM_DEVICE=none", "LSHMEM_PE=0", "LSHMEM_PES=2", "LSHMEM_BOOTSTRAP=tcp://" + address + "?a-token-of-the-test",
		"LSHMEM_BOOTSTRAP_JOIN_TIMEOUT=2"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Init(t.Context(), c); Status(err) != layout.StatusTimeout || !strings.Contains(err.Error(), "PE 1 of 2 did not join within") {
		t.Errorf("without PE 1: %v", err)
	}
}

func TestUnknownSettings(t *testing.T) {
	c, err := ConfigFrom([]string{"LSHMEM_HEAP_MAXX=1G", "LSHMEM_ZEBRA=1", "NVSHMEM_ZEBRA=1", "LSHMEM_QP_DEPHT=1024",
		"NVSHMEM_DEBUG=ABORT", "NVSHMEM_REMOTE_TRANSPORT=ucx"})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(c.Warnings); n < 2 || !strings.Contains(c.Warnings[0], `NVSHMEM_DEBUG="ABORT"`) || !strings.Contains(c.Warnings[1], `NVSHMEM_REMOTE_TRANSPORT="ucx"`) {
		t.Fatalf("%q", c.Warnings)
	}
	want := []string{"unknown setting LSHMEM_HEAP_MAXX; did you mean LSHMEM_HEAP_MAX?", "unknown setting LSHMEM_QP_DEPHT; did you mean LSHMEM_QP_DEPTH?",
		"unknown setting LSHMEM_ZEBRA"}
	if !slices.Equal(c.Warnings[2:], want) {
		t.Errorf("%q", c.Warnings)
	}
}

func TestVariables(t *testing.T) {
	seen := map[string]bool{}
	last := ""
	for _, v := range AllVariables() {
		if v.Name <= last || !strings.HasPrefix(v.Name, "LSHMEM_") || v.Help == "" {
			t.Errorf("%+v after %s", v, last)
		}
		last = v.Name
		for _, name := range append([]string{v.Name}, v.Aliases...) {
			if seen[name] {
				t.Errorf("%s is there twice", name)
			}
			seen[name] = true
		}
	}
}

func TestStatus(t *testing.T) {
	for _, c := range []struct {
		err    error
		status uint32
		pe     int
	}{
		{&bootstrap.LostError{PE: 3}, layout.StatusPeer, 3},
		{&bootstrap.AbortError{PE: 2}, layout.StatusPeer, 2},
		{bootstrap.ErrTimeout, layout.StatusTimeout, -1},
		{bootstrap.ErrClosed, layout.StatusState, -1},
		{heap.ErrFull, layout.StatusMemory, -1},
		{heap.ErrUnknown, layout.StatusArgument, -1},
		{&cuda.Error{Call: "cuMemCreate", Code: cuda.OutOfMemory}, layout.StatusMemory, -1},
		{&cuda.Error{Call: "cuMemCreate", Code: cuda.NotSupported}, layout.StatusSupport, -1},
		{cuda.ErrNoDriver, layout.StatusSupport, -1},
		{errors.New("something"), layout.StatusSystem, -1},
	} {
		err := wrap("call", errors.Join(errors.New("first"), c.err))
		var e *Error
		if !errors.As(err, &e) || e.Status != c.status || e.PE != c.pe || !errors.Is(err, c.err) {
			t.Errorf("%v: %+v", c.err, e)
		}
	}
	if wrap("call", nil) != nil || Status(nil) != layout.StatusOK {
		t.Error("no error is one")
	}
}

func FuzzMessage(f *testing.F) {
	r := request{op: opMalloc, bytes: 1, align: 2, offset: 3}
	f.Add(r.message(nil, [][]byte{{1, 2}, nil}))
	f.Add(r.message(errors.New("no"), nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, status, _, text, blobs, err := parseMessage(b, 2)
		if err != nil {
			if !errors.Is(err, transport.ErrBlob) {
				t.Error(err)
			}
			return
		}
		n := len(text)
		for _, blob := range blobs {
			n += 4 + len(blob)
		}
		if status == layout.StatusOK && n+messageHeader != len(b) {
			t.Errorf("%d bytes of %d", n+messageHeader, len(b))
		}
	})
}
