"""`clan bench crowd`: pairs of processes that ask and answer each other on fewer cores than they
would like, over TCP, AF_UNIX and TCP under `clan run`, alone and beside computations.

Every figure is the median of new processes in random order, since the place that the scheduler
first gives the two ends sticks: `near` is the share of trips whose ends were on one core, and
decides as much as the carrier does.
"""

import argparse
import itertools
import json
import os
import random
import re
import statistics
import subprocess
import sys
from pathlib import Path

LOAD = Path(__file__).resolve().parent / "clan-crowd-load"
HOGS = {"none": "alone", "0": "nice 0", "19": "nice 19"}
KEYS = ("rate", "p50", "p99", "max", "cpu", "near", "hogs")


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
        str(options.load), family, how, str(pairs), cores, hogs, str(options.seconds)
    ]
    # A session of its own, and all of it in one: a nice value counts only within a session.
    done = subprocess.run(command, capture_output=True, text=True, timeout=60,
                          start_new_session=True, check=False)
    words = done.stdout.split()
    if done.returncode != 0 or words[0::2] != list(KEYS):
        sys.exit(f"{' '.join(command)}: {done.stderr or done.stdout}")
    return dict(zip(words[0::2], map(float, words[1::2])))


def line(text, name, figures, base):
    f = {key: statistics.median(one[key] for one in figures) for key in KEYS}
    spread = [one["rate"] for one in figures]
    ratio = [f"{f['rate'] / statistics.median(b['rate'] for b in of):6.2f}" for of in base]
    cpu = f["cpu"] / statistics.median(b["cpu"] for b in base[0])
    return (f"{text:34} {name:8} {f['rate'] / 1e3:8.1f} {min(spread) / 1e3:7.1f} "
            f"{max(spread) / 1e3:7.1f} {' '.join(ratio)} {f['p50']:7.1f} {f['p99']:8.1f} "
            f"{f['cpu']:6.1f} {cpu:5.2f} {f['near']:5.2f} {f['hogs']:5.2f}")


def arguments():
    parser = argparse.ArgumentParser(prog="clan bench crowd", description=__doc__.split("\n\n")[0])
    parser.add_argument("--clan", default="clan", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds: two minutes")
    parser.add_argument("--only", default="", metavar="REGEX", help="rows whose name matches")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="of one figure")
    parser.add_argument("--also", action="append", default=[], metavar="NAME=CLAN",
                        help="another build's `clan`, measured in the same rounds")
    parser.add_argument("--list", action="store_true", help="names of the rows")
    parser.add_argument("-o", "--output", type=Path, help="file for every sample, in JSON")
    options = parser.parse_args()
    options.load = LOAD
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.seconds = options.seconds or (0.3 if options.quick else 0.5)
    options.columns = {"tcp": ("tcp", None), "unix": ("unix", None), "clan": ("tcp", options.clan)}
    for name, clan in (also.split("=", 1) for also in options.also):
        options.columns[name] = ("tcp", clan)
    return options


def main():
    options = arguments()
    wanted = [row for row in rows(options.quick) if re.search(options.only, text_of(row))]
    if options.list:
        print("\n".join(map(text_of, wanted)))
        return
    if len(os.sched_getaffinity(0)) != 2:
        print("warning: not two cores; every row is another one elsewhere", file=sys.stderr)
    samples = {(row, column): [] for row in wanted for column in options.columns}
    for _ in range(options.rounds):
        for row, column in random.sample(list(samples), len(samples)):
            samples[row, column].append(measure(row, column, options))
    print(f"{'':43} {'k/s':>8} {'least':>7} {'most':>7} {'of tcp':>6} {'unix':>6} {'p50 us':>7} "
          f"{'p99':>8} {'CPU':>6} {'of':>5} {'near':>5} {'hogs':>5}")
    for row in wanted:
        for column in options.columns:
            print(line(text_of(row), column, samples[row, column],
                       (samples[row, "tcp"], samples[row, "unix"])))
    if options.output is not None:
        options.output.write_text(json.dumps(
            {f"{text_of(row)}, {column}": figures for (row, column), figures in samples.items()}))


if __name__ == "__main__":
    main()
