#!/usr/bin/env python3
"""Which PAIRs have no order that a test would miss: tests/orders/uncovered.txt, which only shrinks.

    uncovered.py ROOT        prints each difference, exit code 1 if there is one
    uncovered.py ROOT --list the lines of uncovered.txt that are needed today

A PAIR is covered when one of its orders, in a header that order_mutants.py weakens, turns a test
red: the orders.* tests run those mutants, and unnoticed.py has the others. An order belongs to the
nearest comment above it, or beside it, that names PAIRs.
"""

import sys
from pathlib import Path

from order_mutants import TARGETS, Mutants
from unnoticed import UNNOTICED

from layering import PAIR, sources  # found by the path that order_mutants.py adds

DIRECTORIES = ["core", "preload", "libfabric-provider", "plugins"]
LIST = "tests/orders/uncovered.txt"


def covered(root, header, unnoticed):
    mutants = Mutants((root / header).read_text())
    for name, tags in zip(mutants.names, mutants.tags):
        if name not in unnoticed:
            yield from tags


def uncovered(root):
    """tag -> the first place that has it"""
    tags = {}
    for path in (path for directory in DIRECTORIES for path in sources(root / directory)):
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            for tag in PAIR.findall(line):
                tags.setdefault(tag, f"{path.relative_to(root)}:{number}")
    for header in TARGETS:
        for tag in covered(root, header, UNNOTICED.get(header, {})):
            tags.pop(tag, None)
    return tags


def listed(root):
    lines = (root / LIST).read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def main():
    root = Path(sys.argv[1]).resolve()
    needed = uncovered(root)
    if "--list" in sys.argv:
        print("\n".join(sorted(needed)))
        return 0
    known = listed(root)
    wrong = [f"{needed[tag]}: PAIR {tag}: no test notices when one of its orders is missing"
             for tag in sorted(set(needed) - known)]
    wrong += [f"{LIST}: {tag} is covered, or there is no such PAIR: take it out"
              for tag in sorted(known - set(needed))]
    print("\n".join(wrong) or f"{len(needed)} PAIRs left without a test of their orders")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
