package shmem

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lgpu/lgpu/shmem/bootstrap"
	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/sim"
	"github.com/lgpu/lgpu/sim/simtest"
	"github.com/lgpu/lgpu/sim/wire"
)

// A test that needs a GPU runs in processes of their own, since a process has one driver: the test binary again, with
// the name of a role.
const roleVariable = "SHMEM_TEST_ROLE"

// roles are what a PE's process does. Those of alone start PEs themselves.
var (
	roles = map[string]func(p *PE) error{
		"operations": exerciseOperations, "collectives": exerciseCollectives, "streams": streams, "graph": graph, "shrink": shrink, "teams": gpuTeams,
		"killed": killed, "symmetric": symmetric, "hold": hold, "stalled": stalled, "network": network, "resident": resident, "leave": leave,
		"host": hostHeap,
	}
	alone = map[string]func() error{"instances": instances, "cycles": cycles, "measure": measure}
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		if err := play(role); err != nil {
			fmt.Fprintln(os.Stderr, role+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func play(role string) error {
	if f := alone[role]; f != nil {
		return f()
	}
	f := roles[role]
	if f == nil {
		return errors.New("no such role")
	}
	c, err := ConfigFrom(os.Environ())
	if err != nil {
		return err
	}
	p, err := Init(context.Background(), c)
	if err != nil {
		return err
	}
	if err := f(p); err != nil {
		err = fmt.Errorf("PE %d: %w", p.Rank(), err)
		p.Abort(1, err.Error())
		return errors.Join(err, p.Finalize())
	}
	return p.Finalize()
}

// machine is a software GPU and where its libraries are.
type machine struct {
	t         *testing.T
	libraries string
	socket    string
}

func newMachine(t *testing.T, devices int, memory uint64) *machine {
	t.Helper()
	shape := sim.DefaultShape
	shape.Devices, shape.Memory, shape.Units, shape.MHz, shape.Context = devices, memory, 4, 200, 16<<20
	return &machine{t: t, libraries: filepath.Join(libraries(t), "sim"), socket: simtest.Serve(t, shape)}
}

// libraries is the folder of the C libraries that make build makes.
func libraries(t *testing.T) string {
	t.Helper()
	lib, err := filepath.Abs("../build/lib")
	if err == nil {
		_, err = os.Stat(filepath.Join(lib, "liblgpu.so"))
	}
	if err != nil {
		t.Fatalf("the C libraries are missing; run: make build (%v)", err)
	}
	return lib
}

// process makes the command of a role, not yet started.
func (m *machine) process(role string, env ...string) *exec.Cmd {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "LD_LIBRARY_PATH="+m.libraries, wire.Environment+"="+m.socket, roleVariable+"="+role,
		"LSHMEM_MAX_TEAMS=7", "LSHMEM_CHUNK=2M", "LSHMEM_TIMEOUT=20s", "LSHMEM_NIC=none", "LSHMEM_HEAP_MAX=256M")
	c.Env = append(c.Env, env...)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	return c
}

// job runs a role as n PEs, each in its process, and returns how each ended.
func (m *machine) job(n int, role string, env ...string) []error {
	m.t.Helper()
	ended := m.each(role, slices.Repeat([][]string{env}, n)...)
	for pe, err := range ended {
		if err != nil {
			ended[pe] = fmt.Errorf("PE %d: %w", pe, err)
		}
	}
	return ended
}

func (m *machine) run(n int, role string, env ...string) {
	m.t.Helper()
	if err := errors.Join(m.job(n, role, env...)...); err != nil {
		m.t.Error(role, err)
	}
}

func TestGPU(t *testing.T) {
	m := newMachine(t, 2, 1<<30)
	for _, c := range []struct {
		name string
		pes  int
		role string
		env  []string
	}{
		{"operations", 2, "operations", nil},
		{"operations of 3 on 2 GPUs", 3, "operations", nil},
		{"operations on one GPU", 2, "operations", []string{"LSHMEM_DEVICE=0"}},
		{"operations on a static heap", 2, "operations", []string{"LSHMEM_HEAP_STATIC=32M"}},
		{"operations without VMM", 2, "operations", []string{"LSHMEM_DISABLE_VMM=1", "LSHMEM_SYMMETRIC_SIZE=32M"}},
		{"streams", 2, "streams", nil},
		{"streams by driver operations", 2, "streams", []string{"LSHMEM_STREAM_WAIT=memop"}},
		{"network", 2, "network", []string{"LSHMEM_DISABLE_P2P=1", "LSHMEM_NIC=host", "LSHMEM_AMO=uniform"}},
		{"network on the GPU", 2, "resident", []string{"LSHMEM_DISABLE_P2P=1", "LSHMEM_NIC=gpu"}},
		{"collectives by a network", 2, "collectives", []string{"LSHMEM_DISABLE_P2P=1", "LSHMEM_NIC=host"}},
		{"leave at once", 2, "leave", nil},
		{"leave at once by a network", 2, "leave", []string{"LSHMEM_DISABLE_P2P=1", "LSHMEM_NIC=host"}},
		{"graph", 2, "graph", nil},
		{"collectives", 2, "collectives", nil},
		{"teams", 3, "teams", nil},
		{"shrink", 2, "shrink", nil},
		{"symmetric", 2, "symmetric", nil},
		{"operations on host memory", 2, "operations", []string{"LSHMEM_HEAP_MEMORY=host"}},
		{"collectives on host memory", 2, "collectives", []string{"LSHMEM_HEAP_MEMORY=host"}},
		{"host memory", 2, "host", []string{"LSHMEM_HEAP_MEMORY=host"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := *m
			m.t = t
			m.run(c.pes, c.role, c.env...)
		})
	}
	t.Run("allocations", func(t *testing.T) {
		if raceDetector {
			t.Skip("the race detector lets pools forget, so that calls allocate")
		}
		m := *m
		m.t = t
		m.run(2, "measure", roleVariable+"_SHORT=1")
	})
	for _, role := range []string{"instances", "cycles"} {
		t.Run(role, func(t *testing.T) {
			c := m.process(role)
			if err := c.Run(); err != nil {
				t.Fatalf("%v\n%s", err, c.Stdout)
			}
		})
	}
	t.Run("stalled", func(t *testing.T) {
		m := *m
		m.t = t
		m.run(1, "stalled", "LSHMEM_TIMEOUT=300ms")
	})
	t.Run("killed", func(t *testing.T) {
		for pe, err := range m.job(3, "killed") {
			if (err == nil) == (pe == 1) {
				t.Errorf("PE %d: %v", pe, err)
			}
		}
	})
}

// device is a piece of device memory outside of the heap.
func (p *PE) scratch(bytes uint64) (address uint64, err error) {
	err = p.ctx.Do(func() error {
		address, err = p.d.Alloc(bytes)
		return err
	})
	return address, err
}

// expect compares memory with what it should be.
func (p *PE) expect(what string, at uint64, want []byte) error {
	got := make([]byte, len(want))
	if err := p.read(got, at); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		i := 0
		for got[i] == want[i] {
			i++
		}
		return fmt.Errorf("%s: byte %d of %d is %#x, want %#x", what, i, len(want), got[i], want[i])
	}
	return nil
}

func (p *PE) expectWord(what string, at, want uint64) error {
	got, err := p.readWord(at)
	if err == nil && got != want {
		err = fmt.Errorf("%s: %#x, want %#x", what, got, want)
	}
	return err
}

// instances: two PEs of one job, and another job of its own, in one process.
func instances() error {
	run := func(n int, base byte) error {
		bs, err := bootstrap.Local(n, bootstrap.Options{})
		if err != nil {
			return err
		}
		var g errgroup.Group
		for pe, b := range bs {
			g.Go(func() error {
				defer b.Close()
				c, err := ConfigFrom(os.Environ())
				if err != nil {
					return err
				}
				c.Bootstrap, c.Device = b, pe%2
				p, err := Init(context.Background(), c)
				if err != nil {
					return err
				}
				if err := exerciseOperations(p); err != nil {
					b.Abort(1, err.Error())
					return errors.Join(fmt.Errorf("PE %d of %d: %w", pe, n, err), p.Finalize())
				}
				return p.Finalize()
			})
		}
		return g.Wait()
	}
	var g errgroup.Group
	g.Go(func() error { return run(2, 1) })
	g.Go(func() error { return run(2, 2) })
	return g.Wait()
}

// cycles: what Init takes Finalize gives back.
func cycles() error {
	d, err := cuda.Load()
	if err != nil {
		return err
	}
	ctx, err := d.Primary(0) // stays, so that its own memory does not count
	if err != nil {
		return err
	}
	var free []uint64
	var fds []int
	for range 6 {
		bs, err := bootstrap.Local(2, bootstrap.Options{})
		if err != nil {
			return err
		}
		var g errgroup.Group
		for _, b := range bs {
			g.Go(func() error {
				defer b.Close()
				c, err := ConfigFrom(os.Environ())
				if err != nil {
					return err
				}
				c.Bootstrap, c.Device = b, 0
				p, err := Init(context.Background(), c)
				if err != nil {
					return err
				}
				_, err = p.Malloc(8 << 20)
				return errors.Join(err, p.BarrierAll(), p.Finalize())
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
		var now uint64
		if err := ctx.Do(func() error {
			now, _, err = d.MemInfo()
			return err
		}); err != nil {
			return err
		}
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return err
		}
		free, fds = append(free, now), append(fds, len(list))
	}
	// The software GPU has a channel for each thread, of which there may be more by and by.
	if free[5] < free[1] || fds[5] > fds[1]+3 {
		return fmt.Errorf("free device memory by cycle %d, descriptors %d", free, fds)
	}
	return nil
}

// killed: PE 1 dies while the others wait for it: in the host's barrier, and in a kernel.
func killed(p *PE) error {
	s, err := p.newStream()
	if err != nil {
		return err
	}
	a, err := p.Calloc(1, 8)
	if err != nil {
		return err
	}
	if err := p.BarrierAll(); err != nil && Status(err) != layout.StatusPeer { // PE 1 may be dead already
		return err
	}
	if p.Rank() == 1 {
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	begun := time.Now()
	if err := p.SignalWaitOnStream(a, layout.CompareEQ, 1, s); err != nil && Status(err) != layout.StatusPeer {
		return err
	}
	err = p.BarrierAll()
	var e *Error
	if !errors.As(err, &e) || e.Status != layout.StatusPeer || e.PE != 1 {
		return fmt.Errorf("barrier with a dead PE: %v", err)
	}
	if err := p.ctx.Do(func() error { return p.d.StreamSynchronize(s) }); err != nil {
		return fmt.Errorf("the stream does not end: %w", err)
	}
	if took := time.Since(begun); took > 10*time.Second {
		return fmt.Errorf("it took %v", took)
	}
	if _, err := p.Malloc(8); Status(err) != layout.StatusPeer {
		return fmt.Errorf("malloc afterwards: %v", err)
	}
	fmt.Println("survived")
	return nil
}

// stalled: a wait for what never comes ends by the timeout, in a kernel too, and is an error then.
func stalled(p *PE) error {
	a, err := p.Calloc(1, 8)
	if err != nil {
		return err
	}
	s, err := p.newStream()
	if err != nil {
		return err
	}
	if err := p.SignalWaitOnStream(a, layout.CompareEQ, 1, s); err != nil {
		return err
	}
	if err := p.wait4(s); Status(err) != layout.StatusTimeout {
		return fmt.Errorf("status %d: %v", Status(err), err)
	}
	return nil
}
