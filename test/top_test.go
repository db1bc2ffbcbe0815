package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/lgpu/lgpu/internal/users"
)

// terminal is a real one, of tmux, in which a program runs.
type terminal struct {
	p      *place
	socket string
}

// terminal starts a program in a terminal of a size. Without tmux on this machine the test is skipped, but not where CI
// says that there must be one.
func (p *place) terminal(width, height int, program string) *terminal {
	p.t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		if os.Getenv("CI") != "" {
			p.t.Fatal("there is no tmux, which CI must install")
		}
		p.t.Skip("there is no tmux")
	}
	t := &terminal{p, filepath.Join(p.dir, "tmux")}
	p.t.Cleanup(func() {
		// The server ends by itself with the program, and then there is none to end.
		_ = t.command("kill-server").Run()
	})
	t.do("new-session", "-d", "-x", strconv.Itoa(width), "-y", strconv.Itoa(height), program)
	return t
}

func (t *terminal) command(args ...string) *exec.Cmd {
	return t.p.command("tmux", append([]string{"-u", "-f", "/dev/null", "-S", t.socket}, args...)...)
}

func (t *terminal) do(args ...string) string {
	t.p.t.Helper()
	out, err := t.command(args...).CombinedOutput()
	if err != nil {
		t.p.t.Fatalf("tmux %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// keys presses keys, by tmux's names for them.
func (t *terminal) keys(keys ...string) {
	t.p.t.Helper()
	t.do(append([]string{"send-keys"}, keys...)...)
}

// types types a text as it is.
func (t *terminal) types(text string) {
	t.p.t.Helper()
	t.do("send-keys", "-l", text)
}

// shows waits until the screen has all of some texts, and returns it.
func (t *terminal) shows(texts ...string) string {
	t.p.t.Helper()
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		screen, missing := t.do("capture-pane", "-p"), ""
		for _, text := range texts {
			if !strings.Contains(screen, text) {
				missing = text
			}
		}
		if missing == "" {
			return screen
		}
		if time.Since(start) > patience {
			t.p.t.Fatalf("the terminal does not show %q:\n%s", missing, screen)
		}
	}
}

// lgpu top in a real terminal: as narrow as 60 columns, with keys that filter, fold, set a limit and ask before ending.
func TestTopInATerminal(t *testing.T) {
	p := newPlace(t)
	red := p.start("lgpu", "run", shape, "--name", "red", "--memory", "2GiB", "--", "hold", "0", "1200000000")
	red.until("ready")
	top := p.terminal(60, 24, "lgpu top --interval 100ms")
	me := users.Name(uint32(os.Getuid()))
	if len(me) > 8 {
		me = me[:7]
	}
	screen := top.shows("ASKED→GOT", "▾ 0 ", "red", me, "/2G", "q quit")
	for line := range strings.Lines(screen) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 60 {
			t.Errorf("%d columns: %q", n, line)
		}
	}
	top.do("resize-window", "-x", "110", "-y", "24")
	top.shows("WEIGHT", "LATELY")
	top.do("resize-window", "-x", "60", "-y", "24")

	top.keys("/")
	top.types("no such thing")
	top.shows("nothing is as the filter says")
	top.keys("Escape")
	top.shows("red", "q quit")

	top.keys("Down", "Down", "Right")
	top.shows("hold") // its process
	top.keys("Left", "s")
	top.shows("set /red FILE=VALUE:")
	top.types("compute.max=25%")
	top.keys("Enter")
	top.shows("done: set compute.max=25% of /red")
	if got := p.must("show", "/red", "compute.max"); !strings.Contains(got, " 25") {
		t.Errorf("compute.max shows %q", got)
	}
	top.keys("s")
	top.types("memory.max=8")
	top.keys("Enter")
	top.shows("unit") // that one was refused before it was sent
	top.keys("s")
	top.types("memory.max=17GiB")
	top.keys("Enter")
	top.shows("has 16 GiB; max is all of it")
	top.keys("k")
	top.shows("end all programs in /red: 1 process? y/n")
	top.keys("n")
	top.shows("nothing was ended")
	top.keys("p")
	top.shows("COMMAND", "hold", "/red")
	top.keys("p", "Down", "Down", "k")
	top.shows("end all programs in /red: 1 process? y/n")
	top.keys("y")
	top.shows("done: ending all programs in /red")
	red.status() // it has ended
	top.shows("0 lgpus")
	stopped := p.must("events", "--kind", "lgpu.stopped", "--user", strconv.Itoa(os.Getuid()))
	if !strings.Contains(stopped, "/red") || !strings.Contains(stopped, fmt.Sprintf(", by user %d", os.Getuid())) {
		t.Errorf("of what was ended, lgpu events says %q", stopped)
	}
	top.keys("q")
	p.wait("the end of lgpu top", func() bool { return top.command("has-session").Run() != nil })
}

// On a narrow terminal, power and energy take the place of what an lgpu does when somebody asks for them, with figures of
// the device and of each lgpu; a wide one has them anyway.
func TestTopShowsEnergyInATerminal(t *testing.T) {
	p := newPlace(t)
	red := p.start("lgpu", "run", shape, "--name", "red", "--memory", "2GiB", "--", "obey", control)
	red.until("ready")
	red.tell("launch 100000 10000") // more than the test takes
	top := p.terminal(60, 24, "lgpu top --interval 100ms")
	top.shows("ASKED→GOT  STATE", "red")
	top.keys("e")
	top.shows("ASKED→GOT POWER ENERGY", "red")
	used := regexp.MustCompile(`(?m)^ +red .* [1-9][0-9.]*W +[1-9][0-9.]*k?J *$`)
	p.wait("watts and joules of red", func() bool { return used.MatchString(top.do("capture-pane", "-p")) })
	top.keys("e")
	top.shows("ASKED→GOT  STATE", "red")
	top.do("resize-window", "-x", "120", "-y", "24")
	top.shows("POWER ENERGY WEIGHT  STATE", "red")
	top.keys("q")
	p.wait("the end of lgpu top", func() bool { return top.command("has-session").Run() != nil })
	p.must("stop", "red")
	red.status()
}
