"""rows_driver: what the driver does without lgpu, to know on the day: hardware slices, and what NVML says of processes."""
import time

from harness import Failed, Team, median, tail


def slices(m, r, a):
    """A 1 ms kernel every 10 ms beside a process that saturates, natively, by the slice of that process in µs."""
    r.header("kernel", "beside", "slice µs (read back)", "p50 ms", "p99 ms", "max ms", "the neighbour's % of its rate alone", "set took ms")
    with Team(m) as team:
        for us in (200, 5000, 50000):
            by_slice(m, r, a, team, "%g ms kernels" % (us / 1000), "load", us)
        two(m, r, a, team)
    if m.has_torch() and not m.fake:
        with Team(m) as team:
            by_slice(m, r, a, team, "bf16 products", "torch", None)


def by_slice(m, r, a, team, title, kind, us):
    def neighbour():
        p = team.get(kind, kind, preload=True)
        if us is None and not hasattr(p, "loaded"):
            p.ask("load products")
            p.loaded = True
        return p

    def command():
        return m.flood(us) if us else ""

    def row(slice_us, full, what, work, every):
        other, pulse = neighbour(), team.get("pulse", "load", preload=True)
        answer = other.ask("slice %d" % slice_us if slice_us else "slice")
        try:
            mine, theirs = m.window([(pulse, m.pulse(work, every)), (other, command())], a.short + 1, settle=0.5)
        finally:
            if slice_us and answer["before"] and not other.dead:
                other.ask("slice %d" % answer["before"])
        t, got = tail(mine.latencies()), 100 * theirs.rate() / full
        told = "%s (%d)" % (slice_us or "untouched", answer["after"])
        if answer["status"] != 0:
            told += ", status %#x" % (answer["status"] & 0xffffffff)
        r.row(what, title, told, *("%.3f" % v for v in t), "%.2f" % got, "%.3f" % (answer["took_ns"] / 1e6), p50=t[0], p99=t[1], max=t[2],
              n=len(mine.latencies()), slice=slice_us, answer=answer, neighbour=got, beside=title)

    full = r.guard(title + " alone", lambda: m.window([(neighbour(), command())], a.short)[0].rate())
    for slice_us in (None, 200, None, 100, None, 50, 20) if full else ():
        r.guard("slice %s beside %s" % (slice_us, title), row, slice_us, full, "1 ms every 10 ms", 1000, 10000)
    for slice_us in (None, 50) if full else ():
        r.guard("slice %s beside %s" % (slice_us, title), row, slice_us, full, "100 µs every 5 ms", 100, 5000)


def two(m, r, a, team):
    """Two that saturate, one of them with a short slice: its share must fall, or slices have no effect."""
    def row():
        both = [team.get(kind, "load", preload=True) for kind in ("load", "second")]
        full = m.window([(both[0], m.flood(200))], a.short)[0].rate()
        for slice_us in (None, 50):
            answer = both[0].ask("slice %d" % slice_us if slice_us else "slice")
            works = m.window([(p, m.flood(200)) for p in both], a.short + 1)
            shares = [100 * w.rate() / full for w in works]
            r.row("both saturate", "0.2 ms kernels", "%s (%d) and untouched" % (slice_us or "untouched", answer["after"]), "-", "-", "-",
                  " + ".join("%.2f" % s for s in shares), "%.3f" % (answer["took_ns"] / 1e6), shares=shares, slice=slice_us, answer=answer)
        if answer["before"]:
            both[0].ask("slice %d" % answer["before"])

    r.guard("two that saturate", row)


def utilization(m, r, a):
    """What nvmlDeviceGetProcessUtilization says of programs whose use is known."""
    r.header("programs at once", "of rate alone %", "device time by count × length %", "NVML says % (mean of samples)", "samples", "every ms")
    loads = {"saturating": m.flood(200), "5 + 5 ms": m.pause(5000, 5000), "empty kernels": m.empty()[0], "1 ms every 10 ms": m.pulse(1000, 10000)}
    length = {"saturating": 200, "5 + 5 ms": 5000, "empty kernels": 0, "1 ms every 10 ms": 1000}
    alone = {}

    def row(team, nvml, names):
        programs = [team.get(i, "load") for i in range(len(names))]
        asks = [(p, loads[name], m.empty()[1] if name == "empty kernels" else 1) for p, name in zip(programs, names)]
        pids = [str(p.wait()["pid"]) for p in programs]
        works, use = watched(m, nvml, asks, a.seconds)
        for name, pid, w in zip(names, pids, works):
            alone.setdefault(name, w.rate())
            said = [v for _, v in use.get(pid, [])]
            times = [t for t, _ in use.get(pid, [])]
            steps = [(y - x) / 1000 for x, y in zip(times, times[1:])]
            known = w.rate() * m.length(length[name]) / 1e4
            r.row("%s (of: %s)" % (name, " | ".join(names)), "%.2f" % (100 * w.rate() / alone[name]), "%.2f" % known if length[name] else "-",
                  "%.2f" % (sum(said) / len(said)) if said else "nothing", str(len(said)), "%.0f" % median(steps) if steps else "-",
                  names=names, known=known, said=said, times_us=times)
        unknown = {pid: len(v) for pid, v in use.items() if pid not in pids}
        if unknown:
            r.write(row="processes that are none of ours", of=unknown)

    with Team(m) as team:
        nvml = team.get("nvml", "nvml")
        if nvml.wait()["nvml"] != "works":
            raise Failed("NVML: " + nvml.wait()["nvml"])
        for names in (("saturating",), ("5 + 5 ms",), ("empty kernels",), ("1 ms every 10 ms",), ("saturating", "saturating"), ("saturating", "5 + 5 ms"),
                      ("saturating", "empty kernels"), ("saturating", "1 ms every 10 ms"), ("empty kernels", "empty kernels")):
            r.guard(" | ".join(names), row, team, nvml, names)


def watched(m, nvml, asks, seconds):
    """A window, and what NVML says of it. NVML's program is told the times of the window before it begins."""
    settle = 0.8
    start = time.monotonic_ns() + int(settle * 1e9)
    nvml.send("use %d %d" % (start, start + int(seconds * 1e9)))
    try:
        works = m.window(asks, seconds, settle=settle)
    finally:
        said = nvml.answer(seconds + 20)
    return works, said["use"]
