package host

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lgpu/lgpu/api"
)

// envContainer has this test's program be the container: the folder in /proc of a process of the node, and lgpu in the image.
const envContainer = "LGPU_TEST_CONTAINER"

func TestMain(m *testing.M) {
	if said := os.Getenv(envContainer); said != "" {
		root, program, _ := strings.Cut(said, ":")
		n := Node{Root: root, Bin: "/var/lib/lgpu/bin", Runtime: "/run/lgpu", Store: "/var/lib/lgpu/state.db"}
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := n.Run(ctx, program, "--mount=off"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
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
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "there\n" {
		t.Fatalf("the node's mounts: %q, %v", line, err)
	}
	return fmt.Sprintf("/proc/%d", c.Process.Pid)
}

// container starts a process that runs the daemon of a node, and waits until that one answers.
func container(t *testing.T, root, program string) (*exec.Cmd, *api.Conn) {
	t.Helper()
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), envContainer+"="+root+":"+program, "LGPU_REAL_LIBNVML=", "KUBERNETES_SERVICE_HOST=10.0.0.1")
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var log bytes.Buffer
	c.Stderr = &log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(c) })
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		conn, err := api.Dial(t.Context(), api.Options{Socket: root + "/root/run/lgpu/lgpud.sock", Change: true})
		if err == nil {
			t.Cleanup(func() { conn.Close() })
			return c, conn
		}
		if time.Since(begun) > 30*time.Second {
			t.Fatalf("%v\n%s", err, &log)
		}
	}
}

func end(c *exec.Cmd) error {
	if c.ProcessState != nil {
		return nil
	}
	c.Process.Signal(syscall.SIGTERM)
	return c.Wait()
}

// A container runs the daemon of its node: with the node's files, and lgpu at a path that the node's runtime finds.
// The next version of the image takes the state over and leaves the file as it was that is in use.
func TestRun(t *testing.T) {
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
	s, err := daemon.Snapshot(t.Context(), &api.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	process := fmt.Sprintf("/proc/%d/", s.GetDaemon().GetPid())
	if exe, err := os.Readlink(process + "exe"); exe != path {
		t.Errorf("the daemon is %s, %v", exe, err)
	}
	if env, err := os.ReadFile(process + "environ"); err != nil || bytes.Contains(env, []byte("KUBERNETES")) {
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

	if err := end(first); err != nil {
		t.Errorf("the container ended with %v", err)
	}
	if _, err := os.Stat(process); err == nil {
		t.Error("the daemon stays without its container")
	}
	next := filepath.Join(t.TempDir(), "lgpu")
	data, err := os.ReadFile(image)
	if err == nil {
		err = os.WriteFile(next, append(data, 0), 0o755) // another program, which does the same
	}
	if err != nil {
		t.Fatal(err)
	}
	_, daemon = container(t, root, next)
	t.Cleanup(func() { // its software GPU ends with it
		if _, err := daemon.Remove(context.Background(), &api.RemoveRequest{Path: "/team"}); err != nil {
			t.Error(err)
		}
	})
	s, err = daemon.Snapshot(t.Context(), &api.SnapshotRequest{})
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
func TestNotRun(t *testing.T) {
	if err := (Node{Root: "/proc/1"}).Run(t.Context(), "/no/lgpu"); err == nil || !strings.Contains(err.Error(), "in this image") {
		t.Errorf("without lgpu: %v", err)
	}
	if err := (Node{Root: "/proc/0"}).Run(t.Context(), "/proc/self/exe"); err == nil || !strings.Contains(err.Error(), "hostPID") {
		t.Errorf("without the node's processes: %v", err)
	}
}

// Where the state was damaged nothing begins anew before somebody has looked.
func TestDamaged(t *testing.T) {
	n := Node{Store: filepath.Join(t.TempDir(), "state.db")}
	if err := n.undamaged(); err != nil {
		t.Errorf("without a state: %v", err)
	}
	aside := n.Store + ".damaged-20261128T100000Z"
	if err := os.WriteFile(aside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := n.undamaged(); err == nil || !strings.Contains(err.Error(), aside) {
		t.Errorf("with a damaged state: %v", err)
	}
	if err := os.WriteFile(n.Store, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := n.undamaged(); err != nil {
		t.Errorf("with a state beside a damaged one: %v", err)
	}
}
