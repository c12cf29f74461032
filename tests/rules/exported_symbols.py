#!/usr/bin/env python3
"""libclan.so exports the namespace clan (or C names clan_*) and nothing else.

    exported_symbols.py NM LIBRARY

Weak instances of standard templates are tolerated: every C++ library has them.
"""

import re
import subprocess
import sys

# Mangled: functions and data, v-tables, type information, guards and thunks of clan::…
OURS = re.compile(r"^_Z(?:T[VTISCcvh][hv0-9n_]*|G[VR])?Z*N[rVKRO]*4clan|^clan_[a-z0-9_]+$")
# The standard library's, among them operator new and delete.
STANDARD = re.compile(
    r"^_Z(?:T[VTIS]|G[VR])?Z*(?:N[rVKRO]*)?(?:S[tasiod]|9__gnu_cxx)|^_Z(?:n[wa]|d[la])")


def symbols(nm, library):
    text = subprocess.run([nm, "-D", "--defined-only", "--format=posix", library], check=True,
                          capture_output=True, text=True).stdout
    for line in text.splitlines():
        name, kind = line.split()[:2]
        yield name, kind


def demangle(names):
    return subprocess.run(["c++filt"], input="\n".join(names), check=True, capture_output=True,
                          text=True).stdout.splitlines()


def main():
    nm, library = sys.argv[1:3]
    found = [(name.split("@")[0], kind) for name, kind in symbols(nm, library)]
    found = [(name, kind) for name, kind in found if kind != "A"]
    foreign = []
    for (name, kind), readable in zip(found, demangle([n for n, _ in found])):
        if OURS.match(name) or (kind in "WVu" and STANDARD.match(name)):
            continue
        foreign.append(f"{kind} {readable}")
    ours = sum(bool(OURS.match(name)) for name, _ in found)
    if foreign:
        print(f"{library} exports names that are not CLAN's:", *foreign, sep="\n  ")
    if not ours:
        print(f"{library} exports nothing of CLAN: is CLAN_EXPORT missing?")
    if foreign or not ours:
        return 1
    print(f"{ours} symbols of clan, {len(found) - ours} template instances")
    return 0


if __name__ == "__main__":
    sys.exit(main())
