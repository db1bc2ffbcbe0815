"""step: rates of a PyTorch bf16 product and of a small model's training step. Prints "name ns" lines."""
import time

import torch
from torch import nn


def time_of(name, n, f):
    best = float("inf")
    for _ in range(5):
        torch.cuda.synchronize()
        t = time.perf_counter()
        for _ in range(n):
            f()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - t) / n)
    print("%s %.1f" % (name, best * 1e9), flush=True)


torch.manual_seed(0)
a = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
c = torch.empty_like(a)
torch.matmul(a, a, out=c)
time_of("torch-product-2048", 500, lambda: torch.matmul(a, a, out=c))

model = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(512, 512), nn.GELU(), nn.LayerNorm(512))], nn.Linear(512, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x, y = torch.randn(64, 512, device="cuda"), torch.randint(10, (64,), device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


for _ in range(20):
    step()
time_of("torch-step-small-model", 100, step)
