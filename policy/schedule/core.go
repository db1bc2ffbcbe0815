package schedule

import "slices"

// core is what the devices, jobs and seats of one scheduler share: the time, the devices to be looked at, and the
// decisions made. Each of them embeds it, so that it acts without the scheduler.
type core struct {
	now       int64
	changed   []*device // something happened to them since they were last looked at
	decisions []Decision
	spare     []Decision // for decisions, while the caller reads the ones before
}

// mark has run look at a device.
func (d *device) mark() {
	if !d.marked {
		d.marked = true
		d.changed = append(d.changed, d)
	}
}

// run looks at every device that something happened to until all is decided.
func (c *core) run() {
	for i := 0; i < len(c.changed); i++ {
		d := c.changed[i]
		d.marked = false
		d.step()
	}
	c.changed = c.changed[:0]
}

// decide adds a decision about a seat.
func (x *seat) decide(kind Kind) {
	x.decisions = append(x.decisions, Decision{Kind: kind, ID: x.entity.id, Device: x.dev.id})
}

// tell adds a decision that has the terms of a seat's grant.
func (x *seat) tell(kind Kind, until int64) {
	x.sentUntil, x.sentWanted, x.sentEnds, x.sentBeside = until, x.wanted(), x.job.ends, beside(x)
	x.decisions = append(x.decisions, Decision{
		Kind: kind, ID: x.entity.id, Device: x.dev.id, Until: until, Wanted: x.sentWanted, Beside: x.sentBeside,
	})
}

// forget drops the decisions about a seat that have not been fetched yet.
func (c *core) forget(x *seat) {
	c.decisions = slices.DeleteFunc(c.decisions, func(o Decision) bool {
		return o.ID == x.entity.id && o.Device == x.dev.id
	})
}

// fetch returns the decisions made since the last call.
func (c *core) fetch() []Decision {
	made := c.decisions
	c.decisions, c.spare = c.spare[:0], made
	return made
}
