package install

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestImage: make image builds an image without a network, and a daemon in a container of it serves programs of the
// host, on a software GPU that it starts.
func TestImage(t *testing.T) {
	need(t, "podman", "runc")
	if os.Geteuid() != 0 {
		lacks(t, "containers with the host's processes need root")
	}
	// In a folder of its own: nothing of this machine's podman is touched.
	store := t.TempDir()
	podman := []string{"podman", "--root", store + "/root", "--runroot", store + "/run", "--runtime", "runc", "--cgroup-manager=cgroupfs"}
	t.Cleanup(func() { run(t, "podman", append(podman[1:], "rmi", "--all", "--force")...) })
	run(t, "make", "image", "DOCKER="+strings.Join(podman, " "), "IMAGE_NAME=lgpu:test")

	dir, err := os.MkdirTemp("", "lgpu") // a short path, for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("LGPU_RUNTIME_DIR", dir)
	// The limits of processes are this one's: without a right of its own, a runtime can only keep them.
	daemon := exec.Command(podman[0], append(podman[1:], "run", "--rm", "--network=host", "--privileged", "--pid=host",
		"--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024", "--volume="+dir+":"+dir, "--env=LGPU_RUNTIME_DIR="+dir, "lgpu:test")...)
	var said bytes.Buffer
	daemon.Stdout, daemon.Stderr = &said, &said
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- daemon.Wait() }()
	t.Cleanup(func() {
		run(t, "lgpu", "daemon", "stop")
		if err := <-ended; err != nil {
			t.Errorf("the container ended with %v\n%s", err, said.String())
		}
	})
	for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		_, err := os.Stat(dir + "/lgpud.sock")
		if err == nil {
			break
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("the daemon has ended: %v\n%s", err, said.String())
		default:
		}
		if !errors.Is(err, os.ErrNotExist) || time.Since(start) > patience {
			t.Fatalf("the daemon is not ready: %v", err)
		}
	}
	p := startProgram(t)
	p.works(t, "with a daemon in a container")
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", look(t).Daemon.PID))
	if err != nil || exe != "/usr/bin/lgpu" {
		t.Errorf("the daemon is %s, %v, and not the image's", exe, err)
	}
	if err := p.in.Close(); err != nil {
		t.Error(err)
	}
	if err := p.Wait(); err != nil {
		t.Errorf("the program ended with %v", err)
	}
}
