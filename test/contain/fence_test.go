package contain

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/api/state"
)

// TestFence has a machine with two GPUs: a software GPU behind NVIDIA's libraries, and files that stand in for the GPUs',
// /dev/zero and /dev/full under other names, as NVIDIA's kernel module would describe them.
func TestFence(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes device files")
	}
	c := exec.Command(os.Args[0], "-test.run=^TestFenced$", "-test.v")
	c.Env = append(os.Environ(), binVariable+"="+bin)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	out, err := c.CombinedOutput()
	if errors.Is(err, unix.EPERM) {
		t.Skip("no namespace can be made here")
	}
	if err != nil || !strings.Contains(string(out), "--- PASS: TestFenced") {
		t.Errorf("%v\n%s", err, out)
	}
}

// described is where NVIDIA's kernel module describes a GPU.
const described = "/proc/driver/nvidia/gpus/0000:0%d:00.0/information"

// standIns makes the files of two GPUs, and one that is the second's under another name.
func standIns(t *testing.T) {
	t.Helper()
	var devices []string
	for _, name := range []string{"null", "zero", "urandom", "tty", "fuse"} {
		if _, err := os.Stat("/dev/" + name); err == nil {
			devices = append(devices, name)
		}
	}
	dev := t.TempDir()
	err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("driver", "/proc/driver", "tmpfs", 0, "mode=755"),
		unix.Mount("dev", dev, "tmpfs", 0, "mode=755"), os.Mkdir(dev+"/shm", 0o755), unix.Mount("shm", dev+"/shm", "tmpfs", 0, "mode=1777"))
	for _, name := range devices {
		err = errors.Join(err, os.WriteFile(dev+"/"+name, nil, 0o666), unix.Mount("/dev/"+name, dev+"/"+name, "", unix.MS_BIND, ""))
	}
	for name, minor := range map[string]uint32{"nvidia0": 5, "nvidia1": 7, "other": 7} {
		err = errors.Join(err, unix.Mknod(dev+"/"+name, unix.S_IFCHR, int(unix.Mkdev(1, minor))), os.Chmod(dev+"/"+name, 0o666))
	}
	for n := range 2 {
		err = errors.Join(err, os.MkdirAll(filepath.Dir(fmt.Sprintf(described, n)), 0o755))
	}
	if err = errors.Join(err, unix.Mount(dev, "/dev", "", unix.MS_MOVE, "")); err != nil {
		t.Fatal(err)
	}
}

// TestFenced is TestFence on its machine.
func TestFenced(t *testing.T) {
	if os.Getenv(binVariable) == "" {
		t.Skip("TestFence starts it")
	}
	standIns(t)
	libraries, err := filepath.Abs("../../build/lib/sim")
	if err != nil {
		t.Fatal(err)
	}
	users(t, func(t *testing.T, p *place) {
		p.permitted(t)
		hardware := p.command("sim", "--gpus", "2", "--memory", "1GiB", "--sms", "2")
		said, err := hardware.StdoutPipe()
		if err == nil {
			hardware.Stderr = hardware.Stdout
			err = hardware.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = hardware.Process.Signal(unix.SIGTERM); _ = hardware.Wait() }()
		lines := bufio.NewReader(said)
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, lines) }()
		_, socket, _ := strings.Cut(strings.TrimSpace(line), " at ")
		driver := []string{"LGPU_SIM=" + socket, "LGPU_REAL_LIBNVML=" + libraries + "/libnvidia-ml.so.1",
			"LGPU_REAL_LIBCUDA=" + libraries + "/libcuda.so.1"}
		lgpu := func(args ...string) string {
			t.Helper()
			c := p.command(args...)
			c.Env = append(c.Env, driver...)
			out, err := c.CombinedOutput()
			if err != nil {
				t.Fatalf("%q: %v: %s", args, err, out)
			}
			return string(out)
		}
		var devices struct{ Devices []state.Device }
		if err := json.Unmarshal([]byte(lgpu("devices", "--json")), &devices); err != nil || len(devices.Devices) != 2 {
			t.Fatalf("%v, %v", devices, err)
		}
		for n, d := range devices.Devices {
			text := fmt.Sprintf("Model: \t\t stand-in\nGPU UUID:   \t %s\nDevice Minor: \t %d\n", d.UUID, n)
			if err := os.WriteFile(fmt.Sprintf(described, n), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range []struct{ contain, device, want string }{
			{"on", "0", "opens nvidia0\n"}, {"on", "1", "opens nvidia1\n"}, {"on", "0,1", "opens nvidia0\nopens nvidia1\n"},
			{"off", "0", "opens nvidia0\nopens nvidia1\n"}, // so there is something to be kept from
		} {
			try, want := []string{"nvidia0", "nvidia1"}, c.want
			if p.uid == 0 { // by its cgroup, a program of root does not open a GPU under another name either
				try = append(try, "other")
				if strings.Contains(want, "nvidia1") {
					want += "opens other\n"
				}
			}
			script := `for n; do head -c1 /dev/$n >/dev/null 2>&1 && echo opens $n; done; true`
			out := lgpu(append([]string{"run", "--device", c.device, "--memory", "256MiB", "--contain=" + c.contain, "--", "sh", "-c", script, "sh"}, try...)...)
			if strings.Contains(out, "no cgroup forbids") {
				t.Skipf("root may make no cgroup here: %s", out)
			}
			if out != want {
				t.Errorf("contained %s, device %s: %q, not %q", c.contain, c.device, out, want)
			}
		}
	})
}
