#!/usr/bin/env python3
"""node: how exact the shares of lgpus are, beside the same programs natively.

    python3 bench/node.py [--quick] [--rows caps,beside,...] [--out FILE] [--sim SHAPE]

Prints a Markdown table for each group of rows and writes everything measured to FILE as JSON. Each row runs natively
and in lgpus in turn, on the same card. Rows:

    caps     one lgpu, caps 10 to 90, six loads
    beside   several lgpus at once, by caps and by weights
    stops    what the others get when one stops, and after how long
    sum      what n lgpus with all of the device do together, over native
    latency  a 1 ms kernel every 10 ms beside a program that saturates the device
    change   how long after `lgpu set` a cap holds
    gate     what a launch costs: natively, alone, and with others about
    spatial  30 and 60 % of the compute units at the same time (MPS)

A share "of time" is how long the tenant's kernels ran by the device's clock over the time on the wall, several at once
counted once; "of rate" is kernels done over the native rate of the same program in the same row. They differ where a
program natively throttles the card's clock, or where native processes lose time to the driver's switching. "1 s" is the
worst of all windows of a second that slide in steps of 50 ms. Needs gcc, the driver, and PyTorch for the load gemm.
"""
import argparse
import os
import subprocess
import sys
import threading
import time

from measure import MS, SECOND, Bench, Failed, Tenant, change_point, last_gap, median, percentile, worst

TITLES = {"200us": "200 µs kernels", "200us-sync": "200 µs kernels + sync", "5ms": "5 ms kernels", "50ms": "50 ms kernels + sync",
          "gemm": "PyTorch bf16 4096³ products", "graph": "graph replay (20 × 50 µs)", "8procs": "8 processes, 200 µs kernels"}


def cap(percent):
    return ["--compute", "%g" % percent]


def weight(w):
    return ["--weight", "%d" % w]


class Clock:
    """The device's SM clock beside a run: mean MHz, or None where there is no nvidia-smi."""

    def __init__(self, bench):
        self.on, self.samples, self.stop = not bench.sim, [], threading.Event()

    def __enter__(self):
        self.thread = threading.Thread(target=self.sample)
        self.thread.start()
        return self

    def sample(self):
        while self.on and not self.stop.wait(0.5):
            try:
                out = subprocess.run(["nvidia-smi", "-i", "0", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"],
                                     stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, timeout=5).stdout
                self.samples.append(int(out))
            except (OSError, ValueError, subprocess.TimeoutExpired):
                self.on = False

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    def mhz(self):
        late = self.samples[2:-1] or self.samples
        return sum(late) / len(late) if late else None


class Rows:
    def __init__(self, bench, a):
        self.b, self.a, self.seconds = bench, a, a.seconds

    def header(self, *columns):
        print("\n| %s |\n|%s" % (" | ".join(columns), "---|" * len(columns)), flush=True)

    def row(self, *cells):
        print("| %s |" % " | ".join(cells), flush=True)

    def guard(self, what, f, *args):
        """Runs one row; a row that fails is said to, and the next one follows."""
        try:
            return f(*args)
        except Failed as e:
            self.b.record("failed", what=what, error=str(e))
            self.row(what, "FAILED: " + str(e).replace("|", "/"))
            return None

    def name(self):
        self.b.count += 1
        return "bench-%d-%d" % (os.getpid(), self.b.count)

    def with_clock(self, tenants, seconds, **more):
        with Clock(self.b) as clock:
            journals, first, last = self.b.together(tenants, seconds, **more)
        return journals, first, last, clock.mhz()

    # One lgpu with a cap.
    def caps(self):
        self.header("load", "cap %", "of time", "1 s off by", "of rate", "1 s off by", "SM MHz (native)")
        for load in self.a.loads:
            self.guard("caps " + load, self.caps_of, load)

    def caps_of(self, load):
        natives = []

        def native():
            (j,), first, last, mhz = self.with_clock([Tenant(load)], min(self.seconds, 5))
            natives.append((j.rate(first, last), mhz))

        native()
        got = []
        for c in self.a.caps:
            (j,), first, last, mhz = self.with_clock([Tenant(load, cap(c))], self.seconds)
            got.append((c, j, first, last, mhz))
            if len(got) * 2 == len(self.a.caps) + 1 and not self.a.quick:
                native()
        if not self.a.quick:
            native()
        rate, native_mhz = median([r for r, _ in natives]), natives[0][1]
        for c, j, first, last, mhz in got:
            windows = j.windows(first, last, SECOND)
            v = self.b.record("caps", load=load, cap=c, time=100 * j.share(first, last), rate=100 * j.rate(first, last) / rate,
                              worst_time=worst([100 * w[0] for w in windows], c), worst_rate=worst([100 * w[1] / rate for w in windows], c),
                              seconds=(last - first) / SECOND, mhz=mhz, native_mhz=native_mhz, natives=[r * SECOND for r, _ in natives])
            self.row(TITLES[load], "%g" % c, "%.2f (%+.2f)" % (v["time"], v["time"] - c), "%.2f" % v["worst_time"],
                     "%.2f (%+.2f)" % (v["rate"], v["rate"] - c), "%.2f" % v["worst_rate"],
                     "-" if mhz is None else "%.0f (%.0f)" % (mhz, native_mhz or 0))

    # Several at once: (what, [(load, options, share asked)]).
    def besides(self):
        small = "200us"
        rows = [("caps 30 + 60", [(small, cap(c), c) for c in (30, 60)]),
                ("caps 10 + 90", [(small, cap(c), c) for c in (10, 90)]),
                ("caps 4 × 25", [(small, cap(25), 25)] * 4),
                ("weights 1:1", [(small, weight(100), 50)] * 2),
                ("weights 1:2", [(small, weight(w), 100 * w / 300) for w in (100, 200)]),
                ("8 weights 1:2:…:8", [(small, weight(100 * w), 100 * w / 36) for w in range(1, 9)]),
                ("50 ms beside 200 µs, equal", [("50ms", weight(100), 50), (small, weight(100), 50)]),
                ("50 ms beside 200 µs, caps 50 + 50", [("50ms", cap(50), 50), (small, cap(50), 50)])]
        if "gemm" in self.a.loads:
            rows += [("PyTorch beside graph replay, equal", [("gemm", weight(100), 50), ("graph", weight(100), 50)]),
                     ("PyTorch beside graph replay, caps 30 + 60", [("gemm", cap(30), 30), ("graph", cap(60), 60)])]
        return rows

    def beside(self):
        self.header("lgpus at once", "asked %", "of time", "off by", "1 s off by", "of rate", "sum of rates")
        for what, tenants in self.besides():
            if not self.a.only or any(o in what for o in self.a.only):
                self.guard("beside " + what, self.beside_of, what, tenants)

    def natives_of(self, loads):
        return {load: self.b.native_rate(load, min(self.seconds, 4)) for load in dict.fromkeys(loads)}

    def beside_of(self, what, tenants):
        natives = self.natives_of([load for load, _, _ in tenants])
        lead = 1.0 if not any(load == "gemm" for load, _, _ in tenants) else 2.0
        extra = 8 if lead > 1 else 0  # PyTorch starts late: the others must last
        journals, first, last = self.b.together([Tenant(load, o, None if load == "gemm" else self.seconds + lead + 0.6 + extra)
                                                 for load, o, _ in tenants], self.seconds, lead=lead)
        asked = [share for _, _, share in tenants]
        times = [100 * j.share(first, last) for j in journals]
        rates = [100 * j.rate(first, last) / natives[t[0]] for j, t in zip(journals, tenants)]
        worsts = [worst([100 * w[0] for w in j.windows(first, last, SECOND)], share) for j, share in zip(journals, asked)]
        self.b.record("beside", what=what, asked=asked, time=times, rate=rates, worst_time=worsts, seconds=(last - first) / SECOND)
        self.row(what, " + ".join("%.2f" % s for s in asked), " + ".join("%.2f" % t for t in times),
                 ", ".join("%+.2f" % (t - s) for t, s in zip(times, asked)), "%.2f" % max(worsts),
                 " + ".join("%.2f" % r for r in rates), "%.2f" % sum(rates))

    # One of two stops in the middle.
    def stops(self):
        self.header("lgpus", "the other stops: after so long the first has its new share", "in slices of %g ms" % self.a.slice, "share before %", "share after %", "1 s after off by")
        cases = [("weights 1:1", weight(100), weight(100), 50, 100), ("weights 1:3", weight(100), weight(300), 25, 100),
                 ("caps 30 + 60, 60 stops", cap(30), cap(60), 30, 30), ("4 weights, one stops", weight(100), weight(100), 25, 100 / 3)]
        for case in cases:
            self.guard("stops " + case[0], self.stops_of, *case)

    def stops_of(self, what, mine, other, before, after):
        half = max(self.seconds / 2, 2)
        rest = [Tenant("200us", weight(100))] * 2 if what.startswith("4") else []
        running = self.b.launch_all([Tenant("200us", mine), Tenant("200us", other, seconds=half + 1)] + rest, 2 * half + 1)
        a, b, *more = self.b.collect(running)
        stop = b.end
        first = max(j.start for j in [a, b] + more) + SECOND // 2
        last = min(j.end for j in [a] + more) - 200 * MS
        if last - stop < SECOND or stop - first < SECOND // 2:
            raise Failed("the programs did not overlap as wanted")
        if after == 100:
            # Nothing is left to share: the first one's kernels follow one another without a pause.
            took = last_gap(a, stop - SECOND // 20, last, MS) - stop
        elif before == after:
            took = 0
        else:
            took = change_point(a, stop, stop - first, last - stop)[0] - stop
        slices = max(took, 0) / (self.a.slice * MS)
        windows = [100 * w[0] for w in a.windows(stop + int(2 * self.a.slice * MS), last, SECOND)]
        v = self.b.record("stops", what=what, took_ms=took / MS, slices=slices, before=100 * a.share(first, stop),
                          after=100 * a.share(stop + int(2 * self.a.slice * MS), last), asked=[before, after], worst_after=worst(windows, after))
        self.row(what, "keeps its share" if before == after else "%.1f ms" % v["took_ms"], "-" if before == after else "%.2f" % slices,
                 "%.2f (%+.2f)" % (v["before"], v["before"] - before), "%.2f (%+.2f)" % (v["after"], v["after"] - after), "%.2f" % v["worst_after"])

    # All of the device, cut into n.
    def sum(self):
        self.header("n", "lgpus", "sum of throughput, % of native", "shares of time")
        cases = [(n, how) for n in (1, 2, 4, 8) for how in ("weights", "caps")]
        if self.a.quick:
            cases = [(4, "weights"), (4, "caps")]
        for n, how in cases:
            self.guard("sum of %d by %s" % (n, how), self.sum_of, n, how)

    def sum_of(self, n, how):
        native = self.b.native_rate("200us", min(self.seconds, 4))
        journals, first, last = self.b.together([Tenant("200us", weight(100) if how == "weights" else cap(100 / n))] * n, min(self.seconds, 5))
        rates = [100 * j.rate(first, last) / native for j in journals]
        times = [100 * j.share(first, last) for j in journals]
        self.b.record("sum", n=n, how=how, sum=sum(rates), rates=rates, times=times)
        self.row(str(n), "equal weights" if how == "weights" else "caps of %.4g %%" % (100 / n), "%.2f" % sum(rates), " + ".join("%.2f" % t for t in times))

    # A small kernel every 10 ms beside a load that never pauses.
    def latency(self):
        self.header("1 ms kernel every 10 ms", "p50 ms", "p99 ms", "max ms", "the other's share of time %")
        busy = "200us"
        fast = ["--priority", "latency"]
        cases = [("alone, natively", [Tenant("pulse")]), ("alone, in an lgpu", [Tenant("pulse", [])]),
                 ("beside 200 µs kernels, both natively", [Tenant("pulse"), Tenant(busy)]),
                 ("beside 200 µs kernels, equal weights", [Tenant("pulse", []), Tenant(busy, [])]),
                 ("beside 200 µs kernels, latency-critical", [Tenant("pulse", fast), Tenant(busy, [])]),
                 ("beside 5 ms kernels, latency-critical", [Tenant("pulse", fast), Tenant("5ms", [])])]
        for what, tenants in cases:
            self.guard("latency " + what, self.latency_of, what, tenants)

    def latency_of(self, what, tenants):
        journals, first, last = self.b.together(tenants, min(self.seconds, 5))
        pulses = journals[0].latencies
        pulses = pulses[len(pulses) // 5:]  # beside the other one, and warm
        v = self.b.record("latency", what=what, p50=percentile(pulses, 50) / MS, p99=percentile(pulses, 99) / MS, max=max(pulses) / MS, n=len(pulses),
                          other=100 * journals[1].share(first, last) if len(journals) > 1 else None)
        self.row(what, "%.3f" % v["p50"], "%.3f" % v["p99"], "%.3f" % v["max"], "-" if v["other"] is None else "%.2f" % v["other"])

    # A cap is changed while the program runs.
    def change(self):
        self.header("cap from", "to", "`lgpu set` took ms", "effective after its start, ms", "after its end, ms", "in slices of %g ms" % self.a.slice)
        self.guard("change", self.change_of)

    def change_of(self):
        steps, pause = [20, 60, 30, 90, 40, 10], 1.6
        name = self.name()
        running = self.b.launch_all([Tenant("200us", ["--name", name] + cap(steps[0]))], (len(steps) + 1) * pause + 1)
        time.sleep(2 + pause)
        times = []
        for to in steps[1:]:
            began = time.time_ns()
            self.b.call([self.a.lgpu, "set", "/" + name, "compute.max=%d%%" % to])
            times.append((began, time.time_ns()))
            time.sleep(pause)
        (j,) = self.b.collect(running)
        took = []
        for i, (began, ended) in enumerate(times):
            at, old, new = change_point(j, ended, int(0.8 * pause * SECOND), int(0.8 * pause * SECOND))
            slices = max(at - ended, 0) / (self.a.slice * MS)
            took.append(slices)
            self.b.record("change", old=steps[i], new=steps[i + 1], set_ms=(ended - began) / MS, from_start_ms=(at - began) / MS,
                          from_end_ms=(at - ended) / MS, slices=slices, rates=[100 * old, 100 * new])
            self.row("%d %% (%.2f)" % (steps[i], 100 * old), "%d %% (%.2f)" % (steps[i + 1], 100 * new), "%.1f" % ((ended - began) / MS),
                     "%.1f" % ((at - began) / MS), "%.1f" % ((at - ended) / MS), "%.2f" % slices)

    # What a launch costs.
    def gate(self):
        self.header("launch", "native p50 / p99 ns", "alone", "with a cap of 90 %", "beside an idle lgpu")
        self.guard("gate", self.gate_of)

    def gate_of(self):
        n = "400" if self.b.sim else "20000"
        kinds = ["native", "free", "capped", "beside"]
        got = {}
        for _ in range(2 if self.a.quick else 5):
            for kind in kinds:
                command, other = [self.b.launch, n], None
                if kind == "native":
                    command = self.b.native(command)
                else:
                    command = self.b.inside(cap(90) if kind == "capped" else [], command)
                if kind == "beside":
                    # It is there, has launched once, and does nothing: the gate is open, but not without looking.
                    (other,) = self.b.launch_all([Tenant("hold", [])], 3)
                    time.sleep(1.2)
                for text in self.b.call(command, 60).splitlines():
                    name, p50, p99 = text.split()
                    got.setdefault((name, kind), []).append((int(p50), int(p99)))
                if other:
                    self.b.collect([other])
        for name in ("launch", "Ex", "graph"):
            cells = []
            for kind in kinds:
                p50, p99 = (median([v[i] for v in got[name, kind]]) for i in (0, 1))
                self.b.record("gate", call=name, kind=kind, p50=p50, p99=p99, rounds=got[name, kind])
                cells.append("%.0f / %.0f" % (p50, p99))
            self.row(name, *cells)

    # Compute units instead of time.
    def spatial(self):
        self.header("spatial, % of the compute units at the same time", "of rate", "off by")
        self.guard("spatial", self.spatial_of)

    def spatial_of(self):
        for shares in ((30,), (60,), (30, 60)):
            (native,), first, last = self.b.together([Tenant("waves")], min(self.seconds, 4))
            full = native.rate_of_starts(first, last)
            journals, first, last = self.b.together([Tenant("waves", ["--spatial"] + cap(s)) for s in shares], min(self.seconds, 6))
            rates = [100 * j.rate_of_starts(first, last) / full for j in journals]
            self.b.record("spatial", asked=shares, rates=rates)
            self.row(" + ".join("%d" % s for s in shares), " + ".join("%.2f" % r for r in rates),
                     ", ".join("%+.2f" % (r - s) for r, s in zip(rates, shares)))


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    all_rows = ["caps", "beside", "stops", "sum", "latency", "change", "gate", "spatial"]
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--lgpu", default=os.path.join(here, "..", "bin", "lgpu"))
    ap.add_argument("--rows", default=",".join(all_rows))
    ap.add_argument("--seconds", type=float, help="of each point; default 10, with --quick 3")
    ap.add_argument("--quick", action="store_true", help="shorter points, three caps, fewer rounds")
    ap.add_argument("--caps", help="default 10,25,50,75,90; with --quick 10,50,90")
    ap.add_argument("--loads", default="200us-sync,5ms,50ms,graph,gemm,8procs")
    ap.add_argument("--only", default="", help="rows of beside whose title has one of these, by commas")
    ap.add_argument("--slice", type=float, default=10, help="length of a slice in ms, to count times in")
    ap.add_argument("--device", default="0")
    ap.add_argument("--sim", help="shape of a software GPU to run on")
    ap.add_argument("--out", help="file for everything measured, as JSON")
    a = ap.parse_args()
    a.lgpu = os.path.abspath(a.lgpu)
    a.seconds = a.seconds or (3 if a.quick else 10)
    a.caps = [float(c) for c in (a.caps or ("10,50,90" if a.quick else "10,25,50,75,90")).split(",")]
    a.loads = a.loads.split(",")
    a.only = [o for o in a.only.split(",") if o]
    rows = a.rows.split(",")
    if unknown := set(rows) - set(all_rows):
        ap.error("no rows %s; there are %s" % (", ".join(sorted(unknown)), ", ".join(all_rows)))
    if unknown := set(a.loads) - set(TITLES):
        ap.error("no loads %s; there are %s" % (", ".join(sorted(unknown)), ", ".join(TITLES)))
    if "gemm" in a.loads and (a.sim or subprocess.run([sys.executable, "-c", "import torch"], stdin=subprocess.DEVNULL,
                                                      stderr=subprocess.DEVNULL).returncode != 0):
        a.loads.remove("gemm")
        print("without PyTorch: no gemm")
    bench = Bench(a.lgpu, sim=a.sim, device=a.device)
    r = Rows(bench, a)
    about = dict(seconds=a.seconds, rows=rows, caps=a.caps, loads=a.loads, sim=a.sim, slice_ms=a.slice)
    began = time.time()
    try:
        for row in rows:
            t = time.time()
            print("\n## %s" % row, flush=True)
            getattr(r, row)()
            print("\n(%.0f s)" % (time.time() - t), flush=True)
            if a.out:
                bench.save(a.out, about)
    finally:
        bench.close()
    failed = [v for v in bench.results if v["row"] == "failed"]
    print("\n%d results, %d rows failed, %.0f s" % (len(bench.results) - len(failed), len(failed), time.time() - began))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
