package hostcopy

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

const mib = 1 << 20

func budget(n uint64) func() uint64 { return func() uint64 { return n } }

func grow(t *testing.T, c *Copy, bytes uint64) Grown {
	t.Helper()
	g, err := c.Grow(bytes, Ahead)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func stat(t *testing.T, fd int) unix.Stat_t {
	t.Helper()
	var s unix.Stat_t
	if err := unix.Fstat(fd, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestMemory(t *testing.T) {
	k := New(Options{Budget: budget(100 * mib)})
	c := k.Copy(Memory, 0)
	defer c.Close()
	g := grow(t, c, 3*mib)
	if !g.New || g.Size != 4*mib || k.Used(Memory) != 4*mib {
		t.Errorf("%+v, %d used", g, k.Used(Memory))
	}
	if s := stat(t, g.FD); s.Blocks*512 < 4*mib {
		t.Errorf("%d of its blocks are there", s.Blocks)
	}
	if _, err := unix.Pwrite(g.FD, []byte("data"), 4*mib-4); err != nil {
		t.Fatal(err)
	}
	if g = grow(t, c, 70*mib); g.New || g.Size != 70*mib || k.Used(Memory) != 70*mib {
		t.Errorf("%+v, %d used", g, k.Used(Memory))
	}
	data := make([]byte, 4)
	if _, err := unix.Pread(g.FD, data, 4*mib-4); err != nil || string(data) != "data" {
		t.Errorf("lost: %q, %v", data, err)
	}
	if _, err := c.Grow(120*mib, Urgent); !errors.Is(err, ErrRoom) {
		t.Errorf("beyond the budget: %v", err)
	}
	if g = grow(t, c, 1); g.Size != 70*mib {
		t.Errorf("after a refusal: %+v", g)
	}
	c.Close()
	if k.Used(Memory) != 0 {
		t.Errorf("%d used after the end", k.Used(Memory))
	}
	if _, err := c.Grow(mib, Urgent); !errors.Is(err, ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}

// TestHurry: whoever waits for a file that grows ahead of need does not wait for threads that are to be noticed by nobody.
func TestHurry(t *testing.T) {
	c := New(Options{Budget: budget(1 << 30)}).Copy(Memory, -1)
	defer c.Close()
	grow(t, c, piece/2)
	data := touching{copy: c, data: make([]byte, 8*piece)}
	c.Hurry()
	if data.run(2, Ahead); data.left() != 8*piece {
		t.Errorf("%d bytes are left of %d, although somebody waits", data.left(), 8*piece)
	}
	g := grow(t, c, 5*piece/2)
	if s := stat(t, g.FD); s.Blocks*512 < 5*piece/2 {
		t.Errorf("%d bytes are there", s.Blocks*512)
	}
	if c.hurry.Load() {
		t.Error("what comes later is in a hurry, too")
	}
}

func TestDisk(t *testing.T) {
	full := false
	k := New(Options{Budget: budget(mib), Dir: t.TempDir(), Reserve: func(fd int, from, bytes int64) error {
		if full {
			return unix.ENOSPC
		}
		return unix.Ftruncate(fd, from+bytes)
	}})
	c := k.Copy(Disk, -1)
	defer c.Close()
	g := grow(t, c, 10*mib)
	if !g.New || g.Size != 10*mib || k.Used(Memory) != 0 || k.Used(Disk) != 10*mib {
		t.Errorf("%+v, %d and %d used", g, k.Used(Memory), k.Used(Disk))
	}
	if s := stat(t, g.FD); s.Nlink != 0 || s.Size != 10*mib {
		t.Errorf("%d names, %d bytes", s.Nlink, s.Size)
	}
	full = true
	if _, err := c.Grow(20*mib, Urgent); !errors.Is(err, ErrRoom) || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("full disk: %v", err)
	}
	if s := stat(t, g.FD); s.Size != 10*mib {
		t.Errorf("%d bytes after a refusal", s.Size)
	}
	if _, err := k.Copy(Disk, -1).Grow(mib, Urgent); !errors.Is(err, ErrRoom) {
		t.Errorf("full disk, new file: %v", err)
	}
	if _, err := New(Options{Budget: budget(0)}).Copy(Disk, -1).Grow(mib, Urgent); !errors.Is(err, ErrRoom) {
		t.Errorf("no folder: %v", err)
	}
	if _, err := k.Copy(Disk, -1).Grow(1<<60, Urgent); !errors.Is(err, ErrRoom) {
		t.Errorf("an impossible size: %v", err)
	}
}

func TestAdopt(t *testing.T) {
	for tier := range Tiers {
		t.Run(tier.String(), func(t *testing.T) {
			c := New(Options{Budget: budget(100 * mib), Dir: t.TempDir()}).Copy(tier, -1)
			defer c.Close()
			g := grow(t, c, 10*mib)
			k := New(Options{Budget: budget(0)})
			back := k.Copy(tier, -1)
			if err := back.Adopt(g.FD, g.Identity, 10*mib); err != nil {
				t.Fatal(err)
			}
			if has := grow(t, back, mib); has.New || has.Size != 10*mib || has.Identity != g.Identity || k.Used(tier) != 10*mib {
				t.Errorf("%+v, %d used", has, k.Used(tier))
			}
			back.Close()
			if k.Used(tier) != 0 {
				t.Errorf("%d used after the end", k.Used(tier))
			}
			for _, wrong := range []Identity{{}, {g.Device, g.Inode + 1}} {
				if err := k.Copy(tier, -1).Adopt(g.FD, wrong, 10*mib); !errors.Is(err, ErrForeign) {
					t.Errorf("%+v: %v", wrong, err)
				}
			}
			if err := k.Copy(tier, -1).Adopt(g.FD, g.Identity, mib); !errors.Is(err, ErrForeign) {
				t.Errorf("too large: %v", err)
			}
		})
	}
}

// TestNoMemory: a machine without memory refuses before anything is touched.
func TestNoMemory(t *testing.T) {
	left := uint64(8 * mib)
	k := New(Options{Budget: budget(100 * mib), Available: func() uint64 { return left }})
	c := k.Copy(Memory, -1)
	defer c.Close()
	if _, err := c.Grow(10*mib, Ahead); !errors.Is(err, ErrRoom) || k.Used(Memory) != 0 {
		t.Errorf("%v, %d used", err, k.Used(Memory))
	}
	grow(t, c, 6*mib)
	left = 2 * mib
	if _, err := c.Grow(10*mib, Ahead); !errors.Is(err, ErrRoom) || k.Used(Memory) != 6*mib {
		t.Errorf("%v, %d used", err, k.Used(Memory))
	}
}

// TestAdoptForeign: other kinds of files, even with the right identity.
func TestAdoptForeign(t *testing.T) {
	k := New(Options{Budget: budget(mib)})
	named, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer named.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for _, f := range []*os.File{named, r} {
		s := stat(t, int(f.Fd()))
		if err := k.Copy(Disk, -1).Adopt(int(f.Fd()), Identity{s.Dev, s.Ino}, mib); !errors.Is(err, ErrForeign) {
			t.Errorf("%s: %v", f.Name(), err)
		}
	}
	if err := k.Copy(Memory, -1).Adopt(-1, Identity{1, 1}, mib); err == nil {
		t.Error("no file at all")
	}
}

// BenchmarkUrgent is how fast a file of memory is made that somebody waits for.
func BenchmarkUrgent(b *testing.B) {
	const step, steps = 1 << 30, 2
	for n := 4; n <= max(4, runtime.NumCPU()); n *= 2 {
		b.Run(fmt.Sprintf("threads=%d", n), func(b *testing.B) {
			k := New(Options{Budget: budget(1 << 40)})
			defer k.Close()
			k.threads = n
			b.SetBytes(step * steps)
			for b.Loop() {
				c := k.Copy(Memory, -1)
				for i := range uint64(steps) {
					if _, err := c.Grow((i+1)*step, Urgent); err != nil {
						b.Fatal(err)
					}
				}
				b.StopTimer()
				c.Close()
				b.StartTimer()
			}
		})
	}
}
