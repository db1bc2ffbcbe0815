#!/usr/bin/env python3
"""many: how a daemon and what shows it do with many small tenants.

    python3 bench/many.py [--tenants 200] [--compute 1] [--sim 1x64GiB,sms=4] [--seconds 30]

Starts a daemon with page and metrics in a folder of its own, and so many programs on a software GPU, each in an lgpu of
128 MiB with --compute, which compute without a pause. Prints, as a Markdown table: how long all took to start; how long
lgpu ps, lgpu top, the page and the metrics take while they run (median and longest of 20); and what the daemon takes of
processors and memory.
"""
import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LGPU = os.path.join(ROOT, "bin", "lgpu")
CALLS = 20


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def used(pid):
    """Processor seconds and resident bytes of a process."""
    with open("/proc/%d/stat" % pid) as f:
        field = f.read().rsplit(")", 1)[1].split()
    ticks = int(field[11]) + int(field[12])
    return ticks / os.sysconf("SC_CLK_TCK"), int(field[21]) * os.sysconf("SC_PAGE_SIZE")


def timed(call):
    took, size = [], 0
    for _ in range(CALLS):
        begin = time.monotonic()
        size = len(call())
        took.append((time.monotonic() - begin) * 1e3)
    took.sort()
    return "%.0f ms, %.0f ms | %d KB" % (took[len(took) // 2], took[-1], size // 1000)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tenants", type=int, default=200)
    p.add_argument("--compute", default="1")
    p.add_argument("--sim", default="1x64GiB,sms=4")
    p.add_argument("--seconds", type=float, default=30)
    a = p.parse_args()
    folder = tempfile.mkdtemp(prefix="lgpu-many-")
    env = dict(os.environ, LGPU_RUNTIME_DIR=folder, LGPU_LIBDIR=os.path.join(folder, "lib"))
    page, metrics = free_port(), free_port()
    programs = []

    def lgpu(*args):
        return subprocess.run([LGPU, *args], env=env, check=True, stdout=subprocess.PIPE).stdout

    daemon = subprocess.Popen([LGPU, "daemon", "--mount", "off", "--page", "127.0.0.1:%d" % page,
                               "--metrics", "127.0.0.1:%d" % metrics], env=env, stderr=subprocess.DEVNULL)
    try:
        lgpu("daemon", "status", "--wait", "60s")
        begin = time.monotonic()
        for n in range(a.tenants):
            program = subprocess.Popen(
                [LGPU, "run", "--sim=" + a.sim, "--name", "t%d" % n, "--memory", "128MiB", "--compute", a.compute, "--",
                 os.path.join(ROOT, "build/demo/tenant"), os.path.join(ROOT, "sim/kernels/compute.ptx"), "1"],
                env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            program.stdin.write(b"100000\n")
            program.stdin.flush()
            programs.append(program)
        while sum(len(l["processes"]) > 0 for l in json.loads(lgpu("ps", "--json"))["lgpus"]) < a.tenants:
            time.sleep(0.2)
        started = time.monotonic() - begin

        time.sleep(3)
        cpu, _ = used(daemon.pid)
        begin = time.monotonic()
        time.sleep(a.seconds)
        after, memory = used(daemon.pid)
        load = (after - cpu) / (time.monotonic() - begin)
        address = lgpu("page").decode().split()[0]
        token = address.split("token=")[1]

        def fetch(url):
            request = urllib.request.Request(url, headers={"Authorization": "Bearer " + token})
            with urllib.request.urlopen(request, timeout=60) as r:
                return r.read()

        print("%d tenants at %s %% on --sim=%s, %d processors\n" % (a.tenants, a.compute, a.sim, os.cpu_count()))
        print("| what | median, longest of %d | answer |\n|---|---|---|" % CALLS)
        print("| `lgpu ps` | %s |" % timed(lambda: lgpu("ps")))
        print("| `lgpu ps --json` | %s |" % timed(lambda: lgpu("ps", "--json")))
        print("| `lgpu top --once` | %s |" % timed(lambda: lgpu("top", "--once")))
        print("| `lgpu set` of one | %s |" % timed(lambda: lgpu("set", "/t0", "memory.high=100MiB")))
        print("| page, its first file | %s |" % timed(lambda: fetch(address.split("#")[0])))
        print("| page, all data | %s |" % timed(lambda: fetch("http://127.0.0.1:%d/api/state" % page)))
        print("| metrics | %s |" % timed(lambda: fetch("http://127.0.0.1:%d/metrics" % metrics)))
        print("\nAll had started after %.1f s. The daemon took %.0f %% of a processor and %.0f MB." % (started, load * 100, memory / 1e6))
    finally:
        for program in programs:
            program.kill()
        for program in programs:
            program.wait()
        subprocess.run([LGPU, "daemon", "stop"], env=env, check=False)
        daemon.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
