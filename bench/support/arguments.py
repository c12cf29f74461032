"""What the commands below `clan bench` take alike."""

import argparse
import os
import signal
import sys
from pathlib import Path


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


class Parser(argparse.ArgumentParser):
    """`clan bench NAME`: its description, and whether it pins programs to two cores."""

    def __init__(self, name, description, pins=True, **more):
        super().__init__(prog=f"clan bench {name}", description=description, **more)
        if pins:
            self.add_argument(
                "--cores", type=cores, default=first_cores(), metavar="A,B",
                help="the server's core and the client's (default: the first two allowed)")
        self.add_argument("-o", "--output", type=Path, metavar="DIR",
                          help=f"directory for {name}.md, {name}.json and plots")
        self.add_argument("--clan", help=argparse.SUPPRESS)  # `clan bench` says where it is

    def add_list(self):
        self.add_argument("--list", action="store_true",
                          help="what is measured, and what is wanted of it")

    def add_lengths(self, what, **lengths):
        """--quick, and an option for each of two lengths, of which `what` has the text: (in full,
        in quick)."""
        full, quick = ([pair[i] for pair in lengths.values()] for i in (0, 1))
        self.add_argument("--quick", action="store_true",
                          help=f"{what.format(*quick)} instead of {what.format(*full)}")
        for name, (value, _) in lengths.items():
            self.add_argument(f"--{name}", type=positive, help=f"instead of {value}")
        self.lengths = lengths

    def parse(self):
        """The options; lengths that were not given by --quick, or in full."""
        options = self.parse_args()
        for name, pair in getattr(self, "lengths", {}).items():
            setattr(options, name, getattr(options, name) or pair[options.quick])
        return options

    def chosen(self, text, known, what):
        """The names of --only, or all that are known."""
        names = list(known) if text is None else [name.strip() for name in text.split(",")]
        for name in names:
            if name not in known:
                self.error(f'there is no {what} "{name}"; there are: {", ".join(known)}')
        return names


def end_as_by_interrupt():
    """As ^C: everything that was started ends."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_, number=number: sys.exit(128 + number))
