// Package lifecycle is the life of an lgpu as a table: what an event leads to in each state, and what has to be done
// for it. It is pure: it has no clock, no lock and no devices. The daemon keeps a Machine for each lgpu, tells it what
// happens, and carries the effects out:
//
//	life := lifecycle.Machine{State: lifecycle.Declared}
//	err := lifecycle.Drive(life, lifecycle.LauncherCame, lgpu) // lgpu is a Carrier
//
// # States
//
// An lgpu is declared when its directory of the tree is made, and activated by the first launcher or process that
// wants to use it. It is active as long as a launcher is attached or a process is expected. Then it drains: its clients
// go on, and with the last of them it leaves the devices. A persistent lgpu is idle from then on, and can be activated
// again; a temporary one is removed.
//
// # What an lgpu has
//
// While it is in use an lgpu has three things of others: its devices in their modes, its directory, and the tenants'
// server. Machine.Has says which of them, at any moment, so an activation that fails halfway is undone in one place:
// what it has is given back, last first (the effect GiveBack of the table). The states Declared, Idle and Removed have
// nothing.
//
// # States to come
//
// A state is declared here once an event leads to it. Those that are planned come in as rows of the table: an evicted
// or suspended lgpu is entered from Active and left by the event that its memory is back; an lgpu in an image is
// entered from Suspended, when the image is complete, and left through Restoring, which acquires as Activating does and
// is undone by the same GiveBack.
package lifecycle

import (
	"errors"
	"fmt"
	"slices"
)

//go:generate go run ./gen ../../docs/lifecycle.md

// State is where an lgpu is in its life.
type State uint8

// The states.
const (
	Declared   State = iota // it is in the tree; nobody has used it
	Activating              // it is being made ready for its first user
	Active                  // a launcher is attached to it, or a process is expected
	Draining                // neither of these; it lasts as long as its clients
	Idle                    // it was used; nobody does
	Removed                 // the end
)

var stateNames = [...]string{"declared", "activating", "active", "draining", "idle", "removed"}

// String is the state's name.
func (s State) String() string { return nameIn(stateNames[:], int(s)) }

// InUse reports whether an lgpu in this state is for its users, and so keeps the daemon from leaving.
func (s State) InUse() bool { return s == Activating || s == Active || s == Draining }

// Ready reports whether programs can use an lgpu in this state.
func (s State) Ready() bool { return s == Active || s == Draining }

// Event is something that happens to an lgpu.
type Event uint8

// The events. The daemon tells the machine those of the first group; Drive those of the second, which are the outcomes
// of effects.
const (
	LauncherCame     Event = iota // a launcher wants to use it
	ProcessCame                   // a process of a bound cgroup wants to use it
	Revived                       // the daemon has started again, and the one before had it in use
	LauncherLeft                  // a launcher ended its attachment, or has died
	ClientLeft                    // a client has ended
	Expired                       // the time in which somebody was expected is over
	DirectoryRemoved              // the tree has its directory no more

	Activated  // it has all that it needs
	Failed     // something that it needs is not to be had
	Withdrawn  // the tenants' server has let it go
	Kept       // the tenants' server keeps it: it has clients
	Unattached // a launcher that came to it while it was in use cannot be attached
)

var eventNames = [...]string{"launcher came", "process came", "revived", "launcher left", "client left", "expired",
	"directory removed", "activated", "failed", "withdrawn", "kept", "unattached"}

// String is the event's name.
func (e Event) String() string { return nameIn(eventNames[:], int(e)) }

// Effect is something to be done. It happens wholly or not at all.
type Effect uint8

// The effects. Acquire and GiveBack stand in the table alone: Machine.On puts the effects in their place that the
// machine needs or has.
const (
	ClaimDevices    Effect = iota // its devices are no other daemon's, and keep their mode, as long as it has them
	EnterDirectory                // its directory is in use: it stays, and gets no children
	Admit                         // tenants may use it, within its limits
	Attach                        // the launcher is one of its launchers, and learns what its programs need
	Detach                        // the launcher is none of its launchers any more
	Save                          // its record is on disk
	Revert                        // its record is as it was before the activation
	StartTimer                    // somebody is expected for a while
	StopTimer                     // nobody is expected any more
	Withdraw                      // tenants may not use it any more, unless it has clients
	ReleaseDevices                // takes back ClaimDevices
	LeaveDirectory                // takes back EnterDirectory
	RemoveDirectory               // its directory is removed
	Forget                        // its record, its counts and its software GPU go

	Acquire  // those of ClaimDevices, EnterDirectory and Admit that it has not yet
	GiveBack // takes back those of them that it has, last first
)

var effectNames = [...]string{"claim devices", "enter directory", "admit", "attach", "detach", "save", "revert",
	"start timer", "stop timer", "withdraw", "release devices", "leave directory", "remove directory", "forget",
	"acquire", "give back"}

// String is the effect's name.
func (f Effect) String() string { return nameIn(effectNames[:], int(f)) }

func nameIn(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("%d", i)
}

// Holdings is a set of what an lgpu has of others.
type Holdings uint8

// What an lgpu can have.
const (
	Devices   Holdings = 1 << iota // the modes of its devices stay
	Directory                      // its directory of the tree stays
	Tenants                        // the tenants' server knows it

	everything = Devices | Directory | Tenants
)

// acquisitions are what an activation acquires, in this order, and how each is given back.
var acquisitions = []struct {
	what      Holdings
	take, end Effect
}{
	{Devices, ClaimDevices, ReleaseDevices},
	{Directory, EnterDirectory, LeaveDirectory},
	{Tenants, Admit, Withdraw},
}

// Machine is the life of one lgpu. It is a value; the zero Machine is an lgpu that was declared.
type Machine struct {
	State    State
	Has      Holdings
	Expected bool  // a process is expected, until the timer ends
	Unsaved  bool  // its launchers are others than those of the record on disk
	Origin   State // while Activating: the state before
	Cause    Event // while Activating: what it is activated for
}

// Facts are what a Machine does not know by itself, at the time of an event.
type Facts struct {
	Launchers int  // those that are attached, without the one that the event is about
	Temporary bool // it goes with its last user
}

// RefusedError says that an event makes no sense in a state. Nothing has changed then.
type RefusedError struct {
	State State
	Event Event
}

// Error says which event was refused.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("an lgpu that is %s cannot have the event %q", e.State, e.Event)
}

// Step is what an event leads to: effects, in order, and what is to be told the machine afterwards.
type Step struct {
	Effects []Effect
	// Then is the event when all effects were carried out, where there is one.
	Then []Event
	// Else is the event when one could not be carried out: those after it are left out then. Without an event they are
	// carried out all the same.
	Else []Event
}

// On returns the machine after an event, and what has to be done. Its error is a *RefusedError.
func (m Machine) On(e Event, f Facts) (Machine, Step, error) {
	if int(m.State) >= len(stateNames) || int(e) >= len(eventNames) {
		return m, Step{}, &RefusedError{m.State, e}
	}
	for _, r := range table[m.State][e] {
		if r.when.holds(m, f) {
			next := r.apply(m, e)
			return next, Step{m.expand(r.do), r.then, r.otherwise}, nil
		}
	}
	return m, Step{}, &RefusedError{m.State, e}
}

// apply returns the machine in the state that r leads to.
func (r rule) apply(m Machine, e Event) Machine {
	if r.to == Activating {
		m.Origin, m.Cause = m.State, e
	} else {
		m.Origin, m.Cause = 0, 0
	}
	switch {
	case slices.Contains(r.do, StartTimer):
		m.Expected = true
	case slices.Contains(r.do, StopTimer):
		m.Expected = false
	}
	m.State = r.to
	return m
}

// expand puts the effects in place of Acquire and GiveBack that m needs or has, and leaves out a StopTimer where there
// is no timer.
func (m Machine) expand(do []Effect) []Effect {
	var out []Effect
	for _, f := range do {
		switch f {
		case Acquire:
			for _, a := range acquisitions {
				if m.Has&a.what == 0 {
					out = append(out, a.take)
				}
			}
		case GiveBack:
			for _, a := range slices.Backward(acquisitions) {
				if m.Has&a.what != 0 {
					out = append(out, a.end)
				}
			}
		case StopTimer:
			if m.Expected {
				out = append(out, f)
			}
		default:
			out = append(out, f)
		}
	}
	return out
}

// After returns the machine once an effect was carried out.
func (m Machine) After(f Effect) Machine {
	for _, a := range acquisitions {
		switch f {
		case a.take:
			m.Has |= a.what
		case a.end:
			m.Has &^= a.what
		}
	}
	switch f {
	case Attach, Detach:
		m.Unsaved = true
	case Save, Revert:
		m.Unsaved = false
	}
	return m
}

// ErrKept is what a Carrier returns of a Withdraw that was refused because the lgpu has clients. It is no failure.
var ErrKept = errors.New("the lgpu has clients")

// Carrier is an lgpu to Drive.
type Carrier interface {
	// Facts are those of now.
	Facts() Facts
	// Become stores what the machine is from now on.
	Become(Machine)
	// Carry carries an effect out. Where it succeeds, the machine is next from then on: Carry stores that together with
	// what the effect changes, so that nobody sees one without the other.
	Carry(f Effect, next Machine) error
}

// Drive tells a machine of an event and has the effects carried out, those of the events that they lead to included.
// The error has those of all effects, or is a *RefusedError.
func Drive(m Machine, e Event, c Carrier) error {
	used := m.State.InUse()
	m, step, err := m.On(e, c.Facts())
	if err != nil {
		return err
	}
	c.Become(m)
	var problems []error
	failed := false
	for _, f := range step.Effects {
		next := m.After(f)
		if err = c.Carry(f, next); err == nil {
			m = next
			continue
		}
		failed = true
		if !errors.Is(err, ErrKept) {
			problems = append(problems, err)
		}
		if len(step.Else) > 0 {
			break
		}
	}
	follow := step.Then
	if failed {
		follow = step.Else
	}
	if used && !m.State.InUse() && m.Has != 0 {
		m.Has = 0 // what could not be given back is given up, and the error says so
		c.Become(m)
	}
	for _, e := range follow {
		if err := Drive(m, e, c); err != nil {
			problems = append(problems, err)
		}
	}
	if len(problems) == 1 {
		return problems[0]
	}
	return errors.Join(problems...)
}
