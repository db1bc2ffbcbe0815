package containers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// strictVariable is the variable with which this package fails rather than is skipped where containers cannot work.
const strictVariable = "LGPU_TEST_CONTAINERS"

// stageVariable says that this process is the test in its namespace, and names the folder with what it needs.
const stageVariable = "LGPU_TEST_CONTAINERS_STAGE"

// The user whose containers are rootless, and the numbers that are lent to her.
const (
	userID   = 61000
	userName = "rootless"
	lentFrom = 2000000
	lent     = 65536
)

// TestMain runs the tests on a machine of their own, as far as files and mounts go.
func TestMain(m *testing.M) {
	if os.Getenv(stageVariable) != "" {
		if err := furnish(); err != nil {
			fmt.Fprintln(os.Stderr, "containers: make the machine:", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	os.Exit(stage())
}

// stage starts this program in a mount namespace.
func stage() int {
	if why := missing(); why != "" {
		fmt.Println("--- SKIP: containers are NOT TESTED:", why)
		if os.Getenv(strictVariable) != "" {
			return 1
		}
		return 0
	}
	// Not below the folder of other users' temporary files: a socket's path must be short, and all users come here.
	dir, err := os.MkdirTemp("/var/tmp", "lgpu-containers-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := errors.Join(os.Chmod(dir, 0o755), build(dir)); err != nil {
		fmt.Fprintln(os.Stderr, "containers:", err)
		return 1
	}
	c := exec.Command("/proc/self/exe", os.Args[1:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.Env = append(os.Environ(), stageVariable+"="+dir)
	// The processes of containers and the pause process of a user's podman end with the PID namespace.
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID, Pdeathsig: unix.SIGKILL}
	err = c.Run()
	var ended *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &ended):
		return max(ended.ExitCode(), 1)
	}
	fmt.Fprintln(os.Stderr, "containers: make a namespace:", err)
	return 1
}

// missing says what this machine lacks for the tests, or nothing.
func missing() string {
	if os.Geteuid() != 0 {
		return "they need root"
	}
	for _, tool := range []string{"podman", "runc", "newuidmap", "nsenter"} {
		if _, err := exec.LookPath(tool); err != nil {
			return tool + " is not installed"
		}
	}
	return ""
}

// work is the folder with what the tests need: lgpu, the programs, the images.
func work(elements ...string) string {
	return filepath.Join(append([]string{os.Getenv(stageVariable)}, elements...)...)
}

// furnish makes the namespace a machine for containers: folders that are its own, cgroups of version 2 alone, which all
// versions of all runtimes understand, and a user.
func furnish() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil { // after a private copy, for podman
		return err
	}
	for _, m := range []struct{ source, target, kind, data string }{
		{"proc", "/proc", "proc", ""}, {"tmpfs", "/run", "tmpfs", "mode=755"}, {"tmpfs", "/sys/fs/cgroup", "tmpfs", ""},
		{"cgroup2", "/sys/fs/cgroup", "cgroup2", ""},
	} {
		if err := unix.Mount(m.source, m.target, m.kind, 0, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	line := fmt.Sprintf("%s:x:%d:%d::%s:/bin/sh\n", userName, userID, userID, work("home"))
	range_ := fmt.Sprintf("%s:%d:%d\n", userName, lentFrom, lent)
	for path, more := range map[string]string{
		"/etc/passwd": line, "/etc/group": fmt.Sprintf("%s:x:%d:\n", userName, userID), "/etc/subuid": range_, "/etc/subgid": range_,
	} {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		copied := work("etc-" + filepath.Base(path))
		if err := os.WriteFile(copied, append(text, more...), 0o644); err != nil {
			return err
		}
		if err := unix.Mount(copied, path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", path, err)
		}
	}
	for path, mode := range map[string]os.FileMode{"/run/lgpu": 0o711, "/run/cdi": 0o755, "/run/user": 0o755} {
		if err := os.Mkdir(path, mode); err != nil {
			return err
		}
	}
	for _, path := range []string{work("home"), "/run/user/61000"} {
		if err := errors.Join(os.Mkdir(path, 0o700), os.Chown(path, userID, userID)); err != nil {
			return err
		}
	}
	// Without CAP_SYS_RESOURCE no limit of a process can be raised, as podman does unless it is told to leave them.
	return os.WriteFile(work("containers.conf"), []byte("[containers]\ndefault_ulimits = []\npids_limit = 0\n"+
		"[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"none\"\n"), 0o644)
}

// podman is a user's.
func podman(uid int, args ...string) *exec.Cmd {
	args = append([]string{"--runtime", "runc", "--root", work("storage"), "--runroot", "/run/containers"}, args...)
	if uid != 0 {
		args = append([]string{"--runtime", "runc"}, args[6:]...)
	}
	c := exec.Command("podman", args...)
	c.Dir = "/"
	c.Env = []string{"PATH=" + os.Getenv("PATH"), "CONTAINERS_CONF=" + work("containers.conf"), "HOME=/root", "TMPDIR=/var/tmp"}
	if uid != 0 {
		c.Env = append(c.Env, "HOME="+work("home"), "XDG_RUNTIME_DIR=/run/user/"+strconv.Itoa(uid))
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	return c
}

// build makes lgpu, the programs and the images.
func build(dir string) error {
	const libcuda = "../../build/lib/sim/libcuda.so.1"
	if _, err := os.Stat(libcuda); err != nil {
		return errors.New("the C libraries are missing; run: make build")
	}
	compile := func(out, source string, more ...string) *exec.Cmd {
		args := []string{"-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-I../../tenant/abi/include",
			"-o", filepath.Join(dir, out), source}
		return exec.Command("cc", append(args, more...)...)
	}
	lgpu := exec.Command("go", "build", "-o", dir+"/", "../../cmd/lgpu")
	lgpu.Env = append(os.Environ(), "CGO_ENABLED=0")
	contained := "../contain/programs/"
	for _, c := range []*exec.Cmd{
		lgpu, compile("grab", contained+"grab.c", "-ldl"), compile("linked", contained+"linked.c", libcuda),
		compile("launch", contained+"launch.c", "-static"), compile("become", "programs/become.c", "-static"),
		compile("keep", "programs/keep.c", libcuda),
		compile("oldc.so", "programs/oldc.c", "-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libc.so.6", "-Wl,--version-script=programs/oldc.map"),
	} {
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(c.Args, " "), err, out)
		}
	}
	return images(dir)
}
