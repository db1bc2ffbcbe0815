package contain

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
)

// terminal is an interactive shell on a terminal of its own.
type terminal struct {
	t     *testing.T
	f     *os.File
	shown []byte // what no expect has taken yet
}

// interact starts a shell of the place's user, whose prompt is "out> ", with $run.
func (p *place) interact(t *testing.T, contain string) *terminal {
	t.Helper()
	f, tty, err := pty.Open()
	if err != nil {
		t.Skip("no terminals here: ", err)
	}
	defer tty.Close()
	if err := tty.Chown(p.uid, -1); err != nil {
		t.Fatal(err)
	}
	c := p.command()
	c.Path, c.Args = "/bin/bash", []string{"bash", "--norc", "-i"}
	c.Stdin, c.Stdout, c.Stderr = tty, tty, tty
	c.Env = append(c.Env, "PS1=out> ", "HISTFILE=", "TERM=dumb", "LGPU_CONTAIN="+contain,
		"run="+filepath.Join(bin, "lgpu")+" run --sim=1x4GiB,sms=4")
	if c.SysProcAttr == nil {
		c.SysProcAttr = &syscall.SysProcAttr{}
	}
	c.SysProcAttr.Setsid, c.SysProcAttr.Setctty = true, true
	if err := c.Start(); err != nil {
		t.Skip("no shell: ", err)
	}
	t.Cleanup(func() { hangUp(t, f, c) })
	s := &terminal{t: t, f: f}
	s.expect("out> ")
	return s
}

// hangUp ends the shell, and with its terminal all that it has started.
func hangUp(t *testing.T, f *os.File, c *exec.Cmd) {
	if err := c.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = c.Wait() // it was killed
	f.Close()
}

// types types text, and waits for what the terminal then shows, which begins after what was shown before.
func (s *terminal) types(text, expect string) {
	s.t.Helper()
	if _, err := s.f.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
	s.expect(expect)
}

func (s *terminal) expect(want string) {
	s.t.Helper()
	if err := s.f.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		s.t.Fatal(err)
	}
	for buffer := make([]byte, 4096); ; {
		if _, after, found := bytes.Cut(s.shown, []byte(want)); found {
			s.shown = after
			return
		}
		n, err := s.f.Read(buffer)
		if err != nil {
			s.t.Fatalf("no %q on the terminal: %v\n%s", want, err, s.shown)
		}
		s.shown = append(s.shown, buffer[:n]...)
	}
}

// answering is a command that says when it is up, and answers lines until the end of its input.
const answering = "sh -c 'echo u''p; tty -s && while read x; do echo got-$x; done'\n"

// TestTerminal: a contained program has the terminal, and is in the shell's job control, as any other.
//
// Blanks come first after a key that stops, interrupts or ends a program: the shell may drop what is typed meanwhile.
func TestTerminal(t *testing.T) {
	users(t, func(t *testing.T, p *place) {
		p.permitted(t)
		for _, contain := range []string{"off", "on"} {
			t.Run(contain, func(t *testing.T) {
				s := p.interact(t, contain)
				s.types("$run "+answering, "\nup")
				s.types("first\n", "got-first") // so the terminal is its own
				s.types("\x1a", "Stopped")
				s.types("   fg\n", "done'")
				s.types("typed\n", "got-typed")
				s.types("\x03", "out> ")
				s.types("   echo sta''tus $?\n", "status 130")
				s.expect("out> ")
				s.types("PS1='in> ' $run bash --norc -i; echo sta''tus $?\n", "\nin> ")
				s.types(answering, "\nup")
				s.types("first\n", "got-first") // so the terminal is its own
				s.types("\x1a", "Stopped")
				s.types("   fg\n", "done'")
				s.types("typed\n", "got-typed")
				s.types("\x04", "in> ")
				s.types("   exit 5\n", "status 5")
				s.expect("out> ")
				s.types("nohup $run sh -c 'kill -HUP $$; echo al''ive' 2>&1 | cat\n", "\nalive")
			})
		}
	})
}
