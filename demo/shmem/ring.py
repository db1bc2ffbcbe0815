"""The ring of ring.cu from Python, without PyTorch: symmetric memory, a put with a signal, a collective operation.

    lgpu run --sim=2x16GiB,sms=4 --pes 2 -- python3 demo/shmem/ring.py
"""
import ctypes

import lshmem

N = 1000
pe = lshmem.init()
inbox, arrived, mine, right = pe.malloc(4 * N), pe.calloc(8), pe.malloc(4 * N), pe.malloc(8)
following, previous = (pe.rank + 1) % pe.size, (pe.rank - 1) % pe.size

numbers = (ctypes.c_uint32 * N)(*(i + 10000 * pe.rank for i in range(N)))
source = memoryview(numbers).cast("B")
pe.put(mine, source, pe.rank)  # to the own memory, on the device
pe.put_signal(inbox, mine, arrived, 1, following)
pe.wait(arrived, lshmem.EQ, 1)

pe.get(source, inbox, pe.rank)
good = sum(numbers[i] == i + 10000 * previous for i in range(N))
pe.atomic("set", right, good, pe.rank)
pe.barrier()
pe.reduce(right, right, "sum", dtype="int64", count=1)
# The newline is part of the text: a Python that does not buffer writes it by itself otherwise, behind another PE's line.
print("%r: %d of %d numbers of PE %d are right, %d altogether\n" % (pe, good, N, previous, pe.signal_fetch(right)), end="")
pe.finalize()
