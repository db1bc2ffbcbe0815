package hw

// turnCycles is how long a block of several on a unit issues before the next one does.
const turnCycles = 64

// unit is a compute unit as one channel sees it: what is resident stays resident while other channels have the device.
type unit struct {
	index    int
	at       Time // device time up to which the unit has run
	resident []resident
	used     Needs
	turn     int
}

type resident struct {
	grid  *Grid
	block Block
}

func (u *unit) fits(l *Limits, n Needs) bool {
	return len(u.resident) < l.Blocks && u.used.Threads+n.Threads <= l.Threads &&
		u.used.Registers+n.Registers <= l.Registers && u.used.Shared+n.Shared <= l.Shared
}

// place takes the next block of g. The caller knows that there is one and that it fits.
func (u *unit) place(g *Grid, at Time) {
	i := g.next.Add(1) - 1
	b, err := g.Program.Block(i)
	if err != nil {
		g.fail(at, err)
		return
	}
	u.resident = append(u.resident, resident{g, b})
	u.used.Threads += g.Needs.Threads
	u.used.Registers += g.Needs.Registers
	u.used.Shared += g.Needs.Shared
}

func (u *unit) remove(i int) {
	n := u.resident[i].grid.Needs
	u.used.Threads -= n.Threads
	u.used.Registers -= n.Registers
	u.used.Shared -= n.Shared
	last := len(u.resident) - 1
	copy(u.resident[i:], u.resident[i+1:])
	u.resident[last] = resident{}
	u.resident = u.resident[:last]
}

// run executes what is resident from u.at until end, and takes blocks of grids within their quotas when there is room.
func (u *unit) run(d *Device, end Time, grids []*Grid) {
	ns := 1000 / d.Config.MHz
	turn := max(turnCycles, int64(float64(d.Config.Quantum)/ns/8))
	for len(u.resident) > 0 {
		cycles := int64(float64(end-u.at) / ns)
		if cycles < 1 {
			return
		}
		if len(u.resident) > 1 {
			cycles = min(cycles, turn)
		}
		if u.turn >= len(u.resident) {
			u.turn = 0
		}
		r := u.resident[u.turn]
		used, done, err := r.block.Run(At{
			Unit: u.index, Units: d.Config.Units, Time: u.at, NanosPerCycle: ns, Cycle: int64(float64(u.at) / ns),
		}, cycles)
		switch {
		case used == 0 && !done:
			used = cycles // it waits for something outside: time passes all the same
		case used == 0:
			used = 1
		}
		u.at += Time(float64(used) * ns)
		if err != nil {
			r.grid.fail(u.at, err)
			return
		}
		if !done {
			u.turn++
			continue
		}
		r.grid.ended(u.at)
		u.remove(u.turn)
		for _, g := range grids {
			for g.quotas[u.index] > 0 && u.fits(&d.Config.Limits, g.Needs) {
				g.quotas[u.index]--
				u.place(g, u.at)
			}
		}
	}
}
