package daemon

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/lgpu/lgpu/policy/limits"
)

// A program that runs out of memory for ever is told of at once and then ever more rarely, as one event with how often;
// all are counted.
func TestRepeats(t *testing.T) {
	r := repeats{}
	start := time.Unix(1000, 0)
	var told []Event
	for second := range 3600 { // four refusals a second for an hour
		now := start.Add(time.Duration(second) * time.Second)
		events, _ := r.due(now)
		told = append(told, events...)
		for i := range 4 {
			e := Event{Kind: OutOfMemory, ID: 1, Time: now, Count: 1, Bytes: uint64(i), Text: "denied"}
			if r.add(e) {
				told = append(told, e)
			}
		}
	}
	told = append(told, r.end(1, start.Add(time.Hour))...)
	var sum uint64
	for _, e := range told {
		sum += e.Count
	}
	if sum != 4*3600 || len(told) > 12 {
		t.Errorf("%d refusals were told in %d events", sum, len(told))
	}
	if first, second := told[0], told[1]; first.Count != 1 || first.Text != "denied" || second.Count != 39 ||
		!second.First.Equal(start) || second.Last.Sub(start) != 9*time.Second || second.Bytes != 3 ||
		second.Text != "denied (the last of 39 in 9s)" || second.Time.Sub(start) != shortQuiet {
		t.Errorf("the first two are %+v and %+v", first, second)
	}
	if len(r) != 0 {
		t.Errorf("%d are held of an lgpu that is gone", len(r))
	}
}

// What others do, and other kinds, is told at once beside repeats; and so is a kind again after a quiet time.
func TestRepeatsKeepApart(t *testing.T) {
	r := repeats{}
	now := time.Unix(1000, 0)
	for i, e := range []Event{
		{Kind: OutOfMemory, ID: 1}, {Kind: OutOfMemory, ID: 2}, {Kind: DrainOverrun, ID: 1},
		{Kind: ClientRefused, UID: 5}, {Kind: ClientRefused, UID: 6}, {Kind: ClientLeft, ID: 1}, {Kind: ClientLeft, ID: 1},
	} {
		if e.Time = now; !r.add(e) {
			t.Errorf("event %d is held", i)
		}
	}
	if r.add(Event{Kind: ClientRefused, UID: 5, Time: now}) {
		t.Error("a user who is kept out again is told of at once")
	}
	events, next := r.due(now.Add(shortQuiet))
	if len(events) != 1 || events[0].UID != 5 || !events[0].First.IsZero() || next.IsZero() {
		t.Errorf("due are %+v, then %v", events, next)
	}
	if events, next = r.due(now.Add(time.Hour)); len(events) != 0 || !next.IsZero() || !r.add(Event{Kind: OutOfMemory, ID: 1}) {
		t.Errorf("after a quiet time there are %v, %v", events, next)
	}
	for uid := range uint32(2 * maxRepeats) {
		r.add(Event{Kind: ClientRefused, UID: uid, Time: now})
	}
	if len(r) > maxRepeats+len(Kinds()) {
		t.Errorf("%d users are kept apart", len(r))
	}
}

func newJournal(t *testing.T, dir string) *journal {
	j := &journal{log: slog.New(slog.DiscardHandler), source: source[Event]{limit: 1024}}
	j.open(dir)
	return j
}

// The journal goes on where the one before it ended: with its numbers, and the events that were last. What was held when
// the daemon ended is told.
func TestJournalGoesOn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "events")
	j := newJournal(t, dir)
	j.emit(Event{Kind: LgpuCreated, ID: 1, Path: "/a", Text: "/a was created"})
	for range 5 {
		j.emit(Event{Kind: OutOfMemory, ID: 1, Path: "/a", Text: "denied"})
	}
	if n := j.of(1)[OutOfMemory]; n != 5 || j.counted()[OutOfMemory] != 5 || j.refusals(1).Count != 5 {
		t.Errorf("%d are counted", n)
	}
	if err := j.close(); err != nil {
		t.Fatal(err)
	}
	j = newJournal(t, dir)
	defer j.close()
	j.emit(Event{Kind: LgpuRemoved, ID: 1, Path: "/a", Text: "/a was removed"})
	var got []string
	for _, e := range j.recent() {
		got = append(got, fmt.Sprintf("%d %s %d", e.Seq, e.Kind, e.Count))
	}
	if want := []string{"1 lgpu.created 1", "2 oom 1", "3 oom 4", "4 lgpu.removed 1"}; !slices.Equal(got, want) {
		t.Errorf("the events are %q, want %q", got, want)
	}
}

// What is held of an lgpu is told before its end is, and what nobody ends is told in time.
func TestJournalTellsWhatIsHeld(t *testing.T) {
	j := newJournal(t, filepath.Join(t.TempDir(), "events"))
	defer j.close()
	s := j.source.subscribe()
	defer s.Close()
	for range 3 {
		j.emit(Event{Kind: OutOfMemory, ID: 1, Text: "denied"})
		j.emit(Event{Kind: OutOfMemory, ID: 2, Text: "denied"})
	}
	j.emit(Event{Kind: LgpuRemoved, ID: 1})
	j.mu.Lock()
	if j.wake.IsZero() || time.Until(j.wake) > shortQuiet {
		t.Errorf("nobody wakes before %v", j.wake)
	}
	j.repeats[repeatKey{kind: OutOfMemory, id: 2}].until = time.Now()
	j.timer.Reset(0)
	j.mu.Unlock()
	var got []string
	for len(got) < 5 {
		events, _, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			got = append(got, fmt.Sprintf("%s %d %d", e.Kind, e.ID, e.Count))
		}
	}
	want := []string{"oom 1 1", "oom 2 1", "oom 1 2", "lgpu.removed 1 1", "oom 2 2"}
	if !slices.Equal(got, want) {
		t.Errorf("told are %q, want %q", got, want)
	}
}

// The events of a range are those on disk and those in memory, each once, in their order.
func TestEventRange(t *testing.T) {
	n := &Daemon{}
	n.journal.log, n.journal.source.limit = slog.New(slog.DiscardHandler), 1024
	n.journal.open(filepath.Join(t.TempDir(), "events"))
	const all = 3 * kept
	var since time.Time
	for i := range all {
		if i == kept {
			since = time.Now()
		}
		disk := n.journal.disk
		if i == all-10 { // this one does not get to the disk
			n.journal.disk = nil
		}
		n.journal.emit(Event{Kind: ClientLeft, ID: 1})
		n.journal.disk = disk
	}
	for _, c := range []struct {
		r     EventRange
		first uint64
	}{
		{EventRange{}, all - kept + 1}, {EventRange{All: true}, 1}, {EventRange{All: true, Since: since}, kept + 1},
		{EventRange{Since: time.Now().Add(time.Hour)}, all + 1},
	} {
		next := c.first
		err := n.Events(t.Context(), c.r, func(events []Event) error {
			for _, e := range events {
				if e.Seq != next {
					t.Fatalf("%+v: event %d comes where %d is due", c.r, e.Seq, next)
				}
				next++
			}
			return nil
		})
		if err != nil || next != all+1 {
			t.Errorf("%+v: the last is %d, %v", c.r, next-1, err)
		}
	}
	if err := n.journal.close(); err != nil {
		t.Error(err)
	}
}

// A new owner is a change as well, and the daemon's own changes are by nobody.
func TestOwnersAreChanges(t *testing.T) {
	admins := uint32(900)
	r := start(t, Config{Rights: limits.Rights{Admins: &admins}})
	events := r.events(t)
	if err := r.Tree().By(limits.Author{UID: 4242, GID: admins, PID: os.Getpid()}).Chown("/", 6543, 6544); err != nil {
		t.Fatal(err)
	}
	e := events.await(t, LimitChanged)
	want := []limits.Difference{{File: "owner", Old: "user 0 (root), group 0 (root)", New: "user 6543, group 6544"}}
	if !slices.Equal(e.Changes, want) || e.By == nil || e.By.UID != 4242 || e.By.User != "" || e.By.Command == "" ||
		!strings.HasPrefix(e.Text, "/: owner is user 6543, group 6544 (was user 0 (root), group 0 (root)), by user 4242, process ") {
		t.Errorf("%+v by %+v", e, e.By)
	}
	if err := r.Tree().Mkdir("/g", 0, 0); err != nil {
		t.Fatal(err)
	}
	if e := events.await(t, LgpuCreated); e.By != nil || e.Text != "/g was created" || len(e.Changes) != 0 {
		t.Errorf("%+v", e)
	}
}

// Names that tenants and others chose cannot write to the terminal of who reads events.
func TestEventsArePrintable(t *testing.T) {
	j := newJournal(t, filepath.Join(t.TempDir(), "events"))
	defer j.close()
	evil := "a\x1b[2Jb\n\u202ec\xffd"
	j.emit(Event{
		Kind: LimitChanged, ID: 1, Path: "/" + evil, Text: evil + strings.Repeat("x", 2*maxText),
		By:      &Author{User: evil, Command: evil},
		Changes: slices.Repeat([]limits.Difference{{File: evil, Device: evil, Old: evil, New: evil}}, 2*maxChanges),
	})
	e := j.recent()[0]
	if len(e.Changes) != maxChanges || len(e.Text) > maxText+40 {
		t.Errorf("%d changes and %d bytes", len(e.Changes), len(e.Text))
	}
	c := e.Changes[0]
	for _, text := range []string{e.Path, e.Text, e.By.User, e.By.Command, c.File, c.Device, c.Old, c.New} {
		if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) || !strings.Contains(text, "a\uFFFD[2Jb") {
			t.Errorf("%q is shown", text)
		}
	}
}

// Every kind that there is can be asked for.
func TestKindsAreAll(t *testing.T) {
	source, err := os.ReadFile("event.go")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`\bKind += "([a-z.]+)"`).FindAllSubmatch(source, -1)
	for _, m := range found {
		if !slices.Contains(Kinds(), Kind(m[1])) {
			t.Errorf("%s is not among Kinds", m[1])
		}
	}
	if len(found) != len(Kinds()) {
		t.Errorf("%d constants, %d kinds", len(found), len(Kinds()))
	}
}

// Kinds has every kind that is declared: those it lacks would be no word for lgpu events --kind, and have no metric.
func TestKinds(t *testing.T) {
	source, err := os.ReadFile("event.go")
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`(?m)^\t[A-Za-z]+ +Kind = "([a-z.]+)"$`).FindAllSubmatch(source, -1)
	if len(declared) < 20 || len(declared) != len(Kinds()) {
		t.Errorf("%d kinds are declared, of %d in Kinds", len(declared), len(Kinds()))
	}
	for _, d := range declared {
		if !slices.Contains(Kinds(), Kind(d[1])) {
			t.Errorf("Kinds lacks %s", d[1])
		}
	}
}
