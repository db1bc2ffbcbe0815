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
	p.terminated(image, "intact after 0 steps")
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

// What a program has written after its image was taken is no bar to going back to that: it goes on at the places where it was in
// its files.
func TestCheckpointGrown(t *testing.T) {
	p, folder := imagePlace(t)
	image, own, log := filepath.Join(folder, "a"), filepath.Join(p.dir, "own"), filepath.Join(p.dir, "log")
	pipe := func(name string) *os.File {
		path := filepath.Join(p.dir, name)
		if err := unix.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	lines, orders := pipe("lines"), pipe("orders")
	script := `exec 7>>"$4" 8>"$3" 9<"$2"; tide "$0" "$1" <"$5" &
		while read line <&9 && [ "$line" != end ]; do echo $line >&8; echo $line >&7; done; wait`
	c := p.start("lgpu", "run", tideShape, "--name", "kept", "--", "sh", "-c", script, linear, control, lines.Name(), own, log, orders.Name())
	c.until("ready")
	writes := func(line, inOwn, inLog string) {
		t.Helper()
		fmt.Fprintln(lines, line)
		p.wait(fmt.Sprintf("after %q the log is %q", line, inLog), func() bool {
			text, err := os.ReadFile(log)
			return err == nil && string(text) == inLog
		})
		if text, err := os.ReadFile(own); err != nil || string(text) != inOwn {
			t.Errorf("after %q its own file is %q, %v; want %q", line, text, err, inOwn)
		}
	}
	ends := func(c *tenant) {
		t.Helper()
		fmt.Fprintln(orders, "quit")
		fmt.Fprintln(lines, "end")
		c.end()
	}
	writes("one", "one\n", "one\n")
	p.checkpoint("kept", image)
	writes("two", "one\ntwo\n", "one\ntwo\n")
	ends(c)
	r := p.restore(image)
	writes("2", "one\n2\no\n", "one\ntwo\n2\n")
	p.enters("/kept")
	ends(r)
	if err := os.Truncate(own, 1); err != nil {
		t.Fatal(err)
	}
	if r := p.restore(image); r.status() != 1 || !strings.Contains(r.stderr.String(), "own has bad size 1 (expect 4)") {
		t.Errorf("with a shorter file: %s", r.stderr.String())
	}
}
