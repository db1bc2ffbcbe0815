"""The driver's API by ctypes: what compat.py can run on any machine, on the software GPU too."""
import ctypes
import os
import threading

KERNEL = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry add(.param .u64 data, .param .u32 count)
{
	.reg .pred %p;
	.reg .b32 %r<6>;
	.reg .b64 %d<4>;
	ld.param.u64 %d1, [data];
	ld.param.u32 %r1, [count];
	mov.u32 %r2, %ctaid.x;
	mov.u32 %r3, %ntid.x;
	mov.u32 %r4, %tid.x;
	mad.lo.s32 %r5, %r2, %r3, %r4;
	setp.ge.u32 %p, %r5, %r1;
	@%p bra END;
	cvta.to.global.u64 %d1, %d1;
	mul.wide.u32 %d2, %r5, 4;
	add.s64 %d3, %d1, %d2;
	ld.global.u32 %r2, [%d3];
	add.s32 %r2, %r2, %r5;
	st.global.u32 [%d3], %r2;
END:
	ret;
}
"""
COUNT = 100000


class Driver:
    """The driver's library with one context; a call that fails raises."""

    def __init__(self, name="libcuda.so.1"):
        self.library = ctypes.CDLL(name)
        self.call("cuInit", 0)
        self.context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.current()

    def current(self):
        self.call("cuCtxSetCurrent", self.context)

    def call(self, name, *args):
        result = getattr(self.library, name)(*args)
        if result != 0:
            raise RuntimeError(f"{name}: error {result}")

    def allocate(self, size):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address

    def kernel(self):
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), KERNEL)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"add")
        return function

    def launch(self, function, data, stream=None):
        count = ctypes.c_uint32(COUNT)
        pointers = (ctypes.c_void_p * 2)(ctypes.addressof(data), ctypes.addressof(count))
        self.call("cuLaunchKernel", function, (COUNT + 255) // 256, 1, 1, 256, 1, 1, 0, stream, pointers, None)

    def zeroed(self):
        data = self.allocate(4 * COUNT)
        self.call("cuMemsetD32_v2", data, 0, ctypes.c_size_t(COUNT))
        self.call("cuCtxSynchronize")  # other streams do not wait for the default one when they are captured
        return data

    def check(self, data, times):
        host = (ctypes.c_uint32 * COUNT)()
        self.call("cuMemcpyDtoH_v2", host, data, ctypes.c_size_t(4 * COUNT))
        for i in (0, 1, COUNT // 2, COUNT - 1):
            if host[i] != i * times:
                raise RuntimeError(f"element {i} is {host[i]} after {times} launches, not {i * times}")


def kernels():
    d = Driver()
    function, data = d.kernel(), d.zeroed()
    for _ in range(50):
        d.launch(function, data)
    d.check(data, 50)


def graph():
    d = Driver()
    function, data, stream, made, runnable = d.kernel(), d.zeroed(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    d.call("cuStreamCreate", ctypes.byref(stream), 1)
    d.call("cuStreamBeginCapture_v2", stream, 0)
    for _ in range(10):
        d.launch(function, data, stream)
    d.call("cuStreamEndCapture", stream, ctypes.byref(made))
    d.call("cuGraphInstantiateWithFlags", ctypes.byref(runnable), made, ctypes.c_ulonglong(0))
    for _ in range(20):
        d.call("cuGraphLaunch", runnable, stream)
    d.call("cuStreamSynchronize", stream)
    d.check(data, 200)


def threads():
    d = Driver()
    function, failures = d.kernel(), []

    def work():
        try:
            d.current()
            data = d.zeroed()
            for _ in range(20):
                d.launch(function, data)
            d.check(data, 20)
        except Exception as e:  # the thread's, to be told by the program
            failures.append(e)

    all_threads = [threading.Thread(target=work) for _ in range(4)]
    for t in all_threads:
        t.start()
    for t in all_threads:
        t.join()
    if failures:
        raise failures[0]


def fork():
    """A child that was forked before the driver was used, and one of its own."""
    child = os.fork()
    if child == 0:
        os._exit(_status(kernels))
    kernels()
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
        raise RuntimeError("the child failed")


def _status(work):
    try:
        work()
        return 0
    except Exception as e:  # to be told as a status
        print("child:", e)
        return 1


def memory():
    """All the memory there is, an error that can be caught, and then more work."""
    d, held, size = Driver(), [], 64 << 20
    try:
        while len(held) < 1 << 16:
            held.append(d.allocate(size))
    except RuntimeError as e:
        if "error 2" not in str(e):  # CUDA_ERROR_OUT_OF_MEMORY
            raise
    if not held:
        raise RuntimeError("there was no memory at all")
    for address in held:
        d.call("cuMemFree_v2", address)
    d.check(d.zeroed(), 0)


def nvml():
    library, count = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_uint()
    if library.nvmlInit_v2() != 0 or library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0 or count.value == 0:
        raise RuntimeError("NVML shows no device")
    kernels()


def plugin():
    """The driver's library with its own symbols first, as plug-ins of some programs have it."""
    ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOW | os.RTLD_DEEPBIND)
    kernels()


CASES = {
    "driver kernels": kernels, "driver graph": graph, "driver threads": threads, "driver fork": fork,
    "driver memory": memory, "driver NVML": nvml, "driver deep-bound": plugin,
}
