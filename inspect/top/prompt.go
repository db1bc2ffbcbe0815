package top

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/internal/names"
)

// asking is what the last line of the screen asks for.
type asking int

const (
	nothing asking = iota
	filter         // words to look for; they count while they are typed
	set            // FILE=VALUE, for a group or lgpu
	kill           // y or n
)

// longestLine is the most that can be typed, in bytes.
const longestLine = 512

// prompt is the line in which somebody types. The zero value asks for nothing.
type prompt struct {
	asks asking
	path string // what set and kill are about
	what string // for kill: what ends
	text string // what was typed so far
}

// String is the line, with a cursor behind what was typed.
func (p prompt) String() string {
	switch p.asks {
	case filter:
		return " filter: " + p.text + "█"
	case set:
		return " set " + clean(p.path) + " FILE=VALUE: " + p.text + "█"
	}
	return " end " + clean(p.what) + "? y/n"
}

// add appends what was typed or pasted, as far as it can be shown and there is room.
func (p *prompt) add(text string) {
	for _, r := range text {
		if unicode.IsPrint(r) && r != utf8.RuneError && len(p.text)+utf8.RuneLen(r) <= longestLine {
			p.text += string(r)
		}
	}
}

// answer does what a key does while something is asked for.
func (m *model) answer(key tea.KeyPressMsg) tea.Cmd {
	p := &m.prompt
	if p.asks == kill {
		path := p.path
		yes := key.String() == "y" || key.String() == "Y"
		what := p.what
		*p = prompt{}
		if !yes {
			m.say("nothing was ended", false)
			return nil
		}
		return m.change(path, "procs.kill=1", "ending "+what)
	}
	switch key.String() {
	case "ctrl+c":
		return tea.Quit
	case "esc":
		if p.asks == filter {
			m.frame.words = nil
		}
		*p = prompt{}
		return nil
	case "enter":
		done := *p
		*p = prompt{}
		if text := strings.TrimSpace(done.text); done.asks == set && text != "" {
			return m.change(done.path, text, "set "+text+" of "+done.path)
		}
		return nil
	case "backspace", "ctrl+h":
		_, n := utf8.DecodeLastRuneInString(p.text)
		p.text = p.text[:len(p.text)-n]
	case "ctrl+u":
		p.text = ""
	case "ctrl+w":
		p.text = strings.TrimRightFunc(p.text, unicode.IsSpace)
		p.text = p.text[:strings.LastIndexByte(p.text, ' ')+1]
	default:
		p.add(key.Text)
	}
	m.typed()
	return nil
}

// typed lets a filter count.
func (m *model) typed() {
	if m.prompt.asks == filter {
		m.frame.words = strings.Fields(strings.ToLower(m.prompt.text))
		m.top = 0
	}
}

// ask begins to ask about the line at the cursor.
func (m *model) ask(what asking) {
	switch l, ok := m.current(); {
	case m.write == nil:
		m.say("nothing can be changed here", true)
	case !ok:
		m.say("move the cursor to a group or lgpu first: ↑ and ↓", true)
	case what == set && l.path == "":
		m.say("this process is in no lgpu, which could have limits", true)
	case what == set:
		m.prompt = prompt{asks: set, path: l.path}
	case l.path == "":
		m.say(fmt.Sprintf("process %d is in no lgpu: it can only be ended as its user or root, by kill", l.row.pid), true)
	case l.path == "/":
		m.say("this would end all programs of all lgpus: move the cursor to one of them", true)
	default:
		lgpus, processes := m.frame.below(l.path)
		what := "all programs in " + l.path + ": " + plural(processes, "process")
		if lgpus != 1 {
			what += " in " + plural(lgpus, "lgpu")
		}
		m.prompt = prompt{asks: kill, path: l.path, what: what}
	}
}

// below counts the lgpus and their processes at and below a path.
func (f *frame) below(path string) (lgpus, processes int) {
	for _, n := range f.snapshot.GetDirectories() {
		if !names.Within(n.GetPath(), path) {
			continue
		}
		processes += len(n.GetClients())
		if n.GetKind() == api.Directory_LGPU {
			lgpus++
		}
	}
	return lgpus, processes
}

// written is how a change went.
type written struct {
	done string // what was changed, in words
	err  error
}

// change has one FILE=VALUE written, while the picture goes on.
func (m *model) change(path, assignment, done string) tea.Cmd {
	m.say("asking the daemon …", false)
	write := m.write
	return func() tea.Msg { return written{done, write(path, assignment)} }
}

// say puts a sentence into the last lines of the screen until the next key.
func (m *model) say(text string, trouble bool) { m.status, m.failed = clean(text), trouble }
