"""What bench/node.py measures with: programs in and out of lgpus, their journals of kernels, and shares of time.

All times are ns of the host's clock. A kernel's come from the device's clock, plus one offset for all programs of a
measurement, so that programs are compared by one clock.
"""
import array
import bisect
import glob
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MS = 1000000
SECOND = 1000 * MS
STEP = 50 * MS  # of a sliding window


class Failed(Exception):
    """A program that did not do its work; the row is reported as failed and the others go on."""


class Journal:
    """Kernels of the programs of one tenant."""

    def __init__(self, kernels, latencies):
        self.kernels = sorted(kernels)  # (start, end)
        self.latencies = latencies
        self.start = self.kernels[0][0] if self.kernels else 0
        self.end = max((e for _, e in self.kernels), default=0)
        # Time in which any kernel ran, as the sum up to each edge.
        self.edges, self.sums = [0], [0]
        at = total = 0
        for s, e in self.kernels:
            s = max(s, at)
            if e > s:
                self.edges += (s, e)
                self.sums += (total, total + e - s)
                total += e - s
                at = e

    def busy(self, t):
        """Time in which any kernel ran until t."""
        i = bisect.bisect_right(self.edges, t) - 1
        if i % 2 == 1:  # edges[odd] are starts
            return self.sums[i] + t - self.edges[i]
        return self.sums[i]

    def work(self, first, last):
        """Kernels done in a span, in parts where one reaches over its edge."""
        return sum((min(e, last) - max(s, first)) / (e - s) for s, e in self.kernels if e > first and s < last and e > s)

    def rate(self, first, last):
        return self.work(first, last) / (last - first)

    def rate_of_starts(self, first, last):
        """As rate, of kernels that follow one another; for those whose first block ends before the others."""
        starts = [s for s, _ in self.kernels if first <= s <= last]
        return (len(starts) - 1) / (starts[-1] - starts[0]) if len(starts) > 1 else 0.0

    def share(self, first, last):
        return (self.busy(last) - self.busy(first)) / (last - first)

    def windows(self, first, last, width):
        """(share of time, rate) in windows of width that slide by STEP."""
        grid = range(first, last + 1, STEP)
        work = [0.0] * len(grid)
        for s, e in self.kernels:
            if e <= s:
                continue
            k = max((s - first) // STEP, 0)
            while k < len(grid) - 1 and grid[k] < e:
                lap = min(e, grid[k] + STEP) - max(s, grid[k])
                if lap > 0:
                    work[k] += lap / (e - s)
                k += 1
        n = width // STEP
        return [(self.share(grid[k], grid[k + n]), sum(work[k:k + n]) / width) for k in range(len(grid) - n)]


def read_journals(prefix, offset=None):
    """(kernels, latencies, offset) of all the files of a tenant; offset None takes that of the first file."""
    kernels, latencies = [], []
    for path in sorted(glob.glob(prefix + ".*")):
        a = array.array("q")
        with open(path, "rb") as f:
            a.frombytes(f.read())
        if offset is None and a[0] != 0:
            offset = a[0]
        shift = 0 if a[0] == 0 else offset  # 0: these are host times already
        n = a[1]
        kernels += [(a[2 + 2 * i] + shift, a[3 + 2 * i] + shift) for i in range(n)]
        latencies += a[3 + 2 * n:3 + 2 * n + a[2 + 2 * n]]
        os.remove(path)
    return kernels, latencies, offset


class Tenant:
    """What runs, and in which lgpu: options of lgpu run, or None for natively."""

    def __init__(self, load, options=None, seconds=None):
        self.load, self.options, self.seconds = load, options, seconds


class Bench:
    """The machine: builds the programs, runs tenants, remembers results."""

    def __init__(self, lgpu, sim=None, device="0", verbose=False):
        self.lgpu, self.sim, self.device, self.verbose = os.path.abspath(lgpu), sim, device, verbose
        self.tmp = tempfile.mkdtemp(prefix="lgpu-bench-")
        self.count = 0
        self.results = []
        self.env = dict(os.environ, NCCL_NVLS_ENABLE="0")
        self.iterations = {}
        self.blocks = None
        self.build()

    def close(self):
        shutil.rmtree(self.tmp, ignore_errors=True)

    def build(self):
        include = os.path.join(self.tmp, "include")
        os.mkdir(include)
        with open(os.path.join(include, "cuda.h"), "w") as f:
            f.write('#include "lgpu_cuda.h"\n')
        with open(os.path.join(HERE, "compute", "work.ptx")) as f, open(os.path.join(include, "work.ptx.h"), "w") as h:
            h.writelines('"%s\\n"\n' % line.rstrip("\n") for line in f)
        for name, source in (("rate", "compute/rate.c"), ("launch", "overhead/launch.c")):
            path = os.path.join(self.tmp, name)
            subprocess.run(["gcc", "-O2", "-Wall", "-o", path, os.path.join(HERE, source), "-I" + include,
                            "-I" + os.path.join(HERE, "..", "tenant", "abi", "include")] + self.libcuda(), check=True)
            setattr(self, name, path)

    def libcuda(self):
        """What to link a program with."""
        if self.sim:
            return [os.path.join(HERE, "..", "build", "lib", "sim", "libcuda.so.1")]
        return ["-L" + d for d in ("/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64")] + ["-l:libcuda.so.1"]

    def native(self, command):
        if self.sim:  # without the interposer there is no limit
            return [self.lgpu, "run", "--sim=" + self.sim, "--device", self.device, "--contain=off", "--", "env", "-u", "LD_PRELOAD"] + command
        return command

    def inside(self, options, command):
        sim = ["--sim=" + self.sim] if self.sim else []
        return [self.lgpu, "run"] + sim + ["--device", self.device] + options + ["--"] + command

    def start(self, command, limit):
        """Starts a program that ends within limit seconds whatever happens. What it says goes to a file: nobody waits
        for a pipe that a lost child still holds."""
        self.count += 1
        path = os.path.join(self.tmp, "out.%d" % self.count)
        with open(path, "wb") as out:
            proc = subprocess.Popen(["timeout", "-k", "2", str(int(limit) + 1)] + command, stdin=subprocess.DEVNULL,
                                    stdout=out, stderr=out, env=self.env)
        proc.said, proc.command = path, command
        return proc

    def finish(self, proc):
        code = proc.wait()
        with open(proc.said, errors="replace") as f:
            text = f.read()
        os.remove(proc.said)
        if code != 0:
            raise Failed("%s: exit %d: %s" % (" ".join(proc.command), code, " ".join(text.split())[-400:]))
        return text

    def call(self, command, limit=30):
        return self.finish(self.start(command, limit))

    def length(self, us):
        """How long a kernel of a load lasts on this device: an instruction of the software GPU takes a microsecond."""
        return min(20 * us, max(us, 20000)) if self.sim else us

    def calibrate(self, us, env=()):
        us = self.length(us)
        if (us, env) not in self.iterations:
            command = ["env", *env, self.rate, "calibrate", str(us)]
            self.iterations[us, env] = self.call(self.native(command), 60).split()[-1]
        return self.iterations[us, env]

    def waves(self):
        """Environment of a kernel with a hundred times the blocks that the device holds at once: it takes as long as it
        gets parts of the device, however the blocks fall on the units."""
        if self.blocks is None:
            self.blocks = (40 if self.sim else 800) * int(self.call(self.native([self.rate, "units"])).split()[-1])
        return ("RATE_BLOCKS=%d" % self.blocks,)

    def command(self, load, seconds, journal):
        """The program of a load."""
        def rate(mode, us):
            # What waits when the time is over delays the end: 40 ms of work at most, and more under a cap.
            depth = max(4, min(64, 40000 // (self.length(us) * (20 if mode == "graph" else 1))))
            return ["env", "RATE_DEPTH=%d" % depth, self.rate, mode, self.calibrate(us), "%g" % seconds, journal]
        if load == "waves":
            env = self.waves()
            return ["env", *env, self.rate, "sync", self.calibrate(40000, env), "%g" % seconds, journal]
        if load == "gemm":
            return [sys.executable, os.path.join(HERE, "compute", "gemm.py"), "%g" % seconds, journal]
        if load == "8procs":
            one = " ".join(rate("async", 200))
            return ["sh", "-c", "s=0; for i in 1 2 3 4 5 6 7 8; do %s & p=\"$p $!\"; done; for i in $p; do wait $i || s=1; done; exit $s" % one]
        mode, us = {"200us": ("async", 200), "200us-sync": ("sync", 200), "5ms": ("async", 5000), "50ms": ("sync", 50000),
                    "graph": ("graph", 50), "pulse": ("pulse", 1000), "hold": ("hold", 200)}[load]
        return rate(mode, us)

    def launch_all(self, tenants, seconds):
        started = []
        for i, t in enumerate(tenants):
            self.count += 1
            prefix = os.path.join(self.tmp, "journal.%d" % self.count)
            command = self.command(t.load, t.seconds or seconds, prefix)
            command = self.native(command) if t.options is None else self.inside(t.options, command)
            started.append((prefix, command))
        return [(prefix, self.start(command, seconds + 60)) for prefix, command in started]

    def collect(self, running):
        offset, out, failure = None, [], None
        for _, proc in running:
            try:
                self.finish(proc)
            except Failed as e:
                failure = failure or e
        if failure:
            raise failure
        # Those with a clock offset first: it is everybody's.
        raw = {}
        for prefix, _ in sorted(running, key=lambda r: not has_offset(r[0])):
            kernels, latencies, offset = read_journals(prefix, offset)
            raw[prefix] = Journal(kernels, latencies)
        for prefix, proc in running:
            if not raw[prefix].kernels and not raw[prefix].latencies:
                raise Failed("%s: no kernel ran" % " ".join(proc.command))
            out.append(raw[prefix])
        return out

    def together(self, tenants, seconds, lead=1.0):
        """Runs the tenants at once. Their journals, and the span in which all of them ran, lead seconds after the last
        one's first kernel."""
        journals = self.collect(self.launch_all(tenants, seconds + lead + 0.6))
        first = max(j.start for j in journals) + int(lead * SECOND)
        last = min(min(j.end for j in journals), first + int(seconds * SECOND))
        if last - first < SECOND:
            raise Failed("the programs ran together for %.2f s only" % ((last - first) / SECOND + lead))
        return journals, first, last

    def native_rate(self, load, seconds):
        (j,), first, last = self.together([Tenant(load)], seconds)
        return j.rate(first, last)

    def record(self, row, **values):
        values["row"] = row
        values["at"] = time.time()
        self.results.append(values)
        return values

    def save(self, path, about):
        with open(path + ".new", "w") as f:
            json.dump({"about": about, "results": self.results}, f, indent=1)
        os.replace(path + ".new", path)


def has_offset(prefix):
    for path in glob.glob(prefix + ".*"):
        with open(path, "rb") as f:
            if f.read(8) != bytes(8):
                return True
    return False


def worst(values, wanted):
    return max((abs(v - wanted) for v in values), default=float("nan"))


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * p / 100))] if values else float("nan")


def line(points):
    """Least squares (slope, value at 0) through (x, y)."""
    n = len(points)
    mx, my = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    slope = sum((x - mx) * (y - my) for x, y in points) / sum((x - mx) ** 2 for x, _ in points)
    return slope, my - slope * mx


def change_point(journal, around, before, after):
    """When the rate of use changed: where the straight lines through the use of the span before and after meet."""
    def fit(first, last):
        return line([((t - around) / SECOND, (journal.busy(t) - journal.busy(around)) / SECOND) for t in range(first, last, MS)])
    a, b = fit(around - before, around - 20 * MS), fit(around + 150 * MS, around + after)
    if abs(a[0] - b[0]) < 0.02:
        raise Failed("the rate of use did not change: %.3f and %.3f" % (a[0], b[0]))
    return around + int((b[1] - a[1]) / (a[0] - b[0]) * SECOND), a[0], b[0]


def last_gap(journal, since, until, shortest):
    """End of the last pause of at least shortest within a span; since if there is none."""
    at = since
    end = 0
    for s, e in journal.kernels:
        if end and since < s <= until and s - end >= shortest:
            at = s
        end = max(end, e)
    return at


def median(values):
    return statistics.median(values) if values else float("nan")
