#!/usr/bin/env python3
"""A library needs the libraries that its README names, and no other.

    needed_libraries.py READELF LIBRARY NAME...

NAME: up to ".so", as libc. The dynamic loader and, of libc, libm are needed by everybody.
"""

import re
import subprocess
import sys

OF_EVERYBODY = {"ld-linux-x86-64", "ld-linux-aarch64", "libm"}


def needed(readelf, library):
    text = subprocess.run([readelf, "-dW", library], check=True, capture_output=True,
                          text=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.*?)\.so", text))


def main():
    readelf, library, *names = sys.argv[1:]
    found = needed(readelf, library)
    if "libc" not in found:
        print(f"{library}: {readelf} names no library that it needs")
        return 1
    wrong = found - set(names) - OF_EVERYBODY
    for name in sorted(wrong):
        print(f"{library} needs {name}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
