#!/usr/bin/env python3
"""Runs a command with a filter of system calls (seccomp) that kills, as systemd's SystemCallFilter=
does.

    filter.py deny|allow CALL,… COMMAND [ARGUMENT]…
    filter.py refuse CALL,… COMMAND [ARGUMENT]…         EPERM instead, as Docker's default profile
    filter.py families FAMILY,… COMMAND [ARGUMENT]…     refuses sockets of these (numbers), as
                                                        RestrictAddressFamilies=

x86-64 only. `allow` adds what systemd always allows, by `systemd-analyze syscall-filter`; sets are
written @NAME.
"""

import ctypes
import errno
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, MODE_FILTER = 22, 38, 2
KILL_PROCESS, ALLOW, ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
FIRST_ARGUMENT = 16  # where in struct seccomp_data


def numbers():
    return {name: int(number) for name, number in
            re.findall(r"#define __NR_(\w+) (\d+)", HEADER.read_text())}


def expand(names):
    """Sets to calls."""
    found = set()
    for name in names:
        if not name.startswith("@"):
            found.add(name)
            continue
        text = subprocess.run(["systemd-analyze", "syscall-filter", "--no-pager", name], check=True,
                              capture_output=True, text=True).stdout
        found |= expand(line.strip() for line in text.splitlines()[1:]
                        if line.strip() and "#" not in line)
    return found


def families(refused):
    code = [(LOAD, 0, 0, 0), (EQUAL, 0, 1 + 2 * len(refused), numbers()["socket"]),
            (LOAD, 0, 0, FIRST_ARGUMENT)]
    for family in refused:
        code += [(EQUAL, 0, 1, int(family)), (RETURN, 0, 0, ERRNO | errno.EAFNOSUPPORT)]
    return code + [(RETURN, 0, 0, ALLOW)]


def program(kind, calls):
    if kind == "families":
        return families(calls)
    known = numbers()
    listed = [known[name] for name in sorted(calls) if name in known]
    yes, no = {"deny": (KILL_PROCESS, ALLOW), "refuse": (ERRNO | errno.EPERM, ALLOW),
               "allow": (ALLOW, KILL_PROCESS)}[kind]
    code = [(LOAD, 0, 0, 0)]
    for number in listed:
        code += [(EQUAL, 0, 1, number), (RETURN, 0, 0, yes)]
    return code + [(RETURN, 0, 0, no)]


def main():
    kind, names, *command = sys.argv[1:]
    calls = expand(names.split(",") + (["@default"] if kind == "allow" else []))
    code = b"".join(struct.pack("<HBBI", *instruction) for instruction in program(kind, calls))
    buffer = ctypes.create_string_buffer(code)
    filter_program = struct.pack("<HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, MODE_FILTER,
                                                                 filter_program, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
