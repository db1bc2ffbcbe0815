package driver

import (
	"encoding/binary"

	"github.com/lgpu/lgpu/sim/hw"
	"github.com/lgpu/lgpu/sim/wire"
)

// fill is the op of memsets.
type fill struct {
	ctx    *context
	params wire.CUDA_MEMSET_NODE_PARAMS
}

// newFill checks a memset and where it goes.
func (p *Process) newFill(c *context, m wire.CUDA_MEMSET_NODE_PARAMS) (*fill, Result) {
	f := &fill{ctx: c, params: m}
	if !f.sound() {
		return nil, errInvalidValue
	}
	if f.bytes() == 0 {
		return f, success
	}
	s, res := p.place(uint64(m.Dst), (m.Height-1)*m.Pitch+m.Width*uint64(m.ElementSize))
	if res == success && s.pageable {
		res = errInvalidValue
	}
	return f, res
}

// sound reports whether the memset is one that can be done: elements of 1, 2 or 4 bytes, aligned to their size.
func (f *fill) sound() bool {
	m, size := f.params, uint64(f.params.ElementSize)
	if size != 1 && size != 2 && size != 4 || m.Width > 1<<40 || m.Height > 1<<40 || m.Pitch > 1<<40 {
		return false
	}
	if uint64(m.Dst)%size != 0 || m.Height > 1 && (m.Pitch%size != 0 || m.Pitch < m.Width*size || m.Height > 1<<40/max(m.Pitch, 1)) {
		return false
	}
	return f.bytes() <= 1<<40
}

func (f *fill) bytes() uint64 { return f.params.Width * uint64(f.params.ElementSize) * f.params.Height }

func (f *fill) begin(d *Driver, w *work, at hw.Time) {
	if f.bytes() == 0 {
		d.end(w, at)
		return
	}
	m := f.params
	pattern := binary.LittleEndian.AppendUint32(nil, m.Value)[:m.ElementSize]
	row := m.Width * uint64(m.ElementSize)
	c := w.ctx
	space := c.p.uva
	c.dev.hw.Local.Submit(&hw.Move{
		Bytes: f.bytes(), Ready: at, Owner: c, Chunk: rowsChunk(row, m.Height == 1),
		Step: func(off, n uint64) error {
			for n > 0 {
				y, x := off/row, off%row
				k := min(n, row-x)
				if m.Height == 1 {
					y, x, k = 0, off, n
				}
				// Parts are cut at multiples of the element's size, save for rows that are cut by what is moved at a
				// time.
				lag := x % uint64(len(pattern))
				turned := append(append([]byte(nil), pattern[lag:]...), pattern[:lag]...)
				if err := space.Fill(uint64(m.Dst)+y*m.Pitch+x, k, turned); err != nil {
					return err
				}
				off += k
				n -= k
			}
			return nil
		},
		Done: func(end hw.Time, err error) { d.ended(w, c, end, err) },
	})
}
