#!/usr/bin/env python3
"""Which PAIRs have no order that a test would miss: tests/model/orders/uncovered.txt, which only
shrinks.

    uncovered.py ROOT        prints each difference, exit code 1 if there is one
    uncovered.py ROOT --list the lines of uncovered.txt that are needed today

A PAIR is covered when one of its orders, in a source that order_mutants.py weakens, turns a test
red: the orders.* tests run those mutants, and unnoticed.py has the others. It is, too, when each of
its operations is a call of clan/detail/words.h or clan/detail/dekker.h, at least one that
changes the word and one that sees it: those two are weakened as well. An operation belongs to the
nearest comment above it, or beside it, that names PAIRs.

And each such comment belongs to an operation that has an order: one that has become relaxed, or is
gone, where it is called, is found so.
"""

import re
import sys
from pathlib import Path

from order_mutants import FENCE, ORDER, TARGETS, Mutants, pairs_at
from unnoticed import UNNOTICED

# Found by the path that order_mutants.py adds.
from layering import CHANGES, LOOKS, PAIR, sources, strip_comments_and_strings

DIRECTORIES = ["core", "preload", "libfabric-provider", "plugins"]
LIST = "tests/model/orders/uncovered.txt"
# An operation with an order, or a call of a function that has it in it, where it has a PAIR, too.
ORDERED = re.compile(rf"{ORDER.pattern}|{CHANGES.pattern}|{LOOKS.pattern}|[Ff]ence|__sync_|"
                     r"\b(?:add_state|state_of|has_drained|publish)\(|\bload\(tail_order\)")
REACH = 4  # lines of code from a comment to its operation


def covered(root, header, unnoticed):
    mutants = Mutants((root / header).read_text())
    for name, tags in zip(mutants.names, mutants.tags):
        if name not in unnoticed:
            yield from tags


def by_calls(root):
    """Tags of which both sides are calls of functions that have the orders in them."""
    changed, seen, explicit = set(), set(), set()
    for path in (path for directory in DIRECTORIES for path in sources(root / directory)):
        lines = path.read_text(errors="replace").splitlines()
        for number, line in enumerate(lines):
            code = line.partition("//")[0]
            for pattern, tags in ((CHANGES, changed), (LOOKS, seen), (ORDER, explicit),
                                  (FENCE, explicit)):
                if pattern.search(code):
                    tags |= pairs_at(lines, number)
    return changed & seen - explicit


def operation_of(lines, code, at):
    """The code that the comment in line `at` is about: its statement, or what follows."""
    first = at
    while code[first].strip() and first > 0 and code[first - 1].rstrip()[-1:] not in ("", *";{}"):
        first -= 1
    found = []
    for number in range(first, len(lines)):
        if number > at and (len(found) == REACH or PAIR.search(lines[number])):
            break
        if code[number].strip():
            found.append(code[number])
    return "\n".join(found)


def without_order(root):
    for path in (path for directory in DIRECTORIES for path in sources(root / directory)):
        text = path.read_text(errors="replace")
        lines, code = text.splitlines(), strip_comments_and_strings(text).splitlines()
        for at, line in enumerate(lines):
            operation = operation_of(lines, code, at) if PAIR.search(line) else ""
            # none: the next comment is about the same
            if operation and not ORDERED.search(operation):
                yield f"{path.relative_to(root)}:{at + 1}: an order is missing: {line.strip()}"


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
    for tag in by_calls(root):
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
    wrong += without_order(root)
    print("\n".join(wrong) or f"{len(needed)} PAIRs left without a test of their orders")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
