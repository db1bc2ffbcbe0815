package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// networked says whether CRIU dumps sockets of the network with this kernel: whether that answers what CRIU 4.1.1 asks of each
// (docs/images.md).
func networked(t *testing.T) bool {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	_, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED)
	return err == nil
}

// What programs have, such as threads, workers, timers and locks, is after a restore as it was, and after one from an image of
// the restored program, too. habits.py has it, and names what is not.
func TestCheckpointHabits(t *testing.T) {
	for _, overcommit := range []string{"--overcommit=false", "--overcommit"} {
		t.Run(overcommit, func(t *testing.T) { checkpointHabits(t, overcommit) })
	}
}

func checkpointHabits(t *testing.T, overcommit string) {
	p, folder := imagePlace(t)
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("the habits of programs are NOT TESTED: python3 is not here")
	}
	program, err := filepath.Abs("habits.py")
	if err != nil {
		t.Fatal(err)
	}
	files := filepath.Join(p.dir, "files")
	if err := os.Mkdir(files, 0o700); err != nil {
		t.Fatal(err)
	}
	args := []string{"run", tideShape, "--name", "kept", overcommit, "--", python, program, files}
	if networked(t) {
		args = append(args, "network")
	}
	c := p.start("lgpu", args...)
	c.until("ready")
	for n := range 2 {
		image := filepath.Join(folder, fmt.Sprint(n))
		p.checkpoint("kept", image, "--stop")
		p.gone(c, "/kept")
		c = p.restore(image)
		c.tell("check")
		wrong, _ := c.read("what it has checked", func(line string) bool { return strings.HasPrefix(line, "checked ") })
		for _, line := range wrong {
			t.Errorf("restore %d: %s", n+1, line)
		}
	}
	c.end()
}
