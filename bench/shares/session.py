"""session: what the Python programs of bench/shares.py speak on their standard input and output.

The protocol is that of load.c: a command on each line, one line of JSON as the answer.

    load NAME               get ready to do NAME; answers what there is to know about it
    run FROM TO             do it over and over until TO, and report what ended after FROM
    run FROM TO PERIOD      do it every PERIOD ns, waiting for each
    slice [MICROSECONDS]    set and read the hardware slice (slices.c, preloaded)

A load has step(), which starts one piece of work; mark(), which returns something to wait for, or None if step has
waited itself; depth, how many pieces may be queued; and about(), facts for the answer of `load`.
"""
import collections
import ctypes
import gc
import json
import os
import sys
import time

SPIN = 100000  # ns: a sleeper wakes up late


def until(due):
    early = due - SPIN - time.monotonic_ns()
    if early > 0:
        time.sleep(early / 1e9)
    while time.monotonic_ns() < due:
        pass


def work(load, start, end, period):
    """Pairs of begin and end of each step until end, those that ended after start, in ns from start."""
    marks, queued, due = [], collections.deque(), time.monotonic_ns()
    depth = 0 if period else load.depth

    def settle(room):
        while len(queued) > room:
            began, handle = queued.popleft()
            if handle is not None:
                handle.synchronize()
            marks.append((began, time.monotonic_ns()))

    while time.monotonic_ns() < end:
        if period:
            until(due)
        began = time.monotonic_ns()
        load.step()
        queued.append((began, load.mark()))
        settle(depth)
        if period:  # what came too late is not made up
            due += period * max(1, -((due - time.monotonic_ns()) // period))
    settle(0)
    return [t - start for mark in marks if mark[1] > start for t in mark]


def slices(words):
    """Sets and reads the slice by the preloaded library."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "slices_set"):
        return {"error": "slices.c is not preloaded"}
    library.slices_get.restype = ctypes.c_uint64
    status, groups, before = ctypes.c_long(0), 0, library.slices_get()
    began = time.monotonic_ns()
    if words:
        groups = library.slices_set(ctypes.c_uint64(int(words[0])), ctypes.byref(status))
    took = time.monotonic_ns() - began
    return {"groups": groups, "status": status.value, "before": before, "after": library.slices_get(), "took_ns": took}


class Session:
    """Reads commands until the input ends. make(name) returns a load."""

    def __init__(self, make):
        self.make, self.load = make, None
        # What a library prints is no answer: it goes where errors go.
        self.out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def say(self, answer):
        self.out.write(json.dumps(answer) + "\n")
        self.out.flush()

    def do(self, words):
        if words[0] == "load" and len(words) == 2:
            if self.load is not None:
                self.load.close()
            self.load = None
            self.load = self.make(words[1])
            return self.load.about()
        if words[0] == "run" and len(words) in (3, 4) and self.load is not None:
            start, end, *period = (int(w) for w in words[1:])
            gc.collect()
            gc.disable()
            try:
                return {"marks": work(self.load, start, end, period[0] if period else 0)}
            finally:
                gc.enable()
        if words[0] == "slice":
            return slices(words[1:])
        return {"error": "not understood: " + " ".join(words)}

    def serve(self):
        self.say({"ready": True, "pid": os.getpid()})
        for line in sys.stdin:
            try:
                self.say(self.do(line.split()))
            except Exception as e:  # a load that fails is a row that fails; the next one may work
                self.say({"error": "%s: %s: %s" % (line.strip(), type(e).__name__, e)})
