#!/usr/bin/env python3
"""overcommit: what it costs that memory can leave the device, and how fast it leaves and comes back.

    python3 bench/overcommit.py [--rows move,cold,pair,link,again,cost,train,allocators,servers,turns] [--gib N] [--rounds N]
        [--sim SHAPE] [--out FILE]

    move    lgpu suspend and lgpu resume of one program
    cold    lgpu suspend of a program as soon as it has its memory, and when the host's memory for it is made
    pair    one program leaves the device while another one comes back
    link    what the link to the device does without lgpu, one way and both ways at once, in one process: with memory that the
            driver makes, and with a memory file that is registered, as lgpu's copies are; and the same while another process
            gives back device memory, 50 GB in a second
    again   a small program is suspended and resumed 1,000 times: what it has of the machine before and after
    cost    calls of a program whose memory all fits: natively, in an lgpu, and in one with --overcommit, in turn
    train   a PyTorch training that is suspended 20 times: its losses must be those of one that is not; and what its steps take
    allocators  the same with each of PyTorch's allocators
    servers  three PyTorch servers whose weights are only read, called in turn, with room for one: the first result after a
            switch, and what of the weights is copied out; also with --strict, and with servers that themselves copy their
            weights out and in. --gib is of each server, --budget of all. Without PyTorch, blocks that are read take its place
    turns   busy programs whose memory does not fit together, in parts of --budget: two of 30/64 and of 40/64 of it, two of 90 %
            with turns of 23, 8 and 4 times a swap, and, in half of it, four of 28/32. What the turns cost over running one after
            the other, what of a swap is not hidden, and the shares. Copies take twice the budget of the host's memory
            (host.budget)

Every row checks that memory has the bits that it had. Prints Markdown; appends results to FILE as lines of JSON.
"""
import argparse
import ctypes
import json
import mmap
import os
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
GIB, MIB = 1 << 30, 1 << 20
ALLOCATORS = {"caching": "", "expandable segments": "expandable_segments:True", "cudaMallocAsync": "backend:cudaMallocAsync"}


class Cuda:
    """A context of device 0."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        if result != 0:
            raise RuntimeError("%s: CUDA's error %d" % (name, result))

    def alloc(self, size):
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
        return at


def say(**values):
    print(json.dumps(values), flush=True)


def hold(size):
    """Holds memory in blocks, each with a word of its own, and checks them for each line of input, or changes them all."""
    cuda, step = Cuda(), min(size // 4, GIB) // MIB * MIB
    blocks, words = [cuda.alloc(step) for _ in range(size // step)], []

    def fill(turn):
        words[:] = [0x9E3779B9 * (i + 1 + len(blocks) * turn) & 0xFFFFFFFF for i in range(len(blocks))]
        for at, word in zip(blocks, words):
            cuda.call("cuMemsetD32_v2", at, ctypes.c_uint(word), ctypes.c_size_t(step // 4))
        cuda.call("cuCtxSynchronize")

    fill(0)
    say(ready=True)
    host, part, libc = ctypes.c_void_p(), min(step, 256 * MIB), ctypes.CDLL(None)
    cuda.call("cuMemAllocHost_v2", ctypes.byref(host), ctypes.c_size_t(part))
    for turn, line in enumerate(sys.stdin):
        bad = 0
        if line.strip() == "change":
            fill(turn + 1)
            say(changed=True)
            continue
        for at, word in zip(blocks, words):
            want = word.to_bytes(4, "little") * (part // 4)
            for offset in range(0, step - part + 1, part):
                cuda.call("cuMemcpyDtoH_v2", host, ctypes.c_uint64(at.value + offset), ctypes.c_size_t(part))
                bad += libc.memcmp(host, want, ctypes.c_size_t(part)) != 0
        say(bad=bad)


def link(size):
    """How fast page-locked memory is copied, in GB/s: one way and both, in pieces as lgpu registers them and whole, on one stream each
    way and on two."""
    cuda, streams = Cuda(), [ctypes.c_void_p() for _ in range(4)]
    for s in streams:
        cuda.call("cuStreamCreate", ctypes.byref(s), 1)
    device, driver, files = [], [], []  # addresses; of files, with their mappings, which must stay
    for _ in range(2):
        host = ctypes.c_void_p()
        cuda.call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(size), 1)
        device.append(cuda.alloc(size).value)
        driver.append(host.value)
        f = os.memfd_create("link")
        os.truncate(f, size)
        mapping = mmap.mmap(f, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        at = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        files.append((at, mapping))
        for offset in range(0, size, 32 * MIB):
            cuda.call("cuMemHostRegister_v2", ctypes.c_uint64(at + offset), ctypes.c_size_t(min(size - offset, 32 * MIB)), 1)
    got = {}
    for name, piece, hosts in (("32 MiB", 32 * MIB, driver), ("whole", size, driver), ("file", 32 * MIB, [at for at, _ in files])):
        ends = list(zip(device, hosts))
        for way in ("out", "in", "both"):
            for lanes in (1, 2):
                took = []
                for _ in range(3):
                    began = time.perf_counter()
                    for i, offset in enumerate(range(0, size, piece)):
                        n = ctypes.c_size_t(min(piece, size - offset))
                        for back in ((False,), (True,), (False, True))[("out", "in", "both").index(way)]:
                            there, here = (ctypes.c_uint64(end + offset) for end in ends[back])
                            stream = streams[2 * back + i % lanes]
                            if back:
                                cuda.call("cuMemcpyHtoDAsync_v2", there, here, n, stream)
                            else:
                                cuda.call("cuMemcpyDtoHAsync_v2", here, there, n, stream)
                    cuda.call("cuCtxSynchronize")
                    took.append(time.perf_counter() - began)
                got["%s, %s, %d" % (way, name, lanes)] = [size * (2 if way == "both" else 1) / 1e9 / t for t in took]
    say(**got)
    sys.stdin.read()


def give_back(rate):
    """Makes device memory and gives it back, so many bytes in a second, until its input ends."""
    cuda, piece, gone = Cuda(), 256 * MIB, []
    threading.Thread(target=lambda: gone.append(sys.stdin.read()), daemon=True).start()
    say(ready=True)
    began, done = time.perf_counter(), 0
    while not gone:
        cuda.call("cuMemFree_v2", cuda.alloc(piece))
        done += piece
        time.sleep(max(0, done / rate - (time.perf_counter() - began)))


def cost():
    """Medians of some calls, in ns, for each line of input."""
    cuda = Cuda()
    four, small = ctypes.create_string_buffer(4), cuda.alloc(4)
    kept = [cuda.alloc(size) for size in (MIB, 64 * MIB)]  # a program has memory
    del kept

    def pair(size):
        at = ctypes.c_uint64()
        cuda.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
        cuda.call("cuMemFree_v2", at)

    def ordered(size):
        at = ctypes.c_uint64()
        cuda.call("cuMemAllocAsync", ctypes.byref(at), ctypes.c_size_t(size), None)
        cuda.call("cuMemFreeAsync", at, None)

    pool, everything = ctypes.c_void_p(), ctypes.c_uint64(2 ** 64 - 1)
    cuda.call("cuDeviceGetDefaultMemPool", ctypes.byref(pool), 0)
    cuda.call("cuMemPoolSetAttribute", pool, 4, ctypes.byref(everything))  # CU_MEMPOOL_ATTR_RELEASE_THRESHOLD

    def timed(count, work):
        took = []
        for _ in range(count):
            began = time.perf_counter_ns()
            work()
            took.append(time.perf_counter_ns() - began)
        return statistics.median(took)

    say(ready=True)
    for _ in sys.stdin:
        say(**{"copy of 4 bytes": timed(2000, lambda: cuda.call("cuMemcpyHtoD_v2", small, four, ctypes.c_size_t(4))),
               "memset": timed(2000, lambda: cuda.call("cuMemsetD8Async", small, ctypes.c_ubyte(0), ctypes.c_size_t(4), None)),
               "alloc + free 1 KiB": timed(1000, lambda: pair(1024)), "alloc + free 2 MiB": timed(300, lambda: pair(2 * MIB)),
               "alloc + free 256 MiB": timed(30, lambda: pair(256 * MIB)),
               "ordered alloc + free 1 KiB": timed(1000, lambda: ordered(1024)),
               "ordered alloc + free 2 MiB": timed(300, lambda: ordered(2 * MIB))})


def train():
    """A training; says each loss, bit by bit."""
    import torch
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    net = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.GELU()) for _ in range(8)]).cuda()
    best = torch.optim.Adam(net.parameters(), 1e-4)
    x, graph_x = torch.randn(512, 2048, device="cuda"), torch.ones(1 << 20, device="cuda")
    (graph_x + 1).sum()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        graph_x.mul_(1.0001)
    say(ready=True)
    for _ in range(1200):
        best.zero_grad()
        loss = (net(x) - x).square().mean()
        loss.backward()
        best.step()
        graph.replay()
        say(loss=loss.item().hex(), at=time.perf_counter())
    say(end=graph_x[0].item().hex())


class Weights:
    """Memory that is only read, as PyTorch's tensors or, without it, as blocks of the driver's. result is of all of it."""

    def __init__(self, size):
        self.step = min(size // 4, GIB // 2) // MIB * MIB
        self.count = size // self.step
        try:
            import torch
            self.torch = torch
            torch.manual_seed(0)
            self.some = [torch.randn(self.step // 8192, 4096, device="cuda", dtype=torch.float32).half() for _ in range(self.count)]
            self.x = torch.randn(16, 4096, device="cuda").half()
        except ImportError:
            self.torch, self.cuda = None, Cuda()
            self.some = [self.cuda.alloc(self.step) for _ in range(self.count)]
            for i, at in enumerate(self.some):
                self.cuda.call("cuMemsetD32_v2", at, ctypes.c_uint(i + 1), ctypes.c_size_t(self.step // 4))
        self.host = None

    def result(self):
        if self.torch:
            return sum((self.x @ w.T).float().square().mean() for w in self.some).item().hex()
        word, words = ctypes.c_uint(), []
        for at in self.some:
            self.cuda.call("cuMemcpyDtoH_v2", ctypes.byref(word), ctypes.c_uint64(at.value + self.step - 4), ctypes.c_size_t(4))
            words.append(word.value)
        return str(words)

    def sleep(self):
        """As vLLM's sleep mode: the weights are copied to page-locked memory, and their memory is freed."""
        self.host = self.host or [self.torch.empty(w.shape, dtype=w.dtype, pin_memory=True) for w in self.some]
        for host, w in zip(self.host, self.some):
            host.copy_(w, non_blocking=True)
        self.torch.cuda.synchronize()
        self.some = []
        self.torch.cuda.empty_cache()

    def wake(self):
        self.some = [host.to("cuda", non_blocking=True) for host in self.host]
        self.torch.cuda.synchronize()


def serve(size):
    weights = Weights(size)
    say(ready=True, result=weights.result(), torch=weights.torch is not None)
    for line in sys.stdin:
        began = time.perf_counter()
        result = {"ask": weights.result, "sleep": weights.sleep, "wake": weights.wake}[line.strip()]()
        say(result=result, seconds=time.perf_counter() - began)


def busy(size):
    """Holds memory in blocks, and keeps the device busy with kernels of 2 ms for as many seconds as it is told, or until the
    wall's clock has reached a time. Says for how long they ran, and whether the memory is as it was."""
    cuda, step = Cuda(), min(size // 4, GIB) // MIB * MIB
    blocks = [cuda.alloc(step) for _ in range(size // step)]
    for i, at in enumerate(blocks):
        cuda.call("cuMemsetD32_v2", at, ctypes.c_uint(i + 1), ctypes.c_size_t(step // 4))
    module, kernel, nanos = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64(2_000_000)
    cuda.call("cuModuleLoad", ctypes.byref(module), os.path.join(HERE, "..", "sim", "kernels", "control.ptx").encode())
    cuda.call("cuModuleGetFunction", ctypes.byref(kernel), module, b"spin")
    arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(nanos), ctypes.c_void_p))

    def run(count):
        for _ in range(count):
            cuda.call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
        cuda.call("cuCtxSynchronize")

    run(1)
    say(ready=True)
    for line in sys.stdin:
        what, value = line.split()
        ran, word, bad = 0, ctypes.c_uint(), 0
        while ran * 0.002 < float(value) if what == "for" else time.time() < float(value):
            run(5)
            ran += 5
        for i, at in enumerate(blocks):
            cuda.call("cuMemcpyDtoH_v2", ctypes.byref(word), ctypes.c_uint64(at.value + step - 4), ctypes.c_size_t(4))
            bad += word.value != i + 1
        say(ran=ran * 0.002, bad=bad)


class Program:
    script = os.path.abspath(__file__)  # that has its modes

    def __init__(self, bench, mode, options, what, allocator="", wait=True, name=None):
        bench.count += 1
        self.name = name or "overcommit-%d-%d" % (os.getpid(), bench.count)
        run = [] if options is None else [bench.lgpu, "run", "--name", self.name, *bench.sim, *options, "--"]
        if options is None and bench.sim:
            run = [bench.lgpu, "run", *bench.sim, "--", "env", "-u", "LD_PRELOAD"]
        environment = dict(os.environ, CUBLAS_WORKSPACE_CONFIG=":4096:8")
        if allocator:
            environment["PYTORCH_CUDA_ALLOC_CONF"] = environment["PYTORCH_ALLOC_CONF"] = allocator
        self.proc = subprocess.Popen(run + [sys.executable, self.script, "--child", mode, str(what)], text=True,
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self.ready = self.read() if wait else None

    def read(self):
        line = self.proc.stdout.readline()
        if not line:
            raise RuntimeError("%s ended with status %s" % (self.name, self.proc.wait()))
        return json.loads(line)

    def ask(self, what=""):
        self.proc.stdin.write(what + "\n")
        self.proc.stdin.flush()
        return self.read()

    def close(self):
        self.proc.stdin.close()
        self.proc.wait()


class Bench:
    def __init__(self, options):
        self.lgpu, self.sim, self.count, self.options = os.path.abspath(options.lgpu), ["--sim=" + options.sim] if options.sim else [], 0, options

    def lgpu_call(self, *arguments):
        began = time.perf_counter()
        self.said = subprocess.run([self.lgpu, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        return time.perf_counter() - began

    def copies(self):
        return json.loads(subprocess.check_output([self.lgpu, "ps", "--json"]))["daemon"]["host_copies"]

    def held(self, names):
        """Bytes of device memory that they are charged for."""
        return sum(d["memory.current"] for l in json.loads(subprocess.check_output([self.lgpu, "ps", "--json"]))["lgpus"]
                   if l["path"].split("/")[-1] in names for d in l["devices"])

    def moved(self, names):
        """Bytes that have left devices, and those of them that were not copied."""
        stats = [d["residence.stat"] for l in json.loads(subprocess.check_output([self.lgpu, "ps", "--json"]))["lgpus"]
                 if l["path"].split("/")[-1] in names for d in l["devices"]]
        return [sum(s[what] for s in stats if s) for what in ("evicted", "clean")]

    def warm(self, size):
        """Until the daemon has made host memory for all of size, or as much as it may."""
        made = [self.copies()]
        while made[-1] < size and (len(made) < 40 or made[-1] > made[-40]):
            time.sleep(0.05)
            made.append(self.copies())

    def report(self, row, **values):
        if self.options.out:
            with open(self.options.out, "a") as f:
                f.write(json.dumps(dict(values, row=row)) + "\n")


def spread(values, form="%.3f"):
    return (form + " (" + form + "–" + form + ")") % (statistics.median(values), min(values), max(values))


def move(b, size, rounds):
    p = Program(b, "hold", ["--overcommit"], size)
    b.warm(size)
    time.sleep(2)  # the program registers what was made
    out, back = [], []
    for _ in range(rounds):
        p.ask("change")  # else it is not copied again
        out.append(b.lgpu_call("suspend", p.name))
        back.append(b.lgpu_call("resume", p.name))
    bad = p.ask()["bad"]
    p.close()
    for what, took in (("suspend", out), ("resume", back)):
        print("| %s of %.3g GiB | %s | %s | %d |" % (what, size / GIB, spread(took), spread([size / 1e9 / t for t in took], "%.1f"), bad), flush=True)
        b.report("move", what=what, bytes=size, seconds=took, bad=bad)


def cold(b, size):
    p = Program(b, "hold", ["--overcommit"], size)
    began, made = time.perf_counter(), []

    def watch():
        b.warm(size)
        made.append(time.perf_counter() - began)
    watcher = threading.Thread(target=watch)
    watcher.start()
    took = [b.lgpu_call("suspend", p.name), b.lgpu_call("resume", p.name)]
    watcher.join()
    bad = p.ask()["bad"]
    p.close()
    print("| cold: suspend, then resume of %.3g GiB; the host's memory is made after %.3f s | %.3f, %.3f | %.1f, %.1f | %d |" %
          (size / GIB, made[0], *took, *[size / 1e9 / t for t in took], bad), flush=True)
    b.report("cold", bytes=size, seconds=took, made=made[0], bad=bad)


def again(b, times):
    size = 64 * MIB
    p = Program(b, "hold", ["--overcommit"], size)
    b.warm(size)

    def things():
        state = json.loads(subprocess.check_output([b.lgpu, "ps", "--json"]))
        mine = next(x for x in state["lgpus"] if x["path"].endswith("/" + p.name))
        at = "/proc/%d/" % mine["processes"][0]["pid"]
        with open(at + "maps") as f:
            maps = len(f.readlines())
        daemon = len(os.listdir("/proc/%d/fd" % state["daemon"]["pid"]))
        return {"descriptors": len(os.listdir(at + "fd")), "mappings": maps, "of the daemon": daemon,
                "MiB by the driver": state["devices"][0]["memory.current"] / MIB, "MiB of copies": state["daemon"]["host_copies"] / MIB,
                "MiB of its own": mine["devices"][0]["memory.current"] / MIB}
    b.lgpu_call("suspend", p.name)
    b.lgpu_call("resume", p.name)
    time.sleep(3)  # the driver is asked each second
    before, began = things(), time.perf_counter()
    for _ in range(times):
        b.lgpu_call("suspend", p.name)
        b.lgpu_call("resume", p.name)
    took = time.perf_counter() - began
    time.sleep(3)
    after, bad = things(), p.ask()["bad"]
    p.close()
    print("\n%d times suspended and resumed in %.1f s; wrong pieces: %d\n\n| | before | after |\n|---|---|---|" % (times, took, bad))
    for what in before:
        print("| %s | %g | %g |" % (what, before[what], after[what]), flush=True)
    b.report("again", times=times, seconds=took, bad=bad, before=before, after=after)


def pair(b, size, rounds):
    two = [Program(b, "hold", ["--overcommit"], size) for _ in range(2)]
    b.warm(2 * size)
    time.sleep(2)
    b.lgpu_call("suspend", two[1].name)
    took = []
    for i in range(rounds):
        leaves, comes = two[i % 2], two[(i + 1) % 2]
        leaves.ask("change")
        began = time.perf_counter()
        both = [subprocess.Popen([b.lgpu, "suspend", leaves.name], stdout=subprocess.DEVNULL),
                subprocess.Popen([b.lgpu, "resume", comes.name], stdout=subprocess.DEVNULL)]
        for child in both:
            child.wait()
        took.append(time.perf_counter() - began)
    for p in two:
        b.lgpu_call("resume", p.name)
    bad = sum(p.ask()["bad"] for p in two)
    for p in two:
        p.close()
    print("| out and in at once, %.3g GiB each | %s | %s | %d |" % (size / GIB, spread(took), spread([2 * size / 1e9 / t for t in took], "%.1f"), bad), flush=True)
    b.report("pair", bytes=size, seconds=took, bad=bad)


def links(b, size):
    measure_link(b, size, "")
    beside = Program(b, "give-back", None, 50 * 10 ** 9)
    measure_link(b, size, ", beside a process that gives memory back")
    beside.close()


def measure_link(b, size, what):
    p = Program(b, "link", None, size, wait=False)
    got = p.read()
    p.close()
    print("\n| GB/s, %.3g GiB each way%s | in pieces of 32 MiB, one stream | two | whole, one stream | two | a file, in pieces, one stream "
          "| two |\n|%s" % (size / GIB, what, "---|" * 7))
    for way in ("out", "in", "both"):
        print("| %s | %s |" % (way, " | ".join(spread(got["%s, %s, %d" % (way, piece, lanes)], "%.1f")
                                               for piece in ("32 MiB", "whole", "file") for lanes in (1, 2))), flush=True)
    b.report("link", bytes=size, beside=what != "", **got)


def call(b, servers, rounds, pause, switch):
    """Calls each server in turn, rounds times, and returns the seconds until each result, and how many were wrong."""
    took, wrong = [], 0
    for i in range(rounds * len(servers)):
        p = servers[i % len(servers)]
        time.sleep(pause)
        began = time.perf_counter()
        switch(servers[(i - 1) % len(servers)], p)
        wrong += p.ask("ask")["result"] != p.ready["result"]
        took.append(time.perf_counter() - began)
    return took, wrong


def servers(b, size, budget, rounds, pause):
    print("\n| three servers of %.3g GiB, %.3g GiB for all | seconds to the first result | copied of what left | wrong results |\n|---|---|---|---|"
          % (size / GIB, budget / GIB))
    ways = {"--overcommit": ["--overcommit"], "--overcommit --strict": ["--overcommit", "--strict"]}
    try:
        for way, options in ways.items():
            some = [Program(b, "serve", options, size) for _ in range(3)]
            b.lgpu_call("set", "/", "memory.budget=%dB" % budget)  # a software GPU is there with its first program
            call(b, some, 2, pause, lambda *_: None)  # the first time nothing has a hash, and files are made
            before = b.moved([p.name for p in some])
            took, wrong = call(b, some, rounds, pause, lambda *_: None)
            left, clean = [y - x for x, y in zip(before, b.moved([p.name for p in some]))]
            ready = some[0].ready
            for p in some:
                p.close()
            part = (left - clean) / left if left else 0
            print("| %s | %s | %.2f %% of %.1f GiB | %d |" % (way, spread(took), 100 * part, left / GIB, wrong), flush=True)
            b.report("servers", way=way, bytes=size, budget=budget, seconds=took, left=left, clean=clean, wrong=wrong,
                     torch=ready["torch"])
        if not ready["torch"]:
            return
        some = []
        b.lgpu_call("set", "/", "memory.budget=default")
        for _ in range(3):
            some.append(Program(b, "serve", [], size))
            some[-1].ask("sleep")
        some[-1].ask("wake")
        call(b, some, 1, 0, lambda before, p: (before.ask("sleep"), p.ask("wake")))
        took, wrong = call(b, some, rounds, 0, lambda before, p: (before.ask("sleep"), p.ask("wake")))
        for p in some:
            p.close()
        print("| the servers' own copies, out and in | %s | 100 %% | %d |" % (spread(took), wrong), flush=True)
        b.report("servers", way="own copies", bytes=size, seconds=took, wrong=wrong)
    finally:
        b.lgpu_call("set", "/", "memory.budget=default")


def together(some, what):
    """Has all do something at the same time: for how long each ran, wrong blocks, and the seconds that all took."""
    began = time.perf_counter()
    for p in some:
        p.proc.stdin.write(what + "\n")
        p.proc.stdin.flush()
    said = [p.read() for p in some]
    return [s["ran"] for s in said], sum(s["bad"] for s in said), time.perf_counter() - began


# Rows of turns by the names of --turns: what is printed, how many programs, each one's part of the budget, the length of
# turns and the work of all, in swaps, and what --budget is divided by.
TURNS = {"fit": ("two of 30/64", 2, 30 / 64, 0, 20, 1), "40": ("two of 40/64", 2, 40 / 64, 4, 24, 1),
         "23": ("two of 90 %", 2, 0.9, 23, 69, 1), "8": ("two of 90 %", 2, 0.9, 8, 24, 1), "4": ("two of 90 %", 2, 0.9, 4, 12, 1),
         "four": ("four of 28/32 of half", 4, 28 / 32, 0, 640, 2)}


def turns(b, budget, some_of):
    if unknown := set(some_of) - set(TURNS):
        sys.exit("--turns: no %s; there are %s" % (", ".join(sorted(unknown)), ", ".join(TURNS)))
    print("\n| turns, %.3g GiB for all | slice, s | time over serial | not hidden, of a swap | GiB moved | shares | wrong blocks |\n|%s"
          % (budget / GIB, "---|" * 7))

    def row(name, count, part, slices, work, budget):
        size = int(budget * part) // (4 * MIB) * 4 * MIB
        some = []
        try:
            for _ in range(count):
                some.append(Program(b, "busy", ["--overcommit"], size))
            b.warm(count * size)
            names = [p.name for p in some]
            b.lgpu_call("suspend", names[0])
            swap = b.lgpu_call("resume", names[0])  # what has not changed leaves at once, but all comes back
            for _ in range(2):
                b.lgpu_call("suspend", names[0])
                swap = min(swap, b.lgpu_call("resume", names[0]))
            more = b.held(names) - count * size  # contexts take room, too
            b.lgpu_call("set", "/", "memory.budget=%dB" % (budget + more),
                        *(["slice.min=%.3fs" % (slices * swap), "slice.max=%.3fs" % (slices * swap)] if slices else []))
            alone, bad, serial = together(some[:1], "for %f" % (work * swap / 4))
            loss = serial / alone[0]  # of the launches themselves
            before = b.moved(names)[0]
            ran, wrong, took = together(some, "for %f" % (work * swap) if count == 2 else "until %f" % (time.time() + work * swap))
            moved, shares = b.moved(names)[0] - before, [r / sum(ran) * 100 for r in ran]
            changes = max(took / (slices * swap), 1) if slices else 0
            lost = max(took - sum(ran) * loss, 0)
            hidden = "%.0f %%" % (100 * lost / changes / swap) if changes else "-"
            print("| %s | %s | %.3f | %s | %.1f | %s | %d |" % (
                name, "%.2f" % (slices * swap) if slices else "by itself", took / (sum(ran) * loss), hidden, moved / GIB,
                " ".join("%.1f" % s for s in shares), bad + wrong), flush=True)
            b.report("turns", name=name, bytes=size, budget=budget, slice=slices * swap, swap=swap, ran=ran, seconds=took,
                     launches=loss, moved=moved, shares=shares, bad=bad + wrong)
        finally:
            for p in some:
                p.close()
            b.lgpu_call("set", "/", "memory.budget=default", "slice.max=default", "slice.min=default")

    for which in some_of:
        row(*TURNS[which][:5], budget=budget // TURNS[which][5])


def costs(b, rounds):
    ways = {"natively": None, "in an lgpu": [], "with --overcommit": ["--overcommit"]}
    programs = {way: Program(b, "cost", options, 0) for way, options in ways.items()}
    got = {}
    for i in range(rounds):
        for way in list(ways)[:: 1 if i % 2 == 0 else -1]:
            for call, ns in programs[way].ask().items():
                got.setdefault(call, {}).setdefault(way, []).append(ns / 1000)
    for p in programs.values():
        p.close()
    print("\n| µs | " + " | ".join(ways) + " |\n|" + "---|" * (len(ways) + 1))
    for call, by in got.items():
        print("| %s | %s |" % (call, " | ".join(spread(by[way], "%.2f") for way in ways)), flush=True)
        b.report("cost", call=call, **{way.replace(" ", "_"): v for way, v in by.items()})


def trains(b):
    def run(options, moves):
        p, said, moved = Program(b, "train", options, 0), [], []
        while not said or "end" not in said[-1]:
            said.append(p.read())
            if len(said) % 50 == 25 and len(moved) < moves:
                moved.append(b.lgpu_call("suspend", p.name) + b.lgpu_call("resume", p.name))
        p.close()
        at = [x["at"] for x in said[:-1]]
        step = statistics.median(b - a for a, b in zip(at[100:], at[101:])) * 1000
        return [x.get("loss", x.get("end")) for x in said], moved, step
    ways, steps = {"natively": None, "in an lgpu": [], "with --overcommit": ["--overcommit"]}, {}
    native = None
    for i in range(2):
        for way in list(ways)[:: 1 if i % 2 == 0 else -1]:
            losses, _, step = run(ways[way], 0)
            native = losses if way == "natively" else native
            steps.setdefault(way, []).append(step)
    inside, moved, _ = run(["--overcommit"], 20)
    differ = sum(x != y for x, y in zip(native, inside))
    print("\ntraining suspended %d times: %d of %d losses differ from the native run's\n" % (len(moved), differ, len(native)))
    print("| ms a step | " + " | ".join(ways) + " |\n|" + "---|" * (len(ways) + 1))
    print("| training, not suspended | %s |" % " | ".join(spread(steps[way]) for way in ways), flush=True)
    b.report("train", moves=len(moved), differ=differ, losses=len(native), **{way.replace(" ", "_"): v for way, v in steps.items()})


def allocators(b):
    def run(options, moves, allocator):
        p, said, moved, left = Program(b, "train", options, 0, allocator), [], [], ""
        while not said or "end" not in said[-1]:
            said.append(p.read())
            if len(said) % 50 == 25 and len(moved) < moves:
                out = b.lgpu_call("suspend", p.name)
                left = b.said
                moved.append(out + b.lgpu_call("resume", p.name))
        p.close()
        return [x.get("loss", x.get("end")) for x in said], moved, left
    native, _, _ = run(None, 0, "")
    print("\n| allocator | seconds away and back | losses that differ | the last time |\n|---|---|---|---|")
    for name, allocator in ALLOCATORS.items():
        try:
            inside, moved, left = run(["--overcommit"], 20, allocator)
        except RuntimeError as e:
            print("| %s | FAILED: %s | | |" % (name, e), flush=True)
            continue
        differ = sum(x != y for x, y in zip(native, inside))
        print("| %s | %s | %d of %d | %s |" % (name, spread(moved), differ, len(native), left), flush=True)
        b.report("allocators", allocator=name, left=left, seconds=moved, differ=differ, losses=len(native))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--lgpu", default=os.path.join(HERE, "..", "bin", "lgpu"))
    ap.add_argument("--rows", default="move,cold,pair,link,again,cost,train,allocators")
    ap.add_argument("--gib", type=float, default=16)
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--budget", type=float, default=32, help="GiB that the rows servers and turns leave for all")
    ap.add_argument("--turns", default=",".join(TURNS), help="which of the row turns, by commas: %s" % ", ".join(TURNS))
    ap.add_argument("--pause", type=float, default=1.5, help="seconds between two calls of the row servers: who is idle gives way")
    ap.add_argument("--times", type=int, default=1000, help="of the row again")
    ap.add_argument("--sim", help="shape of a software GPU")
    ap.add_argument("--out")
    ap.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = ap.parse_args()
    if options.child:
        mode, what = options.child
        {"hold": lambda: hold(int(what)), "link": lambda: link(int(what)), "give-back": lambda: give_back(int(what)),
         "cost": cost, "train": train, "serve": lambda: serve(int(what)), "busy": lambda: busy(int(what))}[mode]()
        return
    b, size, failed = Bench(options), int(options.gib * GIB), False
    rows = {"move": lambda: move(b, size, options.rounds), "pair": lambda: pair(b, size, options.rounds),
            "link": lambda: links(b, min(size, 4 * GIB)),
            "cold": lambda: cold(b, size), "again": lambda: again(b, options.times), "cost": lambda: costs(b, options.rounds), "train": lambda: trains(b),
            "allocators": lambda: allocators(b),
            "turns": lambda: turns(b, int(options.budget * GIB), options.turns.split(",")),
            "servers": lambda: servers(b, size, int(options.budget * GIB), options.rounds, options.pause)}
    print("| | seconds | GB/s | wrong pieces |\n|---|---|---|---|", flush=True)
    for row in options.rows.split(","):
        try:
            rows[row]()
        except (RuntimeError, subprocess.CalledProcessError, OSError) as e:
            failed = True
            print("| %s | FAILED: %s |" % (row, e), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
