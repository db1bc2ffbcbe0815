package test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/api"
)

// Memory that only descriptors keep: its makers have ended, or have released it.
const (
	heirsLimit = 1 << 30
	heirsPiece = 256 << 20
)

// heirs starts test/programs/heirs.c in an lgpu of 1 GiB.
func (p *place) heirs() *tenant {
	p.t.Helper()
	c := p.start("lgpu", "run", shape, "--name", "heirs", "--memory", "1GiB", "--", "heirs")
	c.until("ready")
	return c
}

func (p *place) used() uint64 {
	p.t.Helper()
	for _, s := range p.ps() {
		if s.Name == "heirs" {
			return s.Devices[0].Memory.Used
		}
	}
	p.t.Fatal("there is no lgpu heirs")
	return 0
}

func (c *tenant) must(answer, order string) {
	c.t.Helper()
	if got := c.says("%s", order); got != order+" "+answer {
		c.t.Fatalf("%q, want %s", got, answer)
	}
}

// What children have made and given away is charged while anybody has it, and not longer.
func TestOrphans(t *testing.T) {
	p := newPlace(t)
	c := p.heirs()
	for range 3 {
		c.must("0", "child 256")
	}
	// A fourth does not fit: each child takes a context besides.
	c.must("2", "child 256")
	p.wait("the end of what the children had besides", func() bool { return p.used() == 3*heirsPiece })
	c.must("2", "allocate 300")
	c.must("0", "close")
	p.wait("the end of what the descriptors kept", func() bool { return p.used() < heirsPiece })
	c.must("0", "allocate 600")
}

// Whoever imports what dead clients made has it, and is charged for it.
func TestOrphanIsImported(t *testing.T) {
	p := newPlace(t)
	c := p.heirs()
	c.must("0", "child 256")
	c.must("0", "child 256")
	p.wait("the end of what the children had besides", func() bool { return p.used() == 2*heirsPiece })
	c.must("0", "import")
	c.must("0", "close")
	// One lives in the importer and is charged once in the end, besides the context.
	p.wait("the end of the other", func() bool {
		used := p.used()
		return used >= heirsPiece && used < 2*heirsPiece
	})
	c.must("0", "allocate 256")
	c.must("2", "allocate 512")
}

// A process that has released what it made, and keeps only a descriptor, is charged for it until that is closed.
func TestOwnDescriptors(t *testing.T) {
	p := newPlace(t)
	c := p.heirs()
	for range 3 {
		c.must("0", "own 256")
	}
	c.must("2", "own 256")
	if used := p.used(); used < 3*heirsPiece || used > heirsLimit {
		t.Errorf("%d bytes are charged", used)
	}
	c.must("0", "close")
	p.wait("the end of what the descriptors kept", func() bool { return p.used() < heirsPiece })
	c.must("0", "allocate 600")
}

// A daemon that is killed does not leave what dead clients gave away charged for ever.
func TestOrphansAndARestart(t *testing.T) {
	p := newPlace(t)
	c := p.heirs()
	c.must("0", "child 256")
	c.must("0", "allocate 16") // the client that the next daemon hears of
	p.wait("the orphan", func() bool { return p.used() >= heirsPiece })
	daemon := p.daemon()
	if err := unix.Kill(int(daemon.Daemon.GetPid()), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.wait("the next daemon", func() bool {
		c, err := api.Dial(t.Context(), api.Options{Dir: p.dir})
		if err != nil {
			return false
		}
		defer c.Close()
		return c.Daemon.GetPid() != daemon.Daemon.GetPid()
	})
	p.wait("the return of the program", func() bool {
		s := p.ps()
		return len(s) == 1 && len(s[0].Processes) == 1
	})
	c.must("0", "close")
	p.wait("the end of what the descriptor kept", func() bool { return p.used() < heirsPiece })
	c.must("0", "allocate 600")
}
