package driver

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/lgpu/lgpu/sim/fatbin"
	"github.com/lgpu/lgpu/sim/ptx"
	"github.com/lgpu/lgpu/sim/wire"
)

// What cuLinkComplete makes is an image of our own: this magic, the size of the image u64, and for each input its size
// u64 and its PTX. A load links it again, which costs what compiling it costs.
const linkedMagic = "LGPULINK"

// maxInputs bounds the inputs of a linker.
const maxInputs = 1024

// errLinked is wrapped by the error about an image that begins like one of the linker's and is none.
var errLinked = errors.New("not an image of the linker")

// linkedImage makes an image of PTX.
func linkedImage(units []ptx.Unit) []byte {
	image := append([]byte(linkedMagic), make([]byte, 8)...)
	for _, u := range units {
		image = binary.LittleEndian.AppendUint64(image, uint64(len(u.Source)))
		image = append(image, u.Source...)
	}
	binary.LittleEndian.PutUint64(image[len(linkedMagic):], uint64(len(image)))
	return image
}

// linkedUnits takes it apart.
func linkedUnits(image []byte) ([]ptx.Unit, error) {
	const head = len(linkedMagic) + 8
	if len(image) < head || binary.LittleEndian.Uint64(image[len(linkedMagic):]) != uint64(len(image)) {
		return nil, fmt.Errorf("%w: %d bytes", errLinked, len(image))
	}
	rest := image[head:]
	var units []ptx.Unit
	for len(rest) >= 8 && len(units) < maxInputs {
		n := binary.LittleEndian.Uint64(rest)
		if rest = rest[8:]; n > uint64(len(rest)) {
			return nil, fmt.Errorf("%w: input %d has %d bytes of %d", errLinked, len(units), n, len(rest))
		}
		units = append(units, ptx.Unit{Name: fmt.Sprintf("input %d", len(units)), Source: rest[:n]})
		rest = rest[n:]
	}
	if len(units) == 0 || len(rest) > 0 {
		return nil, fmt.Errorf("%w: %d bytes behind %d inputs", errLinked, len(rest), len(units))
	}
	return units, nil
}

// units finds the PTX in what a program loads: PTX itself, a fat binary, or an image of the linker.
func units(image []byte) ([]ptx.Unit, error) {
	switch {
	case bytes.HasPrefix(image, []byte(linkedMagic)):
		return linkedUnits(image)
	case len(image) >= 4 && binary.LittleEndian.Uint32(image) == fatbin.Magic:
		text, err := fatbin.PTX(image, ccMajor*10+ccMinor)
		if err != nil {
			return nil, err
		}
		return []ptx.Unit{{Source: text}}, nil
	}
	return []ptx.Unit{{Source: image}}, nil
}

// compileOptions are the options of a load that matter here.
func compileOptions(keys []wire.CUjit_option, values []uint64) ptx.Options {
	var o ptx.Options
	for i, k := range keys {
		if k == wire.CU_JIT_MAX_REGISTERS && i < len(values) {
			o.MaxRegs = int(min(uint32(values[i]), 1<<16))
		}
	}
	return o
}

// parse reads an image; the log of an error is for the program.
func (p *Process) parse(image []byte, o ptx.Options, errorSize uint32) (*code, []byte, Result) {
	list, err := units(image)
	var m *ptx.Module
	if err == nil {
		m, err = ptx.ParseUnits(o, list...)
	}
	if err == nil {
		return &code{units: list, options: o, size: uint64(len(image)), parsed: m}, nil, success
	}
	p.d.log.Warn("module is not understood", "process", p.pid, "error", err)
	log := text(err.Error(), errorSize)
	var pe *ptx.Error
	switch {
	case errors.As(err, &pe):
		return nil, log, errInvalidPTX
	case errors.Is(err, fatbin.ErrNoPTX):
		return nil, log, errNoBinary
	}
	return nil, log, errInvalidImage
}

// linker is the state of cuLink calls.
type linker struct {
	options ptx.Options
	units   []ptx.Unit
	bytes   int    // of their PTX
	image   []byte // once complete
}

// LinkCreate is cuLinkCreate.
func (p *Process) LinkCreate(_ *wire.Call, keys []wire.CUjit_option, values []uint64) (wire.CUlinkState, wire.CUresult) {
	defer p.lock()()
	return wire.CUlinkState(p.handles.add(kindLinker, &linker{options: compileOptions(keys, values)})), success
}

// LinkAddData is cuLinkAddData with PTX, or a fat binary that has some. The input is compiled to find its errors.
func (p *Process) LinkAddData(_ *wire.Call, h wire.CUlinkState, typ wire.CUjitInputType, data []byte, name string, errorSize uint32) ([]byte, wire.CUresult) {
	if typ != wire.CU_JIT_INPUT_PTX && typ != wire.CU_JIT_INPUT_FATBINARY {
		return text("only PTX can be linked", errorSize), errNoBinary
	}
	if _, log, res := p.parse(data, ptx.Options{}, errorSize); res != success {
		return log, res
	}
	added, err := units(data)
	if err != nil {
		return text(err.Error(), errorSize), errInvalidImage
	}
	defer p.lock()()
	l := lookup[linker](&p.handles, uint64(h))
	if l == nil {
		return nil, errInvalidHandle
	}
	for i := range added {
		u := ptx.Unit{Name: name, Source: bytes.Clone(added[i].Source)}
		if u.Name == "" {
			u.Name = fmt.Sprintf("input %d", len(l.units))
		}
		if l.bytes += len(u.Source); l.bytes > ptx.MaxSource || len(l.units) == maxInputs {
			return text("too many inputs", errorSize), errOutOfMemory
		}
		l.units = append(l.units, u)
	}
	return text("", errorSize), success
}

// LinkComplete is cuLinkComplete: the size of the image that LinkImage returns.
func (p *Process) LinkComplete(_ *wire.Call, h wire.CUlinkState, errorSize uint32) (uint64, []byte, wire.CUresult) {
	unlock := p.lock()
	l := lookup[linker](&p.handles, uint64(h))
	if l == nil {
		unlock()
		return 0, nil, errInvalidHandle
	}
	list, o := l.units, l.options
	unlock()
	if len(list) == 0 {
		return 0, text("nothing to link", errorSize), errInvalidValue
	}
	m, err := ptx.ParseUnits(o, list...)
	if err == nil {
		err = m.Unresolved()
	}
	if err != nil {
		return 0, text("error   : "+err.Error(), errorSize), errUnknown
	}
	defer p.lock()()
	l.image = linkedImage(list)
	return uint64(len(l.image)), text("", errorSize), success
}

// LinkImage is the image of cuLinkComplete, which loads as a module.
func (p *Process) LinkImage(_ *wire.Call, h wire.CUlinkState, size uint64) ([]byte, wire.CUresult) {
	defer p.lock()()
	l := lookup[linker](&p.handles, uint64(h))
	if l == nil {
		return nil, errInvalidHandle
	}
	return l.image[:min(uint64(len(l.image)), size)], success
}

// LinkDestroy is cuLinkDestroy.
func (p *Process) LinkDestroy(_ *wire.Call, h wire.CUlinkState) wire.CUresult {
	defer p.lock()()
	if lookup[linker](&p.handles, uint64(h)) == nil {
		return errInvalidHandle
	}
	p.handles.remove(uint64(h))
	return success
}
