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
	p.wait("the copies go", func() bool { host, disk := p.copies(); return host+disk == 0 })
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
	c := p.tree("kept", options...)
	c.expect("stepped 3", "step 3")
	p.checkpoint("kept", image, "--stop")
	p.gone(c, "/kept")
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
			r.in.Close()
			if s := r.status(); s != 7 {
				t.Errorf("status %d: %s", s, r.stderr.String())
			}
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
	r.in.Close()
	if s := r.status(); s != 7 {
		t.Errorf("status %d: %s", s, r.stderr.String())
	}
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
