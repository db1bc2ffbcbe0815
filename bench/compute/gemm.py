"""gemm: PyTorch bf16 products of 4096 x 4096 for SECONDS; prints "bin units seconds" like rate.

    gemm.py SECONDS [JOURNAL]

The bins are of the wall clock (a device event fixes the offset), 50 ms each. With JOURNAL the file JOURNAL.PID is
written as rate does, with times of the wall clock.
"""
import array
import os
import statistics
import sys
import time

import torch

seconds = float(sys.argv[1])
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
b = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
c = torch.empty_like(a)
for _ in range(3):
    torch.matmul(a, b, out=c)
torch.cuda.synchronize()
BIN = 0.05
start = torch.cuda.Event(enable_timing=True)
start.record()
start.synchronize()
origin = time.time()
marks = []
while time.time() - origin < seconds:
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before.record()
    torch.matmul(a, b, out=c)
    after.record()
    marks.append((before, after))
    if len(marks) > 256:
        marks[-256][1].synchronize()
torch.cuda.synchronize()
ends = [start.elapsed_time(e) / 1e3 for _, e in marks]
lasted = [s.elapsed_time(e) / 1e3 for s, e in marks]
# Between the two events of a product the gate may have been closed: such a
# one is taken to have lasted as long as the others.
usual = statistics.median(lasted)
if len(sys.argv) > 2:
    journal = array.array("q", [0, len(ends)])
    for end, took in zip(ends, lasted):
        took = took if took < 2 * usual else usual
        journal.extend((int((origin + end - took) * 1e9), int((origin + end) * 1e9)))
    journal.append(0)
    with open("%s.%d" % (sys.argv[2], os.getpid()), "wb") as f:
        journal.tofile(f)
    sys.exit()
units, busy = {}, {}
for end, took in zip(ends, lasted):
    took = took if took < 2 * usual else usual
    begin, k = end - took, int((origin + end - took) / BIN)
    while k * BIN < origin + end:
        part = min((k + 1) * BIN, origin + end) - max(k * BIN, origin + begin)
        units[k] = units.get(k, 0.0) + part / took
        busy[k] = busy.get(k, 0.0) + part
        k += 1
for k in range(min(units), max(units) + 1):
    print(k, "%.6f %.9f" % (units.get(k, 0.0), busy.get(k, 0.0)))
