package criu

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"

	"github.com/lgpu/lgpu/internal/proc"
)

// place is where CRIU works: what it restores is there, too. A program that has the mounts that CRIU has needs none of them in
// its image.
type place struct {
	mounts  int      // a process in the mount namespace; 0: that of this process
	cgroups []string // files in which it is entered, by its number
	// terminal is CRIU's standard input, which what it restores has in the place of each terminal. May be nil.
	terminal *os.File
}

// start starts a command there. It does nothing of interest before it is asked for something.
func (p place) start(c *exec.Cmd) error {
	if p.terminal != nil {
		c.Stdin = p.terminal
	}
	start := c.Start
	if p.mounts != 0 {
		start = func() error { return proc.InMountsOf(p.mounts, c.Start) }
	}
	if err := start(); err != nil {
		return err
	}
	for _, file := range p.cgroups {
		if err := os.WriteFile(file, []byte(strconv.Itoa(c.Process.Pid)), 0); err != nil {
			return errors.Join(fmt.Errorf("enter the program's cgroup: %w", err), c.Process.Kill(), ignoreExit(c.Wait()))
		}
	}
	return nil
}

// ignoreExit is an error of waiting, but for how the command ended.
func ignoreExit(err error) error {
	var exited *exec.ExitError
	if errors.As(err, &exited) {
		return nil
	}
	return err
}
