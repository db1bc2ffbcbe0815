#!/usr/bin/env python3
"""start: what containment costs when a program starts.

    python3 bench/start.py [--rounds COUNT] [--sim=SHAPE]

Runs `lgpu run -- true` with --contain=off and --contain=on in turn, while another lgpu of the same daemon runs, and prints
the medians of the wall time. Without --sim on a GPU.
"""
import argparse
import os
import statistics
import subprocess
import sys
import time

LGPU = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bin", "lgpu")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--rounds", type=int, default=20, help="of each kind (default 20)")
    p.add_argument("--sim", metavar="SHAPE", help="use a software GPU")
    options = p.parse_args()
    run = [LGPU, "run"] + (["--sim=" + options.sim] if options.sim else [])
    keeper = subprocess.Popen(run + ["--", "sh", "-c", "echo; read x"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    keeper.stdout.readline()
    times = {"off": [], "on": []}
    for _ in range(options.rounds):
        for contain, list_of in times.items():
            begin = time.perf_counter()
            subprocess.run(run + ["--contain=" + contain, "--", "true"], check=True)
            list_of.append((time.perf_counter() - begin) * 1e3)
    keeper.communicate(b"\n")
    print("| --contain | median ms | least | most |\n|---|---|---|---|")
    for contain, list_of in times.items():
        print(f"| {contain} | {statistics.median(list_of):.1f} | {min(list_of):.1f} | {max(list_of):.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
