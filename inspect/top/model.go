package top

import (
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/lgpu/lgpu/api"
)

// model is the state of the live view. Bubbletea calls its methods one after the other.
type model struct {
	newest   *api.Snapshot // nil until the first has come
	frame    frame
	paused   bool
	help     bool
	trouble  string // why nothing new comes; empty when it does
	height   int
	top      int // index of the first line that is seen
	messages <-chan tea.Msg
}

// Messages beside bubbletea's own.
type (
	arrived struct{ snapshot *api.Snapshot }
	broken  struct{ err error }
)

func newModel(messages <-chan tea.Msg, paint paint) *model {
	return &model{
		frame:    frame{history: history{}, expanded: map[row]bool{}, width: 80, paint: paint, zone: time.Local},
		height:   24,
		messages: messages,
	}
}

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return m.next }

// next waits for the next message of the daemon.
func (m *model) next() tea.Msg { return <-m.messages }

// Update implements tea.Model.
func (m *model) Update(message tea.Msg) (tea.Model, tea.Cmd) {
	switch message := message.(type) {
	case arrived:
		m.newest, m.trouble = message.snapshot, ""
		m.frame.history.add(message.snapshot)
		if !m.paused {
			m.frame.snapshot = message.snapshot
		}
		return m, m.next
	case broken:
		m.trouble = "daemon: " + message.err.Error() + "; trying again"
		return m, m.next
	case tea.WindowSizeMsg:
		m.frame.width, m.height = max(message.Width, 1), max(message.Height, 1)
	case tea.KeyPressMsg:
		return m, m.key(message.String())
	}
	return m, nil
}

// key does what a key is for.
func (m *model) key(key string) tea.Cmd {
	if m.help && key != "q" && key != "ctrl+c" {
		m.help = false
		return nil
	}
	f := &m.frame
	switch key {
	case "q", "ctrl+c", "esc":
		return tea.Quit
	case "space", "p":
		m.paused = !m.paused
		if !m.paused {
			f.snapshot = m.newest
		}
	case "s":
		f.order = (f.order + 1) % orders
	case "r":
		f.reverse = !f.reverse
	case "g":
		f.groups = !f.groups
	case "a":
		f.all = !f.all
		clear(f.expanded)
	case "enter":
		if f.selected != (row{}) {
			f.expanded[f.selected] = !f.expanded[f.selected]
		}
	case "h", "?", "f1":
		m.help = true
	case "down", "j":
		m.move(1)
	case "up", "k":
		m.move(-1)
	case "pgdown":
		m.move(max(1, m.room()/2))
	case "pgup":
		m.move(-max(1, m.room()/2))
	case "home":
		m.move(-len(f.selectable()))
	case "end":
		m.move(len(f.selectable()))
	}
	return nil
}

// selectable returns the rows of the picture, from above.
func (f *frame) selectable() []row {
	var rows []row
	if f.snapshot == nil {
		return nil
	}
	for _, l := range f.lines() {
		if l.row != (row{}) {
			rows = append(rows, l.row)
		}
	}
	return rows
}

// move moves the cursor by so many rows. The first key only shows it.
func (m *model) move(by int) {
	rows := m.frame.selectable()
	if len(rows) == 0 {
		m.frame.selected = row{}
		return
	}
	at := slices.Index(rows, m.frame.selected)
	switch {
	case at < 0 && by > 0:
		at = min(by-1, len(rows)-1)
	case at < 0:
		at = 0
	default:
		at = min(max(at+by, 0), len(rows)-1)
	}
	m.frame.selected = rows[at]
}

// room is the number of lines between the title and the line of keys.
func (m *model) room() int { return max(0, m.height-2) }

// View implements tea.Model.
func (m *model) View() tea.View {
	view := tea.NewView(m.picture())
	view.AltScreen = true
	view.WindowTitle = "lgpu top"
	return view
}

// picture is the whole screen: as many lines as it is high, none wider than it is.
func (m *model) picture() string {
	f := &m.frame
	if f.snapshot == nil {
		text := "asking the daemon …"
		if m.trouble != "" {
			text = m.trouble
		}
		return ansi.Truncate(" "+clean(text), f.width, "…")
	}
	var body []string
	if m.help {
		body = help(f.paint)
	} else {
		lines := f.lines()
		m.follow(lines)
		for _, l := range lines[min(m.top, len(lines)):] {
			body = append(body, l.text)
		}
	}
	room := m.room()
	body = body[:min(len(body), room)]
	body = append(body, make([]string, room-len(body))...)
	body = slices.Insert(body, 0, f.title(m.paused, m.trouble))
	if m.height > 1 {
		body = append(body, m.keys())
	}
	for i := range body {
		body[i] = ansi.Truncate(body[i], f.width, "")
	}
	return strings.Join(body, "\n")
}

// follow moves the picture so that the cursor is seen, and so that it does not end above the lower edge for no reason.
func (m *model) follow(lines []line) {
	at := slices.IndexFunc(lines, func(l line) bool { return l.row != (row{}) && l.row == m.frame.selected })
	room := m.room()
	if at >= 0 && at < m.top {
		m.top = at
	}
	if at >= m.top+room {
		m.top = at - room + 1
	}
	if first := m.frame.selectable(); len(first) > 0 && at >= 0 && first[0] == m.frame.selected && at < room {
		m.top = 0 // with the device's own lines above the first of its lgpus
	}
	m.top = min(m.top, max(0, len(lines)-room))
}

// keys is the last line.
func (m *model) keys() string {
	f := &m.frame
	sorted := f.order.String()
	if f.reverse {
		sorted += " ↑"
	}
	text := fit(" q quit  s sort: "+sorted+"  ↑↓ ⏎ processes  a all  g groups  space pause  h help", f.width-1, false)
	return f.paint.with(faint, text)
}

// help is what is shown in place of the devices.
func help(p paint) []string {
	var lines []string
	for _, l := range [][2]string{
		{"", ""},
		{"up, down, k, j", "move the cursor; page up and down, home, end"},
		{"enter", "show or hide the processes of the lgpu at the cursor"},
		{"a", "show or hide the processes of all"},
		{"s, r", "sort by path, share, memory or state; turn the order round"},
		{"g", "show or hide groups"},
		{"space, p", "stop and go on; what happens meanwhile is in the sparkline"},
		{"q, escape", "leave"},
		{"", ""},
		{"PR", "processes"},
		{"USED/LIMIT", "device memory; - is not limited, the bar is then of the device"},
		{"ASKED→GOT", "percent of device time: entitled to now, had in the last second;"},
		{"", "yellow where it wants more than it gets; - is not measured"},
		{"LATELY", "what it got in the last frames, as high as what was asked"},
		{"WEIGHT", "against siblings; H is high priority, L latency-critical"},
		{"STATE", "running has the device, waiting wants it, draining lets go"},
	} {
		lines = append(lines, " "+p.with(bold, fit(l[0], 16, false))+l[1])
	}
	return lines
}
