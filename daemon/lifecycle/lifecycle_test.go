package lifecycle

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// pairs says of every event in every state what comes of it: "-" where it is refused, "=" where it is ignored, else one
// line for each machine and facts: those, the state, the effects, and what is told afterwards.
var pairs = map[State]map[Event][]string{
	Declared: {
		Unattached: {"-"},
		LauncherCame: {
			" -> activating: claim devices, enter directory, admit, attach, save > activated | failed",
			"has:directory temporary -> activating: claim devices, admit, attach, save > activated | failed",
		},
		ProcessCame:      {" -> activating: claim devices, enter directory, admit, save > activated | failed"},
		Revived:          {"-"},
		LauncherLeft:     {"-"},
		ClientLeft:       {"="},
		Expired:          {"="},
		DirectoryRemoved: {" -> removed: forget > |"},
		Activated:        {"-"}, Failed: {"-"}, Withdrawn: {"-"}, Kept: {"-"},
	},
	Activating: {
		Unattached:   {"-"},
		LauncherCame: {"-"}, ProcessCame: {"-"}, Revived: {"-"}, LauncherLeft: {"-"}, ClientLeft: {"-"}, Expired: {"-"},
		DirectoryRemoved: {"-"},
		Activated: {
			"cause:launcher -> active:  > |",
			"cause:launcher expected -> active: stop timer > |",
			"cause:process -> active: start timer > |",
			"cause:revived -> active: start timer > |",
		},
		Failed: {
			"cause:launcher -> declared: detach, revert > |",
			"cause:launcher has:devices -> declared: release devices, detach, revert > |",
			"cause:process has:devices,directory -> declared: leave directory, release devices, detach, revert > |",
			"cause:launcher has:all -> declared: withdraw, leave directory, release devices, detach, revert > |",
			"cause:launcher origin:idle has:devices -> idle: release devices, detach, revert > |",
			"cause:launcher has:directory temporary -> idle: leave directory, detach, remove directory > directory removed |",
			"cause:launcher origin:idle temporary others -> idle: detach, revert > |",
			"cause:launcher origin:idle temporary expected -> idle: detach, revert > |",
			"cause:revived origin:idle has:devices temporary -> idle: release devices, start timer > |",
		},
		Withdrawn: {"-"}, Kept: {"-"},
	},
	Active: {
		Unattached: {
			"others -> active: detach, save > |",
			"others expected -> active: detach, save > |",
			"expected temporary -> active: detach, save > |",
			" -> draining: detach, withdraw > withdrawn | kept",
			"temporary -> draining: detach, withdraw > withdrawn | kept",
		},
		LauncherCame: {" -> active: attach, save > | unattached"},
		ProcessCame:  {"="},
		Revived:      {"-"},
		LauncherLeft: {
			"others -> active: detach, save > |",
			"others expected -> active: detach, stop timer, save > |",
			" -> draining: detach, withdraw > withdrawn | kept",
			"expected temporary -> draining: detach, stop timer, withdraw > withdrawn | kept",
		},
		ClientLeft:       {"="},
		Expired:          {"others expected -> active: stop timer > |", "expected -> draining: stop timer, withdraw > withdrawn | kept"},
		DirectoryRemoved: {"-"},
		Activated:        {"-"}, Failed: {"-"}, Withdrawn: {"-"}, Kept: {"-"},
	},
	Draining: {
		Unattached:       {"-"},
		LauncherCame:     {" -> active: attach, save > | unattached"},
		ProcessCame:      {"="},
		Revived:          {"-"},
		LauncherLeft:     {"-"},
		ClientLeft:       {" -> draining: withdraw > withdrawn | kept"},
		Expired:          {"="},
		DirectoryRemoved: {"-"},
		Activated:        {"-"}, Failed: {"-"},
		Withdrawn: {
			"has:devices,directory -> idle: leave directory, release devices, save > |",
			"has:devices,directory temporary -> idle: leave directory, release devices, remove directory > directory removed |",
		},
		Kept: {" -> draining:  > |", "unsaved -> draining: save > |"},
	},
	Idle: {
		Unattached:   {"-"},
		LauncherCame: {" -> activating: claim devices, enter directory, admit, attach, save > activated | failed"},
		ProcessCame:  {" -> activating: claim devices, enter directory, admit, save > activated | failed"},
		Revived:      {" -> activating: claim devices, enter directory, admit > activated | failed"},
		LauncherLeft: {
			" -> idle: detach, save > |",
			"temporary others expected -> idle: detach, stop timer, save > |",
			"temporary expected -> idle: detach, stop timer, remove directory > directory removed |",
		},
		ClientLeft: {"="},
		Expired: {
			" -> idle:  > |",
			"expected -> idle: stop timer, save > |",
			"expected temporary others -> idle: stop timer, save > |",
			"expected temporary -> idle: stop timer, remove directory > directory removed |",
		},
		DirectoryRemoved: {" -> removed: forget > |", "expected -> removed: stop timer, forget > |"},
		Activated:        {"-"}, Failed: {"-"}, Withdrawn: {"-"}, Kept: {"-"},
	},
	Removed: {
		Unattached:   {"-"},
		LauncherCame: {"-"}, ProcessCame: {"-"}, Revived: {"-"},
		LauncherLeft: {"="}, ClientLeft: {"="}, Expired: {"="}, DirectoryRemoved: {"="},
		Activated: {"-"}, Failed: {"-"}, Withdrawn: {"-"}, Kept: {"-"},
	},
}

// given reads a machine and facts of a line of pairs.
func given(t *testing.T, s State, text string) (Machine, Facts) {
	t.Helper()
	m, f := Machine{State: s}, Facts{}
	for _, word := range strings.Fields(text) {
		switch key, value, _ := strings.Cut(word, ":"); key {
		case "has":
			for _, what := range strings.Split(value, ",") {
				m.Has |= map[string]Holdings{"devices": Devices, "directory": Directory, "all": everything}[what]
			}
		case "cause":
			m.Cause = map[string]Event{"launcher": LauncherCame, "process": ProcessCame, "revived": Revived}[value]
		case "origin":
			m.Origin = Idle
		case "temporary":
			f.Temporary = true
		case "others":
			f.Launchers = 1
		case "expected":
			m.Expected = true
		case "unsaved":
			m.Unsaved = true
		default:
			t.Fatalf("what is %q?", word)
		}
	}
	return m, f
}

func joined[T fmt.Stringer](all []T) string {
	var names []string
	for _, v := range all {
		names = append(names, v.String())
	}
	return strings.Join(names, ", ")
}

func TestEveryEventInEveryState(t *testing.T) {
	for _, s := range States() {
		for _, e := range Events() {
			if len(pairs[s][e]) == 0 {
				t.Errorf("%s, %s: the test says nothing of it", s, e)
			}
			for _, line := range pairs[s][e] {
				var m Machine
				var f Facts
				if line != "-" && line != "=" {
					m, f = given(t, s, strings.SplitN(line, "->", 2)[0])
				}
				m.State = s
				next, step, err := m.On(e, f)
				var refused *RefusedError
				switch line {
				case "-":
					if !errors.As(err, &refused) || next != m || len(step.Effects) > 0 {
						t.Errorf("%s, %s: %+v, %+v, %v; it is to be refused", s, e, next, step, err)
					}
					continue
				case "=":
					if err != nil || next != m || len(step.Effects)+len(step.Then)+len(step.Else) > 0 {
						t.Errorf("%s, %s: %+v, %+v, %v; it is to be ignored", s, e, next, step, err)
					}
					continue
				}
				got := fmt.Sprintf("%s: %s > %s | %s", next.State, joined(step.Effects), joined(step.Then), joined(step.Else))
				want := strings.TrimSpace(strings.SplitN(line, "->", 2)[1])
				if got = strings.ReplaceAll(strings.TrimSpace(got), ">  |", "> |"); err != nil || got != want {
					t.Errorf("%s, %s, given %q: %q, %v; want %q", s, e, line, got, err, want)
				}
			}
		}
	}
	if _, _, err := (Machine{State: 200}).On(Activated, Facts{}); err == nil {
		t.Error("there is no such state")
	}
	if _, _, err := (Machine{}).On(200, Facts{}); err == nil {
		t.Error("there is no such event")
	}
}

// world is an lgpu with all that effects change.
type world struct {
	Machine
	has       Holdings
	launchers int
	subject   bool // the launcher that an event is about is attached
	clients   int
	timer     bool
	temporary bool
	directory bool
	record    int  // launchers on disk, -1 without a record
	wrong     bool // the record may differ, since a Save has failed

	t      *testing.T
	faults int // the effect that fails, counted from 1; 0 is none
	trace  []string
}

func (w *world) Facts() Facts {
	f := Facts{Launchers: w.launchers, Temporary: w.temporary}
	if w.subject {
		f.Launchers--
	}
	return f
}

func (w *world) Become(m Machine) { w.Machine = m }

// must fails the test where an effect makes no sense.
func (w *world) must(ok bool) {
	if !ok {
		w.t.Fatalf("an effect makes no sense: %v", w.trace)
	}
}

// fails reports whether this is the effect that fails.
func (w *world) fails(f Effect) bool {
	if w.faults--; w.faults != 0 {
		return false
	}
	switch f {
	case ClaimDevices, EnterDirectory, Admit, Attach, Save, Revert, RemoveDirectory, Forget:
		w.trace = append(w.trace, "FAILS")
		w.wrong = w.wrong || f == Save || f == Revert
		return true
	}
	return false // nothing can go wrong there
}

func (w *world) Carry(f Effect, next Machine) error {
	w.trace = append(w.trace, f.String())
	if w.fails(f) {
		return errors.New("fault")
	}
	switch f {
	case ClaimDevices:
		w.must(w.has&Devices == 0)
		w.has |= Devices
	case EnterDirectory:
		w.must(w.has&Directory == 0 && w.directory)
		w.has |= Directory
	case Admit:
		w.must(w.has == Devices|Directory)
		w.has |= Tenants
	case Attach:
		w.must(!w.subject && w.has == everything)
		w.subject, w.launchers = true, w.launchers+1
	case Detach:
		if w.subject {
			w.subject, w.launchers = false, w.launchers-1
		}
	case Save:
		w.record, w.wrong = w.launchers, false
	case Revert:
		if w.record >= 0 {
			w.record, w.wrong = w.launchers, false
		}
	case StartTimer:
		w.timer = true
	case StopTimer:
		w.must(w.timer)
		w.timer = false
	case Withdraw:
		w.must(w.has&Tenants != 0)
		if w.clients > 0 {
			return ErrKept
		}
		w.has &^= Tenants
	case ReleaseDevices:
		w.must(w.has&Devices != 0 && w.has&Tenants == 0)
		w.has &^= Devices
	case LeaveDirectory:
		w.must(w.has&Directory != 0 && w.has&Tenants == 0)
		w.has &^= Directory
	case RemoveDirectory:
		w.must(w.has == 0)
		w.directory = false
	case Forget:
		w.must(w.has == 0 && !w.directory)
		w.record = -1
	default:
		w.must(false)
	}
	w.Machine = next
	return nil
}

// check looks at what must hold whenever nothing is under way.
func (w *world) check(faulty bool) string {
	switch {
	case w.State == Activating:
		return "it is activating for ever"
	case w.Has != w.has:
		return "the machine does not know what it has"
	case w.State.Ready() != (w.has == everything) || !w.State.InUse() && w.has != 0 && w.State != Declared:
		return "it has too much or too little"
	case w.Expected != w.timer:
		return "the timer is not as the machine thinks"
	case w.State == Active && w.launchers == 0 && !w.timer:
		return "it is active for nobody"
	case w.State == Draining && (w.launchers > 0 || w.timer):
		return "it drains though somebody wants it"
	case w.State == Removed && w.directory:
		return "its directory stays"
	case faulty:
		return ""
	case w.State == Draining && w.clients == 0:
		return "it drains for nobody"
	case w.State == Idle && w.temporary && w.launchers == 0 && !w.timer && !w.wrong && w.directory:
		return "it stays though it is temporary"
	case w.State == Removed && w.record >= 0:
		return "its record stays"
	case w.State.Ready() && !w.wrong && w.record != w.launchers:
		return "its record has other launchers"
	}
	return ""
}

// key is what tells worlds apart.
func (w world) key() world { w.t, w.faults, w.trace = nil, 0, nil; return w }

// acts are what can happen to w from outside.
func (w *world) acts() (acts []func(*world) error) {
	tell := func(e Event, before func(*world)) func(*world) error {
		return func(w *world) error {
			w.trace = append(w.trace, "<"+e.String()+">")
			before(w)
			err := Drive(w.Machine, e, w)
			w.subject = false
			return err
		}
	}
	plain := func(*world) {}
	if w.State != Removed && w.launchers < 2 {
		acts = append(acts, tell(LauncherCame, plain))
	}
	if w.State != Removed && !(w.temporary && w.State == Declared) {
		acts = append(acts, tell(ProcessCame, plain))
	}
	if w.launchers > 0 {
		acts = append(acts, tell(LauncherLeft, func(w *world) { w.subject = true }))
	}
	if w.State.Ready() && w.clients == 0 {
		acts = append(acts, func(w *world) error { w.clients++; return nil })
	}
	if w.clients > 0 {
		acts = append(acts, tell(ClientLeft, func(w *world) { w.clients-- }))
	}
	acts = append(acts, tell(ClientLeft, plain)) // late
	if w.timer {
		acts = append(acts, tell(Expired, plain))
	}
	if !w.temporary && w.directory && !w.State.InUse() {
		acts = append(acts, tell(DirectoryRemoved, func(w *world) { w.directory = false }))
	}
	if w.State == Idle && !w.timer {
		acts = append(acts, tell(Revived, plain))
	}
	return acts
}

// Whatever happens in whatever order, and whichever effect fails, an lgpu in use has all that it needs, one out of use
// nothing, nothing is acquired or given back twice, and no temporary lgpu stays.
func TestAllLives(t *testing.T) {
	start := []world{
		{directory: true, record: -1},
		{directory: true, record: -1, temporary: true, Machine: Machine{Has: Directory}, has: Directory},
		{directory: true, record: 0, Machine: Machine{State: Idle}},
		{directory: true, record: 1, launchers: 1, Machine: Machine{State: Idle}},
		{directory: true, record: 1, launchers: 1, temporary: true, Machine: Machine{State: Idle, Expected: true}, timer: true},
	}
	seen := map[string]bool{}
	lives, ends := 0, map[State]int{}
	for todo := start; len(todo) > 0; {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if key := fmt.Sprintf("%+v", at.key()); seen[key] {
			continue
		} else {
			seen[key] = true
		}
		for i := range at.acts() {
			for fault := 0; ; fault++ {
				w := at
				w.t, w.faults, w.trace = t, fault, slices.Clone(at.trace)
				err := w.acts()[i](&w)
				failed := slices.Contains(w.trace[len(at.trace):], "FAILS")
				if failed == (err == nil) {
					t.Fatalf("error %v: %v", err, w.trace)
				}
				if wrong := w.check(failed); wrong != "" {
					t.Fatalf("%s: %v\n%+v", wrong, w.trace, w.key())
				}
				lives++
				ends[w.State]++
				exhausted := w.faults > 0 // fewer effects than that
				if failed && (w.State == Idle && w.temporary || w.State == Removed) {
					continue // it stays behind, as the error says
				}
				todo = append(todo, w)
				if exhausted {
					break
				}
			}
		}
	}
	for _, s := range States() {
		if s != Activating && s != Declared && ends[s] == 0 {
			t.Errorf("no life came to %s", s)
		}
	}
	t.Logf("%d steps, %d different lgpus", lives, len(seen))
}

func TestDocumentIsFresh(t *testing.T) {
	const path = "../../docs/lifecycle.md"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != Document() {
		t.Errorf("%s is stale; run: go generate ./daemon/lifecycle", path)
	}
}
