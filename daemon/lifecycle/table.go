package lifecycle

// guard is a condition on an lgpu under which a rule applies.
type guard uint8

// The guards. Of the rules for one event in one state the first applies whose guard holds.
const (
	always    guard = iota
	others          // other launchers are attached
	awaited         // a process is expected
	deserted        // it is temporary, no launcher is attached and nobody is expected
	ended           // it is temporary and no launcher is attached
	temporary       // it goes with its last user
	unsaved         // its record on disk names other launchers
	launched        // it is activated for a launcher
	revived         // it is activated because the daemon before had it in use
	declared        // it was declared before the activation
)

var guardNames = [...]string{"", "other launchers", "a process expected", "temporary, nobody left",
	"temporary, no launcher", "temporary", "record differs", "for a launcher", "after a restart", "was declared"}

// String is the guard's text.
func (g guard) String() string { return nameIn(guardNames[:], int(g)) }

func (g guard) holds(m Machine, f Facts) bool {
	switch g {
	case others:
		return f.Launchers > 0
	case awaited:
		return m.Expected
	case deserted:
		return f.Temporary && f.Launchers == 0 && !m.Expected
	case ended:
		return f.Temporary && f.Launchers == 0
	case temporary:
		return f.Temporary
	case unsaved:
		return m.Unsaved
	case launched:
		return m.Cause == LauncherCame
	case revived:
		return m.Cause == Revived
	case declared:
		return m.Origin == Declared
	}
	return true
}

// rule is one way from a state.
type rule struct {
	when            guard
	to              State
	do              []Effect
	then, otherwise []Event
}

// ignored reports whether nothing comes of the event.
func (r rule) ignored(from State) bool { return r.to == from && len(r.do) == 0 }

func do(f ...Effect) []Effect { return f }
func tell(e Event) []Event    { return []Event{e} }

// ignore is for an event that changes nothing: one that comes late, or that others have seen to.
func ignore(s State) []rule { return []rule{{to: s}} }

// activate is how an lgpu becomes active.
func activate(f ...Effect) []rule {
	return []rule{{to: Activating, do: append(do(Acquire), f...), then: tell(Activated), otherwise: tell(Failed)}}
}

// drain is how an lgpu goes out of use that nobody wants to keep.
func drain(f ...Effect) rule {
	return rule{to: Draining, do: append(f, Withdraw), then: tell(Withdrawn), otherwise: tell(Kept)}
}

// attach is how a launcher comes to an lgpu that is in use.
func attach() []rule {
	return []rule{{to: Active, do: do(Attach, Save), otherwise: tell(Unattached)}}
}

// end is how an idle lgpu is removed.
func end(g guard, f ...Effect) rule {
	return rule{when: g, to: Idle, do: append(f, RemoveDirectory), then: tell(DirectoryRemoved)}
}

// table has the rules for every event in every state. An event without a rule is refused.
var table = [...][len(eventNames)][]rule{
	Declared: {
		LauncherCame:     activate(Attach, Save),
		ProcessCame:      activate(Save),
		ClientLeft:       ignore(Declared),
		Expired:          ignore(Declared),
		DirectoryRemoved: {{to: Removed, do: do(Forget)}},
	},
	Activating: {
		Activated: {
			{when: launched, to: Active, do: do(StopTimer)},
			{to: Active, do: do(StartTimer)},
		},
		Failed: {
			{when: revived, to: Idle, do: do(GiveBack, StartTimer)},
			end(deserted, GiveBack, Detach),
			{when: declared, to: Declared, do: do(GiveBack, Detach, Revert)},
			{to: Idle, do: do(GiveBack, Detach, Revert)},
		},
	},
	Active: {
		LauncherCame: attach(),
		ProcessCame:  ignore(Active),
		LauncherLeft: {
			{when: others, to: Active, do: do(Detach, StopTimer, Save)},
			drain(Detach, StopTimer),
		},
		Unattached: {
			{when: others, to: Active, do: do(Detach, Save)},
			{when: awaited, to: Active, do: do(Detach, Save)},
			drain(Detach),
		},
		ClientLeft: ignore(Active),
		Expired: {
			{when: others, to: Active, do: do(StopTimer)},
			drain(StopTimer),
		},
	},
	Draining: {
		LauncherCame: attach(),
		ProcessCame:  ignore(Draining),
		ClientLeft:   {drain()},
		Expired:      ignore(Draining),
		Withdrawn: {
			end(temporary, GiveBack),
			{to: Idle, do: do(GiveBack, Save)},
		},
		Kept: {
			{when: unsaved, to: Draining, do: do(Save)},
			{to: Draining},
		},
	},
	Idle: {
		LauncherCame: activate(Attach, Save),
		ProcessCame:  activate(Save),
		Revived:      activate(),
		LauncherLeft: {
			end(ended, Detach, StopTimer),
			{to: Idle, do: do(Detach, StopTimer, Save)},
		},
		ClientLeft: ignore(Idle),
		Expired: {
			end(ended, StopTimer),
			{when: awaited, to: Idle, do: do(StopTimer, Save)},
			{to: Idle},
		},
		DirectoryRemoved: {{to: Removed, do: do(StopTimer, Forget)}},
	},
	Removed: {
		LauncherLeft:     ignore(Removed),
		ClientLeft:       ignore(Removed),
		Expired:          ignore(Removed),
		DirectoryRemoved: ignore(Removed),
	},
}

// States are all states, in the order of a life.
func States() []State {
	states := make([]State, len(stateNames))
	for i := range states {
		states[i] = State(i)
	}
	return states
}

// Events are all events.
func Events() []Event {
	events := make([]Event, len(eventNames))
	for i := range events {
		events[i] = Event(i)
	}
	return events
}
