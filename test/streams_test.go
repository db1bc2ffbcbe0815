package test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// onTerminal starts a command as the first process of a session with a terminal, whose other side it returns.
func (p *place) onTerminal(args ...string) (*exec.Cmd, *os.File, *bufio.Reader) {
	p.t.Helper()
	user, program, err := pty.Open()
	if err != nil {
		p.t.Fatal(err)
	}
	c := p.command("lgpu", args...)
	c.Stdin, c.Stdout, c.Stderr = program, program, program
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = c.Start()
	program.Close()
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		user.Close()
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	return c, user, bufio.NewReader(user)
}

// shows reads lines of a terminal until one is as said.
func shows(t *testing.T, out *bufio.Reader, want string) {
	t.Helper()
	var all strings.Builder
	for {
		line, err := out.ReadString('\n')
		all.WriteString(line)
		if err != nil {
			t.Fatalf("%q is not shown: %v after %q", want, err, all.String())
		}
		if strings.TrimRight(line, "\r\n") == want {
			return
		}
	}
}

// A program that had a terminal has that of the command which restores it, with its Ctrl-C; and where that command has none, what
// it writes comes to the command's output, what the command reads comes to it, and so does the end of that.
func TestCheckpointTerminal(t *testing.T) {
	p, folder := imagePlace(t)
	image := filepath.Join(folder, "a")
	c, in, out := p.onTerminal("run", tideShape, "--name", "kept", "--", "tide", linear, control)
	shows(t, out, "ready")
	fmt.Fprintf(in, "hold %d %d\n", smallCount, smallBlock)
	shows(t, out, "hold CUDA_SUCCESS")
	p.checkpoint("kept", image, "--stop")
	_ = c.Wait()
	if s := c.ProcessState.ExitCode(); s != 128+int(unix.SIGKILL) {
		t.Errorf("its launcher ends with status %d", s)
	}

	c, in, out = p.onTerminal("restore", p.key(), image)
	fmt.Fprintln(in, "step 2")
	shows(t, out, "stepped 2")
	p.enters("/kept")
	if _, err := in.Write([]byte{3}); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	_ = c.Wait()
	if s := c.ProcessState.ExitCode(); s != 128+int(unix.SIGINT) {
		t.Errorf("status %d after Ctrl-C", s)
	}

	r := p.restore(image)
	r.expect("stepped 1", "step 1")
	r.expect("intact after 1 steps", "check")
	r.end()
	r = p.restore(image)
	r.expect("intact after 0 steps", "check")
	r.Process.Signal(unix.SIGTERM)
	if s := r.status(); s != 128+int(unix.SIGTERM) {
		t.Errorf("status %d after SIGTERM: %s", s, r.stderr.String())
	}
}

// A contained program has files that its launcher opened, outside of its namespace. Those that are its standard streams are the
// restoring command's; others are opened again, and are where they were.
func TestCheckpointFiles(t *testing.T) {
	p, folder := imagePlace(t)
	image, other := filepath.Join(folder, "a"), filepath.Join(p.dir, "other")
	if err := os.WriteFile(other, []byte("one\ntwo\nthree\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := func(name string) *os.File {
		f, err := os.OpenFile(filepath.Join(p.dir, name), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	in, before, after := filepath.Join(p.dir, "in"), file("before"), file("after")
	if err := unix.Mkfifo(in, 0o600); err != nil {
		t.Fatal(err)
	}
	script := `read line <&9; echo $line; tide "$0" "$1" <"$2"; while read line <&9; do echo $line; done`
	c := p.command("lgpu", "run", tideShape, "--name", "kept", "--", "sh", "-c", script, linear, control, in)
	c.Stdout, c.Stderr = before, before
	c.ExtraFiles = []*os.File{6: file("other")}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = c.Process.Kill(), c.Wait() })
	says := func(f *os.File, want string) {
		t.Helper()
		p.wait(fmt.Sprintf("%q", want), func() bool {
			text, err := os.ReadFile(f.Name())
			return err == nil && string(text) == want
		})
	}
	pipe, err := os.OpenFile(in, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	fmt.Fprintf(pipe, "hold %d %d\n", smallCount, smallBlock)
	says(before, "one\nready\nhold CUDA_SUCCESS\n")
	p.checkpoint("kept", image, "--stop")
	_ = c.Wait()

	r := p.command("lgpu", "restore", p.key(), image)
	r.Stdout, r.Stderr = after, after
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Process.Kill(), r.Wait() })
	fmt.Fprintln(pipe, "step 1")
	says(after, "stepped 1\n")
	fmt.Fprintln(pipe, "quit")
	if err := r.Wait(); err != nil {
		t.Error(err)
	}
	says(before, "one\nready\nhold CUDA_SUCCESS\n")
	if text, err := os.ReadFile(after.Name()); err != nil || !strings.HasPrefix(string(text), "stepped 1\n") || !strings.HasSuffix(string(text), "two\nthree\n") {
		t.Errorf("%q, %v", text, err)
	}
}
