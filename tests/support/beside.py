#!/usr/bin/env python3
"""Runs a program beside an endless computation on each processor, and ends as it does.

    beside.py PROGRAM [ARGUMENT...]
"""

import contextlib
import os
import subprocess
import sys


@contextlib.contextmanager
def computations():
    """An endless one on each processor."""
    busy = []
    try:
        for cpu in os.sched_getaffinity(0):
            busy.append(subprocess.Popen(["sh", "-c", "while :; do :; done"]))
            os.sched_setaffinity(busy[-1].pid, {cpu})
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()


if __name__ == "__main__":
    with computations():
        ended = subprocess.run(sys.argv[1:], check=False).returncode
    sys.exit(ended if ended >= 0 else 128 - ended)
