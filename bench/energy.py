#!/usr/bin/env python3
"""energy: whether the joules that lgpu gives its lgpus add up to the card's, and fall on those who used them.

    python3 bench/energy.py [--seconds S] [--rounds N] [--sim SHAPE]

Two unlike programs, one that draws much power and one that draws little, each in an lgpu: first both, of which nothing is
known yet, then each alone and both again, with equal weights. Prints a table: what the card's counter rose by, what `lgpu
energy` gave to all together and to each, and what each should have: half of what the device draws without work, and of the
rest as much as is its own by its joules for a piece of work when alone, times the pieces it did. (Work may draw more or less
beside other work; that is on both.)

Needs PyTorch, or --sim for a software GPU: there both programs keep all units busy, what a piece takes depends on how busy
the host is, and the figures say only that the script works (test/energy_test.go has kernels of fixed times).
"""
import argparse
import json
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "shares"))
from harness import Machine, Team
from measure import Failed, median

SETTLE = 1.2  # seconds before and after a window: the driver brings its counter up to date late
PATIENCE = 5  # seconds for an account to move: a daemon reads the counter of a device that is not shared once a second


def given(m):
    """Joules so far of each lgpu, by its path; None is nobody."""
    return {row["path"]: row["joules"] for row in json.loads(m.call([m.lgpu, "energy", "--json"]))["rows"] if row["kind"] != "group"}


class Meter:
    """Measures windows of work: the card's counter by NVML in a process without a context, and lgpu's accounts."""

    def __init__(self, m, team):
        self.m, self.counter = m, team.get("nvml", "nvml")

    def now(self):
        """The card's counter and the accounts, just after the daemon has read the counter."""
        first, limit = given(self.m), time.monotonic() + PATIENCE
        while (parts := given(self.m)) == first:
            if time.monotonic() > limit:
                raise Failed("lgpu energy has not moved for %d s" % PATIENCE)
        return self.counter.ask("energy 0 0")["joules"], parts

    def window(self, asks, seconds):
        """(the card's joules, joules by lgpu, pieces of each, seconds) of one window. The device rests before and after, so
        that a counter that is late and an account that is read once a second are both complete."""
        time.sleep(SETTLE)
        card, before = self.now()
        began = time.monotonic()
        works = self.m.window(asks, seconds, settle=0) if asks else time.sleep(seconds) or []
        time.sleep(SETTLE)
        last, after = self.now()
        took = time.monotonic() - began
        return last - card, {path: value - before.get(path, 0) for path, value in after.items()}, [w.rate() * seconds for w in works], took


def measure(m, seconds, rounds):
    with Team(m) as team:
        if m.sim:
            programs = [(team.get(0, "load", ["--weight", "100"]), "flood 400 8 1"), (team.get(1, "load", []), m.flood(200))]
        else:
            programs = [(team.get(0, "torch", []), ""), (team.get(1, "load", []), m.flood(200))]
            programs[0][0].ask("load products")
        for p, _ in programs:
            p.wait()
        paths, meter = [p.path for p, _ in programs], Meter(m, team)
        idle, _, _, took = meter.window([], seconds / 2)
        idle /= took
        print("without work: %.1f W\n" % idle)
        print("| round | what | card J | all given J | off by % | hot given (should) J | cool given (should) J |\n|---|---|---|---|---|---|---|")
        off, errors, each = [], [], []

        def mixed(round_, what, mix):
            card, parts, pieces, took = mix
            alone = [e * n for e, n in zip(each, pieces)]
            should = [idle * took / 2 + (card - idle * took) * a / sum(alone) for a in alone]
            line(round_, what, card, parts, paths, should, off)
            return [100 * (parts[p] - s) / card for p, s in zip(paths, should)]

        stranger = meter.window(programs, seconds)  # nothing is known of either program yet
        for round_ in range(rounds):
            each = []
            for i, ask in enumerate(programs):
                card, parts, pieces, took = meter.window([ask], seconds)
                each.append((card - idle * took) / pieces[0])
                line(round_, ("hot", "cool")[i] + " alone", card, parts, paths, None, off)
            if round_ == 0:
                unlearned = mixed(-1, "both, never alone before", stranger)
            errors += mixed(round_, "both", meter.window(programs, 2 * seconds))
        percent = lambda some: ", ".join("%+.1f" % e for e in some)
        print("\nsum off by %.2f %% (worst %.2f); parts, in %% of what the card drew: %s; of programs never alone before: %s" % (
            median(off), max(off), percent(errors), percent(unlearned)))


def line(round_, what, card, parts, paths, should, off):
    total = sum(parts.values())
    off.append(abs(100 * (total / card - 1)))
    cells = ["%.0f" % parts.get(p, 0) + (" (%.0f)" % s if s is not None else "") for p, s in zip(paths, should or [None, None])]
    print("| %d | %s | %.0f | %.0f | %+.2f | %s |" % (round_ + 1, what, card, total, 100 * (total / card - 1), " | ".join(cells)), flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lgpu", default=os.path.join(HERE, "..", "bin", "lgpu"))
    p.add_argument("--seconds", type=float, default=6)
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--sim", help="shape of a software GPU to run on")
    options = p.parse_args()
    m = Machine(os.path.abspath(options.lgpu), sim=options.sim)
    try:
        measure(m, options.seconds, options.rounds)
    finally:
        m.close()


if __name__ == "__main__":
    main()
