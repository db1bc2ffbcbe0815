"""rows_kernels: the rows of bench/shares.py that need no PyTorch, and the table of bench/node.py."""
import json
import os
import signal
import subprocess
import sys
import time

from harness import HERE, Failed, Team, alternate, median, report_caps, spread, tail

CAPS = (25, 60, 90)
PULSES = (("1 ms every 10 ms", 1000, 10000, 1.25, 1.40), ("100 µs every 5 ms", 100, 5000, 0.35, 0.45))


def empty(m, r, a):
    """A loop of empty kernels with a cap."""
    r.header("load", "cap %", "% of native rate", "% of the rate without a cap", "SM MHz (native)", "must")

    def rows():
        with Team(m) as team:
            command, per = m.empty()
            native, inside = team.get("native", "load"), team.get("inside", "load", [])
            report_caps(r, "empty kernels", alternate(m, native, inside, command, per, CAPS, a.rounds, a.short), CAPS)

    r.guard("empty kernels", rows)


def alone(m, r, a):
    """lgpu run without a limit, nobody else there."""
    r.header("launch-bound loop", "% of native rate: each process", "median", "must")
    loops = [("empty kernels", "load", None), ("20 µs kernels, each waited for", "load", None)]
    if m.has_torch():
        loops.append(("PyTorch inference", "torch", "inference"))

    def rows(what, kind, load):
        command, per = m.empty() if what == "empty kernels" else ("", 1) if load else (m.pause(20, 0), 1)
        processes, every = [], []
        for _ in range(2 if load else 3):
            with Team(m) as team:
                both = team.get("native", kind), team.get("inside", kind, [])
                for p in both if load else ():
                    p.ask("load " + load)
                ratios = []
                for round_ in range(a.rounds):
                    order = (0, 1) if round_ % 2 == 0 else (1, 0)
                    rate = {i: m.window([(both[i], command, per)], a.short)[0].rate() for i in order}
                    ratios.append(100 * rate[1] / rate[0])
                processes.append(ratios)
                every += ratios
        r.row(what, ", ".join(spread(v) for v in processes), "%.2f" % median(every), must=[(median(every), ">=", 98)], ratios=processes)

    for loop in loops:
        r.guard(loop[0], rows, *loop)


def latency(m, r, a):
    """A short kernel now and then, beside a program that saturates the device."""
    r.header("kernel", "beside", "how", "p50 ms", "p99 ms", "max ms", "the neighbour's % of native rate", "must")
    with Team(m) as team:
        for us in (200, 5000, 50000):
            beside(m, r, a, team, "%g ms kernels" % (us / 1000), "load", us)
    if m.has_torch():
        with Team(m) as team:
            beside(m, r, a, team, "bf16 products", "torch", None)


def beside(m, r, a, team, title, kind, us):
    def neighbour(options):
        p = team.get((kind, options is None), kind, options)
        if us is None and not hasattr(p, "loaded"):
            p.ask("load products")
            p.loaded = True
        return p

    def row(what, work, every, p50, p99, how, full):
        command = m.flood(us) if us else ""
        options = None if how == "native" else []
        pulse, other = team.get(("pulse", options is None), "load", options), neighbour(options)
        if options is not None:
            pulse.set("lgpu.priority=" + ("latency" if how == "latency" else "normal"))
        mine, theirs = m.window([(pulse, m.pulse(work, every)), (other, command)], a.seconds, settle=0.6)
        t, got = tail(mine.latencies()), 100 * theirs.rate() / full if full else float("nan")
        r.row(what, title, how, *("%.3f" % v for v in t), "%.2f" % got, p50=t[0], p99=t[1], max=t[2], n=len(mine.latencies()), neighbour=got,
              beside=title, how=how, must=[] if how == "native" or m.sim else [(t[0], "<=", p50), (t[1], "<=", p99)])

    def native():
        other = neighbour(None)
        return m.window([(other, m.flood(us) if us else "")], a.short)[0].rate()

    if us is None and r.left() > 0:  # both load PyTorch at the same time
        team.get((kind, True), kind), team.get((kind, False), kind, [])
    full = r.guard(title + " natively", native)
    for what, work, every, p50, p99 in PULSES:
        for how in ("native", "equal weights", "latency"):
            r.guard("%s beside %s, %s" % (what, title, how), row, what, work, every, p50, p99, how, full)


# Of the pausing tenant and its neighbour: the files of each, and what the first is promised in percent of the device.
SETTINGS = (("weights 1:1", ("lgpu.weight=100",), ("lgpu.weight=100",), 50),
            ("weights 10:1", ("lgpu.weight=1000",), ("lgpu.weight=100",), 1000 / 11),
            ("min 40 %, weights 1:10", ("lgpu.weight=100", "compute.min=40%"), ("lgpu.weight=1000",), 40),
            ("neighbour latency", ("lgpu.weight=100",), ("lgpu.weight=100", "lgpu.priority=latency"), 50))
USUAL = ("lgpu.weight=100", "compute.min=0%", "lgpu.priority=normal")


def pausing(m, r, a):
    """Work and pause beside a neighbour that saturates with 2 ms kernels."""
    r.header("work + pause ms", "setting", "% of own native rate", "in the worst second", "device used %", "needs %", "neighbour's % of native rate", "must")
    with Team(m) as team:
        def programs(options):
            return [team.get((who, options is None), "load", options) for who in ("pausing", "neighbour")]

        def natively(work, pause):
            mine, other = programs(None)
            rate = m.window([(mine, m.pause(work, pause))], 3 * a.short)[0].rate()
            return rate, m.window([(other, m.flood(2000))], a.short)[0].rate()

        def row(what, setting, natives, work, pause):
            mine, other = programs(None if setting is None else [])
            promised, title = 0, "natively side by side"
            if setting is not None:
                title, own, theirs, promised = setting
                for p, files in ((mine, own), (other, theirs)):
                    p.set(*{f.split("=")[0]: f for f in USUAL + files}.values())
            w, v = m.window([(mine, m.pause(work, pause)), (other, m.flood(2000))], a.seconds, settle=0.6)
            used, can = (rate * m.length(work) / 1e4 for rate in (w.worst(), natives[0]))
            needs = min(can, promised)
            r.row(what, title, "%.2f" % (100 * w.rate() / natives[0]), "%.2f" % (100 * w.worst() / natives[0]), "%.2f" % used,
                  "%.2f" % needs if setting else "-", "%.2f" % (100 * v.rate() / natives[1]), rate=w.rate(), worst=w.worst(), native=natives[0],
                  neighbour=100 * v.rate() / natives[1], used=used, needs=needs, setting=title,
                  must=[(100 * w.worst() / natives[0], ">=", needs - 2)] if setting else [])

        for work, pause in ((1000, 100), (1000, 1000), (5000, 5000), (20000, 20000)):
            what = "%g + %g" % (work / 1000, pause / 1000)
            natives = r.guard(what + " natively", natively, work, pause)
            for setting in (None,) + SETTINGS if natives else ():
                r.guard(what + ", " + (setting[0] if setting else "natively"), row, what, setting, natives, work, pause)


def crowd(m, r, a):
    """One with a 1 ms kernel every 10 ms beside seven that saturate."""
    r.header("seven with", "how", "p50 ms", "p99 ms", "max ms", "their sum, % of native rate of one", "must")

    def rows(team, us, how):
        options = None if how == "native" else []
        pulse = team.get("pulse", "load", options)
        others = [team.get(i, "load", options) for i in range(7)]
        full = m.window([(others[0], m.flood(us))], a.short)[0].rate()
        if options is not None:
            pulse.set("lgpu.priority=" + ("latency" if how == "latency" else "normal"))
        mine, *theirs = m.window([(pulse, m.pulse(1000, 10000))] + [(p, m.flood(us)) for p in others], a.seconds, settle=0.8)
        t, total = tail(mine.latencies()), 100 * sum(w.rate() for w in theirs) / full
        r.row("%g ms kernels" % (us / 1000), how, *("%.3f" % v for v in t), "%.2f" % total, p50=t[0], p99=t[1], max=t[2], n=len(mine.latencies()),
              others=[100 * w.rate() / full for w in theirs], how=how, must=[(t[1], "<=", 1.6)] if how != "native" and not m.sim else [])

    for us in (200, 2000):
        m.kernel(us)
    for hows in (("native",), ("equal weights", "latency")):
        with Team(m) as team:
            for us in (200, 2000):
                for how in hows:
                    r.guard("%g ms kernels, %s" % (us / 1000, how), rows, team, us, how)


# Options of the daemon. Two that saturate have turns of twice its slice; "as before" is one slice each.
TURNS = (("as before: 10 ms", ("--slice", "5ms")), ("default: 20 ms", ()), ("40 ms", ("--slice", "20ms")), ("10 ms, no guests", ("--guests", "off")))


def turns(m, r, a):
    """Two equal lgpus that saturate the device, and compute.max 30 beside 60, by the daemon's options, which alternate."""
    r.header("kernels", "lgpus", "turns", "% of native rate: median", "each window", "sum", "must")
    loads = (("200 µs, queued", m.flood(200)), ("200 µs, each waited for", m.pause(200, 0)), ("5 ms, queued", m.flood(5000)))
    pairs_of = (("weights 1:1", ("compute.max=max", "compute.max=max"), 49), ("compute.max 30 + 60", ("compute.max=30%", "compute.max=60%"), None))
    got = {}

    def round_of(options, name):
        with m.daemon(options), Team(m) as team:
            both, alone = [team.get(i, "load", []) for i in range(2)], team.get("native", "load")
            for load, command in loads:
                full = m.window([(alone, command)], a.short)[0].rate()
                for pair, limits, _ in pairs_of:
                    for p, limit in zip(both, limits):
                        p.set(limit)
                    works = m.window([(p, command) for p in both], a.seconds, settle=1.5)
                    got.setdefault((load, pair, name), []).append([100 * w.rate() / full for w in works])

    for n in range(a.rounds):
        for name, options in TURNS if n % 2 == 0 else TURNS[::-1]:
            r.guard("turns of " + name, round_of, options, name)
    for load, _ in loads:
        for pair, _, least in pairs_of:
            for name, options in TURNS:
                if windows := got.get((load, pair, name)):
                    middle = [median(v) for v in zip(*windows)]
                    r.row(load, pair, name, " + ".join("%.2f" % v for v in middle), "; ".join(" + ".join("%.1f" % v for v in w) for w in windows),
                          "%.2f" % sum(middle), windows=windows, options=options,
                          must=[(v, ">=", least) for v in middle] if least and not options and not m.sim else [])


def pairs(m, r, a):
    """The tables of bench/node.py: caps, pairs, weights, sums. Their rows are printed as node.py prints them."""
    loads = "200us-sync,5ms"
    only = "caps 30 + 60,caps 10 + 90,caps 4,weights 1:1,weights 1:2"
    for rows in ("caps", "beside", "sum", "stops", "change"):
        seconds = "2" if a.quick or m.sim else "3"
        command = [sys.executable, os.path.join(HERE, "..", "node.py"), "--lgpu", m.lgpu, "--rows", rows, "--seconds", seconds, "--loads", loads,
                   "--only", only, "--caps", "50" if m.sim else "10,30,50,70,90", "--out", os.path.join(m.tmp, rows)]
        command += ["--sim", m.sim, "--quick"] if m.sim else ["--quick"] if a.quick or rows in ("caps", "stops", "change") else []
        r.guard(rows, node, m, r, rows, command)


def node(m, r, rows, command):
    limit = min(r.left(), 300)
    print(flush=True)
    said = os.path.join(m.tmp, rows + ".said")
    with open(said, "wb") as errors:
        proc = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=errors)
    try:
        proc.wait(limit)
    except subprocess.TimeoutExpired:
        raise Failed("not done within %.0f s" % limit) from None
    finally:
        if proc.poll() is None:
            proc.send_signal(signal.SIGINT)  # it removes its files
            time.sleep(8)  # its programs end by themselves when their seconds are over
            proc.kill()
            proc.wait()
    read = os.path.join(m.tmp, rows)
    if not os.path.exists(read):
        with open(said, errors="replace") as f:
            raise Failed("node.py ended with status %d: %s" % (proc.returncode, f.read()[-400:]))
    with open(read) as f:
        results = json.load(f)["results"]
    for result in results:
        r.write(**result)
    if proc.returncode != 0:
        raise Failed("%d of its rows failed" % sum(v["row"] == "failed" for v in results))
