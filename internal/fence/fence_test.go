package fence

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// full is /dev/full, which stands in for a GPU: every user may open it, and nobody here needs it.
var full = Device{1, 7}

// TestDeny: a process in the cgroup cannot open the device, and others can. With each version that is mounted.
func TestDeny(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make cgroups")
	}
	all, err := find("/proc/self/mountinfo", "/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for name, h := range map[string]hierarchies{"v1": {devices: all.devices}, "v2": {v2: all.v2}} {
		t.Run(name, func(t *testing.T) {
			if h == (hierarchies{}) {
				t.Skip("not mounted here")
			}
			f, err := h.fence("lgpu-"+strconv.Itoa(os.Getpid()), []Device{{195, 0}, full, {195, 1}})
			if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
				t.Skip("root may not make cgroups here: ", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			if (f.Tasks != "") != (name == "v1") || (f.Cgroup != "") != (name == "v2") {
				t.Fatalf("%+v", f)
			}
			try := func(f *Fence, open string) error {
				c := exec.Command("sh", "-c", `test -z "$1" || echo 0 >"$1"; exec sh -c 'exec 3<"$1"' sh "$2"`, "sh", f.Tasks, open)
				if f.Cgroup != "" {
					cgroup, err := os.Open(f.Cgroup)
					if err != nil {
						t.Fatal(err)
					}
					defer cgroup.Close()
					c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cgroup.Fd())}
				}
				return c.Run()
			}
			if err := try(&Fence{}, "/dev/full"); err != nil {
				t.Errorf("outside, /dev/full: %v", err)
			}
			if err := try(f, "/dev/zero"); err != nil {
				t.Errorf("inside, /dev/zero: %v", err)
			}
			if try(f, "/dev/full") == nil {
				t.Error("inside, /dev/full can be opened")
			}
			for range 2 { // as often as one likes
				change(t, f, []Device{full}, []Device{{1, 5}})
				if try(f, "/dev/zero") == nil {
					t.Error("after a change, /dev/zero can be opened")
				}
				if err := try(f, "/dev/full"); err != nil {
					t.Errorf("after a change, /dev/full: %v", err)
				}
			}
			f.Close()
			if _, err := os.Stat(f.dirs[0]); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the cgroup is left: %v", err)
			}
		})
	}
}

// change changes a fence, by a process that is in it.
func change(t *testing.T, f *Fence, allowed, denied []Device) {
	t.Helper()
	c := exec.Command("cat")
	in, err := c.StdinPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range f.Entries() {
		if err := os.WriteFile(entry, []byte(strconv.Itoa(c.Process.Pid)), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := Change(c.Process.Pid, allowed, denied); err != nil {
		t.Error(err)
	}
	in.Close()
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
}

// TestSweep: the fences of processes that have ended go, others stay.
func TestSweep(t *testing.T) {
	parent := t.TempDir()
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	gone := filepath.Join(parent, prefix+strconv.Itoa(ended.Process.Pid))
	stay := []string{filepath.Join(parent, prefix+strconv.Itoa(os.Getppid())), filepath.Join(parent, prefix+"1x"), filepath.Join(parent, "1")}
	for _, dir := range append(stay, gone) {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sweep(parent)
	if _, err := os.Stat(gone); err == nil {
		t.Error("the fence of an ended process is left")
	}
	for _, dir := range stay {
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	}
}

func TestFind(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, path := range []string{"u/a/b", "d/x"} {
		if err := os.MkdirAll(filepath.Join(dir, path), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mounts := write("mounts", "30 25 0:26 / "+dir+"/u rw shared:9 - cgroup2 cgroup2 rw\n"+
		"31 25 0:27 /docker/1 "+dir+"/d rw - cgroup cgroup rw,cpu,devices\n32 25 0:28 / /c rw - cgroup cgroup rw,memory\nx - y\n")
	own := write("own", "5:cpu,devices:/docker/1/x\n4:memory:/m\n0::/a/b\n")
	h, err := find(mounts, own)
	if want := (hierarchies{v2: dir + "/u/a/b", devices: dir + "/d/x"}); err != nil || h != want {
		t.Errorf("%+v, %v, not %+v", h, err, want)
	}
	own = write("own", "5:cpu,devices:/elsewhere\n0::/gone\n")
	if h, err := find(mounts, own); err != nil || h != (hierarchies{}) {
		t.Errorf("%+v, %v", h, err)
	}
}

const information = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 90\nGPU UUID: \t %s\nBus Location: \t 0000:19:00.0\nDevice Minor: \t %s\n"

// machine is a stand-in for the files of a driver with two GPUs, the second of which has MIG instances, and for those of
// the driver's list that do not exist.
func machine(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	files := map[string]string{
		gpusFolder + "/0000:19:00.0/information": "GPU UUID: \t GPU-a\nDevice Minor: \t 0\n",
		gpusFolder + "/0000:3b:00.0/information": "Model: \t H200\nGPU UUID: \t GPU-b\nDevice Minor: \t 1\n",
		minorsFile: "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu1/gi1/access 147\ngpu1/gi1/ci0/access 148\n" +
			"gpu1/gi1/ci1/access 149\ngpu1/gi2/access 156\ngpu1/gi2/ci0/access 157\n",
	}
	for _, minor := range []int{1, 2, 147, 148, 149, 156, 157} {
		files[capsFolder+"/nvidia-cap"+strconv.Itoa(minor)] = ""
	}
	for path, text := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestOthers(t *testing.T) {
	root := machine(t)
	b := func(gi, ci uint32) Owned { return Owned{"GPU-b", &Instance{gi, ci}} }
	instances := []string{"nvidia-caps/nvidia-cap147", "nvidia-caps/nvidia-cap148", "nvidia-caps/nvidia-cap149",
		"nvidia-caps/nvidia-cap156", "nvidia-caps/nvidia-cap157"}
	for _, test := range []struct {
		own  []Owned
		want []string
	}{
		{nil, append([]string{"nvidia0", "nvidia1"}, instances...)},
		{[]Owned{{GPU: "GPU-a"}}, append([]string{"nvidia1"}, instances...)},
		{[]Owned{{GPU: "GPU-b"}, {GPU: "GPU-a"}}, instances},
		{[]Owned{b(1, 0)}, []string{"nvidia0", instances[2], instances[3], instances[4]}},
		{[]Owned{b(1, 1)}, []string{"nvidia0", instances[1], instances[3], instances[4]}},
		{[]Owned{b(2, 0)}, append([]string{"nvidia0"}, instances[:3]...)},
	} {
		for i, file := range test.want {
			test.want[i] = filepath.Join(root, "dev", file)
		}
		if _, got, err := files(root, test.own); err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%v: %v, %v, not %v", test.own, got, err, test.want)
		}
	}
	if _, got, err := files(root, []Owned{{GPU: "GPU-c"}}); err == nil || got != nil {
		t.Errorf("a GPU that is not there: %v, %v", got, err)
	}
}

// TestOwn: a MIG instance needs three files, and what lacks one cannot be used.
func TestOwn(t *testing.T) {
	root := machine(t)
	for _, test := range []struct {
		own  Owned
		want []string // nil: an error
	}{
		{Owned{GPU: "GPU-a"}, []string{"nvidia0"}},
		{Owned{"GPU-b", &Instance{1, 1}}, []string{"nvidia1", "nvidia-caps/nvidia-cap147", "nvidia-caps/nvidia-cap149"}},
		{Owned{"GPU-b", &Instance{2, 0}}, []string{"nvidia1", "nvidia-caps/nvidia-cap156", "nvidia-caps/nvidia-cap157"}},
		{Owned{"GPU-b", &Instance{2, 1}}, nil},
		{Owned{"GPU-a", &Instance{1, 0}}, nil},
		{Owned{"GPU-c", &Instance{1, 0}}, nil},
	} {
		for i, file := range test.want {
			test.want[i] = filepath.Join(root, "dev", file)
		}
		if got, err := own(root, test.own); (err != nil) != (test.want == nil) || !slices.Equal(got, test.want) {
			t.Errorf("%v: %v, %v, not %v", test.own, got, err, test.want)
		}
	}
}

// FuzzParseCapability: a capability, or none, of any line.
func FuzzParseCapability(f *testing.F) {
	f.Add("gpu0/gi1/access 12\n")
	f.Add("gpu1/gi2/ci0/access 157")
	f.Add("config 1")
	f.Fuzz(func(t *testing.T, line string) {
		c, ok := parseCapability(line)
		if ok && (c.file > 1<<20 || c.gpu > 1<<20 || c.of(Owned{GPU: "GPU-a"})) {
			t.Errorf("%q: %+v", line, c)
		}
	})
}

// FuzzParseGPU: an error, or a GPU with a UUID and a file of its own.
func FuzzParseGPU(f *testing.F) {
	f.Add(information)
	f.Add("GPU UUID: GPU-1\nDevice Minor: 7\n")
	f.Add("Device Minor: -1")
	f.Fuzz(func(t *testing.T, text string) {
		g, err := parseGPU(text)
		if err == nil && (len(g.uuid) < 5 || g.minor > 1<<20) {
			t.Errorf("%q: %+v", text, g)
		}
	})
}

// FuzzParseMount: any text.
func FuzzParseMount(f *testing.F) {
	f.Add("30 25 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw", "0::/a")
	f.Add("31 25 0:27 /docker/1 /d rw - cgroup cgroup rw,cpu,devices", "5:cpu,devices:/docker/1/x\n")
	f.Fuzz(func(t *testing.T, line, own string) {
		if h, ok := parseMount(line); ok {
			if dir, ok := h.dir(own); ok && dir == "" {
				t.Error("no folder")
			}
		}
	})
}
