package schedule

import (
	"cmp"
	"fmt"
	"slices"
)

// entity is an lgpu or a group.
type entity struct {
	id       ID
	parent   *entity // nil: top
	p        Params
	children int
	accounts []*account // by device; kept while the entity exists, so that a seat that comes back keeps its debt
	devices  []Device   // of accounts
	seats    []*seat    // by device
}

// seat returns the entity's seat on a device, or nil.
func (e *entity) seat(dev Device) *seat {
	for _, x := range e.seats {
		if x.dev.id == dev {
			return x
		}
	}
	return nil
}

// within reports whether e is m or below it.
func (e *entity) within(m *entity) bool {
	for ; e != nil; e = e.parent {
		if e == m {
			return true
		}
	}
	return false
}

// mayUse reports whether the lgpu's parameters allow it the device.
func (e *entity) mayUse(dev Device) bool {
	return e.p.Devices == nil || slices.Contains(e.p.Devices, dev)
}

// tree is the groups and lgpus by ID, and the devices. On each device the accounts form a tree like that of the
// entities.
type tree struct {
	*core
	options  Options // of devices that have none of their own
	entities map[ID]*entity
	devices  []*device // by Device; nil: not seen yet
}

func newTree(o Options) *tree {
	return &tree{core: &core{}, options: o, entities: map[ID]*entity{}}
}

// device returns a device, which it adds when it is new.
func (t *tree) device(dev Device) (*device, error) {
	if dev < 0 || dev >= MaxDevices {
		return nil, fmt.Errorf("device %d: %w: 0..%d", dev, ErrDevice, MaxDevices-1)
	}
	for int(dev) >= len(t.devices) {
		t.devices = append(t.devices, nil)
	}
	if t.devices[dev] == nil {
		t.devices[dev] = &device{core: t.core, id: dev, options: t.options, top: &account{}, tick: forever + latest}
	}
	return t.devices[dev], nil
}

// seat returns the seat of an lgpu on a device, or nil.
func (t *tree) seat(id ID, dev Device) *seat {
	if e := t.entities[id]; e != nil {
		return e.seat(dev)
	}
	return nil
}

// settle charges the seats of the lgpus that are e or below it, before the rules by which they are charged change.
func (t *tree) settle(e *entity) {
	for _, d := range t.devices {
		if d == nil {
			continue
		}
		for _, x := range d.seats {
			if x.entity.within(e) {
				x.settle()
			}
		}
	}
}

// ids returns all IDs in ascending order.
func (t *tree) ids() []ID {
	ids := make([]ID, 0, len(t.entities))
	for id := range t.entities {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// check returns the parent that p asks for, or why the entity cannot be as p says.
func (t *tree) check(id ID, p Params) (*entity, error) {
	if id == 0 {
		return nil, fmt.Errorf("set entity 0: %w: 0 is the top", ErrEntity)
	}
	if p.Weight > MaxWeight {
		return nil, fmt.Errorf("weight %d of entity %d: %w 1..%d", p.Weight, id, ErrRange, MaxWeight)
	}
	for _, limits := range []map[Device]uint32{p.Max, p.Min} {
		for dev, v := range limits {
			if v > Whole {
				return nil, fmt.Errorf("limit %d of entity %d on device %d: %w 0..%d", v, id, dev, ErrRange, Whole)
			}
		}
	}
	for dev, v := range p.Max {
		if v == 0 {
			return nil, fmt.Errorf("cap 0 of entity %d on device %d: %w 1..%d", id, dev, ErrRange, Whole)
		}
	}
	if p.Parent == 0 {
		return nil, nil
	}
	parent := t.entities[p.Parent]
	switch e := t.entities[id]; {
	case parent == nil:
		return nil, fmt.Errorf("parent %d of entity %d: %w: it does not exist", p.Parent, id, ErrEntity)
	case len(parent.seats) > 0:
		return nil, fmt.Errorf("parent %d of entity %d: %w: it is an lgpu in use", p.Parent, id, ErrEntity)
	case e != nil && parent.within(e):
		return nil, fmt.Errorf("parent %d of entity %d: %w: it is the entity itself or below it", p.Parent, id, ErrEntity)
	}
	return parent, nil
}

// place puts an entity, which it creates when it is new, below a parent (nil: the top). The caller calls relink when
// the parent of an existing entity has changed.
func (t *tree) place(id ID, parent *entity) *entity {
	e := t.entities[id]
	if e == nil {
		e = &entity{id: id}
		t.entities[id] = e
	} else if e.parent != nil {
		e.parent.children--
	}
	if parent != nil {
		parent.children++
	}
	e.parent = parent
	return e
}

// remove deletes an entity without seats. Its children become its parent's.
func (t *tree) remove(e *entity) {
	delete(t.entities, e.id)
	if e.parent != nil {
		e.parent.children--
	}
	if e.children == 0 {
		return
	}
	for _, id := range t.ids() {
		if child := t.entities[id]; child.parent == e {
			child.parent = e.parent
			child.p.Parent = e.p.Parent
			if e.parent != nil {
				e.parent.children++
			}
		}
	}
	t.relink()
}

// relink makes the trees of accounts like that of the entities again after an entity has moved. That is rare, so all
// accounts are looked at.
func (t *tree) relink() {
	var competing []*seat
	for _, d := range t.devices {
		if d == nil {
			continue
		}
		for _, x := range d.seats {
			if x.levels > 0 {
				x.compete(0)
				competing = append(competing, x)
			}
		}
		d.mark()
	}
	for _, id := range t.ids() {
		e := t.entities[id]
		for _, dev := range e.devices {
			t.devices[dev].relink(e)
		}
	}
	for _, x := range competing {
		x.compete(x.depth)
	}
}

// relink puts an entity's account on the device below its parent's, parents first: an account that is created on the
// way needs the right parent. It returns the account.
func (d *device) relink(e *entity) *account {
	if e == nil {
		return d.top
	}
	parent := d.relink(e.parent)
	a := d.account(e)
	if a.parent != parent {
		a.vt, a.parent, a.melted = parent.floor, parent, parent.melt
	}
	a.depth = parent.depth + 1
	return a
}

// account returns an entity's account on the device, which it creates when there is none; for nil, the device's top.
func (d *device) account(e *entity) *account {
	if e == nil {
		return d.top
	}
	i, exists := slices.BinarySearch(e.devices, d.id)
	if exists {
		return e.accounts[i]
	}
	parent := d.account(e.parent)
	a := &account{entity: e, parent: parent, depth: parent.depth + 1, vt: parent.floor, melted: parent.melt}
	a.limit(d.now, d.id)
	if a.cap > 0 {
		a.paid = d.now - wall(d.options.Burst, a.cap)
	}
	e.accounts = slices.Insert(e.accounts, i, a)
	e.devices = slices.Insert(e.devices, i, d.id)
	return a
}

// limit applies the entity's parameters to its account on a device.
func (a *account) limit(now int64, dev Device) {
	a.weight = int64(cmp.Or(a.entity.p.Weight, DefaultWeight))
	limit, floor := int64(a.entity.p.Max[dev]), int64(a.entity.p.Min[dev])
	if limit == int64(Whole) {
		limit = 0
	}
	switch {
	case limit == a.cap || limit == 0:
	case a.cap == 0:
		a.paid = now // a maximum that is new holds from now on
	default:
		// Credit and debt are amounts of device time. They stay the same when the rate changes.
		if credit := a.credit(now); credit >= 0 {
			a.paid = now - wall(credit, limit)
		} else {
			a.paid = now + wall(-credit, limit)
		}
	}
	if a.min == 0 {
		a.owed = now
	} else if floor != 0 && a.owed > now {
		a.owed = now + mulDiv(a.owed-now, a.min, floor)
	}
	a.cap, a.min = limit, floor
}
