package driver

import (
	"slices"

	"github.com/lgpu/lgpu/sim/wire"
)

// ModuleLoadData is cuModuleLoadDataEx.
func (p *Process) ModuleLoadData(call *wire.Call, image []byte, keys []wire.CUjit_option, values []uint64, infoSize, errorSize uint32) (wire.CUmodule, []byte, []byte, wire.CUresult) {
	p.flush(call)
	_, unlock, res := p.enter(call)
	unlock()
	if res != success {
		return 0, nil, nil, res
	}
	source, log, res := p.parse(image, compileOptions(keys, values), errorSize)
	if res != success {
		return 0, text("", infoSize), log, res
	}
	c, unlock, res := p.enter(call)
	defer unlock()
	if res != success {
		return 0, nil, nil, res
	}
	m, res := c.load(source)
	if res != success {
		return 0, text("", infoSize), text("the module does not link", errorSize), res
	}
	return wire.CUmodule(m.handle), text("", infoSize), text("", errorSize), success
}

// ModuleUnload is cuModuleUnload.
func (p *Process) ModuleUnload(call *wire.Call, h wire.CUmodule) wire.CUresult {
	defer p.flush(call)
	defer p.lock()()
	m := lookup[module](&p.handles, uint64(h))
	if m == nil || m.library != nil {
		return errInvalidHandle
	}
	if m.ctx.fault == success {
		m.ctx.synchronize()
		if lookup[module](&p.handles, uint64(h)) != m {
			return errInvalidHandle
		}
	}
	p.unload(m)
	return success
}

// ModuleGetFunction is cuModuleGetFunction.
func (p *Process) ModuleGetFunction(_ *wire.Call, h wire.CUmodule, name string) (wire.CUfunction, wire.CUresult) {
	defer p.lock()()
	m := lookup[module](&p.handles, uint64(h))
	if m == nil {
		return 0, errInvalidHandle
	}
	f := m.function(name)
	if f == nil {
		return 0, errNotFound
	}
	return wire.CUfunction(f.handle), success
}

// ModuleGetFunctionCount is cuModuleGetFunctionCount.
func (p *Process) ModuleGetFunctionCount(_ *wire.Call, h wire.CUmodule) (uint32, wire.CUresult) {
	defer p.lock()()
	m := lookup[module](&p.handles, uint64(h))
	if m == nil {
		return 0, errInvalidHandle
	}
	return uint32(len(m.parsed.Kernels)), success
}

// ModuleEnumerateFunctions is cuModuleEnumerateFunctions.
func (p *Process) ModuleEnumerateFunctions(_ *wire.Call, n uint32, h wire.CUmodule) ([]wire.CUfunction, wire.CUresult) {
	defer p.lock()()
	m := lookup[module](&p.handles, uint64(h))
	if m == nil {
		return nil, errInvalidHandle
	}
	var out []wire.CUfunction
	for _, name := range names(m.parsed) {
		if uint32(len(out)) == n {
			break
		}
		out = append(out, wire.CUfunction(m.function(name).handle))
	}
	return out, success
}

// ModuleGetGlobal is cuModuleGetGlobal.
func (p *Process) ModuleGetGlobal(_ *wire.Call, h wire.CUmodule, name string) (wire.CUdeviceptr, uint64, wire.CUresult) {
	defer p.lock()()
	m := lookup[module](&p.handles, uint64(h))
	if m == nil {
		return 0, 0, errInvalidHandle
	}
	v, ok := m.globals[name]
	if !ok {
		return 0, 0, errNotFound
	}
	return wire.CUdeviceptr(v.addr), v.size, success
}

// LibraryLoadData is cuLibraryLoadData: nothing is loaded into a context before it is used there, unless the
// process loads eagerly. Then all contexts have it at once, and those to come when they are made.
func (p *Process) LibraryLoadData(_ *wire.Call, image []byte, keys []wire.CUjit_option, values []uint64, _ []wire.CUlibraryOption, _ []uint64, infoSize, errorSize uint32) (wire.CUlibrary, []byte, []byte, wire.CUresult) {
	source, log, res := p.parse(image, compileOptions(keys, values), errorSize)
	if res != success {
		return 0, text("", infoSize), log, res
	}
	defer p.lock()()
	l := &library{code: source, parsed: source.parsed, modules: map[*context]*module{}, kernels: map[string]*kernel{}}
	for name, k := range source.parsed.Kernels {
		lk := &kernel{library: l, kernel: k, maxDynamic: -1}
		lk.handle = p.handles.add(kindKernel, lk)
		l.kernels[name] = lk
	}
	l.handle = p.handles.add(kindLibrary, l)
	p.libraries = append(p.libraries, l)
	if p.eager {
		for _, c := range p.contexts {
			if _, res := l.moduleIn(c); res != success {
				p.unloadLibrary(l)
				return 0, text("", infoSize), text("the library does not load", errorSize), res
			}
		}
	}
	return wire.CUlibrary(l.handle), text("", infoSize), text("", errorSize), success
}

// LibraryUnload is cuLibraryUnload.
func (p *Process) LibraryUnload(_ *wire.Call, h wire.CUlibrary) wire.CUresult {
	defer p.lock()()
	l := lookup[library](&p.handles, uint64(h))
	if l == nil {
		return errInvalidHandle
	}
	for c := range l.modules {
		if c.fault == success {
			c.synchronize()
		}
	}
	if lookup[library](&p.handles, uint64(h)) != l {
		return errInvalidHandle
	}
	p.unloadLibrary(l)
	return success
}

// unloadLibrary frees a library in every context.
func (p *Process) unloadLibrary(l *library) {
	for _, m := range l.modules {
		p.unload(m)
	}
	for _, k := range l.kernels {
		p.handles.remove(k.handle)
	}
	p.handles.remove(l.handle)
	p.libraries = slices.DeleteFunc(p.libraries, func(o *library) bool { return o == l })
}

// LibraryGetKernel is cuLibraryGetKernel.
func (p *Process) LibraryGetKernel(_ *wire.Call, h wire.CUlibrary, name string) (wire.CUkernel, wire.CUresult) {
	defer p.lock()()
	l := lookup[library](&p.handles, uint64(h))
	if l == nil {
		return 0, errInvalidHandle
	}
	k := l.kernels[name]
	if k == nil {
		return 0, errNotFound
	}
	return wire.CUkernel(k.handle), success
}

// LibraryGetKernelCount is cuLibraryGetKernelCount.
func (p *Process) LibraryGetKernelCount(_ *wire.Call, h wire.CUlibrary) (uint32, wire.CUresult) {
	defer p.lock()()
	l := lookup[library](&p.handles, uint64(h))
	if l == nil {
		return 0, errInvalidHandle
	}
	return uint32(len(l.kernels)), success
}

// LibraryEnumerateKernels is cuLibraryEnumerateKernels.
func (p *Process) LibraryEnumerateKernels(_ *wire.Call, n uint32, h wire.CUlibrary) ([]wire.CUkernel, wire.CUresult) {
	defer p.lock()()
	l := lookup[library](&p.handles, uint64(h))
	if l == nil {
		return nil, errInvalidHandle
	}
	var out []wire.CUkernel
	for _, name := range names(l.parsed) {
		if uint32(len(out)) == n {
			break
		}
		out = append(out, wire.CUkernel(l.kernels[name].handle))
	}
	return out, success
}

// libraryIn finds a library's module in the calling thread's context.
func (p *Process) libraryIn(c *context, h wire.CUlibrary) (*module, Result) {
	l := lookup[library](&p.handles, uint64(h))
	if l == nil {
		return nil, errInvalidHandle
	}
	return l.moduleIn(c)
}

// LibraryGetModule is cuLibraryGetModule.
func (p *Process) LibraryGetModule(call *wire.Call, h wire.CUlibrary) (wire.CUmodule, wire.CUresult) {
	c, unlock, res := p.enter(call)
	defer unlock()
	if res != success {
		return 0, res
	}
	m, res := p.libraryIn(c, h)
	if res != success {
		return 0, res
	}
	return wire.CUmodule(m.handle), success
}

// LibraryGetGlobal is cuLibraryGetGlobal.
func (p *Process) LibraryGetGlobal(call *wire.Call, h wire.CUlibrary, name string) (wire.CUdeviceptr, uint64, wire.CUresult) {
	c, unlock, res := p.enter(call)
	defer unlock()
	if res != success {
		return 0, 0, res
	}
	m, res := p.libraryIn(c, h)
	if res != success {
		return 0, 0, res
	}
	v, ok := m.globals[name]
	if !ok {
		return 0, 0, errNotFound
	}
	return wire.CUdeviceptr(v.addr), v.size, success
}

// LibraryGetManaged is cuLibraryGetManaged: managed variables live in each context here, so there is none to be found.
func (p *Process) LibraryGetManaged(_ *wire.Call, h wire.CUlibrary, _ string) (wire.CUdeviceptr, uint64, wire.CUresult) {
	defer p.lock()()
	if lookup[library](&p.handles, uint64(h)) == nil {
		return 0, 0, errInvalidHandle
	}
	return 0, 0, errNotFound
}

// KernelGetFunction is cuKernelGetFunction.
func (p *Process) KernelGetFunction(call *wire.Call, h wire.CUkernel) (wire.CUfunction, wire.CUresult) {
	c, unlock, res := p.enter(call)
	defer unlock()
	if res != success {
		return 0, res
	}
	if lookup[kernel](&p.handles, uint64(h)) == nil {
		return 0, errInvalidHandle
	}
	f, res := p.functionOf(uint64(h), c)
	if res != success {
		return 0, res
	}
	return wire.CUfunction(f.handle), success
}

// KernelGetLibrary is cuKernelGetLibrary.
func (p *Process) KernelGetLibrary(_ *wire.Call, h wire.CUkernel) (wire.CUlibrary, wire.CUresult) {
	defer p.lock()()
	k := lookup[kernel](&p.handles, uint64(h))
	if k == nil {
		return 0, errInvalidHandle
	}
	return wire.CUlibrary(k.library.handle), success
}

// KernelGetAttribute is cuKernelGetAttribute.
func (p *Process) KernelGetAttribute(_ *wire.Call, attr wire.CUfunction_attribute, h wire.CUkernel, dev wire.CUdevice) (int32, wire.CUresult) {
	defer p.lock()()
	k := lookup[kernel](&p.handles, uint64(h))
	if k == nil {
		return 0, errInvalidHandle
	}
	if _, res := p.device(dev); res != success {
		return 0, res
	}
	dynamic := k.maxDynamic
	if dynamic < 0 {
		dynamic = max(sharedDefault-k.kernel.SharedBytes, 0)
	}
	return functionAttribute(k.kernel, k.library.parsed, dynamic, -1, attr)
}

// KernelSetAttribute is cuKernelSetAttribute: it holds for the modules the kernel is loaded in, and those to come.
func (p *Process) KernelSetAttribute(_ *wire.Call, attr wire.CUfunction_attribute, val int32, h wire.CUkernel, dev wire.CUdevice) wire.CUresult {
	defer p.lock()()
	k := lookup[kernel](&p.handles, uint64(h))
	if k == nil {
		return errInvalidHandle
	}
	if _, res := p.device(dev); res != success {
		return res
	}
	probe := function{kernel: k.kernel}
	if res := probe.set(attr, val); res != success {
		return res
	}
	if attr == wire.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES {
		k.maxDynamic = int(val)
	}
	for _, m := range k.library.modules {
		if f := m.functions[k.kernel.Name]; f != nil {
			f.set(attr, val)
		}
	}
	return success
}

// KernelSetCacheConfig is cuKernelSetCacheConfig, a hint.
func (p *Process) KernelSetCacheConfig(_ *wire.Call, h wire.CUkernel, config wire.CUfunc_cache, dev wire.CUdevice) wire.CUresult {
	defer p.lock()()
	if lookup[kernel](&p.handles, uint64(h)) == nil {
		return errInvalidHandle
	}
	if config < 0 || config > 3 {
		return errInvalidValue
	}
	_, res := p.device(dev)
	return res
}

// KernelGetName is cuKernelGetName.
func (p *Process) KernelGetName(_ *wire.Call, h wire.CUkernel, length uint32) ([]byte, wire.CUresult) {
	defer p.lock()()
	k := lookup[kernel](&p.handles, uint64(h))
	if k == nil {
		return nil, errInvalidHandle
	}
	return text(k.kernel.Name, length), success
}
