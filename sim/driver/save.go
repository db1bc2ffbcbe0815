package driver

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lgpu/lgpu/sim/hw"
	"github.com/lgpu/lgpu/sim/wire"
)

// roster is a table of an image in the making: objects get their places when they are first spoken of.
type roster[T, R any] struct {
	places  map[*T]ref
	objects []*T
	records []R
}

// ref is the place of o; none for nil.
func (r *roster[T, R]) ref(o *T) ref {
	if o == nil {
		return 0
	}
	if at, ok := r.places[o]; ok {
		return at
	}
	if r.places == nil {
		r.places = map[*T]ref{}
	}
	r.objects = append(r.objects, o)
	at := ref(len(r.objects))
	r.places[o] = at
	return at
}

// write makes the records of objects that have none yet, and reports whether there were any.
func (r *roster[T, R]) write(record func(*T) R) bool {
	wrote := false
	for len(r.records) < len(r.objects) {
		r.records = append(r.records, record(r.objects[len(r.records)]))
		wrote = true
	}
	return wrote
}

// saver turns a process that has no work into an image.
type saver struct {
	p   *Process
	img image
	now []hw.Time // by device

	nodePlaces map[*graph]map[*node]int

	physicals  roster[physical, physicalImage]
	codes      roster[code, codeImage]
	contexts   roster[context, contextImage]
	streams    roster[stream, streamImage]
	pools      roster[pool, poolImage]
	libraries  roster[library, libraryImage]
	modules    roster[module, moduleImage]
	functions  roster[function, functionImage]
	points     roster[point, pointImage]
	arrays     roster[array, arrayImage]
	users      roster[userObject, userImage]
	graphs     roster[graph, graphImage]
	allocNodes roster[allocNode, allocNodeImage]
	freeNodes  roster[freeNode, freeNodeImage]
	captures   roster[capture, captureImage]
}

// refusal is why a process cannot be checkpointed.
type refusal struct{ what string }

func (r refusal) Error() string { return "a checkpoint does not carry " + r.what }

// saved is an image without its sources and the device memory, which lie where they are.
type saved struct {
	begin     []byte
	slack     uint64 // that the beginning may grow by, as time passes
	codes     []*code
	physicals []*physical
}

// save makes the image of a process. All its work has ended and its output has been printed. Called with Driver.mu
// locked.
func (p *Process) save() (*saved, error) {
	if err := p.carries(); err != nil {
		return nil, err
	}
	s := &saver{p: p, nodePlaces: map[*graph]map[*node]int{}}
	for _, dev := range p.d.devices {
		s.now = append(s.now, dev.hw.Clock.Now())
	}
	for _, pl := range p.pools {
		pl.collect() // no free is on its way
	}
	s.process()
	s.objects()
	for s.tables() {
	}
	s.fill()
	sources := uint64(0)
	for _, c := range s.codes.objects {
		for _, u := range c.units {
			sources += uint64(len(u.Source))
		}
	}
	begin, err := s.img.encode(sources)
	if err != nil {
		return nil, err
	}
	const digits = 20 // of a number
	return &saved{begin, digits * uint64(len(s.img.Points)), s.codes.objects, s.physicals.objects}, nil
}

// carries says, by name, what of a process is other processes' business too.
func (p *Process) carries() error {
	p.d.collect()
	for _, e := range p.d.exports {
		if e.owner == p {
			return refusal{"CUDA IPC: memory or an event that was given to other processes"}
		}
	}
	for _, e := range p.d.shared {
		if e.owner == p || e.ph != nil && e.ph.owner == p {
			return refusal{"memory whose descriptor is open"}
		}
	}
	for _, a := range p.allocs.all() {
		if a.typ == memImported || a.typ == memPoolImported {
			return refusal{"CUDA IPC: memory of another process"}
		}
		if a.phys != nil && a.phys.owner != p {
			return refusal{"imported memory handles"}
		}
	}
	for ph := range p.handlesOf {
		if ph.owner != p {
			return refusal{"imported memory handles"}
		}
	}
	for _, pl := range p.pools {
		if pl.source != nil {
			return refusal{"memory pools of another process"}
		}
	}
	return p.carriesEvents()
}

// carriesEvents refuses events that another process has too.
func (p *Process) carriesEvents() error {
	for _, o := range p.handles.objects {
		if e, ok := o.(*event); ok && e.foreign {
			return refusal{"CUDA IPC: an event of another process"}
		}
	}
	return nil
}

// process writes what is not in a table.
func (s *saver) process() {
	p := s.p
	for _, dev := range p.d.devices {
		s.img.Devices = append(s.img.Devices, dev.image())
		s.img.Defaults = append(s.img.Defaults, s.pools.ref(p.defaults[dev.index]))
		s.img.Current = append(s.img.Current, s.pools.ref(p.current[dev.index]))
		part := partImage{}
		if p.parts != nil {
			from := p.parts[dev.index]
			part = partImage{Named: from.named, Units: from.units, Count: from.count}
		}
		s.img.Parts = append(s.img.Parts, part)
	}
	for _, dev := range *p.visible.Load() {
		s.img.Visible = append(s.img.Visible, dev.index)
	}
	s.img.Eager, s.img.Faults, s.img.Flags, s.img.GraphHigh = p.eager, p.faults, p.flags, p.graphHigh
	s.img.NextHandle, s.img.Free, s.img.NextAddress = p.handles.next, rangesOf(p.addresses.free), p.addresses.next
	for _, r := range p.reserved.list {
		s.img.Reserved = append(s.img.Reserved, rangeImage{r.base, r.value})
	}
	s.img.Modes = p.modes
}

// image says which device it is, and of what chip.
func (d *device) image() deviceImage {
	c := d.hw.Config
	return deviceImage{UUID: d.uuid, Name: d.name, Units: c.Units, MHz: c.MHz, Memory: d.hw.Memory.Total(), Limits: c.Limits}
}

func rangesOf(free holes) []rangeImage {
	out := make([]rangeImage, len(free))
	for i, h := range free {
		out[i] = rangeImage{h.base, h.size}
	}
	return out
}

// objects begins the tables: with what programs have handles of, and what they reach without one.
func (s *saver) objects() {
	p := s.p
	for _, c := range p.contexts {
		s.contexts.ref(c)
	}
	for _, pl := range p.pools {
		s.pools.ref(pl)
	}
	for _, l := range p.libraries {
		s.libraries.ref(l)
	}
	for _, cp := range p.captures {
		s.captures.ref(cp)
	}
	for _, h := range slices.Sorted(maps.Keys(p.handles.objects)) {
		s.object(h, p.handles.objects[h])
	}
	for _, a := range p.allocs.all() {
		s.img.Allocations = append(s.img.Allocations, s.allocation(a))
	}
	for _, addr := range slices.Sorted(maps.Keys(p.graphMemory)) {
		s.img.Memory = append(s.img.Memory, s.allocNodes.ref(p.graphMemory[addr]))
	}
}

// object puts what is behind a handle into its table.
func (s *saver) object(h uint64, o any) {
	switch o := o.(type) {
	case *module:
		s.modules.ref(o)
	case *function:
		s.functions.ref(o)
	case *stream:
		s.streams.ref(o)
	case *event:
		s.img.Events = append(s.img.Events, s.event(o))
	case *array:
		s.arrays.ref(o)
	case *mipmap:
		s.img.Mipmaps = append(s.img.Mipmaps, s.mipmap(o))
	case *physicalHandle:
		s.img.Named = append(s.img.Named, namedImage{h, s.physicals.ref(o.ph), o.count})
	case *graph:
		s.graphs.ref(o)
	case *exec:
		s.img.Execs = append(s.img.Execs, execImage{h, s.graphs.ref(o.graph), o.flags})
	case *linker:
		s.img.Linkers = append(s.img.Linkers, o.record(h))
	case *userObject:
		s.users.ref(o)
	}
}

// tables writes the records of all tables, and reports whether there were any: writing one may speak of others.
func (s *saver) tables() bool {
	wrote := false
	for _, w := range []bool{
		s.contexts.write(s.context), s.streams.write(s.stream), s.pools.write(s.pool), s.libraries.write(s.library),
		s.modules.write(s.module), s.functions.write(s.function), s.points.write(s.point), s.arrays.write(s.array),
		s.users.write(s.user), s.graphs.write(s.graph), s.allocNodes.write(s.allocNode), s.freeNodes.write(s.freeNode),
		s.captures.write(s.capture), s.codes.write(s.code), s.physicals.write(s.physical),
	} {
		wrote = wrote || w
	}
	return wrote
}

// fill gives the image its tables.
func (s *saver) fill() {
	img := &s.img
	img.Physicals, img.Codes, img.Contexts, img.Streams = s.physicals.records, s.codes.records, s.contexts.records, s.streams.records
	img.Pools, img.Libraries, img.Modules, img.Functions = s.pools.records, s.libraries.records, s.modules.records, s.functions.records
	img.Points, img.Arrays, img.Users, img.Graphs = s.points.records, s.arrays.records, s.users.records, s.graphs.records
	img.AllocNodes, img.FreeNodes, img.Captures = s.allocNodes.records, s.freeNodes.records, s.captures.records
}

func (s *saver) physical(ph *physical) physicalImage {
	return physicalImage{Dev: ph.dev.index, Size: ph.frames.Size(), HandleTypes: ph.prop.handleTypes,
		Compression: ph.prop.compression, RDMA: ph.prop.rdma, Usage: ph.prop.usage}
}

func (s *saver) code(c *code) codeImage {
	r := codeImage{Size: c.size, MaxRegs: c.options.MaxRegs}
	for _, u := range c.units {
		r.Units = append(r.Units, unitImage{u.Name, len(u.Source)})
	}
	return r
}

func (s *saver) context(c *context) contextImage {
	r := contextImage{Handle: c.handle, ID: c.id, Dev: c.dev.index, Gone: !slices.Contains(s.p.contexts, c)}
	if r.Gone {
		return r
	}
	r.Primary, r.Refs, r.Flags, r.Fault = c.primary, c.refs, c.flags, c.fault
	r.Cost, r.Stacks, r.Arena = s.physicals.ref(c.cost), s.physicals.ref(c.stacks), s.arena(c.arena)
	r.Output, r.Prints, r.Limits, r.CacheConfig = c.output.limit, c.prints, c.limits, c.cacheConfig
	if slice := c.channel.Slice(); slice != c.dev.hw.Config.Slice {
		r.Slice = int64(slice / time.Nanosecond)
	}
	for _, o := range s.p.contexts {
		if c.peers[o] {
			r.Peers = append(r.Peers, s.contexts.ref(o))
		}
	}
	for _, st := range c.streams {
		r.Streams = append(r.Streams, s.streams.ref(st))
	}
	r.Legacy, r.Threads = s.streams.ref(c.legacy), map[uint64]ref{}
	for thread, st := range c.threads {
		r.Threads[thread] = s.streams.ref(st)
	}
	for _, m := range c.modules {
		r.Modules = append(r.Modules, s.modules.ref(m))
	}
	return r
}

func (s *saver) arena(a *arena) (r arenaImage) {
	for _, ch := range a.chunks {
		r.Chunks = append(r.Chunks, chunkImage{ch.region.base, s.physicals.ref(ch.phys), rangesOf(ch.free)})
	}
	return r
}

func (s *saver) stream(st *stream) streamImage {
	r := streamImage{ID: st.id, Context: s.contexts.ref(st.ctx), Flags: st.flags, Priority: st.priority,
		Attrs: st.attrs, Capture: s.captures.ref(st.capture)}
	if s.p.handles.objects[st.handle] == any(st) {
		r.Handle = st.handle
	}
	if st.capture != nil {
		r.Deps = s.nodes(st.deps)
	}
	return r
}

func (s *saver) pool(pl *pool) poolImage {
	return poolImage{Handle: pl.handle, Dev: pl.dev.index, Arena: s.arena(pl.arena), Access: pl.arena.access, Limit: pl.arena.limit,
		Threshold: pl.threshold, Reuse: pl.reuse, UsedHigh: pl.usedHigh, ResvHigh: pl.resvHigh, Shareable: pl.shareable,
		Builtin: pl.builtin, Destroyed: pl.destroyed}
}

func (s *saver) allocation(a *allocation) allocationImage {
	r := allocationImage{Type: a.typ, Base: a.base, Size: a.size, ID: a.id, Flags: a.flags, SyncOps: a.syncOps, Dev: -1,
		Context: s.contexts.ref(a.ctx), Pool: s.pools.ref(a.pool), Physical: s.physicals.ref(a.phys), ReadMostly: a.readMostly,
		Preferred: a.preferred, Prefetch: a.prefetch, AccessedBy: a.accessedBy}
	if a.dev != nil {
		r.Dev = a.dev.index
	}
	if a.host != nil {
		r.Pages = a.host.Size()
	} else if a.region != nil {
		r.Access = a.region.access
	}
	return r
}

func (s *saver) library(l *library) libraryImage {
	r := libraryImage{Handle: l.handle, Code: s.codes.ref(l.code), Kernels: map[string]libraryKernel{}}
	for name, k := range l.kernels {
		r.Kernels[name] = libraryKernel{k.handle, k.maxDynamic}
	}
	return r
}

func (s *saver) module(m *module) moduleImage {
	r := moduleImage{Context: s.contexts.ref(m.ctx), Code: s.codes.ref(m.code), Globals: map[string]rangeImage{}}
	for name, v := range m.globals {
		r.Globals[name] = rangeImage{v.addr, v.size}
	}
	if s.p.handles.objects[m.handle] == any(m) {
		r.Handle, r.Library, r.Memory = m.handle, s.libraries.ref(m.library), m.memory.base
	}
	for _, name := range slices.Sorted(maps.Keys(m.functions)) {
		s.functions.ref(m.functions[name])
	}
	return r
}

func (s *saver) function(f *function) functionImage {
	r := functionImage{Module: s.modules.ref(f.module), Name: f.kernel.Name, MaxDynamic: f.maxDynamic, Carveout: f.carveout}
	if s.p.handles.objects[f.handle] == any(f) {
		r.Handle = f.handle
	}
	return r
}

func (s *saver) point(pt *point) pointImage {
	r := pointImage{Recorded: pt.recorded, Worked: pt.work != nil}
	if pt.work != nil {
		r.Dev = pt.work.ctx.dev.index
		r.Age = int64(max(s.now[r.Dev]-pt.work.at, 0))
	}
	return r
}

func (s *saver) event(e *event) eventImage {
	r := eventImage{Handle: e.handle, Context: s.contexts.ref(e.ctx), Flags: e.flags, Point: s.points.ref(e.point),
		Capture: s.captures.ref(e.capture)}
	if e.capture != nil && !e.capture.over {
		r.Deps = s.nodes(e.deps)
	}
	return r
}

func (s *saver) array(a *array) arrayImage {
	r := arrayImage{Handle: a.handle, Context: s.contexts.ref(a.ctx), Desc: a.desc, Base: a.base}
	if a.alloc != nil {
		r.Allocation = a.alloc.base
	}
	return r
}

func (s *saver) mipmap(m *mipmap) mipmapImage {
	r := mipmapImage{Handle: m.handle, Context: s.contexts.ref(m.ctx), Desc: m.desc, Allocation: m.alloc.base}
	for _, l := range m.levels {
		r.Levels = append(r.Levels, s.arrays.ref(l))
	}
	return r
}

func (s *saver) user(u *userObject) userImage { return userImage{u.handle, u.ptr, u.destroy, u.refs} }

func (l *linker) record(h uint64) linkerImage {
	r := linkerImage{Handle: h, MaxRegs: l.options.MaxRegs, Image: l.image}
	for _, u := range l.units {
		r.Units = append(r.Units, linkerUnit{u.Name, u.Source})
	}
	return r
}

// size is how many bytes the image takes at most, even if it is made anew later.
func (s *saved) size() uint64 {
	n := uint64(len(s.begin)) + s.slack + pieceHead
	for _, c := range s.codes {
		for _, u := range c.units {
			n += uint64(len(u.Source))
		}
	}
	for _, ph := range s.physicals {
		for _, part := range ph.frames.Touched() {
			n += part.Size + pieceHead*((part.Size+pieceMost-1)/pieceMost)
		}
	}
	return n
}

// hold keeps the memory of the image from being freed until release.
func (s *saved) hold() {
	for _, ph := range s.physicals {
		ph.refs++
	}
}

func (s *saved) release() {
	for _, ph := range s.physicals {
		ph.release()
	}
}

// imageWriter puts an image into the program's memory.
type imageWriter struct {
	call     *wire.Call
	at, room uint64
}

func (w *imageWriter) write(b []byte) error {
	if uint64(len(b)) > w.room {
		return fmt.Errorf("the image has %d bytes more than there is room for", uint64(len(b))-w.room)
	}
	if err := w.call.WriteHost(wire.HostAddr(w.at), b); err != nil {
		return err
	}
	w.at, w.room = w.at+uint64(len(b)), w.room-uint64(len(b))
	return nil
}

// write puts the whole image there. Nothing is locked.
func (s *saved) write(w *imageWriter) error {
	if err := w.write(s.begin); err != nil {
		return err
	}
	for _, c := range s.codes {
		for _, u := range c.units {
			if err := w.write(u.Source); err != nil {
				return err
			}
		}
	}
	pieces := uint64(0)
	for i, ph := range s.physicals {
		n, err := ph.writePieces(w, uint32(i))
		if err != nil {
			return err
		}
		pieces += n
	}
	return w.write(piece{physical: endOfImage, offset: pieces}.append(nil))
}
