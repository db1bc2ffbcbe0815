"""rows_torch: the rows of bench/shares.py with PyTorch programs."""
import time

from harness import MS, SECOND, Team, alternate, ask_all, median, report_caps, spread, tail, while_running

CAPS = (25, 60, 90)
LOADS = (("resnet50", "resnet50 training, bf16"), ("transformer", "transformer training step, fp32"), ("inference", "small inference with .item()"),
         ("streams", "four streams of small products"), ("graph", "graph replay"), ("elementwise", "elementwise"),
         ("products32", "fp32 products"), ("copies", "copies with products"))


def torch(m, r, a):
    """The eight loads with caps."""
    r.header("load", "cap %", "% of native rate", "% of the rate without a cap", "SM MHz (native)", "must")
    with Team(m) as team:
        team.get("native", "torch"), team.get("inside", "torch", [])  # both load PyTorch at the same time
        for load, title in LOADS:
            if not a.only or load in a.only:
                r.guard(title, capped, m, r, a, team, load, title)


def capped(m, r, a, team, load, title):
    programs = [team.get("native", "torch"), team.get("inside", "torch", [])]
    ask_all(programs, "load " + load)
    report_caps(r, title, alternate(m, *programs, "", 1, CAPS, a.rounds, a.short, clock=True), CAPS)


def live(m, r, a):
    """The eight loads with caps that change while they run."""
    r.header("load", "cap %", "% of the rate without a cap", "must")
    with Team(m) as team:
        inside = team.get("inside", "torch", [])
        for load, title in LOADS:
            if not a.only or load in a.only:
                r.guard(title, changing, m, r, a, inside, load, title)


def changing(m, r, a, inside, load, title):
    inside.ask("load " + load)
    for cap, got in while_running(m, inside, CAPS, a.rounds).items():
        r.row(title, "%g" % cap, spread(got), cap=cap, of_free=got, must=[(median(got), ">=", cap - 1)])


def inference(m, r, a):
    """A small inference beside bf16 products."""
    r.header("requests", "how", "p50 ms", "p99 ms", "max ms", "requests/s", "products TFLOP/s", "they lost %", "the inference used %", "must")
    closed, paced = ("one after the other", ""), ("every 10 ms", str(10 * MS))
    loads = {}

    def programs(team, options):
        pair = [team.get((who, options is None), "torch", options) for who in ("inference", "products")]
        for p, load in zip(pair, ("inference", "products")):
            if not hasattr(p, "about"):
                p.about = p.ask("load " + load)
            if options is None:
                loads[load] = p.about
        return pair

    def products_alone(team, options):
        return m.window([(programs(team, options)[1], "")], 2 * a.short)[0].rate()

    def alone(team, how, what, command):
        w = m.window([(programs(team, None if how == "alone" else [])[0], command)], a.seconds, settle=0.6)[0]
        t = tail(w.latencies())
        r.row(what, how, *("%.3f" % v for v in t), "%.1f" % w.rate(), "-", "-", "%.2f" % used(w), must=[], p50=t[0], p99=t[1], max=t[2], how=how)

    def used(w):
        return 100 * w.rate() * loads["inference"]["device_ns"] / SECOND

    def row(team, how, what, command, full):
        options = None if how == "native" else []
        mine, other = programs(team, options)
        if options is not None:
            mine.set("lgpu.priority=" + ("latency" if how == "latency" else "normal"))
        w, v = m.window([(mine, command), (other, "")], a.seconds, settle=0.6)
        t, lost = tail(w.latencies()), 100 * (1 - v.rate() / full)
        r.row(what, how, *("%.3f" % x for x in t), "%.1f" % w.rate(), "%.1f" % (v.rate() * loads["products"]["flop"] / 1e12), "%.2f" % lost,
              "%.2f" % used(w), p50=t[0], p99=t[1], max=t[2], n=len(w.latencies()), how=how, lost=lost, used=used(w),
              must=[(t[0], "<=", 0.9), (t[1], "<=", 1.3), (lost, "<=", used(w) + 1)] if how != "native" else [])

    with Team(m) as team:
        for options in (None, []):
            for who in ("inference", "products"):
                team.get((who, options is None), "torch", options)
        for what, command in (closed, paced):
            for how in ("alone", "alone, in an lgpu"):
                r.guard("%s, %s" % (what, how), alone, team, how, what, command)
        for _ in range(1 if a.quick else 2):
            full = {o is None: r.guard("products alone", products_alone, team, o) for o in (None, [])}
            for what, command in (closed, paced):
                for how in ("native", "equal weights", "latency"):
                    if full[how == "native"]:
                        r.guard("%s, %s" % (what, how), row, team, how, what, command, full[how == "native"])


def together(m, r, a, what, count, natives, insides, alone, rounds=0):
    """A row: count programs at once natively and in lgpus, in turn. alone is the rate of one natively."""
    sums, longest = {"native": [], "lgpu": []}, {"native": [], "lgpu": []}
    rates = {}
    for round_ in range(rounds or max(2, a.rounds - 1)):
        for how, programs in (("native", natives), ("lgpu", insides))[::1 if round_ % 2 == 0 else -1]:
            works = m.window([(p, "") for p in programs[:count]], a.seconds, settle=0.6)
            rates[how] = [w.rate() for w in works]
            sums[how].append(sum(rates[how]))
            longest[how].append(max(w.longest() for w in works))
    fair = 1000 * count / median(sums["native"])
    ratio = [100 * x / y for x, y in zip(sums["lgpu"], sums["native"])]
    parts = [100 * v / sum(rates["lgpu"]) for v in rates["lgpu"]]
    bound = 2 * fair + 50
    r.row(what, " + ".join("%.1f" % v for v in rates["native"]), " + ".join("%.1f" % v for v in rates["lgpu"]), "%.1f" % alone, spread(ratio),
          " + ".join("%.1f" % v for v in parts), "%.1f (%.1f)" % (max(longest["lgpu"]), max(longest["native"])), "%.1f" % bound,
          must=[(median(ratio), ">=", 98), (max(longest["lgpu"]), "<=", bound)], rates=rates, sums=sums, longest=longest, alone=alone)
    return bound


def joined(m, r, a, what, first, join, leave, bound):
    """A row: the steps of the first program while another begins, works and ends. join and leave do that."""
    seconds = 12 if a.seconds < 6 else 16
    start = time.monotonic_ns() + SECOND // 2
    first.send("run %d %d" % (start, start + seconds * SECOND))
    answered = False
    try:
        time.sleep(2)
        begun = time.monotonic_ns()
        other = join()
        up = time.monotonic_ns()
        other.ask("run %d %d" % (up, up + 2 * SECOND), 60)
        leave(other)
        over = time.monotonic_ns()
        answered = True
        answer = first.answer(seconds + 60)
    finally:
        if not answered:
            first.answer(seconds + 60)
    ends = [e for _, e in zip(answer["marks"][::2], answer["marks"][1::2])]
    steps = [((y - x) / MS, y) for x, y in zip(ends, ends[1:])]
    longest, at = max(steps)
    moment = start + at
    when = "before" if moment < begun else "while it started" if moment < up else "while it ran" if moment < up + 2 * SECOND else \
        "while it ended" if moment < over + SECOND else "after"
    note = "" if over < start + seconds * SECOND else "; it outlasted the window"
    r.row(what, "%.1f" % longest, when + note, "%.1f" % (median([s for s, _ in steps])), "%.1f" % bound if bound else "-",
          must=[(longest, "<=", bound)] if bound else [], start_ms=(up - begun) / MS, end_ms=(over - up) / MS - 2000,
          worst=sorted((s for s, _ in steps), reverse=True)[:10])


COLUMNS = ("programs", "natively, steps/s", "in lgpus, steps/s", "one alone natively", "sum, % of native", "shares % of the sum",
           "longest step ms (natively)", "bound ms", "must")
JOINED = ("while another starts, runs 2 s and ends", "longest step ms", "when", "median step ms", "bound ms", "must")


def twins(m, r, a):
    """Two of a kind on one card."""
    with Team(m) as team:
        def programs(options, load):
            pair = [team.get((i, options is None), "torch", options) for i in range(2)]
            ask_all([p for p in pair if getattr(p, "loaded", None) != load], "load " + load)
            for p in pair:
                p.loaded = load
            return pair

        def row(what, load):
            natives, insides = programs(None, load), programs([], load)
            alone = m.window([(natives[0], "")], 2 * a.short)[0].rate()
            bound = together(m, r, a, what, 2, natives, insides, alone)
            insides[0].set("lgpu.weight=200")
            try:
                together(m, r, a, what + ", weights 2:1", 2, natives, insides, alone, rounds=1)
            finally:
                insides[0].set("lgpu.weight=100")
            return bound

        def join(options, load):
            def start():
                programs(options, load)  # the second one is new: its context is made, and it gets warm
                return team.of[1, options is None]
            return start

        def leave(p):
            p.close()

        def meeting(what, options, load, bound):
            first = programs(options, load)[0]
            team.of[1, options is None].close()
            team.get((1, options is None), "torch", options).wait()  # PyTorch is loaded, and the device untouched
            joined(m, r, a, what, first, join(options, load), leave, bound)

        for options in (None, []):
            for i in range(2):
                team.get((i, options is None), "torch", options)
        r.header(*COLUMNS)
        bounds = {}
        for load, what in (("resnet50", "2 resnet50 trainings"), ("inference", "2 small inferences")):
            bounds[load] = r.guard(what, row, what, load)
        r.header(*JOINED)
        for options, how in ((None, "natively"), ([], "in lgpus")):
            for load in ("resnet50", "inference"):
                what = "%s, %s" % (load, how)
                r.guard(what, meeting, what, options, load, bounds[load] if options is not None else None)


def ddp(m, r, a):
    """Two and three training jobs over NCCL on the same two cards."""
    with Team(m) as team:
        def jobs(options, count):
            got = [team.get((i, options is None), "ddp", options, device="0,1") for i in range(count)]
            for p in got:
                p.begun = getattr(p, "begun", False)
            ask_all([p for p in got if not p.begun], "begin")
            for p in got:
                p.begun = True
            return got

        def row(what, count):
            natives, insides = jobs(None, count), jobs([], count)
            alone = m.window([(natives[0], "")], 2 * a.short)[0].rate()
            bound = together(m, r, a, what, count, natives, insides, alone)
            for weight in (200, 1000) if count == 2 else ():
                insides[0].set("lgpu.weight=%d" % weight)
                try:
                    together(m, r, a, "%s, weights %d:1" % (what, weight // 100), count, natives, insides, alone, rounds=1)
                finally:
                    insides[0].set("lgpu.weight=100")
            return bound

        def lone():
            rates = {}
            for _ in range(2):
                for how, options in (("native", None), ("lgpu", [])):
                    rates.setdefault(how, []).append(m.window([(jobs(options, 1)[0], "")], 2 * a.short)[0].rate())
            r.row("1 job", "%.1f" % median(rates["native"]), "%.1f" % median(rates["lgpu"]), "-",
                  "%.2f" % (100 * median(rates["lgpu"]) / median(rates["native"])), "-", "-", "-", must=[], rates=rates)

        def leave(p):
            p.ask("end")

        def meeting(what, options, bound):
            first, second = jobs(options, 2)
            leave(second)
            second.begun = False
            joined(m, r, a, what, first, lambda: jobs(options, 2)[1], leave, bound)
            second.begun = False

        for options in (None, []):
            for i in range(3):
                team.get((i, options is None), "ddp", options, device="0,1")
        r.header(*COLUMNS)
        bounds = {}
        r.guard("1 job", lone)
        for count in (2, 3):
            bounds[count] = r.guard("%d jobs" % count, row, "%d jobs" % count, count)
        r.header(*JOINED)
        for options, how in ((None, "natively"), ([], "in lgpus")):
            r.guard("2 jobs, " + how, meeting, "2 jobs, " + how, options, bounds[2] if options is not None else None)
