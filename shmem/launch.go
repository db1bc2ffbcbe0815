package shmem

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/kernels"
	"github.com/lgpu/lgpu/shmem/layout"
)

// launcher starts kernels in the executor's context. It reuses the memory for their parameters: launches allocate
// nothing, and are one at a time.
type launcher struct {
	exec   *executor
	ctas   int           // most CTAs of a collective kernel
	loader *loader       // nil without a GPU
	ready  chan struct{} // closed when the modules that most programs need are loaded

	mu sync.Mutex
	// rma and collective are the parameters of the kernel being launched; params points to one of them.
	// +checklocks:mu
	rma *kernels.RMA
	// +checklocks:mu
	collective *kernels.Collective
	// +checklocks:mu
	launch *cuda.Launch
	// +checklocks:mu
	params [1]uintptr
	// +checklocks:mu
	functions map[functionKey]uintptr
}

// functionKey names a kernel.
type functionKey struct {
	module kernels.Module
	name   string
}

// with is what an operation with one PE is given, beside the state.
type with struct {
	dest, source, bytes    uint64
	signal, value, compare uint64
	destStride, srcStride  int64
	pe, code, kind         uint32
}

// collect is what a collective operation is given, beside state and team.
type collect struct {
	dest, source, bytes   uint64
	root, kind, reduction uint32
}

// start prepares for launches with this state, and begins to load modules. queued says that some PE is reached by
// queues.
func (l *launcher) start(s *layout.State, ctas int, queued bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ctas = ctas
	l.functions = map[functionKey]uintptr{}
	l.rma, l.collective, l.launch = &kernels.RMA{State: *s}, &kernels.Collective{State: *s}, new(cuda.Launch)
	if l.exec.plain() {
		return
	}
	l.loader, l.ready = acquireLoader(l.exec.ctx.Handle), make(chan struct{})
	core := []kernels.Module{kernels.ModuleSync, kernels.ModuleWait, kernels.ModuleMemory, kernels.ModuleMove}
	if queued {
		core = []kernels.Module{kernels.ModuleWait, kernels.ModuleQueue, kernels.ModuleQueueMove}
	}
	l.exec.job.watching.Go(func() { l.prepare(core) })
}

// prepare loads the modules that most programs need.
func (l *launcher) prepare(core []kernels.Module) {
	defer close(l.ready)
	for _, name := range core {
		select {
		case <-l.exec.job.stop:
			return
		default:
		}
		err := l.exec.ctx.Do(func() error {
			_, err := l.loader.load(l.exec.d, name)
			return err
		})
		if err != nil { // the call that needs it gets the error again
			l.exec.job.log.Debug("kernels", "pe", l.exec.job.rank, "error", err)
		}
	}
}

// unloadLocked gives the modules back. The caller holds mu, and the context is current.
func (l *launcher) unloadLocked() error {
	if l.loader == nil {
		return nil
	}
	clear(l.functions)
	return l.loader.release(l.exec.d)
}

// functionLocked finds a kernel, loading its module if it must. The context is current. The caller holds mu, which is
// released meanwhile where the kernel has not been used before; found is false then.
func (l *launcher) functionLocked(k *kernels.Launch) (f uintptr, found bool, err error) {
	key := functionKey{k.Module, k.Function}
	if f := l.functions[key]; f != 0 {
		return f, true, nil
	}
	l.mu.Unlock()
	f, err = l.find(key)
	l.mu.Lock()
	if err == nil {
		l.functions[key] = f
	}
	return f, false, err
}

func (l *launcher) find(key functionKey) (uintptr, error) {
	<-l.ready
	d := l.exec.d
	m, err := l.loader.load(d, key.module)
	if err != nil {
		return 0, err
	}
	previous, err := d.ExchangeCaptureMode(cuda.CaptureRelaxed)
	if err == nil {
		defer d.ExchangeCaptureMode(previous)
	}
	f, err := d.Function(m.handle, key.name)
	if err != nil {
		return 0, fmt.Errorf("kernel %s of %s: %w", key.name, key.module, err)
	}
	return f, nil
}

// launchLocked starts a kernel whose parameter is at param. The caller holds mu, and the context is current.
func (l *launcher) launchLocked(f uintptr, k *kernels.Launch, param unsafe.Pointer, stream uintptr) error {
	l.params[0] = uintptr(param)
	x := l.launch
	x.Function, x.Stream, x.Params = f, stream, l.params[:]
	x.Grid, x.Block = [3]uint32{k.Grid, 1, 1}, [3]uint32{k.Block, 1, 1}
	return l.exec.d.Launch(x)
}

// runRMA runs an operation with one PE on a stream.
func (l *launcher) runRMA(name string, op kernels.RMAOperation, a with, stream uintptr) error {
	if l.exec.plain() {
		return notMapped(name, int(int32(a.pe)))
	}
	return l.run(name, stream, func() (kernels.Launch, unsafe.Pointer, error) {
		r := l.rma
		r.Dest, r.Source, r.Bytes, r.Signal, r.Value, r.Compare = a.dest, a.source, a.bytes, a.signal, a.value, a.compare
		r.DestStride, r.SourceStride, r.PE, r.Code, r.Type = a.destStride, a.srcStride, a.pe, a.code, a.kind
		r.Queue = ^uint32(0) // layout.QueueDefault
		k, err := r.Plan(op)
		return k, unsafe.Pointer(r), err
	})
}

// runCollective runs a collective operation of a team on a stream.
func (l *launcher) runCollective(op kernels.Operation, team *layout.Team, a collect, stream uintptr) error {
	return l.run(op.String(), stream, func() (kernels.Launch, unsafe.Pointer, error) {
		c := l.collective
		c.Team = *team
		c.Dest, c.Source, c.Bytes, c.Root, c.Type, c.Reduction = a.dest, a.source, a.bytes, a.root, a.kind, a.reduction
		k, err := c.Plan(op, l.ctas)
		return k, unsafe.Pointer(c), err
	})
}

// run launches what plan returns: a kernel and its parameters, which it has filled in. plan is called with mu held, and
// again if loading the kernel has released mu meanwhile. A kernel without CTAs is nothing to do.
func (l *launcher) run(name string, stream uintptr, plan func() (kernels.Launch, unsafe.Pointer, error)) error {
	entered, err := l.exec.ctx.Enter()
	if err != nil {
		return wrap(name, err)
	}
	defer l.exec.ctx.Leave(entered)
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		k, param, err := plan()
		if err != nil || k.Grid == 0 {
			return wrap(name, err)
		}
		f, found, err := l.functionLocked(&k)
		if err != nil {
			return wrap(name, err)
		}
		if found { // else other calls may have changed the parameters while it was loaded
			return wrap(name, l.launchLocked(f, &k, param, stream))
		}
	}
}
