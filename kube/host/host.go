// Package host runs lgpu's daemon on a node from a container of a pod.
//
// The daemon has to be one of the node's own programs: it finds the driver's libraries and device files where the node has them,
// what it mounts is to be seen there, and the paths that it writes into specifications are read by the node's container runtime,
// which also starts lgpu itself as a hook. So the container copies lgpu into a folder of the node and starts it in the node's
// mount namespace and control groups. The container's own process stays where it is, since runtimes run probes where that one is.
package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Node is the machine that a container runs on.
type Node struct {
	// Root is the folder of a process of the node in /proc, such as /proc/1: the container shares the node's process namespace.
	Root string
	// Bin is the folder of the node that lgpu is copied to. It must be on a file system that permits programs.
	Bin string
	// Runtime is the daemon's runtime folder, which users pass.
	Runtime string
	// Store is the file with the state that survives the daemon.
	Store string
}

// Run copies lgpu, a program of the container, to the node and runs its daemon there, with some more options, until the daemon
// ends. It is told to end when ctx ends, and if this process does. Run takes CAP_SYS_ADMIN, CAP_SYS_CHROOT and CAP_SYS_PTRACE.
func (n Node) Run(ctx context.Context, program string, options ...string) error {
	source, err := os.Open(program)
	if err != nil {
		return fmt.Errorf("read lgpu in this image: %w", err)
	}
	defer source.Close()
	ended := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread, which is on the node from here on, ends with the goroutine
		ended <- n.onNode(ctx, source, options)
	}()
	return <-ended
}

// onNode is Run from where its thread is to be on the node.
func (n Node) onNode(ctx context.Context, source io.Reader, options []string) error {
	if err := n.enter(); err != nil {
		return err
	}
	path, err := install(source, n.Bin)
	if err != nil {
		return fmt.Errorf("install lgpu in %s of the node: %w", n.Bin, err)
	}
	if err := passable(n.Runtime); err != nil {
		return fmt.Errorf("make the runtime folder of the node: %w", err)
	}
	if err := n.undamaged(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(n.Store), 0o700); err != nil {
		return fmt.Errorf("make the folder of the state: %w", err)
	}
	attributes, done, err := n.join()
	if err != nil {
		return err
	}
	defer done()
	c := exec.CommandContext(ctx, path, append([]string{"daemon", "--store", n.Store}, options...)...)
	c.Env, c.Stdout, c.Stderr = environment(), os.Stdout, os.Stderr
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.SysProcAttr, attributes.Pdeathsig = attributes, syscall.SIGTERM // this thread's end is the process's
	if err := c.Run(); err != nil && (ctx.Err() == nil || c.ProcessState == nil || !c.ProcessState.Success()) {
		return fmt.Errorf("lgpu's daemon: %w", err)
	}
	return nil
}

// enter moves this thread into the node's mount namespace.
func (n Node) enter() error {
	namespace, err := os.Open(filepath.Join(n.Root, "ns", "mnt"))
	if err != nil {
		return fmt.Errorf("find the node's mounts (does the pod have hostPID?): %w", err)
	}
	defer namespace.Close()
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("leave the other threads: %w", err)
	}
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the node's mounts (is the container privileged?): %w", err)
	}
	return nil
}

// undamaged returns an error if a daemon has moved its damaged state aside and nobody has looked at it: the kubelet starts a
// container again whatever it has said, and a new state would take the lgpus of pods that run.
func (n Node) undamaged() error {
	if _, err := os.Stat(n.Store); !errors.Is(err, fs.ErrNotExist) {
		return nil // what is wrong with it the daemon says
	}
	aside, err := filepath.Glob(n.Store + ".damaged-*")
	if err != nil || len(aside) == 0 {
		return err
	}
	return fmt.Errorf("the state was damaged and is now at %s of the node: put a good copy at %s, or remove it to begin without "+
		"the lgpus of pods that run", aside[len(aside)-1], n.Store)
}

// install copies a program to a folder, and returns its path there. A file of the same content stays as it is; any other is
// replaced as a whole, so that what runs of it goes on.
func install(source io.Reader, folder string) (path string, err error) {
	data, err := io.ReadAll(source)
	if err != nil {
		return "", err
	}
	path = filepath.Join(folder, "lgpu")
	if same(path, data) {
		return path, nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	fresh, err := os.CreateTemp(folder, ".lgpu-*")
	if err != nil {
		return "", err
	}
	_, err = fresh.Write(data)
	err = errors.Join(err, fresh.Chmod(0o755), fresh.Sync(), fresh.Close())
	if err == nil {
		err = os.Rename(fresh.Name(), path)
	}
	if err != nil {
		return "", errors.Join(err, os.Remove(fresh.Name()))
	}
	return path, nil
}

// same reports whether a file is a program of some content.
func same(path string, data []byte) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() != int64(len(data)) || info.Mode().Perm() != 0o755 {
		return false
	}
	old, err := os.ReadFile(path)
	return err == nil && bytes.Equal(old, data)
}

// passable makes a folder that users pass and do not list, also where the kubelet has made it.
func passable(folder string) error {
	if err := os.Mkdir(folder, 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Chmod(folder, 0o711)
}

// environment is what the daemon has of the container's: lgpu's own variables. The rest is about the cluster.
func environment() []string {
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}
	for _, v := range os.Environ() {
		if strings.HasPrefix(v, "LGPU_") {
			env = append(env, v)
		}
	}
	return env
}
