package test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What a program holds of which images are to share most: a step changes a chunk of it.
const bigBlock = 64 << 20

// A program of an lgpu with memory.overcommit is written to an image with what has left its devices, as chunks, and goes on
// or starts from there. A second image has what has changed; it is charged once, and has its memory back when it needs it.
func TestCheckpointOvercommit(t *testing.T) {
	p, folder := imagePlace(t)
	c := p.holding("kept", 1, bigBlock, "--overcommit", "--memory", "400MiB")
	c.expect("stepped 3", "step 3")
	before := p.ps()[0]
	a := p.checkpoint("kept", filepath.Join(folder, "a"))
	if fresh := a.Memory - a.Zero - a.Shared; a.State != "running" || fresh < bigBlock {
		t.Errorf("%+v", a)
	}
	c.expect("intact after 3 steps", "check")
	c.expect("stepped 1", "step 1")
	b := p.checkpoint("kept", filepath.Join(folder, "b"), "--stop")
	if fresh := b.Memory - b.Zero - b.Shared; fresh <= 0 || fresh > a.Memory*8/100 {
		t.Errorf("%d of %d bytes are new: %+v", fresh, a.Memory, b)
	}
	p.gone(c, "/kept")
	if out := p.must("image", "diff", filepath.Join(folder, "a"), filepath.Join(folder, "b")); !strings.Contains(out, "evicted/") {
		t.Errorf("lgpu image diff says %q", out)
	}
	p.must("image", "verify", p.key(), filepath.Join(folder, "a"), filepath.Join(folder, "b"))
	for range 2 {
		r := p.restore(filepath.Join(folder, "b"))
		r.expect("intact after 4 steps", "check")
		// Once, that is; the kernel that finds out what has changed is charged from the first time that memory leaves.
		if now, then := p.ps()[0].Devices[0].Memory.Used, before.Devices[0].Memory.Used; now < bigBlock || now > then+bigBlock/8 {
			t.Errorf("restored it is charged for %d bytes, before for %d", now, then)
		}
		r.expect("stepped 2", "step 2")
		r.expect("intact after 6 steps", "check")
		r.end()
		p.wait("the lgpu goes", func() bool { return p.directory("/kept") == nil })
	}
	host, disk := p.copies()
	if host != 0 || disk != 0 {
		t.Errorf("%d and %d bytes of copies are left", host, disk)
	}
}

// Two programs with the same in their memory have one copy of it in their images.
func TestCheckpointReplicas(t *testing.T) {
	p, folder := imagePlace(t)
	var all []imaged
	for _, name := range []string{"one", "two"} {
		c := p.small(name, "--overcommit")
		all = append(all, p.checkpoint(name, filepath.Join(folder, name), "--stop"))
		p.gone(c, "/"+name)
	}
	if fresh := all[1].Memory - all[1].Zero - all[1].Shared; all[0].Memory == all[0].Zero || fresh != 0 {
		t.Errorf("%d bytes of the second one are new: %+v", fresh, all)
	}
}

// An image of which a chunk is damaged, cut, missing or another's is refused by name, and nothing is started; once it is whole
// again it is restored. One bit alone may be flipped in what is compressed without a change to what it stands for.
func TestRestoreDamaged(t *testing.T) {
	p, folder := imagePlace(t)
	c := p.small("kept", "--overcommit")
	image := filepath.Join(folder, "a")
	p.checkpoint("kept", image, "--stop")
	p.gone(c, "/kept")
	chunks, err := filepath.Glob(filepath.Join(image, "chunks", "*"))
	if err != nil || len(chunks) < 2 {
		t.Fatalf("%v, %d chunks", err, len(chunks))
	}
	whole, errWhole := os.ReadFile(chunks[0])
	other, errOther := os.ReadFile(chunks[1])
	if err := errors.Join(errWhole, errOther); err != nil {
		t.Fatal(err)
	}
	inverted := slices.Clone(whole)
	for i := len(inverted) / 2; i < len(inverted); i++ {
		inverted[i] ^= 0xff
	}
	write := func(data []byte) {
		t.Helper()
		if err := os.WriteFile(chunks[0], data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for what, damage := range map[string]func(){
		"inverted":  func() { write(inverted) },
		"another's": func() { write(other) },
		"cut":       func() { write(whole[:len(whole)/2]) },
		"missing":   func() { os.Remove(chunks[0]) },
	} {
		damage()
		r := p.restore(image)
		if s := r.status(); s != 1 || !strings.Contains(r.stderr.String(), "chunk "+filepath.Base(chunks[0])[:12]) {
			t.Errorf("%s: status %d, %s", what, s, r.stderr.String())
		}
		p.wait("nothing of it is left", func() bool { return p.directory("/kept") == nil })
	}
	write(whole)
	r := p.restore(image)
	r.expect("intact after 0 steps", "check")
	r.end()
}

// A released program whose memory lies in files outlives the daemon: it brings them to the next one.
func TestReleasedFilesOutliveTheDaemon(t *testing.T) {
	p := newPlace(t)
	c := p.small("kept", "--overcommit")
	c.expect("stepped 3", "step 3")
	p.must("suspend", "--release", "kept")
	pid := p.daemon().Daemon.GetPid()
	unix.Kill(int(pid), unix.SIGKILL)
	p.waitForDaemonAfter(pid)
	p.must("resume", "kept")
	c.expect("intact after 3 steps", "check")
	c.expect("stepped 1", "step 1")
	c.expect("intact after 4 steps", "check")
	p.must("suspend", "kept")
	p.must("resume", "kept")
	c.expect("intact after 4 steps", "check")
	c.end()
}
