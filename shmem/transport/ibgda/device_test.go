package ibgda

import (
	"bytes"
	"encoding/binary"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/mlx5"
	"github.com/lgpu/lgpu/shmem/verbs/verbstest"
)

// device is lshmem.cuh as CPU code.
type device struct {
	exercise func(state unsafe.Pointer, blocks, threads uint32) int32
	put      func(state unsafe.Pointer, pe int32) int32
}

// newDevice compiles the device code.
func newDevice(t testing.TB) *device {
	t.Helper()
	path := filepath.Join(t.TempDir(), "device.so")
	out, err := exec.Command("c++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", "-I../../include", "-o", path,
		"testdata/device.cc").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	library, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		t.Fatal(err)
	}
	d := &device{}
	purego.RegisterLibFunc(&d.exercise, library, "run_exercise")
	purego.RegisterLibFunc(&d.put, library, "run_put")
	return d
}

// complete adds what the runtime gives to a state, besides the transport, and returns where device code finds it.
func (m *member) complete(t testing.TB) (unsafe.Pointer, *layout.Control) {
	t.Helper()
	b, err := m.platform.AllocateHost(64 << 10)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.platform.Free(b) })
	state, control := (*layout.State)(unsafe.Pointer(&b.Host[0])), (*layout.Control)(unsafe.Pointer(&b.Host[4096]))
	m.state.TimeoutNanos = uint64(30 * time.Second)
	m.state.Control, m.state.Self, m.state.Peers = b.Address+4096, b.Address, b.Address+8192
	*state = m.state
	return unsafe.Pointer(state), control
}

// The device code does its work over queues that this package made, whoever executes them: puts with signals, gets and
// atomics from several blocks at once, to all PEs.
func TestDeviceCode(t *testing.T) {
	d := newDevice(t)
	const pes, blocks, threads, share = 3, 3, 32, 1536
	for _, c := range []struct {
		what     string
		provider func(t *testing.T) options
		set      func(*Settings)
	}{
		{"host", nil, func(*Settings) {}},
		{"host, 2 NICs, one queue pair each", nil, func(s *Settings) { s.MaxNICs, s.QueuesPerPE = 2, 2 }},
		{"proxy", nil, func(s *Settings) { s.Handler = HandlerHost }},
		{"mlx5", func(t *testing.T) options {
			return onMLX5(t, verbstest.New(t, verbstest.Machine{NICs: 2, Ethernet: true}))
		},
			func(s *Settings) { s.MaxNICs = 2 }},
		{"mlx5, proxy", func(t *testing.T) options { return onMLX5(t, verbstest.New(t, verbstest.Machine{NICs: 1})) },
			func(s *Settings) { s.Handler, s.MaxNICs = HandlerHost, 1 }},
	} {
		t.Run(c.what, func(t *testing.T) {
			change := []options{withSettings(c.set)}
			if c.provider != nil {
				change = append(change, c.provider(t))
			}
			j := newJob(t, pes, change...)
			var wait sync.WaitGroup
			for pe, m := range j {
				pattern(m.heap[:blocks*share], pe, 0)
				state, control := m.complete(t)
				wait.Go(func() {
					if status := d.exercise(state, blocks, threads); status != 0 {
						t.Errorf("PE %d: status %d, %+v", pe, status, *control)
					}
				})
			}
			wait.Wait()
			const all = pes * blocks * threads
			for pe, m := range j {
				words := m.heap[16384:]
				if got := binary.LittleEndian.Uint64(words); got != all {
					t.Errorf("PE %d: %d additions arrived of %d", pe, got, all)
				}
				if got := binary.LittleEndian.Uint64(words[8:]); got != all<<32 {
					t.Errorf("PE %d: fetch-and-adds made %#x", pe, got)
				}
				if got := binary.LittleEndian.Uint32(words[16:]); got != 3*all {
					t.Errorf("PE %d: additions to 4 bytes made %d, expected %d", pe, got, 3*all)
				}
				for from, other := range j {
					at := from * blocks * share
					if !bytes.Equal(m.heap[32768+at:][:blocks*share], other.heap[:blocks*share]) {
						t.Errorf("PE %d: other bytes arrived from PE %d", pe, from)
					}
					if !bytes.Equal(m.heap[65536+at:][:blocks*share], m.heap[:blocks*share]) {
						t.Errorf("PE %d: other bytes came back from PE %d", pe, from)
					}
				}
			}
			// All that is ready was posted, and all that was posted is done.
			for pe, m := range j {
				list, err := m.Queues()
				if err != nil {
					t.Fatal(err)
				}
				for i, q := range list {
					if q.Reserved != q.Ready || q.Ready != q.Posted || q.Status != 0 || q.Lock != 0 {
						t.Errorf("PE %d: queue %d: reserved %d, ready %d, posted %d, status %d, lock %d", pe, i, q.Reserved, q.Ready, q.Posted, q.Status, q.Lock)
					}
				}
			}
		})
	}
	// A PE that is gone is an error that says so, at once and from then on.
	t.Run("dead peer", func(t *testing.T) {
		j := newJob(t, 2)
		state, control := j[0].complete(t)
		if status := d.put(state, 1); status != 0 {
			t.Fatalf("a put: status %d", status)
		}
		if err := j[1].Close(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if status := uint32(d.put(state, 1)); status != layout.StatusQueue {
				t.Errorf("a put to a PE that is gone: status %d", status)
			}
		}
		if control.Status != layout.StatusQueue || control.PE != 1 || uint8(control.Syndrome) != mlx5.SyndromeRetry {
			t.Errorf("%+v", *control)
		}
		if status := d.put(state, 0); status != 0 {
			t.Errorf("a put to another PE afterwards: status %d", status)
		}
	})
}
