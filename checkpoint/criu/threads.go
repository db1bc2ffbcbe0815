package criu

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// CRIU does not write which processors threads are bound to, and by how much their timers may be late. That is in a file of its
// own beside CRIU's.
const (
	threadsName = "threads.json"
	maxThreads  = 64 << 20
)

// bound is what a thread has, where that is not what threads have by themselves.
type bound struct {
	Thread     int   `json:"thread"`
	Processors []int `json:"processors,omitempty"`
	Slack      int64 `json:"slack,omitempty"` // ns (PR_SET_TIMERSLACK of prctl(2))
}

// usualSlack is the first process's, ns; all others have it from there.
const usualSlack = 50000

// writeThreads writes what threads of processes have to a folder. There is no file where none has anything.
func writeThreads(dir string, processes []int) error {
	var usual unix.CPUSet // the first process may run anywhere
	if err := unix.SchedGetaffinity(1, &usual); err != nil {
		return fmt.Errorf("processors of process 1: %w", err)
	}
	var all []bound
	for _, pid := range processes {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil && alive(pid) {
			return fmt.Errorf("threads of process %d: %w", pid, err)
		}
		for _, e := range entries {
			tid, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			if b := boundOf(tid, &usual); b.Processors != nil || b.Slack != 0 {
				all = append(all, b)
			}
		}
	}
	if all == nil {
		return nil
	}
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, threadsName), text, 0o600)
}

// boundOf is what a thread has; nothing if it has ended.
func boundOf(tid int, usual *unix.CPUSet) bound {
	b := bound{Thread: tid}
	var set unix.CPUSet
	if unix.SchedGetaffinity(tid, &set) == nil && set != *usual {
		for cpu := range 64 * len(set) {
			if set.IsSet(cpu) {
				b.Processors = append(b.Processors, cpu)
			}
		}
	}
	if text, err := os.ReadFile(slackFile(tid)); err == nil {
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n != usualSlack {
			b.Slack = n
		}
	}
	return b
}

// slackFile is how late a thread's timers may be, which root may write.
func slackFile(tid int) string { return fmt.Sprintf("/proc/%d/timerslack_ns", tid) }

// bindThreads gives threads of a restored program what they had. What is not to be had here is no error, nor is a thread that has
// just been killed.
func bindThreads(dir string, numbers []int) error {
	text, err := readList(filepath.Join(dir, threadsName), maxThreads)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var all []bound
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", threadsName, err)
	}
	for _, b := range all {
		if !slices.Contains(numbers, b.Thread) {
			continue // it had ended when CRIU came to it
		}
		err := b.bind()
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.EINVAL) &&
			!errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("bind thread %d as it was: %w", b.Thread, err)
		}
	}
	return nil
}

func (b *bound) bind() (err error) {
	if b.Processors != nil {
		var set unix.CPUSet
		for _, cpu := range b.Processors {
			if cpu < 0 {
				return errDamaged
			}
			set.Set(cpu)
		}
		err = unix.SchedSetaffinity(b.Thread, &set)
	}
	if b.Slack != 0 {
		err = cmp.Or(err, os.WriteFile(slackFile(b.Thread), strconv.AppendInt(nil, b.Slack, 10), 0))
	}
	return err
}
