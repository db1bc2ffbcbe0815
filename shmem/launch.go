package shmem

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/kernels"
)

// loader has the kernels of a context, for all PEs that work in it.
//
// To load a module, the driver may have to wait for kernels that run in the context, and other threads' calls wait for that. So
// a module that is loaded while a kernel waits for another PE can be a deadlock, if that PE waits for a kernel that is yet to
// be launched here. Hence what most programs need is loaded before the first kernel is launched, by all PEs of a context
// together; the rest when it is first asked for, before its kernel is launched.
type loader struct {
	handle uintptr // of the context
	users  int     // guarded by loaders.mu

	mu      sync.Mutex
	modules map[kernels.Module]*module
}

// module is a module of kernels, loaded once.
type module struct {
	once   sync.Once
	handle uintptr
	err    error
}

// functionKey names a kernel.
type functionKey struct {
	module kernels.Module
	name   string
}

// loaders are those of this process, by context.
var loaders struct {
	mu        sync.Mutex
	byContext map[uintptr]*loader
}

// acquireLoader takes a share in a context's loader.
func acquireLoader(handle uintptr) *loader {
	loaders.mu.Lock()
	defer loaders.mu.Unlock()
	l := loaders.byContext[handle]
	if l == nil {
		if loaders.byContext == nil {
			loaders.byContext = map[uintptr]*loader{}
		}
		l = &loader{handle: handle, modules: map[kernels.Module]*module{}}
		loaders.byContext[handle] = l
	}
	l.users++
	return l
}

// release gives the share back; the last one unloads. The context is current.
func (l *loader) release(d *cuda.Driver) error {
	loaders.mu.Lock()
	defer loaders.mu.Unlock()
	if l.users--; l.users > 0 {
		return nil
	}
	delete(loaders.byContext, l.handle)
	var errs []error
	for _, m := range l.modules {
		if m.handle != 0 {
			errs = append(errs, d.ModuleUnload(m.handle))
		}
	}
	return errors.Join(errs...)
}

// load loads a module, or waits for who does so. The context is current. Loading is harmless to a capture under way, which the
// driver is told.
func (l *loader) load(d *cuda.Driver, name kernels.Module) (*module, error) {
	l.mu.Lock()
	m := l.modules[name]
	if m == nil {
		m = new(module)
		l.modules[name] = m
	}
	l.mu.Unlock()
	m.once.Do(func() {
		image := name.Image()
		if image == nil {
			m.err = fmt.Errorf("this build has no kernels %q", name)
			return
		}
		previous, err := d.ExchangeCaptureMode(cuda.CaptureRelaxed)
		if err == nil {
			defer d.ExchangeCaptureMode(previous)
		}
		if m.handle, m.err = d.ModuleLoad(image); m.err == nil {
			_, m.err = d.LoadFunctions(m.handle)
		}
		if m.err != nil {
			m.err = fmt.Errorf("load the kernels %q: %w", name, m.err)
		}
	})
	return m, m.err
}

// core are the modules to load before the first launch.
func (p *PE) core() []kernels.Module {
	if p.queued {
		return []kernels.Module{kernels.ModuleWait, kernels.ModuleQueue, kernels.ModuleQueueMove}
	}
	return []kernels.Module{kernels.ModuleSync, kernels.ModuleWait, kernels.ModuleMemory, kernels.ModuleMove}
}

// prepare loads the core.
func (p *PE) prepare() {
	defer close(p.hot.ready)
	for _, name := range p.core() {
		select {
		case <-p.stop:
			return
		default:
		}
		err := p.ctx.Do(func() error {
			_, err := p.hot.loader.load(p.d, name)
			return err
		})
		if err != nil { // who needs it gets the error again
			p.log.Debug("kernels", "pe", p.rank, "error", err)
		}
	}
}

// function finds a kernel, loading its module if it must. The context is current; hot.mu is held, and given up meanwhile where
// the kernel has not been used before.
func (p *PE) function(l *kernels.Launch) (uintptr, error) {
	key := functionKey{l.Module, l.Function}
	if f := p.hot.functions[key]; f != 0 {
		return f, nil
	}
	p.hot.mu.Unlock()
	f, err := p.findFunction(key)
	p.hot.mu.Lock()
	if err != nil {
		return 0, err
	}
	p.hot.functions[key] = f
	return f, nil
}

func (p *PE) findFunction(key functionKey) (uintptr, error) {
	<-p.hot.ready
	m, err := p.hot.loader.load(p.d, key.module)
	if err != nil {
		return 0, err
	}
	previous, err := p.d.ExchangeCaptureMode(cuda.CaptureRelaxed)
	if err == nil {
		defer p.d.ExchangeCaptureMode(previous)
	}
	f, err := p.d.Function(m.handle, key.name)
	if err != nil {
		return 0, fmt.Errorf("kernel %s of %s: %w", key.name, key.module, err)
	}
	return f, nil
}

// launch starts a kernel whose parameter is at param. hot.mu is held and the context is current.
func (p *PE) launch(l *kernels.Launch, param unsafe.Pointer, stream uintptr) error {
	f, err := p.function(l)
	if err != nil {
		return err
	}
	h := &p.hot
	h.params[0] = uintptr(param)
	x := h.launch
	x.Function, x.Stream, x.Params = f, stream, h.params[:]
	x.Grid, x.Block = [3]uint32{l.Grid, 1, 1}, [3]uint32{l.Block, 1, 1}
	return p.d.Launch(x)
}

// with is what an operation with one PE is given, beside the state.
type with struct {
	dest, source, bytes    uint64
	signal, value, compare uint64
	destStride, srcStride  int64
	pe, code, kind         uint32
}

// kernel runs an operation with one PE on a stream.
func (p *PE) kernel(name string, op kernels.RMAOperation, a with, stream uintptr) error {
	if p.ctx == nil {
		return p.notMapped(name, int(int32(a.pe)))
	}
	entered, err := p.ctx.Enter()
	if err != nil {
		return wrap(name, err)
	}
	defer p.ctx.Leave(entered)
	h := &p.hot
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		r := h.rma
		r.Dest, r.Source, r.Bytes, r.Signal, r.Value, r.Compare = a.dest, a.source, a.bytes, a.signal, a.value, a.compare
		r.DestStride, r.SourceStride, r.PE, r.Code, r.Type = a.destStride, a.srcStride, a.pe, a.code, a.kind
		r.Queue = ^uint32(0) // layout.QueueDefault
		l, err := r.Plan(op)
		if err != nil {
			return wrap(name, err)
		}
		if h.functions[functionKey{l.Module, l.Function}] == 0 { // others may change the parameters while it is loaded
			if _, err := p.function(&l); err != nil {
				return wrap(name, err)
			}
			continue
		}
		return wrap(name, p.launch(&l, unsafe.Pointer(r), stream))
	}
}

// collect is what a collective operation is given, beside state and team.
type collect struct {
	dest, source, bytes   uint64
	root, kind, reduction uint32
}

// collective runs a collective operation on a stream.
func (p *PE) collective(op kernels.Operation, id TeamID, a collect, stream uintptr) error {
	return p.collectiveOf(op, id, false, a, stream)
}

// collectiveOf is collective, of the team itself or of its twin for blocking calls.
func (p *PE) collectiveOf(op kernels.Operation, id TeamID, host bool, a collect, stream uintptr) error {
	name := op.String()
	if err := p.check(name); err != nil {
		return err
	}
	t, err := p.team(name, id)
	if err != nil {
		return err
	}
	if p.ctx == nil {
		return p.plainCollective(op, t, a)
	}
	entered, err := p.ctx.Enter()
	if err != nil {
		return wrap(name, err)
	}
	defer p.ctx.Leave(entered)
	h := &p.hot
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		c := h.collective
		c.Team = t.entry
		if host {
			c.Team = t.host
		}
		c.Dest, c.Source, c.Bytes, c.Root, c.Type, c.Reduction = a.dest, a.source, a.bytes, a.root, a.kind, a.reduction
		l, err := c.Plan(op, p.ctas)
		if err != nil {
			return wrap(name, err)
		}
		if l.Grid == 0 {
			return nil
		}
		if h.functions[functionKey{l.Module, l.Function}] == 0 {
			if _, err := p.function(&l); err != nil {
				return wrap(name, err)
			}
			continue
		}
		return wrap(name, p.launch(&l, unsafe.Pointer(c), stream))
	}
}

// finish waits for the PE's own stream or a team's and reports what kernels found. Its lock is held.
func (p *PE) finish(name string, stream uintptr) error {
	if p.ctx == nil {
		return p.check(name)
	}
	entered, err := p.ctx.Enter()
	if err != nil {
		return wrap(name, err)
	}
	err = p.d.StreamSynchronize(stream)
	p.ctx.Leave(entered)
	if err != nil {
		return wrap(name, errors.Join(err, p.check(name)))
	}
	return p.check(name)
}

// copyOn copies in the order of a stream, or at once without a GPU.
func (p *PE) copyOn(to, from, bytes uint64, stream uintptr) error {
	if bytes == 0 {
		return nil
	}
	if p.ctx == nil {
		return touch(func() { copy(cuda.Bytes(to, bytes), cuda.Bytes(from, bytes)) })
	}
	entered, err := p.ctx.Enter()
	if err != nil {
		return err
	}
	err = p.d.CopyAsync(to, from, bytes, stream)
	p.ctx.Leave(entered)
	return err
}

// errAddress is wrapped by errors about memory of the program that cannot be read or written.
var errAddress = errors.New("an address without memory that can be used like that")

// touch runs f, which reads or writes memory at an address of the program's, and makes of memory that is not there an error of
// the program's.
func touch(f func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		what := recover()
		switch e := what.(type) {
		case nil:
		case interface {
			runtime.Error
			Addr() uintptr
		}:
			err = fmt.Errorf("%w: %#x", errAddress, e.Addr())
		case runtime.Error:
			err = fmt.Errorf("%w: NULL, or close to it", errAddress)
		default:
			panic(what)
		}
	}()
	f()
	return nil
}

// write copies b to any address and returns when it is there.
func (p *PE) write(to uint64, b []byte) error {
	if p.ctx == nil {
		copy(cuda.Bytes(to, uint64(len(b))), b)
		return nil
	}
	p.hot.serial.Lock()
	defer p.hot.serial.Unlock()
	for len(b) > 0 {
		n := copy(cuda.Bytes(p.hot.stage, stageBytes), b)
		if err := p.copyOn(to, p.hot.stage, uint64(n), p.hot.stream); err != nil {
			return err
		}
		if err := p.ctx.Do(func() error { return p.d.StreamSynchronize(p.hot.stream) }); err != nil {
			return err
		}
		to, b = to+uint64(n), b[n:]
	}
	return nil
}

// read copies from any address to b.
func (p *PE) read(b []byte, from uint64) error {
	if p.ctx == nil {
		copy(b, cuda.Bytes(from, uint64(len(b))))
		return nil
	}
	p.hot.serial.Lock()
	defer p.hot.serial.Unlock()
	for len(b) > 0 {
		n := min(len(b), stageBytes)
		if err := p.copyOn(p.hot.stage, from, uint64(n), p.hot.stream); err != nil {
			return err
		}
		if err := p.ctx.Do(func() error { return p.d.StreamSynchronize(p.hot.stream) }); err != nil {
			return err
		}
		copy(b, cuda.Bytes(p.hot.stage, uint64(n)))
		from, b = from+uint64(n), b[n:]
	}
	return nil
}

// zero clears memory and returns when that is done.
func (p *PE) zero(at, bytes uint64) error {
	if p.ctx == nil {
		clear(cuda.Bytes(at, bytes))
		return nil
	}
	p.hot.serial.Lock()
	defer p.hot.serial.Unlock()
	return p.ctx.Do(func() error {
		if err := p.d.SetAsync(at, 0, bytes, p.hot.stream); err != nil {
			return err
		}
		return p.d.StreamSynchronize(p.hot.stream)
	})
}

// readWord and writeWord move one word as a whole.
func (p *PE) readWord(at uint64) (uint64, error) {
	if p.ctx == nil {
		return atomic.LoadUint64(hostPointer[uint64](at)), nil
	}
	var b [8]byte
	err := p.read(b[:], at)
	return *(*uint64)(unsafe.Pointer(&b)), err
}

func (p *PE) writeWord(at, value uint64) error {
	if p.ctx == nil {
		storeWord(at, value)
		return nil
	}
	return p.write(at, (*[8]byte)(unsafe.Pointer(&value))[:])
}

func storeWord(at, value uint64) { atomic.StoreUint64(hostPointer[uint64](at), value) }

// hostPointer is memory of this process outside of Go's heap.
func hostPointer[T any](at uint64) *T { return *(**T)(unsafe.Pointer(&at)) }
