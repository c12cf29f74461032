#!/usr/bin/env python3
"""Checks the rules of the tree that a compiler does not: what may include what, and memory-order
pairs.

    layering.py ROOT      prints each violation as file:line: text, exit code 1 if there is one

The direction of includes is read from the table in ROOT/core/README.md, columns `layer | may
include | public headers it owns | its sources also`. A layer is a folder of core/, and a folder
that may be included stands for those in it, too. A public header that no layer owns may be
included by all of them. The folders of public headers are in the table as clan, clan/...
"""

import re
import sys
from pathlib import Path

OUTSIDE = ["preload", "plugins", "libfabric-provider", "tools", "bench", "examples"]
SUFFIXES = {".h", ".hpp", ".cc", ".cpp", ".c"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
PAIR = re.compile(r"//.*?\bPAIR\s+([A-Za-z0-9_][A-Za-z0-9_.\-/]*[A-Za-z0-9_]|[A-Za-z0-9_])")
FENCE = r"fence|barrier"
# The functions of clan/detail/words.h and clan/detail/dekker.h, which have the orders in
# them. All that change a word see what came before as well, but for two.
CHANGES = re.compile(r"\b(?:words|dekker)::(?!load_acquire\b|load\b|value_of\b)\w+")
LOOKS = re.compile(r"\b(?:words|dekker)::(?!store_release\b|announce\b|value_of\b)\w+")
BOTH = r"exchange|fetch_|acq_rel|" + FENCE
STORE = re.compile(rf"\bstore|_store|release|{BOTH}|{CHANGES.pattern}")
LOAD = re.compile(rf"\bload|_load|acquire|{BOTH}|{LOOKS.pattern}")
PAIR_REACH = 3  # lines of code after the tag in which its atomic operation must stand


class LayerTable:
    def __init__(self, readme):
        self.may_include, self.sources_also, self.owner = {}, {}, {}
        in_table = False
        for line in readme.read_text().splitlines():
            cells = [c.strip(" `") for c in line.strip().strip("|").split("|")]
            if not line.startswith("|"):
                in_table = False
            elif cells[:2] == ["layer", "may include"]:
                in_table = True
            elif in_table and not set(cells[0]) <= set("-: "):
                layer, allowed, headers, also = (*cells, "", "")[:4]
                self.may_include[layer] = allowed.split()
                self.sources_also[layer] = also.split()
                self.owner.update(dict.fromkeys(headers.split(), layer))
        if not self.may_include:
            raise SystemExit(f"{readme}: no table 'layer | may include' found")

    def layer(self, folder):
        """The layer that a folder is, or that it is in; None: there is none."""
        while folder and folder not in self.may_include:
            folder = folder.rpartition("/")[0]
        return folder or None

    def allows(self, layer, named, is_source):
        allowed = self.may_include[layer] + (self.sources_also[layer] if is_source else [])
        return named == layer or any(
            named == folder or named.startswith(folder + "/") for folder in allowed)


def sources(directory):
    if not directory.is_dir():
        return []
    return sorted(p for p in directory.rglob("*") if p.suffix in SUFFIXES and p.is_file())


def strip_comments_and_strings(text):
    """The same text, same lines, with comments, strings and characters blanked."""
    pattern = re.compile(
        r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'", re.S)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)


def includes(path):
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1) == "<", match.group(2)


def layer_of_include(target, table):
    """The core layer an include names by path, None if it names none."""
    parts = [p for p in target.split("/") if p not in ("..", ".")]
    if parts and parts[0] == "core":
        parts = parts[1:]
    return None if parts[:1] == ["clan"] else table.layer("/".join(parts[:-1]))


def check_core_includes(root, table):
    for path in sources(root / "core"):
        folder = path.parent.relative_to(root / "core").as_posix()
        public = re.match("include/(clan(/|$).*)", folder)
        own = public and f"{public[1]}/{path.name}".removeprefix("clan/")
        layer = table.layer(public[1] if public else folder)
        if not public and not layer:
            yield path, 1, f"core/{folder} is not a layer of core/README.md"
            continue
        layers = {layer, table.owner.get(own)} - {None}
        for number, _, target in includes(path):
            named = layer_of_include(target, table)
            if public and named:
                yield path, number, f"public header includes the internal header {target}"
                continue
            if target.startswith(".."):
                yield path, number, f"include {target} by its path from core/"
            if target.startswith("clan/"):
                named = table.owner.get(target.removeprefix("clan/"))
                room = table.layer(target.rpartition("/")[0])
                if public and layer and room and not table.allows(layer, room, False):
                    yield path, number, f"layer {layer} may not include {room} ({target})"
            for one in layers - {layer} if public else layers:
                if named and not table.allows(one, named, path.suffix != ".h"):
                    yield path, number, f"layer {one} may not include {named} ({target})"


def may_use_internals(relative):
    return relative.parts[0] == "bench" and relative.stem.endswith("_bench")


def check_outside_includes(root, table):
    for directory in OUTSIDE:
        for path in sources(root / directory):
            if may_use_internals(path.relative_to(root)):
                continue
            for number, _, target in includes(path):
                named = layer_of_include(target, table)
                # A face may have a directory of its own called as a layer is.
                if named and not (path.parent / target).is_file():
                    yield path, number, f"includes the core internal {target}"
                elif "core/" in target or (path.parent / target).resolve().is_relative_to(
                        (root / "core").resolve()):
                    yield path, number, f"includes from core by path: {target}"


def check_pairs(root):
    sites = {}
    for directory in ["core", *OUTSIDE]:
        for path in sources(root / directory):
            text = path.read_text(errors="replace")
            lines, code = text.splitlines(), strip_comments_and_strings(text).splitlines()
            for index, line in enumerate(lines):
                for tag in PAIR.findall(line):
                    following = [c for c in code[index + 1:index + 20] if c.strip()][:PAIR_REACH]
                    near = "\n".join([code[index], *following])
                    sites.setdefault(tag, []).append(
                        (path, index + 1, bool(STORE.search(near)), bool(LOAD.search(near))))
    for tag, found in sorted(sites.items()):
        path, number = found[0][:2]
        stores = [s for s in found if s[2]]
        loads = [s for s in found if s[3]]
        if len(found) < 2:
            yield path, number, f"PAIR {tag} occurs once: where is the other side?"
        elif not stores:
            yield path, number, f"PAIR {tag}: no store, read-modify-write or release near any tag"
        elif not loads:
            yield path, number, f"PAIR {tag} has no load or acquire near any tag"
        elif len(stores) == 1 and stores == loads:
            yield path, number, f"PAIR {tag}: one site is both sides"


def check_volatile(root):
    for path in sources(root / "core"):
        code = strip_comments_and_strings(path.read_text(errors="replace"))
        for number, line in enumerate(code.splitlines(), 1):
            if re.search(r"\bvolatile\b",
                         re.sub(r"\b(__asm__|asm)\s+(volatile|__volatile__)", "", line)):
                yield path, number, "volatile: use std::atomic"


def check_tree(root):
    table = LayerTable(root / "core" / "README.md")
    violations = [*check_core_includes(root, table), *check_outside_includes(root, table),
                  *check_pairs(root), *check_volatile(root)]
    return [f"{path.relative_to(root)}:{number}: {text}" for path, number, text in violations]


def main():
    root = Path(sys.argv[1]).resolve()
    violations = check_tree(root)
    print("\n".join(violations) or
          f"layering: {len(sources(root / 'core'))} core files, no violation")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
