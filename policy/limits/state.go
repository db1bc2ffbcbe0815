package limits

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/lgpu/lgpu/internal/list"
	"github.com/lgpu/lgpu/internal/units"
)

// StateVersion is the version of State that this package writes.
const StateVersion = 1

// State is everything that must survive a restart, for JSON. It holds requests, not results: Load computes those again.
type State struct {
	Version     int              `json:"version"`
	LastID      uint64           `json:"last_id"` // the highest ID given so far
	Directories []DirectoryState `json:"nodes"`   // parents before their children, siblings by name; the root first
}

// DirectoryState is one group or lgpu of a State.
type DirectoryState struct {
	ID        uint64   `json:"id"`
	Path      string   `json:"path"`
	Temporary bool     `json:"temporary,omitempty"`
	UID       uint32   `json:"uid,omitempty"`
	GID       uint32   `json:"gid,omitempty"`
	Gang      string   `json:"gang,omitempty"`
	Cgroups   []string `json:"cgroups,omitempty"`
	HostMax   Bytes    `json:"host_max,omitzero"`
	// Overcommit and Suspend are the files memory.overcommit and memory.suspend; HostBudget and Turns are the root's
	// host.budget and slice files.
	Overcommit bool              `json:"memory_overcommit,omitempty"`
	Suspend    bool              `json:"memory_suspend,omitempty"`
	HostBudget Bytes             `json:"host_budget,omitzero"`
	Turns      Turns             `json:"slice,omitzero"`
	Devices    map[string]Limits `json:"devices,omitempty"` // by UUID, also of devices that are gone
}

// Limits are what is asked of a group or an lgpu on one device: a field for each file that has a limit. It is the one
// form that a limit has between the API or the text of a file and what comes of it (Effective). What is left out
// follows the parent, or is not limited.
type Limits struct {
	Follow    Follow    `json:"follow,omitempty"`    // which set is followed where neither Count nor List is there
	Count     *int      `json:"count,omitempty"`     // anonymous bits
	Held      list.Set  `json:"held,omitzero"`       // the bits that Count has got
	List      *list.Set `json:"list,omitempty"`      // named bits
	Exclusive bool      `json:"exclusive,omitempty"` // no sibling may hold them

	Weight     uint32    `json:"weight,omitempty"` // 0 is DefaultWeight
	Priority   *Priority `json:"priority,omitempty"`
	ComputeMax *uint32   `json:"compute_max,omitempty"` // hundredths of a percent
	ComputeMin *uint32   `json:"compute_min,omitempty"` // hundredths of a percent
	MemoryMax  Bytes     `json:"memory_max,omitzero"`
	MemoryHigh Bytes     `json:"memory_high,omitzero"`

	MemoryBudget Bytes `json:"memory_budget,omitzero"` // of the root only
}

// Follow is the set that a directory follows without a request of its own.
type Follow string

// Sets to follow.
const (
	FollowMax     Follow = ""        // the parent's bits
	FollowDefault Follow = "default" // the device's default bits, as far as the parent has them
)

// save lists the directories. Maps and slices are shared with the state, which never changes them.
func (s *state) save() State {
	saved := State{Version: StateVersion, LastID: s.lastID, Directories: make([]DirectoryState, 0, len(s.byID))}
	s.root.walk(func(n *directory) { saved.Directories = append(saved.Directories, n.DirectoryState) })
	return saved
}

// load makes a state without devices of a saved one, and says what it left out.
func load(saved State) (*state, []error) {
	s := newState()
	if saved.Version != StateVersion {
		return s, []error{&Error{Errno: syscall.EINVAL, Path: Root, Token: fmt.Sprint(saved.Version),
			Reason: fmt.Sprintf("the saved tree has a version that this program does not read; it reads %d", StateVersion)}}
	}
	var problems []error
	report := func(n DirectoryState, what string, err error) {
		problems = append(problems, &Error{Errno: errnoOf(err), Path: n.Path, File: what, Reason: "left out: " + err.Error()})
	}
	s.lastID = max(saved.LastID, rootID)
	for _, from := range saved.Directories {
		s.lastID = max(s.lastID, from.ID)
	}
	for _, from := range saved.Directories {
		n := s.root
		if from.Path != Root {
			made, err := s.create(CreateSpec{Path: from.Path, Temporary: from.Temporary}, nil)
			if err != nil {
				problems = append(problems, err)
				continue
			}
			if s.byID[from.ID] == nil && from.ID != 0 {
				delete(s.byID, made.ID)
				made.ID, s.lastID = from.ID, s.lastID-1
				s.byID[made.ID] = made
			}
			n = made
		}
		n.UID, n.GID, n.HostMax = from.UID, from.GID, from.HostMax
		n.Overcommit, n.Suspend, n.HostBudget, n.Turns = from.Overcommit, from.Suspend, from.HostBudget, from.Turns
		if err := setGang(n, from.Gang); err != nil {
			report(from, "gang", err)
		}
		if err := writeCgroups(s, n, strings.Join(from.Cgroups, "\n")); err != nil {
			report(from, "cgroup.path", err)
		}
		for _, device := range slices.Sorted(maps.Keys(from.Devices)) {
			s.setLimits(n, device, from.Devices[device].checked(func(file string, err error) { report(from, file, err) }))
		}
	}
	return s, problems
}

// checked returns l without values that no write could have made.
func (l Limits) checked(report func(file string, err error)) Limits {
	refuse := func(file, reason string) { report(file, errors.New(reason)) }
	if l.Count != nil && (*l.Count < 0 || l.List != nil) {
		refuse("lgpu", fmt.Sprintf("count %d is negative, or beside a list", *l.Count))
		l.Count = nil
	}
	if l.Follow != FollowMax && l.Follow != FollowDefault {
		refuse("lgpu", fmt.Sprintf("%q is not a set that can be followed", l.Follow))
		l.Follow = FollowMax
	}
	if l.Count == nil {
		l.Held = list.Set{}
	}
	l.Exclusive = l.Exclusive && !l.follows()
	if l.Weight > MaxWeight {
		refuse("lgpu.weight", fmt.Sprintf("weight %d is above %d", l.Weight, MaxWeight))
		l.Weight = 0
	}
	if l.Priority != nil && *l.Priority > Latency {
		refuse("lgpu.priority", "there is no "+l.Priority.String())
		l.Priority = nil
	}
	for _, share := range []struct {
		file  string
		value **uint32
	}{{"compute.max", &l.ComputeMax}, {"compute.min", &l.ComputeMin}} {
		if p := *share.value; p != nil && (*p == 0 || *p > units.Whole) {
			refuse(share.file, fmt.Sprintf("%d is not in 1 to %d hundredths of a percent", *p, units.Whole))
			*share.value = nil
		}
	}
	return l
}

// Difference is one thing that a directory asks for and did not before.
type Difference struct {
	// File is the name of the file, or owner, which is that of the directory.
	File string `json:"file"`
	// Device is a device's UUID; empty where the file is about none, or all devices have the same.
	Device string `json:"device,omitempty"`
	// Old and New are what people read and write, such as 8 GiB; empty is nothing.
	Old string `json:"old"`
	New string `json:"new"`
	// device is Device for people.
	device string
}

// String is the difference in words, such as "memory.max of device 0 (GPU-00112233) is 8 GiB (was max)".
func (d Difference) String() string {
	what := d.File
	if d.device != "" {
		what += " of device " + d.device
	}
	return fmt.Sprintf("%s is %s (was %s)", what, orNothing(d.New), orNothing(d.Old))
}

// Differences says what a directory of this tree asks for that it did not before, on devices and else. What is the same
// for all devices is said once.
func (t *Tree) Differences(n, before DirectoryState) []Difference {
	devices := t.Devices()
	var out []Difference
	say := func(file, now, was string, of Device) {
		if now == was {
			return
		}
		d := Difference{File: file, Device: of.UUID, Old: was, New: now}
		if of.UUID != "" {
			d.device = of.names().String()
		}
		out = append(out, d)
	}
	for _, f := range limitWords {
		var now, was []string
		for _, d := range devices {
			now, was = append(now, f.word(n.Devices[d.UUID])), append(was, f.word(before.Devices[d.UUID]))
		}
		if len(slices.Compact(slices.Clone(now))) == 1 && len(slices.Compact(slices.Clone(was))) == 1 {
			say(f.file, now[0], was[0], Device{})
			continue
		}
		for i, d := range devices {
			say(f.file, now[i], was[i], d)
		}
	}
	say("host.max", n.HostMax.Size(), before.HostMax.Size(), Device{})
	say(fileHostBudget, budgetWord(n.HostBudget), budgetWord(before.HostBudget), Device{})
	say(fileSliceMin, turnWord(n.Turns.Least), turnWord(before.Turns.Least), Device{})
	say(fileSliceMax, turnWord(n.Turns.Most), turnWord(before.Turns.Most), Device{})
	say(fileSliceLatency, turnWord(n.Turns.Latency), turnWord(before.Turns.Latency), Device{})
	say(fileOvercommit, bit(n.Overcommit), bit(before.Overcommit), Device{})
	say(fileSuspend, bit(n.Suspend), bit(before.Suspend), Device{})
	say("gang", n.Gang, before.Gang, Device{})
	say("cgroup.path", strings.Join(n.Cgroups, " "), strings.Join(before.Cgroups, " "), Device{})
	if n.UID != before.UID || n.GID != before.GID {
		say("owner", t.names.owner(n), t.names.owner(before), Device{})
	}
	return out
}

// limitWords are the files with values per device, and how their values are said to people.
var limitWords = []struct {
	file string
	word func(Limits) string
}{
	{"memory.max", func(l Limits) string { return l.MemoryMax.Size() }},
	{"memory.high", func(l Limits) string { return l.MemoryHigh.Size() }},
	{"compute.max", func(l Limits) string { return formatMax(l.ComputeMax) }},
	{"compute.min", func(l Limits) string { return formatShare(value(l.ComputeMin, 0)) }},
	{"lgpu", Limits.Lgpu},
	{"lgpu.weight", func(l Limits) string { return fmt.Sprint(l.weight()) }},
	{"lgpu.priority", Limits.priority},
	{fileBudget, func(l Limits) string { return budgetWord(l.MemoryBudget) }},
}

// budgetWord is a budget for people.
func budgetWord(b Bytes) string {
	if b == (Bytes{}) {
		return wordDefault
	}
	return b.Size()
}

func bit(on bool) string { return strings.TrimSpace(formatBit(on)) }

func orNothing(word string) string {
	if word == "" {
		return "none"
	}
	return word
}

// checkDevices says whether there can be such devices.
func checkDevices(devices []Device) error {
	names := map[string]bool{}
	for _, d := range devices {
		reason := ""
		switch {
		case d.UUID == "" || len(split(d.UUID)) != 1 || strings.ContainsFunc(d.UUID, unprintable):
			reason = "a device has a UUID without blanks"
		case d.Number != "" && !deviceLike(d.Number):
			reason = "the number is not MAJ:MIN: " + d.Number
		case names[strings.ToLower(d.UUID)] || d.Number != "" && names[d.Number]:
			reason = "two devices have the same name"
		case d.Capacity < 1 || d.Capacity > list.MaxBits:
			reason = fmt.Sprintf("its capacity is %d bits; 1 to %d are possible", d.Capacity, list.MaxBits)
		case d.UnitsPerBit < 1 || d.Remainder < 0:
			reason = "a bit is at least one unit, and what is left over is not negative"
		case !d.Default.In(d.All()):
			reason = "its default has bits that it has not"
		}
		if reason != "" {
			return &Error{Errno: syscall.EINVAL, Path: Root, Token: d.Key(), Reason: reason}
		}
		names[strings.ToLower(d.UUID)] = true
		if d.Number != "" {
			names[d.Number] = true
		}
	}
	return nil
}
