#!/usr/bin/env python3
"""launches: what a launch costs while accounts are kept, natively and under a cap of 90 %, in alternating runs.

    python3 bench/launches.py [--lgpu bin/lgpu] [--rounds 5] [--seconds 3] [--sim SHAPE | --card [--library liblgpu.so]...]

loop is how many empty kernels a second a program can launch; the others are p50 and p99 of a call in ns, of which paced
is with 10 us between two. Each cell is the median of the runs, with the lowest and the highest.

--card runs it without a GPU, on tenant/liblgpu/testdata/card.c, with the costs of a card: 2 us for a launch, 1.5 us for
an event, on the host and on the device. There the library keeps accounts without a daemon; several are compared.
"""
import argparse
import os
import subprocess

from measure import Bench, median

HERE = os.path.dirname(os.path.abspath(__file__))
TENANT = os.path.join(HERE, "..", "tenant")
COSTS = {"CARD_LAUNCH": "2000", "CARD_RECORD": "1500", "CARD_EVENT": "1500", "CARD_QUERY": "300", "CARD_KERNEL": "2300"}
CAP = 90


class Card(Bench):
    """A machine whose device is card.c."""

    def __init__(self):
        super().__init__("lgpu")

    def build(self):
        self.driver = os.path.join(self.tmp, "libcuda.so.1")
        subprocess.run(["gcc", "-std=c11", "-D_GNU_SOURCE=", "-O2", "-Wall", "-shared", "-fPIC", "-pthread", "-Wl,-Bsymbolic",
                        "-Wl,-soname,libcuda.so.1", "-DLGPU_CUDA_PLAIN", "-DLGPU_NVML_PLAIN", "-I", os.path.join(TENANT, "abi", "include"), "-I",
                        os.path.join(TENANT, "liblgpu"), os.path.join(TENANT, "liblgpu", "testdata", "card.c"), "-o", self.driver], check=True)
        super().build()

    def libcuda(self):
        return ["-Wl,--unresolved-symbols=ignore-all", self.driver]  # it has what launch needs

    def native(self, command):
        return ["env", "LD_LIBRARY_PATH=" + self.tmp] + ["%s=%s" % c for c in COSTS.items()] + command

    def inside(self, library, command):
        limits = ["CUDA_DEVICE_MEMORY_LIMIT=1g", "CUDA_DEVICE_SM_LIMIT=%d" % CAP, "CUDA_DEVICE_MEMORY_SHARED_CACHE=" + os.path.join(self.tmp, "cache")]
        return ["env", "LD_PRELOAD=" + os.path.abspath(library), "LGPU_REAL_LIBCUDA=" + self.driver, "LGPU_REAL_LIBNVML=" + self.driver] + limits + self.native(command)


def cell(values):
    return "%.0f (%.0f–%.0f)" % (median(values), min(values), max(values))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--lgpu", default=os.path.join(HERE, "..", "bin", "lgpu"))
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--seconds", type=float, default=3)
    ap.add_argument("--calls", type=int, default=20000, help="of each kind, for p50 and p99")
    ap.add_argument("--sim", help="shape of a software GPU to run on")
    ap.add_argument("--card", action="store_true")
    ap.add_argument("--library", action="append")
    a = ap.parse_args()
    bench = Card() if a.card else Bench(a.lgpu, sim=a.sim)
    capped = [["--compute", str(CAP)]] if not a.card else a.library or [os.path.join(HERE, "..", "build", "lib", "liblgpu.so")]
    kinds = [bench.native] + [lambda command, how=how: bench.inside(how, command) for how in capped]
    got = {}
    try:
        for round_ in range(a.rounds):
            for k in range(len(kinds)):
                kind = (round_ + k) % len(kinds)
                for program in ([bench.launch, "loop", str(a.seconds)], [bench.launch, str(a.calls)]):
                    for line in bench.call(kinds[kind](program), 120).splitlines():
                        name, *values = line.split()
                        if name in ("loop", "launch", "paced", "Ex", "graph") and all(v.lstrip("-").isdigit() for v in values):
                            got.setdefault(name, {}).setdefault(kind, []).append([int(v) for v in values])
    finally:
        bench.close()
    heads = ["at a cap of %d %%" % CAP] if not a.card else [os.path.basename(os.path.dirname(os.path.abspath(how))) for how in capped]
    print("| row | natively |" + "".join(" %s | |" % head for head in heads) + "\n" + "|---" * (2 + 2 * len(heads)) + "|")
    for name, by in got.items():
        for i, what in enumerate(["a second"] if name == "loop" else ["p50 ns", "p99 ns"]):
            row = [[v[i] for v in by[kind]] for kind in range(len(kinds))]
            native = median(row[0])
            cells = [cell(row[0])]
            for values in row[1:]:
                cells += [cell(values), "%.1f %%" % (100 * median(values) / native) if name == "loop" else "%+.0f" % (median(values) - native)]
            print("| %s, %s | %s |" % (name, what, " | ".join(cells)))


if __name__ == "__main__":
    main()
