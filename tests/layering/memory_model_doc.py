#!/usr/bin/env python3
"""Checks that docs/memory-model.md has every PAIR tag of core/, preload/ and libfabric-provider/,
and no other.

    memory_model_doc.py ROOT      prints each difference, exit code 1 if there is one

A tag of the document is the first cell of a table row, in backticks, in a table whose first column
is headed `tag`.
"""

import re
import sys
from pathlib import Path

from layering import PAIR, sources

ROW = re.compile(r"^\|\s*`([^`]+)`\s*\|")


DIRECTORIES = ["core", "preload", "libfabric-provider"]


def tags_of_sources(root):
    """tag -> the first place that has it"""
    tags = {}
    for path in (p for directory in DIRECTORIES for p in sources(root / directory)):
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            for tag in PAIR.findall(line):
                tags.setdefault(tag, f"{path.relative_to(root)}:{number}")
    return tags


def tags_of_document(path):
    """tag -> line number; a tag in two rows is returned twice"""
    found, in_table = [], False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.startswith("|"):
            in_table = False
        elif line.split("|")[1].strip() == "tag":
            in_table = True
        elif in_table and (match := ROW.match(line)):
            found.append((match.group(1), number))
    return found


def check(root):
    document = root / "docs" / "memory-model.md"
    name = document.relative_to(root)
    tags, rows = tags_of_sources(root), tags_of_document(document)
    described = {}
    for tag, number in rows:
        if tag in described:
            yield f"{name}:{number}: {tag} is described twice, first in line {described[tag]}"
        described.setdefault(tag, number)
        if tag not in tags:
            yield f"{name}:{number}: no PAIR {tag} in the sources"
    for tag, place in sorted(tags.items()):
        if tag not in described:
            yield f"{place}: PAIR {tag} is not in {name}"


def main():
    root = Path(sys.argv[1]).resolve()
    violations = list(check(root))
    print("\n".join(violations) or
          f"memory_model_doc: {len(tags_of_sources(root))} pairs described")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
