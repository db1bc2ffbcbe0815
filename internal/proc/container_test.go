package proc

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// inside starts a shell program in namespaces of its own, which says when it has mounted what it mounts.
func inside(t *testing.T, uid uint32, flags, program string) int {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root mounts, and becomes another user")
	}
	c := exec.Command("unshare", flags, "sh", "-c", program+" && echo ready && exec cat")
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}, Pdeathsig: syscall.SIGKILL}
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
	t.Cleanup(func() { in.Close(); c.Wait() })
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Skipf("unshare %s as user %d: it says %q", flags, uid, line)
	}
	return c.Process.Pid
}

// TestMountAt: what is mounted in another namespace is named as in this one, and the last mount at a path counts.
func TestMountAt(t *testing.T) {
	dir := filepath.Join(t.TempDir(), `a folder\with 'odd' letters`)
	other := filepath.Join(t.TempDir(), "other")
	for _, d := range []string{dir, other} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	quoted := `"` + strings.ReplaceAll(dir, `\`, `\\`) + `"`
	pid := inside(t, 0, "-m", "mount -t tmpfs tmpfs /mnt && mkdir /mnt/at && mount --bind "+other+" /mnt/at && mount --bind "+quoted+" /mnt/at")
	want, err := MountOf(dir)
	if err != nil {
		t.Fatal(err)
	}
	got, there, err := MountAt(pid, "/mnt/at")
	if err != nil || !there || got != want {
		t.Errorf("%+v, %v, %v; want %+v", got, there, err, want)
	}
	if got, there, err := MountAt(os.Getpid(), "/mnt/at"); there || err != nil {
		t.Errorf("in this namespace: %+v, %v", got, err)
	}
	pid = inside(t, 0, "-m", "mount -t tmpfs tmpfs /mnt && mkdir -p /mnt/root/at && mount --bind "+quoted+" /mnt/root/at")
	if got, there, err := MountAt(pid, "/mnt/root/at"); err != nil || !there || got != want {
		t.Errorf("below: %+v, %v, %v; want %+v", got, there, err, want)
	}
}

// TestConfiner: whoever makes a user namespace is behind all in it, whoever they say that they are.
func TestConfiner(t *testing.T) {
	const nobody = 65534
	if uid, confined, err := Confiner(os.Getpid()); uid != 0 || confined || err != nil {
		t.Errorf("this process: %d, %v, %v", uid, confined, err)
	}
	pid := inside(t, nobody, "-Ur", "test $(id -u) = 0 && unshare -Ur true")
	if uid, confined, err := Confiner(pid); uid != nobody || !confined || err != nil {
		t.Errorf("a user's namespace: %d, %v, %v", uid, confined, err)
	}
	if uid, confined, err := Confiner(inside(t, 0, "-Ur", "true")); uid != 0 || !confined || err != nil {
		t.Errorf("root's namespace: %d, %v, %v", uid, confined, err)
	}
}

func FuzzMount(f *testing.F) {
	f.Add([]byte(`94 69 0:42 / / rw,relatime - overlay overlay rw`))
	f.Add([]byte(`105 94 0:39 /a\040b /run/lgpu/container ro master:14 - tmpfs tmpfs rw`))
	f.Fuzz(func(t *testing.T, line []byte) {
		if m, ok := parseMount(line); ok && (m.Device == "" || len(m.Point) > len(line)) {
			t.Errorf("%+v", m)
		}
	})
}
