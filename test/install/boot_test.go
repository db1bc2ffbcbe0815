package install

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// bootVariable tells a test binary that it is to become a machine, and names a folder for that.
const bootVariable = "LGPU_TEST_INSTALL_BOOT"

// bootedVariable tells it that it runs on that machine, and which of its tests.
const bootedVariable = "LGPU_TEST_INSTALL_BOOTED"

// packagesVariable names the folder of the packages that this machine gets, in place of an install.
const packagesVariable = "LGPU_TEST_INSTALL_PACKAGES"

// hierarchy is one of cgroups, as this process sees it.
type hierarchy struct {
	name    string // of the folder below /sys/fs/cgroup; empty for that folder itself
	kind    string // cgroup or cgroup2
	options string // to mount it
	own     string // the folder of this process's cgroup
}

// hierarchies are those that systemd can use.
func hierarchies() ([]hierarchy, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	paths := map[string]string{} // by controllers
	for line := range strings.Lines(string(text)) {
		if part := strings.SplitN(strings.TrimSpace(line), ":", 3); len(part) == 3 {
			paths[part[1]] = part[2]
		}
	}
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer mounts.Close()
	var found []hierarchy
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		before, after, _ := strings.Cut(lines.Text(), " - ")
		from, kind := strings.Fields(before), strings.Fields(after)
		if len(from) < 5 || len(kind) < 3 || !strings.HasPrefix(kind[0], "cgroup") {
			continue
		}
		h := hierarchy{kind: kind[0]}
		h.name = strings.Trim(strings.TrimPrefix(from[4], "/sys/fs/cgroup"), "/")
		controllers := ""
		if h.kind == "cgroup" {
			controllers = h.name
			if h.name == "systemd" {
				controllers, h.options = "name=systemd", "none,name=systemd"
			} else if h.options = h.name; h.name == "cpuset" { // one must fill it, and nothing here needs it
				continue
			}
		}
		path, is := paths[controllers]
		if !is {
			continue
		}
		h.own = filepath.Join(from[4], path)
		found = append(found, h)
	}
	return found, nil
}

// TestBooted has systemd start the unit of an install, on a machine of its own: namespaces, and cgroups below the one of
// this process.
func TestBooted(t *testing.T) {
	need(t, "python3")
	boot(t, "TestOnBooted")
}

// boot runs a test on a machine of its own, with more in its environment.
func boot(t *testing.T, test string, variables ...string) {
	t.Helper()
	need(t, "systemctl", "journalctl")
	if os.Getuid() != 0 {
		lacks(t, "only root can have a machine of its own")
	}
	list, err := hierarchies()
	if err != nil || len(list) == 0 {
		lacks(t, fmt.Sprintf("no cgroups are seen: %v", err))
	}
	dir := t.TempDir()
	name := "lgpu-test-" + strconv.Itoa(os.Getpid())
	var groups []string
	for _, h := range list {
		group := filepath.Join(h.own, name)
		if err := os.Mkdir(group, 0o755); err != nil {
			lacks(t, fmt.Sprintf("no cgroup can be made: %v", err))
		}
		t.Cleanup(func() { removeGroup(t, group) })
		groups = append(groups, group)
	}
	said := filepath.Join(dir, "said")
	if err := os.WriteFile(said, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(os.Args[0], "-test.run=^TestBoot$", "-test.v")
	c.Env = append(os.Environ(), bootVariable+"="+dir, "LGPU_TEST_INSTALL_GROUPS="+strings.Join(groups, ":"), bootedVariable+"="+test)
	c.Env = append(c.Env, variables...)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC |
		unix.CLONE_NEWUTS | unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
	out, err := c.CombinedOutput()
	if errors.Is(err, unix.EPERM) {
		lacks(t, "namespaces cannot be made here")
	}
	text, read := os.ReadFile(said)
	if err != nil || read != nil || !strings.Contains(string(text), "--- PASS: "+test+" ") {
		t.Errorf("%v, %v\n%s\n%s", err, read, out, text)
	} else {
		t.Logf("%s", text)
	}
}

// removeGroup removes a cgroup whose processes have ended, and those below it.
func removeGroup(t *testing.T, group string) {
	var folders []string
	err := filepath.WalkDir(group, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			folders = append(folders, path)
		}
		return err
	})
	for _, folder := range slices.Backward(folders) {
		err = errors.Join(err, unix.Rmdir(folder))
	}
	if err != nil {
		t.Errorf("remove cgroups: %v", err)
	}
}

// onBooted is the service that is the test. The machine ends with it.
const onBooted = `[Unit]
DefaultDependencies=no
After=basic.target systemd-journald.service systemd-sysusers.service
SuccessAction=exit
FailureAction=exit
[Service]
Type=oneshot
Environment=%s PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
WorkingDirectory=%s
StandardOutput=append:/said
StandardError=inherit
ExecStart=/test -test.run=^%s$ -test.v
`

// TestBoot becomes the machine of boot: it ends by becoming systemd.
func TestBoot(t *testing.T) {
	dir := os.Getenv(bootVariable)
	if dir == "" {
		t.Skip("boot starts it")
	}
	check := func(what string, err error) {
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	runtime.LockOSThread()
	list, err := hierarchies()
	check("find the cgroups", err)
	for _, group := range strings.Split(os.Getenv("LGPU_TEST_INSTALL_GROUPS"), ":") {
		check("enter a cgroup", os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte("0"), 0))
	}
	check("have cgroups of its own", unix.Unshare(unix.CLONE_NEWCGROUP))
	here, err := os.Getwd()
	check("find this folder", err)
	self, err := os.Executable()
	check("find this program", err)
	root := layOut(t, filepath.Join(dir, "base"))
	show(t, filepath.Join(dir, "said"), root+"/said")
	show(t, self, root+"/test")
	check("mount /sys", unix.Mount("sysfs", root+"/sys", "sysfs", 0, ""))
	check("mount a folder", unix.Mount("tmpfs", root+"/sys/fs/cgroup", "tmpfs", 0, "mode=755"))
	for _, h := range list {
		to := filepath.Join(root, "sys/fs/cgroup", h.name)
		check("make a folder", os.MkdirAll(to, 0o755))
		check("mount "+h.name, unix.Mount("cgroup", to, h.kind, 0, h.options))
	}
	if os.Getenv(packagesVariable) == "" {
		run(t, "make", "install", "DESTDIR="+root, "PREFIX=/usr")
	}
	// Only what is tested, and the journal: the rest of a boot is not this machine's.
	for _, wants := range []string{"/usr/lib/systemd/system/*.wants", "/etc/systemd/system/*.wants"} {
		found, err := filepath.Glob(root + wants)
		check("find units", err)
		for _, folder := range found {
			check("leave units out", os.RemoveAll(folder))
		}
	}
	units := root + "/etc/systemd/system/"
	var variables []string
	for _, name := range []string{bootedVariable, strictVariable, packagesVariable} {
		variables = append(variables, name+"="+os.Getenv(name))
	}
	service := fmt.Sprintf(onBooted, strings.Join(variables, " "), here, os.Getenv(bootedVariable))
	check("write a unit", os.WriteFile(units+"tested.service", []byte(service), 0o644))
	target := "[Unit]\nWants=systemd-journald.service systemd-sysusers.service tested.service\n"
	check("write a unit", os.WriteFile(units+"tested.target", []byte(target), 0o644))
	check("have no name", os.WriteFile(root+"/etc/machine-id", nil, 0o644))
	check("change the root", unix.Chroot(root))
	check("go there", os.Chdir("/"))
	check("become systemd", unix.Exec("/lib/systemd/systemd", []string{"systemd", "--system", "--unit=tested.target",
		"--log-target=console", "--log-level=warning", "--show-status=no"}, []string{"container=lgpu-test", "PATH=/usr/sbin:/usr/bin"}))
}

// layOut makes a root like this machine's, with all changes in memory. It makes the folder base for that. What it mounts is
// seen by this process's namespace alone.
func layOut(t *testing.T, base string) string {
	t.Helper()
	check := func(what string, err error) {
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	check("keep mounts private", unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	check("make a folder", os.Mkdir(base, 0o755))
	check("mount a tmpfs", unix.Mount("tmpfs", base, "tmpfs", 0, ""))
	root := base + "/root"
	for _, d := range []string{base + "/upper", base + "/work", root} {
		check("make a folder", os.Mkdir(d, 0o755))
	}
	check("mount an overlay over the root", unix.Mount("overlay", root, "overlay", 0,
		"lowerdir=/,upperdir="+base+"/upper,workdir="+base+"/work"))
	for _, d := range []string{"/var/lib/lgpu", "/etc/lgpu"} { // of this machine's own daemon
		check("hide "+d, os.RemoveAll(root+d))
	}
	for _, d := range []string{"/run", "/dev"} {
		check("mount "+d, unix.Mount("tmpfs", root+d, "tmpfs", 0, "mode=755"))
	}
	check("mount /proc", unix.Mount("proc", root+"/proc", "proc", 0, ""))
	for _, device := range []string{"null", "zero", "urandom", "fuse"} {
		if _, err := os.Stat("/dev/" + device); err == nil {
			show(t, "/dev/"+device, root+"/dev/"+device)
		}
	}
	check("make a folder", os.Mkdir(root+"/dev/shm", 0o777))
	return root
}

// show shows a file under another name, which it makes.
func show(t *testing.T, from, to string) {
	t.Helper()
	err := os.WriteFile(to, nil, 0o666)
	if err == nil {
		err = unix.Mount(from, to, "", unix.MS_BIND, "")
	}
	if err != nil {
		t.Fatalf("show %s: %v", from, err)
	}
}
