"""The rows of bench/shmem.py: what is asked of the back ends, and how answers become figures."""

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class Row:
    """One line of a table: what to ask, of whom, and how an answer becomes a figure."""

    def __init__(self, key, title, line, unit, backends, must="", better=None, pairs=None, timeout=20):
        self.key, self.title, self.line, self.unit, self.backends = key, title, line, unit, backends
        self.must, self.better, self.pairs, self.timeout = must, better, pairs, timeout

    def value(self, answers):
        done = [a for a in answers if a.get("us", -1) >= 0 and not a.get("skipped")]
        if not done:
            return None
        if self.unit == "GB/s":
            return min(a["per"] / a["us"] / 1e3 for a in done)
        if self.unit == "G/s":
            return min(a["per"] / a["us"] / 1e3 for a in done)
        if self.unit == "M/s":
            return min(a["per"] / a["us"] for a in done)
        if self.unit == "ms":
            return max(a["us"] / 1e3 for a in done)
        return max(a["us"] / a["per"] for a in done)  # µs each


P2P = ("lshmem", "full", "nvshmem", "raw")
LIBRARIES = ("lshmem", "nvshmem")
COLLECTIVE = ("lshmem", "nvshmem", "nccl")
SWEEP = (1, 2, 4, 8, 12, 16, 20, 24, 32, 48, 64, 96, 132)


def rows(small, pes):
    """The rows of the whole. small: sizes for the software GPU."""
    total = 256 * KIB if small else 4 * GIB
    r = []

    def add(*args, **kw):
        r.append(Row(*args, **kw))

    add("pingpong", "signal ping-pong, half round trip", "pingpong rounds=%d" % (4 if small else 2000), "µs", P2P,
        must="within 5 % of raw", better=lambda v: v["lshmem"] <= 1.05 * v["raw"])
    sizes = [(4 * KIB, 2), (16 * KIB, 4)] if small else [(256 * KIB, 8), (MIB, 132), (16 * MIB, 132), (256 * MIB, 132)]
    threads = 32 if small else 1024
    for kind in ("put", "get"):
        for size, ctas in sizes:
            add("%s-%d-%d" % (kind, size, ctas), "%s, %s × %d CTAs" % (kind, human(size), ctas),
                "%s bytes=%d ctas=%d total=%d threads=%d" % (kind, size, ctas, total if ctas > 8 else total // 2, threads),
                "GB/s", P2P, must="≥ NVSHMEM, ≥ 99 % of raw",
                better=lambda v: v["lshmem"] >= v.get("nvshmem", 0) and v["lshmem"] >= 0.99 * v["raw"])
    for kind in ("put", "get"):
        size, ctas = sizes[-2]
        add("all-%s" % kind, "%s, every PE %s at once, %s × %d CTAs" % (kind, "to its next" if kind == "put" else "from its next", human(size), ctas),
            "%s bytes=%d ctas=%d total=%d threads=%d all=1" % (kind, size, ctas, total, threads), "GB/s", P2P, must="≥ NVSHMEM",
            better=lambda v: v["lshmem"] >= 0.99 * v["nvshmem"])
    grid = "ctas=4 threads=32 reps=2" if small else "ctas=132 threads=1024 reps=256"
    add("adds", "non-fetch adds, a word for each thread", "adds " + grid, "G/s", P2P, must="≥ NVSHMEM",
        better=lambda v: v["lshmem"] >= 0.99 * v["nvshmem"])
    add("fetch_adds", "fetch_add, one thread", "fetch_adds reps=%d" % (20 if small else 2000), "µs", P2P, must="≤ NVSHMEM",
        better=lambda v: v["lshmem"] <= 1.01 * v["nvshmem"])
    add("put_latency", "8 bytes and quiet, one thread", "put_latency reps=%d" % (10 if small else 2000), "µs",
        P2P + ("ibgda",))
    for size in (8, 4 * KIB):
        add("messages-%d" % size, "messages of %s" % human(size),
            "messages bytes=%d ctas=%d threads=%d reps=%d" % ((size, 2, 32, 2) if small else (size, 32, 256, 64)), "M/s",
            P2P + ("ibgda",))
    add("ibgda-fetch", "fetch_add by queues, one thread", "fetch_adds reps=%d" % (10 if small else 500), "µs", ("ibgda",))
    put = (4 * KIB, 2, 64 * KIB, 32) if small else (MIB, 16, 256 * MIB, 1024)
    add("ibgda-put", "put by queues, %s × %d CTAs" % (human(put[0]), put[1]),
        "put bytes=%d ctas=%d total=%d threads=%d" % put, "GB/s", ("ibgda",))
    # What is asked of collective operations is for two PEs.
    limits = {MIB: 13, 64 * MIB: 110} if pes == 2 else {}
    for size in ((8, 4 * KIB) if small else (8, 64 * KIB, MIB, 64 * MIB)):
        limit = limits.get(size)
        add("alltoall-%d" % size, "alltoall on stream, %s" % human(size),
            "alltoall bytes=%d reps=%d" % (size, 2 if small else (50 if size <= MIB else 10)), "µs", COLLECTIVE,
            must="≤ %d µs" % limit if limit else "", better=(lambda v, m=limit: v["lshmem"] <= m) if limit else None)
    limits = {1 << 20: 33, 1 << 24: 230} if pes == 2 else {}
    for n in ((256, 4096) if small else (1 << 10, 1 << 20, 1 << 24)):
        limit = limits.get(n)
        add("sum-%d" % n, "sum allreduce on stream, %s floats" % count(n),
            "sum floats=%d reps=%d" % (n, 2 if small else {1 << 10: 50, 1 << 20: 10, 1 << 24: 3}[n]), "µs", COLLECTIVE,
            must="≤ %d µs" % limit if limit else "", better=(lambda v, m=limit: v["lshmem"] <= m) if limit else None)
    add("barrier", "barrier on stream", "barrier reps=%d" % (4 if small else 200), "µs", LIBRARIES, must="≤ 5 µs",
        better=lambda v: v["lshmem"] <= 5)
    add("grow", "heap growth by %s" % human(2 * MIB if small else 512 * MIB),
        "grow bytes=%d" % (2 * MIB if small else 512 * MIB), "ms", LIBRARIES)
    return r


def compat_rows(small):
    """What a program with NVSHMEM's names does, in kernels of 1024 threads where it can be."""
    both = ("compat", "compat_p2p")
    threads, total = (32, 256 * KIB) if small else (1024, GIB)
    r = []

    def add(key, title, line, unit):
        row = Row(key, title, line, unit, both, must="within 5 % of mapped only", timeout=30)
        row.better = lambda v, row=row: ratio(row, v) <= 1.05
        r.append(row)

    add("pingpong", "signal ping-pong", "pingpong rounds=%d" % (4 if small else 2000), "µs")
    for kind in ("put", "get"):
        for size, ctas in [(4 * KIB, 2)] if small else [(256 * KIB, 8), (16 * MIB, 132)]:
            add("%s-%d" % (kind, size), "%s, %s × %d CTAs" % (kind, human(size), ctas),
                "%s bytes=%d ctas=%d total=%d threads=%d" % (kind, size, ctas, total, threads), "GB/s")
    add("adds", "adds, a word for each thread", "adds ctas=4 threads=%d reps=%d" % (threads, 2 if small else 256), "G/s")
    add("fetch_adds", "fetch_add, one thread", "fetch_adds reps=%d" % (20 if small else 2000), "µs")
    add("put_latency", "p and quiet, one thread", "put_latency reps=%d" % (10 if small else 2000), "µs")
    for size in (8, 4 * KIB):
        add("messages-%d" % size, "messages of %s by %s" % (human(size), "threads" if size <= 64 else "warps"),
            "messages bytes=%d ctas=%d threads=%d reps=%d" % (size, 2 if small else 32, threads, 2 if small else 64), "M/s")
    for what, name in enumerate(("barrier", "sum", "fcollect", "alltoall", "broadcast", "put_signal")):
        for size in (4,) if name == "barrier" else (1024, 64 * KIB) if small else (1024, MIB):
            add("team-%s-%d" % (name, size), "%s by a block%s" % (name, ", " + human(size) if what else ""),
                "team what=%d bytes=%d reps=%d threads=%d" % (what, size, 10 if small else 200, threads), "µs")
    return r


def ratio(row, medians):
    """How much worse the program with the headers as they are is: 1 is as good."""
    r = medians["compat"] / medians["compat_p2p"]
    return 1 / r if row.unit.endswith("/s") else r


def human(n):
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if n >= size:
            return "%g %s" % (n / size, unit)
    return "%d B" % n


def count(n):
    for unit, size in (("Mi", MIB), ("Ki", KIB)):
        if n >= size:
            return "%g %s" % (n / size, unit)
    return "%d" % n
