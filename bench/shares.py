#!/usr/bin/env python3
"""shares: whether shares hold for what people run: small, pausing and launch-bound programs, and several jobs.

    python3 bench/shares.py [--groups torch,empty,...] [--out FILE] [--sim SHAPE] [--fake] [--budget S] [--group-budget S]

Prints a Markdown table for each group and appends every result to FILE as a line of JSON. Natively and in lgpus
alternate, mostly within the life of the same processes. The last column says whether the row has what it must. Groups:

    slices       the driver's hardware slices, without lgpu: a short kernel beside a program that saturates
    utilization  what NVML says of processes whose use is known
    alone        a limitless lgpu with nobody else there, over native
    empty        a loop of empty kernels with caps
    latency      short kernels now and then beside programs that saturate: natively, equal weights, latency
    pausing      work and pause beside a program that saturates, by weights, compute.min and priorities
    crowd        a short kernel now and then beside seven that saturate
    turns        two that saturate, by the length of their turns, which alternates
    pairs        caps, pairs, weights and sums, by bench/node.py
    torch        eight PyTorch loads with caps
    live         the same, with caps that change while a load runs, over its rate without a cap right before and after
    inference    a small PyTorch inference beside bf16 products
    twins        two resnet50 trainings, two inferences; and while another starts and ends
    ddp          one, two and three training jobs over NCCL on two cards; and while another starts and ends

Needs bin/lgpu, the driver, gcc, and PyTorch for the last five. With --sim the groups without PyTorch run on a software
GPU, ten times slower; its figures say only that the scripts work. With --fake sleeping programs stand for PyTorch's.

--budget is for all and --group-budget for each group, in seconds: a row that is not begun by then is left out. A
signal TERM (from timeout) ends everything; what was measured is in FILE. On H200s the groups fit in these times; with
--quick in two thirds of them:

    one card, 5 min:  timeout -k 30 590 python3 bench/shares.py --groups slices,utilization,alone,empty --out FILE
    one card, 8 min:  timeout -k 30 590 python3 bench/shares.py --groups latency,pausing,crowd,inference --out FILE
    one card, 8 min:  timeout -k 30 590 python3 bench/shares.py --groups torch,twins --out FILE
    one card, 5 min:  timeout -k 30 590 python3 bench/shares.py --groups pairs --out FILE
    one card, 4 min:  timeout -k 30 590 python3 bench/shares.py --groups turns --quick --out FILE
    two cards, 3 min: timeout -k 30 590 python3 bench/shares.py --groups ddp --out FILE
"""
import argparse
import os
import signal
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "shares"))
import rows_driver
import rows_kernels
import rows_torch
from harness import Machine, Report

GROUPS = {"slices": rows_driver.slices, "utilization": rows_driver.utilization, "alone": rows_kernels.alone, "empty": rows_kernels.empty,
          "latency": rows_kernels.latency, "pausing": rows_kernels.pausing, "crowd": rows_kernels.crowd, "turns": rows_kernels.turns, "pairs": rows_kernels.pairs,
          "torch": rows_torch.torch, "live": rows_torch.live, "inference": rows_torch.inference, "twins": rows_torch.twins, "ddp": rows_torch.ddp}
NEED_TORCH = ("torch", "live", "inference", "twins", "ddp")


def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--lgpu", default=os.path.join(HERE, "..", "bin", "lgpu"))
    ap.add_argument("--groups", default=",".join(GROUPS))
    ap.add_argument("--only", default="", help="loads of the groups torch and live, by commas")
    ap.add_argument("--seconds", type=float, help="of a window in which something is counted or timed; default 5, with --quick 3")
    ap.add_argument("--short", type=float, help="of a window of a rate that is measured several times; default 1, with --quick 0.7")
    ap.add_argument("--rounds", type=int, help="of alternating rows; default 3, with --quick 2")
    ap.add_argument("--quick", action="store_true")
    ap.add_argument("--budget", type=float, help="seconds for everything")
    ap.add_argument("--group-budget", type=float, help="seconds for each group")
    ap.add_argument("--sim", help="shape of a software GPU to run on")
    ap.add_argument("--fake", action="store_true", help="sleeping programs instead of PyTorch's")
    ap.add_argument("--out", help="file to which results are appended, as lines of JSON")
    a = ap.parse_args()
    a.lgpu = os.path.abspath(a.lgpu)
    a.groups, a.only = a.groups.split(","), [o for o in a.only.split(",") if o]
    if unknown := set(a.groups) - set(GROUPS):
        ap.error("no groups %s; there are %s" % (", ".join(sorted(unknown)), ", ".join(GROUPS)))
    a.seconds, a.short, a.rounds = a.seconds or (3 if a.quick else 5), a.short or (0.7 if a.quick else 1), a.rounds or (2 if a.quick else 3)
    return a


def main():
    a = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("shares: told to end; what was measured is in the file"))
    m = Machine(a.lgpu, sim=a.sim, fake=a.fake)
    r = Report(a.out, dict(groups=a.groups, seconds=a.seconds, short=a.short, rounds=a.rounds, sim=a.sim, fake=a.fake), a.budget, a.group_budget)
    try:
        for name in a.groups:
            r.group(name)
            if name in NEED_TORCH and not m.has_torch():
                print("without PyTorch: left out", flush=True)
                continue
            began = time.time()
            r.guard(name, GROUPS[name], m, r, a)
            print("\n(%.0f s)" % (time.time() - began), flush=True)
    finally:
        m.close()
    print("\n%d rows, %d of them short, %d failed, %d left out, %.0f s" % (r.done, r.short, r.failures, r.skipped, time.time() - r.began))
    sys.exit(1 if r.failures else 0)


if __name__ == "__main__":
    main()
