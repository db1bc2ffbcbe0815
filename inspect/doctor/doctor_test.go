package doctor

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/checkpoint/criu"
	"github.com/lgpu/lgpu/gpu/nvidia"
	"github.com/lgpu/lgpu/gpu/nvidia/ctxswitch"
	"github.com/lgpu/lgpu/internal/assets"
	"github.com/lgpu/lgpu/sim"
)

var update = flag.Bool("update", false, "rewrite golden files")

// TestMain lets the test binary be the hardware process that sim.Start starts.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 || os.Args[1] != "sim" {
		os.Exit(m.Run())
	}
	set := flag.NewFlagSet("sim", flag.ExitOnError)
	inherit, shape, idle := set.String("inherit", "", ""), set.String("shape", "", ""),
		set.Duration("idle", time.Second, "")
	_ = set.Parse(os.Args[2:]) // ends the process by itself
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	if err := sim.Inherited(ctx, *inherit, *shape, *idle, slog.Default()); err != nil {
		slog.Error("hardware", "error", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// sound is a machine with nothing to complain of.
func sound() *Machine {
	return &Machine{
		Version: "1.2.3",
		User:    1000,
		Driver: Driver{
			Module: "580.159.03", Version: "580.159.03", NVML: "13.580.159.03",
			Devices: []Device{{Index: 0, Name: "NVIDIA H200", Persistence: On, MIG: Off, MIGAfterReset: Off}},
		},
		Nodes:   []Node{{Path: "/dev/nvidiactl"}, {Path: "/dev/nvidia-uvm"}, {Path: "/dev/nvidia0"}},
		MPS:     MPS{Control: "/usr/bin/nvidia-cuda-mps-control"},
		Kernel:  Kernel{Release: "6.12.0"},
		CGroup:  CGroup{V2: "/sys/fs/cgroup"},
		FUSE:    FUSE{Mount: "/usr/bin/fusermount3"},
		Library: Library{Interposer: "/run/lgpu/lib/0123456789abcdef/liblgpu.so", LibC: "glibc 2.36"},
		Contain: Contain{Tried: true},
		CRIU:    CRIU{Path: "/usr/sbin/criu", Version: criu.Version{Major: 4, Minor: 1, Sub: 1}, Features: criu.Features{MemoryTracking: true, LazyPages: true, Sockets: true}},
		Host:    Host{Memory: 512 << 30, Available: 400 << 30, Locked: 8 << 20, Huge: "advise"},
		Runtime: Runtime{Dir: "/run/user/1000/lgpu"},
		Daemon:  Daemon{Socket: "/run/lgpu/lgpud.sock", Version: "1.2.3", PID: 812, Budget: 256 << 30, Copies: 5 << 30, Shared: []Shared{{"GPU-00112233", ""}}},
	}
}

func gone(path string) error { return &fs.PathError{Op: "open", Path: path, Err: syscall.ENOENT} }
func refused(path string) error {
	return &fs.PathError{Op: "open", Path: path, Err: syscall.EACCES}
}

// TestExamine changes one thing of a sound machine and expects exactly that to be found, with its remedy.
func TestExamine(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Machine)
		want   Status
		check  string
		detail string // a part of it
		remedy string // a part of it
	}{
		{"no driver", func(m *Machine) {
			m.Driver = Driver{Err: fmt.Errorf("%w: no library", nvidia.ErrNoDriver)}
			m.Nodes = []Node{{Path: "/dev/nvidiactl", Err: gone("/dev/nvidiactl")}}
		}, Warn, "driver", "no NVIDIA driver", "lgpu run --sim"},
		{"budget beyond the memory", func(m *Machine) { m.Daemon.Budget = 513 << 30 },
			Warn, "host.memory", "host.budget is 513 GiB, and this machine has 512 GiB", "host.budget=default"},
		{"memory in use by others", func(m *Machine) { m.Host.Available = 250 << 30 },
			Warn, "host.memory", "may take 251 GiB more (host.budget), and 250 GiB are available", "host.budget=261120MiB"},
		{"no huge pages", func(m *Machine) { m.Host.Huge = "deny" }, Warn, "host.pages", "huge pages are off", "echo advise"},
		{"driver without GPU", func(m *Machine) { m.Driver.Devices = nil }, Warn, "driver", "no GPU", "lspci"},
		{"driver too old for units", func(m *Machine) { m.Driver.Version = "460.91" }, Warn, "driver", "460.91", "470"},
		{"libraries of another version", func(m *Machine) {
			m.Driver.Err, m.Driver.Devices = errors.New("nvmlInit: Driver/library version mismatch (NVML error 18)"), nil
		}, Fail, "driver", "580.159.03 is loaded and NVML cannot use it", "restart the machine"},
		{"NVML broken without module", func(m *Machine) {
			m.Driver = Driver{Err: errors.New("libnvidia-ml.so.1 is not NVML")}
		}, Fail, "driver", "is not NVML", "reinstall"},
		{"device file missing", func(m *Machine) { m.Nodes[2].Err = gone("/dev/nvidia0") },
			Fail, "driver.files", "missing: /dev/nvidia0", "nvidia-modprobe"},
		{"uvm not used yet", func(m *Machine) { m.Nodes[1].Err = gone("/dev/nvidia-uvm") },
			Warn, "driver.files", "/dev/nvidia-uvm does not exist yet", "nvidia-modprobe"},
		{"device file forbidden", func(m *Machine) { m.Nodes[2].Err = refused("/dev/nvidia0") },
			Fail, "driver.files", "user 1000 may not use /dev/nvidia0", "group"},
		{"device file broken", func(m *Machine) { m.Nodes[2].Err = syscall.EIO },
			Fail, "driver.files", "/dev/nvidia0: input/output error", "dmesg"},
		{"device lost", func(m *Machine) { m.Driver.Devices[0].Err = errors.New("GPU is lost") },
			Fail, "device.0", "GPU is lost", "Xid"},
		{"exclusive process", func(m *Machine) { m.Driver.Devices[0].Compute = ModeExclusiveProcess },
			Fail, "device.0", "EXCLUSIVE_PROCESS", "nvidia-smi -i 0 -c DEFAULT"},
		{"exclusive thread", func(m *Machine) { m.Driver.Devices[0].Compute = ModeExclusiveThread },
			Fail, "device.0", "EXCLUSIVE_PROCESS", "-c DEFAULT"},
		{"prohibited", func(m *Machine) { m.Driver.Devices[0].Compute = ModeProhibited },
			Fail, "device.0", "PROHIBITED", "-c DEFAULT"},
		{"persistence off", func(m *Machine) { m.Driver.Devices[0].Persistence = Off },
			Warn, "device.0", "persistence mode is off", "nvidia-persistenced"},
		{"MIG changes", func(m *Machine) { m.Driver.Devices[0].MIGAfterReset = On },
			Warn, "device.0", "MIG mode changes", "--gpu-reset"},
		{"MIG", func(m *Machine) { m.Driver.Devices[0].MIG, m.Driver.Devices[0].MIGAfterReset = On, On },
			OK, "device.0", "lgpus are made on its instances, each on one", ""},
		{"no log of switches", func(m *Machine) {
			m.Driver.Devices[0].Switches.Err = fmt.Errorf("context switches of device 0: %w", &ctxswitch.UnsupportedError{
				Err: errors.New("driver status 0x1b"), Advice: "run as root"})
		}, Warn, "device.0.switches", "cannot be read: driver status 0x1b", "run as root; without it lgpus take turns"},
		{"log of switches broken", func(m *Machine) { m.Driver.Devices[0].Switches.Err = errors.New("driver status 0xf") },
			Warn, "device.0.switches", "driver status 0xf", "dmesg; without it lgpus take turns"},
		{"own switches only", func(m *Machine) { m.Driver.Devices[0].Switches.OwnUser = true },
			Warn, "device.0.switches", "user 1000", "daemon as root"},
		{"no MPS", func(m *Machine) { m.MPS.Control = "" }, Warn, "mps", "no spatial mode", "nvidia-cuda-mps"},
		{"MPS of somebody", func(m *Machine) { m.MPS.Foreign = "/tmp/nvidia-mps/control" },
			Warn, "mps", "/tmp/nvidia-mps/control", "echo quit"},
		{"no pidfd", func(m *Machine) { m.Kernel.PIDFD = syscall.ENOSYS },
			Fail, "kernel.pidfd", "function not implemented (Linux 6.12.0)", "5.3"},
		{"no seals", func(m *Machine) { m.Kernel.FutureWrite = syscall.EINVAL }, Fail, "kernel.seals", "limits", "5.1"},
		{"no peer pidfd", func(m *Machine) { m.Kernel.PeerPIDFD = syscall.ENOPROTOOPT },
			Warn, "kernel.peer", "start time", "nothing needs to be done"},
		{"no cgroups", func(m *Machine) { m.CGroup = CGroup{} }, Warn, "cgroup", "no cgroups", "mount -t cgroup2"},
		{"no fuse", func(m *Machine) { m.FUSE.Device = gone("/dev/fuse") }, Warn, "fuse", "does not exist", "modprobe fuse"},
		{"fuse forbidden", func(m *Machine) { m.FUSE.Device = refused("/dev/fuse") },
			Warn, "fuse", "permission denied", "chmod"},
		{"no fusermount", func(m *Machine) { m.FUSE.Mount = "" }, Warn, "fuse", "fusermount3", "install fuse3"},
		{"device memory by cgroup", func(m *Machine) { m.Dmem.Regions = []string{"drm/0000:03:00.0/vram0", "x"} },
			OK, "cgroup.dmem", "(drm/0000:03:00.0/vram0, x); lgpud.conf does not ask", ""},
		{"device memory bounded", func(m *Machine) { m.Dmem = Dmem{Regions: []string{"x"}, Asked: "/sys/fs/cgroup/lgpu"} },
			OK, "cgroup.dmem", "cgroups in /sys/fs/cgroup/lgpu (x)", ""},
		{"device memory not bounded", func(m *Machine) { m.Dmem.Asked = "/sys/fs/cgroup/lgpu" }, Warn, "cgroup.dmem", "no driver", "r615"},
		{"no fusermount for root", func(m *Machine) { m.FUSE.Mount, m.User = "", 0 }, OK, "fuse", "can be mounted", ""},
		{"built without libraries", func(m *Machine) { m.Library.Err = assets.ErrNotBuilt },
			Fail, "library", "without its C libraries", "make build"},
		{"libraries cannot be written", func(m *Machine) { m.Library.Err = refused("/run/lgpu/lib") },
			Fail, "library", "permission denied", "LGPU_LIBDIR"},
		{"preload fails", func(m *Machine) { m.Library.Preload = errors.New("the loader says: cannot be preloaded") },
			Fail, "library.preload", "cannot be preloaded", "noexec"},
		{"no namespaces", func(m *Machine) {
			m.Contain.Err, m.Contain.Forbid = syscall.ENOSPC, "user.max_user_namespaces is 0"
		}, Warn, "contain", "no space left", "user.max_user_namespaces is 0"},
		{"no right to mount", func(m *Machine) { m.User, m.Contain.Err = 0, syscall.EPERM }, Warn, "contain", "not permitted", "SYS_ADMIN"},
		{"contained", func(m *Machine) { m.User = 0 }, OK, "contain", "are contained, unless", ""},
		{"contained by a user namespace", func(*Machine) {}, OK, "contain", "in a user namespace: sudo", ""},
		{"containment turned off", func(m *Machine) { m.Environment = []string{"LGPU_CONTAIN=off"} }, OK, "contain", "are not: LGPU_CONTAIN=off", ""},
		{"no criu", func(m *Machine) { m.CRIU = CRIU{Err: criu.ErrMissing} }, Warn, "criu", "not installed", "LGPU_CRIU"},
		{"criu that is none", func(m *Machine) { m.CRIU.Err = errors.New("no rights") }, Warn, "criu", "/usr/sbin/criu cannot be used: no rights", "criu check"},
		{"old criu", func(m *Machine) { m.CRIU.Version = criu.Version{Major: 3, Minor: 17, Sub: 1} }, Warn, "criu", "3.17.1, which is too old", "4.1"},
		{"criu without a kernel", func(m *Machine) { m.CRIU.Check = errors.New("criu check: no userfaultfd") },
			Warn, "criu", "lacks something of the kernel: criu check: no userfaultfd", "--privileged"},
		{"criu for a user", func(*Machine) {}, OK, "criu", "/usr/sbin/criu 4.1.1; it needs the rights of root", ""},
		{"criu for root", func(m *Machine) { m.User, m.CRIU.Features.MemoryTracking = 0, false },
			OK, "criu", "4.1.1; not with this kernel: dumps of what has changed alone", ""},
		{"criu and a newer kernel", func(m *Machine) { m.User, m.CRIU.Features.Sockets = 0, false },
			OK, "criu", "4.1.1; not with this kernel: images of programs with TCP or UDP sockets", ""},
		{"HAMi in ld.so.preload", func(m *Machine) { m.LDPreload = "/usr/local/vgpu/libvgpu.so\n" },
			Fail, "hami", "/etc/ld.so.preload", "take the line"},
		{"HAMi in LD_PRELOAD", func(m *Machine) { m.Environment = []string{"LD_PRELOAD=/x/libvgpu.so"} },
			Fail, "hami", "LD_PRELOAD", "unset"},
		{"HAMi's limits", func(m *Machine) {
			m.Environment = []string{"HOME=/", "CUDA_DEVICE_MEMORY_LIMIT_0=1g", "CUDA_DEVICE_SM_LIMIT=30"}
		}, Warn, "hami", "CUDA_DEVICE_MEMORY_LIMIT_0, CUDA_DEVICE_SM_LIMIT", "unset"},
		{"other preload", func(m *Machine) { m.Environment = []string{"LD_PRELOAD=/x/libjemalloc.so"} }, OK, "hami",
			"nothing", ""},
		{"container", func(m *Machine) { m.Container, m.ForeignPIDs = "docker", true },
			Warn, "container", "(docker)", "--pid host"},
		{"container with the host's PIDs", func(m *Machine) { m.Container = "podman" }, OK, "container", "(podman)", ""},
		{"PID namespace", func(m *Machine) { m.ForeignPIDs = true }, Warn, "container", "PID namespace", "outside"},
		{"runtime folder of another", func(m *Machine) { m.Runtime.Err = errors.New("runtime folder /x belongs to user 7") },
			Fail, "runtime", "belongs to user 7", "LGPU_RUNTIME_DIR"},
		{"tree without daemon", func(m *Machine) {
			m.Runtime.Tree = &fs.PathError{Op: "stat", Path: "x",
				Err: syscall.ENOTCONN}
		},
			Warn, "runtime", "its daemon gone", "fusermount3 -uz /run/user/1000/lgpu/tree"},
		{"daemon of another version", func(m *Machine) { m.Daemon.Version = "1.2.2" }, Warn, "daemon", "1.2.2",
			"systemctl restart"},
		{"turns", func(m *Machine) { m.Daemon.Shared[0].Turns = "the driver refuses to set time slices" }, OK, "daemon.guests",
			"GPU-00112233: lgpus take turns: the driver refuses", ""},
		{"no daemon", func(m *Machine) { m.Daemon = Daemon{Err: gone("/run/lgpu/lgpud.sock")} }, OK, "daemon", "none runs",
			""},
		{"daemon died", func(m *Machine) { m.Daemon.Err = syscall.ECONNREFUSED }, Warn, "daemon", "did not shut down cleanly",
			"lgpud.log"},
		{"daemon forbidden", func(m *Machine) { m.Daemon.Err = refused("/run/lgpu/lgpud.sock") }, Fail, "daemon",
			"may not ask", "group"},
		{"daemon hangs", func(m *Machine) { m.Daemon.Err = context.DeadlineExceeded }, Fail, "daemon", "does not answer",
			"journalctl"},
		{"no software GPU", func(m *Machine) { m.Sim = errors.New("it ended") }, Fail, "sim", "it ended", "lgpu sim"},
		{"good program", func(m *Machine) {
			m.Programs = []Program{{Path: "/usr/bin/python3", Interpreter: "/lib64/ld-linux-x86-64.so.2", Machine: machine()}}
		}, OK, "program", "python3 can be limited", ""},
		{"static program", func(m *Machine) { m.Programs = []Program{{Path: "/x/a.out", Machine: machine()}} },
			Fail, "program", "is static", "dynamically"},
		{"setuid program", func(m *Machine) {
			m.Programs = []Program{{Path: "/x/su", Interpreter: "/lib64/ld.so", Machine: machine(), Setuid: true}}
		}, Fail, "program", "setuid", "chmod"},
		{"setuid program of root, contained", func(m *Machine) {
			m.User, m.Programs = 0, []Program{{Path: "/x/su", Interpreter: "/lib64/ld.so", Machine: machine(), Setuid: true}}
		}, OK, "program", "su can be limited, contained", ""},
		{"setuid program of root, not tried", func(m *Machine) {
			m.User, m.Programs = 0, []Program{{Path: "/x/su", Interpreter: "/lib64/ld.so", Machine: machine(), Setuid: true}}
			m.Contain = Contain{}
		}, Fail, "program", "setuid", "chmod"},
		{"musl program", func(m *Machine) {
			m.Programs = []Program{{Path: "/x/a", Interpreter: "/lib/ld-musl-x86_64.so.1", Machine: machine()}}
		}, Fail, "program", "musl", "glibc"},
		{"program of another machine", func(m *Machine) {
			m.Programs = []Program{{Path: "/x/a", Interpreter: "/lib/ld.so", Machine: elf.EM_S390}}
		}, Fail, "program", "another processor (EM_S390)", "build"},
		{"script", func(m *Machine) { m.Programs = []Program{{Path: "/x/run", Script: "python3"}} },
			Warn, "program", "a script of python3", "lgpu doctor python3"},
		{"program missing", func(m *Machine) { m.Programs = []Program{{Path: "nothing", Err: exec.ErrNotFound}} },
			Fail, "program", "not found", "PATH"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := sound()
			test.change(m)
			report := Examine(m)
			found := false
			for _, r := range report.Results {
				if r.Check == test.check && r.Status == test.want {
					found = true
					if !strings.Contains(r.Detail, test.detail) || !strings.Contains(r.Remedy, test.remedy) {
						t.Errorf("detail %q, remedy %q; want parts %q, %q", r.Detail, r.Remedy, test.detail, test.remedy)
					}
				} else if r.Status != OK {
					t.Errorf("also found: %+v", r)
				}
				if (r.Status == OK) != (r.Remedy == "") {
					t.Errorf("%+v: a remedy belongs to what is not ok", r)
				}
			}
			if !found {
				t.Errorf("no %v of %s in %+v", test.want, test.check, report.Results)
			}
			if report.OK() != (test.want != Fail) {
				t.Errorf("OK() = %v", report.OK())
			}
		})
	}
}

func TestSoundMachine(t *testing.T) {
	for _, r := range Examine(sound()).Results {
		if r.Status != OK {
			t.Errorf("%+v", r)
		}
	}
}

// TestPrint compares the table of a machine in trouble, at the width of a terminal and without one, with the golden
// file.
func TestPrint(t *testing.T) {
	m := sound()
	m.Driver.Devices[0].Compute = ModeExclusiveProcess
	m.Nodes[2].Err = gone("/dev/nvidia0")
	m.FUSE.Mount, m.MPS.Control = "", ""
	var text bytes.Buffer
	for _, style := range []Style{{Width: 80}, {Width: 120}, {Width: 80, Color: true}} {
		fmt.Fprintf(&text, "-- %+v --\n", style)
		start := text.Len()
		if err := Examine(m).Print(&text, style); err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(escape.ReplaceAllString(text.String()[start:], ""), "\n") {
			if width := len([]rune(line)); width > style.Width {
				t.Errorf("%d columns: %s", width, line)
			}
		}
	}
	golden(t, "table.txt", text.Bytes())
}

var escape = regexp.MustCompile("\x1b\\[[0-9;]*m")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; go test -update rewrites it. Got:\n%s", path, got)
	}
}

func TestJSON(t *testing.T) {
	m := sound()
	m.Driver.Devices[0].Compute = ModeExclusiveProcess
	var text bytes.Buffer
	if err := Examine(m).JSON(&text); err != nil {
		t.Fatal(err)
	}
	var got struct {
		OK     *bool
		Checks []map[string]string
	}
	if err := json.Unmarshal(text.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.OK == nil || *got.OK || len(got.Checks) < 10 {
		t.Errorf("%s", text.Bytes())
	}
	for _, c := range got.Checks {
		if c["check"] == "device.0" && (c["status"] != "fail" || c["remedy"] == "" || c["detail"] == "") {
			t.Errorf("%v", c)
		}
	}
	text.Reset()
	if err := (Report{}).JSON(&text); err != nil || !strings.Contains(text.String(), `"checks": []`) {
		t.Errorf("an empty report is %q, %v", text.String(), err)
	}
}

// TestLook looks at the machine that runs the tests: what the other tests need anyway must be found to work.
func TestLook(t *testing.T) {
	t.Setenv("LGPU_RUNTIME_DIR", t.TempDir())
	t.Setenv("LGPU_LIBDIR", t.TempDir())
	m := Look(t.Context(), Options{
		Version: "1", SimCommand: []string{os.Args[0], "sim"}, Programs: []string{"sh", "no such program"},
		Daemon: func(context.Context) (Daemon, error) { return Daemon{Socket: "s"}, syscall.ECONNREFUSED },
	})
	if m.Sim != nil {
		t.Errorf("software GPU: %v", m.Sim)
	}
	if m.Kernel.PIDFD != nil || m.Kernel.FutureWrite != nil || m.Kernel.Release == "" {
		t.Errorf("kernel: %+v", m.Kernel)
	}
	if m.Runtime.Err != nil || m.Runtime.Dir != os.Getenv("LGPU_RUNTIME_DIR") {
		t.Errorf("runtime: %+v", m.Runtime)
	}
	if m.Daemon.Socket != "s" || m.Daemon.Err != syscall.ECONNREFUSED {
		t.Errorf("daemon: %+v", m.Daemon)
	}
	if len(m.Programs) != 2 || m.Programs[0].Err != nil || m.Programs[0].Interpreter == "" || m.Programs[1].Err == nil {
		t.Errorf("programs: %+v", m.Programs)
	}
	if errors.Is(m.Library.Err, assets.ErrNotBuilt) {
		t.Log("built without libraries")
	} else if m.Library.Err != nil || m.Library.Preload != nil {
		t.Errorf("library: %+v", m.Library)
	}
	if err := Examine(m).Print(t.Output(), Style{}); err != nil {
		t.Error(err)
	}
}

// TestPreload: a library that is not there must not pass.
func TestPreload(t *testing.T) {
	err := tryPreload(t.Context(), filepath.Join(t.TempDir(), "liblgpu.so"))
	if err == nil || !strings.Contains(err.Error(), "liblgpu.so") {
		t.Errorf("a missing library: %v", err)
	}
}

func TestSimDoesNotStart(t *testing.T) {
	if err := trySim(t.Context(), []string{"/bin/false"}); err == nil {
		t.Error("a hardware process that ends at once passed")
	}
}

// TestProgram reads this test, which is dynamic where purego makes it so, and files made of its header.
func TestProgram(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil { // the umask
			t.Fatal(err)
		}
		return path
	}
	tests := []struct {
		path, script string
		err          bool
	}{
		{write("py", "#!/usr/bin/python3 -u\n", 0o755), "/usr/bin/python3", false},
		{write("env", "#!/usr/bin/env -S python3\n", 0o755), "python3", false},
		{write("nothing", "#!\n", 0o755), "", true},
		{write("text", "hello", 0o755), "", true},
		{write("empty", "", 0o755), "", true},
		{write("data", "#!/bin/sh\n", 0o644), "", true},
		{filepath.Join(dir, "missing"), "", true},
	}
	for _, test := range tests {
		p := lookProgram(test.path)
		if (p.Err != nil) != test.err || p.Script != test.script {
			t.Errorf("%s: script %q, %v", filepath.Base(test.path), p.Script, p.Err)
		}
	}
	if p := lookProgram(write("setuid", "#!/bin/sh\n", 0o755|fs.ModeSetuid)); !p.Setuid {
		t.Error("setuid was not seen")
	}
}

// TestSwitches: a device of NVML whose driver is not here has no log, and the error says so.
func TestSwitches(t *testing.T) {
	for _, test := range []struct {
		device Device
		says   string
	}{
		{Device{Minor: 77}, "/dev/nvidia"},
		{Device{Minor: -1}, "no device file"},
		{Device{Minor: 77, MIG: On}, "MIG"},
	} {
		s := lookSwitches(test.device)
		if !errors.Is(s.Err, errors.ErrUnsupported) || !strings.Contains(s.Err.Error(), test.says) {
			t.Errorf("%+v: %v", test.device, s.Err)
		}
	}
}

func TestCgroups(t *testing.T) {
	for _, test := range []struct {
		mounts string
		want   CGroup
	}{
		{"", CGroup{}},
		{"cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", CGroup{V2: "/sys/fs/cgroup"}},
		{"tmpfs /sys/fs/cgroup tmpfs ro 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0",
			CGroup{V2: "/sys/fs/cgroup/unified", V1: true}},
		{"short line\ncgroup2", CGroup{}},
	} {
		if got := cgroups([]byte(test.mounts)); got != test.want {
			t.Errorf("cgroups(%q) = %+v, want %+v", test.mounts, got, test.want)
		}
	}
}

func TestModuleVersion(t *testing.T) {
	for text, want := range map[string]string{
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.03  Mon Jan 5 10:00:00 UTC 2026\nGCC version: gcc 12.2.0\n":              "580.159.03",
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.10  Release Build  (dvs-builder@U22)  Mon Jan  5 10:00:00 UTC 2026": "595.10",
		"something else\n": "something else",
		"":                 "",
	} {
		if got := moduleVersion(text); got != want {
			t.Errorf("moduleVersion(%q) = %q, want %q", text, got, want)
		}
	}
}

// FuzzProgram: for any file, reading it says one of script, program or error.
func FuzzProgram(f *testing.F) {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(self[:min(len(self), 4096)])
	f.Add([]byte("#!/bin/sh\n"))
	f.Add([]byte("#! \n"))
	f.Add([]byte("\x7fELF\x02\x01\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var p Program
		err := p.parse(bytes.NewReader(data))
		if err == nil && p.Script == "" && p.Machine == 0 && len(data) > 0 && !bytes.HasPrefix(data, []byte("\x7fELF")) {
			t.Errorf("%q is neither script nor program nor error", data)
		}
	})
}

// FuzzTables: tables of the kernel with any content are read without a crash.
func FuzzTables(f *testing.F) {
	f.Add("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
	f.Add("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.03  Mon")
	f.Fuzz(func(t *testing.T, text string) {
		if c := cgroups([]byte(text)); c.V2 != "" && !strings.Contains(text, "cgroup2") {
			t.Errorf("cgroups(%q) = %+v", text, c)
		}
		if v := moduleVersion(text); !strings.Contains(text, v) {
			t.Errorf("moduleVersion(%q) = %q", text, v)
		}
	})
}

// What the kernel says of the host is read as it is written.
func TestHost(t *testing.T) {
	if word := chosen("always within_size [advise] never deny force\n"); word != "advise" {
		t.Errorf("%q is chosen", word)
	}
	if h := lookHost(); h.Memory < h.Available || h.Available == 0 {
		t.Errorf("%+v", h)
	}
}

// TestDmem: what a stand-in for the root of the hierarchy has.
func TestDmem(t *testing.T) {
	root := t.TempDir()
	if got := lookDmem(root, ""); got.Regions != nil {
		t.Errorf("without the controller: %q", got)
	}
	if err := os.WriteFile(filepath.Join(root, "dmem.capacity"), []byte("drm/0000:03:00.0/vram0 8514437120\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := Dmem{Regions: []string{"drm/0000:03:00.0/vram0"}, Asked: "/x"}
	if got := lookDmem(root, "/x"); !reflect.DeepEqual(got, want) || lookDmem("", "").Regions != nil {
		t.Errorf("%q", got)
	}
}
