package top

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/lgpu/lgpu/api"
)

// shows checks whether a picture has a text.
func shows(t *testing.T, m *model, text string, want bool) {
	t.Helper()
	if got := strings.Contains(m.picture(), text); got != want {
		t.Errorf("%q is shown: %v\n%s", text, got, m.picture())
	}
}

// write types a text, key by key.
func write(m *model, text string) {
	for _, r := range text {
		press(m, string(r))
	}
}

// TestKeys goes through what keys show.
func TestKeys(t *testing.T) {
	m := live(80, 30)
	shows(t, m, "dataloader-0", false)
	press(m, "down", "down", "down", "down", "right") // the device, python-4712, team, alice
	shows(t, m, ">    alice", true)
	shows(t, m, "dataloader-0", true)
	shows(t, m, "4712 bob-the-bui…", false)
	press(m, "left")
	shows(t, m, "dataloader-0", false)
	press(m, "a")
	shows(t, m, "dataloader-0", true)
	shows(t, m, "4712 bob-the-bui… python", true)
	press(m, "a", "g")
	shows(t, m, "group", false)
	shows(t, m, "/team/alice", true)
	press(m, "g", "h")
	shows(t, m, "latency-critical", true)
	press(m, "x")
	shows(t, m, "latency-critical", false)

	later := machine()
	later.Daemon.Version = "later"
	press(m, "space")
	m.Update(arrived{later})
	shows(t, m, "lgpu 1.2.3", true)
	shows(t, m, "paused", true)
	press(m, "space")
	shows(t, m, "lgpu later", true)
	shows(t, m, "paused", false)

	m.Update(broken{errors.New("it does not answer")})
	shows(t, m, "daemon: it does not answer; trying again", true)
	m.Update(arrived{later})
	shows(t, m, "trying again", false)

	if command := press(m, "q"); command == nil || command() != (tea.QuitMsg{}) {
		t.Error("q does not end")
	}
}

// TestFolding: ← closes, and then leads to what a line is in; → opens.
func TestFolding(t *testing.T) {
	m := live(80, 30)
	press(m, "down", "down", "down", "left") // team
	shows(t, m, "▸ team", true)
	shows(t, m, "alice", true) // her name is in the column of users, still
	shows(t, m, "deep/below", false)
	press(m, "left", "left") // to the device, and close it
	shows(t, m, ">0 NVIDIA", true)
	shows(t, m, "team", false)
	shows(t, m, "python-4712", false)
	shows(t, m, "4 lgpus", true)
	press(m, "right")
	shows(t, m, "▸ team", true)
	press(m, "down", "down", "enter")
	shows(t, m, ">▾ team", true)
	shows(t, m, "deep/below", true)
}

// TestManyDevices: nine devices are nine lines at first, and one that is opened shows what it has.
func TestManyDevices(t *testing.T) {
	m := live(80, 24)
	s := machine()
	one := s.Devices[0]
	s.Devices = nil
	for i := range int32(9) {
		s.Devices = append(s.Devices, &api.Device{Uuid: fmt.Sprint("GPU-", i), Index: i, Ordinal: fmt.Sprint(i), Name: one.Name, MemoryTotal: one.MemoryTotal})
	}
	s.Devices[8] = one
	m.Update(arrived{s})
	if n := strings.Count(m.picture(), "NVIDIA H200"); n != 9 {
		t.Errorf("%d devices in 24 lines:\n%s", n, m.picture())
	}
	shows(t, m, "team", false)
	press(m, "end", "right")
	shows(t, m, "team", true)
}

// TestGroupsOnDevices: a group is on the devices that lgpus in it use. One without any is seen once.
func TestGroupsOnDevices(t *testing.T) {
	m := live(80, 40)
	s := machine()
	uses := func() []*api.DeviceUse {
		return []*api.DeviceUse{{Uuid: first, Effective: &api.Effective{}}, {Uuid: second, Effective: &api.Effective{}}}
	}
	s.Directories[2].Devices = uses() // team
	s.Directories = append(s.Directories, &api.Directory{Path: "/unused", Id: 9, Devices: uses()})
	m.Update(arrived{s})
	for _, group := range []string{"▾ team", "  unused"} {
		if n := strings.Count(m.picture(), group); n != 1 {
			t.Errorf("%q is shown %d times:\n%s", group, n, m.picture())
		}
	}
}

// TestFilter: / shows what has the words, what it is in, and nothing else; escape ends it.
func TestFilter(t *testing.T) {
	for _, test := range []struct{ typed, there, gone string }{
		{"LARGE", "deep/below", "python-4712"}, {"carol", "nothing is", "alice"}, {"bob", "python-4712", "team"},
		{"dataloader", "alice", "voice"}, {"h200 voice", "voice", "team"}, {"software", "Software GPU", "NVIDIA"},
	} {
		m := live(100, 30)
		press(m, "/")
		write(m, test.typed)
		shows(t, m, test.there, true)
		shows(t, m, test.gone, false)
		press(m, "enter")
		shows(t, m, "filter: "+strings.ToLower(test.typed), true)
		press(m, "esc")
		shows(t, m, "python-4712", true)
	}
	m := live(100, 30)
	press(m, "/", "x", "y", "backspace", "backspace", "v", "esc")
	shows(t, m, "python-4712", true)
	m.Update(tea.PasteMsg{Content: "voice"}) // nobody asked
	shows(t, m, "python-4712", true)
	press(m, "/")
	m.Update(tea.PasteMsg{Content: "voi\x1b[2Jce\n"})
	if got := m.prompt.text; got != "voi[2Jce" {
		t.Errorf("pasted: %q", got)
	}
}

// TestSet: s writes to the group or lgpu at the cursor, and shows what comes of it.
func TestSet(t *testing.T) {
	m := live(80, 30)
	w := &mind{}
	m.write = w.write
	press(m, "s")
	shows(t, m, "move the cursor to a group or lgpu first", true)
	press(m, "down", "down", "down", "down", "s")
	shows(t, m, "set /team/alice FILE=VALUE: ", true)
	write(m, "compute.max=25% q")
	press(m, "backspace", "backspace")
	command := press(m, "enter")
	if command == nil {
		t.Fatal("nothing is written")
	}
	shows(t, m, "asking the daemon", true)
	w.err = errors.New("compute.max: \x1b[2J the group has 20 %")
	m.Update(command())
	if want := "[/team/alice compute.max=25%]"; fmt.Sprint(w.writes) != want {
		t.Errorf("written: %v, want %s", w.writes, want)
	}
	shows(t, m, "compute.max: ?[2J the group has 20 %", true)
	press(m, "down")
	shows(t, m, "the group has", false)
	w.err = nil
	press(m, "s")
	write(m, "lgpu.weight=3")
	m.Update(press(m, "enter")())
	shows(t, m, "done: set lgpu.weight=3 of /team/deep/below/training-of-a-large-model", true)
	press(m, "s", "x", "esc", "s")
	if command := press(m, "enter"); command != nil || len(w.writes) != 2 {
		t.Errorf("an empty line writes %v", w.writes)
	}
}

// TestKill: k asks, and only y ends programs.
func TestKill(t *testing.T) {
	m := live(80, 30)
	w := &mind{}
	m.write = w.write
	press(m, "down", "k")
	shows(t, m, "this would end all programs of all lgpus", true)
	press(m, "down", "down", "k")
	shows(t, m, "end all programs in /team: 2 processes in 2 lgpus? y/n", true)
	if command := press(m, "n"); command != nil {
		t.Error("n ends programs")
	}
	shows(t, m, "nothing was ended", true)
	press(m, "down", "k")
	shows(t, m, "end all programs in /team/alice: 2 processes? y/n", true)
	m.Update(press(m, "y")())
	if want := "[/team/alice procs.kill=1]"; fmt.Sprint(w.writes) != want {
		t.Errorf("written: %v, want %s", w.writes, want)
	}
	shows(t, m, "done: ending all programs in /team/alice", true)
	m.write = nil
	press(m, "k")
	shows(t, m, "nothing can be changed here", true)
}

// TestProcesses: p lists the processes of all devices with their users; k is about their lgpus.
func TestProcesses(t *testing.T) {
	m := live(80, 30)
	press(m, "p")
	shows(t, m, "    812 alice    python              6G   0 /team/alice", true)
	shows(t, m, "     99 carol    blender             3G   0 without an lgpu", true)
	press(m, "u")
	first := m.frame.allProcesses()[0]
	if first.user != "alice" {
		t.Errorf("by user, the first is of %s", first.user)
	}
	press(m, "home", "k")
	shows(t, m, "end all programs in /team/alice: 2 processes? y/n", true)
	press(m, "n", "end", "k")
	shows(t, m, "process 99 is in no lgpu", true)
	press(m, "/", "f", "f", "m", "enter")
	shows(t, m, "blender", false)
	shows(t, m, "ffmpeg", true)
	press(m, "p", "esc")
	shows(t, m, "▾ team", true)
}

// TestOrders: each order has its own first lgpu, and r turns it round.
func TestOrders(t *testing.T) {
	f := frame{snapshot: machine(), user: people}
	for _, test := range []struct {
		order       order
		first, last string
	}{
		{byName, "/python-4712", "/voice"},
		{byShare, "/team/deep/below/training-of-a-large-model", "/python-4712"},
		{byMemory, "/team/deep/below/training-of-a-large-model", "/python-4712"},
		{byState, "/python-4712", "/team/deep/below/training-of-a-large-model"},
		{byUser, "/team/deep/below/training-of-a-large-model", "/python-4712"},
		{byPower, "/team/alice", "/voice"},
	} {
		for _, reverse := range []bool{false, true} {
			f.order, f.reverse = test.order, reverse
			nodes := f.tree(f.snapshot.Devices[0]).lgpus
			f.sort(nodes, first)
			head, tail := nodes[0].GetPath(), nodes[len(nodes)-1].GetPath()
			if reverse {
				head, tail = tail, head
			}
			if head != test.first || tail != test.last {
				t.Errorf("by %v, reverse %v: %s … %s", test.order, reverse, head, tail)
			}
		}
	}
}

// TestScroll: the cursor stays in sight on a small terminal, and survives that its lgpu goes.
func TestScroll(t *testing.T) {
	m := live(80, 6)
	for range 7 {
		press(m, "down")
		shows(t, m, ">", true)
	}
	press(m, "end")
	shows(t, m, ">1 Software", true)
	press(m, "up")
	shows(t, m, ">  voice", true)
	s := machine()
	s.Directories = s.Directories[:4]
	m.Update(arrived{s})
	press(m, "down", "down")
	shows(t, m, ">  python-4712", true)
	s.Directories = nil
	press(m, "up", "enter", "a")
	s.Devices = nil
	shows(t, m, "no devices", true)
	press(m, "p", "k", "s", "down", "left")
}

// FuzzKeys: whatever is typed, the picture keeps its size and has nothing that controls a terminal.
func FuzzKeys(f *testing.F) {
	for _, seed := range []string{"", "/abc\n", "s\x1b[", "pkyq", "jjk", "/\xff\u202e", "goranhcu"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, typed string) {
		m := live(60, 20)
		for _, r := range typed[:min(len(typed), 200)] {
			key := tea.Key{Code: r, Text: string(r)}
			switch r {
			case '\n':
				key = tea.Key{Code: tea.KeyEnter}
			case '>':
				key = tea.Key{Code: tea.KeyRight}
			case '<':
				key = tea.Key{Code: tea.KeyLeft}
			case 'v':
				key = tea.Key{Code: tea.KeyDown}
			}
			m.Update(tea.KeyPressMsg(key))
		}
		lines := strings.Split(m.picture(), "\n")
		if len(lines) != 20 {
			t.Fatalf("%d lines after %q", len(lines), typed)
		}
		for _, l := range lines {
			if ansi.StringWidth(l) > 60 || strings.ContainsFunc(l, func(r rune) bool { return r < ' ' || r == 0x202e }) {
				t.Fatalf("%q after %q", l, typed)
			}
		}
	})
}
