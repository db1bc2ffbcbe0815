#!/usr/bin/env python3
"""shmem: lshmem beside NVSHMEM, raw pointers and NCCL, on the same GPUs, by the same kernels.

    python3 bench/shmem.py [--pes N] [--one-gpu] [--pairs 10] [--rows put,sum,...] [--out FOLDER] [--budget SECONDS]
    bin/lgpu run --sim=2x16GiB,sms=4 -- python3 bench/shmem.py --sim      # the logic, on the software GPU; no figures
    python3 bench/shmem.py --fake                                         # the script alone, nothing compiled or run
    python3 bench/shmem.py --compat                                       # a program with NVSHMEM's names: below

Needs liblshmem.so and its headers (--lib, --include; "make build" makes them), nvcc, and for the others NVSHMEM and NCCL of
the machine's Python packages. Each back end's PEs start once and stay; a row runs on one back end after the other, in turns
whose order changes each time, so that all meet the same clocks and neighbours. What a row moves is filled anew and checked
after each run; a run with an error counts as failed, not as a figure.

Writes FOLDER/shmem.json (everything) and FOLDER/shmem.md (the tables), which it also prints. Figures are medians of the
turns with minimum and maximum. Whatever does not answer in time is killed and started again, and the row is reported as failed;
when the budget is spent, what is left is listed as not measured.

With --compat, the program's kernels call NVSHMEM's functions by lshmem_compat.h, with blocks of 1024 threads and without launch
bounds: compiled with the headers as they are, and with LSHMEM_P2P_ONLY. Every row of the first must be within 5 % of the second.

Several PEs on one GPU (--one-gpu, or one GPU only) run under MPS, which the script starts in a folder of its own. NVLink
multicast and managed memory are never used.
"""
import argparse
import glob
import json
import os
import queue
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from shmem_rows import GIB, KIB, LIBRARIES, MIB, P2P, SWEEP, Row, compat_rows, human, ratio, rows

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
SOURCE = os.path.join(HERE, "shmem")
# What must be set for every program here, whoever starts it.
ALWAYS = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
NVSHMEM = {"NVSHMEM_REMOTE_TRANSPORT": "none", "NVSHMEM_SYMMETRIC_SIZE": "4G", "NVSHMEM_DISABLE_NCCL": "1"}
TITLE = {"lshmem": "lshmem, mapped only", "full": "lshmem", "nvshmem": "NVSHMEM", "raw": "raw pointers", "nccl": "NCCL", "ibgda": "lshmem, queues", "compat": "NVSHMEM's names", "compat_p2p": "the same, mapped only"}


class Failed(Exception):
    """A program that did not do its work."""


def log(text):
    print("[%6.1f s] %s" % (time.monotonic() - START, text), file=sys.stderr, flush=True)


START = time.monotonic()


class Job:
    """The PEs of one back end. ask() gives all of them a line and returns their answers."""

    def __init__(self, name, command, env, pes, devices, folder, extra=None, timeout=60):
        self.name, self.pes = name, pes
        self.answers = queue.Queue()
        self.processes = []
        self.shared = tempfile.NamedTemporaryFile(prefix="shared-", dir=folder)
        self.shared.truncate(65536)
        self.errors = [open(os.path.join(folder, "%s-%d.err" % (name, pe)), "ab") for pe in range(pes)]
        for pe in range(pes):
            full = dict(os.environ, **ALWAYS)
            full.update(env)
            full.update(extra or {})
            full.update(BENCH_PE=str(pe), BENCH_PES=str(pes), BENCH_DEVICE=str(devices[pe]), BENCH_SHARED=self.shared.name)
            p = subprocess.Popen(command, env=full, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors[pe],
                                 text=True, bufsize=1, start_new_session=True)
            self.processes.append(p)
            threading.Thread(target=self.read, args=(pe, p), daemon=True).start()
        try:
            self.init = self.collect(timeout)
        except Failed:
            self.kill()
            raise

    def read(self, pe, p):
        for line in p.stdout:
            if line.startswith("{"):
                try:
                    self.answers.put(json.loads(line))
                except ValueError:
                    self.answers.put({"pe": pe, "fatal": "answer", "why": line.strip()})
        self.answers.put({"pe": pe, "fatal": "end", "why": "the process ended with status %s" % p.wait()})

    def collect(self, timeout):
        until = time.monotonic() + timeout
        got = {}
        while len(got) < self.pes:
            try:
                a = self.answers.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                late = [pe for pe in range(self.pes) if pe not in got]
                raise Failed("%s: no answer of PE %s in %d s" % (self.name, ", ".join(map(str, late)), timeout)) from None
            if "fatal" in a:
                raise Failed("%s: PE %s: %s: %s%s" % (self.name, a["pe"], a["fatal"], a["why"], self.tail(a["pe"])))
            got[a["pe"]] = a
        return [got[pe] for pe in range(self.pes)]

    def tail(self, pe):
        self.errors[pe].flush()
        with open(self.errors[pe].name, "rb") as f:
            text = f.read()[-600:].decode(errors="replace").strip()
        return "; it said: " + " / ".join(text.splitlines()[-4:]) if text else ""

    def ask(self, line, timeout):
        for pe, p in enumerate(self.processes):
            try:
                p.stdin.write(line + "\n")
                p.stdin.flush()
            except OSError as e:
                raise Failed("%s: PE %d is gone: %s%s" % (self.name, pe, e, self.tail(pe))) from None
        answers = self.collect(timeout)
        for a in answers:
            if a.get("trouble"):
                raise Failed("%s: PE %d: %s" % (self.name, a["pe"], a["trouble"]))
        errors = sum(a["errors"] for a in answers)
        if errors:
            raise Failed("%s: %s: %d words are wrong" % (self.name, line, errors))
        return answers

    def end(self, timeout=20):
        """Ends the PEs in order; what does not is killed."""
        for p in self.processes:
            try:
                p.stdin.write("end\n")
                p.stdin.close()
            except OSError:
                pass
        until = time.monotonic() + timeout
        try:
            for p in self.processes:
                p.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            log("%s: did not end; killed" % self.name)
        status = [p.poll() for p in self.processes]
        self.kill()
        return status

    def kill(self):
        for p in self.processes:
            if p.poll() is None:
                try:
                    os.killpg(p.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                p.wait()
        for f in self.errors:
            f.close()
        self.shared.close()


class Fake:
    """A back end that answers at once, to try this script out."""

    def __init__(self, name, pes):
        self.name, self.pes, self.asked = name, pes, 0
        self.init = [{"pe": pe, "row": "init", "us": 1e5, "per": 1, "errors": 0} for pe in range(pes)]

    def ask(self, line, timeout):
        self.asked += 1
        slow = {"lshmem": 1.0, "full": 1.1, "raw": 1.0, "nvshmem": 1.3, "nccl": 1.1, "ibgda": 5.0, "compat": 1.02, "compat_p2p": 1.0}[self.name] * (1 + self.asked % 7 / 100)
        answer = {"row": line.split()[0], "us": 1000 * slow, "per": 1000, "errors": 0}
        words = dict(w.split("=") for w in line.split()[1:])
        if answer["row"] in ("put", "get"):
            answer["per"] = 3.7e8 * min(1, int(words["ctas"]) / 16)
        if answer["row"] == "grow":
            answer.update(grown=512 * MIB, kept=0)
        if answer["row"] == "put_latency":
            answer["quiet_us"] = 0.1
        if answer["row"] in ("barrier",) and self.name == "raw":
            answer = {"row": "barrier", "skipped": True, "errors": 0}
        if answer["row"] == "sum" and self.name == "nvshmem" and words["floats"] == "16777216":
            raise Failed("nvshmem: made to fail")
        return [dict(answer, pe=pe) for pe in range(self.pes)]

    def end(self, timeout=0):
        return [0] * self.pes

    def kill(self):
        pass


class Bench:
    def __init__(self, args):
        self.args = args
        self.until = START + args.budget
        self.folder = os.path.abspath(args.out)
        os.makedirs(self.folder, exist_ok=True)
        self.work = tempfile.mkdtemp(prefix="lshmem-bench-")
        self.jobs, self.commands, self.envs, self.broken = {}, {}, {}, {}
        self.report = {"rows": {}, "failures": [], "left": [], "machine": {}}
        self.mps = None

    # ---- The machine ----

    def look(self):
        m = self.report["machine"]
        m["date"] = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        if self.args.fake or self.args.sim:
            self.gpus = 2
            m["gpus"] = "software GPU: only that it works" if self.args.sim else "none: made-up figures"
        else:
            out = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], text=True,
                                 stdout=subprocess.PIPE, timeout=60, check=True).stdout.strip().splitlines()
            self.gpus = len(out)
            m["gpus"] = "%d × %s" % (len(out), out[0])
        self.pes = self.args.pes or max(2, self.gpus)
        if self.gpus == 1 or self.args.one_gpu:
            self.devices = [0] * self.pes
        else:
            self.devices = [pe % self.gpus for pe in range(self.pes)]
        self.shares = len(set(self.devices)) < self.pes
        m["pes"], m["devices"] = self.pes, self.devices
        log("%s; PEs on devices %s" % (m["gpus"], self.devices))

    def start_mps(self):
        """Several PEs of one GPU must run at the same time."""
        if not self.shares or self.args.sim or self.args.fake:
            return
        control = shutil.which("nvidia-cuda-mps-control")
        if not control:
            log("no MPS: PEs of one GPU take turns, and what waits for another PE is slow")
            self.report["machine"]["mps"] = False
            return
        pipe = os.path.join(self.work, "mps")
        os.makedirs(pipe)
        env = {"CUDA_MPS_PIPE_DIRECTORY": pipe, "CUDA_MPS_LOG_DIRECTORY": pipe}
        subprocess.run([control, "-d"], env=dict(os.environ, **env), timeout=20, check=True)
        os.environ.update(env)
        self.mps = control
        self.report["machine"]["mps"] = True

    def stop_mps(self):
        if self.mps:
            try:
                subprocess.run([self.mps], input="quit -t 1\n", text=True, timeout=20, stdout=subprocess.DEVNULL)
            except subprocess.TimeoutExpired:
                log("MPS does not end")

    # ---- Building ----

    def package(self, name, header):
        """The folder of an NVIDIA Python package with include and lib."""
        if self.args.sim:
            return None
        try:
            import nvidia
            roots = list(nvidia.__path__)
        except ImportError:
            roots = []
        for root in roots + glob.glob("/usr/lib/python3*/site-packages/nvidia"):
            folder = os.path.join(root, name)
            if os.path.exists(os.path.join(folder, "include", header)):
                return folder
        return None

    def build(self):
        a = self.args
        lib, include = os.path.abspath(a.lib), os.path.abspath(a.include)
        plans = {}
        env_lib = {"LD_LIBRARY_PATH": os.path.dirname(lib) + ":" + os.environ.get("LD_LIBRARY_PATH", "")}
        if a.sim:
            libcuda = os.path.join(ROOT, "build", "lib", "sim", "libcuda.so.1")
            for name, libs in (("lshmem", [lib]), ("raw", [])):
                if name not in self.built():
                    continue
                macro = "-DBENCH_" + name.upper()
                program, module = os.path.join(self.work, "rows-" + name), os.path.join(self.work, name + ".ptx")
                plans[name] = [
                    ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", macro, "-I", os.path.join(ROOT, "tenant", "abi", "include"), "-I", include,
                     os.path.join(SOURCE, "rows.cc"), "-o", program, libcuda] + libs,
                    [a.clang, "-x", "cuda", "-nocudainc", "-nocudalib", "--cuda-device-only", "--cuda-gpu-arch=sm_90",
                     "-Xclang", "-target-feature", "-Xclang", "+ptx80", "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", macro, "-I", SOURCE, "-I", include, "-S",
                     "-o", module, os.path.join(SOURCE, "kernels.cuh")]]
                self.commands[name] = [program]
                self.envs[name] = dict(env_lib, BENCH_MODULE=module, BENCH_WINDOW=str(MIB), BENCH_THREADS="32",
                                       BENCH_ARENA=str(4 * MIB))
        else:
            nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
            source = os.path.join(self.work, "rows.cu")
            shutil.copy(os.path.join(SOURCE, "rows.cc"), source)
            base = [nvcc, "-std=c++17", "-O3", "-arch=sm_90", "-DBENCH_RUNTIME", "-I", SOURCE, source, "-lcuda"]

            def link(path):
                return ["-Xlinker", path, "-Xlinker", "-rpath," + os.path.dirname(path)]

            wanted = self.built()
            if "lshmem" in wanted:
                # With the code for queues, as any program has it, and without, for those that know all memory is mapped.
                kind = base + ["-DBENCH_LSHMEM", "-I", include]
                plans["lshmem"] = [kind + ["-DLSHMEM_P2P_ONLY", "-o", self.out("lshmem")] + link(lib)]
                plans["full"] = [kind + ["-o", self.out("full")] + link(lib)]
                self.envs["lshmem"] = self.envs["full"] = env_lib
            if "compat" in wanted:
                shim = os.path.join(self.work, "nvshmem")
                os.makedirs(shim)
                for header, text in (("nvshmem.h", '#include "lshmem_compat.h"\n'), ("nvshmemx.h", '#include "lshmem_compat.h"\n')):
                    with open(os.path.join(shim, header), "w") as f:
                        f.write(text)
                kind = base + ["-DBENCH_NVSHMEM", "-DBENCH_UNBOUNDED", "-I", shim, "-I", include]
                plans["compat"] = [kind + ["-o", self.out("compat")] + link(lib)]
                plans["compat_p2p"] = [kind + ["-DLSHMEM_P2P_ONLY", "-o", self.out("compat_p2p")] + link(lib)]
                self.envs["compat"] = self.envs["compat_p2p"] = env_lib
            if "raw" in wanted or "nccl" in wanted:
                nccl = self.package("nccl", "nccl.h") if "nccl" in wanted and not self.shares else None
                more = []
                if nccl:
                    more = ["-DBENCH_NCCL", "-I", os.path.join(nccl, "include")] + link(os.path.join(nccl, "lib", "libnccl.so.2"))
                    plans["nccl"] = [base + ["-DBENCH_RAW", "-o", self.out("nccl")] + more]
                    self.envs["nccl"] = {"LD_LIBRARY_PATH": os.path.join(nccl, "lib") + ":" + os.environ.get("LD_LIBRARY_PATH", "")}
                plans["raw"] = [base + ["-DBENCH_RAW", "-o", self.out("raw")]]
                self.envs["raw"] = {}
            nv = self.package("nvshmem", "nvshmem.h") if "nvshmem" in wanted else None
            if nv:
                nvlib = os.path.join(nv, "lib")
                host = sorted(glob.glob(os.path.join(nvlib, "libnvshmem_host.so*")))
                plans["nvshmem"] = [base + ["-rdc=true", "-DBENCH_NVSHMEM", "-I", os.path.join(nv, "include"), "-o", self.out("nvshmem"),
                                            os.path.join(nvlib, "libnvshmem_device.a")] + link(host[0])]
                self.envs["nvshmem"] = dict(NVSHMEM, LD_LIBRARY_PATH=nvlib + ":" + os.environ.get("LD_LIBRARY_PATH", ""))
            for name in plans:
                self.commands[name] = [self.out(name)]
        running = [(name, command, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
                   for name, commands in plans.items() for command in commands]
        until = time.monotonic() + a.build_timeout
        for name, command, p in running:
            try:
                out, _ = p.communicate(timeout=max(1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                p.kill()
                out, _ = p.communicate()
                out += "\n(killed after %d s)" % a.build_timeout
            if p.returncode:
                with open(os.path.join(self.folder, "build-%s.log" % name), "w") as f:
                    f.write(" ".join(command) + "\n" + out)
                self.fail(name, "build", out.strip()[-1500:])
                self.commands.pop(name, None)
        queues = "lshmem" if a.sim else "full"
        if queues in self.commands:
            self.commands["ibgda"] = self.commands[queues]
            self.envs["ibgda"] = dict(self.envs[queues], **dict(v.split("=", 1) for v in a.ibgda_env))
        log("built: " + (", ".join(sorted(self.commands)) or "nothing"))

    def out(self, name):
        return os.path.join(self.work, "rows-" + name)

    def wanted(self):
        return self.args.backends.split(",")

    def built(self):
        """What must be built: queues are those of lshmem."""
        return [{"ibgda": "lshmem", "full": "lshmem"}.get(b, b) for b in self.wanted()]

    # ---- Measuring ----

    def fail(self, backend, what, why):
        self.report["failures"].append({"backend": backend, "what": what, "why": why})
        log("FAILED %s: %s: %s" % (backend, what, why))

    def job(self, name):
        """The running job of a back end, started if need be; None if it cannot be."""
        if name in self.jobs:
            return self.jobs[name]
        if self.broken.get(name, 0) >= 3 or (name not in self.commands and not self.args.fake) or name not in self.wanted():
            return None
        try:
            if self.args.fake:
                self.jobs[name] = Fake(name, self.pes)
            else:
                self.jobs[name] = self.start(name)
        except Failed as e:
            self.broken[name] = self.broken.get(name, 0) + 1
            self.fail(name, "start", str(e))
            return None
        return self.jobs[name]

    def start(self, name, extra=None):
        return Job(name, self.commands[name], self.envs[name], self.pes, self.devices, self.folder, extra,
                   timeout=self.args.start_timeout)

    def drop(self, name):
        job = self.jobs.pop(name, None)
        if job:
            job.kill()
        self.broken[name] = self.broken.get(name, 0) + 1

    def left(self):
        return self.until - time.monotonic()

    def measure(self, row):
        backends = [b for b in row.backends if self.job(b)]
        values, extra, bad = {b: [] for b in backends}, {b: [] for b in backends}, set()
        began = time.monotonic()
        for b in backends:  # warms up: loads what is loaded at first use
            self.once(row, b, bad)
        for turn in range(row.pairs or self.args.pairs):
            if self.left() < 20:
                self.report["left"].append(row.title + ": only %d turns" % turn)
                break
            if time.monotonic() - began > self.args.row_budget and turn >= 3:
                self.report["left"].append(row.title + ": %d turns in its time" % turn)
                break
            for b in backends if turn % 2 == 0 else reversed(backends):
                answers = self.once(row, b, bad)
                if answers is None:
                    continue
                v = row.value(answers)
                if v is None:
                    bad.add(b)  # the back end has no such operation
                    continue
                values[b].append(v)
                extra[b].append({k: max(a.get(k, 0) for a in answers) for k in ("quiet_us", "grown", "kept") if k in answers[0]}
                                | ({"free_ms": max(a["per"] for a in answers) / 1e3} if row.key == "grow" else {}))
        result = {"title": row.title, "unit": row.unit, "line": row.line, "must": row.must, "values": {}, "more": {}}
        for b in backends:
            if values[b]:
                result["values"][b] = values[b]
                result["more"][b] = {k: statistics.median(e[k] for e in extra[b]) for k in extra[b][0]}
        if row.better and result["values"]:
            medians = {b: statistics.median(v) for b, v in result["values"].items()}
            try:
                if "compat" in row.backends:
                    result["must"] += ": %.3f" % ratio(row, medians)
                result["reached"] = bool(row.better(medians))
            except KeyError:
                pass  # without what it is compared with there is no verdict
        self.report["rows"][row.key] = result
        log("%-42s %s" % (row.title, "  ".join("%s %s" % (b, figure(v, row.unit)) for b, v in result["values"].items())))

    def once(self, row, b, bad):
        """One run, or None if the back end failed in this row."""
        job = self.jobs.get(b)
        if b in bad or not job:
            return None
        try:
            return job.ask(row.line, row.timeout)
        except Failed as e:
            self.fail(b, row.title, str(e))
            bad.add(b)
            self.drop(b)
            return None

    def sweep(self):
        """CTAs to reach 90 % of the link, which is the best that any back end reached in any row."""
        small = self.args.sim
        ctas = (1, 2, 4) if small else SWEEP
        size = "bytes=%d total=%d threads=%d" % ((4 * KIB, 16 * KIB, 32) if small else (64 * MIB, GIB, 1024))
        table = {}
        for n in ctas:
            row = Row("sweep-%d" % n, "put, 64 MiB × %d CTAs" % n, "put ctas=%d %s" % (n, size), "GB/s", P2P, pairs=3)
            self.measure(row)
            for b, v in self.report["rows"].pop(row.key)["values"].items():
                table.setdefault(b, {})[n] = statistics.median(v)
        peak = max([max(v.values()) for v in table.values()] or [0])
        self.report["sweep"] = {"peak": peak, "by": table,
                                "needed": {b: min([n for n, v in t.items() if v >= 0.9 * peak], default=None) for b, t in table.items()}}

    def inits(self):
        """Time to start, with a context there already, each time in new processes."""
        values = {b: [] for b in LIBRARIES}
        grown = {b: [] for b in LIBRARIES}
        for turn in range(2 if self.args.sim else self.args.pairs):
            for b in LIBRARIES if turn % 2 == 0 else reversed(LIBRARIES):
                if b not in self.wanted() or (b not in self.commands and not self.args.fake) or self.broken.get(b, 0) >= 3:
                    continue
                if self.left() < 40:
                    self.report["left"].append("init: %d turns" % turn)
                    return
                try:
                    job = Fake(b, self.pes) if self.args.fake else self.start(b, {"BENCH_INIT_ONLY": "1"})
                except Failed as e:
                    self.broken[b] = self.broken.get(b, 0) + 1
                    self.fail(b, "init", str(e))
                    continue
                values[b].append(max(a["us"] for a in job.init) / 1e3)
                grown[b].append(max(a.get("grown", 0) for a in job.init))
                status = job.end()
                if any(status):
                    self.fail(b, "end", "exit statuses %s" % status)
        self.report["rows"]["init"] = {
            "title": "init, with a context there already", "unit": "ms", "must": "≤ 150 ms", "line": "",
            "values": {b: v for b, v in values.items() if v}, "more": {b: {"grown": statistics.median(g)} for b, g in grown.items() if g}}
        if values["lshmem"]:
            self.report["rows"]["init"]["reached"] = statistics.median(values["lshmem"]) <= 150

    def run(self):
        chosen = self.args.rows.split(",") if self.args.rows else None

        def take(key):
            return chosen is None or any(key == c or key.startswith(c + "-") for c in chosen)

        try:
            self.look()
            self.start_mps()
            if not self.args.fake:
                self.build()
            plan = compat_rows(self.args.sim) if self.args.compat else rows(self.args.sim, self.pes)
            plan = [r for r in plan if take(r.key)]
            for row in plan:
                if self.left() < 30:
                    self.report["left"].append(row.title)
                    continue
                self.measure(row)
                self.write()  # so that what ends this early leaves what there is
            if take("sweep") and self.left() > 60 and not self.args.compat:
                self.sweep()
            for name in list(self.jobs):
                status = self.jobs.pop(name).end()
                if any(status):
                    self.fail(name, "end", "exit statuses %s" % status)
            if take("init") and not self.args.compat:
                self.inits()
        finally:
            for job in self.jobs.values():
                job.kill()
            self.stop_mps()
            shutil.rmtree(self.work, ignore_errors=True)
        self.report["seconds"] = round(time.monotonic() - START, 1)
        text = self.write()
        print(text)

    # ---- Writing ----

    def write(self):
        text = markdown(self.report)
        for name, content in (("shmem.json", json.dumps(self.report, indent=1, ensure_ascii=False)), ("shmem.md", text)):
            path = os.path.join(self.folder, name)
            with open(path + ".new", "w") as f:
                f.write(content + "\n")
            os.replace(path + ".new", path)
        return text


def figure(values, unit):
    m = statistics.median(values)
    digits = 3 if m < 1 else 2 if m < 10 else 1 if m < 1000 else 0
    return "%.*f (%.*f–%.*f)" % (digits, m, digits, min(values), digits, max(values))


def markdown(report):
    m = report["machine"]
    lines = ["%s; %d PEs on devices %s; %s. Median (minimum–maximum) of alternating turns; all data checked."
             % (m.get("gpus"), m.get("pes", 0), m.get("devices"), m.get("date")), ""]
    columns = [b for b in TITLE if any(b in r["values"] for r in report["rows"].values())]
    if columns:
        lines += ["| row | unit | " + " | ".join(TITLE[b] for b in columns) + " | must reach | reached |",
                  "|---|---|" + "---|" * (len(columns) + 2)]
    for r in report["rows"].values():
        cells = [figure(r["values"][b], r["unit"]) if b in r["values"] else "–" for b in columns]
        reached = {True: "yes", False: "**no**"}.get(r.get("reached"), "")
        lines.append("| " + " | ".join([r["title"], r["unit"]] + cells + [r.get("must", ""), reached]) + " |")
    notes = []
    for r in report["rows"].values():
        for b, e in r.get("more", {}).items():
            if "quiet_us" in e:
                notes.append("%s: a quiet with nothing to wait for takes %.3f µs" % (TITLE[b], e["quiet_us"]))
            if "free_ms" in e:
                notes.append("%s: growth took %s of device memory, freed in %.1f ms; afterwards %s were kept"
                             % (TITLE[b], human(int(e["grown"])), e["free_ms"], human(int(max(0, e["kept"])))))
            elif "grown" in e:
                notes.append("%s: init took %s of device memory" % (TITLE[b], human(int(max(0, e["grown"])))))
    s = report.get("sweep")
    if s:
        names = [b for b in TITLE if b in s["by"]]
        lines += ["", "| CTAs, 64 MiB puts, GB/s | " + " | ".join(TITLE[b] for b in names) + " |", "|---|" + "---|" * len(names)]
        for n in sorted({n for t in s["by"].values() for n in t}):
            lines.append("| %d | " % n + " | ".join("%.1f" % s["by"][b][n] if n in s["by"][b] else "–" for b in names) + " |")
        lines.append("| **to 90 %% of %.1f** | " % s["peak"] + " | ".join(str(s["needed"][b] or "–") for b in names) + " |")
    for title, items in (("Notes", notes), ("Not measured, or less", report["left"]),
                         ("Failed", ["%s: %s: %s" % (f["backend"], f["what"], f["why"]) for f in report["failures"]])):
        if items:
            lines += ["", title + ":", ""] + ["- " + i.replace("\n", " ") for i in items]
    return "\n".join(lines)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--pes", type=int, default=0, help="PEs; default: GPUs, at least 2")
    p.add_argument("--one-gpu", action="store_true", help="all PEs on device 0, under MPS")
    p.add_argument("--pairs", type=int, default=10, help="turns of each row")
    p.add_argument("--rows", help="rows by their keys or the beginnings of them, such as put,alltoall,sweep,init")
    p.add_argument("--backends", default="lshmem,full,nvshmem,raw,nccl,ibgda")
    p.add_argument("--out", default=os.path.join(ROOT, "build", "bench-shmem"), help="folder for the results")
    p.add_argument("--lib", default=os.path.join(ROOT, "build", "lib", "lshmem", "liblshmem.so"))
    p.add_argument("--include", default=os.path.join(ROOT, "shmem", "include"))
    p.add_argument("--ibgda-env", action="append", default=[], metavar="NAME=VALUE",
                   help="settings of the back end that uses queues")
    p.add_argument("--budget", type=float, default=520, help="seconds for all")
    p.add_argument("--row-budget", type=float, default=25, help="seconds for a row; it has three turns at least")
    p.add_argument("--build-timeout", type=float, default=150)
    p.add_argument("--start-timeout", type=float, default=40)
    p.add_argument("--compat", action="store_true", help="the program with NVSHMEM's names, instead of all others")
    p.add_argument("--sim", action="store_true", help="inside lgpu run --sim: small sizes, no NVSHMEM, no NCCL")
    p.add_argument("--clang", default="clang-19", help="compiler of the kernels for the software GPU")
    p.add_argument("--fake", action="store_true", help="no program at all: made-up figures")
    args = p.parse_args()
    if args.compat:
        if args.sim:
            p.error("--compat needs nvcc and GPUs")
        args.backends = "compat,compat_p2p"
    if not args.ibgda_env:
        args.ibgda_env = ["LSHMEM_DISABLE_P2P=1", "LSHMEM_NIC=gpu"]
    bench = Bench(args)
    bench.run()
    missed = args.compat and any(not r.get("reached") for r in bench.report["rows"].values())
    return 1 if missed or bench.report["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
