#!/usr/bin/env python3
"""Runs a command of which nothing is left when it ends, or when a signal ends this process.

    leash.py COMMAND...

Orphans below the command become children of this process, whatever groups and sessions they have
made. On SIGINT, SIGTERM or SIGHUP the command gets SIGTERM, and all below it are interrupted, and
killed when they go on. Exit code: the command's, or 130.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time

from program_runner import descendants

PR_SET_CHILD_SUBREAPER = 36
GRACE = 3  # seconds for what cleans up behind itself
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Told(Exception):
    """This process is to end."""


def told(*_):
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise Told


def end_all(number, but=()):
    """Sends `number` to all below this process, `but` these, and kills those that go on."""
    begin = time.monotonic()
    while time.monotonic() < begin + 3 * GRACE:  # zombies may have a parent that does not look
        left = set(descendants(os.getpid())) - set(but)
        if not left:
            break
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        number = signal.SIGKILL if time.monotonic() > begin + GRACE else 0
        time.sleep(0.02)


def run(command):
    """Its exit code."""
    started = os.posix_spawnp(command[0], command, os.environ)
    try:
        while True:
            pid, status = os.wait()
            if pid == started:
                return os.waitstatus_to_exitcode(status)
    except Told:
        with contextlib.suppress(ProcessLookupError):
            os.kill(started, signal.SIGTERM)
        end_all(signal.SIGINT, but={started})
        return 130


def main():
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in SIGNALS:
        signal.signal(number, told)
    code = run(sys.argv[1:])
    end_all(signal.SIGTERM)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
