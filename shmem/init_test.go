package shmem

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lgpu/lgpu/shmem/bootstrap"
	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/sim/wire"
)

// panics is a bootstrap that panics in the last of so many exchanges.
type panics struct {
	bootstrap.Bootstrap
	left int
}

func (p *panics) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	if p.left--; p.left == 0 {
		panic("a defect")
	}
	return p.Bootstrap.AllGather(ctx, mine)
}

// TestInitPanics: a PE whose Init panics tells the others, and gives back what it had.
func TestInitPanics(t *testing.T) {
	for left := 1; left <= 3; left++ { // hello, transports, memory
		bs, err := bootstrap.Local(2, bootstrap.Options{Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		open := func(b bootstrap.Bootstrap) (err error) {
			defer func() {
				if what := recover(); what != nil {
					err = fmt.Errorf("panic: %v", what)
				}
			}()
			c := plainConfig()
			c.Bootstrap, c.Timeout = b, time.Minute
			p, err := Init(context.Background(), c)
			if err == nil {
				err = errors.Join(errors.New("Init succeeded"), p.Finalize())
			}
			return err
		}
		var g errgroup.Group
		g.Go(func() error {
			defer bs[0].Close()
			if err := open(bs[0]); Status(err) != layout.StatusPeer || !strings.Contains(err.Error(), "init of PE 1: a defect") {
				return fmt.Errorf("PE 0: %v", err)
			}
			return nil
		})
		g.Go(func() error {
			defer bs[1].Close()
			if err := open(&panics{bs[1], left}); err == nil || err.Error() != "panic: a defect" {
				return fmt.Errorf("PE 1: %v", err)
			}
			return nil
		})
		if err := g.Wait(); err != nil {
			t.Errorf("exchange %d: %v", left, err)
		}
	}
}

// TestPlainNotMapped: PEs without GPUs that do not map each other's memory are told so when they begin.
func TestPlainNotMapped(t *testing.T) {
	err := tryJob(2, func(pe int, c *Config) {
		c.DisableP2P = pe == 1
		c.Settings["LSHMEM_NIC"] = "host"
	}, func(*PE) error { return nil })
	if Status(err) != layout.StatusSupport || !strings.Contains(err.Error(), "PE 0: its memory is not mapped at PE 1 (LSHMEM_DISABLE_P2P), and PEs without a GPU need that") {
		t.Error(err)
	}
}

// each runs PEs that differ, each with an environment of its own, and returns what they ended with.
func (m *machine) each(role string, env ...[]string) []error {
	m.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		m.t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	var g errgroup.Group
	ended := make([]error, len(env))
	for pe, env := range env {
		c := m.process(role, append([]string{"LSHMEM_PE=" + strconv.Itoa(pe), "LSHMEM_PES=" + strconv.Itoa(len(ended)),
			"LSHMEM_BOOTSTRAP=tcp://" + address + "?a-token-of-the-test"}, env...)...)
		g.Go(func() error {
			ended[pe] = output(c)
			return nil
		})
	}
	g.Wait()
	return ended
}

// output runs a process and makes what it said its error.
func output(c *exec.Cmd) error {
	if err := c.Run(); err != nil {
		return fmt.Errorf("%w\n%s", err, c.Stdout)
	}
	return nil
}

// TestInitOnGPUs: what keeps PEs from a job is said by name.
func TestInitOnGPUs(t *testing.T) {
	m := newMachine(t, 2, 1<<30)
	says := func(t *testing.T, errs []error, want ...string) {
		t.Helper()
		for pe, err := range errs {
			for _, text := range want {
				if err == nil || !strings.Contains(err.Error(), text) {
					t.Errorf("PE %d does not say %q: %v", pe, text, err)
				}
			}
		}
	}
	t.Run("a PE without a GPU", func(t *testing.T) {
		m := *m
		m.t = t
		says(t, m.each("leave", nil, []string{"LSHMEM_DEVICE=none"}), "PE 1 has no GPU, PE 0 has: set LSHMEM_DEVICE=none at all PEs")
	})
	t.Run("a driver that does not start", func(t *testing.T) {
		m := *m
		m.t, m.socket = t, filepath.Join(t.TempDir(), "nobody")
		says(t, m.each("leave", nil), "the GPU cannot be used (LSHMEM_DEVICE=none at all PEs does without)", "cuInit")
	})
	t.Run("no GPU is visible", func(t *testing.T) {
		m := *m
		m.t = t
		if err := errors.Join(m.each("plain", []string{"CUDA_VISIBLE_DEVICES="})...); err != nil {
			t.Error(err)
		}
	})
	t.Run("no driver", func(t *testing.T) {
		c := m.process("plain", "LD_LIBRARY_PATH=", wire.Environment+"=")
		if err := output(c); err != nil {
			t.Error(err)
		}
	})
	t.Run("no network interface", func(t *testing.T) {
		m := *m
		m.t = t
		no := []string{"LSHMEM_DISABLE_P2P=1", "LSHMEM_NIC=mlx5", "LSHMEM_HCA_PREFIX=nobody's", "LSHMEM_DEBUG=info"}
		errs := m.each("leave", no, no)
		says(t, errs, "LSHMEM_DISABLE_P2P is set, and no network transport is available here: ", `msg="no network transport"`)
		for pe, err := range errs {
			// Whatever it is on this machine: no library, no device, or none with that name.
			if err == nil || !strings.Contains(err.Error(), "no such network interface: ") && !strings.Contains(err.Error(), "libibverbs") {
				t.Errorf("PE %d does not say why: %v", pe, err)
			}
		}
		// One has it, the other has not, and says so to the first.
		yes := []string{"LSHMEM_DISABLE_P2P=1", "LSHMEM_NIC=host"}
		errs = m.each("leave", yes, []string{"LSHMEM_DISABLE_P2P=1", "LSHMEM_NIC=none"})
		says(t, errs, "LSHMEM_NIC or LSHMEM_REMOTE_TRANSPORT is none")
	})
	t.Run("a port in use", func(t *testing.T) {
		m := *m
		m.t = t
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		env := []string{"LSHMEM_DISABLE_P2P=1", "LSHMEM_NIC=host"}
		says(t, m.each("leave", env, append(env, "LSHMEM_HCA_LISTEN="+l.Addr().String())), "LSHMEM_HCA_LISTEN", l.Addr().String())
	})
}

// TestHalfChunk: a buffer that is not a multiple of the chunk joins the heap, also where there is a network.
func TestHalfChunk(t *testing.T) {
	m := newMachine(t, 2, 1<<30)
	for _, c := range []struct {
		name string
		env  []string
	}{
		{"mapped", nil}, {"by a network", []string{"LSHMEM_DISABLE_P2P=1", "LSHMEM_NIC=host"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := *m
			m.t = t
			m.run(2, "half a chunk", append(c.env, "LSHMEM_CHUNK=4M")...)
		})
	}
}

// halfChunk is a PE that brings a chunk and a half, and puts to both ends.
func halfChunk(p *PE) error {
	const n = 6 << 20
	var own uint64
	if err := p.ctx.Do(func() error {
		prop := cuda.DeviceMemory(p.ctx.Device, false)
		h, err := p.d.Create(n, &prop)
		if err != nil {
			return err
		}
		defer p.d.Release(h)
		if own, err = p.d.Reserve(n, 0, 0); err != nil {
			return err
		}
		return errors.Join(p.d.Map(own, n, h), p.d.Allow(own, n, p.ctx.Device))
	}); err != nil {
		return err
	}
	a, err := p.RegisterSymmetric(own, n)
	if err != nil {
		return err
	}
	other, before := 1-p.Rank(), []byte("before")
	last := a + n - 100
	source, err := p.Malloc(100)
	if err != nil {
		return err
	}
	if err := errors.Join(p.write(source, pattern(p.Rank(), 100)), p.write(own, before), p.BarrierAll(), p.Put(last, source, 100, other),
		p.Put(a+100, source, 100, other), p.BarrierAll()); err != nil {
		return err
	}
	if err := errors.Join(p.expect("the start", own, before), p.expect("a put near the start", own+100, pattern(other, 100)),
		p.expect("a put to the end", own+n-100, pattern(other, 100))); err != nil {
		return err
	}
	if err := p.Put(last+8, source, 100, other); Status(err) != layout.StatusArgument {
		return fmt.Errorf("a put over the end: %v", err)
	}
	return p.UnregisterSymmetric(a)
}

// plainPE is a PE that must not have found a GPU.
func plainPE(p *PE) error {
	if !p.plain() || p.Context() != nil {
		return errors.New("it has a GPU")
	}
	return p.BarrierAll()
}

func init() { roles["plain"], roles["half a chunk"] = plainPE, halfChunk }
