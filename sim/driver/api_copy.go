package driver

import (
	"github.com/lgpu/lgpu/sim/wire"
)

// Kinds of copy that the protocol tells apart: which sides the program said are memory of the host.
// The addresses decide; a device side that is no device memory is an error.
const (
	_ = iota
	copyHtoD
	copyDtoH
	copyDtoD
)

// copyStream is the stream of a call: its own, or the default stream for a synchronous form.
func (p *Process) copyStream(call *wire.Call, stream wire.CUstream, async uint32) (*stream, Result) {
	h := uint64(stream)
	if async == 0 && h == streamDefault && call.PerThread {
		h = streamPerThread
	}
	return p.stream(h, p.currentOf(call), call.Thread)
}

// enterCopy takes Driver.mu for a copy on a stream. leave must be called in any case.
func (p *Process) enterCopy(call *wire.Call, stream wire.CUstream, async uint32) (s *stream, leave func(), res Result) {
	_, unlock, res := p.enter(call)
	leave = func() {
		unlock()
		if async == 0 {
			p.flush(call)
		}
	}
	if res == success {
		s, res = p.copyStream(call, stream, async)
	}
	return s, leave, res
}

// Memcpy is cuMemcpy and its directed forms.
func (p *Process) Memcpy(call *wire.Call, dst, src wire.CUdeviceptr, n uint64, kind uint32, stream wire.CUstream, async uint32) wire.CUresult {
	s, leave, res := p.enterCopy(call, stream, async)
	defer leave()
	if res != success {
		return res
	}
	if n == 0 {
		return success
	}
	b, res := p.linear(s.ctx, uint64(dst), uint64(src), n)
	if res != success {
		return res
	}
	if (kind == copyHtoD || kind == copyDtoD) && b.dst.pageable || (kind == copyDtoH || kind == copyDtoD) && b.src.pageable {
		return errInvalidValue
	}
	return p.copyNow(call, s, b, async != 0)
}

// MemcpyPeer is cuMemcpyPeer: addresses say which device they belong to, so the contexts only have to exist.
func (p *Process) MemcpyPeer(call *wire.Call, dst wire.CUdeviceptr, dstCtx wire.CUcontext, src wire.CUdeviceptr, srcCtx wire.CUcontext, n uint64, stream wire.CUstream, async uint32) wire.CUresult {
	if async == 0 {
		defer p.flush(call)
	}
	_, unlock, res := p.enter(call)
	defer unlock()
	if res != success {
		return res
	}
	if lookup[context](&p.handles, uint64(dstCtx)) == nil || lookup[context](&p.handles, uint64(srcCtx)) == nil {
		return errInvalidContext
	}
	s, res := p.copyStream(call, stream, async)
	if res != success || n == 0 {
		return res
	}
	b, res := p.linear(s.ctx, uint64(dst), uint64(src), n)
	if res != success {
		return res
	}
	if b.dst.pageable || b.src.pageable {
		return errInvalidValue
	}
	return p.copyNow(call, s, b, async != 0)
}

// Memcpy2D is cuMemcpy2D.
func (p *Process) Memcpy2D(call *wire.Call, m *wire.CUDA_MEMCPY2D, stream wire.CUstream, async uint32) wire.CUresult {
	return p.Memcpy3D(call, &wire.CUDA_MEMCPY3D{
		SrcXInBytes: m.SrcXInBytes, SrcY: m.SrcY, SrcMemoryType: m.SrcMemoryType, SrcHost: m.SrcHost, SrcDevice: m.SrcDevice,
		SrcArray: m.SrcArray, SrcPitch: m.SrcPitch,
		DstXInBytes: m.DstXInBytes, DstY: m.DstY, DstMemoryType: m.DstMemoryType, DstHost: m.DstHost, DstDevice: m.DstDevice,
		DstArray: m.DstArray, DstPitch: m.DstPitch,
		WidthInBytes: m.WidthInBytes, Height: m.Height, Depth: 1,
	}, stream, async)
}

// Memcpy3D is cuMemcpy3D.
func (p *Process) Memcpy3D(call *wire.Call, m *wire.CUDA_MEMCPY3D, stream wire.CUstream, async uint32) wire.CUresult {
	s, leave, res := p.enterCopy(call, stream, async)
	defer leave()
	if res != success {
		return res
	}
	b, res := p.pitched(s.ctx, m)
	if res != success {
		return res
	}
	return p.copyNow(call, s, b, async != 0)
}

// Memcpy3DPeer is cuMemcpy3DPeer.
func (p *Process) Memcpy3DPeer(call *wire.Call, m *wire.CUDA_MEMCPY3D_PEER, stream wire.CUstream, async uint32) wire.CUresult {
	return p.Memcpy3D(call, &wire.CUDA_MEMCPY3D{
		SrcXInBytes: m.SrcXInBytes, SrcY: m.SrcY, SrcZ: m.SrcZ, SrcLOD: m.SrcLOD, SrcMemoryType: m.SrcMemoryType, SrcHost: m.SrcHost,
		SrcDevice: m.SrcDevice, SrcArray: m.SrcArray, SrcPitch: m.SrcPitch, SrcHeight: m.SrcHeight,
		DstXInBytes: m.DstXInBytes, DstY: m.DstY, DstZ: m.DstZ, DstLOD: m.DstLOD, DstMemoryType: m.DstMemoryType, DstHost: m.DstHost,
		DstDevice: m.DstDevice, DstArray: m.DstArray, DstPitch: m.DstPitch, DstHeight: m.DstHeight,
		WidthInBytes: m.WidthInBytes, Height: m.Height, Depth: m.Depth,
	}, stream, async)
}

// Memset is cuMemsetD8 to D2D32. The synchronous form does not wait for what runs on the stream, as with the real
// driver; on an idle stream it waits for itself, since there the real one is done before anybody could tell the
// difference.
func (p *Process) Memset(call *wire.Call, dst wire.CUdeviceptr, pitch uint64, value, element uint32, width, height uint64, stream wire.CUstream, async uint32) wire.CUresult {
	_, unlock, res := p.enter(call)
	defer unlock()
	if res != success {
		return res
	}
	s, res := p.copyStream(call, stream, async)
	if res != success {
		return res
	}
	f, res := p.newFill(s.ctx, wire.CUDA_MEMSET_NODE_PARAMS{
		Dst: dst, Pitch: pitch, Value: value, ElementSize: element, Width: width, Height: height,
	})
	if res != success {
		return res
	}
	if async == 0 {
		if res := p.safe(call.Thread); res != success {
			return res
		}
	}
	if f.bytes() == 0 {
		return success
	}
	a, ok := p.allocs.find(uint64(dst))
	wait := async == 0 && (ok && a.host != nil || s.idle())
	w, res := s.submit(f)
	if res == success && wait {
		p.wait(w)
		return s.ctx.fault
	}
	return res
}
