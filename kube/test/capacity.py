"""Adds up what was allocated of each device, from what kubectl get resourceslices,resourceclaims -A -o json prints.

    python3 capacity.py FILE

Exit status: 1 if a device has less of a capacity than was allocated of it, or if a device was allocated that there is not.
It prints how many claims and devices there are and how many devices are used, as JSON.
"""

import collections
import fractions
import json
import re
import sys

SUFFIXES = {"": 1, "m": fractions.Fraction(1, 1000), "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
            "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def quantity(text):
    """The number that a quantity of Kubernetes is."""
    number, suffix = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text)).groups()
    return fractions.Fraction(number) * SUFFIXES[suffix]


def main(path):
    with open(path, encoding="utf-8") as f:
        items = json.load(f)["items"]
    has = {}
    for one in items:
        if one["kind"] == "ResourceSlice":
            for device in one["spec"].get("devices", []):
                key = one["spec"]["driver"], one["spec"]["pool"]["name"], device["name"]
                has[key] = {name: quantity(c["value"]) for name, c in device.get("capacity", {}).items()}
    given, claims = collections.defaultdict(collections.Counter), 0
    for one in items:
        results = one.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
        claims += bool(results)
        for r in results:
            for name, amount in r.get("consumedCapacity", {}).items():
                given[r["driver"], r["pool"], r["device"]][name] += quantity(amount)
    wrong = [f"{'/'.join(key)}: {name}: {amount} of {has.get(key, {}).get(name, 0)}"
             for key, amounts in given.items() for name, amount in amounts.items()
             if amount > has.get(key, {}).get(name, 0)]
    if wrong:
        sys.exit("\n".join(wrong))
    print(json.dumps({"claims": claims, "devices": len(has), "used": len(given)}))


main(sys.argv[1])
