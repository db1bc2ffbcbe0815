#!/usr/bin/env python3
"""shares: what part of a GPU's native rate a compute cap delivers.

    python3 bench/shares.py [--lgpu bin/lgpu] [--seconds 10] [--rows alone,beside] [--out FILE]

Every row runs a program natively and inside lgpus, in turn, on the same card,
and prints a Markdown table. A share is work done per second over the native
rate of the same program in the same session; a 1-s window slides in steps of
50 ms and begins one second after the program's first kernel. The clock of the
card is sampled beside every run, because a capped program leaves the card
cooler and faster than a native one: "at native clock" divides that out.
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
    out = {}
    for line in text.split("\n"):
        parts = line.split()
        if len(parts) == 2:
            out[int(parts[0])] = out.get(int(parts[0]), 0.0) + float(parts[1])
    return out


def run(commands):
    """Runs the commands at once; a series for each."""
    procs = [subprocess.Popen(c, stdout=subprocess.PIPE, text=True) for c in commands]
    texts = [p.communicate(timeout=120)[0] for p in procs]
    for c, p in zip(commands, procs):
        if p.returncode != 0:
            sys.exit("shares: %s: exit %d" % (" ".join(c), p.returncode))
    return [series(t) for t in texts]


def window(values, first, last):
    """Rate over 10 s (or what there is), and the lowest and highest 1-s window."""
    bins = [values.get(b, 0.0) for b in range(first, last + 1)]
    one = round(1 / BIN)
    ones = [sum(bins[i:i + one]) for i in range(0, len(bins) - one + 1)]
    return sum(bins) / (len(bins) * BIN), min(ones), max(ones)


def measure(commands, seconds):
    """[(rate, lowest window, highest window)] over the time all commands ran."""
    with Clock() as clock:
        all_series = run(commands)
    first = max(min(s) for s in all_series) + round(1 / BIN)
    last = min(min(max(s) for s in all_series) - 1, first + round(seconds / BIN) - 1)
    return [window(s, first, last) for s in all_series], clock.mhz()


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
    iters = {us: subprocess.run([rate, "calibrate", str(us)], check=True, capture_output=True, text=True).stdout.strip()
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
        print("| load | cap % | delivered % over %g s | off by | lowest 1 s | highest 1 s | worst window off by | SM MHz (native) | %% at native clock |" % a.seconds)
        print("|---|---|---|---|---|---|---|---|---|")
        for load in a.loads.split(","):
            (native,), native_mhz = measure([loads[load]], a.seconds)
            for cap in (int(c) for c in a.caps.split(",")):
                (got,), mhz = measure([capped(cap, "bench-%d" % os.getpid(), loads[load])], a.seconds)
                share, low, high = (100 * v / native[0] for v in got)
                row = dict(load=load, cap=cap, share=share, low=low, high=high, mhz=mhz, native_mhz=native_mhz, native_rate=native[0])
                results.append(row)
                print("| %s | %d | %.2f | %+.2f | %.2f | %.2f | %.2f | %.0f (%.0f) | %.2f |" % (
                    titles[load], cap, share, share - cap, low, high, max(abs(low - cap), abs(high - cap)), mhz, native_mhz,
                    share * native_mhz / mhz if mhz else 0), flush=True)
    if "beside" in a.rows:
        (native,), _ = measure([loads["200us"]], a.seconds)
        print("\n| caps beside each other | delivered % | off by |\n|---|---|---|")
        for caps in ((30, 60), (10, 90), (25, 25, 25, 25)):
            got, _ = measure([capped(c, "bench-%d-%d" % (os.getpid(), i), loads["200us"]) for i, c in enumerate(caps)], a.seconds)
            shares = [100 * g[0] / native[0] for g in got]
            results.append(dict(beside=caps, shares=shares))
            print("| %s | %s | %s |" % (" + ".join(map(str, caps)), " + ".join("%.2f" % s for s in shares),
                                        ", ".join("%+.2f" % (s - c) for s, c in zip(shares, caps))), flush=True)
    if a.out:
        with open(a.out, "w") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
