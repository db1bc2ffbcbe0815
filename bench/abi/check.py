#!/usr/bin/env python3
"""check: compares what tenant/abi declares with the outside truth.

    python3 bench/abi/check.py headers INCLUDE   sizes, offsets and values against cuda.h and nvml.h in INCLUDE
    python3 bench/abi/check.py driver            exports and cuGetProcAddress against the installed driver

Prints what differs; exits 1 if anything does.
"""
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
# Makes cuda.h declare the older versions of its types as well.
INTERNAL = "-D__CUDA_API_VERSION_INTERNAL"
ABI = os.path.join(HERE, "..", "..", "tenant", "abi")


def rows(name):
    with open(os.path.join(ABI, name)) as f:
        return [line.rstrip("\n").split("\t") for line in f if not line.startswith("#")]


def ours(headers):
    """Names of the structures, with their outermost fields, and of the enumerators that our headers declare."""
    text = ""
    for name in headers:
        with open(os.path.join(ABI, "include", name)) as f:
            text += f.read()
    text = re.sub(r"/\*.*?\*/|//[^\n]*|^\s*#[^\n]*", "", text, flags=re.S | re.M)
    structures, values = {}, []
    for m in re.finditer(r"typedef\s+(struct|union|enum)\s*\w*\s*\{", text):
        depth, i = 1, m.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[i], 0)
            i += 1
        body, name = text[m.end():i - 1], re.match(r"\s*(\w+)", text[i:]).group(1)
        if m.group(1) == "enum":
            values += [e.split("=")[0].strip() for e in body.split(",") if e.strip()]
            continue
        while re.search(r"\{[^{}]*\}", body):
            body = re.sub(r"\{[^{}]*\}", " ", body)
        fields = []
        for declaration in body.split(";"):
            # A bit-field has no offset; a nested anonymous structure no name.
            found = re.search(r"(\w+)\s*(\[[^\]]*\]\s*)*$", declaration.strip())
            if found and ":" not in declaration and "(" not in declaration and len(declaration.split()) > 1:
                fields.append(found.group(1))
        structures[name] = fields
    return structures, values


def measured(include, header, structures, values):
    body = ['#include <stddef.h>', '#include <stdio.h>', '#include "%s"' % header, "int main(void) {"]
    for name, fields in structures.items():
        body.append('printf("%s %%zu\\n", sizeof(%s));' % (name, name))
        body += ['printf("%s.%s %%zu\\n", offsetof(%s, %s));' % (name, f, name, f) for f in fields]
    body += ['printf("%s %%lld\\n", (long long)%s);' % (v, v) for v in values]
    with tempfile.TemporaryDirectory() as tmp:
        source, program = os.path.join(tmp, "m.c"), os.path.join(tmp, "m")
        with open(source, "w") as f:
            f.write("\n".join(body + ["return 0; }"]))
        subprocess.run(["gcc", "-w", INTERNAL, "-I", include, "-o", program, source], check=True)
        return subprocess.run([program], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()


def headers(include):
    wrong = 0
    for theirs, mine, files in (("cuda.h", "lgpu_cuda.h", ["lgpu_cuda_enums.h", "lgpu_cuda_types.h", "lgpu_cuda_graph.h"]),
                                ("nvml.h", "lgpu_nvml.h", ["lgpu_nvml_types.h"])):
        structures, values = ours(files)
        # Some closing "..._MAX" names are spelt anew by every release.
        preprocessed = subprocess.run(["gcc", "-E", "-P", INTERNAL, os.path.join(include, theirs)], check=True, stdout=subprocess.PIPE, text=True).stdout
        known = set(re.findall(r"\w+", preprocessed))
        left_out = [n for n in [*structures, *values] if n not in known]
        structures, values = {n: f for n, f in structures.items() if n in known}, [v for v in values if v in known]
        a = measured(os.path.join(ABI, "include"), mine, structures, values)
        b = measured(include, theirs, structures, values)
        different = [(x, y) for x, y in zip(a, b) if x != y]
        for x, y in different:
            print("%s: ours %s, theirs %s" % (theirs, x, y))
        wrong += len(different)
        if left_out:
            print("%s does not have: %s" % (theirs, " ".join(left_out)))
        print("%s: %d structures and %d values compared, %d lines, %d differ" % (theirs, len(structures), len(values), len(a), len(different)))
    return wrong


def exported(library):
    path = next(l.split()[-1] for l in subprocess.run(["ldconfig", "-p"], stdout=subprocess.PIPE, text=True).stdout.splitlines()
                if library in l)
    out = subprocess.run(["nm", "-D", "--defined-only", path], check=True, stdout=subprocess.PIPE, text=True).stdout
    return {line.split()[-1].split("@")[0] for line in out.splitlines()}


def driver():
    wrong = []
    for library, prefix, table in (("libcuda.so.1", "cu", "cuda.tsv"), ("libnvidia-ml.so.1", "nvml", "nvml.tsv")):
        have, declared = {n for n in exported(library) if n.startswith(prefix)}, {r[0] for r in rows(table)}
        wrong += ["%s exports %s, which tenant/abi/%s does not declare" % (library, n, table) for n in sorted(have - declared)]
        wrong += ["tenant/abi/%s declares %s, which %s does not export" % (table, n, library) for n in sorted(declared - have)]
    with tempfile.TemporaryDirectory() as tmp:
        names, program = os.path.join(tmp, "names"), os.path.join(tmp, "ask")
        with open(names, "w") as f:
            f.write("\n".join(r[0] for r in rows("cuda.tsv")))
        subprocess.run(["gcc", "-O1", "-o", program, os.path.join(HERE, "ask.c"), "-ldl"], check=True)
        answers = subprocess.run([program, names], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    have = {tuple(a.split()) for a in answers}
    declared = {(r[0], r[1], r[2], r[3]) for r in rows("cuda.tsv") if r[1] != "-"}
    wrong += ["the driver answers %s" % (a,) for a in sorted(have - declared)]
    wrong += ["the driver does not answer %s" % (a,) for a in sorted(declared - have)]
    print("\n".join(wrong + ["%d symbols answered, %d lines differ" % (len(have), len(wrong))]))
    return len(wrong)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "headers":
        sys.exit(1 if headers(sys.argv[2]) else 0)
    if len(sys.argv) == 2 and sys.argv[1] == "driver":
        sys.exit(1 if driver() else 0)
    sys.exit(__doc__)
