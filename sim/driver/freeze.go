package driver

import (
	"fmt"
	"maps"
	"time"

	"github.com/lgpu/lgpu/sim/wire"
)

// drainAll waits until the process has no work left, and no destructor of its own runs; it reports whether that was so
// before timeout, which is nil where there is none. It gives Driver.mu up meanwhile.
func (p *Process) drainAll(timeout <-chan time.Time) bool {
	for {
		p.d.drain()
		signal, idle := p.busy()
		if idle {
			return true
		}
		p.d.mu.Unlock()
		ended := false
		select {
		case <-signal:
			ended = true
		case <-timeout:
		case <-p.host.Gone():
		case <-p.gone:
		}
		p.d.mu.Lock()
		if !ended {
			return false
		}
	}
}

// busy finds something to wait for: a channel that is closed when one of the things ends that the process has to do.
func (p *Process) busy() (signal <-chan struct{}, idle bool) {
	for _, c := range p.contexts {
		for w := range maps.Keys(c.live) {
			return w.over(), false
		}
		for _, s := range c.streams {
			if !s.tail.ended() {
				return reached(s.tail), false
			}
		}
	}
	if p.destructors > 0 {
		if p.quiet == nil {
			p.quiet = make(chan struct{})
		}
		return p.quiet, false
	}
	return nil, true
}

// reached is closed when the time has come at which a work that is done has ended.
func reached(w *work) <-chan struct{} {
	come := make(chan struct{})
	go func() {
		w.ctx.dev.hw.Clock.Wait(w.at)
		close(come)
	}()
	return come
}

// CheckpointDrain waits until the process has no work left, at most so many milliseconds, or for ever with 0:
// CUDA_ERROR_NOT_READY then. What kernels have printed is out when it returns. With parks the program's service thread,
// which nothing is asked of any more, waits from then on.
func (p *Process) CheckpointDrain(call *wire.Call, timeoutMs, parks uint32) wire.CUresult {
	var timeout <-chan time.Time
	if timeoutMs > 0 {
		timer := time.NewTimer(time.Duration(timeoutMs) * time.Millisecond)
		defer timer.Stop()
		timeout = timer.C
	}
	unlock := p.lock()
	idle := p.drainAll(timeout)
	unlock()
	if !idle {
		return errNotReady
	}
	p.flush(call)
	if parks == 0 {
		return success
	}
	if err := p.host.Invoke(wire.ParkService, 0, 0, 0, 0); err != nil {
		return errDeviceUnavailable
	}
	return success
}

// CheckpointSave writes the image of the process to address, if it fits into room bytes; otherwise it only says how many
// it takes. The process has been drained, and nothing calls the driver meanwhile.
func (p *Process) CheckpointSave(call *wire.Call, address, room uint64, length uint32) (uint64, []byte, wire.CUresult) {
	size, res, err := p.saveTo(&imageWriter{call: call, at: address, room: room})
	if err != nil {
		p.d.log.Warn("checkpoint", "process", p.pid, "error", err)
		return 0, text(err.Error(), length), res
	}
	return size, text("", length), success
}

func (p *Process) saveTo(w *imageWriter) (size uint64, res Result, err error) {
	unlock := p.lock()
	if _, idle := p.busy(); !idle || !p.initialised {
		unlock()
		return 0, errIllegalState, fmt.Errorf("the process is at work")
	}
	img, err := p.save()
	if err != nil {
		unlock()
		return 0, errNotSupported, err
	}
	img.hold()
	unlock()
	defer func() {
		defer p.lock()()
		img.release()
	}()
	if size = img.size(); size-img.slack > w.room {
		return size, success, nil
	}
	room := w.room
	if err := img.write(w); err != nil {
		return 0, errOperatingSystem, err
	}
	return room - w.room, success, nil
}

// CheckpointTakePages gives the program the descriptor of host memory that devices reach, and where in that the pages
// begin.
func (p *Process) CheckpointTakePages(call *wire.Call, address uint64) (uint64, wire.CUresult) {
	defer p.lock()()
	a, ok := p.allocs.find(address)
	if !ok || a.base != address || a.host == nil {
		return 0, errInvalidValue
	}
	f, err := duplicate(a.host.File())
	if err != nil {
		p.d.log.Warn("checkpoint", "process", p.pid, "error", err)
		return 0, errOperatingSystem
	}
	call.GiveFile(f)
	return a.host.Offset(), success
}

// maxPages bounds the host memory that comes before an image, in pieces.
const maxPages = 1 << 16

// CheckpointGivePages takes over what CheckpointTakePages has given, for the image that comes next.
func (p *Process) CheckpointGivePages(call *wire.Call, address, size, offset uint64) wire.CUresult {
	defer p.lock()()
	file := call.TakeFile()
	if file == nil {
		return errInvalidValue
	}
	if _, twice := p.pages[address]; twice || p.initialised || p.closed || len(p.pages) >= maxPages {
		file.Close()
		return errIllegalState
	}
	pages, err := p.d.machine.AdoptHostPages(file, offset, size)
	if err != nil {
		p.d.log.Warn("restore: host memory", "process", p.pid, "error", err)
		return errInvalidValue
	}
	p.pages[address] = hostFile{pages: pages}
	return success
}

// CheckpointLoad makes the process what the image at address says, on the devices of the same UUIDs or on those that
// pairs name. On failure reason says why; the process is then of no more use.
func (p *Process) CheckpointLoad(call *wire.Call, address, size uint64, pairs []wire.CUcheckpointGpuPair, length uint32) ([]byte, wire.CUresult) {
	if res, err := p.loadFrom(&imageReader{call: call, at: address, left: size}, pairs); err != nil {
		p.d.log.Warn("restore", "process", p.pid, "error", err)
		return text(err.Error(), length), res
	}
	return text("", length), success
}
