package limits

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"syscall"

	"github.com/lgpu/lgpu/internal/list"
	"github.com/lgpu/lgpu/internal/units"
)

// Request is what is asked of an lgpu in one transaction, typed. It is checked as the text of the files is, and an
// error names the file.
type Request struct {
	// Devices are the UUIDs of the devices that Limits are for.
	Devices []string
	// Limits are asked for on each of them. What is left out stays as it is.
	Limits
	// MemoryPart asks for a part of each device's memory, in hundredths of a percent, in place of MemoryMax.
	MemoryPart *uint32
	HostMax    Bytes
	Gang       string
	// Overcommit asks for memory.overcommit 1.
	Overcommit bool
}

// empty reports whether no limit is asked for.
func (r Request) empty() bool {
	return r.None() && r.MemoryPart == nil && r.HostMax == Bytes{} && !r.Overcommit
}

// limit is one of the values in Limits, and what it must keep to, whoever asks for it and how.
type limit struct {
	file  string
	asked func(Limits) bool
	take  func(l *Limits, from Limits)
	check func(Limits, Device) error
}

// The limits that have a file of their own each. Those of compute units hang together and have rules of their own
// (fits).
var (
	memoryMax = limit{"memory.max",
		func(l Limits) bool { return l.MemoryMax != Bytes{} },
		func(l *Limits, from Limits) { l.MemoryMax = from.MemoryMax },
		func(l Limits, d Device) error { return checkMemory(l.MemoryMax, d) }}
	memoryHigh = limit{"memory.high",
		func(l Limits) bool { return l.MemoryHigh != Bytes{} },
		func(l *Limits, from Limits) { l.MemoryHigh = from.MemoryHigh },
		func(l Limits, d Device) error { return checkMemory(l.MemoryHigh, d) }}
	computeMax = limit{"compute.max",
		func(l Limits) bool { return l.ComputeMax != nil },
		func(l *Limits, from Limits) { l.ComputeMax = from.ComputeMax },
		func(l Limits, _ Device) error { return checkShare(l.ComputeMax) }}
	computeMin = limit{"compute.min",
		func(l Limits) bool { return l.ComputeMin != nil },
		func(l *Limits, from Limits) { l.ComputeMin = from.ComputeMin },
		func(l Limits, _ Device) error { return checkShare(l.ComputeMin) }}
	weight = limit{"lgpu.weight",
		func(l Limits) bool { return l.Weight != 0 },
		func(l *Limits, from Limits) { l.Weight = from.Weight },
		func(l Limits, _ Device) error { return checkWeight(l.Weight) }}
	priority = limit{"lgpu.priority",
		func(l Limits) bool { return l.Priority != nil },
		func(l *Limits, from Limits) { l.Priority = from.Priority },
		func(l Limits, _ Device) error { return checkPriority(l.Priority) }}
)

// requested are the limits of a Request, in the order in which they are looked at: a guarantee comes after the cap that
// bounds it.
var requested = []*limit{&memoryMax, &memoryHigh, &computeMax, &computeMin, &weight, &priority}

// checkBytes says what is wrong with a limit on memory.
func checkBytes(b Bytes) error {
	if n, limited := b.Limit(); limited && n > 0 && n < MinMemory {
		return invalid{syscall.ERANGE, "the least limit is " + units.FormatSize(MinMemory), "0 is nothing at all, max no limit"}
	}
	return nil
}

// checkMemory is checkBytes for memory of a device: what the device does not have cannot be given.
func checkMemory(b Bytes, d Device) error {
	if n, limited := b.Limit(); limited && d.Memory > 0 && n > d.Memory {
		return invalid{syscall.ERANGE, fmt.Sprintf("device %s has %s", d.names(), units.FormatSize(d.Memory)),
			"max is all of it"}
	}
	return checkBytes(b)
}

func checkShare(p *uint32) error {
	if p != nil && (*p == 0 || *p > units.Whole) {
		return invalid{errno: syscall.ERANGE, reason: "a part of the device's time is above 0% and at most 100%"}
	}
	return nil
}

func checkWeight(w uint32) error {
	if w > MaxWeight { // 0 is the default
		return invalid{errno: syscall.ERANGE, reason: fmt.Sprintf("weights are %d to %d", MinWeight, MaxWeight)}
	}
	return nil
}

func checkPriority(p *Priority) error {
	if p != nil && *p > Latency {
		return invalid{errno: syscall.EINVAL, reason: "there is no " + p.String()}
	}
	return nil
}

// ask asks for one limit on device number d.
func (s *state) ask(n *directory, d int, v *limit, from Limits) error {
	if err := v.check(from, s.devices[d]); err != nil {
		return err
	}
	l := n.limits(s.devices[d].UUID)
	v.take(&l, from)
	s.setLimits(n, s.devices[d].UUID, l)
	return nil
}

// request makes a request of a directory, leaving the state half-written after an error: the caller drops it.
func (s *state) request(n *directory, r Request) *Error {
	refuse := func(file, token string, err error) *Error {
		return &Error{Errno: errnoOf(err), Path: n.Path, File: file, Token: token, Reason: err.Error(), Remedy: remedyOf(err)}
	}
	if err := checkBytes(r.HostMax); err != nil {
		return refuse("host.max", sizeToken(r.HostMax), err)
	}
	if (r.HostMax != Bytes{}) {
		n.HostMax, s.stale = r.HostMax, true
	}
	if r.Overcommit {
		if err := s.setOvercommit(n); err != nil {
			return err
		}
	}
	if r.Gang != "" {
		if err := setGang(n, r.Gang); err != nil {
			return refuse("gang", r.Gang, err)
		}
	}
	before := n.DirectoryState.Devices
	for _, uuid := range r.Devices {
		d, err := s.device(uuid)
		if err != nil {
			return &Error{Errno: syscall.ENODEV, Path: n.Path, Reason: err.Error()}
		}
		if err := s.requestOn(n, d, r); err != nil {
			err.Path = n.Path
			return err
		}
	}
	if r.ComputeMin != nil {
		if err := s.kept(n, before); err != nil {
			err.Path, err.File = n.Path, computeMin.file
			return err
		}
	}
	return nil
}

// exchange is Tree.Exchange.
func (s *state) exchange(n *directory, pairs [][2]string) *Error {
	refuse := func(errno syscall.Errno, device, reason string) *Error {
		return &Error{Errno: errno, Path: n.Path, Token: device, Reason: reason}
	}
	source := map[string]string{} // by the device where it is to be
	leaves := map[string]bool{}
	for _, p := range pairs {
		if _, twice := source[p[1]]; twice || leaves[p[0]] {
			return refuse(syscall.EINVAL, p[0], "it is to be exchanged with "+p[1]+", and one of them with another")
		}
		source[p[1]], leaves[p[0]] = p[0], true
	}
	var comes []string // devices that only come
	for _, p := range pairs {
		if !leaves[p[1]] {
			comes = append(comes, p[1])
		}
	}
	for _, p := range pairs {
		if _, filled := source[p[0]]; !filled {
			source[p[0]], comes = comes[0], comes[1:]
		}
	}
	before := n.DirectoryState.Devices
	for to := range source {
		s.setLimits(n, to, Limits{})
	}
	for _, to := range slices.Sorted(maps.Keys(source)) {
		d, err := s.device(to)
		if err != nil {
			return refuse(syscall.ENODEV, to, err.Error())
		}
		wanted := before[source[to]]
		wanted.Held = list.Set{} // which were the other device's
		if err := s.requestOn(n, d, Request{Limits: wanted}); err != nil {
			err.Path = n.Path
			return err
		}
	}
	if err := s.kept(n, before); err != nil {
		err.Path, err.File = n.Path, computeMin.file
		return err
	}
	return nil
}

// requestOn makes a request on device number d.
func (s *state) requestOn(n *directory, d int, r Request) *Error {
	l, fault := r.on(s.devices[d])
	if fault == nil {
		fault = s.outranked(n, d, l)
	}
	if fault != nil {
		return fault
	}
	for _, v := range requested {
		if !v.asked(l) {
			continue
		}
		if err := s.ask(n, d, v, l); err != nil {
			return &Error{Errno: errnoOf(err), File: v.file, Token: l.token(v), Reason: err.Error(), Remedy: remedyOf(err)}
		}
	}
	if l.follows() && l.Follow == FollowMax && !l.Exclusive {
		return nil
	}
	if s.stale {
		s.resolve()
	}
	own := n.limits(s.devices[d].UUID)
	own.Count, own.List, own.Held, own.Exclusive, own.Follow = l.Count, l.List, l.Held, l.Exclusive, l.Follow
	err := s.fits(n, d, &own)
	if err == nil {
		err = s.grant(n, d, &own)
	}
	if err != nil {
		err.File = "lgpu"
		return err
	}
	s.setLimits(n, s.devices[d].UUID, own)
	return nil
}

// on is what a request comes to on a device.
func (r Request) on(d Device) (Limits, *Error) {
	l := r.Limits
	refuse := func(file, token, remedy, format string, args ...any) (Limits, *Error) {
		return l, &Error{Errno: syscall.ERANGE, File: file, Token: token, Reason: fmt.Sprintf(format, args...), Remedy: remedy}
	}
	if value(l.ComputeMin, 1) == 0 { // as in the file, no guarantee
		l.ComputeMin = nil
	}
	if r.MemoryPart != nil {
		l.MemoryMax = AtMost(partOf(d.Memory, *r.MemoryPart))
	}
	if n, limited := l.MemoryMax.Limit(); limited && n < MinMemory {
		return refuse(memoryMax.file, r.memoryToken(), "", "of device %s that is %s; the least limit is %s", d.names(),
			units.FormatSize(n), units.FormatSize(MinMemory))
	} else if limited && n > d.Memory {
		return refuse(memoryMax.file, r.memoryToken(), "", "device %s has %s", d.names(), units.FormatSize(d.Memory))
	}
	if l.ComputeMin != nil && l.ComputeMax != nil && *l.ComputeMin > *l.ComputeMax {
		return refuse(computeMin.file, formatShare(*l.ComputeMin), "", "compute.max is below it, %s", formatShare(*l.ComputeMax))
	}
	if l.Count != nil {
		switch {
		case d.Uncounted:
			return refuse("lgpu", countToken(*l.Count), "limit compute.max instead",
				"the driver does not say how many units device %s has", d.names())
		case *l.Count > d.Capacity:
			return refuse("lgpu", countToken(*l.Count), "", "device %s has %d units", d.names(), d.Capacity)
		}
	}
	return l, nil
}

// partOf is a part of some bytes, in hundredths of a percent.
func partOf(bytes uint64, part uint32) uint64 {
	whole, share := uint64(units.Whole), min(uint64(part), math.MaxUint32)
	return bytes/whole*share + bytes%whole*share/whole
}

// outranked refuses a priority that the groups above do not let an lgpu have, which a write into the file would have
// lowered: who starts a program is told.
func (s *state) outranked(n *directory, d int, l Limits) *Error {
	if l.Priority == nil {
		return nil
	}
	for above := n.parent; above != nil; above = above.parent {
		if above.limits(s.devices[d].UUID).Priority == nil {
			continue
		}
		if s.stale {
			s.resolve()
		}
		if most := above.effective[d].Priority; *l.Priority > most {
			return &Error{Errno: syscall.EINVAL, File: priority.file, Token: l.Priority.String(),
				Reason: fmt.Sprintf("the group %s has %s, and nothing in it goes before that", above.Path, most),
				Remedy: "raise the group's lgpu.priority, or ask for none"}
		}
		return nil
	}
	return nil
}

// token is a limit as a person would type it, for errors.
func (l Limits) token(v *limit) string {
	switch v {
	case &memoryMax:
		return sizeToken(l.MemoryMax)
	case &memoryHigh:
		return sizeToken(l.MemoryHigh)
	case &computeMax:
		return formatMax(l.ComputeMax)
	case &computeMin:
		return formatMax(l.ComputeMin)
	case &weight:
		return strconv.FormatUint(uint64(l.Weight), 10)
	}
	return l.priority()
}

func sizeToken(b Bytes) string { return b.Size() }

func countToken(n int) string { return fmt.Sprintf("count=%d", n) }

func (r Request) memoryToken() string {
	if r.MemoryPart != nil {
		return formatShare(*r.MemoryPart)
	}
	return sizeToken(r.MemoryMax)
}

// Differs names the first difference between what a directory asks for and what a request does, or nothing. A request
// without limits differs from none.
func (t *Tree) Differs(id uint64, r Request) string {
	s := t.state.Load()
	n := s.byID[id]
	switch {
	case n == nil:
		return ""
	case r.Gang != "" && r.Gang != n.Gang:
		if n.Gang == "" {
			return fmt.Sprintf("no gang, not %q", r.Gang)
		}
		return fmt.Sprintf("gang %q, not %q", n.Gang, r.Gang)
	case r.empty():
		return ""
	case r.Overcommit && !n.Overcommit:
		return "memory.overcommit 0, not 1"
	case n.HostMax != r.HostMax:
		return fmt.Sprintf("host.max %s, not %s", n.HostMax.Size(), r.HostMax.Size())
	}
	for _, d := range s.devices {
		if !slices.Contains(r.Devices, d.UUID) {
			continue
		}
		asked, fault := r.on(d)
		if fault != nil {
			return fmt.Sprintf("other limits than %s %s, which cannot be: %s", fault.File, fault.Token, fault.Reason)
		}
		if differs := n.limits(d.UUID).differs(asked); differs != "" {
			return differs
		}
	}
	return ""
}

// differs names the first difference to what is asked for.
func (l Limits) differs(asked Limits) string {
	differ := func(file, has, asked string) string { return fmt.Sprintf("%s %s, not %s", file, has, asked) }
	switch {
	case l.MemoryMax != asked.MemoryMax:
		return differ(memoryMax.file, l.MemoryMax.Size(), asked.MemoryMax.Size())
	case value(l.Count, 0) != value(asked.Count, 0):
		return differ("lgpu", l.Lgpu(), asked.Lgpu())
	case value(l.ComputeMax, units.Whole) != value(asked.ComputeMax, units.Whole):
		return differ(computeMax.file, formatMax(l.ComputeMax), formatMax(asked.ComputeMax))
	case value(l.ComputeMin, 0) != value(asked.ComputeMin, 0):
		return differ(computeMin.file, formatShare(value(l.ComputeMin, 0)), formatShare(value(asked.ComputeMin, 0)))
	case asked.Weight != 0 && l.weight() != asked.Weight:
		return differ(weight.file, strconv.FormatUint(uint64(l.weight()), 10), strconv.FormatUint(uint64(asked.Weight), 10))
	case asked.Priority != nil && (l.Priority == nil || *l.Priority != *asked.Priority):
		return differ(priority.file, l.priority(), asked.priority())
	}
	return ""
}
