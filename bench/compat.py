#!/usr/bin/env python3
"""compat: which programs work natively, in an lgpu, in a contained lgpu and in one with --overcommit, of those that are
installed.

    python3 bench/compat.py [--json] [--sim | --sim=SHAPE] [--timeout SECONDS] [--modes MODE,...] [CASE...]

Prints the table of docs/compatibility.md. A CASE is a name in it, or the beginning of one; default: all. With --sim
everything runs on a software GPU, for which the cases that begin with "driver" are meant; "native" is there the software
GPU without an lgpu's library. Exits 1 if a case that works natively fails in an lgpu.

Results: "works"; "fails", with the last line of output below the table; "not installed", which is also said where a
case needs more GPUs than there are; "-" where a case fails natively already.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
LGPU = os.path.join(HERE, "..", "bin", "lgpu")
SHAPE = "1x4GiB,sms=8"  # of the software GPU
ABSENT = 77  # exit status of a case whose library is not installed
MODES = ("native", "lgpu", "contained", "overcommit")
# Cases that run "driver kernels" below a tool.
TOOLS = {
    "nsys": ["nsys", "profile", "--output=/dev/null", "--force-overwrite=true"],
    "compute-sanitizer": ["compute-sanitizer", "--error-exitcode=1"],
    "ncu": ["ncu", "--target-processes=all", "--set=base"],
    "MPI, 2 processes": ["mpirun", "--oversubscribe", "-n", "2"],
}


def child(name):
    """Runs a case in this process."""
    try:
        libraries().CASES[name]()
    except ImportError as e:
        print(e)
        sys.exit(ABSENT)


def libraries():
    """The module with the cases, which children of a case import too."""
    folder = os.path.join(HERE, "compat")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    import libraries as module
    return module


def cases():
    return list(libraries().CASES) + list(TOOLS)


def command(case, mode, sim):
    """What to run, or None if the tool is not installed."""
    program = [sys.executable, os.path.abspath(__file__), "--child", "driver kernels" if case in TOOLS else case]
    if case in TOOLS:
        if shutil.which(TOOLS[case][0]) is None:
            return None
        program = TOOLS[case] + program
    run = [LGPU, "run", "--memory", "50%", "--compute", "50"] + (["--sim=" + sim] if sim else [])
    if mode == "contained":
        return run + ["--contain=on", "--"] + program
    if mode == "overcommit":
        return run + ["--overcommit", "--contain=off", "--"] + program
    if mode == "lgpu":
        return run + ["--contain=off", "--"] + program
    if sim:
        return run + ["--contain=off", "--", "env", "-u", "LD_PRELOAD"] + program
    return program


def environment():
    """The environment of all programs. Open MPI's mpirun refuses root, as who is root in a container is."""
    return dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")


def telling(output):
    """The last line of a failed program's output that has a word in it: some tools end with a line of dashes."""
    lines = [line.strip() for line in output.splitlines() if any(c.isalnum() for c in line)]
    return lines[-1] if lines else "no output"


def attempt(case, mode, sim, timeout):
    """Returns the result, and the last line of output if it failed."""
    argv = command(case, mode, sim)
    if argv is None:
        return "not installed", ""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=timeout, text=True, errors="replace", env=environment())
    except subprocess.TimeoutExpired:
        return "fails", f"it did not end within {timeout} s"
    except OSError as e:
        return "fails", str(e)
    if done.returncode == 0:
        return "works", ""
    return ("not installed" if done.returncode == ABSENT else "fails"), f"status {done.returncode}: {telling(done.stdout)}"


def measure(case, options):
    """One row: the result in each mode, and why those that failed did."""
    row, why = {}, {}
    for mode in options.modes:
        if row.get("native") in ("fails", "not installed"):
            row[mode] = "-" if row["native"] == "fails" else "not installed"
            continue
        row[mode], text = attempt(case, mode, options.sim, options.timeout)
        if row[mode] == "fails":
            why[mode] = text
    return {"case": case, "results": row, "why": why}


def show(rows, modes):
    width = max(len(r["case"]) for r in rows)
    print("| " + " | ".join(["program".ljust(width)] + [m.ljust(13) for m in modes]) + " |")
    print(f"|{'-' * (width + 2)}|{'|'.join('-' * 15 for _ in modes)}|")
    for r in rows:
        print("| " + " | ".join([r["case"].ljust(width)] + [r["results"][m].ljust(13) for m in modes]) + " |")
    for r in rows:
        for mode, text in r["why"].items():
            print(f"\n{r['case']}, {mode}: {text}")


def arguments():
    """The command line, in which --sim has a shape only after an equals sign: what follows it is a case."""
    return ["--sim=" + SHAPE if a == "--sim" else a for a in sys.argv[1:]]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="Cases: " + "; ".join(cases()))
    p.add_argument("--json", action="store_true", help="print JSON: [{case, results: {MODE: result}, why}]")
    p.add_argument("--sim", metavar="SHAPE", help=f"use a software GPU; --sim alone is --sim={SHAPE}")
    p.add_argument("--timeout", type=float, default=600, metavar="SECONDS", help="for one case in one way (default 600)")
    p.add_argument("--modes", type=lambda text: text.split(","), default=list(MODES), help="which columns (default %(default)s)")
    p.add_argument("--child", help=argparse.SUPPRESS)
    p.add_argument("cases", nargs="*", metavar="CASE")
    options = p.parse_args(arguments())
    if options.child:
        child(options.child)
        return 0
    if not os.access(LGPU, os.X_OK):
        p.error("bin/lgpu is missing; build it with: make build")
    if not set(options.modes) <= set(MODES):
        p.error("modes are: " + ", ".join(MODES))
    chosen = [c for c in cases() if not options.cases or any(c.lower().startswith(o.lower()) for o in options.cases)]
    if not chosen:
        p.error("no case begins so; --help lists them")
    rows = [measure(c, options) for c in chosen]
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        show(rows, options.modes)
    return 1 if any(r["why"].keys() - {"native"} for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
