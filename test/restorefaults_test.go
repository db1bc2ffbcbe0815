package test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// tree starts a program of two processes that holds memory; its status is 7.
func (p *place) tree(name string, options ...string) *tenant {
	p.t.Helper()
	args := append([]string{"run", tideShape, "--name", name}, options...)
	c := p.start("lgpu", append(args, "--", "sh", "-c", `tide "$0" "$1"; exit 7`, linear, control)...)
	c.until("ready")
	c.expect("hold CUDA_SUCCESS", "hold %d %d", smallCount, smallBlock)
	return c
}

// away has a program do three steps, and ends it when it is in an image. It returns the number that its process had.
func (p *place) away(c *tenant, name, image string) (program int) {
	p.t.Helper()
	c.expect("stepped 3", "step 3")
	program = p.ps()[0].Processes[0].PID
	p.checkpoint(name, image, "--stop")
	p.gone(c, "/"+name)
	return program
}

// temporary gives the place a folder for temporary files of its own.
func (p *place) temporary() string {
	p.t.Helper()
	dir := filepath.Join(p.dir, "tmp")
	if err := os.Mkdir(dir, 0o700); err != nil {
		p.t.Fatal(err)
	}
	p.env = append(p.env, "TMPDIR="+dir)
	return dir
}

// programs are the processes of the place that are no daemon's.
func (p *place) programs() []string {
	return slices.DeleteFunc(processesOf(p.dir), func(command string) bool {
		return strings.Contains(command, "lgpu daemon") || strings.Contains(command, "lgpu sim")
	})
}

// nothingLeft waits until nothing is left of a program that was being restored: no process, no lgpu, no copy of its files.
func (p *place) nothingLeft(path, temporary string) {
	p.t.Helper()
	p.wait("all processes end", func() bool { return len(p.programs()) == 0 })
	p.wait(path+" goes", func() bool { return p.directory(path) == nil })
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		p.t.Errorf("temporary files are left: %v, %v", left, err)
	}
	p.wait("the copies go", func() bool { // with the daemon, if that has been killed
		s := p.snapshot()
		return s == nil || s.GetDaemon().GetHostCopies()+s.GetDaemon().GetDiskCopies() == 0
	})
}

// numberIn is the number that a process writes to a file.
func (p *place) numberIn(file string) (pid int) {
	p.t.Helper()
	p.wait("a number in "+file, func() bool {
		text, err := os.ReadFile(file)
		if err == nil {
			pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		return err == nil
	})
	return pid
}

// helper is the process of the daemon that calls the driver.
func (p *place) helper() (pid int) {
	p.t.Helper()
	out, err := exec.Command("pgrep", "-P", fmt.Sprint(p.daemon().Daemon.GetPid()), "-f", "checkpoint-helper").Output()
	if err == nil {
		_, err = fmt.Sscan(string(out), &pid)
	}
	if err != nil {
		p.t.Fatalf("no helper: %v", err)
	}
	return pid
}

// Whenever CRIU is killed while it restores, nothing of the program is left, and its image is restored after that.
func TestRestoreCRIUKilled(t *testing.T) {
	for _, options := range [][]string{{"--contain=off"}, {"--overcommit"}} {
		t.Run(strings.Join(options, " "), func(t *testing.T) { restoreCRIUKilled(t, options) })
	}
}

func restoreCRIUKilled(t *testing.T, options []string) {
	p, folder := imagePlace(t)
	temporary, image := p.temporary(), filepath.Join(folder, "a")
	p.away(p.tree("kept", options...), "kept", image)
	file := filepath.Join(p.dir, "criu.pid")
	env := p.env
	took := time.Second
	for i := range rounds(6, 100) {
		os.Remove(file)
		p.env = append(slices.Clip(env), "LGPU_CRIU="+p.actsAsCRIU(fmt.Sprintf(`echo $$ >%q; exec "$criu" "$@"`, file)))
		r := p.restore(image)
		p.env = env
		pid := p.numberIn(file)
		if begun := time.Now(); i == 0 { // how long does it take?
			p.enters("/kept")
			took = time.Since(begun)
			r.expect("intact after 3 steps", "check")
			r.ends(7)
			p.nothingLeft("/kept", temporary)
			continue
		}
		time.Sleep(rand.N(took)) // any moment will do
		unix.Kill(pid, unix.SIGKILL)
		r.in.Close()
		if s := r.status(); s != 7 && (s != 1 || !strings.Contains(r.stderr.String(), "criu restore")) {
			t.Errorf("round %d: status %d: %s", i, s, r.stderr.String())
		}
		p.nothingLeft("/kept", temporary)
	}
	r := p.restore(image)
	r.expect("intact after 3 steps", "check")
	r.ends(7)
}

// A program that ends before it is let into its lgpu, since its input has ended, gives lgpu restore its status.
func TestRestoredEndsAtOnce(t *testing.T) {
	for _, options := range [][]string{{"--contain=off"}, {"--overcommit"}} {
		t.Run(strings.Join(options, " "), func(t *testing.T) { restoredEndsAtOnce(t, options) })
	}
}

func restoredEndsAtOnce(t *testing.T, options []string) {
	p, folder := imagePlace(t)
	temporary, orders := p.temporary(), filepath.Join(p.dir, "orders")
	if err := unix.Mkfifo(orders, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.OpenFile(orders, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	for program, try := range map[string]struct {
		status int
		says   string // it may end with status 1 and this
		left   bool   // its child goes on
	}{
		`exec tide "$0" "$1"`:                                      {},
		`tide "$0" "$1" <"$2" & read line; exit 5`:                 {status: 5, left: true},
		`tide "$0" "$1" <"$2" & read line; kill -TERM $$`:          {status: 143, left: true},
		`tide "$0" "$1" <"$2" & read line; kill -KILL $!; kill $$`: {143, "it can be tried again", false},
	} {
		image := filepath.Join(folder, fmt.Sprint(len(program)))
		args := append([]string{"run", tideShape, "--name", "kept"}, options...)
		c := p.start("lgpu", append(args, "--", "sh", "-c", program, linear, control, orders)...)
		c.until("ready")
		p.checkpoint("kept", image, "--stop")
		p.gone(c, "/kept")
		for range rounds(2, 10) {
			said, err := os.Create(filepath.Join(p.dir, "said")) // no pipe, which a child that goes on would keep
			if err != nil {
				t.Fatal(err)
			}
			r := p.command("lgpu", "restore", p.key(), image)
			r.Stdout, r.Stderr = said, said
			_ = r.Run()
			s := r.ProcessState.ExitCode()
			out, err := os.ReadFile(said.Name())
			if err := errors.Join(err, said.Close()); err != nil {
				t.Fatal(err)
			}
			if odd := s == 1 && try.says != "" && strings.Contains(string(out), try.says); !odd && (s != try.status || len(out) > 0) {
				t.Errorf("%s: status %d: %s", program, s, out)
			}
			if try.left && len(p.programs()) > 0 {
				fmt.Fprintln(pipe, "quit")
			}
			p.nothingLeft("/kept", temporary)
		}
	}
}

// Whenever something of a restore is killed, or its time is over, nothing of the program is left, and its image is restored after
// that; or it is there.
func TestRestoreKilledOften(t *testing.T) {
	for _, options := range [][]string{{"--contain=off"}, {"--contain=off", "--overcommit"}} {
		t.Run(strings.Join(options, " "), func(t *testing.T) { restoreKilledOften(t, options) })
	}
}

func restoreKilledOften(t *testing.T, options []string) {
	p, folder := imagePlace(t)
	temporary, image := p.temporary(), filepath.Join(folder, "a")
	program := p.away(p.tree("kept", options...), "kept", image)
	restored := func() time.Duration {
		t.Helper()
		begun := time.Now()
		r := p.restore(image)
		p.enters("/kept")
		took := time.Since(begun)
		r.expect("intact after 3 steps", "check")
		r.ends(7)
		p.nothingLeft("/kept", temporary)
		return took
	}
	took := restored()
	for i := range rounds(8, 60) {
		victim, moment := i%4, rand.N(took)
		daemon, helper := p.daemon().Daemon.GetPid(), p.helper()
		var last []string
		if victim == 3 { // nobody
			last = []string{"--timeout", fmt.Sprint(max(moment, time.Millisecond))}
		}
		r := p.restore(image, last...)
		if victim != 3 {
			time.Sleep(moment) // any moment will do
			unix.Kill([]int{int(daemon), helper, program}[victim], unix.SIGKILL)
		}
		r.in.Close()
		s := r.status()
		says := r.stderr.String()
		left := victim == 3 && s == 1 && strings.Contains(says, "; nothing of the program is left")
		if s != 7 && (s != 1 || victim == 3 && !left || says == "") {
			t.Errorf("round %d, victim %d after %v: status %d: %s", i, victim, moment, s, says)
		}
		p.nothingLeft("/kept", temporary)
		if victim < 2 {
			restored() // so that the daemon has a helper
		}
	}
	restored()
}

// A daemon, its helper or a program that is killed in a phase of a restore, or is held up in it until the time is over, leaves
// nothing of the program.
func TestRestoreFails(t *testing.T) {
	for _, options := range [][]string{{"--contain=off"}, {"--overcommit"}} {
		t.Run(strings.Join(options, " "), func(t *testing.T) { restoreFails(t, options) })
	}
}

func restoreFails(t *testing.T, options []string) {
	p, folder := imagePlace(t)
	temporary, image := p.temporary(), filepath.Join(folder, "a")
	program := p.away(p.small("kept", options...), "kept", image)
	enters := func() bool { return strings.Contains(p.released(), `"moving":true`) }
	brief, hold := []string{"--timeout", "2s"}, `kill -STOP $helper; exec "$criu" "$@"`
	type fault struct {
		script  string // of what CRIU is then; $daemon and $helper are processes
		when    func() bool
		victim  string // who is killed then
		options []string
		status  int
		says    string
	}
	for what, try := range map[string]fault{
		"no time":                    {options: []string{"--timeout", "1ms"}, status: 1, says: "not within 1ms; nothing"},
		"criu hangs":                 {script: `exec sleep 1000`, options: brief, status: 1, says: "not within 2s; nothing"},
		"criu fails":                 {script: `exit 1`, status: 1, says: "criu restore"},
		"criu is killed":             {script: `kill -KILL $$`, status: 1, says: "it ended without an answer: signal: killed"},
		"the daemon is killed":       {script: `kill -KILL $daemon; exec "$criu" "$@"`, status: 1, says: "daemon"},
		"the helper hangs":           {script: hold, options: brief, status: 1, says: "not within 2s; nothing"},
		"the helper is killed":       {script: hold, when: enters, victim: "helper"},
		"the daemon is killed later": {script: hold, when: enters, victim: "daemon", status: 1, says: "daemon"},
		"the program is killed":      {script: hold, when: enters, victim: "program", status: 137},
	} {
		r := p.restore(image) // so that the daemon has a helper
		r.expect("intact after 3 steps", "check")
		p.enters("/kept")
		r.end()
		p.nothingLeft("/kept", temporary)
		daemon, helper := p.daemon().Daemon.GetPid(), p.helper()
		env := p.env
		if try.script != "" {
			p.env = append(slices.Clip(env), "LGPU_CRIU="+p.actsAsCRIU(fmt.Sprintf("daemon=%d helper=%d\n%s", daemon, helper, try.script)))
		}
		r = p.restore(image, try.options...)
		p.env = env
		if try.when != nil {
			p.wait(what, try.when)
			unix.Kill(map[string]int{"helper": helper, "daemon": int(daemon), "program": program}[try.victim], unix.SIGKILL)
			unix.Kill(helper, unix.SIGCONT)
		}
		if try.victim == "helper" { // another one brings it back
			r.expect("intact after 3 steps", "check")
			r.in.Close()
		}
		if s := r.status(); s != try.status || !strings.Contains(r.stderr.String(), try.says) {
			t.Errorf("%s: status %d: %s", what, s, r.stderr.String())
		}
		unix.Kill(helper, unix.SIGCONT)
		p.nothingLeft("/kept", temporary)
	}
}
