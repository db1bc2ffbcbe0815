package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ticksPerSecond is the unit of processor time in /proc, the same on every Linux that Go runs on.
const ticksPerSecond = 100

// host is what the machine's processors have done since it started, in ticks; zeros where that is not known.
type host struct {
	all    uint64 // all their time
	busy   uint64 // what programs had of it
	stolen uint64 // what the host of a virtual machine has kept of it
	own    uint64 // what the demo's programs had
}

// processors reads /proc/stat, and of the demo's programs, which have the runtime folder in their environment, their
// own files. Fields of proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal.
func processors(runtime string) host {
	h := host{own: ownTime(runtime)}
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return h
	}
	line, _, _ := strings.Cut(string(text), "\n")
	for i, field := range strings.Fields(line) {
		if i == 0 || i > 8 {
			continue
		}
		ticks, _ := strconv.ParseUint(field, 10, 64)
		h.all += ticks
		switch i {
		case 4, 5: // nobody had it
		case 8:
			h.stolen = ticks
		default:
			h.busy += ticks
		}
	}
	return h
}

// ownTime is the time of this process, of those it has waited for, and of the running ones that have the runtime folder
// in their environment, with those that they have waited for.
func ownTime(runtime string) uint64 {
	var ticks uint64
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var used unix.Rusage
		if unix.Getrusage(who, &used) == nil {
			ticks += uint64(used.Utime.Nano()+used.Stime.Nano()) * ticksPerSecond / 1e9
		}
	}
	environments, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range environments {
		environment, err := os.ReadFile(path)
		if err != nil || !strings.Contains("\x00"+string(environment), "\x00LGPU_RUNTIME_DIR="+runtime+"\x00") {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(filepath.Dir(path), "stat"))
		if err != nil {
			continue
		}
		ticks += processTime(string(stat))
	}
	return ticks
}

// processTime adds up utime, stime, cutime and cstime of /proc/PID/stat. The name before them may contain anything.
func processTime(stat string) uint64 {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 15 {
		return 0
	}
	var sum uint64
	for _, field := range fields[11:15] {
		ticks, _ := strconv.ParseUint(field, 10, 64)
		sum += ticks
	}
	return sum
}

// load is what else kept the machine busy.
type load struct {
	before float64 // the load average of the minute before the demo
	others float64 // processors that other programs had, on average, while it measured
	stolen float64 // the part of the processors that the host of a virtual machine kept
}

// between is the load from one reading of the processors to a later one; before is taken over.
func between(before float64, from, to host) load {
	all := float64(max(to.all-from.all, 1))
	others := float64(to.busy-from.busy) - float64(to.own-from.own)
	return load{before, max(others, 0) / all * float64(goruntime.NumCPU()), float64(to.stolen-from.stolen) / all}
}

// loadAverage is the machine's load over the last minute, 0 where that is not known.
func loadAverage() float64 {
	var average float64
	text, err := os.ReadFile("/proc/loadavg")
	if err == nil {
		_, err = fmt.Sscan(string(text), &average)
	}
	if err != nil {
		return 0
	}
	return average
}

// errBroken is a limit that did not hold.
var errBroken = errors.New("a limit did not hold")

// explain adds to the error of a limit that did not hold what else may be the reason for that: a software GPU keeps its
// pace only where the host's processors have time for it.
func (l load) explain(err error) error {
	much := float64(goruntime.NumCPU()) / 4
	if !errors.Is(err, errBroken) || l.before < much && l.others < much {
		return err
	}
	return fmt.Errorf("%w; but this machine was busy, and then a software GPU falls behind its clock: other programs had "+
		"%.1f of its %d processors meanwhile, and before the demo it had a load of %.1f: try again when nothing else runs",
		err, l.others, goruntime.NumCPU(), l.before)
}
