"""What the commands below `clan bench` take alike."""

import argparse
import os
import signal
import sys


def cores(text):
    allowed = os.sched_getaffinity(0)
    try:
        wanted = [int(word) for word in text.split(",")]
    except ValueError:
        wanted = []
    if len(wanted) != 2 or set(wanted) - allowed:
        raise argparse.ArgumentTypeError(
            f'"{text}" is not two of the cores {sorted(allowed)}, as in 0,1')
    return wanted


def first_cores():
    allowed = sorted(os.sched_getaffinity(0))
    return [allowed[0], allowed[min(1, len(allowed) - 1)]]


def positive(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'"{text}" is not a whole number, at least 1')
    return int(text)


def end_as_by_interrupt():
    """As ^C: everything that was started ends."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(128 + signal.SIGHUP))
