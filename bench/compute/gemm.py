"""gemm: PyTorch bf16 products of 4096 x 4096 for SECONDS; prints "bin units" like rate.

The bins are of the wall clock (a device event fixes the offset), 50 ms each.
"""
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
EACH, BIN = 4, 0.05
start = torch.cuda.Event(enable_timing=True)
start.record()
start.synchronize()
origin = time.time()
marks = []
while time.time() - origin < seconds:
    for _ in range(EACH):
        torch.matmul(a, b, out=c)
    e = torch.cuda.Event(enable_timing=True)
    e.record()
    marks.append(e)
    if len(marks) > 64:
        marks[-64].synchronize()
torch.cuda.synchronize()
bins, before = {}, 0.0
for e in marks:
    end = start.elapsed_time(e) / 1e3
    # An interval longer than the products could take was partly a pause; its
    # work belongs to its end.
    begin = max(before, end - EACH * 0.00025)
    k = int((origin + begin) / BIN)
    while k * BIN < origin + end:
        low, high = max(k * BIN, origin + begin), min((k + 1) * BIN, origin + end)
        bins[k] = bins.get(k, 0.0) + EACH * (high - low) / (end - begin)
        k += 1
    before = end
for k in range(min(bins), max(bins) + 1):
    print(k, "%.6f" % bins.get(k, 0.0))
