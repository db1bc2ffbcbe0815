package criu

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestKeeperKilled: if somebody kills what watches over a restore, that fails, and nothing is left of it.
func TestKeeperKilled(t *testing.T) {
	p := installed(t)
	adopt(t)
	_, dir, streams := dumped(t, p)
	for _, victim := range []string{keepStart, keepStart + ", CRIU after it", keepHold, ""} {
		its, in, out := pipes(t)
		r := again(t, dir, streams, its)
		victim, awaited := strings.CutSuffix(victim, ", CRIU after it")
		r.Ready = func() error {
			all := family(os.Getpid())[1:]
			i := slices.IndexFunc(all, func(pid int) bool { return victim != "" && hasArguments(pid, keeping, victim) })
			if i < 0 {
				return nil
			}
			made, err := tree(dir)
			if err != nil {
				return err
			}
			below := family(all[i])[1:]
			criu := slices.IndexFunc(below, func(pid int) bool { return !slices.Contains(made, pid) })
			_ = unix.Kill(all[i], unix.SIGKILL) // its end is seen
			for awaited && alive(below[criu]) {
				time.Sleep(time.Millisecond)
			}
			if awaited {
				return errors.New("found since then")
			}
			return nil
		}
		process, err := p.Restore(patience(t), r)
		_, _ = its[0].Close(), its[1].Close()
		if victim == keepHold || victim == keepStart && err != nil { // otherwise that had left before the signal came
			if !strings.Contains(fmt.Sprint(err), "hold what is restored") {
				t.Errorf("%s: %v", victim, err)
			}
			if left := family(os.Getpid())[1:]; slices.ContainsFunc(left, alive) {
				t.Errorf("%s: processes %v are left", victim, left)
			}
			continue
		}
		explain(t, err)
		process.End() // also in the place of Commit
		if _, err := out.ReadString('\n'); err == nil {
			t.Error("it goes on")
		}
		_ = in.Close()
		if left := family(os.Getpid())[1:]; slices.ContainsFunc(left, alive) {
			t.Errorf("processes %v are left", left)
		}
	}
}

// TestKeeperAlone: a keeper ends what it has started, and what it holds, when who asked has ended.
func TestKeeperAlone(t *testing.T) {
	p := standIn(t, `setsid sleep 1000 & while :; do sleep 1000; done`)
	adopt(t)
	k, err := startKeeper(append(keeperCommand(t), keepStart, "0", "0", "0", p.Path), func(*exec.Cmd) {})
	if err != nil {
		t.Fatal(err)
	}
	criu, err := k.answer()
	if err != nil {
		t.Fatal(err)
	}
	for len(family(criu)) < 3 {
		time.Sleep(time.Millisecond)
	}
	below := family(criu)[1:]
	k2, err := startKeeper(append(keeperCommand(t), keepHold), func(*exec.Cmd) {})
	if err != nil {
		t.Fatal(err)
	}
	held := &holding{keeper: k2}
	if err := held.hold(k.cmd.Process.Pid, criu); err != nil {
		t.Fatal(err)
	}
	if err := held.leave(false); err != nil {
		t.Error(err)
	}
	if slices.ContainsFunc(below, alive) || !alive(criu) {
		t.Errorf("of the held processes %v some are left, or process %d, which is not, has ended", below, criu)
	}
	if err := k.end(false); err != nil {
		t.Error(err)
	}
	if left := family(os.Getpid())[1:]; slices.ContainsFunc(left, alive) {
		t.Errorf("processes %v are left", left)
	}
}

// TestKeeperGroup: what is restored is in the process group of who asks, and the keepers leave it.
func TestKeeperGroup(t *testing.T) {
	p := installed(t)
	adopt(t)
	inSession(t)
	its, in, out := pipes(t)
	c := exec.Command("/bin/sh", "-c", counting)
	c.Stdin, c.Stdout = its[0], its[1]
	if err := errors.Join(c.Start(), its[0].Close(), its[1].Close()); err != nil {
		t.Fatal(err)
	}
	count(t, in, out, 1, "one")
	streams := keys(t, c.Process.Pid)
	dir := t.TempDir()
	explain(t, p.Dump(patience(t), Dump{PID: c.Process.Pid, Dir: dir, Terminal: true}))
	_ = c.Wait() // killed by CRIU
	for range 5 {
		its, _, _ := pipes(t)
		r := again(t, dir, streams, its)
		r.Terminal = true
		r.Ready = func() error {
			for until := time.Now().Add(10 * time.Second); keepersInGroup(unix.Getpgrp()) > 0; time.Sleep(time.Millisecond) {
				if time.Now().After(until) {
					return errors.New("a keeper stays in the group")
				}
			}
			return nil
		}
		process, err := p.Restore(patience(t), r)
		explain(t, err)
		if group, err := unix.Getpgid(process.Pid); err != nil || group != unix.Getpgrp() {
			t.Errorf("it is in group %d, %v; want %d", group, err, unix.Getpgrp())
		}
		process.End()
		_, _ = its[0].Close(), its[1].Close()
	}
}

// inSession gives this process a session if its own began outside of its PID namespace, where CRIU does not find it.
func inSession(t *testing.T) {
	t.Helper()
	session, err := unix.Getsid(0)
	if err == nil && session == 0 {
		_, err = unix.Setsid()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// keepersInGroup counts the keepers of this process in a process group.
func keepersInGroup(group int) (n int) {
	for _, pid := range family(os.Getpid())[1:] {
		if of, _ := unix.Getpgid(pid); of == group && hasArguments(pid, keeping) {
			n++
		}
	}
	return n
}

// hasArguments says whether a process has these arguments, one behind the other.
func hasArguments(pid int, arguments ...string) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && strings.Contains(string(line), "\x00"+strings.Join(arguments, "\x00")+"\x00")
}
