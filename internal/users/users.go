// Package users translates between the users of this machine as people name them and their numbers: what shows who runs
// a program shows "alice", not 1000, and what gives something to alice finds 1000.
//
//	fmt.Println(users.Name(1000)) // alice, or 1000 where nobody has that number
//	uid, err := users.ID("alice") // or users.ID("1000")
//
// Names come from /etc/passwd and /etc/group (os/user, without cgo), and those that are not there from the machine's name
// service, as LDAP (getent). Who may do what is decided by the number.
package users

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Errors of ID and GroupID for what is neither a name of this machine nor a number.
var (
	ErrNoUser  = errors.New("there is no such user")
	ErrNoGroup = errors.New("there is no such group of users")
)

// Bounds of what is kept.
const (
	most  = 4096            // names
	fresh = 5 * time.Minute // after which a name is looked up again: users come, go and are renamed
	brief = 5 * time.Second // likewise, where it could not be told whether there is one
)

// entry is a name, empty for none, until when that holds, and why it could not be told.
type entry struct {
	name  string
	until time.Time
	err   error // wraps ErrUnsure; the name is that of before, then
}

// cache keeps names. Its methods may be called by any number of goroutines.
type cache struct {
	lookup func(id string) (name string, err error) // an error that does not wrap ErrUnsure: there is none
	now    func() time.Time

	mu    sync.Mutex
	names map[uint32]entry // guarded by mu; at most most
}

var (
	known       = cache{lookup: passwd, now: time.Now, names: map[uint32]entry{}}
	knownGroups = cache{lookup: groupEntry, now: time.Now, names: map[uint32]entry{}}
)

func passwd(uid string) (string, error) {
	if u, err := user.LookupId(uid); err == nil {
		return u.Username, nil
	}
	return service.nameOf("passwd", uid)
}

func groupEntry(gid string) (string, error) {
	if g, err := user.LookupGroupId(gid); err == nil {
		return g.Name, nil
	}
	return service.nameOf("group", gid)
}

// Known is the name of the user with a number, empty where nobody is known to have it. Looking it up takes a moment the
// first time, and some seconds where the name service does not answer; the answer, also that there is none, is kept for
// some minutes. It may be called by any number of goroutines.
func Known(uid uint32) string {
	name, _ := known.find(uid)
	return name
}

// Find is Known, with an error that wraps ErrUnsure where it cannot be told now whether there is a name.
func Find(uid uint32) (string, error) { return known.find(uid) }

// Name is Known, and the number as text where there is no name.
func Name(uid uint32) string {
	if name := Known(uid); name != "" {
		return name
	}
	return digits(uid)
}

// KnownGroup is Known for a group of users.
func KnownGroup(gid uint32) string {
	name, _ := knownGroups.find(gid)
	return name
}

// GroupName is Name for a group of users.
func GroupName(gid uint32) string {
	if name := KnownGroup(gid); name != "" {
		return name
	}
	return digits(gid)
}

func digits(id uint32) string { return strconv.FormatUint(uint64(id), 10) }

func (c *cache) find(id uint32) (string, error) {
	now := c.now()
	c.mu.Lock()
	e, ok := c.names[id]
	c.mu.Unlock()
	if ok && now.Before(e.until) {
		return e.name, e.err
	}
	name, err := c.lookup(digits(id)) // without the lock: on some machines it takes long
	switch {
	case errors.Is(err, ErrUnsure):
		e = entry{name: e.name, until: now.Add(brief), err: err} // users go by the name of before until there is an answer
	case err != nil:
		e = entry{until: now.Add(fresh)}
	default:
		e = entry{name: name, until: now.Add(fresh)}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, again := c.names[id]; !again && len(c.names) >= most {
		clear(c.names) // more users than machines have: what is still shown comes back at its next look
	}
	c.names[id] = e
	return e.name, e.err
}

// ID is the number of a user, who is given by name or number. A number need not be anybody's. The error for a name that
// nobody has is ErrNoUser.
func ID(text string) (uint32, error) {
	u, err := user.Lookup(text)
	var unknown user.UnknownUserError
	switch {
	case err == nil:
		return number(u.Uid, ErrNoUser)
	case errors.As(err, &unknown):
		return service.number("passwd", text, ErrNoUser)
	}
	return 0, fmt.Errorf("look up a user: %w", err)
}

// GroupID is ID for a group of users, with ErrNoGroup.
func GroupID(text string) (uint32, error) {
	g, err := user.LookupGroup(text)
	var unknown user.UnknownGroupError
	switch {
	case err == nil:
		return number(g.Gid, ErrNoGroup)
	case errors.As(err, &unknown):
		return service.number("group", text, ErrNoGroup)
	}
	return 0, fmt.Errorf("look up a group of users: %w", err)
}

// Groups are the numbers of the groups of a user, her own first; none where the machine does not know her. Nothing is kept.
func Groups(uid uint32) (groups []uint32) {
	u, err := user.LookupId(digits(uid))
	if err != nil {
		return nil
	}
	all, _ := u.GroupIds() // with her own at least
	for _, text := range append([]string{u.Gid}, all...) {
		if gid, err := number(text, ErrNoGroup); err == nil && !slices.Contains(groups, gid) {
			groups = append(groups, gid)
		}
	}
	return groups
}

// number reads a number, or asks for that of a name; the error is none where nobody has it.
func (g *getent) number(database, text string, none error) (uint32, error) {
	if id, err := number(text, none); err == nil || digitsOnly(text) {
		return id, err
	}
	found, err := g.numberOf(database, text)
	switch {
	case errors.Is(err, errNone):
		return 0, none
	case err != nil:
		return 0, err
	}
	return number(found, none)
}

func digitsOnly(text string) bool { return strings.Trim(text, "0123456789") == "" }

// number reads that of a user or group; the error is none. The highest is nobody's: to the kernel it means none.
func number(text string, none error) (uint32, error) {
	id, err := strconv.ParseUint(text, 10, 32)
	if err != nil || id == math.MaxUint32 {
		return 0, none
	}
	return uint32(id), nil
}

// List are the names in /etc/passwd, in its order, for a person to choose from. It is empty where there is no such list.
func List() []string {
	f, err := os.Open("/etc/passwd")
	if err != nil {
		return nil
	}
	defer f.Close()
	var names []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, _, ok := strings.Cut(lines.Text(), ":"); ok && name != "" && !strings.HasPrefix(name, "#") {
			names = append(names, name)
		}
	}
	return names
}
