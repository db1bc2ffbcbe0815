#!/usr/bin/env python3
"""overhead: what an lgpu without a compute cap costs, call by call.

    python3 bench/overhead.py [--lgpu bin/lgpu] [--rounds 5] [--compute PCT]

The first table compares each call with the driver's own in one process, in
short alternating rounds. The second runs whole programs natively and inside an
lgpu with a memory limit, in turn, and prints the median of the rounds of each
with its spread.
"""
import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def cuda_root():
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    return os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))


def in_one_process(inside, tmp):
    root, hooks = cuda_root(), os.path.join(tmp, "hooks")
    subprocess.run(["gcc", "-O2", "-Wall", "-o", hooks, os.path.join(HERE, "overhead", "hooks.c"), "-I", os.path.join(root, "include"),
                    "-I", os.path.join(root, "targets/x86_64-linux/include"), "-ldl"], check=True)
    script = 'library="${LD_PRELOAD%%:*}"; unset LD_PRELOAD; exec "$0" "$library"'
    out = subprocess.run(inside + ["sh", "-c", script, hooks], check=True, stdout=subprocess.PIPE, text=True).stdout
    print("| call | the driver's ns | through lgpu ns | difference ns |\n|---|---|---|---|")
    for line in out.splitlines():
        print("| %s | %s | %s | %s |" % tuple(line.split()))
    print(flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--lgpu", default=os.path.join(HERE, "..", "bin", "lgpu"))
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--compute", default="100")
    ap.add_argument("--parts", default="hooks,calls,step", help="which of the comparisons")
    a = ap.parse_args()
    os.environ["LGPU_CONTAIN"] = "off"  # the library is found by LD_PRELOAD, and the driver's beside it
    tmp = tempfile.mkdtemp()
    calls = os.path.join(tmp, "calls")
    subprocess.run([os.path.join(cuda_root(), "bin", "nvcc"), "-O2", "-std=c++17", "-arch=sm_90", "-o", calls, os.path.join(HERE, "overhead", "calls.cu")], check=True)
    programs = [p for name, p in (("calls", [calls]), ("step", [sys.executable, os.path.join(HERE, "overhead", "step.py")])) if name in a.parts]
    inside = [a.lgpu, "run", "--memory", "64GiB", "--compute", a.compute, "--"]
    if "hooks" in a.parts:
        in_one_process(inside, tmp)
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
