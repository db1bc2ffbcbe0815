package shmem

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/layout"
)

// measure prints what calls cost on the host beyond the driver's own, and how long Init and growth take. It is a role
// of its own for GPUs; on the software GPU it says that calls allocate nothing.
func measure() error {
	c, err := ConfigFrom(os.Environ())
	if err != nil {
		return err
	}
	// The context exists before, as in programs.
	d, err := cuda.Load()
	if err != nil {
		return err
	}
	n, err := d.DeviceCount()
	if err != nil {
		return err
	}
	rank := localRank(0)
	fmt.Sscanf(os.Getenv("LSHMEM_PE"), "%d", &rank)
	c.Device = rank % n
	ctx, err := d.Primary(int32(c.Device))
	if err != nil {
		return err
	}
	defer ctx.Release()
	p, err := Init(context.Background(), c)
	if err != nil {
		return err
	}
	if p.Rank() == 0 {
		fmt.Printf("init %v: %v\n", p.Stats().Init, p.Stats().Phases)
	}
	return errors.Join(measures(p), p.Finalize())
}

func measures(p *PE) error {
	a, err := p.Calloc(64, 8)
	if err != nil {
		return err
	}
	s, err := p.newStream()
	if err != nil {
		return err
	}
	<-p.launcher.ready
	say := func(format string, args ...any) {
		if p.Rank() == 0 {
			fmt.Printf(format+"\n", args...)
		}
	}
	next := (p.Rank() + 1) % p.Size()
	there := p.Ptr(a, next)
	var failed error
	try := func(err error) {
		if err != nil && failed == nil {
			failed = err
		}
	}
	for _, op := range []struct {
		name string
		do   func()
	}{
		{"driver: copy of 8 bytes", func() { try(p.d.CopyAsync(there, a, 8, s)) }},
		{"put_on_stream of 8 bytes", func() { try(p.PutOnStream(a, a, 8, next, s)) }},
		{"driver: write of a word", func() { try(p.d.WriteValue64(s, there+16, 1)) }},
		{"signal_op_on_stream", func() { try(p.SignalOpOnStream(a+16, 1, layout.SignalSet, next, s)) }},
		{"atomic_on_stream", func() { try(p.AtomicOnStream(layout.AtomicAdd, layout.TypeUint64, a+24, 1, 0, 0, next, s)) }},
		{"signal_wait_on_stream", func() { try(p.SignalWaitOnStream(a+32, layout.CompareEQ, 0, s)) }},
		{"barrier_on_stream", func() { try(p.BarrierOnStream(World, s)) }},
	} {
		rounds := 1000
		if os.Getenv(roleVariable+"_SHORT") != "" {
			rounds = 20
		}
		if err := p.ctx.Do(func() error {
			op.do()
			try(p.wait4(s))
			try(p.BarrierAll())
			var host, all time.Duration
			for left := rounds; left > 0; left -= 100 { // fewer than fit in a stream's queue
				begun := time.Now()
				for range min(100, left) {
					op.do()
				}
				host += time.Since(begun)
				try(p.wait4(s))
				all += time.Since(begun)
			}
			try(p.BarrierAll())
			allocations := testing.AllocsPerRun(10, op.do)
			try(p.wait4(s))
			try(p.BarrierAll())
			say("%-26s %8.0f ns on the host, %8.0f ns in all, %.0f allocations", op.name, float64(host.Nanoseconds())/float64(rounds),
				float64(all.Nanoseconds())/float64(rounds), allocations)
			if allocations > 0 {
				try(fmt.Errorf("%s allocates %.0f times", op.name, allocations))
			}
			return nil
		}); err != nil {
			return err
		}
		if failed != nil {
			return failed
		}
	}
	for _, size := range []uint64{2 << 20, 64 << 20, 512 << 20} {
		begun := time.Now()
		x, err := p.Malloc(size)
		if err != nil {
			if Status(err) == layout.StatusMemory {
				say("malloc of %d MiB: %v", size>>20, err)
				continue
			}
			return err
		}
		grown := time.Now()
		if err := p.Free(x); err != nil {
			return err
		}
		say("malloc of %d MiB %v, free %v", size>>20, grown.Sub(begun), time.Since(grown))
	}
	return p.BarrierAll()
}
