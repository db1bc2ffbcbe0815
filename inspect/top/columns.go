package top

import "strings"

// columns are the widths of those columns of an lgpu's line that depend on the terminal's; 0 is none.
type columns struct{ name, user, processes, bar, spark, power, energy, weight, state int }

// What every line has: the name at least, memory and its limit, and the shares asked for and got, with a space before
// each. Nothing else is worth more, so that these are the last to go.
const (
	leastName = 16
	always    = 1 + leastName + 12 + 10
)

// layout gives a column the room that it needs, the more important first: state, user, number of processes, weight,
// what was got lately, power, energy, and a bar of the memory. Who looks at energy has power and energy before all these.
// What is left goes to names first, then to bars and sparklines. Without a history, or where no power is known, there is
// nothing to show in these columns.
func (f *frame) layout() columns {
	c := columns{name: leastName}
	spare := f.width - 1 - always
	add := func(column *int, width int, useful bool) {
		if useful && spare > width {
			*column = width
			spare -= width + 1
		}
	}
	metered := f.knowsPower()
	if f.energy {
		add(&c.power, 5, metered)
		add(&c.energy, energyWidth, metered)
	}
	add(&c.state, f.stateWidth(), true)
	add(&c.user, 8, true)
	add(&c.processes, 3, true)
	add(&c.weight, 6, true)
	add(&c.spark, 8, f.history != nil)
	if !f.energy {
		add(&c.power, 5, metered)
		add(&c.energy, energyWidth, metered)
	}
	add(&c.bar, 7, true)
	if spare < 0 {
		c.name = max(1, c.name+spare)
		return c
	}
	grow := func(column *int, by int) {
		if *column > 0 {
			*column += by
			spare -= by
		}
	}
	grow(&c.name, min((spare+1)/2, 24))
	grow(&c.user, min(spare/4, 8))
	grow(&c.bar, min(spare/3, 21))
	grow(&c.spark, min(spare, longest-c.spark))
	return c
}

// energyWidth is that of the longest energy, 99.9kJ.
const energyWidth = 6

// stateWidth is that of the longest state with a space before it; the usual ones have 8 letters at most.
func (f *frame) stateWidth() int {
	const usual = 9
	width := usual
	for _, n := range f.snapshot.GetDirectories() {
		for _, d := range n.GetDevices() {
			state, _ := words(d.GetState())
			width = max(width, 1+len(state))
		}
	}
	return width
}

// knowsPower reports whether the power of any lgpu is known.
func (f *frame) knowsPower() bool {
	for _, n := range f.snapshot.GetDirectories() {
		for _, d := range n.GetDevices() {
			if d.PowerMw != nil {
				return true
			}
		}
	}
	return false
}

// cell is what a line has in a column; none where its width is 0.
type cell struct {
	width int
	text  string
}

// join makes a line of cells.
func join(cells []cell) string {
	var b strings.Builder
	for _, c := range cells {
		if c.width > 0 {
			b.WriteString(" " + c.text)
		}
	}
	return b.String()
}

// heading is the line above all that is listed.
func (f *frame) heading() string {
	if f.processes {
		return processHeading
	}
	c := f.layout()
	return join([]cell{
		{c.name, fit("LGPU", c.name, false)}, {c.user, fit("USER", c.user, false)}, {c.processes, right("PR", c.processes)},
		{c.bar, fit("MEMORY", c.bar, false)}, {11, right("USED/MAX", 11)}, {9, "ASKED→GOT"}, {c.spark, fit("LATELY", c.spark, false)},
		{c.power, right("POWER", c.power)}, {c.energy, right("ENERGY", c.energy)}, {c.weight, right("WEIGHT", c.weight)}, {c.state, " STATE"},
	})
}
