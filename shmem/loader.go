package shmem

import (
	"errors"
	"fmt"
	"sync"

	"github.com/lgpu/lgpu/shmem/cuda"
	"github.com/lgpu/lgpu/shmem/kernels"
)

// loader has the kernels of a context, for all PEs that work in it.
//
// To load a module, the driver may have to wait for kernels that run in the context, and calls of other threads wait
// for that. So loading a module while a kernel waits for another PE can deadlock, if that PE waits for a kernel that is
// yet to be launched here. Hence the modules that most programs need are loaded before the first kernel is launched,
// once for all PEs of a context; the others when they are first asked for, before their kernel is launched.
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

// loaders are the loaders of this process, by context.
var loaders struct {
	mu        sync.Mutex
	byContext map[uintptr]*loader
}

// acquireLoader counts one more user of a context's loader.
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

// release counts one user less; the last one unloads. The context is current.
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

// load loads a module, or waits for the goroutine that does so. The context is current. The driver is told that loading
// is harmless to a stream capture in progress.
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
