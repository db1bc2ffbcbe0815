package doctor

import (
	"fmt"
	"math"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/internal/meminfo"
	"github.com/lgpu/lgpu/internal/units"
)

// hugePages is the setting of huge pages in shared memory, such as "always within_size [advise] never".
const hugePages = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"

// lookHost finds out what the host has for copies of memory that has left its device.
func lookHost() Host {
	var h Host
	m := meminfo.Read()
	h.Memory, h.Available = m.Total, m.Available
	var most unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &most) == nil {
		h.Locked = most.Cur
	}
	if text, err := os.ReadFile(hugePages); err == nil {
		h.Huge = chosen(string(text))
	}
	return h
}

// chosen is the word in brackets.
func chosen(text string) string {
	_, after, _ := strings.Cut(text, "[")
	word, _, _ := strings.Cut(after, "]")
	return word
}

// host judges whether memory that leaves its device has somewhere to go.
func (e *examination) host() {
	const check, locked, huge = "host.memory", "host.locked", "host.pages"
	h, d := &e.m.Host, &e.m.Daemon
	left := d.Budget - min(d.Copies, d.Budget)
	switch {
	case h.Memory == 0:
	case d.Budget > h.Memory:
		e.add(Warn, check, fmt.Sprintf("host.budget is %s, and this machine has %s: what leaves a device (lgpu run --overcommit) may fill it",
			units.FormatSize(d.Budget), units.FormatSize(h.Memory)), "lgpu set / host.budget=default, which is half of the memory")
	case d.Budget > 0 && left > h.Available:
		e.add(Warn, check, fmt.Sprintf("copies of what leaves devices may take %s more (host.budget), and %s are available", units.FormatSize(left),
			units.FormatSize(h.Available)), fmt.Sprintf("end what fills the memory, or lgpu set / host.budget=%dMiB", max((h.Available+d.Copies)>>20, 1)))
	case d.Budget > 0:
		e.ok(check, "copies of what leaves devices take %s of %s (host.budget); %s are available", units.FormatSize(d.Copies),
			units.FormatSize(d.Budget), units.FormatSize(h.Available))
	default:
		e.ok(check, "%s, %s of them available", units.FormatSize(h.Memory), units.FormatSize(h.Available))
	}
	switch {
	case h.Locked == math.MaxUint64 || e.m.User == 0:
		e.ok(locked, "programs may lock any amount of memory")
	default:
		e.ok(locked, "a program of user %d may lock %s by itself (ulimit -l)", e.m.User, units.FormatSize(h.Locked))
	}
	switch h.Huge {
	case "", "always", "force":
	case "never":
		e.ok(huge, "huge pages are off for shared memory; a daemon of root has some of its own for copies of what leaves devices")
	case "deny":
		e.add(Warn, huge, "huge pages are off for shared memory: copies of what leaves devices are made and locked more slowly",
			"echo advise > "+hugePages+"; everything works without")
	default:
		e.ok(huge, "huge pages in shared memory: %s", h.Huge)
	}
}
