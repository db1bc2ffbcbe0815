#!/usr/bin/env python3
"""overhead: what an lgpu without a compute cap costs, call by call.

    python3 bench/overhead.py [--lgpu bin/lgpu] [--rounds 5] [--compute PCT]

Runs the same programs natively and inside an lgpu with a memory limit, in
turn, and prints the median of the rounds of each with its spread.
"""
import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--lgpu", default=os.path.join(HERE, "..", "bin", "lgpu"))
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--compute", default="100")
    a = ap.parse_args()
    calls = os.path.join(tempfile.mkdtemp(), "calls")
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    subprocess.run([nvcc, "-O2", "-std=c++17", "-arch=sm_90", "-o", calls, os.path.join(HERE, "overhead", "calls.cu")], check=True)
    programs = [[calls], [sys.executable, os.path.join(HERE, "overhead", "step.py")]]
    inside = [a.lgpu, "run", "--memory", "64GiB", "--compute", a.compute, "--"]
    samples = {}
    for round_ in range(a.rounds):
        for program in programs:
            pair = [("native", program), ("lgpu", inside + program)]
            for who, command in pair if round_ % 2 == 0 else reversed(pair):
                out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                for line in out.splitlines():
                    name, ns = line.split()
                    samples.setdefault(name, {}).setdefault(who, []).append(float(ns))
    print("| call | native ns | in an lgpu ns | difference ns | % |\n|---|---|---|---|---|")
    for name, by in samples.items():
        m = {who: statistics.median(v) for who, v in by.items()}
        d = m["lgpu"] - m["native"]
        print("| %s | %.0f (%.0f–%.0f) | %.0f (%.0f–%.0f) | %+.0f | %+.2f |" % (
            name, m["native"], min(by["native"]), max(by["native"]), m["lgpu"], min(by["lgpu"]), max(by["lgpu"]), d, 100 * d / m["native"]))


if __name__ == "__main__":
    main()
