#!/usr/bin/env python3
"""Checks that each PAIR of core/, preload/ and libfabric-provider/ says its reason at one of its
places, and that docs/shared-memory.md names no PAIR that is not there.

    memory_model_doc.py ROOT              prints each violation, exit code 1 if there is one
    memory_model_doc.py ROOT --table      prints all pairs, with places and reasons, in Markdown

A tag of the document is the first cell of a table row, in backticks, in a table whose first column
is headed `tag`.
"""

import re
import sys
from pathlib import Path

from layering import PAIR, sources

ROW = re.compile(r"^\|\s*`([^`]+)`\s*\|")
DIRECTORIES = ["core", "preload", "libfabric-provider"]


def comment_after(lines, index, end):
    """What the comment says from column `end` of this line on, with its lines below."""
    text = [lines[index][end:]]
    for line in lines[index + 1:]:
        below = re.match(r"\s*///?\s?(.*)", line)
        if not below or PAIR.search(line):
            break
        text.append(below.group(1))
    return " ".join(" ".join(text).lstrip(":, ").split())


def pairs_of_sources(root):
    """tag -> [(place, reason or "")]"""
    pairs = {}
    for path in (p for directory in DIRECTORIES for p in sources(root / directory)):
        lines = path.read_text(errors="replace").splitlines()
        for index, line in enumerate(lines):
            for match in PAIR.finditer(line):
                pairs.setdefault(match.group(1), []).append(
                    (f"{path.relative_to(root)}:{index + 1}",
                     comment_after(lines, index, match.end())))
    return pairs


def tags_of_document(path):
    """[(tag, line number)]"""
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
    pairs = pairs_of_sources(root)
    for tag, places in sorted(pairs.items()):
        if not any(reason for _, reason in places):
            yield f"{places[0][0]}: PAIR {tag} says its reason nowhere"
    document = root / "docs" / "shared-memory.md"
    for tag, number in tags_of_document(document):
        if tag not in pairs:
            yield f"{document.relative_to(root)}:{number}: no PAIR {tag} in the sources"


def table(root):
    yield "| tag | place | reason |"
    yield "|---|---|---|"
    for tag, places in sorted(pairs_of_sources(root).items()):
        for place, reason in places:
            yield f"| `{tag}` | {place} | {reason.replace('|', chr(92) + '|')} |"


def main():
    root = Path(sys.argv[1]).resolve()
    if "--table" in sys.argv[2:]:
        print("\n".join(table(root)))
        return 0
    violations = list(check(root))
    print("\n".join(violations) or
          f"memory_model_doc: {len(pairs_of_sources(root))} pairs, each with a reason")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
