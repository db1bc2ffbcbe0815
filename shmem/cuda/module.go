package cuda

import (
	"runtime"
	"unsafe"
)

// ModuleLoad loads PTX text or a cubin. PTX must end with a zero byte, which is added where it is missing. PTX is compiled
// by the driver now, unless its cache has the result.
func (d *Driver) ModuleLoad(image []byte) (uintptr, error) {
	if n := len(image); n > 0 && image[0] != 0x7f && image[n-1] != 0 {
		image = append(image[:n:n], 0)
	}
	if len(image) == 0 {
		return 0, d.fail(cuModuleLoadData, InvalidValue)
	}
	var m uintptr
	err := d.call(cuModuleLoadData, uintptr(unsafe.Pointer(&m)), uintptr(unsafe.Pointer(&image[0])))
	runtime.KeepAlive(image)
	return m, err
}

// ModuleUnload unloads a module.
func (d *Driver) ModuleUnload(m uintptr) error { return d.call(cuModuleUnload, m) }

// Function finds a kernel in a module.
func (d *Driver) Function(m uintptr, name string) (uintptr, error) {
	text := append([]byte(name), 0)
	var f uintptr
	err := d.call(cuModuleGetFunction, uintptr(unsafe.Pointer(&f)), m, uintptr(unsafe.Pointer(&text[0])))
	runtime.KeepAlive(text)
	return f, err
}

// Global finds a variable in a module.
func (d *Driver) Global(m uintptr, name string) (address, bytes uint64, err error) {
	text := append([]byte(name), 0)
	out := new([2]uint64)
	err = d.call(cuModuleGetGlobal, uintptr(unsafe.Pointer(&out[0])), uintptr(unsafe.Pointer(&out[1])), m, uintptr(unsafe.Pointer(&text[0])))
	runtime.KeepAlive(text)
	return out[0], out[1], err
}

// MaxDynamicSharedMemory is the function attribute that allows more than 48 KiB.
const MaxDynamicSharedMemory = 8

// FunctionSet sets an attribute of a kernel.
func (d *Driver) FunctionSet(f uintptr, attribute, value int) error {
	return d.call(cuFuncSetAttribute, f, uintptr(attribute), uintptr(value))
}

// FunctionGet returns an attribute of a kernel.
func (d *Driver) FunctionGet(attribute int, f uintptr) (int, error) {
	var v int32
	err := d.call(cuFuncGetAttribute, uintptr(unsafe.Pointer(&v)), uintptr(attribute), f)
	return int(v), err
}

// MaxBlocksPerUnit is how many blocks of a kernel run on one multiprocessor at once.
func (d *Driver) MaxBlocksPerUnit(f uintptr, threads int, shared uint64) (int, error) {
	var n int32
	err := d.call(cuOccupancyMaxActiveBlocksPerMultiprocessor, uintptr(unsafe.Pointer(&n)), f, uintptr(threads), uintptr(shared))
	return int(n), err
}

// Launch is a kernel launch. Params are the addresses of the parameters, which must stay where they are until the call has
// returned: they must be on the heap, reachable by their owner.
type Launch struct {
	Function    uintptr
	Grid, Block [3]uint32
	Shared      uint32
	Stream      uintptr
	Params      []uintptr
	// Cooperative: all blocks must run at once; the launch fails where they cannot.
	Cooperative bool
}

// Launch starts a kernel in the order of a stream. It allocates nothing.
func (d *Driver) Launch(l *Launch) error {
	var params uintptr
	if len(l.Params) > 0 {
		params = uintptr(unsafe.Pointer(&l.Params[0]))
	}
	i := cuLaunchKernel
	var r Result
	if l.Cooperative {
		i = cuLaunchCooperativeKernel
		r = d.result(i, l.Function, uintptr(l.Grid[0]), uintptr(l.Grid[1]), uintptr(l.Grid[2]), uintptr(l.Block[0]),
			uintptr(l.Block[1]), uintptr(l.Block[2]), uintptr(l.Shared), l.Stream, params)
	} else {
		r = d.result(i, l.Function, uintptr(l.Grid[0]), uintptr(l.Grid[1]), uintptr(l.Grid[2]), uintptr(l.Block[0]),
			uintptr(l.Block[1]), uintptr(l.Block[2]), uintptr(l.Shared), l.Stream, params, 0)
	}
	runtime.KeepAlive(l)
	if r != Success {
		return d.fail(i, r)
	}
	return nil
}

// HostFunc calls a C function of one pointer argument in the order of a stream.
func (d *Driver) HostFunc(s, function, argument uintptr) error {
	return d.call(cuLaunchHostFunc, s, function, argument)
}

// LoadFunctions loads all kernels of a module now, and returns how many. Else the driver loads each at its first launch, which
// may have to wait for kernels that run: a deadlock if they wait for the one to be loaded. Drivers older than CUDA 12.4 cannot
// list a module's kernels; there it does nothing.
func (d *Driver) LoadFunctions(m uintptr) (int, error) {
	if d.fn[cuModuleGetFunctionCount] == 0 || d.fn[cuModuleEnumerateFunctions] == 0 || d.fn[cuFuncLoad] == 0 {
		return 0, nil
	}
	var n uint32
	if err := d.call(cuModuleGetFunctionCount, uintptr(unsafe.Pointer(&n)), m); err != nil || n == 0 {
		return 0, err
	}
	list := make([]uintptr, n)
	if err := d.call(cuModuleEnumerateFunctions, uintptr(unsafe.Pointer(&list[0])), uintptr(n), m); err != nil {
		return 0, err
	}
	for _, f := range list {
		if err := d.call(cuFuncLoad, f); err != nil {
			return 0, err
		}
	}
	return int(n), nil
}
