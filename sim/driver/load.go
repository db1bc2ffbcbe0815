package driver

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lgpu/lgpu/sim/hw"
	"github.com/lgpu/lgpu/sim/ptx"
	"github.com/lgpu/lgpu/sim/wire"
)

// hostFile is a program's memory file, and where in it the pages begin that devices may reach.
type hostFile struct {
	pages  *hw.HostPages
	loaded bool // an allocation has it
}

// loadError is why an image cannot be read. It goes up as a panic through the functions of loader, and no further.
type loadError struct {
	res Result
	err error
}

// loader turns an image into the objects of a process that has none. Whoever wrote the image may have meant harm.
type loader struct {
	p   *Process
	img *image
	to  []*device // by device of the image
	now []hw.Time // by device here
	ids uint64    // the highest

	physicals  []*physical
	taken      []bool // by physical: something refers to it
	codes      []*code
	contexts   []*context
	gone       []*context // by device here: what stands for contexts that are not there any more
	streams    []*stream
	pools      []*pool
	libraries  []*library
	modules    []*module
	functions  []*function
	points     []*point
	arrays     []*array
	users      []*userObject
	graphs     []*graph
	allocNodes []*allocNode
	freeNodes  []*freeNode
	captures   []*capture
	owned      map[*allocation]bool // by a module or an array
}

// load makes the objects of an image on devices of this machine, to, in the order of the image's. On failure the
// process is as it was. Called with Driver.mu locked.
func (p *Process) load(img *image, codes []*code, to []*device) (physicals []*physical, res Result, err error) {
	if p.initialised || p.handles.next != 0 || len(p.allocs.list) > 0 || len(p.reserved.list) > 0 || p.closed {
		return nil, errIllegalState, fmt.Errorf("the process has something already")
	}
	l := &loader{p: p, img: img, to: to, codes: codes, owned: map[*allocation]bool{}}
	defer func() {
		if f := recover(); f != nil {
			failed, ok := f.(loadError)
			if !ok {
				panic(f)
			}
			l.undo()
			physicals, res, err = nil, failed.res, failed.err
		}
	}()
	l.all()
	p.dropPages()
	p.initialised = true
	p.d.ids = max(p.d.ids, l.ids)
	return l.physicals, success, nil
}

// all makes everything. Objects are there before what speaks of them is filled in.
func (l *loader) all() {
	for _, dev := range l.p.d.devices {
		l.now = append(l.now, dev.hw.Clock.Now())
		l.gone = append(l.gone, &context{p: l.p, dev: dev, fault: errContextIsDestroyed})
	}
	l.process()
	l.takePhysicals()
	l.makeContexts()
	l.makeStreams()
	l.makePools()
	l.fillContexts()
	l.makeAllocations()
	l.makeModules()
	l.makeEvents()
	l.makeArrays()
	l.makeGraphs()
	l.fillStreams()
	l.makeRest()
	for i := range l.taken {
		l.check(l.taken[i], "nothing has physical memory %d", i)
	}
}

// undo makes the process one that has done nothing yet, whatever there is of it.
func (l *loader) undo() {
	for _, c := range l.p.contexts {
		c.channel.Kill()
	}
	for addr, f := range l.p.pages {
		f.loaded = false
		l.p.pages[addr] = f
	}
	for _, r := range l.p.regions.all() {
		l.p.unmap(r)
	}
	for _, ph := range l.physicals {
		ph.refs, ph.prop = 1, properties{}
		ph.release()
	}
	l.p.clear()
}

func (l *loader) fail(res Result, format string, args ...any) {
	panic(loadError{res, fmt.Errorf(format, args...)})
}

// check fails for an image in which something does not hold.
func (l *loader) check(holds bool, format string, args ...any) {
	if !holds {
		l.fail(errInvalidImage, "%w: "+format, append([]any{errImage}, args...)...)
	}
}

// at is what is at a place of a table, which must be one.
func at[T any](l *loader, what string, list []*T, r ref) *T {
	l.check(r > 0 && int(r) <= len(list), "there is no %s %d", what, r)
	return list[r-1]
}

// maybe is at, and nil for no place.
func maybe[T any](l *loader, what string, list []*T, r ref) *T {
	if r == 0 {
		return nil
	}
	return at(l, what, list, r)
}

// context finds one that is not gone.
func (l *loader) context(r ref) *context {
	c := at(l, "context", l.contexts, r)
	l.check(c.space != nil, "context %d is gone", r)
	return c
}

// device finds the device in whose place another was of the image.
func (l *loader) device(i int) *device {
	l.check(i >= 0 && i < len(l.to), "there is no device %d", i)
	return l.to[i]
}

// id takes over a number that is unique in a machine.
func (l *loader) id(id uint64) uint64 {
	l.check(id > 0 && id < 1<<48, "number %#x", id)
	l.ids = max(l.ids, id)
	return id
}

// name gives an object the handle that it had.
func (l *loader) name(k kind, h uint64, o any) uint64 {
	_, taken := l.p.handles.objects[h]
	l.check(!taken && h&^(1<<48-1) == handleBase|uint64(k)<<48, "handle %#x of kind %d", h, k)
	l.p.handles.objects[h] = o
	return h
}

// perDevice puts a table by device of the image into the order of this machine's.
func perDevice[T, U any](l *loader, from []T, to []U, convert func(*device, T) U) {
	l.check(len(from) == len(l.to), "%d entries for %d devices", len(from), len(l.to))
	for i, v := range from {
		to[l.to[i].index] = convert(l.to[i], v)
	}
}

func same[T any](_ *device, v T) T { return v }

func (l *loader) process() {
	p, img := l.p, l.img
	visible := []*device{}
	for _, i := range img.Visible {
		dev := l.device(i)
		l.check(!slices.Contains(visible, dev), "device %d is visible twice", i)
		visible = append(visible, dev)
	}
	p.visible.Store(&visible)
	p.eager = img.Eager
	perDevice(l, img.Faults, p.faults, same[Result])
	perDevice(l, img.Flags, p.flags, same[uint32])
	perDevice(l, img.GraphHigh, p.graphHigh, same[uint64])
	p.parts = make([]part, len(p.d.devices))
	perDevice(l, img.Parts, p.parts, l.part)
	p.handles.next = img.NextHandle
	p.addresses = addresses{free: l.holes(img.Free, addressFirst, addressLast), next: img.NextAddress}
	l.check(img.NextAddress >= addressFirst && img.NextAddress <= addressLast, "next address %#x", img.NextAddress)
	for _, r := range img.Reserved {
		l.frames(r.Base, r.Size)
		l.check(p.reserved.add(r.Base, r.Size, r.Size), "%#x is reserved twice", r.Base)
	}
	maps.Copy(p.modes, img.Modes)
}

func (l *loader) part(dev *device, from partImage) part {
	units := dev.hw.Config.Units
	l.check(from.Count >= 0 && from.Count <= units, "%d units of %d", from.Count, units)
	if !from.Named {
		return part{count: from.Count} // which ones is chosen anew
	}
	for i, u := range from.Units {
		l.check(u >= 0 && u < units && (i == 0 || u > from.Units[i-1]), "unit %d of %d", u, units)
	}
	return part{named: true, units: from.Units}
}

// frames checks that a range is one of device addresses, in whole frames.
func (l *loader) frames(base, size uint64) {
	l.check(base >= addressFirst && size > 0 && size <= addressLast-addressFirst && base+size <= addressLast &&
		base%hw.FrameSize == 0 && size%hw.FrameSize == 0, "%#x bytes at %#x", size, base)
}

// holes are free ranges of [first, last), in order.
func (l *loader) holes(from []rangeImage, first, last uint64) (free holes) {
	for _, r := range from {
		l.check(r.Base >= first && r.Size > 0 && r.Size <= last-first && r.Base+r.Size <= last, "free range %#x of %#x bytes", r.Base, r.Size)
		free = append(free, hole{r.Base, r.Size})
		first = r.Base + r.Size
	}
	return free
}

func (l *loader) takePhysicals() {
	for i, r := range l.img.Physicals {
		l.check(r.Size > 0 && r.Size%hw.FrameSize == 0, "physical memory %d of %d bytes", i, r.Size)
		ph, res := l.p.newPhysical(l.device(r.Dev), r.Size)
		if res != success {
			l.fail(res, "device %d has no room for memory of %d bytes", l.device(r.Dev).index, r.Size)
		}
		ph.prop = properties{r.HandleTypes, r.Compression, r.RDMA, r.Usage}
		l.physicals = append(l.physicals, ph)
	}
	l.taken = make([]bool, len(l.physicals))
}

// physical finds physical memory for something that refers to it.
func (l *loader) physical(r ref) *physical {
	ph := at(l, "physical memory", l.physicals, r)
	if l.taken[r-1] {
		ph.refs++
	}
	l.taken[r-1] = true
	return ph
}

func (l *loader) makeContexts() {
	p := l.p
	for _, r := range l.img.Contexts {
		dev := l.device(r.Dev)
		if r.Gone {
			l.contexts = append(l.contexts, &context{handle: r.Handle, id: r.ID, p: p, dev: dev, fault: errContextIsDestroyed})
			continue
		}
		c := &context{id: l.id(r.ID), p: p, dev: dev, primary: r.Primary, refs: r.Refs, flags: r.Flags, fault: r.Fault,
			space: hw.NewSpace(), peers: map[*context]bool{}, threads: map[uint64]*stream{}, live: map[*work]struct{}{},
			prints: r.Prints, limits: r.Limits, cacheConfig: r.CacheConfig}
		c.channel = p.channel(dev)
		p.contexts = append(p.contexts, c)
		l.contexts = append(l.contexts, c)
		l.check(r.Refs >= 0 && r.Slice >= 0 && r.Slice <= int64(maxTimeslice*time.Microsecond), "context %#x", r.Handle)
		c.channel.SetSlice(time.Duration(r.Slice))
		c.units = len(c.channel.Units())
		c.cost = l.physical(r.Cost)
		l.check(c.cost.dev == dev, "context %#x has memory of another device", r.Handle)
		if r.Stacks != 0 {
			c.stacks = l.physical(r.Stacks)
		}
		c.arena = &arena{p: p, dev: dev, ctx: c}
		c.output = &output{p: p, limit: r.Output}
		c.handle = l.name(kindContext, r.Handle, c)
		if r.Primary {
			l.check(p.primaries[dev.index] == nil, "device %d has two primary contexts", dev.index)
			p.primaries[dev.index] = c
		}
	}
}

func (l *loader) makeStreams() {
	for _, r := range l.img.Streams {
		c := at(l, "context", l.contexts, r.Context)
		s := &stream{id: l.id(r.ID), ctx: c, flags: r.Flags, priority: clampPriority(r.Priority), attrs: r.Attrs}
		if r.Handle != 0 {
			l.context(r.Context)
			s.handle = l.name(kindStream, r.Handle, s)
		}
		l.streams = append(l.streams, s)
	}
}

func (l *loader) makePools() {
	p := l.p
	for _, r := range l.img.Pools {
		pl := &pool{p: p, dev: l.device(r.Dev), threshold: r.Threshold, reuse: r.Reuse, usedHigh: r.UsedHigh, resvHigh: r.ResvHigh,
			shareable: r.Shareable, builtin: r.Builtin, destroyed: r.Destroyed}
		pl.arena = &arena{p: p, dev: pl.dev, access: l.access(r.Access), keep: true, limit: r.Limit}
		p.pools = append(p.pools, pl)
		l.pools = append(l.pools, pl)
		if r.Handle != 0 {
			pl.handle = l.name(kindPool, r.Handle, pl)
		}
		l.fillArena(pl.arena, r.Arena)
	}
	of := func(dev *device, r ref) *pool {
		pl := maybe(l, "pool", l.pools, r)
		l.check(pl == nil || pl.dev == dev, "pool %d is of another device", r)
		return pl
	}
	perDevice(l, l.img.Defaults, p.defaults, of)
	perDevice(l, l.img.Current, p.current, of)
}

// access is what devices may do with memory.
func (l *loader) access(from []access) []access {
	to := make([]access, len(l.p.d.devices))
	perDevice(l, from, to, func(_ *device, a access) access {
		l.check(a == accessNone || a == accessRead || a == accessWrite, "access %d", a)
		return a
	})
	return to
}

// fillArena gives an arena its chunks, mapped where they were.
func (l *loader) fillArena(a *arena, from arenaImage) {
	for _, r := range from.Chunks {
		ph := l.physical(r.Physical)
		size := ph.frames.Size()
		l.frames(r.Base, size)
		l.check(ph.dev == a.dev, "memory at %#x is of another device", r.Base)
		ch := &chunk{region: &region{base: r.Base, size: size, store: ph.frames, ctx: a.ctx, access: a.access}, phys: ph,
			free: l.holes(r.Free, r.Base, r.Base+size), used: size}
		for _, h := range ch.free {
			ch.used -= h.size
		}
		l.expose(ch.region)
		a.chunks = append(a.chunks, ch)
		a.reserved += size
	}
}

func (l *loader) expose(r *region) {
	l.check(l.p.expose(r) == success, "%#x bytes at %#x are mapped twice", r.size, r.base)
}

// fillContexts gives contexts their memory, their streams and their peers.
func (l *loader) fillContexts() {
	for i, r := range l.img.Contexts {
		c := l.contexts[i]
		if r.Gone {
			continue
		}
		l.fillArena(c.arena, r.Arena)
		for _, s := range r.Streams {
			c.streams = append(c.streams, l.streamOf(c, s))
		}
		c.legacy = l.streamOf(c, r.Legacy)
		l.check(slices.Contains(c.streams, c.legacy), "context %#x has no legacy stream", c.handle)
		for thread, s := range r.Threads {
			c.threads[thread] = l.streamOf(c, s)
		}
		for _, o := range r.Peers {
			c.peers[l.context(o)] = true
		}
	}
	for _, c := range l.p.contexts {
		if len(c.peers) == 0 {
			continue
		}
		for _, r := range l.p.regions.all() {
			l.p.show(r, c) // what its peers have
		}
	}
}

func (l *loader) streamOf(c *context, r ref) *stream {
	s := at(l, "stream", l.streams, r)
	l.check(s.ctx == c, "stream %d is another context's", r)
	return s
}

// fillStreams puts streams into their captures.
func (l *loader) fillStreams() {
	for _, r := range l.img.Captures {
		cp := &capture{id: l.id(r.ID), p: l.p, mode: r.Mode, thread: r.Thread, invalid: r.Invalid, over: r.Over, own: r.Own}
		l.captures = append(l.captures, cp)
		if r.Over {
			continue
		}
		cp.graph, cp.origin = at(l, "graph", l.graphs, r.Graph), at(l, "stream", l.streams, r.Origin)
		for _, s := range r.Streams {
			st := at(l, "stream", l.streams, s)
			l.check(st.capture == nil, "stream %d is captured twice", s)
			st.capture = cp
			cp.streams = append(cp.streams, st)
		}
		l.p.captures = append(l.p.captures, cp)
	}
	for i, r := range l.img.Streams {
		s := l.streams[i]
		l.check(s.capture == maybe(l, "capture", l.captures, r.Capture), "stream %d is in no capture %d", i, r.Capture)
		if s.capture != nil {
			s.deps = l.nodes(r.Deps)
		}
	}
}

func (l *loader) makeModules() {
	for _, r := range l.img.Libraries {
		lib := &library{code: at(l, "code", l.codes, r.Code), modules: map[*context]*module{}, kernels: map[string]*kernel{}}
		lib.parsed = lib.code.parsed
		lib.handle = l.name(kindLibrary, r.Handle, lib)
		l.check(len(r.Kernels) == len(lib.parsed.Kernels), "library %#x has %d kernels", r.Handle, len(r.Kernels))
		for name, from := range r.Kernels {
			k := lib.parsed.Kernels[name]
			l.check(k != nil && from.MaxDynamic >= -1 && from.MaxDynamic <= sharedOptIn, "kernel %q", name)
			lk := &kernel{library: lib, kernel: k, maxDynamic: from.MaxDynamic}
			lk.handle = l.name(kindKernel, from.Handle, lk)
			lib.kernels[name] = lk
		}
		l.libraries = append(l.libraries, lib)
		l.p.libraries = append(l.p.libraries, lib)
	}
	for _, r := range l.img.Modules {
		l.modules = append(l.modules, l.module(r))
	}
	for _, r := range l.img.Functions {
		m := at(l, "module", l.modules, r.Module)
		k := m.parsed.Kernels[r.Name]
		l.check(k != nil && m.functions[r.Name] == nil && r.MaxDynamic >= 0 && r.MaxDynamic <= sharedOptIn, "function %q", r.Name)
		f := &function{module: m, kernel: k, maxDynamic: r.MaxDynamic, carveout: r.Carveout}
		if r.Handle != 0 {
			f.handle = l.name(kindFunction, r.Handle, f)
		}
		m.functions[r.Name] = f
		l.functions = append(l.functions, f)
	}
	l.orderModules()
}

// module links code to where its variables are.
func (l *loader) module(r moduleImage) *module {
	c := at(l, "context", l.contexts, r.Context)
	m := &module{ctx: c, code: at(l, "code", l.codes, r.Code), globals: map[string]variable{}, functions: map[string]*function{}}
	m.parsed = m.code.parsed
	addrs := map[string]uint64{}
	for _, g := range m.parsed.Globals {
		if g.Extern {
			continue
		}
		v, ok := r.Globals[g.Name]
		l.check(ok, "module %#x has no variable %q", r.Handle, g.Name)
		m.globals[g.Name], addrs[g.Name] = variable{v.Base, uint64(g.Size)}, v.Base
	}
	err := m.parsed.Unresolved()
	if err == nil {
		m.image, err = m.parsed.Link(addrs)
	}
	if err != nil {
		l.check(false, "module %#x: %v", r.Handle, err)
	}
	if r.Handle == 0 {
		return m
	}
	m.handle = l.name(kindModule, r.Handle, m)
	m.memory = l.allocation(r.Memory, memModule, l.context(r.Context))
	if m.library = maybe(l, "library", l.libraries, r.Library); m.library != nil {
		l.check(m.library.modules[c] == nil, "library %d is loaded twice", r.Library)
		m.library.modules[c] = m
	}
	return m
}

// orderModules gives contexts their modules, in the order in which they were loaded.
func (l *loader) orderModules() {
	listed := map[*module]bool{}
	for i, r := range l.img.Contexts {
		for _, place := range r.Modules {
			m := at(l, "module", l.modules, place)
			l.check(m.ctx == l.contexts[i] && m.handle != 0 && !listed[m], "module %d", place)
			listed[m] = true
			m.ctx.modules = append(m.ctx.modules, m)
		}
	}
	for i, m := range l.modules {
		l.check(m.handle == 0 || listed[m], "module %d is in no context", i+1)
	}
}

func (l *loader) makeEvents() {
	for _, r := range l.img.Points {
		pt := &point{recorded: r.Recorded}
		if r.Worked {
			dev := l.device(r.Dev)
			l.check(r.Age >= 0, "a point in the future")
			pt.work = &work{ctx: l.gone[dev.index], done: true, at: l.now[dev.index] - hw.Time(r.Age)}
		}
		l.check(r.Worked || !r.Recorded, "a point that nothing has recorded")
		l.points = append(l.points, pt)
	}
	for _, r := range l.img.Events {
		e := &event{ctx: l.context(r.Context), flags: r.Flags, point: at(l, "point", l.points, r.Point)}
		e.handle = l.name(kindEvent, r.Handle, e)
	}
}

func (l *loader) makeArrays() {
	for _, r := range l.img.Arrays {
		a := &array{ctx: l.context(r.Context), desc: r.Desc, base: r.Base}
		a.pitch, a.rows, a.slices = layout(&a.desc)
		l.check(a.pitch != 0, "array %#x is none", r.Handle)
		if r.Allocation != 0 {
			a.alloc = l.allocation(r.Allocation, memArray, a.ctx)
			l.inside(a, a.alloc)
		}
		a.handle = l.name(kindArray, r.Handle, a)
		l.arrays = append(l.arrays, a)
	}
	for _, r := range l.img.Mipmaps {
		m := &mipmap{ctx: l.context(r.Context), desc: r.Desc}
		m.alloc = l.allocation(r.Allocation, memArray, m.ctx)
		for _, level := range r.Levels {
			a := at(l, "array", l.arrays, level)
			l.check(a.alloc == nil && a.mip == nil && a.ctx == m.ctx, "array %d is no level", level)
			l.inside(a, m.alloc)
			a.mip = m
			m.levels = append(m.levels, a)
		}
		l.check(len(m.levels) > 0, "a mipmapped array without levels")
		m.handle = l.name(kindMipmap, r.Handle, m)
	}
	for i, a := range l.arrays {
		l.check(a.alloc != nil || a.mip != nil, "array %d has no memory", i+1)
	}
}

// inside checks that an array lies in its memory.
func (l *loader) inside(a *array, in *allocation) {
	size := layoutBytes(a.pitch, a.rows, a.slices)
	l.check(a.base >= in.base && size <= in.size && a.base-in.base <= in.size-size, "an array lies outside of its memory")
}

// makeRest makes what nothing else speaks of.
func (l *loader) makeRest() {
	for _, r := range l.img.Events {
		e := lookup[event](&l.p.handles, r.Handle)
		e.capture = maybe(l, "capture", l.captures, r.Capture)
		if e.capture != nil && !e.capture.over {
			e.deps = l.nodes(r.Deps)
		}
	}
	for _, r := range l.img.Execs {
		x := &exec{p: l.p, graph: at(l, "graph", l.graphs, r.Graph), flags: r.Flags}
		x.handle = l.name(kindExec, r.Handle, x)
	}
	for _, r := range l.img.Named {
		l.check(r.Count > 0, "handle %#x of memory was given out %d times", r.Handle, r.Count)
		n := &physicalHandle{ph: l.physical(r.Physical), count: r.Count}
		l.check(l.p.handlesOf[n.ph] == 0, "memory %d has two handles", r.Physical)
		l.p.handlesOf[n.ph] = l.name(kindPhysical, r.Handle, n)
	}
	for _, r := range l.img.Linkers {
		k := &linker{options: ptx.Options{MaxRegs: r.MaxRegs}, image: r.Image}
		for _, u := range r.Units {
			k.bytes += len(u.Source)
			k.units = append(k.units, ptx.Unit{Name: u.Name, Source: u.Source})
		}
		l.check(k.bytes <= ptx.MaxSource && len(k.units) <= maxInputs, "linker %#x has too many inputs", r.Handle)
		l.name(kindLinker, r.Handle, k)
	}
}

// mapDevices finds the device for each of an image: those of the same UUIDs without pairs, and else as pairs say, which
// must name every device of the image once, and none here twice.
func (d *Driver) mapDevices(from []deviceImage, pairs []wire.CUcheckpointGpuPair) ([]*device, Result, error) {
	to := make([]*device, len(from))
	names := make(map[wire.CUuuid]wire.CUuuid, len(from))
	for _, pr := range pairs {
		if _, twice := names[pr.OldUuid]; twice {
			return nil, errInvalidValue, fmt.Errorf("the device map names %x twice", pr.OldUuid)
		}
		names[pr.OldUuid] = pr.NewUuid
	}
	if len(pairs) > 0 && len(pairs) != len(from) {
		return nil, errInvalidValue, fmt.Errorf("the device map has %d pairs for %d devices", len(pairs), len(from))
	}
	for i, f := range from {
		uuid, ok := f.UUID, true
		if len(pairs) > 0 {
			uuid, ok = names[f.UUID]
		}
		at := slices.IndexFunc(d.devices, func(o *device) bool { return o.uuid == uuid })
		if !ok || at < 0 {
			return nil, errInvalidValue, fmt.Errorf("there is no device for %x", f.UUID)
		}
		if slices.Contains(to, d.devices[at]) {
			return nil, errInvalidValue, fmt.Errorf("device %x is to take the place of two", uuid)
		}
		chip := d.devices[at].image()
		if chip.UUID = f.UUID; chip != f {
			return nil, errNotSupported, fmt.Errorf("device %x is another chip: %+v, not %+v", uuid, chip, f)
		}
		to[i] = d.devices[at]
	}
	return to, success, nil
}
