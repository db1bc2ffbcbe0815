"""What habits.py has of memory that has a name: a semaphore and a block of memory, as workers that are spawned share them.

As a program it has them and a worker, on a device, and says what habits.py says.
"""
import ctypes
import multiprocessing
import os
import sys
from multiprocessing import shared_memory, synchronize

PATIENCE = 20  # seconds for what must come
LENGTH = 70000  # no whole pages
HOLE = 8 << 20  # of which nothing is written


def elsewhere(look):
    """Is what another process finds, a number below 256."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(look())
        except BaseException:
            os._exit(255)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def same(got, want):
    if got != want:
        raise ValueError(f"{got!r:.200}, want {want!r:.200}")


def named_semaphore():
    semaphore = multiprocessing.get_context("spawn").Semaphore(3)
    own = semaphore._semlock

    def take():
        other = type(own)._rebuild(own.handle, own.kind, own.maxvalue, own.name)  # by its name, as one that is spawned does
        return int(other.acquire(False))

    try:
        while True:
            same(semaphore.acquire(False), True)
            yield
            same((elsewhere(take), semaphore.get_value()), (1, 1))
            semaphore.release()
            semaphore.release()
    finally:
        synchronize.SemLock._cleanup(own.name)


def named_memory():
    block = shared_memory.SharedMemory(f"lgpu-habits-{os.getpid()}", True, HOLE + LENGTH)

    def look():
        with open(f"/dev/shm/{block.name}", "rb") as f:
            return int(f.read() == bytes(HOLE) + data)

    try:
        while True:
            data = os.urandom(LENGTH)
            block.buf[HOLE:HOLE + LENGTH] = data
            yield
            same((bytes(block.buf[HOLE:HOLE + LENGTH]) == data, elsewhere(look)), (True, 1))
    finally:
        block.unlink()


def serve(asked, answered):
    while True:
        asked.acquire()
        answered.release()


def spawned_worker():
    """Is for a program that can be imported."""
    spawn = multiprocessing.get_context("spawn")
    asked, answered = spawn.Semaphore(0), spawn.Semaphore(0)
    worker = spawn.Process(target=serve, args=(asked, answered))
    worker.start()
    try:
        while True:
            asked.release()
            same(answered.acquire(True, PATIENCE), True)
            yield
    finally:
        worker.kill()
        for one in asked, answered:
            synchronize.SemLock._cleanup(one._semlock.name)


habits = [named_semaphore, named_memory]


def main():
    cuda = ctypes.CDLL("libcuda.so.1")
    number, context = ctypes.c_int(), ctypes.c_void_p()
    same((cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(number), 0)), (0, 0))
    same(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, number), 0)
    running = [one() for one in [*habits, spawned_worker]]
    for one in running:
        next(one)
    print("ready", flush=True)
    for _ in sys.stdin:
        for one in running:
            try:
                next(one)
            except Exception as e:
                print(f"{one.__name__}: {type(e).__name__}: {e}", flush=True)
        print("checked", len(running), flush=True)
    for one in running:
        one.close()


if __name__ == "__main__":
    main()
