package hca

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/shmem/mlx5"
)

// TestIdle: a device without work costs next to nothing, and still notices a doorbell that nobody tells it of.
func TestIdle(t *testing.T) {
	d := newDevice(t, Config{})
	v := newDriver(t, d, 1, nil)
	connect(t, v, v)
	v.wait(v.post(&mlx5.Entry{Opcode: mlx5.OpNOP}))
	time.Sleep(2 * napFor) // this is what is tested: nothing happens
	used := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := used()
	const window = 300 * time.Millisecond
	time.Sleep(window)
	cost := used() - before
	t.Logf("%v of processor time in %v", cost, window)
	if cost > window/5 { // 1 % on a quiet machine
		t.Errorf("an idle device used %v of processor time in %v", cost, window)
	}
	v.wait(v.post(&mlx5.Entry{Opcode: mlx5.OpNOP}))
}
