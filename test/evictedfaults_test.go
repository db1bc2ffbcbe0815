package test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A program of which a part has left its devices for a disk, as host.budget has no room for it, is written to an image and
// restored, with the same bits: contained or not, running, suspended or released before.
func TestCheckpointOnDisk(t *testing.T) {
	for i, budget := range []uint64{1, 100} { // MiB: for nothing, and for a part
		for n, contain := range []string{"--contain=off", "--contain=auto"} {
			if i != n && rounds(0, 1) == 0 {
				continue
			}
			t.Run(fmt.Sprintf("%d MiB %s", budget, contain), func(t *testing.T) { checkpointOnDisk(t, budget, contain) })
		}
	}
}

func checkpointOnDisk(t *testing.T, budget uint64, contain string) {
	p, folder := imagePlace(t)
	temporary, copies := p.temporary(), filepath.Join(p.dir, "copies")
	if err := os.Mkdir(copies, 0o700); err != nil {
		t.Fatal(err)
	}
	conf := filepath.Join(p.dir, "lgpud.conf")
	if err := os.WriteFile(conf, []byte("overcommit.dir = "+copies+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.serve("--config", conf)
	p.must("create", tideShape, "/keep")
	p.must("set", "/", fmt.Sprintf("host.budget=%dMiB", budget))
	c := p.full("kept", contain)
	c.expect("stepped 3", "step 3")
	image := func(name string) string { return filepath.Join(folder, name) }
	first := p.checkpoint("kept", image("a"))
	if host, disk := p.copies(); host > budget<<20 || first.Memory < tideAll {
		t.Errorf("%d bytes in host memory, %d on disks; %+v", host, disk, first)
	}
	c.expect("intact after 3 steps", "check")
	c.expect("stepped 1", "step 1")
	p.must("suspend", "kept")
	second := p.checkpoint("kept", image("b"))
	if fresh := second.Memory - second.Zero - second.Shared; fresh >= tideAll {
		t.Errorf("of the second image %d bytes are new: %+v", fresh, second)
	}
	p.must("resume", "kept")
	c.expect("intact after 4 steps", "check")
	p.checkpoint("kept", image("c"), "--stop")
	p.gone(c, "/kept")
	if out := p.must("image", "diff", image("a"), image("c")); !strings.Contains(out, "/disk ") {
		t.Errorf("nothing of the images was on a disk: %s", out)
	}
	p.must("image", "verify", p.key(), image("a"), image("b"), image("c"))
	for name, steps := range map[string]int{"a": 3, "b": 4, "c": 4} {
		r := p.restore(image(name))
		r.expect(fmt.Sprintf("intact after %d steps", steps), "check")
		r.expect("stepped 1", "step 1")
		r.expect(fmt.Sprintf("intact after %d steps", steps+1), "check")
		if host, _ := p.copies(); host > budget<<20 {
			t.Errorf("%s: %d bytes in host memory", name, host)
		}
		r.end()
		p.nothingLeft("/kept", temporary)
	}
	// A folder with no room for them refuses it by name, and nothing is started.
	if err := unix.Mount("none", copies, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	r := p.restore(image("a"))
	if s := r.status(); s != 1 || !strings.Contains(r.stderr.String(), "a file for memory of process") {
		t.Errorf("without room: status %d: %s", s, r.stderr.String())
	}
	if err := unix.Unmount(copies, unix.MNT_DETACH); err != nil {
		t.Error(err)
	}
	p.nothingLeft("/kept", temporary)
}

// Images are verified and cleaned up while another is written: it is whole in the end, and what an interrupted one has left goes.
func TestCollectBesideCheckpoints(t *testing.T) {
	p, folder := imagePlace(t)
	c := p.holding("kept", 1, bigBlock, "--overcommit")
	image := func(name string) string { return filepath.Join(folder, name) }
	p.checkpoint("kept", image("a"))
	c.expect("stepped 1", "step 1")
	begun, on := filepath.Join(p.dir, "begun"), filepath.Join(p.dir, "on")
	if err := unix.Mkfifo(on, 0o600); err != nil {
		t.Fatal(err)
	}
	gc := func() (found struct{ Images, Chunks int }) {
		t.Helper()
		if err := json.Unmarshal([]byte(p.must("image", "gc", "--json", folder)), &found); err != nil {
			t.Fatal(err)
		}
		return found
	}
	env := p.env
	hold := func(name string) *tenant {
		t.Helper()
		os.Remove(begun)
		script := fmt.Sprintf(`echo $$ >%q; read line <%q; exec "$criu" "$@"`, begun, on)
		p.env = append(env[:len(env):len(env)], "LGPU_CRIU="+p.saboteur(folder, script))
		k := p.start("lgpu", "checkpoint", "kept", "--to", image(name), p.key())
		p.env = env
		p.numberIn(begun) // its memory is in chunks now
		return k
	}
	goOn := func() {
		t.Helper()
		if err := os.WriteFile(on, []byte("go\n"), 0); err != nil {
			t.Fatal(err)
		}
	}
	b := hold("b")
	p.must("image", "verify", p.key(), image("a"))
	if found := gc(); found.Images+found.Chunks != 0 {
		t.Errorf("beside a checkpoint %+v are taken away", found)
	}
	if err := os.RemoveAll(image("a")); err != nil {
		t.Fatal(err)
	}
	gc() // what both have stays
	if out := p.must("image", "ls", folder); !strings.Contains(out, "no images") {
		t.Errorf("one that is being written is seen: %s", out)
	}
	goOn()
	if s := b.status(); s != 0 {
		t.Errorf("status %d: %s", s, b.stderr.String())
	}
	p.must("image", "verify", p.key(), image("b"))
	d := hold("d")
	d.Process.Kill()
	d.status()
	goOn()
	if !p.settled("/kept") || p.whole(image("d")) {
		t.Error("the program is gone, or there is an image")
	}
	p.wait("what it has left goes", func() bool { return gc().Images == 1 })
	p.must("image", "verify", p.key(), image("b"))
	c.expect("intact after 1 steps", "check")
	c.end()
	r := p.restore(image("b"))
	r.expect("intact after 1 steps", "check")
	r.end()
}
