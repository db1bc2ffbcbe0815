"""lshmem: symmetric memory between GPUs, from Python. It needs liblshmem.so; with PyTorch, memory comes as tensors.

    import lshmem, torch
    pe = lshmem.init()                                   # started by: lgpu run --pes 2 -- python3 program.py
    x = pe.zeros(1024, dtype=torch.float32)              # all PEs, the same size; on this PE's GPU
    y = pe.empty(1024, dtype=torch.float32)
    pe.put(x, torch.full_like(x, 7.0), (pe.rank + 1) % pe.size)
    pe.barrier()                                         # on torch's current stream, like everything here
    pe.reduce(y, x, "sum")
    pe.free(y); pe.free(x)
    pe.finalize()

Inside torch.distributed: pe = lshmem.init(store=dist.distributed_c10d._get_default_store(), rank=dist.get_rank(),
size=dist.get_world_size()).

# Streams

Operations take stream=None: torch's current stream where torch is loaded and the heap is on a device, else the call
itself does the work before it returns. A number is a CUstream; HOST is "do it now".

# Memory

Memory is freed by pe.free or Buffer.free, which are collective, never by the garbage collector: PEs collect at different
times. Tensors hold their Buffer. Freeing takes the memory away from the tensors that this module made; where other views
of it are alive it raises instead. All PEs must free the same things in the same order.

# Interrupts

KeyboardInterrupt comes when the library's call returns: a barrier or wait that does it now lasts until the others come,
one of them dies, or LSHMEM_TIMEOUT has passed. SIGTERM ends a process at once, and thereby the others' waits.

# Fork

The library brings threads. Load it after forking, or use spawn (torch's DataLoader: multiprocessing_context="spawn").
"""
import ctypes
import json
import math
import os
import sys
import weakref

__all__ = ["init", "get_uniqueid", "version", "library", "PE", "Buffer", "Error", "HOST", "EQ", "NE", "GT", "LE", "LT", "GE", "SET", "ADD",
           "WORLD", "SHARED", "NODE", "SAME_MYPE_NODE", "SAME_GPU"]

EQ, NE, GT, LE, LT, GE = range(6)
SET, ADD = 9, 10  # what a signal does
WORLD, SHARED, NODE, SAME_MYPE_NODE, SAME_GPU = range(5)
HOST = "host"  # as a stream: do it now

STATE_BYTES_MAX = 1024
_TYPES = {name: i for i, name in enumerate(
    ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64"))}
_TYPES.update({"half": 8, "float": 10, "double": 11, "bool": 1, "short": 2, "int": 4, "long": 6})
_BYTES = (1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8)
_REDUCTIONS = {name: i for i, name in enumerate(("sum", "prod", "min", "max", "and", "or", "xor"))}
_ATOMICS = {name: i for i, name in enumerate(("set", "add", "and", "or", "xor", "compare_swap"))}


class Error(RuntimeError):
    """What the library refused. status is one of the following, the text says what happened."""

    TIMEOUT, PEER, QUEUE, ARGUMENT, MEMORY, SYSTEM, VERSION, STATE, SUPPORT = range(1, 10)

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class _UniqueID(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * 128)]


_ALLGATHER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_BARRIER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_ABORT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)


class _Callbacks(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("context", ctypes.c_void_p), ("allgather", _ALLGATHER), ("barrier", _BARRIER),
                ("alltoall", _ALLGATHER), ("abort", _ABORT)]


class _Config(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("pe", ctypes.c_int), ("pes", ctypes.c_int), ("uniqueid", ctypes.POINTER(_UniqueID)),
                ("callbacks", ctypes.POINTER(_Callbacks)), ("device", ctypes.c_int), ("settings", ctypes.POINTER(ctypes.c_char_p))]


_library = None


def library(path=None):
    """The loaded liblshmem.so: path, $LSHMEM_LIBRARY, here or in ../lib, $LSHMEM_HOME, or the loader's search."""
    global _library
    if _library is not None:
        return _library
    here = os.path.dirname(os.path.abspath(__file__))
    home = os.environ.get("LSHMEM_HOME", "")
    places = [path, os.environ.get("LSHMEM_LIBRARY"), os.path.join(here, "liblshmem.so"), os.path.join(here, "..", "lib", "liblshmem.so")]
    if home:
        places += [os.path.join(home, "liblshmem.so"), os.path.join(home, "lib", "liblshmem.so")]
    for place in places:
        if place and (os.path.exists(place) or place in (path, os.environ.get("LSHMEM_LIBRARY"))):
            break
    else:
        place = "liblshmem.so"
    try:
        lib = ctypes.CDLL(place)
    except OSError as e:
        raise ImportError("liblshmem.so: %s; set LSHMEM_LIBRARY, or run: lgpu shmem install FOLDER" % e) from None
    lib.lshmem_strerror.restype = lib.lshmem_last_error.restype = lib.lshmem_version_name.restype = ctypes.c_char_p
    major = ctypes.c_int()
    lib.lshmem_version(ctypes.byref(major), None, None)
    if major.value != 1:
        raise ImportError("%s has interface %d, this module is for 1" % (place, major.value))
    _library = lib
    return lib


def _check(status):
    if status:
        lib = library()
        raise Error(status, (lib.lshmem_last_error() or lib.lshmem_strerror(status)).decode(errors="replace"))


def version():
    """The library's name and version."""
    return library().lshmem_version_name().decode()


def get_uniqueid():
    """128 bytes that all PEs of one job need.

    All PEs connect to the process that makes them, also if that is no PE: it must live as long as the job, which is lost
    for all PEs if it ends before. An id that nobody uses is valid for ten minutes.
    """
    out = _UniqueID()
    _check(library().lshmem_get_uniqueid(ctypes.byref(out)))
    return bytes(out.bytes)


def init(rank=None, size=None, uniqueid=None, store=None, device=None, settings=None):
    """Become a PE; all processes of the job call it. Returns the PE.

    Without arguments the environment says how (lgpu run --pes, or LSHMEM_PE, LSHMEM_PES and LSHMEM_BOOTSTRAP). With
    uniqueid (of get_uniqueid, carried by whatever means) or store (torch.distributed's, or anything with its set and get),
    rank and size are needed. device is a CUDA ordinal; default: torch's current device where torch has initialized CUDA,
    else the environment's. settings are the environment's names: {"LSHMEM_TIMEOUT": "60s"}.
    """
    lib = library()
    config = _Config()
    _check(lib.lshmem_config_init(ctypes.byref(config)))
    if ctypes.sizeof(config) != config.size:
        raise ImportError("liblshmem.so has another lshmem_config (%d bytes) than this module (%d)" % (config.size, ctypes.sizeof(config)))
    if rank is not None:
        config.pe = rank
    if size is not None:
        config.pes = size
    if uniqueid is not None:
        uniqueid = bytes(uniqueid)
        if len(uniqueid) != 128:
            raise ValueError("a unique id has 128 bytes, not %d" % len(uniqueid))
        config.uniqueid = ctypes.pointer(_UniqueID.from_buffer_copy(uniqueid))
    carrier = None
    if store is not None:
        if rank is None or size is None:
            raise ValueError("with a store, rank and size must be given")
        carrier = _Store(store, rank, size)
        config.callbacks = ctypes.pointer(carrier.callbacks)
    if device is not None:
        config.device = device
    else:
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            config.device = torch.cuda.current_device()
    if settings:
        lines = [("%s=%s" % item).encode() for item in settings.items()]
        array = (ctypes.c_char_p * (len(lines) + 1))(*(lines + [None]))
        config.settings = ctypes.cast(array, ctypes.POINTER(ctypes.c_char_p))
    handle = ctypes.c_int64()
    status = lib.lshmem_init(ctypes.byref(config), ctypes.byref(handle))
    if carrier is not None and carrier.error is not None:
        raise carrier.error
    _check(status)
    return PE(handle.value, carrier)


class _Store:
    """The collectives of a bootstrap over a key-value store: set(key, bytes); get(key) -> bytes waits for the key."""

    instances = 0

    def __init__(self, store, rank, size):
        self.store, self.rank, self.size, self.step, self.error = store, rank, size, 0, None
        # Processes make their instances in the same order.
        self.prefix = "lshmem/%d" % _Store.instances
        _Store.instances += 1
        self.callbacks = _Callbacks(ctypes.sizeof(_Callbacks), None, _ALLGATHER(self.allgather), _BARRIER(self.barrier), _ALLGATHER(0),
                                    _ABORT(self.abort))

    def key(self, step, rank):
        return "%s/%d/%d" % (self.prefix, step, rank)

    def exchange(self, mine):
        step, self.step = self.step, self.step + 1
        # A PE that begins step s has seen that all began s-1, so that all have ended s-2.
        if step >= 2 and hasattr(self.store, "delete_key"):
            self.store.delete_key(self.key(step - 2, self.rank))
        self.store.set(self.key(step, self.rank), mine)
        return [mine if r == self.rank else bytes(self.store.get(self.key(step, r))) for r in range(self.size)]

    def carry(self, f):
        """Run f for a callback, which returns a code: no exception may go through C, so init raises it."""
        try:
            f()
            return 0
        except BaseException as e:
            self.error = e
            return 1

    def allgather(self, _, send, receive, n):
        def gather():
            for r, part in enumerate(self.exchange(ctypes.string_at(send, n))):
                if len(part) != n:
                    raise RuntimeError("PE %d sent %d bytes instead of %d" % (r, len(part), n))
                ctypes.memmove(receive + r * n, part, n)
        return self.carry(gather)

    def barrier(self, _):
        return self.carry(lambda: self.exchange(b"1"))

    def abort(self, _, code, why):
        print("lshmem: PE %d ends the job with code %d: %s" % (self.rank, code, why.decode(errors="replace")), file=sys.stderr)


class _Memory:
    """Memory of a PE. CuPy, Numba and PyTorch take it as an array of bytes on a device."""

    def view(self):
        """A writable memoryview, where the heap is in host memory. It must not be used after free."""
        return self.pe._view(self.buffer, self.address, self.nbytes)

    def tensor(self, shape=None, dtype=None):
        """A tensor over the memory, of bytes unless a shape or dtype says otherwise."""
        return self.pe._tensor(self.buffer, self.address, shape, dtype)


class Buffer(_Memory):
    """Symmetric memory: address and size."""

    buffer = property(lambda self: self)

    def __init__(self, pe, address, nbytes):
        self.pe, self.address, self.nbytes, self.freed = pe, address, nbytes, False
        # Those that still exist, by their id: tensors and arrays have no equality that a set could use.
        self.tensors, self.exports = weakref.WeakValueDictionary(), weakref.WeakValueDictionary()

    def __repr__(self):
        freed = "freed, " if self.freed else ""
        return "<lshmem.Buffer %s%d bytes at %#x of PE %d>" % (freed, self.nbytes, self.address, self.pe.rank)

    @property
    def __cuda_array_interface__(self):
        if not self.pe.on_device:
            raise AttributeError("the heap is in host memory; use view()")
        return _interface(self, self.address, self.nbytes)

    def free(self):
        """Give it back; collective."""
        if not self.freed:
            self._release()
            _check(library().lshmem_free(ctypes.c_int64(self.pe.handle), ctypes.c_void_p(self.address)))
            self._gone()

    def _release(self):
        """Take the memory from tensors. If views that this module did not make are alive, change nothing and raise."""
        held = [(t, t.data_ptr(), tuple(t.shape), t.stride()) for t in list(self.tensors.values()) if t.numel()]
        for t, _, _, _ in held:
            _assign(t)
        left = len(self.exports)
        if left:
            for t, address, shape, stride in held:
                _assign(t, self.pe._storage(self, address, _span(shape, stride) * t.element_size()), 0, shape, stride)
            raise RuntimeError("%r: %d other views of it are alive; delete them first" % (self, left))

    def _gone(self):
        self.freed = True
        self.pe._buffers.pop(self.address, None)


class _Export:
    """What a tensor's storage refers to, so that its memory is not freed while it is in use."""

    def __init__(self, owner, address, nbytes):
        self.owner, self.address, self.nbytes = owner, address, nbytes
        self.__cuda_array_interface__ = _interface(owner, address, nbytes)


class Peer(_Memory):
    """Another PE's memory of a Buffer, as this PE's GPU reaches it. Valid as long as the Buffer."""

    def __init__(self, buffer, address, target):
        self.pe, self.buffer, self.address, self.nbytes, self.target = buffer.pe, buffer, address, buffer.nbytes, target

    @property
    def __cuda_array_interface__(self):
        return _interface(self.buffer, self.address, self.nbytes)


def _interface(owner, address, nbytes):
    if owner.freed:
        raise RuntimeError("%r was freed" % owner)
    return {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}


def _torch():
    import torch
    return torch


class PE:
    """One instance of the library; init makes it."""

    def __init__(self, handle, carrier=None):
        self.handle, self._carrier, self._buffers = handle, carrier, {}
        lib = self._lib = library()
        rank, size, device = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        _check(lib.lshmem_my_pe(self._h, ctypes.byref(rank)))
        _check(lib.lshmem_n_pes(self._h, ctypes.byref(size)))
        _check(lib.lshmem_device(self._h, ctypes.byref(device)))
        self.rank, self.size, self.device = rank.value, size.value, device.value
        self.on_device = self.info()["memory"] == "device"

    def __repr__(self):
        return "<lshmem.PE %d of %d on %s>" % (self.rank, self.size, "cuda:%d" % self.device if self.on_device else "host memory")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.finalize()

    @property
    def _h(self):
        return ctypes.c_int64(self.handle)

    # ---- The instance ----

    def finalize(self):
        """Leave the job; collective. All memory is gone afterwards."""
        if self.handle:
            for b in list(self._buffers.values()):
                b._release()
            handle, self.handle = self._h, 0
            for b in list(self._buffers.values()):
                b._gone()
            _check(self._lib.lshmem_finalize(handle))

    def global_exit(self, code=1):
        """End the job: all other PEs' calls and waits fail."""
        _check(self._lib.lshmem_global_exit(self._h, ctypes.c_int(code)))

    def check(self):
        """Raise what went wrong, here or on the device, if anything did."""
        _check(self._lib.lshmem_status(self._h))

    def state(self):
        """The struct lshmem_state that kernels get by value, as bytes."""
        size = ctypes.c_uint64()
        _check(self._lib.lshmem_version(None, None, ctypes.byref(size)))
        out = ctypes.create_string_buffer(STATE_BYTES_MAX)
        _check(self._lib.lshmem_get_state(self._h, out))
        return out.raw[: size.value & 0xffff]

    @property
    def state_address(self):
        """Where a copy of it lies that kernels can read, for languages that pass addresses only."""
        return self._out(ctypes.c_void_p, self._lib.lshmem_state_address) or 0

    def info(self):
        """What there is to know: transports by PE, heap, teams, settings; times in nanoseconds."""
        needed = ctypes.c_size_t()
        self._lib.lshmem_info(self._h, None, ctypes.c_size_t(0), ctypes.byref(needed))
        text = ctypes.create_string_buffer(needed.value + 4096)
        _check(self._lib.lshmem_info(self._h, text, ctypes.c_size_t(len(text)), None))
        return json.loads(text.value.decode())

    def heap_bytes(self):
        """(memory that the heap has, of that allocated, the most it can have)"""
        out = [ctypes.c_uint64() for _ in range(3)]
        _check(self._lib.lshmem_heap_bytes(self._h, *[ctypes.byref(o) for o in out]))
        return tuple(o.value for o in out)

    def _out(self, kind, function, *args):
        out = kind()
        _check(function(self._h, *args, ctypes.byref(out)))
        return out.value

    # ---- Memory ----

    def malloc(self, nbytes, alignment=None):
        """Symmetric memory as a Buffer; collective, the same size everywhere."""
        if alignment is None:
            return self._allocate(nbytes, self._lib.lshmem_malloc, nbytes)
        return self._allocate(nbytes, self._lib.lshmem_align, alignment, nbytes)

    def calloc(self, nbytes):
        """As malloc, all zero."""
        return self._allocate(nbytes, self._lib.lshmem_calloc, nbytes, 1)

    def _allocate(self, nbytes, function, *sizes):
        if nbytes <= 0:
            raise ValueError("%d bytes" % nbytes)
        address = self._out(ctypes.c_void_p, function, *map(ctypes.c_size_t, sizes))
        b = self._buffers[address] = Buffer(self, address, nbytes)
        return b

    def empty(self, *shape, dtype=None):
        """A symmetric tensor; collective."""
        return self._new(self.malloc, shape, dtype)

    def zeros(self, *shape, dtype=None):
        """A symmetric tensor of zeros; collective."""
        return self._new(self.calloc, shape, dtype)

    def _new(self, allocate, shape, dtype):
        torch = _torch()
        if len(shape) == 1 and not isinstance(shape[0], int):
            shape = tuple(shape[0])
        dtype = dtype or torch.get_default_dtype()
        nbytes = math.prod(shape) * torch.empty((), dtype=dtype).element_size()
        if nbytes == 0:
            raise ValueError("a symmetric tensor without elements: %r" % (shape,))
        return allocate(nbytes).tensor(shape, dtype)

    def free(self, what):
        """Give a Buffer, or a tensor's, back; collective. The tensor is empty afterwards."""
        if isinstance(what, Buffer):
            return what.free()
        b = self.buffer(what)
        if b.address != _address(what):
            raise ValueError("the tensor begins inside of its allocation")
        b.free()

    def buffer(self, what):
        """The Buffer in which a tensor or address lies."""
        at = _address(what)
        for b in self._buffers.values():
            if b.address <= at < b.address + b.nbytes:
                return b
        raise ValueError("%#x is not symmetric memory of this PE" % at)

    def peer(self, what, target):
        """Another PE's memory of a Buffer or tensor (a tensor like it), None where only the network reaches it."""
        b = what if isinstance(what, Buffer) else self.buffer(what)
        address = self._out(ctypes.c_void_p, self._lib.lshmem_ptr, ctypes.c_void_p(b.address), ctypes.c_int(target))
        if not address:
            return None
        p = Peer(b, address, target)
        if what is b:
            return p
        offset = _address(what) - b.address
        if not what.is_contiguous():
            raise ValueError("a peer's view is of a contiguous tensor")
        return self._tensor(b, address + offset, tuple(what.shape), what.dtype)

    def register(self, address, nbytes):
        """Make other memory usable as a source or destination here where the network carries data."""
        _check(self._lib.lshmem_buffer_register(self._h, ctypes.c_void_p(_address(address)), ctypes.c_size_t(nbytes)))

    def unregister(self, address):
        _check(self._lib.lshmem_buffer_unregister(self._h, ctypes.c_void_p(_address(address))))

    def _view(self, owner, address, nbytes):
        if self.on_device:
            raise RuntimeError("the heap is in device memory, which the CPU does not see; use tensor()")
        if owner.freed:
            raise RuntimeError("%r was freed" % owner)
        export = (ctypes.c_uint8 * nbytes).from_address(address)
        owner.exports[id(export)] = export
        return memoryview(export).cast("B")

    def _storage(self, owner, address, nbytes):
        """A torch storage over memory. The export that it refers to tells owner that it is alive."""
        torch = _torch()
        if self.on_device:
            export = _Export(owner, address, nbytes)
            base = torch.as_tensor(export, device="cuda:%d" % self.device)
        else:
            export = (ctypes.c_uint8 * nbytes).from_address(address)
            base = torch.frombuffer(export, dtype=torch.uint8)
        owner.exports[id(export)] = export
        return base.untyped_storage()

    def _tensor(self, owner, address, shape, dtype):
        torch = _torch()
        dtype = dtype or torch.uint8
        item = torch.empty((), dtype=dtype).element_size()
        if shape is None:
            inside = owner.address <= address < owner.address + owner.nbytes
            shape = ((owner.nbytes - (address - owner.address if inside else 0)) // item,)
        # Not a view of a tensor of bytes: it would hold that one, and its memory, as its base.
        t = torch.empty(0, dtype=dtype, device="cuda:%d" % self.device if self.on_device else "cpu")
        _assign(t, self._storage(owner, address, item * math.prod(shape)), 0, tuple(shape))
        owner.tensors[id(t)] = t
        return t

    # ---- Operations ----

    def _stream(self, stream):
        """The CUstream as a number; None: do it now."""
        if stream is HOST:
            return None
        if stream is None:
            torch = sys.modules.get("torch")
            if not self.on_device or torch is None:
                return None
            return torch.cuda.current_stream(self.device).cuda_stream
        return getattr(stream, "cuda_stream", stream)

    def _run(self, name, args, stream):
        """lshmem_NAME or lshmem_NAME_on_stream."""
        s = self._stream(stream)
        if s is None:
            _check(getattr(self._lib, "lshmem_" + name)(self._h, *args))
        else:
            _check(getattr(self._lib, "lshmem_" + name + "_on_stream")(self._h, *args, ctypes.c_void_p(s)))

    def put(self, dst, src, target, nbytes=None, stream=None):
        """Copy src to dst of another PE."""
        self._run("put", (_pointer(dst), _pointer(src), _size(nbytes, src, dst), ctypes.c_int(target)), stream)

    def get(self, dst, src, target, nbytes=None, stream=None):
        """Copy src of another PE to dst."""
        self._run("get", (_pointer(dst), _pointer(src), _size(nbytes, dst, src), ctypes.c_int(target)), stream)

    def put_signal(self, dst, src, signal, value, target, op=SET, nbytes=None, stream=None):
        """put, then set or add to a 64-bit word there, which is seen no earlier than the data."""
        self._run("put_signal", (_pointer(dst), _pointer(src), _size(nbytes, src, dst), _pointer(signal), ctypes.c_uint64(value),
                                 ctypes.c_int(op), ctypes.c_int(target)), stream)

    def signal(self, signal, value, target, op=SET, stream=None):
        self._run("signal_op", (_pointer(signal), ctypes.c_uint64(value), ctypes.c_int(op), ctypes.c_int(target)), stream)

    def signal_fetch(self, signal):
        """The value of this PE's word, now."""
        return self._out(ctypes.c_uint64, self._lib.lshmem_signal_fetch, _pointer(signal))

    def wait(self, signal, compare, value, stream=None):
        """Wait until this PE's 64-bit word compares so with value."""
        self._run("signal_wait_until", (_pointer(signal), ctypes.c_int(compare), ctypes.c_uint64(value)), stream)

    def atomic(self, op, dst, value, target, dtype="int64", compare=0):
        """set, add, and, or, xor or compare_swap an element of another PE; returns what was there, as bits."""
        out, mask = ctypes.c_uint64(), (1 << 64) - 1
        _check(self._lib.lshmem_atomic(
            self._h, ctypes.c_int(_ATOMICS[op]), ctypes.c_int(_type(dtype)), _pointer(dst), ctypes.c_uint64(value & mask),
            ctypes.c_uint64(compare & mask), ctypes.byref(out), ctypes.c_int(target)))
        return out.value

    def quiet(self, stream=None):
        """All that this PE began has been done."""
        self._run("quiet", (), stream)

    def barrier(self, team=WORLD, stream=None):
        """All have come, and what they began has been done."""
        self._run("barrier", (ctypes.c_int32(team),), stream)

    def sync(self, team=WORLD, stream=None):
        """All have come."""
        self._run("sync", (ctypes.c_int32(team),), stream)

    def _elements(self, what, dtype, count, parts, bytes_will_do=True):
        if dtype is None:
            dtype = getattr(what, "dtype", "uint8" if bytes_will_do else None)
        if dtype is None:
            raise TypeError("dtype is needed: %r does not say what numbers it has" % (what,))
        dtype = _type(dtype)
        if count is None:
            total = _nbytes(what)
            if total % (_BYTES[dtype] * parts):
                raise ValueError("%d bytes are not %d equal parts of elements" % (total, parts))
            count = total // _BYTES[dtype] // parts
        return ctypes.c_int(dtype), ctypes.c_size_t(count)

    def alltoall(self, dst, src, team=WORLD, dtype=None, count=None, stream=None):
        """Part i of src goes to member i, which has it as part of this PE's index in dst. count: elements of a part."""
        kind, n = self._elements(src, dtype, count, self.team_size(team))
        self._run("alltoall", (ctypes.c_int32(team), kind, _pointer(dst), _pointer(src), n), stream)

    def fcollect(self, dst, src, team=WORLD, dtype=None, count=None, stream=None):
        """Gather every member's src, one after the other, in every member's dst. count: elements of one."""
        kind, n = self._elements(src, dtype, count, 1)
        self._run("fcollect", (ctypes.c_int32(team), kind, _pointer(dst), _pointer(src), n), stream)

    def broadcast(self, dst, src, root=0, team=WORLD, dtype=None, count=None, stream=None):
        """Copy member root's src to every member's dst."""
        kind, n = self._elements(src, dtype, count, 1)
        self._run("broadcast", (ctypes.c_int32(team), kind, _pointer(dst), _pointer(src), n, ctypes.c_int(root)), stream)

    def reduce(self, dst, src, op="sum", team=WORLD, dtype=None, count=None, stream=None):
        """Combine all members' src by sum, prod, min, max, and, or, xor, for every member's dst."""
        kind, n = self._elements(src, dtype, count, 1, bytes_will_do=False)
        self._run("reduce", (ctypes.c_int32(team), kind, ctypes.c_int(_REDUCTIONS[op]), _pointer(dst), _pointer(src), n), stream)

    def reducescatter(self, dst, src, op="sum", team=WORLD, dtype=None, count=None, stream=None):
        """As reduce, but member i gets part i. count: elements of a part."""
        kind, n = self._elements(src, dtype, count, self.team_size(team), bytes_will_do=False)
        self._run("reducescatter", (ctypes.c_int32(team), kind, ctypes.c_int(_REDUCTIONS[op]), _pointer(dst), _pointer(src), n), stream)

    # ---- Teams ----

    def team_split_strided(self, parent, start, stride, size):
        """A new team; None to those that are not in it. Collective over the parent."""
        t = self._out(ctypes.c_int32, self._lib.lshmem_team_split_strided, ctypes.c_int32(parent), ctypes.c_int(start), ctypes.c_int(stride),
                      ctypes.c_int(size))
        return None if t == -1 else t

    def team_create(self, members):
        """A team of any PEs, in that order. Called by all its members; others may call it, for None."""
        members = list(members)
        t = self._out(ctypes.c_int32, self._lib.lshmem_team_create, (ctypes.c_int * len(members))(*members), ctypes.c_int(len(members)))
        return None if t == -1 else t

    def team_destroy(self, team):
        _check(self._lib.lshmem_team_destroy(self._h, ctypes.c_int32(team)))

    def team_rank(self, team):
        """This PE's index in the team."""
        return self._out(ctypes.c_int, self._lib.lshmem_team_my_pe, ctypes.c_int32(team))

    def team_size(self, team):
        return self._out(ctypes.c_int, self._lib.lshmem_team_n_pes, ctypes.c_int32(team))


def _assign(t, *storage):
    """Give a tensor other memory, or none; also one that records gradients."""
    with _torch().no_grad():
        t.set_(*storage)


def _span(shape, stride):
    """The elements from the first to the last of a tensor."""
    return 1 + sum((n - 1) * step for n, step in zip(shape, stride))


def _address(what):
    if isinstance(what, int):
        return what
    if isinstance(what, (Buffer, Peer)):
        return what.address
    if hasattr(what, "data_ptr"):
        return what.data_ptr()
    if hasattr(what, "__cuda_array_interface__"):
        return what.__cuda_array_interface__["data"][0]
    if isinstance(what, (bytearray, memoryview)):
        return ctypes.addressof((ctypes.c_uint8 * 0).from_buffer(what))
    raise TypeError("%r is not memory: a tensor, Buffer, address, or object with __cuda_array_interface__ is needed" % type(what))


def _pointer(what):
    if hasattr(what, "is_contiguous") and not what.is_contiguous():
        raise ValueError("a tensor that is not contiguous")
    return ctypes.c_void_p(_address(what))


def _nbytes(what):
    if hasattr(what, "element_size"):
        return what.numel() * what.element_size()
    if hasattr(what, "nbytes"):
        return what.nbytes
    if isinstance(what, bytearray):
        return len(what)
    if hasattr(what, "__cuda_array_interface__"):
        i = what.__cuda_array_interface__
        return int(i["typestr"][2:]) * math.prod(i["shape"])
    raise TypeError("how many bytes has %r? give nbytes or count" % type(what))


def _size(nbytes, first, second):
    """The bytes to move; both sides must have them."""
    sizes = [_nbytes(what) for what in (first, second) if not isinstance(what, int)]
    if nbytes is None:
        if isinstance(first, int):
            raise TypeError("with an address, nbytes must be given")
        nbytes = sizes[0]
    if any(nbytes > s for s in sizes):
        raise ValueError("%d bytes, but there are only %d" % (nbytes, min(sizes)))
    return ctypes.c_size_t(nbytes)


def _type(dtype):
    if isinstance(dtype, int):
        return dtype
    name = str(dtype).rsplit(".", 1)[-1]
    if name not in _TYPES:
        raise ValueError("elements of type %s" % dtype)
    return _TYPES[name]
