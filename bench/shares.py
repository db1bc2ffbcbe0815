#!/usr/bin/env python3
"""shares: what part of a GPU's native rate a compute cap delivers.

    python3 bench/shares.py [--lgpu bin/lgpu] [--seconds 10] [--rows alone,beside] [--out FILE]

Every row runs a program natively and inside lgpus, in turn, on the same card,
and prints a Markdown table. A share is work done per second over the native
rate of the same program in the same session; a 1-s window slides in steps of
50 ms and begins one second after the program's first kernel. "Device time" is
what the kernels lasted, by the device's own clock. The two differ where a
capped program leaves the card cooler, and so faster, than a native one does
(the SM clock is sampled beside every run), and where the native run itself
loses time to the driver's switching between processes.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BIN = 0.05


def build(tmp):
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    root = os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))
    lines = open(os.path.join(HERE, "compute", "work.ptx")).read().splitlines()
    with open(os.path.join(tmp, "work.ptx.h"), "w") as f:
        f.writelines('"%s\\n"\n' % line for line in lines)
    rate = os.path.join(tmp, "rate")
    subprocess.run(["gcc", "-O2", "-Wall", "-o", rate, os.path.join(HERE, "compute", "rate.c"), "-I", tmp,
                    "-I", os.path.join(root, "include"), "-I", os.path.join(root, "targets/x86_64-linux/include"),
                    "-l:libcuda.so.1"] + ["-L" + d for d in ("/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu")], check=True)
    return rate


class Clock:
    """Samples the SM clock of GPU 0 while in use."""

    def __enter__(self):
        self.proc = subprocess.Popen(["nvidia-smi", "-i", "0", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits", "-lms", "200"],
                                     stdout=subprocess.PIPE, text=True)
        self.samples = []
        self.thread = threading.Thread(target=lambda: self.samples.extend(int(l) for l in self.proc.stdout if l.strip().isdigit()))
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.proc.terminate()
        self.thread.join()

    def mhz(self):
        late = self.samples[5:-2] or self.samples
        return statistics.fmean(late) if late else 0.0


def series(text):
    """{bin: (units, seconds)} of one or several programs' output."""
    out = {}
    for line in text.splitlines():
        k, units, seconds = line.split()
        had = out.get(int(k), (0.0, 0.0))
        out[int(k)] = (had[0] + float(units), had[1] + float(seconds))
    return out


def run(commands):
    """Runs the commands at once; a series for each."""
    procs = [subprocess.Popen(c, stdout=subprocess.PIPE, text=True) for c in commands]
    texts = [p.communicate(timeout=120)[0] for p in procs]
    for c, p in zip(commands, procs):
        if p.returncode != 0:
            sys.exit("shares: %s: exit %d" % (" ".join(c), p.returncode))
    return [series(t) for t in texts]


class Window:
    """Rates over a span of bins: of units and of device time, whole and by sliding seconds."""

    def __init__(self, values, first, last):
        bins = [values.get(b, (0.0, 0.0)) for b in range(first, last + 1)]
        one = round(1 / BIN)
        self.rate, self.time = (sum(b[i] for b in bins) / (len(bins) * BIN) for i in (0, 1))
        self.rates, self.times = ([sum(b[i] for b in bins[k:k + one]) for k in range(len(bins) - one + 1)] for i in (0, 1))


def worst(shares, cap):
    return max(abs(100 * s - cap) for s in shares)


def measure(commands, seconds):
    """A Window for each command, over the time that all ran, and the mean SM clock."""
    with Clock() as clock:
        all_series = run(commands)
    first = max(min(s) for s in all_series) + round(1 / BIN)
    last = min(min(max(s) for s in all_series) - 1, first + round(seconds / BIN) - 1)
    return [Window(s, first, last) for s in all_series], clock.mhz()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--lgpu", default=os.path.join(HERE, "..", "bin", "lgpu"))
    ap.add_argument("--seconds", type=float, default=10)
    ap.add_argument("--rows", default="alone,beside")
    ap.add_argument("--caps", default="10,25,50,75,90")
    ap.add_argument("--loads", default="200us,5ms,50ms,gemm,graph,8procs")
    ap.add_argument("--out")
    a = ap.parse_args()
    tmp = tempfile.mkdtemp()
    rate = build(tmp)
    iters = {us: subprocess.run([rate, "calibrate", str(us)], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
             for us in (50, 200, 5000, 50000)}
    span = str(a.seconds + 1.6)
    loads = {
        "200us": [rate, "async", iters[200], span],
        "5ms": [rate, "async", iters[5000], span],
        "50ms": [rate, "sync", iters[50000], span],
        "gemm": [sys.executable, os.path.join(HERE, "compute", "gemm.py"), span],
        "graph": [rate, "graph", iters[50], span],
        "8procs": ["sh", "-c", "for i in 1 2 3 4 5 6 7 8; do %s async %s %s & done; wait" % (rate, iters[200], span)],
    }
    titles = {"200us": "200 µs kernels", "5ms": "5 ms kernels", "50ms": "50 ms kernels + sync", "gemm": "PyTorch bf16 4096³ products",
              "graph": "graph replay (20 × 50 µs)", "8procs": "8 processes, 200 µs kernels"}

    def capped(cap, name, command):
        return [a.lgpu, "run", "--compute", str(cap), "--name", name, "--"] + command

    results = []
    if "alone" in a.rows:
        print("| load | cap %% | of native rate, %g s | worst 1 s off by | of device time, %g s | worst 1 s off by | SM MHz (native) |" % (a.seconds, a.seconds))
        print("|---|---|---|---|---|---|---|")
        for load in a.loads.split(","):
            (native,), native_mhz = measure([loads[load]], a.seconds)
            for cap in (int(c) for c in a.caps.split(",")):
                (got,), mhz = measure([capped(cap, "bench-%d" % os.getpid(), loads[load])], a.seconds)
                row = dict(load=load, cap=cap, share=100 * got.rate / native.rate, time=100 * got.time,
                           worst_share=worst([r / native.rate for r in got.rates], cap), worst_time=worst(got.times, cap),
                           mhz=mhz, native_mhz=native_mhz, native_rate=native.rate)
                results.append(row)
                print("| %s | %d | %.2f (%+.2f) | %.2f | %.2f (%+.2f) | %.2f | %.0f (%.0f) |" % (
                    titles[load], cap, row["share"], row["share"] - cap, row["worst_share"], row["time"], row["time"] - cap,
                    row["worst_time"], mhz, native_mhz), flush=True)
    if "beside" in a.rows:
        (native,), _ = measure([loads["200us"]], a.seconds)
        print("\n| caps beside each other | delivered % | off by |\n|---|---|---|")
        for caps in ((30, 60), (10, 90), (25, 25, 25, 25)):
            got, _ = measure([capped(c, "bench-%d-%d" % (os.getpid(), i), loads["200us"]) for i, c in enumerate(caps)], a.seconds)
            shares = [100 * g.rate / native.rate for g in got]
            results.append(dict(beside=caps, shares=shares))
            print("| %s | %s | %s |" % (" + ".join(map(str, caps)), " + ".join("%.2f" % s for s in shares),
                                        ", ".join("%+.2f" % (s - c) for s, c in zip(shares, caps))), flush=True)
    if a.out:
        with open(a.out, "w") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
