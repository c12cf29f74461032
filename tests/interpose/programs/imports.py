#!/usr/bin/env python3
"""No call inside libclan-preload.so can land in a function of the program.

    imports.py READELF NM LIBRARY

A name that the library looks up when it is loaded is found in the program first. So it looks up
none that it defines itself, which the linker is to bind (-Bsymbolic), and of the C library's only
those named here: they make no system call that a program would want to see, or a program that
defines them means everybody (malloc). System calls belong into preload/calls/libc_bindings.cc or to
clan::sys.
"""

import re
import subprocess
import sys

ALLOWED = set("""
    malloc calloc realloc free
    memcpy memmove memset memcmp memchr memmem explicit_bzero
    strlen strnlen strcmp strncmp strchr strrchr strstr
    strspn strcspn strdup strtol strtoul strtoull
    snprintf vsnprintf sprintf vasprintf __vasprintf_chk __isoc99_sscanf inet_ntop strerror gettext
    atoi htonl htons ntohs __cmsg_nxthdr
    getenv unsetenv environ sigaddset sigfillset sched_getcpu __rseq_offset __rseq_size
    dlsym dladdr pthread_create pthread_detach pthread_mutex_lock pthread_mutex_unlock
    pthread_sigmask
    __register_atfork __cxa_finalize __cxa_at_quick_exit
    __errno_location __tls_get_addr __libc_single_threaded
    fileno fopencookie fflush ftrylockfile funlockfile __fpending
    freeaddrinfo abort __chk_fail
    stderr fprintf fputs fputc fwrite
    __gmon_start__ _ITM_deregisterTMCloneTable _ITM_registerTMCloneTable __popcountdi2
""".split())  # the line with stderr: the C++ library's last words before it aborts
UNWINDER = re.compile(r"_Unwind_\w+")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def looked_up(readelf, library):
    """Names in relocations."""
    for line in run(readelf, "-rW", library).splitlines():
        fields = line.split()
        # offset, info, type, value, name@version + addend
        if len(fields) >= 5 and fields[2].startswith("R_") and not fields[2].endswith("RELATIVE"):
            yield fields[4].split("@")[0]


def defined(nm, library):
    for line in run(nm, "-D", "--defined-only", "--format=posix", library).splitlines():
        yield line.split()[0].split("@")[0]


def main():
    readelf, nm, library = sys.argv[1:4]
    names = set(looked_up(readelf, library))
    exported = set(defined(nm, library))
    assert {"malloc", "dlsym"} <= names and {"read", "__read", "sigaction"
                                             } <= exported, "nothing was read"
    own = sorted(names & exported)
    foreign = sorted(n for n in names - exported - ALLOWED if not UNWINDER.fullmatch(n))
    mangled = sorted(n for n in exported if n.startswith("_Z"))
    if own:
        print("calls of the library to itself that a program can take over:", *own, sep="\n  ")
    if foreign:
        print("calls to functions that a program may define:", *foreign, sep="\n  ")
    if mangled:
        print("names of C++ that are exported:", *mangled, sep="\n  ")
    print(f"{len(names)} names looked up, {len(exported)} defined")
    return 1 if own or foreign or mangled else 0


if __name__ == "__main__":
    sys.exit(main())
