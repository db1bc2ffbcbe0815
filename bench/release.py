#!/usr/bin/env python3
"""release: how fast programs leave their devices wholly and come back, beside the driver alone.

    python3 bench/release.py [--rows one,sparse,four,graphs] [--gib N] [--rounds N] [--sim SHAPE] [--out FILE]

    one     a program of --gib of random data: the driver's own calls, lgpu suspend --release and lgpu resume in an lgpu with
            --overcommit and in one without, in turn
    sparse  a program that has 4 times --gib, of which a sixteenth was ever written
    four    four programs of half of --gib each, in one lgpu
    graphs  a program with executable graphs whose kernels need large stacks, which lgpu gives up meanwhile: their results before
            and after, ten times

--ways chooses among the driver, an lgpu, and one with --overcommit.

The driver's calls are those of cuCheckpointProcess*, made by this script. Every row checks that memory has the bits that it
had. Prints Markdown; appends results to FILE as lines of JSON.
"""
import argparse
import ctypes
import json
import os
import subprocess
import sys
import time

from overcommit import GIB, HERE, MIB, Bench, Cuda, Program, say, spread


class Noise:
    """Memory in blocks, the first of which are filled with random words: written bytes of size."""

    def __init__(self, size, written):
        self.cuda, step = Cuda(), min(size // 8, GIB) // MIB * MIB
        self.part = min(step, 64 * MIB)
        blocks = [self.cuda.alloc(step).value for _ in range(size // step)]
        pieces = [ctypes.c_uint64(block + offset) for block in blocks for offset in range(0, step - self.part + 1, self.part)]
        self.noise = ctypes.create_string_buffer(os.urandom(self.part + 8192))
        self.seen = ctypes.create_string_buffer(self.part)
        self.pieces = [[at, n % 4096] for n, at in enumerate(pieces[:written // self.part])]  # each begins elsewhere in the noise
        self.change(1)

    def change(self, part):
        """Has other words in this part of the pieces."""
        for piece in self.pieces[:round(part * len(self.pieces))]:
            piece[1] += 4096 - 8192 * (piece[1] >= 4096)
            self.cuda.call("cuMemcpyHtoD_v2", piece[0], ctypes.byref(self.noise, piece[1]), ctypes.c_size_t(self.part))

    def bad(self):
        """How many pieces have other words than they should."""
        bad, libc = 0, ctypes.CDLL(None)
        for at, words in self.pieces:
            self.cuda.call("cuMemcpyDtoH_v2", self.seen, at, ctypes.c_size_t(self.part))
            bad += libc.memcmp(self.seen, ctypes.byref(self.noise, words), ctypes.c_size_t(self.part)) != 0
        return bad


def random(size, written):
    """Has random data, and checks them for each line of input; a number is a percentage of them that changes first."""
    noise = Noise(size, written)
    say(ready=True)
    for line in sys.stdin:
        if line.strip():
            noise.change(float(line) / 100)
        say(bad=noise.bad())


# A kernel with an array of its own, whose words it changes at places that it computes, and sums up.
STACK = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry stack(.param .u64 out) {
    .local .align 16 .b8 words[8192];
    .reg .u32 %i, %x, %s, %w, %id; .reg .u64 %at, %base, %out; .reg .pred %p;
    mov.u32 %id, %ctaid.x; mov.u32 %i, %ntid.x; mul.lo.u32 %id, %id, %i; mov.u32 %i, %tid.x; add.u32 %id, %id, %i;
    mov.u64 %base, words; cvta.local.u64 %base, %base; mov.u32 %i, 0; mov.u32 %s, 0; add.u32 %x, %id, 12345;
fill:
    mul.wide.u32 %at, %i, 4; add.u64 %at, %at, %base; add.u32 %w, %x, %i; st.u32 [%at], %w;
    add.u32 %i, %i, 1; setp.lt.u32 %p, %i, 2048; @%p bra fill;
    mov.u32 %i, 0;
mix:
    mad.lo.u32 %x, %x, 1664525, 1013904223; shr.u32 %w, %x, 21; mul.wide.u32 %at, %w, 4; add.u64 %at, %at, %base;
    ld.u32 %w, [%at]; xor.b32 %w, %w, %x; st.u32 [%at], %w; mad.lo.u32 %s, %s, 31, %w;
    add.u32 %i, %i, 1; setp.lt.u32 %p, %i, 4096; @%p bra mix;
    ld.param.u64 %out, [out]; mul.wide.u32 %at, %id, 4; add.u64 %at, %at, %out; st.global.u32 [%at], %s;
    ret;
}
"""


def graphs():
    """Has a graph that has run, and one that was only uploaded, and says for each line of input whether both give what the kernel
    gave at first, and what of other memory has changed."""
    cuda, units = Cuda(), ctypes.c_int()
    cuda.call("cuDeviceGetAttribute", ctypes.byref(units), 16, 0)  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    threads = 2 * units.value * 256
    module, kernel, stream, graph = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    cuda.call("cuModuleLoadData", ctypes.byref(module), STACK)
    cuda.call("cuModuleGetFunction", ctypes.byref(kernel), module, b"stack")
    cuda.call("cuStreamCreate", ctypes.byref(stream), 1)
    out, other, rest = cuda.alloc(4 * threads), cuda.alloc(256 * MIB), 256 * MIB
    cuda.call("cuMemsetD32_v2", other, 0x5a5a5a5a, ctypes.c_size_t(rest // 4))
    arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(out), ctypes.c_void_p))

    def launch():
        cuda.call("cuLaunchKernel", kernel, threads // 256, 1, 1, 256, 1, 1, 0, stream, arguments, None)

    def results(at, size):
        got = ctypes.create_string_buffer(size)
        cuda.call("cuStreamSynchronize", stream)
        cuda.call("cuMemcpyDtoH_v2", got, at, ctypes.c_size_t(size))
        return got.raw

    launch()
    want, execs = results(out, 4 * threads), []
    cuda.call("cuStreamBeginCapture_v2", stream, 2)
    launch()
    cuda.call("cuStreamEndCapture", stream, ctypes.byref(graph))
    for call in ("cuGraphLaunch", "cuGraphUpload"):
        execs.append(ctypes.c_void_p())
        cuda.call("cuGraphInstantiateWithFlags", ctypes.byref(execs[-1]), graph, ctypes.c_uint64(0))
        cuda.call(call, execs[-1], stream)
    cuda.call("cuStreamSynchronize", stream)
    say(ready=True)
    for _ in sys.stdin:
        bad = 0
        for one in execs:
            cuda.call("cuMemsetD32_v2", out, 0, ctypes.c_size_t(threads))
            cuda.call("cuGraphLaunch", one, stream)
            bad += results(out, 4 * threads) != want
        bad += results(other, rest) != b"\x5a" * rest
        say(bad=bad)


class Driver:
    """The driver's own way, from another process."""

    def __init__(self):
        self.cuda = Cuda()

    def call(self, name, pid):
        """Makes a call about a process; the seconds that it took."""
        arguments = (ctypes.c_uint64 * 16)()  # all zero: no time limit, the same devices
        began = time.perf_counter()
        self.cuda.call("cuCheckpointProcess" + name, pid, ctypes.byref(arguments))
        return time.perf_counter() - began


class Own(Program):
    script = os.path.abspath(__file__)  # that has its modes


class Random(Own):
    """Has random data, in an lgpu or, without options, natively."""

    def __init__(self, bench, options, size, written, name=None):
        super().__init__(bench, "random", options, "%d,%d" % (size, written), name=name)
        self.native = options is None


def used():
    """MiB of the device that are used, as the driver says, or None without nvidia-smi."""
    try:
        return int(subprocess.check_output(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]))
    except (OSError, subprocess.CalledProcessError):
        return None


def once(b, driver, p):
    """Has p leave and come back: the seconds of both, what is used of the device meanwhile, and the phases."""
    if p.native:
        pid = p.proc.pid
        out, left = [driver.call("Lock", pid), driver.call("Checkpoint", pid)], used()
        back = [driver.call("Restore", pid), driver.call("Unlock", pid)]
        return sum(out), sum(back), left, dict(zip(("lock", "checkpoint", "restore", "unlock"), out + back))
    out, phases, left = b.lgpu_call("suspend", "--release", "--json", p.name), json.loads(b.said), used()
    back = b.lgpu_call("resume", "--json", p.name)
    return out, back, left, {"away": phases, "back": json.loads(b.said)}


WAYS = {"driver": ("the driver alone", None), "lgpu": ("lgpu", []), "overcommit": ("lgpu --overcommit", ["--overcommit"])}


def compare(b, ways, name, size, written, rounds, count=1):
    """A row for each way. The programs of each are alone: each has all of the link and of the host's memory."""
    driver, idle = None if b.sim else Driver(), used()
    for way, options in ways:
        if options is None and (count > 1 or not driver):
            continue  # with several, one caller takes one after the other
        some = []
        try:
            for _ in range(count):
                some.append(Random(b, options, size, written, some[0].name if some else None))
            if options:
                b.warm(count * size)
                time.sleep(2)  # the program registers what was made
            names = [p.name for p in some]
            before = b.moved(names) if options else [0, 0]
            got = [once(b, driver, some[0]) for _ in range(rounds)]
            left, clean = [now - was for now, was in zip(b.moved(names), before)] if options else [0, 0]
            bad = sum(p.ask()["bad"] for p in some)
        except (RuntimeError, subprocess.CalledProcessError) as e:
            print("| %s, %s | FAILED: %s |" % (name, way, e), flush=True)
            continue
        finally:
            for p in some:
                p.close()
        out, back, use = [g[0] for g in got], [g[1] for g in got], got[-1][2]
        copied = "%.2f" % ((left - clean) / GIB) if left else "-"
        print("| %s, %s | %s | %s | %s | %s | %d |" % (name, way, spread(out), spread(back), copied, use, bad), flush=True)
        b.report("release", name=name, way=way, count=count, bytes=size, written=written, away=out, back=back, used=use, idle=idle,
                 copied=left - clean, bad=bad, phases=[g[3] for g in got])


def stacks(b, ways):
    for way, options in ways:
        p = Own(b, "graphs", options, 0)
        bad, before = p.ask()["bad"], used()
        for _ in range(10):
            b.lgpu_call("suspend", "--release", p.name)
            left = used()
            b.lgpu_call("resume", p.name)
            bad += p.ask()["bad"]
        p.close()
        print("| graphs with large stacks, ten times, %s | | | - | %s, of %s before | %d |" % (way, left, before, bad), flush=True)
        b.report("graphs", way=way, bad=bad, used=left, before=before)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--lgpu", default=os.path.join(HERE, "..", "bin", "lgpu"))
    ap.add_argument("--rows", default="one,sparse,four,graphs")
    ap.add_argument("--ways", default=",".join(WAYS), help="by commas, of: %s" % ", ".join(WAYS))
    ap.add_argument("--gib", type=float, default=16)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--sim", help="shape of a software GPU; the driver alone is left out")
    ap.add_argument("--out")
    ap.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = ap.parse_args()
    if options.child and options.child[0] == "graphs":
        graphs()
        return
    if options.child:
        random(*map(int, options.child[1].split(",")))
        return
    b, size, ways = Bench(options), int(options.gib * GIB), [WAYS[way] for way in options.ways.split(",")]
    print("| | s until away | s until back | GiB copied out, in all rounds | MiB used meanwhile | wrong pieces |\n|%s" % ("---|" * 6), flush=True)
    rows = {"one": lambda: compare(b, ways, "one of %.3g GiB" % options.gib, size, size, options.rounds),
            "sparse": lambda: compare(b, ways, "%.3g GiB, of which a sixteenth was written" % (4 * options.gib), 4 * size, size // 4, options.rounds),
            "four": lambda: compare(b, ways, "four of %.3g GiB" % (options.gib / 2), size // 2, size // 2, options.rounds, 4),
            "graphs": lambda: stacks(b, [way for way in ways if way[1] is not None])}
    for row in options.rows.split(","):
        rows[row]()


if __name__ == "__main__":
    main()
