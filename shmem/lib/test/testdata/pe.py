"""One PE that uses all of lshmem.py that needs no PyTorch. Prints "all well" at the end."""
import ctypes
import gc
import os
import sys
import threading
import time

import lshmem


class Files:
    """A key-value store in a folder, with the methods of torch.distributed's."""

    def __init__(self, folder):
        self.folder = folder

    def path(self, key):
        return os.path.join(self.folder, key.replace("/", "_"))

    def set(self, key, value):
        temporary = "%s.%d.new" % (self.path(key), os.getpid())
        with open(temporary, "wb") as f:
            f.write(value)
        os.rename(temporary, self.path(key))

    def get(self, key):
        until = time.monotonic() + 30
        while time.monotonic() < until:
            try:
                with open(self.path(key), "rb") as f:
                    return f.read()
            except FileNotFoundError:
                time.sleep(0.002)
        raise TimeoutError(key)

    def delete_key(self, key):
        os.unlink(self.path(key))


def refused(kind, f, *args, **kw):
    try:
        f(*args, **kw)
    except kind as e:
        return e
    raise AssertionError("%s%r was not refused" % (f, args))


def begin(how):
    if how == "env":
        return lshmem.init()
    store, rank, size = Files(os.environ["STORE"]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if how == "store":
        return lshmem.init(store=store, rank=rank, size=size)
    if rank == 0:
        store.set("id", lshmem.get_uniqueid())
    return lshmem.init(uniqueid=store.get("id"), rank=rank, size=size, settings={"LSHMEM_TIMEOUT": "30s"})


def operations(pe, memory):
    following, previous = (pe.rank + 1) % pe.size, (pe.rank - 1) % pe.size
    a, b = pe.calloc(1024), pe.malloc(1024, alignment=4096)
    assert b.address % 4096 == 0 and a.nbytes == 1024
    if memory == "device":
        assert a.__cuda_array_interface__["data"] == (a.address, False)
        refused(RuntimeError, a.view)
    else:
        refused(AttributeError, getattr, a, "__cuda_array_interface__")
        view = a.view()
        view[0] = 77
        assert pe.signal_fetch(a) & 0xff == 77
        assert "other views" in str(refused(RuntimeError, a.free))
        view[0] = 0
        del view
        gc.collect()
    data = bytearray(os.urandom(1024))
    pe.put(a, data, pe.rank)
    pe.barrier()
    back = bytearray(1024)
    pe.get(back, a, pe.rank)
    assert back == data
    pe.put(b, a, following)
    pe.barrier()
    other = bytearray(1024)
    pe.get(other, a, previous)
    pe.get(back, b, pe.rank)
    assert back == other
    assert pe.peer(a, following).nbytes == 1024 and pe.peer(a, pe.rank).address == a.address

    pe.barrier()
    pe.put(a, bytearray(1024), pe.rank)
    pe.barrier()
    pe.put_signal(b, bytearray(b"12345678"), a, 3, following)
    pe.wait(a, lshmem.EQ, 3)
    pe.barrier()
    pe.signal(a, 4, following, op=lshmem.ADD)
    pe.wait(a, lshmem.GE, 7)
    assert pe.signal_fetch(a) == 7
    pe.barrier()
    assert pe.atomic("add", a, -2, following, dtype="int64") == 7
    pe.barrier()
    assert pe.atomic("compare_swap", a, 1, pe.rank, compare=5) == 5
    pe.quiet()

    words = (ctypes.c_int32 * 256)(*([pe.rank + 1] * 256))
    pe.put(a, memoryview(words).cast("B"), pe.rank)
    pe.barrier()
    pe.reduce(b, a, "sum", dtype="int32")
    pe.get(memoryview(words).cast("B"), b, pe.rank)
    assert set(words) == {pe.size * (pe.size + 1) // 2}, set(words)
    pe.alltoall(b, a, dtype="int32")
    pe.barrier()
    pe.get(memoryview(words).cast("B"), b, pe.rank)
    per = 256 // pe.size
    assert [words[i * per] for i in range(pe.size)] == list(range(1, pe.size + 1))
    pe.fcollect(b, a, dtype="int32", count=8)
    pe.barrier()
    pe.get(memoryview(words).cast("B"), b, pe.rank)
    assert [words[i * 8] for i in range(pe.size)] == list(range(1, pe.size + 1))
    pe.broadcast(b, a, root=pe.size - 1, dtype="int32")
    pe.barrier()
    pe.get(memoryview(words).cast("B"), b, pe.rank)
    assert set(words) == {pe.size}
    pe.reducescatter(b, a, "max", dtype="int32")
    pe.barrier()
    team = pe.team_create(range(pe.size - 1, -1, -1))
    assert pe.team_rank(team) == pe.size - 1 - pe.rank and pe.team_size(team) == pe.size
    pe.barrier(team)
    pe.team_destroy(team)
    first = pe.team_split_strided(lshmem.WORLD, 0, 1, 1)
    assert (first is None) == (pe.rank != 0)

    assert refused(lshmem.Error, pe.put, a, data, pe.size).status == lshmem.Error.ARGUMENT
    refused(ValueError, pe.put, a, bytearray(4096), following)
    refused(TypeError, pe.put, a, a.address, following)
    refused(ValueError, pe.buffer, 4096)
    refused(ValueError, pe.calloc, 0)
    refused(TypeError, pe.reduce, b, a)  # of what numbers?
    refused(ValueError, pe.reduce, b, a, dtype="complex64")
    pe.barrier()
    pe.free(b)
    a.free()
    assert a.freed
    refused(RuntimeError, lambda: pe.peer(a, following).__cuda_array_interface__)


def main():
    how, memory = sys.argv[1:]
    assert lshmem.version().startswith("lshmem 1.")
    pe = begin(how)
    assert pe.on_device == (memory == "device"), pe
    version = int.from_bytes(pe.state()[:4], "little")
    assert len(pe.state()) == version & 0xffff and pe.state_address
    assert pe.info()["pes"] == pe.size and pe.heap_bytes()[1] > 0
    operations(pe, memory)
    # Any thread may call.
    failed = []
    t = threading.Thread(target=lambda: failed.append(refused(lshmem.Error, pe.put, 8, 8, pe.size, nbytes=8)))
    t.start()
    t.join()
    assert len(failed) == 1
    pe.check()
    pe.finalize()
    pe.finalize()
    refused(lshmem.Error, pe.check)
    print("all well")


main()
