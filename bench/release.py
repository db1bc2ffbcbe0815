#!/usr/bin/env python3
"""release: how fast programs leave their devices wholly and come back, beside the driver alone.

    python3 bench/release.py [--rows one,sparse,four] [--gib N] [--rounds N] [--sim SHAPE] [--out FILE]

    one     a program of --gib of random data: the driver's own calls, lgpu suspend --release and lgpu resume in an lgpu with
            --overcommit and in one without, in turn
    sparse  a program that has 4 times --gib, of which a sixteenth was ever written
    four    four programs of half of --gib each, in one lgpu

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


class Random(Program):
    """Has random data, in an lgpu or, without options, natively."""
    script = os.path.abspath(__file__)

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


def compare(b, name, size, written, rounds, count=1):
    """A row for each way. The programs of each are alone: each has all of the link and of the host's memory."""
    driver, idle = None if b.sim else Driver(), used()
    for way, options in (("the driver alone", None), ("lgpu", []), ("lgpu --overcommit", ["--overcommit"])):
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


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--lgpu", default=os.path.join(HERE, "..", "bin", "lgpu"))
    ap.add_argument("--rows", default="one,sparse,four")
    ap.add_argument("--gib", type=float, default=16)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--sim", help="shape of a software GPU; the driver alone is left out")
    ap.add_argument("--out")
    ap.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = ap.parse_args()
    if options.child:
        random(*map(int, options.child[1].split(",")))
        return
    b, size = Bench(options), int(options.gib * GIB)
    print("| | s until away | s until back | GiB copied out, in all rounds | MiB used meanwhile | wrong pieces |\n|%s" % ("---|" * 6), flush=True)
    rows = {"one": lambda: compare(b, "one of %.3g GiB" % options.gib, size, size, options.rounds),
            "sparse": lambda: compare(b, "%.3g GiB, of which a sixteenth was written" % (4 * options.gib), 4 * size, size // 4, options.rounds),
            "four": lambda: compare(b, "four of %.3g GiB" % (options.gib / 2), size // 2, size // 2, options.rounds, 4)}
    for row in options.rows.split(","):
        rows[row]()


if __name__ == "__main__":
    main()
