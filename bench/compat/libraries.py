"""Libraries and frameworks that compat.py tries, each if it is installed. A case raises if a result is wrong."""
import os
import tempfile

import driver


def devices(n):
    import torch
    if torch.cuda.device_count() < n:
        raise ImportError(f"needs {n} GPUs")


def model():
    import torch
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1)).cuda()


def train(net, steps=20):
    import torch
    torch.manual_seed(0)
    x = torch.randn(256, 64, device="cuda")
    y, optimizer, losses = x.sum(1, keepdim=True), torch.optim.Adam(net.parameters(), 1e-2), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], f"the loss went from {losses[0]} to {losses[-1]}"


def torch_eager():
    train(model())


def torch_allocator(conf):
    """A case with another allocator, which PyTorch chooses when it is imported."""
    def case():
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = conf
        torch_eager()
        torch_graphs()
    return case


def torch_compile():
    import torch
    train(torch.compile(model()))


def torch_graphs():
    import torch
    x = torch.ones(1 << 16, device="cuda")
    (x + 1).sum()  # allocates before the capture
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        x.add_(1)
    for _ in range(10):
        captured.replay()
    torch.cuda.synchronize()
    assert x[0].item() == 11, x[0].item()


def rank(number, count, port):
    import torch
    import torch.distributed as dist
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(number)
    dist.init_process_group("nccl", rank=number, world_size=count)
    train(torch.nn.parallel.DistributedDataParallel(model(), device_ids=[number]))
    dist.destroy_process_group()


def torch_ddp():
    import socket
    import torch.multiprocessing
    devices(2)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    torch.multiprocessing.spawn(rank, (2, port), nprocs=2)


def double(queue, done):
    tensor = queue.get()
    tensor.mul_(2)
    import torch
    torch.cuda.synchronize()
    del tensor
    done.set()


def torch_ipc():
    import torch
    import torch.multiprocessing
    context = torch.multiprocessing.get_context("spawn")
    queue, done = context.Queue(), context.Event()
    other = context.Process(target=double, args=(queue, done))
    other.start()
    tensor = torch.ones(1000, device="cuda")
    queue.put(tensor)
    assert done.wait(120), "the other process did not answer"
    other.join()
    assert tensor.sum().item() == 2000, tensor.sum().item()


class Numbers:
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return float(i)


def loader(method):
    import torch
    batches = torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=2, pin_memory=True, multiprocessing_context=method)
    assert sum(b.cuda(non_blocking=True).sum().item() for b in batches) == 64 * 63 / 2


def torch_loader_fork():
    loader("fork")


def torch_loader_spawn():
    loader("spawn")


def torch_profiler():
    import torch
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as p:
        torch_eager()
    assert any(getattr(e, "device_time_total", getattr(e, "cuda_time_total", 0)) > 0 for e in p.key_averages()), "no kernel was seen"
    torch.cuda.synchronize()


def transformers_generate():
    """A small model with random weights: nothing is downloaded."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
    net = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=100, bos_token_id=0, eos_token_id=99)).cuda().eval()
    out = net.generate(torch.zeros(1, 4, dtype=torch.long, device="cuda"), max_new_tokens=8, min_new_tokens=8, do_sample=False)
    assert out.shape[1] == 12, out.shape


def jax_jit():
    import jax
    import jax.numpy
    if jax.default_backend() != "gpu":
        raise ImportError("jax is installed without CUDA")
    assert float(jax.jit(lambda x: (x @ x).sum())(jax.numpy.ones((128, 128)))) == 128 ** 3


def cupy_sum():
    import cupy
    assert int((cupy.arange(1000) * 2).sum()) == 999000


def cupy_async():
    import cupy
    cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    for _ in range(20):
        assert int(cupy.arange(1 << 20).sum()) == (1 << 19) * ((1 << 20) - 1)


def numba_kernel():
    import numpy
    if not hasattr(numpy, "row_stack"):  # numba-cuda's bug: it uses a name that NumPy 2.5 has taken away
        numpy.row_stack = numpy.vstack
    from numba import cuda

    @cuda.jit
    def add(x):
        i = cuda.grid(1)
        if i < x.size:
            x[i] += i

    x = cuda.to_device(numpy.zeros(1000))
    add[4, 256](x)
    assert (x.copy_to_host() == numpy.arange(1000)).all()


def triton_kernel():
    """Triton reads a kernel's source, so it needs a file."""
    import importlib.util
    import torch
    import triton  # noqa: F401
    source = ("import triton\nimport triton.language as tl\n\n@triton.jit\ndef twice(x, n, BLOCK: tl.constexpr):\n"
              "    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
              "    tl.store(x + at, tl.load(x + at, at < n) * 2, at < n)\n")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "twice.py")
        with open(path, "w") as f:
            f.write(source)
        spec = importlib.util.spec_from_file_location("twice", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        x = torch.ones(1000, device="cuda")
        module.twice[(4,)](x, 1000, BLOCK=256)
        assert x.sum().item() == 2000, x.sum().item()


CASES = dict(driver.CASES, **{
    "PyTorch eager": torch_eager, "PyTorch compile": torch_compile, "PyTorch CUDA graphs": torch_graphs,
    "PyTorch expandable": torch_allocator("expandable_segments:True"),
    "PyTorch mallocAsync": torch_allocator("backend:cudaMallocAsync"),
    "PyTorch DDP, NCCL": torch_ddp, "PyTorch IPC": torch_ipc, "DataLoader, fork": torch_loader_fork,
    "DataLoader, spawn": torch_loader_spawn, "PyTorch profiler": torch_profiler,
    "transformers generate": transformers_generate, "JAX jit": jax_jit, "CuPy": cupy_sum, "CuPy async": cupy_async,
    "Numba": numba_kernel, "Triton": triton_kernel,
})
