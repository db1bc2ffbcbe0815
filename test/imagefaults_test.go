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

	"github.com/lgpu/lgpu/internal/proc"
)

// released is what the daemon has noted of programs that are off their devices, or on the way.
func (p *place) released() string {
	text, _ := os.ReadFile(filepath.Join(p.dir, "released.json")) // there may be none
	return string(text)
}

// settled waits until a program is neither held nor on its way, and says whether it is there still.
func (p *place) settled(path string) (there bool) {
	p.t.Helper()
	p.wait(path+" is neither held nor on its way", func() bool {
		if p.snapshot() == nil {
			return false
		}
		n := p.directory(path)
		there = n != nil
		return !strings.Contains(p.released(), `"lgpu"`) && len(p.locks()) == 0 && (!there || len(n.GetClients()) > 0)
	})
	return there
}

// whole says whether there is an image, which then has to be whole.
func (p *place) whole(image string) bool {
	p.t.Helper()
	if _, err := os.Lstat(image); err != nil {
		return false
	}
	p.must("image", "verify", p.key(), image)
	return true
}

// Whenever something of a checkpoint is killed, or its time is over, the program goes on and there is no image; or there is one
// that is whole, and the program goes on or is ended, as was asked. What is left of one that is not whole is taken away.
func TestCheckpointKilledOften(t *testing.T) {
	for _, options := range [][]string{{"--contain=off"}, {"--contain=off", "--overcommit"}} {
		t.Run(strings.Join(options, " "), func(t *testing.T) { checkpointKilledOften(t, options) })
	}
}

func checkpointKilledOften(t *testing.T, options []string) {
	p, folder := imagePlace(t)
	idle := p.small("idle", "--contain=off") // whose launcher starts the next daemon
	c := p.small("kept", options...)
	steps := 0
	step := func() {
		t.Helper()
		c.expect("stepped 1", "step 1")
		steps++
		c.expect(fmt.Sprintf("intact after %d steps", steps), "check")
	}
	step()
	took := time.Duration(p.checkpoint("kept", filepath.Join(folder, "first")).Seconds * float64(time.Second))
	for i := range rounds(8, 60) {
		image := filepath.Join(folder, fmt.Sprint(i))
		args := []string{"checkpoint", "kept", "--to", image, p.key()}
		stop, moment, victim := i%2 == 0, rand.N(took), i/2%4
		if stop {
			args = append(args, "--stop")
		}
		daemon, helper := p.daemon().Daemon.GetPid(), p.helper()
		if victim == 3 { // nobody
			args = append(args, "--timeout", fmt.Sprint(max(moment, time.Millisecond)))
		}
		k := p.start("lgpu", args...)
		if victim != 3 {
			time.Sleep(moment) // any moment will do
			unix.Kill([]int{int(daemon), helper, k.Process.Pid}[victim], unix.SIGKILL)
		}
		s := k.status()
		if victim == 0 {
			p.waitForDaemonAfter(daemon)
		}
		there, whole := p.settled("/kept"), p.whole(image)
		if s == 0 && !whole || !there && !(whole && stop) || s == 0 && there == stop {
			t.Fatalf("round %d, victim %d after %v: status %d, image %v, program %v: %s", i, victim, moment, s, whole, there,
				k.stderr.String())
		}
		if there {
			step()
		} else {
			p.gone(c, "/kept")
			c = p.restore(image)
			c.expect(fmt.Sprintf("intact after %d steps", steps), "check")
			p.enters("/kept")
			p.must("suspend", "--release", "kept") // so that the daemon has a helper
			p.must("resume", "kept")
		}
		p.must("image", "gc", folder)
		if left, err := os.ReadDir(filepath.Join(folder, ".lgpu-images", "new")); err != nil || len(left) > 0 {
			t.Errorf("round %d: images that are not whole are left: %v, %v", i, left, err)
		}
		if victim == 0 || victim == 1 {
			p.must("suspend", "--release", "kept")
			p.must("resume", "kept")
		}
	}
	step()
	c.end()
	idle.expect("intact after 0 steps", "check")
	idle.end()
}

// Of two checkpoints of a program at once one is taken, and the other refused without harm to the first.
func TestCheckpointTwice(t *testing.T) {
	p, folder := imagePlace(t)
	c := p.small("kept", "--contain=off")
	begun, on := filepath.Join(p.dir, "begun"), filepath.Join(p.dir, "on")
	if err := unix.Mkfifo(on, 0o600); err != nil {
		t.Fatal(err)
	}
	env := p.env
	script := fmt.Sprintf(`echo $$ >%q; read line <%q; exec "$criu" "$@"`, begun, on)
	p.env = append(slices.Clip(env), "LGPU_CRIU="+p.saboteur(folder, script))
	first := p.start("lgpu", "checkpoint", "kept", "--stop", "--to", filepath.Join(folder, "a"), p.key())
	p.env = env
	p.numberIn(begun)
	locks := p.locks()
	p.refused(1, "its programs are on the way", "checkpoint", "kept", "--to", filepath.Join(folder, "b"), p.key())
	if len(locks) != 1 || len(p.locks()) != 1 {
		t.Errorf("the first one's lock is gone: %v, %v", locks, p.locks())
	}
	if p.whole(filepath.Join(folder, "b")) {
		t.Error("there are two images")
	}
	if err := os.WriteFile(on, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	if s := first.status(); s != 0 {
		t.Errorf("the first one: status %d: %s", s, first.stderr.String())
	}
	p.gone(c, "/kept")
	r := p.restore(filepath.Join(folder, "a"))
	r.expect("intact after 0 steps", "check")
	r.end()
}

// What is held up in a phase of a checkpoint until its time is over goes on.
func TestCheckpointDeadlines(t *testing.T) {
	for _, options := range [][]string{{"--contain=off"}, {"--contain=off", "--overcommit"}} {
		t.Run(strings.Join(options, " "), func(t *testing.T) { checkpointDeadlines(t, options) })
	}
}

func checkpointDeadlines(t *testing.T, options []string) {
	p, folder := imagePlace(t)
	c := p.small("kept", options...)
	p.must("suspend", "--release", "kept") // so that the daemon has a helper
	p.must("resume", "kept")
	program, image := p.ps()[0].Processes[0].PID, filepath.Join(folder, "a")
	for phase, try := range map[string]struct {
		pid    int
		script string
	}{
		"gated": {pid: program}, "saved": {pid: p.helper()}, "dumped": {script: `exec sleep 1000`},
	} {
		k := p.command("lgpu", "checkpoint", "kept", "--stop", "--to", image, "--timeout", "2s", p.key())
		if try.pid != 0 {
			unix.Kill(try.pid, unix.SIGSTOP)
		} else {
			k.Env = append(slices.Clip(k.Env), "LGPU_CRIU="+p.saboteur(folder, try.script))
		}
		out, _ := k.CombinedOutput()
		if try.pid != 0 {
			unix.Kill(try.pid, unix.SIGCONT)
		}
		const says = "not within 2s; there is no image, and its program goes on"
		if s := k.ProcessState.ExitCode(); s != 1 || !strings.Contains(string(out), says) {
			t.Errorf("%s: status %d: %s", phase, s, out)
		}
		if !p.settled("/kept") || p.whole(image) {
			t.Errorf("%s: the program is gone, or there is an image", phase)
		}
		c.expect("intact after 0 steps", "check")
	}
	p.checkpoint("kept", image, "--stop")
	p.gone(c, "/kept")
}

// asked says whether a stopped helper has been asked for something.
func asked(t *testing.T, helper int) bool {
	t.Helper()
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/fd/0", helper), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	waits, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil {
		t.Fatal(err)
	}
	return waits > 0
}

// A helper that is killed while it calls the driver, on the way out or back, costs nothing: another one calls it.
func TestCheckpointHelperKilled(t *testing.T) {
	p, folder := imagePlace(t)
	c := p.small("kept", "--contain=off")
	ready := func() int {
		p.must("suspend", "--release", "kept")
		p.must("resume", "kept")
		return p.helper()
	}
	helper := ready()
	unix.Kill(helper, unix.SIGSTOP)
	k := p.start("lgpu", "checkpoint", "kept", "--to", filepath.Join(folder, "a"), p.key())
	p.wait("it is asked for something", func() bool { return asked(t, helper) })
	unix.Kill(helper, unix.SIGKILL)
	if s := k.status(); s != 0 {
		t.Errorf("status %d: %s", s, k.stderr.String())
	}
	c.expect("intact after 0 steps", "check")
	c.expect("stepped 1", "step 1")
	helper = ready()
	env := p.env
	p.env = append(slices.Clip(env), "LGPU_CRIU="+p.saboteur(folder, fmt.Sprintf(`kill -STOP %d; exec "$criu" "$@"`, helper)))
	k = p.start("lgpu", "checkpoint", "kept", "--to", filepath.Join(folder, "b"), p.key())
	p.env = env
	p.wait("it is dumped", func() bool { s, err := proc.Live(helper); return err == nil && s.Stopped })
	p.wait("it is to come back", func() bool { return asked(t, helper) })
	unix.Kill(helper, unix.SIGKILL)
	if s := k.status(); s != 0 {
		t.Errorf("status %d: %s", s, k.stderr.String())
	}
	c.expect("intact after 1 steps", "check")
	c.end()
	for name, steps := range map[string]int{"a": 0, "b": 1} {
		r := p.restore(filepath.Join(folder, name))
		r.expect(fmt.Sprintf("intact after %d steps", steps), "check")
		r.end()
	}
}

// A program that is killed at any moment of a checkpoint is gone, and there is no image; or there is one that is whole.
func TestCheckpointProgramKilled(t *testing.T) {
	p, folder := imagePlace(t)
	c := p.small("kept", "--overcommit", "--contain=off")
	took := time.Duration(p.checkpoint("kept", filepath.Join(folder, "first")).Seconds * float64(time.Second))
	for i := range rounds(4, 40) {
		image, moment := filepath.Join(folder, fmt.Sprint(i)), rand.N(took)
		program := p.ps()[0].Processes[0].PID
		k := p.start("lgpu", "checkpoint", "kept", "--to", image, p.key())
		time.Sleep(moment) // any moment will do
		unix.Kill(program, unix.SIGKILL)
		s := k.status()
		p.gone(c, "/kept")
		p.settled("/kept")
		if whole := p.whole(image); whole != (s == 0) {
			t.Errorf("round %d, after %v: status %d, image %v: %s", i, moment, s, whole, k.stderr.String())
		}
		c = p.restore(filepath.Join(folder, "first"))
		c.expect("intact after 0 steps", "check")
		p.enters("/kept")
	}
	c.end()
}

// A CRIU that is killed in the middle of a dump leaves no image, and a program that goes on: its code in there ends with it. Only
// while that comes and goes the program may be lost.
func TestCheckpointCRIUKilled(t *testing.T) {
	p, folder := imagePlace(t)
	c := p.small("kept", "--contain=off")
	took, file, env := time.Second, filepath.Join(p.dir, "criu.pid"), p.env
	for i := range rounds(4, 60) {
		os.Remove(file)
		image := filepath.Join(folder, fmt.Sprint(i))
		p.env = append(slices.Clip(env), "LGPU_CRIU="+p.saboteur(folder, fmt.Sprintf(`echo $$ >%q; exec "$criu" "$@"`, file)))
		k := p.start("lgpu", "checkpoint", "kept", "--to", image, p.key())
		p.env = env
		pid, begun := p.numberIn(file), time.Now()
		if i > 0 { // how long does it take?
			time.Sleep(rand.N(took)) // any moment will do
			unix.Kill(pid, unix.SIGKILL)
		}
		s := k.status()
		if i == 0 {
			took = time.Since(begun)
		}
		there, whole := p.settled("/kept"), p.whole(image)
		if whole != (s == 0) {
			t.Errorf("round %d: status %d, image %v: %s", i, s, whole, k.stderr.String())
		}
		if !there {
			t.Logf("round %d: the program is lost", i)
			p.wait("its launcher ends", func() bool { return c.status() != 0 })
			c = p.small("kept", "--contain=off")
		}
		c.expect("intact after 0 steps", "check")
	}
	c.end()
}
