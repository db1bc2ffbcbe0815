package daemon

import (
	"fmt"
	osuser "os/user"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/internal/proc"
	"github.com/lgpu/lgpu/policy/limits"
)

// users names those who cause events. The zero value is ready.
type users struct {
	mu    sync.Mutex
	names map[uint32]userName // guarded by mu
}

// userName is what a user was called when that was looked up.
type userName struct {
	name string // empty for none
	at   time.Time
}

// How long names are kept, and how many.
const (
	nameAge  = time.Minute
	maxNames = 1024
)

// name is that of a user, empty if the machine has none for it.
func (u *users) name(uid uint32) string {
	u.mu.Lock()
	known, ok := u.names[uid]
	u.mu.Unlock()
	if ok && time.Since(known.at) < nameAge {
		return known.name
	}
	found := userName{at: time.Now()}
	if entry, err := osuser.LookupId(strconv.FormatUint(uint64(uid), 10)); err == nil {
		found.name = entry.Username
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.names == nil || len(u.names) >= maxNames {
		u.names = map[uint32]userName{}
	}
	u.names[uid] = found
	return found.name
}

// author is who changes the tree, which waits for the answer; nil for those who hold it.
func (u *users) author(a *limits.Author) *Author {
	if a == nil {
		return nil
	}
	by := u.process(a.PID, a.UID, "")
	if s, err := proc.Read(a.PID); a.PID != 0 && err == nil {
		by.Command = s.Comm
	}
	return by
}

// client is who uses an lgpu.
func (u *users) client(p tenant.Peer) *Author { return u.process(p.PID, p.UID, p.Comm) }

// process is a process of a user.
func (u *users) process(pid int, uid uint32, command string) *Author {
	return &Author{UID: uid, User: u.name(uid), PID: pid, Command: command}
}

// words end a sentence about what somebody did; nobody adds none.
func (a *Author) words() string {
	if a == nil {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, ", by user %d", a.UID)
	if a.User != "" {
		fmt.Fprintf(&b, " (%s)", a.User)
	}
	if a.PID != 0 {
		fmt.Fprintf(&b, ", process %d", a.PID)
	}
	if a.Command != "" {
		fmt.Fprintf(&b, " (%s)", a.Command)
	}
	return b.String()
}
