package driver

import (
	"iter"
	"slices"

	"github.com/lgpu/lgpu/sim/hw"
	"github.com/lgpu/lgpu/sim/wire"
)

// side is one end of a copy: bytes in rows and slices.
type side struct {
	addr         uint64 // of the first byte: a device address, or one of the program's
	pitch, slice uint64 // bytes from row to row and from slice to slice
	pageable     bool   // addr is memory of the program that no device reaches
	device       bool   // the bytes are in device memory
	buf          []byte // what stands in for pageable memory, packed
}

// box is a copy of width bytes in height rows in depth slices.
type box struct {
	dst, src             side
	width, height, depth uint64
	params               wire.CUDA_MEMCPY3D // as a graph's node shows it
	ctx                  *context
}

func (b *box) bytes() uint64 { return b.width * b.height * b.depth }

// flat is whether a side's bytes are in a row.
func (b *box) flat(s *side) bool {
	return b.height*b.depth == 1 || s.pitch == b.width && (b.depth == 1 || s.slice == b.width*b.height)
}

// at is the address of byte i of a side, in the order of rows and slices, and how many follow it in its row.
func (b *box) at(s *side, i uint64) (addr, rest uint64) {
	if b.flat(s) {
		return s.addr + i, b.bytes() - i
	}
	row := i / b.width
	x := i % b.width
	return s.addr + row/b.height*s.slice + row%b.height*s.pitch + x, b.width - x
}

// move does bytes [off, off+n) of the copy. It is called inside a step.
func (b *box) move(space *hw.Space, off, n uint64) error {
	for n > 0 {
		k := n
		var from, to uint64
		var rest uint64
		if b.src.buf == nil {
			from, rest = b.at(&b.src, off)
			k = min(k, rest)
		}
		if b.dst.buf == nil {
			to, rest = b.at(&b.dst, off)
			k = min(k, rest)
		}
		var err error
		switch {
		case b.src.buf != nil && b.dst.buf != nil:
			copy(b.dst.buf[off:off+k], b.src.buf[off:off+k])
		case b.src.buf != nil:
			err = space.Write(b.src.buf[off:off+k], to)
		case b.dst.buf != nil:
			err = space.Read(b.dst.buf[off:off+k], from)
		default:
			err = space.Copy(to, from, k)
		}
		if err != nil {
			return err
		}
		off += k
		n -= k
	}
	return nil
}

// begin makes the copy an op of streams and graphs.
func (b *box) begin(d *Driver, w *work, at hw.Time) {
	if b.bytes() == 0 {
		d.end(w, at)
		return
	}
	if b.src.pageable && b.src.buf == nil || b.dst.pageable && b.dst.buf == nil {
		go b.staged(d, w, at)
		return
	}
	b.submit(d, w, at, func(end hw.Time) { d.end(w, end) })
}

// rowsChunk is how much of a transfer in rows of so many bytes is done in one step.
func rowsChunk(row uint64, flat bool) uint64 {
	if flat {
		return 0
	}
	const rows = 2048
	return min(row, 1<<20) * rows
}

// submit gives the copy to the copy engine for its direction. done is called with Driver.mu held.
func (b *box) submit(d *Driver, w *work, at hw.Time, done func(hw.Time)) {
	c := w.ctx
	mover := c.dev.hw.Local
	switch {
	case b.dst.device && !b.src.device:
		mover = c.dev.hw.In
	case b.src.device && !b.dst.device:
		mover = c.dev.hw.Out
	}
	space := c.p.uva
	mover.Submit(&hw.Move{
		Bytes: b.bytes(), Ready: at, Owner: c, Chunk: rowsChunk(b.width, b.flat(&b.src) && b.flat(&b.dst)),
		Step: func(off, n uint64) error { return b.move(space, off, n) },
		Done: func(end hw.Time, err error) {
			d.mu.Lock()
			defer d.mu.Unlock()
			if err != nil && !w.done {
				c.fail(err)
			}
			if !w.done {
				done(end)
			}
			d.drain()
		},
	})
}

// staged does a copy with pageable memory that no call waits for: that of a graph. The program's service thread fetches
// and stores, part by part.
func (b *box) staged(d *Driver, w *work, at hw.Time) {
	p, clock := w.ctx.p, w.ctx.dev.hw.Clock
	clock.Wait(at)
	for part := range b.parts() {
		if part.src.pageable {
			part.src.buf = make([]byte, part.bytes())
			if err := part.eachRow(&part.src, func(addr uint64, row []byte) error { return p.host.ReadHost(wire.HostAddr(addr), row) }); err != nil {
				return // the program is gone, and so is the work
			}
		}
		if part.dst.pageable {
			part.dst.buf = make([]byte, part.bytes())
		}
		moved := make(chan struct{})
		d.mu.Lock()
		if w.done {
			d.mu.Unlock()
			return
		}
		dropped := w.over()
		part.submit(d, w, max(at, clock.Now()), func(hw.Time) { close(moved) })
		d.mu.Unlock()
		select {
		case <-moved:
		case <-dropped:
			return
		}
		if part.dst.pageable {
			if err := part.eachRow(&part.dst, func(addr uint64, row []byte) error { return p.host.WriteHost(wire.HostAddr(addr), row) }); err != nil {
				return
			}
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.end(w, clock.Now())
	d.drain()
}

// eachRow calls f for the rows of a pageable side with their bytes of its buffer.
func (b *box) eachRow(s *side, f func(addr uint64, row []byte) error) error {
	for i := uint64(0); i < b.bytes(); {
		addr, n := b.at(s, i)
		if err := f(addr, s.buf[i:i+n]); err != nil {
			return err
		}
		i += n
	}
	return nil
}

// stageBytes is how much of a pageable copy is in flight at a time.
const stageBytes = 32 << 20

// copyNow runs a copy from a call. Pageable memory is fetched before the call returns and stored before it returns;
// without such memory an asynchronous copy is only submitted.
func (p *Process) copyNow(call *wire.Call, s *stream, b *box, async bool) Result {
	if b.bytes() == 0 {
		return success
	}
	if s.capture != nil {
		if !async {
			s.capture.invalidate()
			return errCaptureUnsupported
		}
		_, res := s.submit(b)
		return res
	}
	if !async {
		if res := s.ctx.safe(call.Thread); res != success {
			return res
		}
	}
	if b.src.pageable || b.dst.pageable {
		return p.copyPageable(call, s, b, async)
	}
	w, res := s.submit(b)
	if res == success && (!async || p.syncOps(b)) {
		p.wait(w)
		res = s.ctx.fault
	}
	return res
}

// copyPageable copies from or to pageable memory of the program, a part at a time through memory of ours.
func (p *Process) copyPageable(call *wire.Call, s *stream, b *box, async bool) Result {
	for part := range b.parts() {
		if part.src.pageable {
			part.src.buf = make([]byte, part.bytes())
			if !p.hostRows(part, &part.src, call.ReadHost) {
				return errDeviceUnavailable
			}
		}
		if part.dst.pageable {
			part.dst.buf = make([]byte, part.bytes())
		}
		if s.ctx.fault != success {
			return s.ctx.fault
		}
		w, res := s.submit(part)
		if res != success {
			return res
		}
		if async && !part.dst.pageable {
			continue // the part is copied to our memory already: the program may use its own again
		}
		p.wait(w)
		if s.ctx.fault != success {
			return s.ctx.fault
		}
		if part.dst.pageable && !p.hostRows(part, &part.dst, call.WriteHost) {
			return errDeviceUnavailable
		}
	}
	return success
}

// hostRows reads or writes the rows of one side of a part in the program's memory, without the device's lock. It
// reports whether the program could be reached.
func (p *Process) hostRows(part *box, side *side, move func(wire.HostAddr, []byte) error) bool {
	p.d.mu.Unlock()
	defer p.d.mu.Lock()
	return part.eachRow(side, func(addr uint64, row []byte) error { return move(wire.HostAddr(addr), row) }) == nil
}

// parts cuts a copy into pieces of at most stageBytes: rows of a slice, or parts of a row.
func (b *box) parts() iter.Seq[*box] {
	return func(yield func(*box) bool) {
		whole := *b
		if b.flat(&b.src) && b.flat(&b.dst) {
			whole.width, whole.height, whole.depth = b.bytes(), 1, 1
		}
		rows := max(stageBytes/whole.width, 1)
		for z := uint64(0); z < whole.depth; z++ {
			for y := uint64(0); y < whole.height; y += rows {
				for x := uint64(0); x < whole.width; x += stageBytes {
					c := whole
					c.width, c.height, c.depth = min(stageBytes, whole.width-x), min(rows, whole.height-y), 1
					c.src.addr += z*b.src.slice + y*b.src.pitch + x
					c.dst.addr += z*b.dst.slice + y*b.dst.pitch + x
					if !yield(&c) {
						return
					}
				}
			}
		}
	}
}

// syncOps reports whether one side asked for synchronous copies (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS).
func (p *Process) syncOps(b *box) bool {
	for _, s := range [2]*side{&b.src, &b.dst} {
		if a, ok := p.allocs.find(s.addr); ok && a.syncOps {
			return true
		}
	}
	return false
}

// place says what is at addr: memory that devices reach, or memory of the program. n bytes must be of one kind. Nothing
// goes beyond the end of an allocation of the device's memory, although what lies behind it may be there (driver 580).
func (p *Process) place(addr, n uint64) (side, Result) {
	s := side{addr: addr}
	a, ok := p.allocs.find(addr)
	switch {
	case ok && a.typ == memMapped && !p.accessible(a):
		return s, errInvalidValue
	case ok && (addr+n > a.base+a.size || addr+n < addr):
		// A copy may run over several mappings that lie next to each other.
		if a.bounded() || !p.uva.Mapped(addr, n, false) {
			return s, errInvalidValue
		}
	case !ok && addr >= addressFirst && addr < addressLast:
		if n > 0 && !p.promised(addr, n) {
			return s, errInvalidValue
		}
		s.device = true
		return s, success
	case !ok:
		if addr == 0 {
			return s, errInvalidValue
		}
		s.pageable = true
		return s, success
	}
	s.device = a.host == nil || a.typ == memManaged
	return s, success
}

// bounded reports whether copies that begin in an allocation may not go on behind it. Of variables, managed and host memory
// it is not known.
func (a *allocation) bounded() bool {
	switch a.typ {
	case memDevice, memAsync, memGraph, memImported, memPoolImported:
		return true
	}
	return false
}

// accessible reports whether any device may touch a mapping.
func (p *Process) accessible(a *allocation) bool {
	return slices.ContainsFunc(a.region.access, func(r access) bool { return r != accessNone })
}

// promised reports whether the range is memory of a graph's allocation node, which is there when the graph runs.
func (p *Process) promised(addr, n uint64) bool {
	for _, o := range p.graphMemory {
		if addr >= o.addr && addr+n <= o.addr+o.size {
			return true
		}
	}
	return false
}

// copyMost bounds the bytes of a copy, and every product of sizes and pitches.
const copyMost = 1 << 40

// linear is a copy of n bytes in a row.
func (p *Process) linear(c *context, dst, src, n uint64) (*box, Result) {
	if n > copyMost {
		return nil, errInvalidValue
	}
	d, res := p.place(dst, n)
	if res != success {
		return nil, res
	}
	s, res := p.place(src, n)
	if res != success {
		return nil, res
	}
	return &box{dst: d, src: s, width: n, height: 1, depth: 1, ctx: c, params: linearParams(d, s, n)}, success
}

// linearParams is how a graph's node shows a copy in a row.
func linearParams(d, s side, n uint64) wire.CUDA_MEMCPY3D {
	m := wire.CUDA_MEMCPY3D{WidthInBytes: n, Height: 1, Depth: 1, SrcPitch: n, SrcHeight: 1, DstPitch: n, DstHeight: 1}
	m.SrcMemoryType, m.DstMemoryType = wire.CU_MEMORYTYPE_DEVICE, wire.CU_MEMORYTYPE_DEVICE
	m.SrcDevice, m.DstDevice = wire.CUdeviceptr(s.addr), wire.CUdeviceptr(d.addr)
	if !s.device {
		m.SrcMemoryType, m.SrcDevice, m.SrcHost = wire.CU_MEMORYTYPE_HOST, 0, wire.HostAddr(s.addr)
	}
	if !d.device {
		m.DstMemoryType, m.DstDevice, m.DstHost = wire.CU_MEMORYTYPE_HOST, 0, wire.HostAddr(d.addr)
	}
	return m
}

// pitched is a copy of a box.
func (p *Process) pitched(c *context, m *wire.CUDA_MEMCPY3D) (*box, Result) {
	b := &box{width: m.WidthInBytes, height: m.Height, depth: m.Depth, ctx: c, params: *m}
	if b.width == 0 || b.height == 0 || b.depth == 0 {
		return b, success
	}
	if b.width > copyMost || b.height > copyMost/b.width || b.depth > copyMost/(b.width*b.height) {
		return nil, errInvalidValue
	}
	var res Result
	b.src, res = p.end(b, m.SrcMemoryType, uint64(m.SrcHost), uint64(m.SrcDevice), uint64(m.SrcArray), m.SrcPitch, m.SrcHeight,
		m.SrcXInBytes, m.SrcY, m.SrcZ)
	if res != success {
		return nil, res
	}
	b.dst, res = p.end(b, m.DstMemoryType, uint64(m.DstHost), uint64(m.DstDevice), uint64(m.DstArray), m.DstPitch, m.DstHeight,
		m.DstXInBytes, m.DstY, m.DstZ)
	return b, res
}

// end is one end of a pitched copy.
func (p *Process) end(b *box, typ wire.CUmemorytype, host, device, arr, pitch, height, x, y, z uint64) (side, Result) {
	const most = copyMost
	if x > most || y > most || z > most || pitch > most || height > most {
		return side{}, errInvalidValue
	}
	addr := device
	switch typ {
	case wire.CU_MEMORYTYPE_HOST:
		addr = host
	case wire.CU_MEMORYTYPE_DEVICE, wire.CU_MEMORYTYPE_UNIFIED:
	case wire.CU_MEMORYTYPE_ARRAY:
		a := lookup[array](&p.handles, arr)
		if a == nil {
			return side{}, errInvalidHandle
		}
		if x+b.width > a.pitch || y+b.height > max(a.rows, 1) || z+b.depth > max(a.slices, 1) {
			return side{}, errInvalidValue
		}
		return side{addr: a.base + z*a.pitch*max(a.rows, 1) + y*a.pitch + x, pitch: a.pitch, slice: a.pitch * max(a.rows, 1), device: true}, success
	default:
		return side{}, errInvalidValue
	}
	if pitch == 0 && b.height*b.depth == 1 {
		pitch = b.width + x
	}
	if height == 0 {
		height = b.height + y
	}
	if pitch < b.width+x || b.depth > 1 && height < b.height+y {
		return side{}, errInvalidValue
	}
	slice := pitch * height
	// In parts that cannot overflow: what is checked here is what is copied later.
	if pitch > 0 && height > most/pitch || slice > 0 && z+b.depth > most/slice || pitch > 0 && y+b.height > most/pitch {
		return side{}, errInvalidValue
	}
	addr += z*slice + y*pitch + x
	s, res := p.place(addr, (b.depth-1)*slice+(b.height-1)*pitch+b.width)
	s.pitch, s.slice = pitch, slice
	return s, res
}
