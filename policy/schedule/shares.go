package schedule

import "math"

// State is what a seat is doing.
type State uint8

const (
	// Idle has no grant and no work.
	Idle State = iota
	// Waiting has work and waits for others.
	Waiting
	// Throttled has work and waits for credit: its maximum, or that of a group above, is used up.
	Throttled
	// Running has a grant.
	Running
	// Draining has been asked to close and has not closed yet.
	Draining
	// Overrun uses the device beside others: it drains beyond the bound, or a launch was let through.
	Overrun
)

// Share is what a seat is entitled to and gets, in hundredths of a percent of the device's time.
type Share struct {
	ID        ID
	Device    Device
	State     State
	Free      bool   // Running without accounts: Delivered is what was charged before
	Asked     uint32 // what it gets when every lgpu with a seat on the device has work
	Delivered uint32 // what it was charged over the last second
}

// Shares appends the share of every seat to dst, by device, then ID. What gangs lose by waiting for each other is not
// in Asked.
func (s *Scheduler) Shares(now int64, dst []Share) []Share {
	s.setTime(now)
	s.tree.run()
	for _, d := range s.tree.devices {
		if d == nil || len(d.seats) == 0 {
			continue
		}
		asked := d.entitled()
		for _, x := range d.seats {
			x.settle()
			dst = append(dst, Share{
				ID:        x.entity.id,
				Device:    d.id,
				State:     x.state(),
				Free:      d.free == x,
				Asked:     uint32(math.Round(asked[x.account])),
				Delivered: x.meter.share(s.tree.now),
			})
		}
	}
	return dst
}

// Spent is the device time that a seat was charged since it was attached, in ns; 0 where there is no such seat. While it
// has the device without accounts nothing is charged.
func (s *Scheduler) Spent(now int64, id ID, dev Device) int64 {
	s.setTime(now)
	x := s.tree.seat(id, dev)
	if x == nil {
		return 0
	}
	x.settle()
	return x.spent
}

func (x *seat) state() State {
	switch {
	case x.late:
		return Overrun
	case x.open && (x.granted && x.job.phase == closing || x.guest && x.closeSent):
		return Draining
	case x.open:
		return Running
	case !x.wants:
		return Idle
	case x.due(x.dev.options.Quantum) > x.now && !x.granted:
		return Throttled
	default:
		return Waiting
	}
}

// portion is a part of the tree by which a device is divided.
type portion struct {
	account   *account
	seat      *seat // nil: a group's
	low, high float64
	gets      float64
	children  []*portion
}

// entitled divides a device among its seats.
func (d *device) entitled() map[*account]float64 {
	top := &portion{account: d.top}
	portions := map[*account]*portion{d.top: top}
	var of func(a *account) *portion
	of = func(a *account) *portion {
		p := portions[a]
		if p == nil {
			p = &portion{account: a}
			portions[a] = p
			up := of(a.parent)
			up.children = append(up.children, p)
		}
		return p
	}
	high := false
	for _, x := range d.seats {
		of(x.account).seat = x
		high = high || x.entity.p.Class == High
	}
	get := map[*account]float64{}
	if high {
		// First as if Normal had no more than its minimums; then it gets what High leaves.
		top.bound(func(x *seat, low, high float64) (float64, float64) {
			if x.entity.p.Class == Normal {
				return low, low
			}
			return low, high
		})
		top.divide(float64(Whole), get)
	}
	top.bound(func(x *seat, low, high float64) (float64, float64) {
		if x.entity.p.Class == High {
			return get[x.account], get[x.account]
		}
		return low, high
	})
	top.divide(float64(Whole), get)
	return get
}

// bound finds the least and the most that each portion can get. leaf may narrow those of a seat.
func (p *portion) bound(leaf func(x *seat, low, high float64) (float64, float64)) {
	a := p.account
	p.low, p.high = float64(a.min), float64(Whole)
	if a.cap > 0 {
		p.high = float64(a.cap)
	}
	if p.seat != nil {
		p.low, p.high = leaf(p.seat, min(p.low, p.high), p.high)
		return
	}
	var low, high float64
	for _, q := range p.children {
		q.bound(leaf)
		low, high = low+q.low, high+q.high
	}
	p.high = min(p.high, high)
	p.low = min(max(p.low, low), p.high)
}

// divide gives amount to the portions below: to each in proportion to its weight, but within its bounds. The level at
// which that uses up amount is found by halving.
func (p *portion) divide(amount float64, get map[*account]float64) {
	p.gets = min(amount, p.high)
	if p.seat != nil {
		get[p.account] = p.gets
		return
	}
	at := func(level float64, q *portion) float64 {
		return max(q.low, min(level*float64(q.account.weight), q.high))
	}
	var low, high float64
	for low, high = 0, float64(Whole); high-low > 1e-6; {
		level := (low + high) / 2
		sum := 0.0
		for _, q := range p.children {
			sum += at(level, q)
		}
		if sum > p.gets {
			high = level
		} else {
			low = level
		}
	}
	// Minimums may ask for more than there is.
	var sum float64
	for _, q := range p.children {
		sum += at(low, q)
	}
	scale := min(1, p.gets/max(sum, 1e-9))
	for _, q := range p.children {
		q.divide(at(low, q)*scale, get)
	}
}
