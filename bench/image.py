#!/usr/bin/env python3
"""image: programs that are written to a disk and restored, and programs that move to another device.

    python3 bench/image.py [--rows losses,again,back,move,full,start] [--gib N] [--rounds N] [--dir DIR] [--sim SHAPE] [--out FILE]

    losses  a PyTorch training is written to a disk and ended, and restored: its losses must be those of one that nothing
            happened to. And one that moves to device 1 and back to 0, several times, while it trains
    again   a program with --gib of random data: an image of it, and a second one when 5 % of the data have changed
    back    a program with --gib of random data is written to a disk and ended, and restored from the page cache; with --before
            LGPU in turn with another build of lgpu, whose liblgpu must be the same
    move    a program with --gib of random data moves from device 0 to device 1 and back: how long it stands still
    full    an image is restored while another program has the device's memory, and when that has ended
    start   a server with --gib of weights, PyTorch with transformers: from the start of its process to its first answer, beside the
            same from lgpu restore, with weights and image in the page cache

Needs root, CRIU (LGPU_CRIU) and room in --dir. Every row checks that memory has the bits that it had. Prints Markdown; appends
results to FILE as lines of JSON.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import overcommit
from overcommit import GIB, Bench, Program, say, spread
from release import Random

WAYS = {"lgpu": ["--device", "0"], "lgpu --overcommit": ["--device", "0", "--overcommit"]}


def serve(what):
    """A server of a language model from a folder, as transformers loads it: answers each line of input with the words that follow.
    The folder is made where there is none, with random weights of so many bytes in all, in layers as Llama 3 8B has them."""
    size, path = what.split(",", 1)
    import torch
    import transformers
    if not os.path.exists(path):
        layers = max((int(size) - 2 * 128256 * 4096 * 2) // (2 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336)), 1)
        torch.manual_seed(0)
        config = transformers.LlamaConfig(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=layers,
                                          num_attention_heads=32, num_key_value_heads=8, dtype="bfloat16")
        with torch.device("cuda"):
            made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        made.save_pretrained(path)
        del made
        torch.cuda.empty_cache()
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, device_map="cuda")
    asked = torch.arange(1, 65, device="cuda").view(1, 64)

    def ask():
        return model.generate(asked, attention_mask=torch.ones_like(asked), max_new_tokens=16, do_sample=False, pad_token_id=0).tolist()
    say(ready=True, result=ask())
    for _ in sys.stdin:
        say(result=ask())


class Restored(Program):
    """The program of an image, in place of one that has ended."""

    def __init__(self, bench, directory, *options):
        self.name, self.log = directory, tempfile.TemporaryFile("w+")
        self.proc = subprocess.Popen([bench.lgpu, "restore", "--phases", *options, directory], text=True, stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, stderr=self.log)

    def said(self):
        """What the command said of itself."""
        self.log.seek(0)
        return self.log.read().strip()

    def phases(self):
        """Seconds of the phases by their names."""
        found = {}
        for line in self.said().splitlines():
            words = line.split()
            if len(words) == 3 and words[2] == "ms" and words[0] != "total":
                found[words[0]] = float(words[1]) / 1000
        return found


def image(b, p, directory, *options):
    """Takes an image; what the command said."""
    b.lgpu_call("checkpoint", "--json", "--to", directory, *options, p.name)
    return json.loads(b.said)["results"][0]


def table(said):
    """Phases, on one line."""
    phases = {p["phase"]: p["seconds"] for p in said} if isinstance(said, list) else said
    return ", ".join("%s %.2f" % (name, seconds) for name, seconds in phases.items() if seconds >= 0.005)


def losses(b, options):
    def train(ways, at=lambda n, p: None):
        p, said = Program(b, "train", ways, 0), []
        while not said or "end" not in said[-1]:
            try:
                said.append(p.read())
            except RuntimeError:
                p = p.next  # it was ended, and its successor goes on where it was
                continue
            at(len(said), p)
        p.proc.stdin.close()
        p.proc.wait()
        return [x.get("loss", x.get("end")) for x in said]

    native = train(None)
    print("\n| a PyTorch training | losses that differ | stood still, s | phases, s |\n|---|---|---|---|")
    for way, ways in WAYS.items():
        got, directory = {}, os.path.join(options.dir, "losses" + way.replace(" ", ""))

        def to_disk(n, p):
            if n == 300:
                got["away"] = image(b, p, directory, "--stop")
                p.next = Restored(b, directory)

        def moves(n, p):
            if n % 200 == 100:
                b.lgpu_call("migrate", "--json", "--device", "1" if n % 400 == 100 else "0", p.name)
                got.setdefault("moves", []).append(json.loads(b.said)["results"][0])
        try:
            there = train(ways, to_disk)
            print("| %s, to the disk and back | %d of %d | %.2f | %s |" % (
                way, sum(x != y for x, y in zip(native, there)), len(native), got["away"]["seconds"], table(got["away"]["phases"])), flush=True)
            b.report("losses", way=way, away=got["away"], differ=sum(x != y for x, y in zip(native, there)), losses=len(there))
        except (RuntimeError, subprocess.CalledProcessError) as e:
            print("| %s, to the disk | FAILED: %s |" % (way, e), flush=True)
        if options.devices < 2:
            continue
        try:
            there = train(ways, moves)
            print("| %s, to device 1 and back, %d times | %d of %d | %s | %s away, %s back |" % (
                way, len(got["moves"]), sum(x != y for x, y in zip(native, there)), len(native), spread([m["seconds"] for m in got["moves"]]),
                table(got["moves"][-1]["away"]), table(got["moves"][-1]["back"])), flush=True)
            b.report("losses", way=way, moves=got["moves"], differ=sum(x != y for x, y in zip(native, there)), losses=len(there))
        except (RuntimeError, subprocess.CalledProcessError) as e:
            print("| %s, moved | FAILED: %s |" % (way, e), flush=True)


def again(b, options, size):
    print("\n| images of %.3g GiB of random data | written | of the device's memory | s in all | program away, s | phases, s | wrong pieces |\n|%s"
          % (size / GIB, "---|" * 7))
    p = Random(b, WAYS["lgpu --overcommit"], size, size)
    b.warm(size)
    for n, name in enumerate(("the first", "the second, 5 % changed", "the third, nothing changed")):
        bad = p.ask("5" if n == 1 else "")["bad"]
        said = image(b, p, os.path.join(options.dir, "again-%d" % n))
        print("| %s | %.3f GiB | %.2f %% | %.2f | %.2f | %s | %d |" % (
            name, said["written"] / GIB, 100 * said["written"] / size, said["seconds"], said["paused"], table(said["phases"]), bad), flush=True)
        b.report("again", name=name, bytes=size, bad=bad, **said)
    p.close()


def back(b, options, size):
    own, builds = b.lgpu, {"": b.lgpu}
    if options.before:
        builds = {" (%s)" % options.before: options.before, "": b.lgpu}
    print("\n| %.3g GiB of random data | written, s | phases of the last one, s | restored, s | phases of the last one, s | wrong pieces |\n|%s"
          % (size / GIB, "---|" * 6))
    for way, ways in WAYS.items():
        got = {build: {"away": [], "back": [], "bad": 0} for build in builds}
        for _ in range(options.rounds):
            for build, b.lgpu in builds.items():
                directory, g = os.path.join(options.dir, "back"), got[build]
                p = Random(b, ways, size, size)
                away = image(b, p, directory, "--stop")
                p.proc.wait()
                cache(directory)
                p = Restored(b, directory)
                g["bad"] += p.ask()["bad"]
                phases = p.phases()
                p.close()
                remove(b, directory)
                g["away"].append(away["seconds"])
                g["back"].append(sum(phases.values()))
                g["phases"] = table(away["phases"]), table(phases)
                b.report("back", way=way, build=build, bytes=size, away=away, back=phases)
        b.lgpu = own
        for build, g in got.items():
            print("| %s%s | %s | %s | %s | %s | %d |" % (
                way, build, spread(g["away"]), g["phases"][0], spread(g["back"]), g["phases"][1], g["bad"]), flush=True)


def remove(b, directory):
    """Removes an image, with what no other one in its folder has."""
    shutil.rmtree(directory, ignore_errors=True)
    b.lgpu_call("image", "gc", os.path.dirname(directory))


def move(b, options, size):
    print("\n| %.3g GiB move | stood still, s | the last time: away, s | back, s | wrong pieces |\n|---|---|---|---|---|" % (size / GIB))
    for way, ways in WAYS.items():
        p = Random(b, ways, size, size)
        if "--overcommit" in ways:
            b.warm(size)
        got, bad = [], 0
        for n in range(2 * options.rounds):
            b.lgpu_call("migrate", "--json", "--device", "01"[n % 2 == 0], p.name)
            got.append(json.loads(b.said)["results"][0])
            bad += p.ask()["bad"]
        p.close()
        print("| %s | %s | %s | %s | %d |" % (way, spread([m["seconds"] for m in got]), table(got[-1]["away"]), table(got[-1]["back"]), bad),
              flush=True)
        b.report("move", way=way, bytes=size, moves=got, bad=bad)


def full(b, options, size):
    print("\n| restore to a full device | |\n|---|---|")
    for way, ways in WAYS.items():
        directory = os.path.join(options.dir, "full" + way.replace(" ", ""))
        p = Random(b, ways, size, size)
        image(b, p, directory, "--stop")
        p.proc.wait()
        filler = Program(b, "hold", WAYS["lgpu"], options.memory - size * 3 // 4)
        refused = Restored(b, directory)
        while refused.proc.poll() is None and "is restored" not in refused.said():
            time.sleep(0.1)
        refused.proc.stdin.close()
        status = refused.proc.wait()
        print("| %s, full | status %d: %s |" % (way, status, " ".join(refused.said().split())), flush=True)
        filler.close()
        if status == 0:
            continue
        p = Restored(b, directory)
        bad = p.ask()["bad"]
        p.close()
        print("| %s, when there is room | wrong pieces: %d |" % (way, bad), flush=True)
        b.report("full", way=way, bytes=size, status=status, said=refused.said(), bad=bad)


def cache(directory):
    """Brings all files of a folder to the page cache."""
    files = [os.path.join(at, name) for at, _, names in os.walk(directory) for name in names]
    subprocess.run(["xargs", "-0", "-P16", "-n4", "cat"], input="\0".join(files).encode(), stdout=subprocess.DEVNULL, check=True)


def start(b, options, size):
    model = os.path.join(options.dir, "model")
    what = "%d,%s" % (size, model)
    print("\n| a server of %.3g GiB of weights | s to its first answer | times faster | phases, s | wrong answers |\n|---|---|---|---|---|"
          % (size / GIB))
    Program(b, "server", None, what).close()  # makes the folder
    cache(model)
    cold = []
    for _ in range(options.rounds):
        began = time.perf_counter()
        p = Program(b, "server", WAYS["lgpu"], what)
        cold.append(time.perf_counter() - began)
        right = p.ready["result"]
        p.close()
    print("| started | %s | | | |" % spread(cold), flush=True)
    b.report("start", way="started", bytes=size, seconds=cold)
    for way, ways in reversed(WAYS.items()):
        directory, got, wrong = os.path.join(options.dir, "start" + way.replace(" ", "")), [], 0
        try:
            p = Program(b, "server", ways, what)
            image(b, p, directory, "--stop")
            p.proc.wait()
            for _ in range(options.rounds):
                cache(directory)
                began = time.perf_counter()
                p = Restored(b, directory)
                wrong += p.ask()["result"] != right
                got.append(time.perf_counter() - began)
                p.close()
            phases = p.phases()
        except (RuntimeError, OSError, subprocess.CalledProcessError) as e:
            print("| %s | FAILED: %s |" % (way, e), flush=True)
            continue
        finally:
            remove(b, directory)
        print("| restored: %s | %s | %.1f | %s | %d |" % (
            way, spread(got), sorted(cold)[len(cold) // 2] / sorted(got)[len(got) // 2], table(phases), wrong), flush=True)
        b.report("start", way=way, bytes=size, seconds=got, phases=phases, wrong=wrong)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--lgpu", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bin", "lgpu"))
    ap.add_argument("--rows", default="losses,again,move,full,start")
    ap.add_argument("--gib", type=float, default=16)
    ap.add_argument("--rounds", type=int, default=2)
    ap.add_argument("--dir", help="where images are written (default: a new folder, which is removed)")
    ap.add_argument("--before", metavar="LGPU", help="another build of lgpu for the row back")
    ap.add_argument("--sim", help="shape of a software GPU")
    ap.add_argument("--out")
    ap.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = ap.parse_args()
    if options.child:
        mode, what = options.child
        {"server": lambda: serve(what), "hold": lambda: overcommit.hold(int(what)), "train": overcommit.train}[mode]()
        return
    Program.script = os.path.abspath(__file__)
    b, size, made = Bench(options), int(options.gib * GIB), None if options.dir else tempfile.mkdtemp(prefix="lgpu-bench-", dir="/var/tmp")
    options.dir = options.dir or made
    some = Program(b, "hold", [], 64 << 20)  # a software GPU is there with its first program
    devices = json.loads(subprocess.check_output([b.lgpu, "devices", "--json"]))["devices"]
    options.devices, options.memory = len(devices), devices[0]["memory.capacity"]
    some.close()
    rows = {"losses": lambda: losses(b, options), "again": lambda: again(b, options, size), "back": lambda: back(b, options, size),
            "move": lambda: move(b, options, size), "full": lambda: full(b, options, size), "start": lambda: start(b, options, size)}
    failed = False
    try:
        for row in options.rows.split(","):
            try:
                rows[row]()
            except (RuntimeError, OSError, subprocess.CalledProcessError) as e:
                failed = True
                print("| %s | FAILED: %s |" % (row, e), flush=True)
    finally:
        if made:
            shutil.rmtree(made, ignore_errors=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
