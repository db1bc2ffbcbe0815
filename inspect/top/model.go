package top

import (
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/internal/users"
)

// model is the state of the live view. Bubbletea calls its methods one after the other.
type model struct {
	newest   *api.Snapshot // nil until the first has come
	frame    frame
	paused   bool
	help     bool
	trouble  string // why nothing new comes; empty when it does
	prompt   prompt
	status   string // a sentence for the last lines, such as how a change went
	failed   bool   // status is an error
	write    func(path, assignment string) error
	height   int
	top      int // index of the first line that is seen
	messages <-chan tea.Msg
}

// Messages beside bubbletea's own.
type (
	arrived struct{ snapshot *api.Snapshot }
	broken  struct{ err error }
)

// newModel is a view of what messages bring; write may be nil.
func newModel(messages <-chan tea.Msg, paint paint, write func(path, assignment string) error) *model {
	return &model{
		frame: frame{history: history{}, open: map[row]bool{}, width: 80, paint: paint, zone: time.Local,
			user: users.Name},
		height:   24,
		write:    write,
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
	case written:
		if message.err != nil {
			m.say(message.err.Error(), true)
		} else {
			m.say("done: "+message.done, false)
		}
	case tea.PasteMsg:
		if m.prompt.asks == filter || m.prompt.asks == set {
			m.prompt.add(message.Content)
			m.typed()
		}
	case tea.KeyPressMsg:
		m.status = ""
		if m.prompt.asks != nothing {
			return m, m.answer(message)
		}
		return m, m.key(message.String())
	}
	return m, nil
}

// sorting are the keys that sort.
var sorting = map[string]order{"n": byName, "c": byShare, "m": byMemory, "t": byState, "u": byUser, "w": byPower, "j": byEnergy}

// key does what a key is for.
func (m *model) key(key string) tea.Cmd {
	if m.help && key != "q" && key != "ctrl+c" {
		m.help = false
		return nil
	}
	f := &m.frame
	if order, sorts := sorting[key]; sorts {
		f.order = order
		return nil
	}
	switch key {
	case "q", "ctrl+c":
		return tea.Quit
	case "esc":
		f.words = nil
	case "space":
		m.paused = !m.paused
		if !m.paused {
			f.snapshot = m.newest
		}
	case "o":
		f.order = (f.order + 1) % orders
	case "r":
		f.reverse = !f.reverse
	case "g":
		f.flat = !f.flat
	case "p":
		f.processes = !f.processes
		m.top, f.selected = 0, row{}
	case "a":
		f.all = !f.all
	case "e":
		f.energy = !f.energy
	case "/":
		m.prompt = prompt{asks: filter, text: strings.Join(f.words, " ")}
	case "s":
		m.ask(set)
	case "k":
		m.ask(kill)
	case "h", "?", "f1":
		m.help = true
	case "enter", "left", "right":
		m.fold(key)
	default:
		m.travel(key)
	}
	return nil
}

// travel moves the cursor.
func (m *model) travel(key string) {
	switch key {
	case "down":
		m.move(1)
	case "up":
		m.move(-1)
	case "pgdown":
		m.move(max(1, m.room()/2))
	case "pgup":
		m.move(-max(1, m.room()/2))
	case "home":
		m.move(-len(m.frame.selectable()))
	case "end":
		m.move(len(m.frame.selectable()))
	}
}

// current is the line at the cursor.
func (m *model) current() (line, bool) {
	if m.frame.snapshot == nil || m.frame.selected == (row{}) {
		return line{}, false
	}
	lines := m.frame.lines()
	at := slices.IndexFunc(lines, func(l line) bool { return l.row == m.frame.selected })
	if at < 0 {
		return line{}, false
	}
	return lines[at], true
}

// fold opens or closes what is at the cursor. What is closed already leads to what it is in.
func (m *model) fold(key string) {
	l, ok := m.current()
	if !ok || m.frame.processes {
		return
	}
	f := &m.frame
	open := f.opened(l.row, f.usual(l.row))
	switch {
	case key == "left" && !open && l.up != (row{}):
		f.selected = l.up
	case key == "enter":
		f.open[l.row] = !open
	default:
		f.open[l.row] = key == "right"
	}
}

// usual reports whether what is in a row is shown before somebody opens or closes it.
func (f *frame) usual(r row) bool {
	if r.id == 0 {
		return len(f.words) > 0 || len(f.snapshot.GetDevices()) <= fewDevices
	}
	for _, n := range f.snapshot.GetDirectories() {
		if n.GetId() == r.id {
			return n.GetKind() == api.Directory_GROUP
		}
	}
	return false
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

// room is the number of lines between the heading and the last lines.
func (m *model) room() int { return max(0, m.height-2-len(m.last())) }

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
	room := m.room()
	body := m.body(room)
	body = body[:min(len(body), room)]
	body = append(body, make([]string, room-len(body))...)
	if m.trouble != "" { // what is old looks old
		for i, text := range body {
			body[i] = f.paint.with(faint, ansi.Strip(text))
		}
	}
	body = slices.Insert(body, 0, f.title(m.paused, m.trouble), f.paint.with(faint, f.heading()))
	body = append(body, m.last()...)
	body = body[:min(len(body), m.height)]
	for i := range body {
		body[i] = ansi.Truncate(body[i], f.width, "")
	}
	return strings.Join(body, "\n")
}

// body is what there is between the heading and the last lines.
func (m *model) body(room int) []string {
	if m.help {
		return help(m.frame.paint)
	}
	lines := m.frame.lines()
	m.follow(lines, room)
	var body []string
	for _, l := range lines[min(m.top, len(lines)):] {
		body = append(body, l.text)
	}
	return body
}

// follow moves the picture so that the cursor is seen, and so that it does not end above the lower edge for no reason.
func (m *model) follow(lines []line, room int) {
	at := slices.IndexFunc(lines, func(l line) bool { return l.row != (row{}) && l.row == m.frame.selected })
	if at >= 0 && at < m.top {
		m.top = at
	}
	if at >= m.top+room {
		m.top = at - room + 1
	}
	m.top = max(0, min(m.top, len(lines)-room))
}

// lastLines is the most lines that a sentence gets.
const lastLines = 4

// last are the last lines: what is asked for, a sentence, or the keys.
func (m *model) last() []string {
	f := &m.frame
	switch {
	case m.height < 3:
		return nil
	case m.prompt.asks != nothing:
		text := m.prompt.String()
		if over := ansi.StringWidth(text) - f.width; over > 0 { // the end is where somebody types
			text = ansi.TruncateLeft(text, over+1, "…")
		}
		return []string{f.paint.with(bold, text)}
	case m.status != "":
		style := good
		if m.failed {
			style = bad
		}
		lines := strings.Split(ansi.Wrap(m.status, max(1, f.width-2), " "), "\n")
		lines = lines[:min(len(lines), lastLines, m.height-2)]
		for i := range lines {
			lines[i] = " " + f.paint.with(style, lines[i])
		}
		return lines
	}
	sorted := f.order.String()
	if f.reverse {
		sorted += " ↑"
	}
	words := ""
	if len(f.words) > 0 {
		words = ": " + clean(strings.Join(f.words, " "))
	}
	text := " q quit ? help / filter" + words + " ←→ fold s set k kill p procs e energy o sort: " + sorted + " g flat a all space pause"
	return []string{f.paint.with(faint, fit(text, f.width-1, false))}
}

// help is what is shown in place of the devices.
func help(p paint) []string {
	var lines []string
	for _, l := range [][2]string{
		{"", ""},
		{"↑ ↓", "move the cursor; page up and down, home, end"},
		{"← → enter", "close and open: a device, a group, an lgpu's processes"},
		{"/", "show what has these words: name, user, command, device"},
		{"escape", "end the filter"},
		{"s", "set a limit at the cursor: compute.max=25%"},
		{"k", "end all programs of the lgpu or group at the cursor"},
		{"p", "processes of all devices, and back"},
		{"g, a", "lgpus without groups; processes of all lgpus"},
		{"e", "power and energy first, where not all has room"},
		{"n c m t u", "sort by name, share, memory, state, user"},
		{"w, j", "sort by power (watts), energy (joules)"},
		{"o, r", "sort by the next of these; turn the order round"},
		{"space", "stop and go on; the sparkline has what happens meanwhile"},
		{"PR", "processes"},
		{"USED/MAX", "memory and memory.max; - is no limit"},
		{"ASKED→GOT", "% of the device: entitled to now, had in the last second"},
		{"", "yellow: wants more than it gets; - is not measured"},
		{"LATELY", "what it got in the last frames, as high as was asked"},
		{"ENERGY", "of the device's, since the lgpu was created"},
		{"WEIGHT", "against siblings; H high priority, L latency-critical"},
		{"STATE", "running has it, waiting wants it, draining lets go"},
	} {
		lines = append(lines, " "+p.with(bold, fit(l[0], 12, false))+l[1])
	}
	return lines
}
