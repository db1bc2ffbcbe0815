package test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// full fills the rest of a file system, and returns how to make room again.
func full(t *testing.T, dir string) (empty func()) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "fill"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(f.Name()); err != nil {
			t.Error(err)
		}
	}
}

// A disk that is full where the state is: whoever changes something is told, whoever looks after the daemon sees it, a
// daemon can be started with what there is, and all goes on once there is room.
func TestFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount a small disk")
	}
	p := newPlace(t)
	disk := t.TempDir()
	if err := unix.Mount("disk", disk, "tmpfs", 0, "size=2m"); err != nil {
		t.Skipf("no small disk: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := port.Addr().String()
	port.Close()
	serve := func() *tenant {
		return p.serve("--store", filepath.Join(disk, "state.db"), "--metrics", address, "--mount", "off")
	}
	ready := func() (int, string) {
		t.Helper()
		answer, err := http.Get("http://" + address + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(text)
	}
	const says = "no space left on device"
	notReady := func(when string) {
		t.Helper()
		if status, text := ready(); status != http.StatusServiceUnavailable || !strings.Contains(text, says) {
			t.Errorf("%s: readiness is %d, %s", when, status, text)
		}
	}

	d := serve()
	p.must("create", shape, "/kept")
	empty := full(t, disk)
	for i := 0; ; i++ { // the file has room of its own
		out, err := p.command("lgpu", "create", fmt.Sprintf("/g%d", i)).CombinedOutput()
		if err != nil {
			if !strings.Contains(string(out), says) || !strings.Contains(string(out), "nothing has changed") {
				t.Errorf("create: %s", out)
			}
			break
		}
	}
	notReady("a full disk")
	p.must("daemon", "stop")
	d.status()

	d = serve()
	if out := p.must("ps", "--tree"); !strings.Contains(out, "kept/") || !strings.Contains(out, "g0/") {
		t.Errorf("the next daemon has\n%s", out)
	}
	notReady("the next daemon")
	p.refused(1, says, "run", shape, "--", "true")
	empty()
	p.wait("room", func() bool { _, said := ready(); return !strings.Contains(said, says) }) // there may be no device by now
	p.must("run", shape, "--", "true")
	p.must("daemon", "stop")
	d.status()
}
