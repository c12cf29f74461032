"""`clan bench crowd`: pairs of processes that ask and answer each other on fewer cores than they
would like, over TCP, AF_UNIX and TCP under `clan run`, alone and beside computations.

Every figure is the median of new processes in random order, since the place that the scheduler
first gives the two ends sticks: `near` is the share of trips whose ends were on one core, and
decides as much as the carrier does.
"""

import itertools
import os
import random
import re
import statistics
import subprocess
import sys
from pathlib import Path

import arguments
import report

HERE = Path(__file__).resolve().parent
LOAD = HERE / "clan-crowd-load"
HOGS = {"none": "alone", "0": "nice 0", "19": "nice 19"}
KEYS = ("rate", "p50", "p99", "max", "cpu", "near", "hogs")   # as the load program prints them
# Title, unit, what a sample is divided by, and whether more is better.
FIGURES = {
    "rate": ("trips a second, least / median; processor time of both ends for a trip in us",
             "k/s", 1e3, True),
    "p50": ("a trip, median", "us", 1, False), "p99": ("a trip, 99th percentile", "us", 1, False),
    "max": ("the longest trip", "us", 1, False),
    "near": ("share of trips whose ends were on one core", "", 1, False),
    "hogs": ("share of the cores' time that the computations had", "", 1, True)}


def rows(quick):
    for how, pairs, cores, hogs in itertools.product(
            ("epoll", "block"), (1, 4) if quick else (1, 2, 4, 8), ("any", "one"), HOGS):
        if cores == "any" or pairs == 1 or not quick:
            yield how, pairs, cores, hogs


def text_of(row):
    how, pairs, cores, hogs = row
    where = "unpinned" if cores == "any" else "one core"
    return f"{how} {pairs} pair{'s' if pairs > 1 else ''} {where} {HOGS[hogs]}"


def measure(row, column, options):
    how, pairs, cores, hogs = row
    family, clan = options.columns[column]
    command = ([clan, "run"] if clan else []) + [
        str(LOAD), family, how, str(pairs), cores, hogs, str(options.seconds)
    ]
    # A session of its own, and all of it in one: a nice value counts only within a session.
    done = subprocess.run(command, capture_output=True, text=True, timeout=60,
                          start_new_session=True, check=False)
    words = done.stdout.split()
    if done.returncode != 0 or words[0::2] != list(KEYS):
        sys.exit(f"{' '.join(command)}: {done.stderr or done.stdout}")
    return dict(zip(words[0::2], map(float, words[1::2])))


def item_of(key, samples, wanted, options):
    """The table of one figure: a row of the table for each of `wanted`."""
    title, unit, scale, higher = FIGURES[key]
    item = report.Item(key, title)
    for row in wanted:
        text, medians = text_of(row), {}
        for column in options.columns:
            values = [one[key] / scale for one in samples[row, column]]
            medians[column] = statistics.median(values)
            item.rows.append(report.Row(text, column, row[1], medians[column], unit, "pairs",
                                        higher, min(values), max(values), text=text,
                                        samples=values))
            if key == "rate":
                item.rows[-1].cpu = statistics.median(one["cpu"] for one in samples[row, column])
        if key == "rate":
            item.lines.append(report.Line(text, ratios={
                f"{mine}/{base}": [medians[mine] / medians[base]]
                for mine in medians for base in ("tcp", "unix") if mine not in ("tcp", "unix")}))
    return item


def parse():
    parser = arguments.Parser("crowd", __doc__.split("\n\n")[0], pins=False)
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds: two minutes")
    parser.add_argument("--only", default="", metavar="REGEX", help="rows whose name matches")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="of one figure")
    parser.add_argument("--also", action="append", default=[], metavar="NAME=CLAN",
                        help="another build's `clan`, measured in the same rounds")
    parser.add_argument("--list", action="store_true", help="names of the rows")
    options = parser.parse()
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.seconds = options.seconds or (0.3 if options.quick else 0.5)
    options.columns = {"tcp": ("tcp", None), "unix": ("unix", None),
                       "clan": ("tcp", options.clan or "clan")}
    for name, clan in (also.split("=", 1) for also in options.also):
        options.columns[name] = ("tcp", clan)
    return options


def main():
    options = parse()
    wanted = [row for row in rows(options.quick) if re.search(options.only, text_of(row))]
    if options.list:
        print("\n".join(map(text_of, wanted)))
        return 0
    if len(os.sched_getaffinity(0)) != 2:
        print("warning: not two cores; every row is another one elsewhere", file=sys.stderr)
    results = report.Report(
        "crowd", "Pairs of processes on few cores",
        report.describe_machine(HERE, sorted(os.sched_getaffinity(0))),
        f"{options.rounds} rounds of {options.seconds:g} s, new processes each, in random order")
    samples = {(row, column): [] for row in wanted for column in options.columns}
    for _ in range(options.rounds):
        for row, column in random.sample(list(samples), len(samples)):
            samples[row, column].append(measure(row, column, options))
    for key in FIGURES:
        results.add(item_of(key, samples, wanted, options))
    return results.end(options.output)


if __name__ == "__main__":
    sys.exit(main())
