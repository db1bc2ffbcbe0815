package limits

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/lgpu/lgpu/internal/list"
	"github.com/lgpu/lgpu/internal/names"
)

// File describes a file that directories have.
type File struct {
	Name     string
	Readable bool
	Writable bool
	Root     bool // only the root has it
	Users    bool // it is about the programs in the directory, and so for its owner too
	Usage    bool // it says what programs use
	Private  bool // it says which programs there are, and what happened to them
}

// Files returns all files by name.
func Files() []File {
	out := make([]File, 0, len(fileTable))
	for _, f := range fileTable {
		out = append(out, f.describe())
	}
	return out
}

// PerDevice reports whether a file has a limit for each device.
func PerDevice(name string) bool {
	return slices.ContainsFunc(limitFiles(), func(f *file) bool { return f.name == name })
}

// file is how a file is read and written. write changes a state that nobody else sees; after an error the state is
// dropped.
type file struct {
	name    string
	root    bool
	users   bool // see File
	usage   bool // see File
	private bool // see File
	admins  bool // only administrators write it
	read    func(*Tree, *state, *directory) string
	write   func(*state, *directory, string) *Error
}

// describe is the file as callers see it.
func (f *file) describe() File {
	return File{Name: f.name, Readable: f.read != nil, Writable: f.write != nil, Root: f.root, Users: f.users,
		Usage: f.usage, Private: f.private}
}

// fileTable has all files by name, and files finds them. They are filled by init because reading and writing go through
// functions that look files up.
var (
	fileTable []*file
	files     = map[string]*file{}
)

func init() {
	fileTable = slices.Concat(limitFiles(), otherFiles(), residenceFiles(), turnFiles())
	slices.SortFunc(fileTable, func(a, b *file) int { return strings.Compare(a.name, b.name) })
	for _, f := range fileTable {
		files[f.name] = f
	}
}

// limitFiles are those with a limit for each device.
func limitFiles() []*file {
	return []*file{
		{name: "compute.max",
			read: each(func(l Limits) string { return formatMax(l.ComputeMax) }),
			write: perDevice(&computeMax, func(l *Limits, value string) (err error) {
				l.ComputeMax, err = parseMax(value)
				return err
			})},
		{name: "compute.min",
			read: each(func(l Limits) string { return formatShare(value(l.ComputeMin, 0)) }),
			write: guaranteed(perDevice(&computeMin, func(l *Limits, value string) (err error) {
				l.ComputeMin, err = parseMin(value)
				return err
			}))},
		{name: "lgpu", read: each(Limits.Lgpu), write: writeLgpu},
		{name: "lgpu.priority",
			read: each(Limits.priority),
			write: perDevice(&priority, func(l *Limits, value string) (err error) {
				l.Priority, err = parsePriority(value)
				return err
			})},
		{name: "lgpu.weight",
			read: each(func(l Limits) string { return strconv.FormatUint(uint64(l.weight()), 10) }),
			write: perDevice(&weight, func(l *Limits, value string) (err error) {
				l.Weight, err = parseWeight(value)
				return err
			})},
		{name: "memory.high",
			read: each(func(l Limits) string { return l.MemoryHigh.String() }),
			write: perDevice(&memoryHigh, func(l *Limits, value string) (err error) {
				l.MemoryHigh, err = parseBytes(value)
				return err
			})},
		{name: "memory.max",
			read: each(func(l Limits) string { return l.MemoryMax.String() }),
			write: perDevice(&memoryMax, func(l *Limits, value string) (err error) {
				l.MemoryMax, err = parseBytes(value)
				return err
			})},
	}
}

// otherFiles are all others.
func otherFiles() []*file {
	return []*file{
		{name: "cgroup.path", private: true, admins: true, read: readCgroups, write: writeCgroups},
		{name: "compute.stat", usage: true, read: readComputeStat},
		{name: "energy.stat", usage: true, read: readEnergyStat},
		{name: "events", private: true, read: readEvents},
		{name: "gang",
			read:  func(_ *Tree, _ *state, n *directory) string { return ended(n.Gang) },
			write: single(setGang)},
		{name: "host.max",
			read: func(_ *Tree, _ *state, n *directory) string { return ended(n.HostMax.String()) },
			write: single(func(n *directory, value string) (err error) {
				if n.HostMax, err = parseBytes(value); err == nil {
					err = checkBytes(n.HostMax)
				}
				return err
			})},
		{name: "lgpu.capacity", root: true,
			read: ofDevices(func(d Device) string { return fmt.Sprintf("count=%d", d.Capacity) })},
		{name: "lgpu.default", root: true, read: ofDevices(func(d Device) string { return bits(d, d.defaults()) })},
		{name: "lgpu.effective", read: readEffective},
		{name: "lgpu.unit", root: true, read: ofDevices(func(d Device) string {
			return fmt.Sprintf("unit=compute_unit units_per_lgpu=%d kind=%s remainder=%d", d.UnitsPerBit, d.Kind, d.Remainder)
		})},
		{name: "memory.capacity", root: true,
			read: ofDevices(func(d Device) string { return strconv.FormatUint(d.Memory, 10) })},
		{name: "memory.current", usage: true, read: readMemoryCurrent},
		{name: "memory.peak", users: true, usage: true, read: readMemoryPeak, write: writeMemoryPeak},
		{name: "procs", private: true, read: readProcs},
		{name: "procs.kill", users: true, write: writeKill},
	}
}

// file finds a file of n.
func (n *directory) file(name string) (*file, *Error) {
	f := files[name]
	if f == nil || f.root && n.parent != nil {
		return nil, &Error{Errno: syscall.ENOENT, Path: n.Path, File: name, Reason: "there is no such file"}
	}
	return f, nil
}

// writeKill notes that the programs in and below a directory are to end.
func writeKill(s *state, n *directory, text string) *Error {
	if word := strings.TrimSpace(text); word != "1" {
		return &Error{Errno: syscall.EINVAL, Token: word, Reason: "1 ends the programs in it and below; nothing else has a meaning"}
	}
	s.kill = &n.ID
	return nil
}

// ended ends a value that is not empty with a newline.
func ended(value string) string {
	if value == "" {
		return ""
	}
	return value + "\n"
}

// each makes the reader of a file that has a line for each device.
func each(value func(Limits) string) func(*Tree, *state, *directory) string {
	return func(_ *Tree, s *state, n *directory) string {
		return s.table(func(d int) string { return value(n.limits(s.devices[d].UUID).on(s.devices[d])) })
	}
}

// ofDevices makes the reader of a file that says something of each device.
func ofDevices(value func(Device) string) func(*Tree, *state, *directory) string {
	return func(_ *Tree, s *state, _ *directory) string {
		return s.table(func(d int) string { return value(s.devices[d]) })
	}
}

// table writes a line for each device.
func (s *state) table(value func(d int) string) string {
	var b strings.Builder
	for d, device := range s.devices {
		fmt.Fprintf(&b, "%s %s\n", device.Key(), value(d))
	}
	return b.String()
}

// bits writes a set of a device: with names only where bits have names.
func bits(d Device, set list.Set) string {
	if d.Kind == Temporal {
		return fmt.Sprintf("count=%d", set.Count())
	}
	return fmt.Sprintf("count=%d list=%s", set.Count(), set)
}

func readEffective(_ *Tree, s *state, n *directory) string {
	return s.table(func(d int) string { return bits(s.devices[d], n.effective[d].Bits) })
}

// on returns the requests as they hold on a device: names mean nothing where units are time.
func (l Limits) on(d Device) Limits {
	if d.Kind == Temporal && l.List != nil {
		n := l.List.Count()
		l.Count, l.List, l.Exclusive = &n, nil, false
	}
	return l
}

// Lgpu returns the request for bits as the file lgpu shows it and can be given back: "max", "default", "count=4",
// "count=3 list=0-1,5" or one of the latter with " exclusive=1".
func (l Limits) Lgpu() string {
	var b strings.Builder
	switch {
	case l.List != nil:
		fmt.Fprintf(&b, "count=%d list=%s", l.List.Count(), *l.List)
	case l.Count != nil:
		fmt.Fprintf(&b, "count=%d", *l.Count)
	case l.Follow == FollowDefault:
		return wordDefault
	default:
		return wordMax
	}
	if l.Exclusive {
		b.WriteString(" exclusive=1")
	}
	return b.String()
}

// priority is what the file shows.
func (l Limits) priority() string {
	if l.Priority == nil {
		return wordDefault
	}
	return l.Priority.String()
}

// weight is the weight that holds.
func (l Limits) weight() uint32 {
	if l.Weight == 0 {
		return DefaultWeight
	}
	return l.Weight
}

// setGang names the gang of a directory, or takes it out of one.
func setGang(n *directory, value string) error {
	if value != "" {
		if err := names.Check(value); err != nil {
			return err
		}
	}
	n.Gang = value
	return nil
}

// guaranteed makes a writer of guarantees refuse what cannot be kept beside the guarantees of others.
func guaranteed(write func(*state, *directory, string) *Error) func(*state, *directory, string) *Error {
	return func(s *state, n *directory, text string) *Error {
		before := n.DirectoryState.Devices // a write replaces the map
		if err := write(s, n, text); err != nil {
			return err
		}
		return s.kept(n, before)
	}
}

// kept says whether the guarantees of n can be kept that are more than before.
func (s *state) kept(n *directory, before map[string]Limits) *Error {
	s.resolve()
	for d, device := range s.devices {
		if own := value(n.limits(device.UUID).ComputeMin, 0); own > value(before[device.UUID].ComputeMin, 0) {
			if err := s.keepable(n, d); err != nil {
				err.Token = device.Key() + " " + formatShare(own)
				return err
			}
		}
	}
	return nil
}

// keepable says whether the guarantee of n on device number d can be kept: by n itself, and by its ancestors up to one
// that has a guarantee of its own, of which this is a part.
func (s *state) keepable(n *directory, d int) *Error {
	needs := map[*directory]uint64{}
	s.root.need(s.devices[d].UUID, needs)
	claim := func(n *directory) uint64 { return min(needs[n], uint64(n.effective[d].ComputeMax)) }
	refuse := func(sum uint64, at *directory, has string, bound uint32) *Error {
		return &Error{Errno: syscall.ERANGE, Reason: fmt.Sprintf("that reserves %s in %s, which %s %s",
			formatShare(uint32(min(sum, math.MaxUint32))), at.Path, has, formatShare(bound))}
	}
	if limit := n.effective[d].ComputeMax; needs[n] > uint64(limit) {
		return refuse(needs[n], n, "gets at most", limit)
	}
	for n = n.parent; n != nil; n = n.parent {
		sum := uint64(0)
		for _, child := range n.children {
			sum += claim(child)
		}
		if n.limits(s.devices[d].UUID).ComputeMin != nil {
			if bound := claim(n); sum > bound {
				return refuse(sum, n, "is itself guaranteed", uint32(bound))
			}
			return nil
		}
		if limit := n.effective[d].ComputeMax; sum > uint64(limit) {
			return refuse(sum, n, "gets at most", limit)
		}
	}
	if s.bounded {
		return &Error{Errno: syscall.EPERM, Reason: "no group above has a compute.min of which this could be a part",
			Remedy: "ask an administrator to set compute.min of the group above"}
	}
	return nil
}

// writeLgpu reads [DEVICE] max|default or [DEVICE] with keys count, list and exclusive.
func writeLgpu(s *state, n *directory, text string) *Error {
	lines, err := s.lines(text)
	if err != nil {
		return err
	}
	// All requests are read against the state before the write, then set, and then the siblings are looked at.
	type asked struct {
		line   line
		device int
		limits Limits
	}
	var requests []asked
	for _, line := range lines {
		for _, d := range line.devices {
			l, err := s.readRequest(n, d, line)
			if err != nil {
				return err
			}
			requests = append(requests, asked{line, d, l})
		}
	}
	for _, r := range requests {
		if err := s.grant(n, r.device, &r.limits); err != nil {
			err.Line = r.line.number
			return err
		}
		s.setLimits(n, s.devices[r.device].UUID, r.limits)
	}
	return nil
}

// readRequest reads the words of a line about bits of device number d.
func (s *state) readRequest(n *directory, d int, line line) (Limits, *Error) {
	device := s.devices[d]
	after := n.limits(device.UUID)
	after.Count, after.List, after.Held, after.Exclusive, after.Follow = nil, nil, list.Set{}, false, FollowMax
	if len(line.fields) == 0 {
		return after, line.fault(syscall.EINVAL, "", device.Key(), "behind the device come count=, list= or max or default")
	}
	if len(line.fields) == 1 && keyword(line.fields[0]) {
		after.Follow = follow(line.fields[0])
		return after, nil
	}
	seen := map[string]string{}
	for _, field := range line.fields {
		key, value, ok := strings.Cut(field, "=")
		if !ok {
			return after, line.fault(syscall.EINVAL, "", field, "a line is [DEVICE] max|default, or [DEVICE] KEY=VALUE...")
		}
		if _, twice := seen[key]; twice {
			return after, line.fault(syscall.EINVAL, key, value, "the key is there twice")
		}
		seen[key] = value
		if err := after.read(device, key, value); err != nil {
			err.Line = line.number
			return after, err
		}
	}
	count, hasCount := seen["count"]
	names, hasList := seen["list"]
	switch {
	case !hasCount && !hasList:
		return after, line.fault(syscall.EINVAL, "exclusive", "", "exclusive goes with count or list")
	case hasCount && hasList && (keyword(count) || keyword(names)) && count != names:
		return after, line.fault(syscall.EINVAL, "list", names, fmt.Sprintf("count=%s asks for something else", count))
	}
	if err := s.fits(n, d, &after); err != nil {
		err.Line, err.Token = line.number, seen[err.Key]
		return after, err
	}
	return after, nil
}

// fits says whether a request for bits of device number d is one, and of bits that the parent has. It brings the
// request into the form that is kept.
func (s *state) fits(n *directory, d int, l *Limits) *Error {
	device, parent, before := s.devices[d], s.parentBits(n, d), n.limits(s.devices[d].UUID)
	refuse := func(errno syscall.Errno, key, token, reason string) *Error {
		return &Error{Errno: errno, Key: key, Token: token, Reason: reason}
	}
	switch {
	case device.Kind == Temporal && l.List != nil:
		return unnamed(device, l.List.String())
	case device.Kind == Temporal && l.Exclusive:
		return shared(device)
	case l.Exclusive && l.follows():
		return refuse(syscall.EINVAL, "exclusive", "1", "max and default cannot be; give a count or a list")
	case l.List != nil && l.Count != nil && l.List.Count() != *l.Count:
		return refuse(syscall.EINVAL, "list", l.List.String(),
			fmt.Sprintf("it has %d bits, count says %d", l.List.Count(), *l.Count))
	case l.List != nil && !l.List.In(parent):
		return refuse(syscall.EINVAL, "list", l.List.String(), fmt.Sprintf("bits %s are not the parent's, which has %s",
			l.List.Without(parent), orNone(parent)))
	case l.Count != nil && (*l.Count < 0 || *l.Count > parent.Count()):
		return refuse(syscall.ERANGE, "count", strconv.Itoa(*l.Count), fmt.Sprintf("the parent has %d", parent.Count()))
	}
	if l.List != nil {
		l.Count = nil
	} else if l.Count != nil && before.Count != nil {
		l.Held = before.Held // bits that processes run on are not changed without need
	}
	return nil
}

// unnamed refuses names of units where units are time.
func unnamed(device Device, token string) *Error {
	return &Error{Errno: syscall.EOPNOTSUPP, Key: "list", Token: token,
		Reason: device.Key() + " is shared by time: its units have no names; use count"}
}

// shared refuses units for one lgpu alone where units are time.
func shared(device Device) *Error {
	return &Error{Errno: syscall.EOPNOTSUPP, Key: "exclusive", Token: "1",
		Reason: device.Key() + " is shared by time: no unit can be had alone; use compute.min"}
}

// read reads one key of a line.
func (l *Limits) read(device Device, key, value string) *Error {
	fault := func(errno syscall.Errno, reason string) *Error {
		return &Error{Errno: errno, Key: key, Token: value, Reason: reason}
	}
	switch {
	case key == "list" && device.Kind == Temporal:
		return unnamed(device, value)
	case (key == "count" || key == "list") && keyword(value):
		l.Follow = follow(value)
	case key == "count":
		if !digits(value) {
			return fault(syscall.EINVAL, "count is a whole number, max or default")
		}
		n, err := strconv.ParseUint(value, 10, 31)
		if err != nil {
			return fault(syscall.ERANGE, fmt.Sprintf("the device has %d", device.Capacity))
		}
		count := int(n)
		l.Count = &count
	case key == "list":
		set, err := list.Parse(value, device.Capacity)
		if err != nil {
			return listFault(err, key)
		}
		l.List = &set
	case key == "exclusive" && device.Kind == Temporal && value == "1":
		return shared(device)
	case key == "exclusive" && (value == "0" || value == "1"):
		l.Exclusive = value == "1"
	case key == "exclusive":
		return fault(syscall.EINVAL, "exclusive is 0 or 1")
	default:
		return fault(syscall.EINVAL, "keys are count, list and exclusive")
	}
	return nil
}

// grant looks whether siblings leave what was asked for.
func (s *state) grant(n *directory, d int, l *Limits) *Error {
	if s.devices[d].Kind == Temporal || l.follows() {
		return nil
	}
	parent, taken := s.parentBits(n, d), list.Set{}
	for _, other := range n.siblings() {
		theirs := other.limits(s.devices[d].UUID)
		if other == n || theirs.follows() || !l.Exclusive && !theirs.Exclusive {
			continue
		}
		held := other.effective[d].Bits
		if l.List != nil && held.Overlaps(*l.List) {
			how := "has"
			if theirs.Exclusive {
				how = "has, exclusively,"
			}
			return &Error{Errno: syscall.EBUSY, Key: "list", Token: l.List.String(),
				Reason: fmt.Sprintf("%s %s %s", other.Path, how, held.And(*l.List))}
		}
		taken = taken.Or(held)
	}
	free := parent.Without(taken)
	if l.Count != nil {
		if *l.Count > free.Count() {
			return &Error{Errno: syscall.EBUSY, Key: "count", Token: strconv.Itoa(*l.Count),
				Reason: fmt.Sprintf("siblings leave %d", free.Count())}
		}
		l.Held = l.Held.And(free)
	}
	return nil
}

// listFault makes an error of one of package list.
func listFault(err error, key string) *Error {
	var e *list.Error
	errors.As(err, &e)
	return &Error{Errno: e.Errno, Key: key, Token: e.Token, Reason: e.Reason}
}

func keyword(value string) bool { return value == wordMax || value == wordDefault }

func follow(word string) Follow {
	if word == wordDefault {
		return FollowDefault
	}
	return FollowMax
}

func orNone(set list.Set) string {
	if set.Empty() {
		return "none"
	}
	return set.String()
}
