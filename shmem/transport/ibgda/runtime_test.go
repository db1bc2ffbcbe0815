package ibgda_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ebitengine/purego"
	"golang.org/x/sync/errgroup"

	"github.com/lgpu/lgpu/shmem"
	"github.com/lgpu/lgpu/shmem/bootstrap"
	"github.com/lgpu/lgpu/shmem/heap"
	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/sim"
	"github.com/lgpu/lgpu/sim/simtest"
	"github.com/lgpu/lgpu/sim/wire"
)

// onSoftwareGPUs gives the process two software GPUs. With LSHMEM_TEST_GPUS=1 it stays with the real ones.
func onSoftwareGPUs(t *testing.T) {
	t.Helper()
	if os.Getenv("LSHMEM_TEST_GPUS") == "1" {
		return
	}
	shape := sim.DefaultShape
	shape.Devices, shape.Memory, shape.Units, shape.MHz = 2, 1<<28, 2, 200
	t.Setenv(wire.Environment, simtest.Serve(t, shape))
	if _, err := purego.Dlopen(filepath.Join(simtest.Libraries(t), "libcuda.so.1"), purego.RTLD_NOW|purego.RTLD_GLOBAL); err != nil {
		t.Fatal(err)
	}
}

// testLog passes log lines to the test.
type testLog struct{ t testing.TB }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Logf("%s", bytes.TrimRight(b, "\n"))
	return len(b), nil
}

// job runs f as each of the PEs, over queues alone.
func job(t *testing.T, pes int, settings map[string]string, f func(p *shmem.PE) error) {
	t.Helper()
	boots, err := bootstrap.Local(pes, bootstrap.Options{Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var g errgroup.Group
	for pe, b := range boots {
		g.Go(func() error {
			defer b.Close()
			c := shmem.Defaults()
			c.Bootstrap, c.Device, c.DisableP2P = b, pe, true
			c.HeapMax, c.Chunk, c.MaxTeams, c.Timeout = 64<<20, heap.MinChunk, int(layout.TeamFirstOwned)+1, 20*time.Second
			c.Logger = slog.New(slog.NewTextHandler(testLog{t}, nil))
			for name, value := range settings {
				c.Settings[name] = value
			}
			p, err := shmem.Init(context.Background(), c)
			if err != nil {
				return fmt.Errorf("PE %d: %w", pe, err)
			}
			if err := f(p); err != nil {
				b.Abort(1, err.Error())
				return errors.Join(fmt.Errorf("PE %d: %w", pe, err), p.Finalize())
			}
			return p.Finalize()
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

// Kernels of two software GPUs reach each other through queues only.
func TestRuntimeOverQueues(t *testing.T) {
	onSoftwareGPUs(t)
	for _, c := range []struct {
		what     string
		settings map[string]string
		growths  int
	}{
		{"host", map[string]string{"LSHMEM_NIC": "host"}, 2},
		{"proxy, 2 NICs", map[string]string{"LSHMEM_NIC": "host", "LSHMEM_NIC_HANDLER": "host", "LSHMEM_MAX_NICS": "2"}, 2},
		{"gpu", map[string]string{"LSHMEM_NIC": "gpu"}, 1}, // whose kernel takes the software GPU's time
	} {
		t.Run(c.what, func(t *testing.T) {
			job(t, 2, c.settings, func(p *shmem.PE) error { return exercise(p, c.growths) })
		})
	}
}

// exercise moves data to and from the other PE of two and checks it; its heap grows and shrinks so often.
func exercise(p *shmem.PE, growths int) error {
	const n = 5000
	d, other := p.Context(), 1-p.Rank()
	a, err := p.Malloc(2 * n)
	if err != nil {
		return err
	}
	words, err := p.Calloc(4, 8)
	if err != nil {
		return err
	}
	write := func(to uint64, b []byte) error { return d.Do(func() error { return d.D.Write(to, b) }) }
	read := func(from uint64, n int) ([]byte, error) {
		b := make([]byte, n)
		return b, d.Do(func() error { return d.D.Read(b, from) })
	}
	pattern := func(pe int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(i*7 + pe*31 + i>>8)
		}
		return b
	}
	if err := errors.Join(write(a, pattern(p.Rank())), p.BarrierAll()); err != nil {
		return fmt.Errorf("barrier: %w", err)
	}
	if err := p.Put(a+n, a, n, other); err != nil {
		return fmt.Errorf("put: %w", err)
	}
	if err := p.BarrierAll(); err != nil {
		return fmt.Errorf("barrier: %w", err)
	}
	if got, err := read(a+n, n); err != nil || !bytes.Equal(got, pattern(other)) {
		return fmt.Errorf("put: other bytes arrived, %v", err)
	}
	if err := errors.Join(write(a+n, make([]byte, n)), p.Get(a+n, a, n, other)); err != nil {
		return fmt.Errorf("get: %w", err)
	}
	if got, err := read(a+n, n); err != nil || !bytes.Equal(got, pattern(other)) {
		return fmt.Errorf("get: other bytes arrived, %v", err)
	}
	old, err := p.Atomic(layout.AtomicAdd, layout.TypeUint64, words, 1<<33+1, 0, true, other)
	if err != nil || old != 0 {
		return fmt.Errorf("fetch and add: %#x, %w", old, err)
	}
	old, err = p.Atomic(layout.AtomicCompareSwap, layout.TypeUint64, words, 7, 1<<33+1, true, other)
	if err != nil || old != 1<<33+1 {
		return fmt.Errorf("compare and swap: %#x, %w", old, err)
	}
	if err := p.BarrierAll(); err != nil {
		return err
	}
	if got, err := p.G(words, 8, p.Rank()); err != nil || got != 7 {
		return fmt.Errorf("the word is %#x after the other's compare and swap, %w", got, err)
	}
	if err := p.PutSignal(a, a+n, n, words+8, 3, layout.SignalAdd, other); err != nil {
		return fmt.Errorf("put with signal: %w", err)
	}
	if _, err := p.SignalWait(words+8, layout.CompareEQ, 3); err != nil {
		return fmt.Errorf("wait for the signal: %w", err)
	}
	if got, err := read(a, n); err != nil || !bytes.Equal(got, pattern(p.Rank())) {
		return fmt.Errorf("put with signal: other bytes arrived, %v", err)
	}
	for range growths {
		big, err := p.Malloc(6 << 20)
		if err != nil {
			return fmt.Errorf("grow: %w", err)
		}
		if err := p.Put(big+6<<20-n, a, n, other); err != nil {
			return fmt.Errorf("put to what grew: %w", err)
		}
		if err := p.BarrierAll(); err != nil {
			return err
		}
		if got, err := read(big+6<<20-n, n); err != nil || !bytes.Equal(got, pattern(other)) {
			return fmt.Errorf("put to what grew: other bytes arrived, %v", err)
		}
		if err := p.Free(big); err != nil {
			return fmt.Errorf("shrink: %w", err)
		}
	}
	return p.BarrierAll()
}
