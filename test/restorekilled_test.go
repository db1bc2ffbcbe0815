package test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Whenever lgpu restore is killed, alone, with its process group or with CRIU, nothing of the program is left, and its image is
// restored after that; or the program had come into its lgpu, and is what that of a killed lgpu run is.
func TestRestoreLauncherKilled(t *testing.T) {
	for _, options := range [][]string{{"--contain=off"}, {"--overcommit"}} {
		t.Run(strings.Join(options, " "), func(t *testing.T) { restoreLauncherKilled(t, options) })
	}
}

func restoreLauncherKilled(t *testing.T, options []string) {
	p, folder := imagePlace(t)
	p.temporary()
	image := filepath.Join(folder, "a")
	child := p.away(p.tree("kept", options...), "kept", image)
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	restored := func() time.Duration {
		t.Helper()
		begun := time.Now()
		r := p.restore(image)
		p.enters("/kept")
		took := time.Since(begun)
		r.expect("intact after 3 steps", "check")
		r.ends(7)
		p.wait("the lgpu goes", func() bool { return p.directory("/kept") == nil && len(p.programs()) == 0 })
		return took
	}
	took := min(restored(), restored()) // the first one starts the helper
	file := filepath.Join(p.dir, "criu.pid")
	env := p.env
	in, all := 0, rounds(9, 90)
	for i := range all {
		os.Remove(file)
		p.env = append(slices.Clip(env), "LGPU_CRIU="+p.actsAsCRIU(fmt.Sprintf(`echo $$ >%q; exec "$criu" "$@"`, file)))
		k := p.restore(image)
		p.env = env
		moment, victims := time.Duration(r.Int64N(int64(took)*5/4)), []int{k.Process.Pid}
		switch i % 3 {
		case 1:
			victims[0] *= -1
		case 2:
			victims = append(victims, p.numberIn(file))
			moment /= 6 // CRIU has not ended by then, mostly
		}
		time.Sleep(moment) // any moment will do
		for _, pid := range victims {
			unix.Kill(pid, unix.SIGKILL) // CRIU may have ended
		}
		free := false // it had come in: its first process is killed with its parent, and the others go on
		p.wait(fmt.Sprintf("round %d, killed after %v: nothing of it is left", i, moment), func() bool {
			left := p.programs()
			if free = free || len(left) == 1 && strings.Contains(left[0], "tide") && p.charged("/kept"); free {
				k.in.Close()
			}
			return len(left) == 0 && p.directory("/kept") == nil && unix.Kill(child, 0) != nil
		})
		if s := k.status(); s != -1 {
			t.Fatalf("round %d: after %v it had ended with status %d: %s", i, moment, s, k.stderr.String())
		}
		if free {
			in++
		}
	}
	t.Logf("of %d it was in its lgpu %d times", all, in)
	restored()
}

// charged says whether a program is in its lgpu, with what it holds.
func (p *place) charged(path string) bool {
	n := p.directory(path)
	return n != nil && len(n.GetClients()) == 1 && !strings.Contains(p.released(), `"moving":true`)
}

// If lgpu restore is killed when all of a program is there, and before the daemon has let it in, nothing of it is left.
func TestRestoreLauncherKilledLate(t *testing.T) {
	for _, options := range [][]string{{"--contain=off"}, {"--overcommit"}} {
		t.Run(strings.Join(options, " "), func(t *testing.T) { restoreLauncherKilledLate(t, options) })
	}
}

func restoreLauncherKilledLate(t *testing.T, options []string) {
	p, folder := imagePlace(t)
	image := filepath.Join(folder, "a")
	p.away(p.tree("kept", options...), "kept", image)
	r := p.restore(image) // so that the daemon has a helper
	r.expect("intact after 3 steps", "check")
	p.enters("/kept")
	r.ends(7)
	helper := p.helper()
	env := p.env
	p.env = append(slices.Clip(env), "LGPU_CRIU="+p.actsAsCRIU(fmt.Sprintf(`kill -STOP %d; exec "$criu" "$@"`, helper)))
	k := p.restore(image)
	p.env = env
	p.wait("it enters", func() bool { return strings.Contains(p.released(), `"moving":true`) })
	unix.Kill(k.Process.Pid, unix.SIGKILL)
	p.wait("nothing of it is left", func() bool { return len(p.programs()) == 0 })
	unix.Kill(helper, unix.SIGCONT)
	p.wait("the lgpu goes", func() bool { return p.directory("/kept") == nil })
	r = p.restore(image)
	r.expect("intact after 3 steps", "check")
	r.ends(7)
}

// A program that is restored is killed with lgpu restore, as it is with lgpu run, once it is in its lgpu.
func TestRestoredKilledWithLauncher(t *testing.T) {
	p, folder := imagePlace(t)
	image := filepath.Join(folder, "a")
	c := p.small("kept")
	p.checkpoint("kept", image, "--stop")
	p.gone(c, "/kept")
	r := p.restore(image)
	r.expect("intact after 0 steps", "check")
	p.enters("/kept")
	p.wait("it is let go", func() bool { return !strings.Contains(strings.Join(p.programs(), "\n"), "lgpu image keeper") })
	r.Process.Kill()
	p.wait("the program is killed", func() bool { return len(p.programs()) == 0 && p.directory("/kept") == nil })
	if _, err := os.Stat(image); err != nil {
		t.Error(err)
	}
	r = p.restore(image)
	r.expect("intact after 0 steps", "check")
	r.end()
}
