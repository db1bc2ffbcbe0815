package cuda

import (
	"runtime"
	"unsafe"
)

// modules are the calls about modules and kernels.
type modules struct{ *library }

// ModuleLoad loads PTX text or a cubin. PTX must end with a zero byte, which is added where it is missing. PTX is
// compiled by the driver now, unless its cache has the result.
func (c *modules) ModuleLoad(image []byte) (uintptr, error) {
	if n := len(image); n > 0 && image[0] != 0x7f && image[n-1] != 0 {
		image = append(image[:n:n], 0)
	}
	if len(image) == 0 {
		return 0, c.fail(cuModuleLoadData, InvalidValue)
	}
	var m uintptr
	err := c.call(cuModuleLoadData, uintptr(unsafe.Pointer(&m)), uintptr(unsafe.Pointer(&image[0])))
	runtime.KeepAlive(image)
	return m, err
}

// ModuleUnload unloads a module.
func (c *modules) ModuleUnload(m uintptr) error { return c.call(cuModuleUnload, m) }

// Function finds a kernel in a module.
func (c *modules) Function(m uintptr, name string) (uintptr, error) {
	text := append([]byte(name), 0)
	var f uintptr
	err := c.call(cuModuleGetFunction, uintptr(unsafe.Pointer(&f)), m, uintptr(unsafe.Pointer(&text[0])))
	runtime.KeepAlive(text)
	return f, err
}

// Launch is a kernel launch. Params are the addresses of the parameters, which must stay where they are until the call
// has returned: they must be on the heap, reachable by their owner.
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
func (c *modules) Launch(l *Launch) error {
	var params uintptr
	if len(l.Params) > 0 {
		params = uintptr(unsafe.Pointer(&l.Params[0]))
	}
	i := cuLaunchKernel
	var r Result
	if l.Cooperative {
		i = cuLaunchCooperativeKernel
		r = c.result(i, l.Function, uintptr(l.Grid[0]), uintptr(l.Grid[1]), uintptr(l.Grid[2]), uintptr(l.Block[0]),
			uintptr(l.Block[1]), uintptr(l.Block[2]), uintptr(l.Shared), l.Stream, params)
	} else {
		r = c.result(i, l.Function, uintptr(l.Grid[0]), uintptr(l.Grid[1]), uintptr(l.Grid[2]), uintptr(l.Block[0]),
			uintptr(l.Block[1]), uintptr(l.Block[2]), uintptr(l.Shared), l.Stream, params, 0)
	}
	runtime.KeepAlive(l)
	if r != Success {
		return c.fail(i, r)
	}
	return nil
}

// LoadFunctions loads all kernels of a module now, and returns how many. Without it the driver loads each at its first
// launch, which may have to wait for kernels that run: a deadlock if they wait for the one to be loaded. Drivers older
// than CUDA 12.4 cannot list a module's kernels; with them the call does nothing.
func (c *modules) LoadFunctions(m uintptr) (int, error) {
	if c.fn[cuModuleGetFunctionCount] == 0 || c.fn[cuModuleEnumerateFunctions] == 0 || c.fn[cuFuncLoad] == 0 {
		return 0, nil
	}
	var n uint32
	if err := c.call(cuModuleGetFunctionCount, uintptr(unsafe.Pointer(&n)), m); err != nil || n == 0 {
		return 0, err
	}
	list := make([]uintptr, n)
	if err := c.call(cuModuleEnumerateFunctions, uintptr(unsafe.Pointer(&list[0])), uintptr(n), m); err != nil {
		return 0, err
	}
	for _, f := range list {
		if err := c.call(cuFuncLoad, f); err != nil {
			return 0, err
		}
	}
	return int(n), nil
}
