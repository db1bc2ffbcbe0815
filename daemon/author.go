package daemon

import (
	"fmt"
	"strings"

	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/internal/proc"
	"github.com/lgpu/lgpu/internal/users"
	"github.com/lgpu/lgpu/policy/limits"
)

// Author is who did something, as the kernel vouched for it at that time.
type Author struct {
	UID     uint32 `json:"uid"`
	User    string `json:"user,omitempty"` // the name; empty where the machine has none for UID
	PID     int    `json:"pid,omitempty"`  // 0 if it is in a process namespace that cannot be seen from here
	Command string `json:"command,omitempty"`
}

// authorOf is who changes the tree and waits for the answer; nil for the daemon itself.
func authorOf(a *limits.Author) *Author {
	if a == nil {
		return nil
	}
	by := authorAt(a.PID, a.UID, "")
	if s, err := proc.Read(a.PID); a.PID != 0 && err == nil {
		by.Command = s.Comm
	}
	return by
}

// authorIn is who uses an lgpu.
func authorIn(p tenant.Peer) *Author { return authorAt(p.PID, p.UID, p.Comm) }

// authorAt is a process of a user.
func authorAt(pid int, uid uint32, command string) *Author {
	return &Author{UID: uid, User: users.Known(uid), PID: pid, Command: command}
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
