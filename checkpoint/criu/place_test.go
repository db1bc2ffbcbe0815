package criu

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/internal/proc"
)

// namespace starts a process in a mount namespace of its own, in which a file of /etc is another one, and returns its number.
func namespace(t *testing.T, cover, over string) int {
	t.Helper()
	c := exec.Command("sh", "-c", `mount --bind "$0" "$1" && echo ready && exec cat`, cover, over)
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = in.Close(), c.Wait() })
	word := make([]byte, len("ready"))
	if _, err := out.Read(word); err != nil || string(word) != "ready" {
		t.Fatalf("%q, %v", word, err)
	}
	return c.Process.Pid
}

// cgroup makes a cgroup below the one that this process is in, of the controller "freezer" or of version 2. It returns the file
// in which processes are entered.
func cgroup(t *testing.T) string {
	t.Helper()
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(own)) {
		words := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for _, mounted := range []string{"/sys/fs/cgroup/freezer", "/sys/fs/cgroup"} {
			if words[1] != strings.TrimPrefix(filepath.Base(mounted), "cgroup") {
				continue
			}
			dir := filepath.Join(mounted, words[2], fmt.Sprintf("lgpu-test-%d", os.Getpid()))
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := os.Remove(dir); err != nil {
					t.Error(err)
				}
			})
			return filepath.Join(dir, "cgroup.procs")
		}
	}
	t.Skip("no hierarchy of cgroups is mounted where it usually is")
	return ""
}

// TestInherited: what a process has from another mount namespace is found once, in a way that all who have it can use; so is a
// terminal that is no standard stream. What it opened itself is its own.
func TestInherited(t *testing.T) {
	installed(t) // so this is root
	dir := t.TempDir()
	path, own := filepath.Join(dir, "file"), filepath.Join(dir, "own")
	for _, name := range []string{path, own} {
		if err := os.WriteFile(name, []byte("0123456789"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	open := func(flags int) *os.File {
		f, err := os.OpenFile(path, flags, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	read, write := open(os.O_RDONLY), open(os.O_WRONLY)
	user, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { user.Close(); tty.Close() })
	c := exec.Command("sh", "-c", `exec 9<"$0"; echo ready; exec cat`, own)
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Setsid: true}
	c.ExtraFiles = []*os.File{read, write, tty, tty}
	its, in, out := pipes(t)
	c.Stdin, c.Stdout = its[0], its[1]
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); _ = c.Wait() })
	if line, err := out.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	streams, err := Streams(c.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	found, err := Inherited([]int{c.Process.Pid}, streams)
	if err != nil || len(found) != 2 || found[0].Path != path || found[0].Flags&unix.O_ACCMODE != os.O_RDWR ||
		found[1].Kind != KindTerminal {
		t.Fatalf("%+v, %v", found, err)
	}
	f, err := found[0].Open(4)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rest := make([]byte, 20)
	if n, err := f.Read(rest); err != nil || string(rest[:n]) != "456789" {
		t.Errorf("%q, %v", rest[:n], err)
	}
}

// TestOwnTerminal: a terminal is the launcher's, but for those of which one of the processes has the other end.
func TestOwnTerminal(t *testing.T) {
	var pids []int
	start := func(files ...*os.File) {
		t.Helper()
		c := exec.Command("cat")
		c.ExtraFiles = files
		in, err := c.StdinPipe()
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { in.Close(); _ = c.Wait() })
		pids = append(pids, c.Process.Pid)
	}
	inherited := func() (fds []int) {
		t.Helper()
		found, err := Inherited(pids, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range found {
			if s.Kind == KindTerminal {
				fds = append(fds, s.FD)
			}
		}
		return fds
	}
	var user, tty [2]*os.File
	for i := range tty {
		var err error
		if user[i], tty[i], err = pty.Open(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { user[i].Close(); tty[i].Close() })
	}
	start(tty[0])
	start(user[0])
	if fds := inherited(); len(fds) != 0 {
		t.Errorf("its own terminal, descriptor %d, is taken for the launcher's", fds)
	}
	start(tty[0], tty[1])
	if fds := inherited(); len(fds) != 1 || fds[0] != 4 {
		t.Errorf("terminals of the launcher's are descriptors %d, want 4", fds)
	}
}

// TestElsewhere: a program that has mounts of its own is dumped from within them, and restored into others that are like them,
// and into a cgroup.
func TestElsewhere(t *testing.T) {
	p := installed(t)
	procs := cgroup(t)
	cover := filepath.Join(t.TempDir(), "cover")
	if err := os.WriteFile(cover, []byte("covered\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const over = "/etc/hostname"
	its, in, out := pipes(t)
	c := exec.Command("/bin/sh", "-c", "exec 5<"+over+"; while read line; do read text <"+over+"; echo $text; done; exit 7")
	c.Stdin, c.Stdout = its[0], its[1]
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	first := namespace(t, cover, over)
	if err := proc.InMountsOf(first, c.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = c.Process.Kill(), c.Wait() })
	_, _ = its[0].Close(), its[1].Close()
	ask := func() {
		t.Helper()
		fmt.Fprintln(in)
		if line, err := out.ReadString('\n'); err != nil || line != "covered\n" {
			t.Fatalf("%q, %v", line, err)
		}
	}
	ask()
	if found, err := around(Within{Processes: []int{c.Process.Pid}}, func() (bool, error) { return true, nil }); err != nil || len(found) == 0 {
		t.Errorf("mounts of its own are not found: %v", err)
	}
	streams := keys(t, c.Process.Pid)
	dir := t.TempDir()
	explain(t, p.Dump(patience(t), Dump{PID: c.Process.Pid, Dir: dir, Mounts: first}))
	_ = c.Wait() // killed
	second := namespace(t, cover, over)
	its, in, out = pipes(t)
	process, err := p.Restore(patience(t), Restore{Keeper: keeperCommand(t), Dir: dir, Mounts: second, Cgroups: []string{procs},
		Inherit: map[string]*os.File{streams[0].Key: its[0], streams[1].Key: its[1]}})
	explain(t, err)
	process.Commit()
	_, _ = its[0].Close(), its[1].Close()
	ask()
	want, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", second))
	if got, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", process.Pid)); err != nil || got != want {
		t.Errorf("its mounts are %s, %v; want %s", got, err, want)
	}
	if members, err := os.ReadFile(procs); err != nil || !strings.HasPrefix(string(members), fmt.Sprintln(process.Pid)) {
		t.Errorf("in the cgroup are %q, %v; want %d", members, err, process.Pid)
	}
	_ = in.Close()
	if state, err := process.Wait(); err != nil || state.ExitCode() != 7 {
		t.Errorf("%v, %v; want status 7", state, err)
	}
}
