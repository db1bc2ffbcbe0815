package host

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lgpu/lgpu/api"
)

// envBecome has this test's program be the container: the folder in /proc of a process of the node, and the program to become.
const envBecome = "LGPU_TEST_BECOME"

func TestMain(m *testing.M) {
	if said := os.Getenv(envBecome); said != "" {
		root, program, _ := strings.Cut(said, ":")
		n := Node{Root: root, Bin: "/var/lib/lgpu/bin", Runtime: "/run/lgpu"}
		fmt.Fprintln(os.Stderr, n.Become(program, "daemon", "--mount=off", "--store", "/var/lib/lgpu/state.db"))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// machine is a node: a process with mounts of its own, in which /run and /var/lib are empty.
func machine(t *testing.T) (root string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: a container's way to its node needs root")
	}
	c := exec.Command("sh", "-c", "mount -t tmpfs none /run && mount -t tmpfs none /var/lib && echo there && exec cat")
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); c.Wait() })
	if line := make([]byte, 6); true {
		if _, err := out.Read(line); err != nil || string(line) != "there\n" {
			t.Fatalf("the node's mounts: %q, %v", line, err)
		}
	}
	return fmt.Sprintf("/proc/%d", c.Process.Pid)
}

// container starts a process that becomes the daemon of a node, and waits until that one answers.
func container(t *testing.T, root, program string) (*exec.Cmd, *api.Conn) {
	t.Helper()
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), envBecome+"="+root+":"+program, "LGPU_REAL_LIBNVML=", "KUBERNETES_SERVICE_HOST=10.0.0.1", api.EnvReady+"=3")
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var log bytes.Buffer
	c.Stderr = &log
	ready, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer ready.Close()
	c.ExtraFiles = []*os.File{write}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	t.Cleanup(func() { end(c) })
	ready.Read(make([]byte, 64))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	conn, err := api.Dial(ctx, api.Options{Socket: root + "/root/run/lgpu/lgpud.sock", Change: true})
	if err != nil {
		t.Fatalf("%v\n%s", err, &log)
	}
	t.Cleanup(func() { conn.Close() })
	return c, conn
}

func end(c *exec.Cmd) {
	if c.ProcessState == nil {
		c.Process.Signal(syscall.SIGTERM)
		c.Wait()
	}
}

// A container's process becomes the daemon of its node: with the node's files, and lgpu at a path that the node's runtime finds.
// The next version of the image takes the state over and leaves the file as it was that is in use.
func TestBecome(t *testing.T) {
	root := machine(t)
	image, err := filepath.Abs("../../bin/lgpu")
	if err != nil {
		t.Fatal(err)
	}
	first, daemon := container(t, root, image)
	if _, err := daemon.Create(t.Context(), &api.CreateRequest{Path: "/team", Sim: "1x1GiB,sms=2"}); err != nil {
		t.Fatal(err)
	}
	const path = "/var/lib/lgpu/bin/lgpu"
	installed := root + "/root" + path
	before, err := os.Open(installed) // as who runs it has it open
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", first.Process.Pid)); exe != path {
		t.Errorf("the daemon is %s, %v", exe, err)
	}
	if env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", first.Process.Pid)); err != nil || bytes.Contains(env, []byte("KUBERNETES")) {
		t.Errorf("the daemon's variables: %q, %v", env, err)
	}
	if info, err := os.Stat(root + "/root/run/lgpu"); err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("the runtime folder: %v, %v", info, err)
	}
	specs, _ := filepath.Glob(root + "/root/run/cdi/*.json")
	if len(specs) == 0 {
		specs, _ = filepath.Glob(root + "/root/var/run/cdi/*.json")
	}
	if len(specs) != 1 {
		t.Fatalf("specifications %v", specs)
	}
	if data, err := os.ReadFile(specs[0]); err != nil || !bytes.Contains(data, []byte(`"path": "`+path+`"`)) {
		t.Errorf("%v: the hook is not the node's: %s", err, data)
	}

	end(first)
	next := filepath.Join(t.TempDir(), "lgpu")
	data, err := os.ReadFile(image)
	if err == nil {
		err = os.WriteFile(next, append(data, 0), 0o755) // another program, which does the same
	}
	if err != nil {
		t.Fatal(err)
	}
	_, daemon = container(t, root, next)
	s, err := daemon.Snapshot(t.Context(), &api.SnapshotRequest{})
	if err != nil || len(s.GetDirectories()) != 2 {
		t.Errorf("after the upgrade: %v, %v", s.GetDirectories(), err)
	}
	old, err := before.Stat()
	if err != nil || old.Size() != int64(len(data)) {
		t.Errorf("the file in use has changed: %v", err)
	}
	if now, err := os.Stat(installed); err != nil || now.Size() != int64(len(data)+1) {
		t.Errorf("the node has %v, %v", now, err)
	}
}

// What keeps a container from its node is said.
func TestNotBecome(t *testing.T) {
	if err := (Node{Root: "/proc/1"}).Become("/no/lgpu"); err == nil || !strings.Contains(err.Error(), "in this image") {
		t.Errorf("without lgpu: %v", err)
	}
	if err := (Node{Root: "/proc/0"}).Become("/proc/self/exe"); err == nil || !strings.Contains(err.Error(), "hostPID") {
		t.Errorf("without the node's processes: %v", err)
	}
}
