package daemon

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/lgpu/lgpu/internal/names"
	"github.com/lgpu/lgpu/internal/users"
	"github.com/lgpu/lgpu/policy/limits"
)

// Words of Places.Template.
const (
	userWord = "{user}"
	uidWord  = "{uid}"
)

// DefaultPlace is the place of users where the administrator says nothing.
const DefaultPlace = "/users/" + userWord

// Places say where users' programs run who do not say where: each has a directory, which the daemon makes when it is
// first needed and which she owns.
type Places struct {
	// Refuse is for daemons that make no places: users have what an administrator made for them.
	Refuse bool
	// Template is a path with {user} or {uid} in it; empty is DefaultPlace.
	Template string
	// Limits are values for the files of a place, by name, without a device: for each device of the machine, and for each
	// that comes later. A place whose lgpu.priority is not among them has the normal one, above which its owner cannot go.
	Limits map[string]string
}

// places makes the places of users.
type places struct {
	Places
	daemon *Daemon
}

// CheckPlace returns why a template cannot be one.
func CheckPlace(template string) error {
	if !strings.HasPrefix(template, limits.Root) || path.Clean(template) != template {
		return errors.New("a place is a path such as " + DefaultPlace)
	}
	if !strings.Contains(template, userWord) && !strings.Contains(template, uidWord) {
		return fmt.Errorf("a place has %s or %s in it, so that each user has another", userWord, uidWord)
	}
	example := strings.NewReplacer(userWord, "user", uidWord, "1000").Replace(template)
	for _, name := range strings.Split(example, "/")[1:] {
		if err := names.Check(name); err != nil {
			return err
		}
	}
	return nil
}

// of returns the place of a user. It has her name, unless she has one with her number already, of a time when she had no
// name. The error says that her name cannot be told now: with another path she would have a second place.
func (p *places) of(uid uint32) (string, error) {
	template := p.Template
	if template == "" {
		template = DefaultPlace
	}
	number := strconv.FormatUint(uint64(uid), 10)
	if !strings.Contains(template, userWord) {
		return strings.ReplaceAll(template, uidWord, number), nil
	}
	numbered := strings.NewReplacer(userWord, number, uidWord, number).Replace(template)
	if dir, err := p.daemon.tree.Directory(numbered); err == nil && dir.UID == uid {
		return numbered, nil
	}
	name, err := users.Find(uid)
	if err != nil && name == "" {
		return "", &Error{Cause: syscall.EAGAIN, Reason: fmt.Sprintf("the name of user %d, for her place, cannot be looked up: %v", uid, err),
			Remedy: "try again in a minute; with place = /users/{uid} in lgpud.conf no name is needed"}
	}
	if names.Check(name) != nil || digits(name) { // no directory can have it, or it is somebody's number
		return numbered, nil
	}
	return strings.NewReplacer(userWord, name, uidWord, number).Replace(template), nil
}

func digits(s string) bool { return strings.Trim(s, "0123456789") == "" }

// Place returns the path of the directory where somebody's programs run who does not say where: the root for the
// administrators. It need not exist. The error says that there is none.
func (n *Daemon) Place(by limits.Author) (string, error) {
	switch {
	case n.tree.Rights().Trusts(by):
		return limits.Root, nil
	case n.places.Refuse:
		return "", &Error{Field: "path", Cause: syscall.EPERM,
			Reason: fmt.Sprintf("user %s has no place of her own here: the administrator lets nobody in by himself", users.Name(by.UID)),
			Remedy: "ask an administrator for a directory (lgpu create PATH, lgpu chown USER PATH), and name a path in it"}
	}
	return n.places.of(by.UID)
}

// placed gives an lgpu its place, where the launcher did not say where it is to be, and has the place made.
func (p *places) placed(spec *AttachSpec) error {
	if spec.Path == "" && spec.Group == "" {
		place, err := p.daemon.Place(spec.Launcher)
		if err != nil {
			return err
		}
		spec.Group = place
	}
	return p.settle(spec.Launcher, spec.at())
}

// processes bounds those of a user who is no administrator. Called with lgpus.life held.
func (p *places) processes(by limits.Author) error {
	rights := p.daemon.tree.Rights()
	if rights.Trusts(by) {
		return nil
	}
	count := p.daemon.lgpus.launchersBy(by.UID)
	for _, c := range p.daemon.tenants.Clients() {
		if c.Peer.User == by.UID {
			count++
		}
	}
	if count < rights.Quota.Processes {
		return nil
	}
	return &Error{Cause: syscall.EUSERS, Remedy: "end some, or ask an administrator for more",
		Reason: fmt.Sprintf("user %s has %d processes that run or keep lgpus, which is all one user may have (quota.processes)",
			users.Name(by.UID), count)}
}

// sim refuses a user who is no administrator a software GPU that does not run: it would be a process of the daemon's user,
// with as much memory as she likes.
func (p *places) sim(by limits.Author, shape string) error {
	if shape == "" || p.daemon.tree.Rights().Trusts(by) || p.daemon.inventory.runs(shape) {
		return nil
	}
	return &Error{Field: "sim", Value: shape, Cause: syscall.EPERM,
		Reason: "no administrator has made this software GPU, and users do not start any by this daemon",
		Remedy: "ask an administrator for: lgpu create --sim=" + shape + " PATH; or leave out --socket for one of your own"}
}

// settle makes somebody's place if at is that or below it and it does not exist. An error wraps EPERM where the place is
// somebody else's.
func (p *places) settle(by limits.Author, at string) error {
	if p.daemon.tree.Rights().Trusts(by) || p.Refuse {
		return nil
	}
	place, err := p.of(by.UID)
	if err != nil {
		return err
	}
	if !names.Within(at, place) {
		return nil
	}
	for above := range ancestors(place) {
		if _, err := p.daemon.tree.Directory(above); err == nil {
			continue
		}
		spec := limits.CreateSpec{Path: above}
		if above == place {
			spec.UID, spec.Writes = by.UID, p.writes(nil)
		}
		if _, err := p.daemon.tree.Create(spec); err != nil && !errors.Is(err, syscall.EEXIST) {
			return fmt.Errorf("make the place of user %s: %w", users.Name(by.UID), err)
		}
	}
	dir, err := p.daemon.tree.Directory(place)
	if err != nil {
		return err
	}
	if dir.UID != by.UID {
		return &Error{Cause: syscall.EPERM, Remedy: fmt.Sprintf("ask an administrator for: lgpu chown %s %s", users.Name(by.UID), place),
			Reason: fmt.Sprintf("%s, where programs of user %s run, belongs to user %s", place, users.Name(by.UID), users.Name(dir.UID))}
	}
	return p.furnish(place)
}

// furnish gives the place that a path is in its limits on devices that it has none on yet, because they were not there
// when it was made.
func (p *places) furnish(at string) error {
	for above := range ancestors(at) {
		dir, err := p.daemon.tree.Directory(above)
		if err != nil {
			return nil
		}
		if p.Refuse || dir.UID == 0 {
			continue
		}
		if place, err := p.of(dir.UID); err != nil || place != above {
			continue
		}
		var bare []string
		for i, d := range p.daemon.tree.Devices() {
			if i < len(dir.Requests) && dir.Requests[i].None() {
				bare = append(bare, d.UUID)
			}
		}
		if len(bare) == 0 {
			return nil
		}
		if err := p.daemon.tree.Update(above, p.writes(bare)); err != nil {
			return fmt.Errorf("limits of the place %s: %w", above, err)
		}
	}
	return nil
}

// priorityFile is the limit that every place has.
const priorityFile = "lgpu.priority"

// writes are the limits of a place, those of devices for the ones given, and the others where none is.
func (p *Places) writes(devices []string) (out []limits.Assignment) {
	if _, given := p.Limits[priorityFile]; !given && len(devices) > 0 {
		out = p.write(out, priorityFile, limits.Normal.String(), devices)
	}
	for _, file := range slices.Sorted(maps.Keys(p.Limits)) {
		if limits.PerDevice(file) == (len(devices) > 0) {
			out = p.write(out, file, p.Limits[file], devices)
		}
	}
	return out
}

func (*Places) write(out []limits.Assignment, file, value string, devices []string) []limits.Assignment {
	if len(devices) == 0 {
		return append(out, limits.Assignment{File: file, Text: value})
	}
	text := ""
	for _, d := range devices {
		text += d + " " + value + "\n"
	}
	return append(out, limits.Assignment{File: file, Text: text})
}

// ancestors are the directories on the way to a path, itself included.
func ancestors(at string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for i := 1; i <= len(at); i++ {
			if (i == len(at) || at[i] == '/') && !yield(at[:i]) {
				return
			}
		}
	}
}
