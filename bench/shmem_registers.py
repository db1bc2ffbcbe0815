#!/usr/bin/env python3
"""shmem_registers: can a kernel with any one of lshmem's device functions be launched with 1024 threads?

    python3 bench/shmem_registers.py [--out FILE] [-D NAME ...]     # nvcc, and a card where there is one
    python3 bench/shmem_registers.py --write-ptx FOLDER             # clang-19, here: PTX for the next line
    python3 bench/shmem_registers.py --ptx FOLDER                   # on a card: clang's PTX, compiled by the driver

A kernel that programs launch with 1024 threads, and that says so nowhere, may have 64 registers a thread. This makes a kernel
for each function of lshmem.cuh, lshmem_collective.cuh and, by NVSHMEM's names, lshmem_compat.h, in each scope and with the
element types that matter, without launch bounds and without -maxrregcount, and prints registers, local memory and spills of
each. On a machine with a card each is launched with 1024 threads, too (its body is skipped: what counts is the launch).

Without any of this, shmem/device's tests estimate from clang's PTX.

Ends with 1 and a list if any kernel has more than 64 registers or could not be launched, with 2 if nothing could be tried.
"""
import argparse
import concurrent.futures
import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT = 64  # 65536 registers of a multiprocessor for 1024 threads
SCOPES = ("", "_warp", "_block")
NUMBERS = {"int8": "int8_t", "uint8": "uint8_t", "int16": "int16_t", "uint16": "uint16_t", "int32": "int32_t",
           "uint32": "uint32_t", "int64": "int64_t", "uint64": "uint64_t", "half": "lshmem::half", "bfloat": "lshmem::bfloat",
           "float": "float", "double": "double"}


def units():
    """{unit: (header, {kernel: body})}. Bodies see sh, to, from, n, sig, pe, q, team and status."""
    all_units = {}

    def add(unit, name, body, header="lshmem_collective.cuh"):
        kernels = all_units.setdefault(unit, (header, {}))[1]
        assert name not in kernels, name
        kernels[name] = body

    for s in SCOPES:
        unit = "rma" + s
        for f in ("put", "get"):
            for nbi in ("", "_nbi"):
                add(unit, "%smem%s%s" % (f, nbi, s), "*status = lshmem_%smem%s%s(sh, to, from, n, pe);" % (f, nbi, s))
                add(unit, "qp_%smem%s%s" % (f, nbi, s), "*status = lshmem_qp_%smem%s%s(sh, to, from, n, pe, q);" % (f, nbi, s))
                add(unit, "%s%s%s_float" % (f, nbi, s),
                    "*status = lshmem_%s%s%s<float>(sh, (float *)to, (const float *)from, n, pe);" % (f, nbi, s))
        for t in ("uint8", "float", "double"):
            for f in ("iput", "iget"):
                add(unit, "%s%s_%s" % (f, s, t), "*status = lshmem_%s%s<%s>(sh, (%s *)to, (const %s *)from, pe, q, n, pe);"
                    % (f, s, NUMBERS[t], NUMBERS[t], NUMBERS[t]))
        add(unit, "iput%s_quad" % s,
            "*status = lshmem_iput%s<lshmem::quad>(sh, (lshmem::quad *)to, (const lshmem::quad *)from, pe, q, n, pe);" % s)
        for nbi in ("", "_nbi"):
            add(unit, "putmem_signal%s%s" % (nbi, s),
                "*status = lshmem_putmem_signal%s%s(sh, to, from, n, sig, 1, q, pe);" % (nbi, s))
            add(unit, "qp_putmem_signal%s%s" % (nbi, s),
                "*status = lshmem_qp_putmem_signal%s%s(sh, to, from, n, sig, 1, LSHMEM_SIGNAL_ADD, pe, q);" % (nbi, s))
        for f in ("quiet", "fence"):
            add(unit, f + s, "*status = lshmem_%s%s(sh);" % (f, s))
            add(unit, f + s + "_pe", "*status = lshmem_%s%s(sh, pe);" % (f, s))
        unit = "collective" + s
        for f in ("barrier", "sync"):
            add(unit, f + s, "*status = lshmem_%s%s(sh, team);" % (f, s))
            add(unit, "%s_all%s" % (f, s), "*status = lshmem_%s_all%s(sh);" % (f, s))
        for t in ("uint8", "float"):
            c = NUMBERS[t]
            add(unit, "broadcast%s_%s" % (s, t), "*status = lshmem_broadcast%s<%s>(sh, team, (%s *)to, (const %s *)from, n, pe);" % (s, c, c, c))
            for f in ("fcollect", "alltoall"):
                add(unit, "%s%s_%s" % (f, s, t), "*status = lshmem_%s%s<%s>(sh, team, (%s *)to, (const %s *)from, n);" % (f, s, c, c, c))
        for i, (t, c) in enumerate(NUMBERS.items()):
            for f in ("reduce", "reducescatter"):
                add("reduce%s_%d" % (s, i // 3), "%s%s_%s" % (f, s, t),
                    "*status = lshmem_%s%s<%s>(sh, team, q, (%s *)to, (const %s *)from, n);" % (f, s, c, c, c))
    bulk = "LSHMEM_SHARED __attribute__((aligned(128))) char ring[16384];\n  "
    for f in ("put", "get"):
        add("rma_block", f + "mem_bulk_block", bulk + "*status = lshmem_%smem_bulk_block(sh, to, from, n, pe, ring, sizeof ring);" % f)
    for t in ("uint8", "uint16", "uint32", "uint64", "float", "double"):
        c = NUMBERS[t]
        add("single", "p_" + t, "*status = lshmem_p<%s>(sh, (%s *)to, (%s)n, pe);" % (c, c, c))
        add("single", "g_" + t, "*(%s *)to = lshmem_g<%s>(sh, (const %s *)from, pe);" % (c, c, c))
        if "8" in t or "16" in t:
            continue
        add("single", "atomic_set_" + t, "*status = lshmem_atomic_set<%s>(sh, (%s *)to, (%s)n, pe);" % (c, c, c))
        add("single", "atomic_swap_" + t, "*(%s *)from = lshmem_atomic_swap<%s>(sh, (%s *)to, (%s)n, pe);" % (c, c, c, c))
        add("single", "atomic_fetch_" + t, "*(%s *)from = lshmem_atomic_fetch<%s>(sh, (const %s *)to, pe);" % (c, c, c))
        if t in ("float", "double"):
            continue
        for f in ("add", "and", "or", "xor"):
            add("single", "atomic_%s_%s" % (f, t), "*status = lshmem_atomic_%s<%s>(sh, (%s *)to, (%s)n, pe);" % (f, c, c, c))
            add("single", "atomic_fetch_%s_%s" % (f, t), "*(%s *)from = lshmem_qp_atomic_fetch_%s<%s>(sh, (%s *)to, (%s)n, pe, q);" % (c, f, c, c, c))
        add("single", "atomic_inc_" + t, "*status = lshmem_atomic_inc<%s>(sh, (%s *)to, pe);" % (c, c))
        add("single", "atomic_fetch_inc_" + t, "*(%s *)from = lshmem_atomic_fetch_inc<%s>(sh, (%s *)to, pe);" % (c, c, c))
        add("single", "atomic_compare_swap_" + t,
            "*(%s *)from = lshmem_atomic_compare_swap<%s>(sh, (%s *)to, (%s)n, (%s)q, pe);" % (c, c, c, c, c))
    add("single", "signal_op", "*status = lshmem_signal_op(sh, sig, n, q, pe);")
    add("single", "qp_signal_op", "*status = lshmem_qp_signal_op(sh, sig, n, LSHMEM_SIGNAL_ADD, pe, q);")
    add("single", "signal_wait_until", "*status = lshmem_signal_wait_until(sh, sig, q, n);")
    add("single", "signal_fetch", "*sig = lshmem_signal_fetch(sh, sig);")
    add("single", "qp_quiet", "*status = lshmem_qp_quiet(sh, pe, q);")
    add("single", "qp_fence", "*status = lshmem_qp_fence(sh, pe, q);")
    for t in ("uint16", "int32", "uint64"):
        c = NUMBERS[t]
        add("waits", "wait_until_" + t, "*status = lshmem_wait_until<%s>(sh, (%s *)to, q, (%s)n);" % (c, c, c))
        add("waits", "test_" + t, "*status = lshmem_test<%s>(sh, (%s *)to, q, (%s)n);" % (c, c, c))
        for v, arg in (("", "(%s)pe" % c), ("_vector", "(const %s *)from" % c)):
            head = "sh, (%s *)to, n" % c
            add("waits", "wait_until_all%s_%s" % (v, t), "*status = lshmem_wait_until_all%s<%s>(%s, status, q, %s);" % (v, c, head, arg))
            add("waits", "wait_until_any%s_%s" % (v, t),
                "*status = lshmem_wait_until_any%s<%s>(%s, (size_t *)sig, status, q, %s);" % (v, c, head, arg))
            add("waits", "wait_until_some%s_%s" % (v, t),
                "*status = lshmem_wait_until_some%s<%s>(%s, (size_t *)sig, (size_t *)from, status, q, %s);" % (v, c, head, arg))
            for f in ("all", "any"):
                add("waits", "test_%s%s_%s" % (f, v, t), "*sig = lshmem_test_%s%s<%s>(%s, status, q, %s);" % (f, v, c, head, arg))
            add("waits", "test_some%s_%s" % (v, t), "*sig = lshmem_test_some%s<%s>(%s, (size_t *)sig, status, q, %s);" % (v, c, head, arg))
    # A program's own values live on over the call.
    for f, call in (("put", "lshmem_putmem_nbi_block(sh, to + i * n, from + i * n, n, pe)"),
                    ("get", "lshmem_getmem_nbi_block(sh, to + i * n, from + i * n, n, pe)"),
                    ("signal", "lshmem_putmem_signal_nbi_block(sh, to + i * n, from + i * n, n, sig + i, 1, LSHMEM_SIGNAL_SET, pe)"),
                    ("p", "lshmem_p<uint64_t>(sh, sig + i, v[i & 7], pe)"), ("quiet", "lshmem_quiet(sh)")):
        add("loops", "loop_" + f, """uint64_t v[8];
  for (int k = 0; k < 8; k++) v[k] = sig[k];
  for (size_t i = 0; i < n; i++) {
    *status |= %s;
    for (int k = 0; k < 8; k++) v[k] = v[k] * 3 + sig[i * 8 + k];
  }
  for (int k = 0; k < 8; k++) sig[k] = v[k];""" % call)
    compat(add)
    return all_units


def compat(add):
    """The same by NVSHMEM's names, of which all types are alike but for their width."""
    h = "lshmem_compat.h"
    for s, p in (("", "nvshmem"), ("_warp", "nvshmemx"), ("_block", "nvshmemx")):
        unit = "compat" + s
        for f in ("put", "get", "put_nbi", "get_nbi"):
            add(unit, "nv_float_%s%s" % (f, s), "%s_float_%s%s((float *)to, (const float *)from, n, pe);" % (p, f, s), h)
            mem = f.replace("put", "putmem").replace("get", "getmem")
            add(unit, "nv_%s%s" % (mem, s), "%s_%s%s(to, from, n, pe);" % (p, mem, s), h)
        for f in ("putmem_signal", "putmem_signal_nbi"):
            add(unit, "nv_%s%s" % (f, s), "%s_%s%s(to, from, n, sig, 1, NVSHMEM_SIGNAL_SET, pe);" % (p, f, s), h)
        add(unit, "nv_barrier_all" + s, "%s_barrier_all%s();" % (p, s), h)
        add(unit, "nv_sync_all" + s, "%s_sync_all%s();" % (p, s), h)
        for f in ("sum", "max"):
            add(unit, "nv_float_%s_reduce%s" % (f, s), "*status = %s_float_%s_reduce%s(team, (float *)to, (const float *)from, n);" % (p, f, s), h)
        for f in ("fcollect", "alltoall"):
            add(unit, "nv_int_%s%s" % (f, s), "*status = %s_int_%s%s(team, (int *)to, (const int *)from, n);" % (p, f, s), h)
        add(unit, "nv_int_broadcast" + s, "*status = %s_int_broadcast%s(team, (int *)to, (const int *)from, n, pe);" % (p, s), h)
    add("compat", "nv_int_p", "nvshmem_int_p((int *)to, 1, pe);", h)
    add("compat", "nv_int_g", "*(int *)from = nvshmem_int_g((const int *)to, pe);", h)
    add("compat", "nv_quiet", "nvshmem_quiet();", h)
    add("compat", "nv_fence", "nvshmem_fence();", h)
    add("compat", "nv_signal_op", "nvshmemx_signal_op(sig, n, NVSHMEM_SIGNAL_ADD, pe);", h)
    add("compat", "nv_signal_wait_until", "*sig = nvshmem_signal_wait_until(sig, NVSHMEM_CMP_GE, n);", h)
    add("compat", "nv_uint64_atomic_fetch_add", "*sig = nvshmem_uint64_atomic_fetch_add((uint64_t *)to, n, pe);", h)
    add("compat", "nv_int_atomic_add", "nvshmem_int_atomic_add((int *)to, 1, pe);", h)


def source(header, kernels):
    state = "" if header == "lshmem_compat.h" else "const LSHMEM_GRID_CONSTANT lshmem_t sh, "
    lines = ['#include "%s"' % header, "#ifdef __NVCC__", "#define LSHMEM_GRID_CONSTANT __grid_constant__", "#else",
             "#define LSHMEM_GRID_CONSTANT", "#endif"]
    for name, body in kernels.items():
        lines.append('extern "C" LSHMEM_GLOBAL void k_%s(int run, %schar *to, char *from, size_t n, uint64_t *sig, int pe, int q, int team, '
                     "int *status) {\n  if (!run) return;\n  %s\n}" % (name, state, body))
    return "\n".join(lines) + "\n"


# --- Compilers ---

def tools():
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    return nvcc if os.path.exists(nvcc) else None


def run_nvcc(nvcc, args, path, out):
    command = [nvcc, "-std=c++17", "-arch=" + args.arch, "-cubin", "-Xptxas", "-v", "-I", args.include, "-o", out, path]
    r = subprocess.run(command + ["-D" + d for d in args.define], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if r.returncode:
        raise SystemExit("%s\n%s" % (" ".join(command), r.stdout))
    return r.stdout


def run_clang(args, path, out):
    command = [args.clang, "-x", "cuda", "-std=c++17", "-nocudainc", "-nocudalib", "--cuda-device-only", "--cuda-gpu-arch=" + args.arch,
               "--cuda-feature=+ptx80", "-O3", "-S", "-I", args.include, "-o", out, path]
    r = subprocess.run(command + ["-D" + d for d in args.define], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if r.returncode:
        raise SystemExit("%s\n%s" % (" ".join(command), r.stdout))


def compile_all(args, folder, each):
    plan = []
    for unit, (header, kernels) in units().items():
        if args.units and unit not in args.units.split(","):
            continue
        path = os.path.join(folder, unit + ".cu")
        with open(path, "w") as f:
            f.write(source(header, kernels))
        plan.append((unit, path))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip([u for u, _ in plan], pool.map(lambda p: each(p[0], p[1]), plan)))


def parse_ptxas(text):
    """{kernel: (registers, stack, spill stores, spill loads)} of ptxas -v, and {function: stack} of what they call."""
    found, functions, name = {}, {}, None
    for line in text.splitlines():
        m = re.search(r"Compiling entry function '(\w+)'", line)
        if m:
            name = m.group(1)
        m = re.search(r"Function properties for (\S+)", line)
        if m:
            of = m.group(1)
        m = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line)
        if m:
            functions[of] = tuple(map(int, m.groups()))
        m = re.search(r"Used (\d+) registers", line)
        if m and name:
            found[name] = (int(m.group(1)),) + functions.get(name, (0, 0, 0))
            name = None
    return found, functions


# --- The card ---

class Card:
    """Device 0, by the driver."""

    NUM_REGS, LOCAL_BYTES, MAX_THREADS = 4, 3, 0

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *args):
        r = getattr(self.cuda, name)(*args)
        if r:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorName(r, ctypes.byref(text))
            raise OSError("%s: %s" % (name, (text.value or b"?").decode()))

    def load(self, path):
        module = ctypes.c_void_p()
        with open(path, "rb") as f:
            self.call("cuModuleLoadData", ctypes.byref(module), f.read() + b"\0")
        return module

    def kernel(self, module, name):
        f = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(f), module, name.encode())
        return f

    def attribute(self, f, which):
        v = ctypes.c_int()
        self.call("cuFuncGetAttribute", ctypes.byref(v), which, f)
        return v.value

    def launch(self, f):
        """With 1024 threads, and 0 as every argument. None, or why it could not be."""
        zeros = ctypes.create_string_buffer(1024)
        args = (ctypes.c_void_p * 10)(*[ctypes.addressof(zeros)] * 10)
        try:
            self.call("cuLaunchKernel", f, 1, 1, 1, 1024, 1, 1, 0, None, args, None)
            self.call("cuCtxSynchronize")
        except OSError as e:
            return str(e)
        return None


def on_card(card, path, names):
    module, got = card.load(path), {}
    for name in names:
        f = card.kernel(module, "k_" + name)
        got[name] = (card.attribute(f, Card.NUM_REGS), card.attribute(f, Card.LOCAL_BYTES), card.launch(f))
    return got


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--include", default=os.path.join(os.path.dirname(HERE), "shmem", "include"))
    p.add_argument("--arch", default="sm_90")
    p.add_argument("--clang", default="clang++-19")
    p.add_argument("-D", dest="define", action="append", default=[], help="a definition for the headers, such as LSHMEM_P2P_ONLY")
    p.add_argument("--write-ptx", metavar="FOLDER", help="only compile, by clang, and write PTX there")
    p.add_argument("--units", help="with --write-ptx: only these, such as rma_block,single")
    p.add_argument("--ptx", metavar="FOLDER", help="instead of compiling: clang's PTX from there")
    p.add_argument("--out", help="write the table there, too")
    args = p.parse_args()
    if args.write_ptx:
        os.makedirs(args.write_ptx, exist_ok=True)
        compile_all(args, args.write_ptx, lambda unit, path: run_clang(args, path, os.path.join(args.write_ptx, unit + ".ptx")))
        return 0
    try:
        card = Card()
    except OSError as e:
        card = None
        print("no card: %s" % e, file=sys.stderr)
    rows, logs, nvcc = {}, "", tools()
    with tempfile.TemporaryDirectory() as folder:
        if not args.ptx:
            if not nvcc:
                print("needs nvcc, or a card and --ptx", file=sys.stderr)
                return 2
            texts = compile_all(args, folder, lambda unit, path: run_nvcc(nvcc, args, path, os.path.join(folder, unit + ".cubin")))
            for text in texts.values():
                logs += text
            found, functions = parse_ptxas(logs)
            for unit, (_, kernels) in units().items():
                for name in kernels:
                    rows[name] = list(found["k_" + name]) + ["not launched"]
        elif not card:
            print("--ptx needs a card", file=sys.stderr)
            return 2
        if card:
            for unit, (_, kernels) in units().items():
                path = os.path.join(args.ptx, unit + ".ptx") if args.ptx else os.path.join(folder, unit + ".cubin")
                for name, (registers, local, why) in on_card(card, path, kernels).items():
                    old = rows.get(name, [0, 0, 0, 0, ""])
                    rows[name] = [max(registers, old[0]), local] + old[2:4] + [why or "ok"]
    lines = ["%-34s %9s %6s %12s %12s  %s" % ("kernel", "registers", "local", "spill stores", "spill loads", "1024 threads")]
    for name, r in sorted(rows.items(), key=lambda kv: (-kv[1][0], kv[0])):
        lines.append("%-34s %9d %6d %12d %12d  %s" % ((name,) + tuple(r)))
    bad = [name for name, r in rows.items() if r[0] > LIMIT or r[4] not in ("ok", "not launched")]
    if logs:
        lines += ["", "functions with a stack frame or spills:"]
        lines += ["%-90s frame %d, spill stores %d, loads %d" % ((n,) + f) for n, f in sorted(functions.items())
                  if any(f) and not n.startswith("k_")]
    lines += ["", "%d kernels, most registers %d, %d not to be launched with 1024 threads%s" % (
        len(rows), max(r[0] for r in rows.values()), len(bad), ": " + ", ".join(sorted(bad)) if bad else "")]
    text = "\n".join(lines)
    print(text)
    if args.out:
        with open(args.out, "w") as f:
            f.write(text + "\n" + logs)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
