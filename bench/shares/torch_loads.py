"""torch_loads: PyTorch programs as people run them, for bench/shares.py; session.py says how they are told what to do.

A step takes some milliseconds of a large GPU, so that marking its end costs nothing. Nothing is done on the device
before the first `load`.
"""
import gc
import os

os.environ.update(NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1", NVSHMEM_DISABLE_NVLS="1")

import torch
from torch import nn
from torch.nn import functional

from session import Session

DEVICE = "cuda"


class Load:
    """A piece of work. Steps are queued on the current stream unless a load says otherwise."""

    depth = 3
    warm = 10  # steps before it counts

    def __init__(self):
        torch.manual_seed(0)
        self.build()
        for _ in range(self.warm):
            self.step()
        torch.cuda.synchronize()

    def mark(self):
        event = torch.cuda.Event()
        event.record()
        return event

    def about(self):
        return {"flop": getattr(self, "flop", 0)}

    def close(self):
        torch.cuda.synchronize()
        self.__dict__.clear()
        gc.collect()
        torch.cuda.empty_cache()


def convolution(wide, out, size, stride=1):
    return nn.Sequential(nn.Conv2d(wide, out, size, stride, size // 2, bias=False), nn.BatchNorm2d(out))


class Bottleneck(nn.Module):
    """The block of which a resnet50 is made."""

    def __init__(self, wide, middle, stride):
        super().__init__()
        self.one = convolution(wide, middle, 1)
        self.two = convolution(middle, middle, 3, stride)
        self.three = convolution(middle, 4 * middle, 1)
        self.short = convolution(wide, 4 * middle, 1, stride) if stride != 1 or wide != 4 * middle else nn.Identity()

    def forward(self, x):
        y = functional.relu(self.one(x), inplace=True)
        y = functional.relu(self.two(y), inplace=True)
        return functional.relu(self.three(y) + self.short(x), inplace=True)


def resnet50():
    layers, wide = [convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)], 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        middle = 64 << stage
        for block in range(blocks):
            layers.append(Bottleneck(wide, middle, 2 if stage > 0 and block == 0 else 1))
            wide = 4 * middle
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, 1000))


class Resnet(Load):
    """Training of a resnet50, 64 pictures a step, bf16."""

    def build(self):
        self.model = resnet50().to(DEVICE).to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.x = torch.randn(64, 3, 224, 224, device=DEVICE).to(memory_format=torch.channels_last)
        self.y = torch.randint(1000, (64,), device=DEVICE)

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = functional.cross_entropy(self.model(self.x), self.y)
        loss.backward()
        self.optimizer.step()


class Transformer(Load):
    """A training step of a small transformer in fp32."""

    def build(self):
        layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
        self.model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.x, self.y = torch.randn(16, 256, 512, device=DEVICE), torch.randn(16, 256, 512, device=DEVICE)

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        functional.mse_loss(self.model(self.x), self.y).backward()
        self.optimizer.step()


def small_model():
    layers = [m for _ in range(6) for m in (nn.Linear(1024, 1024), nn.GELU(), nn.LayerNorm(1024))]
    return nn.Sequential(*layers, nn.Linear(1024, 10)).to(DEVICE).eval()


class Inference(Load):
    """A request to a small model, with the answer read back by .item()."""

    depth = 0
    warm = 50

    def build(self):
        self.model, self.x = small_model(), torch.randn(8, 1024, device=DEVICE)

    def step(self):
        with torch.inference_mode():
            self.answer = self.model(self.x).sum().item()

    def mark(self):
        return None

    def about(self):
        """With the time that a request needs of the device: replayed as a graph, its kernels follow one another."""
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.inference_mode(), torch.cuda.stream(stream):
            for _ in range(3):
                self.model(self.x).sum()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        with torch.inference_mode(), torch.cuda.graph(graph):
            answer = self.model(self.x).sum()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        graph.replay()
        begin.record()
        for _ in range(100):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        del answer, graph
        return {"device_ns": int(begin.elapsed_time(end) * 1e4)}


class Streams(Load):
    """Small products on four streams at once."""

    def build(self):
        self.streams = [torch.cuda.Stream() for _ in range(4)]
        self.a = [torch.randn(512, 512, device=DEVICE) for _ in self.streams]
        self.c = [torch.empty_like(a) for a in self.a]
        torch.cuda.synchronize()

    def step(self):
        for _ in range(32):
            for stream, a, c in zip(self.streams, self.a, self.c):
                with torch.cuda.stream(stream):
                    torch.matmul(a, a, out=c)

    def mark(self):
        for stream in self.streams:
            torch.cuda.current_stream().wait_stream(stream)
        return super().mark()


class Graph(Load):
    """Replay of a graph of 40 small kernels, five times a step."""

    def build(self):
        self.a = torch.randn(1024, 1024, device=DEVICE)
        self.b, self.c = torch.empty_like(self.a), torch.empty_like(self.a)
        stream, self.graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.record()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            self.record()

    def record(self):
        for _ in range(20):
            torch.matmul(self.a, self.a, out=self.b)
            torch.tanh(self.b, out=self.c)

    def step(self):
        for _ in range(5):
            self.graph.replay()


class Elementwise(Load):
    """Multiplications and additions over 256 MiB."""

    def build(self):
        self.x = torch.randn(64 << 20, device=DEVICE)

    def step(self):
        for _ in range(8):
            self.x.mul_(0.999).add_(0.001)


class Products32(Load):
    """Products of 4096 x 4096 in fp32."""

    def build(self):
        self.a, self.b = torch.randn(4096, 4096, device=DEVICE), torch.randn(4096, 4096, device=DEVICE)
        self.c = torch.empty_like(self.a)
        self.flop = 2 * 4096 ** 3

    def step(self):
        torch.matmul(self.a, self.b, out=self.c)


class Copies(Load):
    """bf16 products while memory is copied in and out on another stream."""

    def build(self):
        self.a = torch.randn(4096, 4096, device=DEVICE, dtype=torch.bfloat16)
        self.c = torch.empty_like(self.a)
        self.side = torch.cuda.Stream()
        self.host = torch.empty(8 << 20, dtype=torch.uint8, pin_memory=True)
        self.back = torch.empty(8 << 20, dtype=torch.uint8, pin_memory=True)
        self.there = torch.empty(8 << 20, dtype=torch.uint8, device=DEVICE)
        torch.cuda.synchronize()

    def step(self):
        with torch.cuda.stream(self.side):
            self.there.copy_(self.host, non_blocking=True)
            self.back.copy_(self.there, non_blocking=True)
        for _ in range(8):
            torch.matmul(self.a, self.a, out=self.c)
        torch.cuda.current_stream().wait_stream(self.side)


class Products(Load):
    """Products of 4096 x 4096 in bf16, four a step, some milliseconds of them queued."""

    depth = 8

    def build(self):
        self.a = torch.randn(4096, 4096, device=DEVICE, dtype=torch.bfloat16)
        self.b = torch.randn(4096, 4096, device=DEVICE, dtype=torch.bfloat16)
        self.c = torch.empty_like(self.a)
        self.flop = 4 * 2 * 4096 ** 3

    def step(self):
        for _ in range(4):
            torch.matmul(self.a, self.b, out=self.c)


LOADS = {"resnet50": Resnet, "transformer": Transformer, "inference": Inference, "streams": Streams, "graph": Graph,
         "elementwise": Elementwise, "products32": Products32, "copies": Copies, "products": Products}

if __name__ == "__main__":
    Session(lambda name: LOADS[name]()).serve()
