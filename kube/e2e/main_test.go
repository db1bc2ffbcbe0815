package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// envRequired makes it a failure that the tests cannot be run, as all is required.
const envRequired = "LGPU_TEST_KUBE"

// envRole says which of three processes this one is.
const (
	envRole   = "LGPU_TEST_NODE"
	roleFirst = "first" // the first process of the node, which starts the tests
	roleTests = "tests"
)

// envGroup names the control group that all of the node is in.
const envGroup = "LGPU_TEST_NODE_GROUP"

// groupPrefix begins the name of a node's control group; the rest is the number of the process that removes it.
const groupPrefix = "lgpu-node-"

// controllers are the hierarchies that kubelet and runc use, below groupRoot.
var controllers = []string{"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd"}

const groupRoot = "/sys/fs/cgroup"

func TestMain(m *testing.M) {
	switch os.Getenv(envRole) {
	case roleFirst:
		os.Exit(first())
	case roleTests:
		os.Exit(tests(m))
	}
	if why := lacking(); why != "" {
		if os.Getenv(envRequired) == "all" {
			fmt.Fprintln(os.Stderr, "the tests of a whole node cannot be run:", why)
			os.Exit(1)
		}
		fmt.Println("NOT RUN: the tests of a whole node:", why)
		os.Exit(0)
	}
	code, err := outside()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// lacking returns what a node would lack here.
func lacking() string {
	if os.Geteuid() != 0 {
		return "they need root"
	}
	for _, name := range []string{"controlplane", "kubectl", "helm", "kubelet", "containerd", "containerd-shim-runc-v2", "ctr",
		"nerdctl", "runc"} {
		if _, err := os.Stat(filepath.Join(built, "kube", name)); err != nil {
			return name + " is not built; run, once: make kube-control-plane kube-node"
		}
	}
	for _, c := range controllers {
		if _, err := os.Stat(filepath.Join(groupRoot, c, "cgroup.procs")); err != nil {
			return "they are written for control groups of version 1, and the hierarchy " + c + " is not mounted"
		}
	}
	return ""
}

// outside runs the node, and leaves nothing of it. It returns the tests' exit status.
func outside() (int, error) {
	sweep()
	group := groupPrefix + strconv.Itoa(os.Getpid())
	defer removeGroups(group)
	if err := makeGroups(group); err != nil {
		return 0, err
	}
	c := exec.Command("/proc/self/exe", os.Args[1:]...)
	c.Env = append(os.Environ(), envRole+"="+roleFirst, envGroup+"="+group)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, // and with the first process all others of its namespace
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	if err := c.Start(); err != nil {
		return 0, fmt.Errorf("make namespaces: %w", err)
	}
	go func() {
		<-end
		c.Process.Kill()
	}()
	err := c.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = nil
	}
	return c.ProcessState.ExitCode(), err
}

// makeGroups makes a control group in each hierarchy, with one in it for what is no pod. A group has no processors and no
// memory nodes before it is told which.
func makeGroups(group string) error {
	for _, c := range controllers {
		above := filepath.Join(groupRoot, c)
		for _, dir := range []string{filepath.Join(above, group), filepath.Join(above, group, "node")} {
			if err := os.Mkdir(dir, 0o755); err != nil {
				return fmt.Errorf("make a control group: %w", err)
			}
			if c != "cpuset" {
				continue
			}
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				data, err := os.ReadFile(filepath.Join(above, file))
				if err == nil {
					err = os.WriteFile(filepath.Join(dir, file), data, 0)
				}
				if err != nil {
					return fmt.Errorf("give a control group processors: %w", err)
				}
			}
		}
	}
	return nil
}

// removeGroups removes control groups that have no processes any more, in whatever hierarchy they were made.
func removeGroups(group string) {
	roots, _ := filepath.Glob(filepath.Join(groupRoot, "*", group))
	for _, root := range roots {
		var all []string
		filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				all = append(all, path)
			}
			return nil
		})
		for _, path := range slices.Backward(all) {
			if err := os.Remove(path); err != nil {
				fmt.Fprintln(os.Stderr, "a control group stays:", err)
			}
		}
	}
}

// sweep removes what a test left that was killed.
func sweep() {
	left, _ := filepath.Glob(filepath.Join(groupRoot, "*", groupPrefix+"*"))
	for _, path := range left {
		pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(path), groupPrefix))
		if err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			removeGroups(filepath.Base(path))
		}
	}
}

// first is the first process of the node: it makes the node's file systems and network, starts the tests, and takes care of
// processes that have lost their parent. When it ends, all others do.
func first() int {
	if err := furnish(os.Getenv(envGroup)); err != nil {
		fmt.Fprintln(os.Stderr, "make the node:", err)
		return 1
	}
	c := exec.Command("/proc/self/exe", os.Args[1:]...)
	c.Env = append(os.Environ(), envRole+"="+roleTests, "TMPDIR="+temporary)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	if err := c.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			fmt.Fprintln(os.Stderr, "wait for the tests:", err)
			return 1
		case pid == c.Process.Pid && status.Signaled():
			fmt.Fprintln(os.Stderr, "the tests ended with", status.Signal())
			return 1
		case pid == c.Process.Pid:
			return status.ExitStatus()
		}
	}
}

const (
	temporary = "/var/lib/tmp"
	address   = "10.99.0.1" // of the Node, which may not have a loopback address
	service   = "10.0.0.1"  // of the API server: the first of the services' addresses, which pods are told
)

// sysctls are files that the kubelet sets for the whole machine: on this node they are copies.
var sysctls = []string{"kernel/panic", "kernel/panic_on_oops", "vm/overcommit_memory", "vm/panic_on_oom",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"}

// furnish makes the node's own file systems, in memory, and its network, which is one link with the node's addresses.
func furnish(group string) error {
	for _, c := range controllers {
		if err := os.WriteFile(filepath.Join(groupRoot, c, group, "node", "cgroup.procs"), []byte("0"), 0); err != nil {
			return err
		}
	}
	// Nothing of this is seen outside; in it, containers see what is mounted later.
	err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("proc", "/proc", "proc", 0, ""))
	for _, dir := range []string{"/run", "/var/lib", "/var/log"} {
		err = errors.Join(err, unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"))
	}
	err = errors.Join(err, unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""))
	for _, dir := range []string{"/run/lock", temporary, "/var/lib/kubelet", "/run/cni"} {
		err = errors.Join(err, os.MkdirAll(dir, 0o755))
	}
	if err != nil {
		return err
	}
	for _, name := range sysctls {
		real, own := filepath.Join("/proc/sys", name), filepath.Join("/run/sys", name)
		data, err := os.ReadFile(real)
		if err == nil {
			err = errors.Join(os.MkdirAll(filepath.Dir(own), 0o755), os.WriteFile(own, data, 0o644),
				unix.Mount(own, real, "", unix.MS_BIND, ""))
		}
		if err != nil {
			return err
		}
	}
	for _, args := range []string{"link set lo up", "address add " + address + "/32 dev lo",
		"address add " + service + "/32 dev lo"} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", args, err, out)
		}
	}
	return nil
}

// tests runs the tests on a node that has begun.
func tests(m *testing.M) int {
	n, err := begin()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		if n != nil {
			n.logs(os.Stderr)
		}
		return 1
	}
	shared = n
	return m.Run()
}
