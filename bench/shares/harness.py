"""harness: the programs that bench/shares.py measures, windows of time in which they work, and the table of results.

Programs stay while many windows are measured, natively and in lgpus in turn, so that clocks, noise and the luck of a
process are on both sides. All times are ns of CLOCK_MONOTONIC.
"""
import contextlib
import importlib.util
import json
import os
import queue
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from measure import MS, SECOND, Bench, Failed, Journal, median, percentile

START = 120  # seconds until a program is ready: PyTorch from a cold disk takes long
PATIENCE = 30  # seconds beyond its window until a program has answered
SLOWER = 10  # times: the software GPU


class Program:
    """A process that answers commands with lines of JSON (load.c, session.py)."""

    def __init__(self, machine, command, path=None, env=None):
        self.machine, self.command, self.path, self.ready, self.dead = machine, command, path, None, False
        machine.count += 1
        self.said = os.path.join(machine.tmp, "said.%d" % machine.count)
        with open(self.said, "wb") as errors:
            self.proc = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                                         env=dict(machine.env, **(env or {})))
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.proc.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def failed(self, why):
        self.dead = True
        with open(self.said, errors="replace") as f:
            text = " ".join(f.read().split())[-400:]
        return Failed("%s: %s%s" % (" ".join(self.command[-4:]), why, ": " + text if text else ""))

    def answer(self, limit):
        try:
            line = self.lines.get(timeout=limit)
        except queue.Empty:
            raise self.failed("no answer within %.0f s" % limit) from None
        if line is None:
            raise self.failed("ended with status %s" % self.proc.wait())
        try:
            answer = json.loads(line)
        except ValueError:
            raise self.failed("said: " + line.strip()) from None
        if "error" in answer:
            self.dead = True  # what a device has refused once it may refuse for good: the next row gets a new process
            raise Failed(answer["error"])
        return answer

    def wait(self):
        """Until the program is ready; its first line."""
        if self.ready is None:
            self.ready = self.answer(START)
        return self.ready

    def send(self, text):
        try:
            self.proc.stdin.write(text + "\n")
            self.proc.stdin.flush()
        except OSError:
            raise self.failed("takes no commands") from None

    def ask(self, text, limit=START):
        self.wait()
        self.send(text)
        return self.answer(limit)

    def clock(self):
        """The answer to nvml.py's clock: MHz, or None where the clock cannot be read."""
        try:
            return self.answer(PATIENCE)["mhz"]
        except Failed:
            return None

    def set(self, *assignments):
        """lgpu set of its lgpu's files, once the lgpu is there."""
        self.wait()
        self.machine.call([self.machine.lgpu, "set", self.path, *assignments])

    def close(self):
        self.dead = True
        try:
            self.proc.stdin.close()
        except OSError:
            pass
        for end in (lambda: None, self.proc.terminate, self.proc.kill):
            end()
            try:
                self.proc.wait(8)
                return
            except subprocess.TimeoutExpired:
                pass


def exchange(commands, limit):
    """What each (program, command) answers, all at the same time. The first failure is raised when all have answered, so
    that no answer is left for the next question."""
    answers, failure, asked = [], None, []
    for p, text in commands:
        try:
            p.send(text)
            asked.append(p)
        except Failed as e:
            failure = failure or e
    limit += time.monotonic()
    for p in asked:
        try:
            answers.append(p.answer(max(1, limit - time.monotonic())))
        except Failed as e:
            failure = failure or e
    if failure:
        raise failure
    return answers


def ask_all(programs, text, limit=START):
    """What each answers to a command that all have at the same time."""
    for p in programs:
        p.wait()
    return exchange([(p, text) for p in programs], limit)


class Team:
    """The programs of a few rows: each is started when it is first asked for, again when it has failed, and all end
    together."""

    def __init__(self, machine):
        self.machine, self.of = machine, {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for p in self.of.values():  # the end of their input ends them, all at once
            try:
                p.proc.stdin.close()
            except OSError:
                pass
        for p in self.of.values():
            p.close()
        self.of = {}

    def get(self, key, kind, options=None, **more):
        """The program of a key: natively, or with options of lgpu run in an lgpu of its own."""
        p = self.of.get(key)
        if p is not None and (p.dead or p.proc.poll() is not None):
            p.close()
            p = None
        if p is None:
            p = self.of[key] = self.machine.program(kind, options, **more)
        return p


class Work:
    """What a program did in a window of some seconds; per pieces for each mark."""

    def __init__(self, answer, seconds, per=1):
        flat, self.seconds, self.per = answer["marks"], seconds, per
        self.marks = list(zip(flat[::2], flat[1::2]))
        if not self.marks:
            raise Failed("nothing was done in %.1f s" % seconds)
        # A piece that waits in a queue begins when the one before it ends.
        gaps = [b[1] - a[1] for a, b in zip(self.marks, self.marks[1:])]
        before, spans = self.marks[0][1] - (int(median(gaps)) if gaps else SECOND), []
        for begin, end in self.marks:
            spans.append((min(max(begin, before), end - 1), end))
            before = end
        self.journal = Journal(spans, [])
        self.end = int(seconds * SECOND)

    def rate(self):
        """Pieces a second."""
        return self.per * self.journal.work(0, self.end) / self.seconds

    def worst(self):
        """The least pieces a second of any window of one second."""
        rates = [w[1] * SECOND * self.per for w in self.journal.windows(0, self.end, SECOND)]
        return min(rates, default=self.rate())

    def latencies(self):
        """From launch to end, in ms, of the pieces that began in the window."""
        return [(e - b) / MS for b, e in self.marks if 0 <= b <= self.end]

    def longest(self):
        """The longest time from the end of one piece to the end of the next, in ms."""
        ends = [0] + [e for _, e in self.marks if 0 <= e <= self.end] + [self.end]
        return max(b - a for a, b in zip(ends, ends[1:])) / MS


class Machine(Bench):
    """Builds and starts the programs. sim: the shape of a software GPU. fake: sleeping programs instead of PyTorch."""

    def __init__(self, lgpu, sim=None, fake=False):
        self.fake = fake
        super().__init__(lgpu, sim=sim)
        self.team, self.kernels = Team(self), {}

    def close(self):
        self.team.close()
        super().close()

    def build(self):
        include = os.path.join(self.tmp, "include")
        os.mkdir(include)
        with open(os.path.join(include, "cuda.h"), "w") as f:
            f.write('#include "lgpu_cuda.h"\n')
        with open(os.path.join(HERE, "..", "compute", "work.ptx")) as f, open(os.path.join(include, "work.ptx.h"), "w") as h:
            h.writelines('"%s\\n"\n' % line.rstrip("\n") for line in f)
        self.load, self.slices = os.path.join(self.tmp, "load"), os.path.join(self.tmp, "libslices.so")
        subprocess.run(["gcc", "-O2", "-Wall", "-o", self.load, os.path.join(HERE, "load.c"), "-I" + include,
                        "-I" + os.path.join(HERE, "..", "..", "tenant", "abi", "include")] + self.libcuda() + ["-ldl"], check=True)
        subprocess.run(["gcc", "-O2", "-Wall", "-shared", "-fPIC", "-o", self.slices, os.path.join(HERE, "slices.c"), "-ldl"], check=True)

    def has_torch(self):
        return self.fake or not self.sim and importlib.util.find_spec("torch") is not None

    def program(self, kind, options=None, device=None, preload=False):
        script = {"torch": "fake_loads.py" if self.fake else "torch_loads.py", "ddp": "ddp.py", "nvml": "nvml.py"}.get(kind)
        command = [sys.executable, os.path.join(HERE, script)] if script else [self.load]
        command += {"ddp": ["--fake"] if self.fake else [], "nvml": [self.device]}.get(kind, [])
        if preload:
            command = ["env", "LD_PRELOAD=" + self.slices] + command
        held = self.device
        self.device = device or held
        try:
            if options is None:
                return Program(self, self.native(command))
            self.count += 1
            name = "shares-%d-%d" % (os.getpid(), self.count)
            return Program(self, self.inside(["--name", name] + options, command), "/" + name)
        finally:
            self.device = held

    @contextlib.contextmanager
    def daemon(self, options):
        """A daemon with options, which ends with the block."""
        self.call([self.lgpu, "daemon", "stop"])
        said = open(os.path.join(self.tmp, "daemon.said"), "ab")
        proc = subprocess.Popen([self.lgpu, "daemon", "--mount", "off", *options], env=self.env, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        try:
            self.call([self.lgpu, "daemon", "status", "--wait", "20s"])
            yield
        finally:
            proc.terminate()
            proc.wait(30)
            said.close()

    def length(self, us):
        """How long a kernel or a pause is here: a software GPU needs longer ones."""
        return min(SLOWER * us, max(us, 100000)) if self.sim else us

    def kernel(self, us):
        """The iterations of a kernel that natively takes so many µs (times SLOWER on a software GPU)."""
        if us not in self.kernels:
            with Team(self) as team:
                load = team.get("calibrate", "load")
                load.ask("calibrate 1000", 60)  # and the clock goes up
                self.kernels[us] = load.ask("calibrate %g" % self.length(us), 60)["iterations"]
        return self.kernels[us]

    def flood(self, us):
        """The command for kernels without a pause, with at most 40 ms of work queued."""
        return "flood %d %d 1" % (self.kernel(us), max(2, min(64, 40000 // self.length(us))))

    def empty(self):
        batch = 10 if self.sim else 100
        return "flood 0 16 %d" % batch, batch

    def pulse(self, us, every):
        return "pulse %d %d" % (self.kernel(us), 1000 * self.length(every))

    def pause(self, us, pause):
        return "pause %d %d" % (self.kernel(us), 1000 * self.length(pause))

    def window(self, asks, seconds, settle=0.4, clock=False):
        """What each (program, command, pieces for each mark) does in the same seconds, once all have run for settle; with
        clock also the mean SM clock, or None."""
        watch = self.team.get("nvml", "nvml") if clock else None
        for p in [watch] * (watch is not None) + [ask[0] for ask in asks]:
            p.wait()
        start = time.monotonic_ns() + int(settle * SECOND)
        end = start + int(seconds * SECOND)
        if watch is not None:
            watch.send("clock %d %d" % (start, end))
        try:
            answers = exchange([(p, ("run %d %d %s" % (start, end, command)).strip()) for p, command, *_ in asks], settle + seconds + PATIENCE)
        finally:
            mhz = watch.clock() if watch is not None else None
        works = [Work(answer, seconds, *ask[2:]) for answer, ask in zip(answers, asks)]
        return (works, mhz) if clock else works


class Report:
    """Tables on standard output, and every result as a line of JSON in a file."""

    def __init__(self, path, about, total=None, each=None):
        self.file = open(path, "a") if path else None
        self.began, self.total, self.each = time.time(), total, each
        self.done = self.failures = self.skipped = self.short = 0
        self.of = None
        self.write(row="about", **about)

    def write(self, **values):
        if self.file:
            self.file.write(json.dumps(dict(values, group=self.of, at=time.time())) + "\n")
            self.file.flush()

    def group(self, name):
        self.of, self.since = name, time.time()
        print("\n## %s" % name, flush=True)

    def left(self):
        """Seconds until the time of the group or of all is spent."""
        now = time.time()
        return min([limit - now + since for limit, since in ((self.total, self.began), (self.each, self.since)) if limit] or [1e9])

    def header(self, *columns):
        print("\n| %s |\n|%s" % (" | ".join(columns), "---|" * len(columns)), flush=True)

    def row(self, *cells, must=None, **values):
        """A line of the table. must: (figure, "<=" or ">=", bound) for each thing that has to hold."""
        short = [(a, how, b) for a, how, b in must or [] if not (a <= b if how == "<=" else a >= b)]
        self.done += 1
        self.short += bool(short)
        self.write(row=cells[0], must=must, ok=not short if must else None, **values)
        verdict = [] if must is None else ["short" if short else "ok" if must else "-"]
        print("| %s |" % " | ".join([*cells, *verdict]), flush=True)

    def guard(self, what, f, *arguments):
        """Runs one row; what fails is said, and the next one follows. Rows without time left are left out."""
        if self.left() <= 0:
            self.skipped += 1
            self.write(row=what, skipped=True)
            print("| %s | left out: the time is spent |" % what, flush=True)
            return None
        try:
            return f(*arguments)
        except Exception as e:
            self.failures += 1
            self.write(row=what, failed="%s: %s" % (type(e).__name__, e))
            print("| %s | FAILED: %s |" % (what, " ".join(str(e).split()).replace("|", "/")), flush=True)
            return None


def spread(values, form="%.2f"):
    """Median, least and most."""
    return (form + " (" + form + "–" + form + ")") % (statistics.median(values), min(values), max(values))


def tail(latencies):
    """p50, p99 and the longest, in ms."""
    if not latencies:
        raise Failed("no piece began in the window")
    return percentile(latencies, 50), percentile(latencies, 99), max(latencies)


def alternate(m, native, inside, command, per, caps, rounds, seconds, clock=False):
    """Rates natively, in an lgpu without a cap and with each cap, in turn, the order changing: {phase: [(rate, mhz)]}."""
    got = {}
    for round_ in range(rounds):
        phases = ["native", "free", *caps]
        for phase in phases if round_ % 2 == 0 else phases[::-1]:
            program = native if phase == "native" else inside
            if phase != "native":
                inside.set("compute.max=" + ("max" if phase == "free" else "%g%%" % phase))
            works, mhz = m.window([(program, command, per)], seconds if phase in ("native", "free") else 1.5 * seconds, clock=True) \
                if clock else (m.window([(program, command, per)], seconds), None)
            got.setdefault(phase, []).append((works[0].rate(), mhz))
    inside.set("compute.max=max")
    return got


def while_running(m, program, caps, rounds, free=0.4, capped=1.0):
    """Rates with each cap in percent of the rate without, within one run of a program whose cap changes: each window with a
    cap is compared with those without, right before and after it. {cap: [percent]}."""
    windows, settle, each = [], 0.25, free + capped + 0.7  # 0.7: twice settle, and the changes
    seconds = rounds * len(caps) * each + 3
    start = time.monotonic_ns() + SECOND // 4
    program.wait()
    program.send("run %d %d" % (start, start + int(seconds * SECOND)))
    try:
        for cap in [c for _ in range(rounds) for cap in caps for c in (None, cap)] + [None]:
            program.set("compute.max=" + ("max" if cap is None else "%g%%" % cap))
            time.sleep(settle)
            began = time.monotonic_ns() - start
            time.sleep(free if cap is None else capped)
            windows.append((cap, began, time.monotonic_ns() - start))
    finally:
        answer = program.answer(seconds + PATIENCE)
    journal, got = Work(answer, seconds).journal, {}
    if windows[-1][2] > seconds * SECOND:
        raise Failed("changing caps took longer than the program ran")
    for before, (cap, first, last), after in zip(windows[::2], windows[1::2], windows[2::2]):
        rates = [journal.rate(*w[1:]) for w in (before, after)]
        got.setdefault(cap, []).append(200 * journal.rate(first, last) / sum(rates))
    return got


def report_caps(r, what, got, caps):
    """Rows of what alternate has measured."""
    def ratios(phase, over):
        return [100 * a[0] / b[0] for a, b in zip(got[phase], got[over])]

    def mhz(phase):
        values = [v for _, v in got[phase] if v is not None]
        return "%.0f" % statistics.mean(values) if values else "-"

    r.row(what, "none", spread(ratios("free", "native")), "-", "%s (%s)" % (mhz("free"), mhz("native")), must=[],
          native=got["native"], got=got["free"])
    for cap in caps:
        of_native, of_free = ratios(cap, "native"), ratios(cap, "free")
        r.row(what, "%g" % cap, spread(of_native), spread(of_free), "%s (%s)" % (mhz(cap), mhz("native")), cap=cap,
              must=[(statistics.median(of_native), ">=", cap - 1)], of_native=of_native, of_free=of_free, got=got[cap])
