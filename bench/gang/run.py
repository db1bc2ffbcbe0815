#!/usr/bin/env python3
"""run: two tenants, each with a collective over the same two devices, in opposite order.

    python3 bench/gang/run.py [--sim 2x2GiB,sms=4] [--seconds 5] [--kinds collective,nccl] [--out FILE]

If devices were given out one by one, each tenant would sooner or later hold one and wait for the other. Prints a table
of rounds a second and the longest round, and fails if a program has not ended half a minute after its time.
"""
import argparse
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from measure import Bench, Failed

HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--lgpu", default=os.path.join(HERE, "..", "..", "bin", "lgpu"))
    ap.add_argument("--sim")
    ap.add_argument("--seconds", type=float, default=5)
    ap.add_argument("--kinds", default="collective,nccl")
    ap.add_argument("--out", help="file for the results, as JSON")
    a = ap.parse_args()
    bench = Bench(a.lgpu, sim=a.sim, device="0,1")
    program = os.path.join(bench.tmp, "collective")
    subprocess.run(["gcc", "-O2", "-Wall", "-o", program, os.path.join(HERE, "collective.c"), "-I" + os.path.join(bench.tmp, "include"),
                    "-I" + os.path.join(HERE, "..", "..", "tenant", "abi", "include")] + bench.libcuda(), check=True)
    kinds = {"collective": lambda order: [program, order, "%g" % a.seconds, "200" if a.sim else "200000"],
             "nccl": lambda order: [sys.executable, os.path.join(HERE, "nccl.py"), order, "%g" % a.seconds]}
    half = ["--compute", "50"]
    cases = [("alone, natively", [("01", None)]), ("alone, in an lgpu", [("01", [])]), ("alone, cap 50 %", [("01", half)]),
             ("two, equal weights, opposite order", [("01", []), ("10", [])]), ("two, caps 50 + 50, opposite order", [("01", half), ("10", half)]),
             ("three, weights, mixed order", [("01", []), ("10", ["--weight", "200"]), ("01", [])])]
    results, bad = [], 0
    print("| program | tenants | rounds a second | longest round, ms |\n|---|---|---|---|", flush=True)
    for kind in a.kinds.split(","):
        if kind == "nccl" and a.sim:
            continue
        for what, tenants in cases:
            procs = []
            for order, options in tenants:
                command = kinds[kind](order)
                command = bench.native(command) if options is None else bench.inside(options, command)
                procs.append(bench.start(command, a.seconds + 30))
            rates, longest, failure = [], [], None
            for p in procs:
                try:
                    words = bench.finish(p).split()
                    at = words.index("rounds")
                    rates.append(int(words[at + 1]) / float(words[at + 3]))
                    longest.append(float(words[at + 5]))
                except (Failed, ValueError) as e:
                    failure = str(e)
            results.append(dict(kind=kind, what=what, rates=rates, longest_ms=longest, failure=failure))
            if failure:
                bad += 1
                print("| %s | %s | FAILED: %s | |" % (kind, what, failure.replace("|", "/")), flush=True)
            else:
                print("| %s | %s | %s | %s |" % (kind, what, " + ".join("%.1f" % r for r in rates), ", ".join("%.1f" % v for v in longest)), flush=True)
    bench.close()
    if a.out:
        with open(a.out, "w") as f:
            json.dump(results, f, indent=1)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
