// Package users names the users of this machine, for people: what shows who runs a program shows "alice", not 1000.
//
//	fmt.Println(users.Name(1000)) // alice, or 1000 where nobody has that number
//
// Names come from the machine's list of users (os/user, without cgo: /etc/passwd). They are for the eye only: who may
// do what is decided by the number.
package users

import (
	"os/user"
	"strconv"
	"sync"
	"time"
)

// Bounds of what is kept.
const (
	most  = 4096            // names
	fresh = 5 * time.Minute // after which a name is looked up again: users come, go and are renamed
)

// entry is a name and when it was looked up.
type entry struct {
	name string
	at   time.Time
}

// cache keeps names. Its methods may be called by any number of goroutines.
type cache struct {
	lookup func(uid string) (name string, err error)
	now    func() time.Time

	mu    sync.Mutex
	names map[uint32]entry // guarded by mu; at most most
}

var known = cache{lookup: passwd, now: time.Now, names: map[uint32]entry{}}

func passwd(uid string) (string, error) {
	u, err := user.LookupId(uid)
	if err != nil {
		return "", err
	}
	return u.Username, nil
}

// Name is the name of the user with a number, and the number as text where nobody is known to have it. Reading the list
// of users takes a moment the first time; the answer, also that there is none, is kept for some minutes. It may be
// called by any number of goroutines.
func Name(uid uint32) string { return known.name(uid) }

func (c *cache) name(uid uint32) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if e, ok := c.names[uid]; ok && now.Sub(e.at) < fresh {
		return e.name
	}
	number := strconv.FormatUint(uint64(uid), 10)
	name, err := c.lookup(number)
	if err != nil || name == "" {
		name = number
	}
	if _, again := c.names[uid]; !again && len(c.names) >= most {
		clear(c.names) // more users than machines have: what is still shown comes back at its next look
	}
	c.names[uid] = entry{name, now}
	return name
}
