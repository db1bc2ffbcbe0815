package shmem

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/layout"
)

// free is the device's free memory.
func (p *PE) freeMemory() (free uint64, err error) {
	err = p.ctx.Do(func() error {
		free, _, err = p.d.MemInfo()
		return err
	})
	return free, err
}

func shrink(p *PE) error {
	const n = 64 << 20
	<-p.launcher.ready // what is loaded in the background takes memory too
	if err := p.BarrierAll(); err != nil {
		return err
	}
	before, err := p.freeMemory()
	if err != nil {
		return err
	}
	for range 3 {
		a, err := p.Malloc(n)
		if err != nil {
			return err
		}
		if err := p.BarrierAll(); err != nil {
			return err
		}
		grown, err := p.freeMemory()
		if err != nil || grown > before-n {
			return fmt.Errorf("%d bytes free with 64 MiB more, %d before, %v", grown, before, err)
		}
		if err := errors.Join(p.BarrierAll(), p.Free(a), p.BarrierAll()); err != nil {
			return err
		}
		after, err := p.freeMemory()
		if err != nil || after != before {
			return fmt.Errorf("%d bytes free after free, %d before, %v", after, before, err)
		}
		if err := p.BarrierAll(); err != nil {
			return err
		}
	}
	if _, err := p.Malloc(2 << 30); Status(err) != layout.StatusMemory {
		return fmt.Errorf("more than the heap can be: %v", err)
	}
	return nil
}

// symmetric: a program's own memory becomes part of the heap, and goes again.
func symmetric(p *PE) error {
	const n = 4 << 20
	d := p.d
	var own uint64
	if err := p.ctx.Do(func() error {
		prop := cuda.DeviceMemory(p.ctx.Device, false)
		h, err := d.Create(n, &prop)
		if err != nil {
			return err
		}
		defer d.Release(h)
		if own, err = d.Reserve(n, 0, 0); err != nil {
			return err
		}
		return errors.Join(d.Map(own, n, h), d.Allow(own, n, p.ctx.Device))
	}); err != nil {
		return err
	}
	a, err := p.RegisterSymmetric(own, n)
	if err != nil {
		return err
	}
	other := 1 - p.Rank()
	for _, err := range []error{
		p.write(own, pattern(p.Rank(), n)), p.BarrierAll(), p.expect("the other's buffer", p.Ptr(a, other), pattern(other, n)), p.BarrierAll(),
		p.Put(a+100, own, 50, other), p.BarrierAll(), p.expect("put into a buffer", own+100, pattern(other, 50)), p.BarrierAll(),
	} {
		if err != nil {
			return err
		}
	}
	if err := p.Free(a); Status(err) != layout.StatusArgument {
		return fmt.Errorf("free of a buffer: %v", err)
	}
	if err := p.UnregisterSymmetric(a); err != nil {
		return err
	}
	if err := p.expect("the buffer afterwards", own+200, pattern(p.Rank(), n)[200:]); err != nil {
		return err
	}
	pinned, err := p.scratch(n)
	if err != nil {
		return err
	}
	if _, err := p.RegisterSymmetric(pinned, n); Status(err) != layout.StatusSupport {
		return fmt.Errorf("memory without a handle: %v", err)
	}
	return nil
}

// hostHeap: a heap in host memory is the same pages to the GPUs and the CPUs of all PEs, and again after they were
// freed.
func hostHeap(p *PE) error {
	const n, ints = 5 << 20, 1 << 10 // n is more than a chunk
	me, pes := p.Rank(), p.Size()
	next, before := (me+1)%pes, (me+pes-1)%pes
	outside, err := p.scratch(n)
	if err != nil {
		return err
	}
	for round := range 2 {
		a, err := p.Malloc(n)
		if err != nil {
			return err
		}
		b, err := p.Malloc(4 * ints)
		if err != nil {
			return err
		}
		put := pattern(me+round, n)
		if err := errors.Join(p.write(outside, put), p.Put(a, outside, n, next), p.BarrierAll()); err != nil {
			return err
		}
		want := pattern(before+round, n)
		if !bytes.Equal(cuda.Bytes(a, n), want) || !bytes.Equal(cuda.Bytes(p.Ptr(a, next), n), put) {
			return fmt.Errorf("round %d: the CPU does not see what the GPUs put", round)
		}
		if err := errors.Join(p.expect("put", a, want), p.BarrierAll()); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		// What a CPU writes, here and in the other's heap, the GPUs read.
		copy(cuda.Bytes(p.Ptr(a, next), 4*ints), bytes.Repeat([]byte{byte(me + 1), 0, 0, 0}, ints))
		sum := bytes.Repeat([]byte{byte(pes * (pes + 1) / 2), 0, 0, 0}, ints)
		if err := errors.Join(p.BarrierAll(), p.Reduce(World, layout.TypeInt32, layout.ReduceSum, b, a, ints), p.expect("sum", b, sum),
			p.Free(b), p.Free(a), p.BarrierAll()); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	return nil
}

// hold says how much memory its lgpu has in use, by the driver, with 32 MiB of heap and without.
func hold(p *PE) error {
	<-p.launcher.ready // what is loaded in the background takes memory too
	before, err := p.freeMemory()
	if err != nil {
		return err
	}
	a, err := p.Malloc(32 << 20)
	if err != nil {
		return err
	}
	with, err := p.freeMemory()
	if err != nil {
		return err
	}
	if _, err := p.Malloc(128 << 20); Status(err) != layout.StatusMemory {
		return fmt.Errorf("more than the lgpu has: %v", err)
	}
	if err := p.Free(a); err != nil {
		return err
	}
	after, err := p.freeMemory()
	if err != nil {
		return err
	}
	if before-with != 32<<20 || after != before {
		return fmt.Errorf("%d free, with the heap %d, after %d", before, with, after)
	}
	return nil
}

// TestCounted: the heap counts against the memory of an lgpu.
func TestCounted(t *testing.T) {
	libraries(t)
	dir := t.TempDir()
	lgpu := filepath.Join(dir, "lgpu")
	build := exec.Command("go", "build", "-o", lgpu, "../cmd/lgpu")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	runtime, err := os.MkdirTemp("", "lshmem") // sockets' paths must be short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(runtime)
	c := exec.Command(lgpu, "run", "--sim=1GiB,sms=4,context=16MiB", "--memory", "128MiB", "--", os.Args[0])
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "LGPU_") && !strings.HasPrefix(v, "CUDA_") && !strings.HasPrefix(v, "LD_") {
			c.Env = append(c.Env, v)
		}
	}
	c.Env = append(c.Env, "LGPU_RUNTIME_DIR="+runtime, roleVariable+"=hold", "LSHMEM_MAX_TEAMS=6", "LSHMEM_CHUNK=2M", "LSHMEM_HEAP_MAX=512M")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
