#!/usr/bin/env python3
"""launches: what a launch costs while accounts are kept.

    python3 bench/launches.py [--lgpu bin/lgpu] [--rounds 4] [--turns 3] [--seconds 0.7] [--sim SHAPE | --card]

Two processes alternate, one natively and one in an lgpu, of which compute.max is taken away (then no accounts are kept)
and set to 90 % in turn, within the life of the process; in each round they are new. loop is how many empty kernels a
second a program can launch; the others are p50 and p99 of a call in ns, of which paced is with 10 us between two. Each
cell is the median, with the least and the most. What accounts cost compares neighbours in time of the same process.

--card runs it without a GPU, on tenant/liblgpu/testdata/card.c, with costs like those of an H200: 3.4 us for a launch
on the host and 2 us on the device, 1.5 us for an event.
"""
import argparse
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "shares"))
from harness import Program, spread
from measure import Bench

TENANT = os.path.join(HERE, "..", "tenant")
COSTS = {"CARD_LAUNCH": "3400", "CARD_RECORD": "1500", "CARD_EVENT": "1500", "CARD_QUERY": "300", "CARD_KERNEL": "2000"}
CAP = 90
SETTLE = 0.3  # seconds of work before what is measured: credit that was saved is spent then


class Card(Bench):
    """A machine whose device is card.c, with a daemon of its own."""

    def build(self):
        self.driver = os.path.join(self.tmp, "libcuda.so.1")
        subprocess.run(["gcc", "-std=c11", "-D_GNU_SOURCE=", "-O2", "-Wall", "-shared", "-fPIC", "-pthread", "-Wl,-Bsymbolic",
                        "-Wl,-soname,libcuda.so.1", "-DLGPU_CUDA_PLAIN", "-DLGPU_NVML_PLAIN", "-I", os.path.join(TENANT, "abi", "include"), "-I",
                        os.path.join(TENANT, "liblgpu"), os.path.join(TENANT, "liblgpu", "testdata", "card.c"), "-o", self.driver], check=True)
        self.env.update(COSTS, LD_LIBRARY_PATH=self.tmp, LGPU_REAL_LIBCUDA=self.driver, LGPU_REAL_LIBNVML=self.driver,
                        LGPU_RUNTIME_DIR=os.path.join(self.tmp, "run"))
        super().build()

    def close(self):
        subprocess.run([self.lgpu, "daemon", "stop"], env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        super().close()

    def libcuda(self):
        return ["-Wl,--unresolved-symbols=ignore-all", self.driver]  # it has what launch needs


def measure(bench, a, round_, got):
    """One process natively and one in an lgpu, in turn. got is {row: {phase: values}}, in order of time."""
    name = "launches-%d-%d" % (os.getpid(), round_)
    native = Program(bench, bench.native([bench.launch]))
    inside = Program(bench, bench.inside(["--name", name], [bench.launch]), "/" + name)
    phases = {"native": native, "max": inside, "%d%%" % CAP: inside}
    try:
        for turn in range(a.turns):
            for phase in phases if (round_ + turn) % 2 == 0 else reversed(phases):
                program = phases[phase]
                if program is inside:
                    inside.set("compute.max=" + phase)
                got.setdefault("loop, a second", {}).setdefault(phase, []).append(program.ask("loop %g" % a.seconds)["loop"])
                for call, values in program.ask("calls %d" % a.calls).items():
                    for what, value in zip(("p50", "p99"), values):
                        got.setdefault("%s, %s ns" % (call, what), {}).setdefault(phase, []).append(value)
    finally:
        native.close()
        inside.close()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--lgpu", default=os.path.join(HERE, "..", "bin", "lgpu"))
    ap.add_argument("--rounds", type=int, default=4, help="pairs of processes")
    ap.add_argument("--turns", type=int, default=3, help="of each process")
    ap.add_argument("--seconds", type=float, default=0.7, help="of a loop")
    ap.add_argument("--calls", type=int, default=5000, help="of each kind, for p50 and p99")
    ap.add_argument("--sim", help="shape of a software GPU to run on")
    ap.add_argument("--card", action="store_true")
    a = ap.parse_args()
    bench, got = Card(a.lgpu) if a.card else Bench(a.lgpu, sim=a.sim), {}
    try:
        for round_ in range(a.rounds):
            measure(bench, a, round_, got)
    finally:
        bench.close()
    print("| row | natively | no cap | at a cap of %d %% | what accounts cost | of the native rate |\n|---|---|---|---|---|---|" % CAP)
    for row, by in got.items():
        native, free, capped = by["native"], by["max"], by["%d%%" % CAP]
        if row.startswith("loop"):
            cost, part = (spread([100 * x / y for x, y in zip(capped, other)], "%.1f") + " %" for other in (free, native))
            cost += " of the rate without a cap"
        else:
            cost, part = spread([x - y for x, y in zip(capped, free)], "%+.0f"), "-"
        print("| %s | %s | %s | %s | %s | %s |" % (row, spread(native, "%.0f"), spread(free, "%.0f"), spread(capped, "%.0f"), cost, part))


if __name__ == "__main__":
    main()
