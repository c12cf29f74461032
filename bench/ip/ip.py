#!/usr/bin/env python3
"""`clan bench ip`: packets between two network namespaces by `clan ip`, beside a bare forwarder of
two processes, loopback, veth, VXLAN, vde2 and tinc, in turns; as root.

The paper's table 2 (pings, one after the other and a flood) and figure 8 (a TCP stream by writes of
each size), round trips of 64 bytes by UDP, and the processor time of all processes beside them.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys

import nbody
import ways
from ways import A, B, HERE, inside

SIZES = (64, 512, 1460, 8192, 65536)
LOAD, PORT = str(HERE / "clan-ip-load"), "5001"


def busy_s():
    """Processor time that the machine has spent."""
    with open("/proc/stat") as file:
        numbers = [int(word) for word in file.readline().split()[1:9]]
    return (sum(numbers) - numbers[3] - numbers[4]) / os.sysconf("SC_CLK_TCK")


def said(*words):
    return subprocess.run(inside(A, *words), check=True, text=True, stdout=subprocess.PIPE,
                          timeout=60).stdout


def pings(address, *more):
    """Average and deviation, as the paper has them, and the median, in us."""
    text = said("ping", "-n", *more, address)
    average, deviation = re.search(r"= [\d.]+/([\d.]+)/[\d.]+/([\d.]+) ms", text).groups()
    times = [float(time) for time in re.findall(r"time=([\d.]+)", text)]
    return [1000 * float(us) for us in (average, deviation, statistics.median(times or [0]))]


def measure(address, options):
    """One turn of a way: figures by their names."""
    if options.nbody:
        return nbody.measure(options.nbody, address)
    row = {}
    row["ping"], row["ping +-"], row["ping p50"] = pings(address, "-c", str(options.pings), "-i",
                                                         str(options.interval))
    row["flood"], row["flood +-"], _ = pings(address, "-q", "-f", "-c", "2000")
    server = A if address.startswith("127.") else B
    with ways.running(inside(server, LOAD, "serve", address, PORT), lines=1):
        before = busy_s()
        trips = said(LOAD, "trips", address, PORT, str(options.seconds)).split()
        row["min us"], row["p50 us"], row["p99 us"] = map(float, trips)
        row["cores"] = (busy_s() - before) / options.seconds
        for size in SIZES:
            before = busy_s()
            rate = float(said(LOAD, "ttcp", address, PORT, str(options.seconds), str(size)))
            row[f"{size} B"] = rate / 1e6
        row["s/GB"] = (busy_s() - before) / (rate * options.seconds / 1e9)
    return row


def parse():
    parser = argparse.ArgumentParser(prog="clan bench ip", description=__doc__)
    parser.add_argument("--clan", default="clan", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each way")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each figure")
    parser.add_argument("--pings", type=int, default=50)
    parser.add_argument("--interval", type=float, default=0.01,
                        help="seconds between pings (the paper: 100 pings, a second between)")
    parser.add_argument("--only", help="ways that have one of these words, with commas")
    parser.add_argument("--nbody", metavar="PROGRAM",
                        help="instead, how much a second rank helps bin/examples/mpi_nbody")
    parser.add_argument("--json", help="a file for all figures")
    return parser.parse_args()


def chosen(options):
    for name, way, program in ways.WAYS:
        if options.only and not any(word in name for word in options.only.split(",")):
            continue
        if program is not None and shutil.which(program) is None:
            print(f"{name}: {program} is not installed", file=sys.stderr)
            continue
        yield name, way


def show(rows, columns, digits):
    width = max(len(name) for name in rows)
    print("".ljust(width), *(column.rjust(12) for column in columns))
    for name, row in rows.items():
        print(name.ljust(width), *(f"{row[column]:12.{digits}f}" for column in columns))
    print()


def main():
    options = parse()
    if os.geteuid() != 0 or not os.path.exists("/dev/net/tun") or not shutil.which("ping"):
        print("clan bench ip: needs root, /dev/net/tun, ip and ping", file=sys.stderr)
        return 77
    turns = {}
    for _ in range(options.rounds):
        for name, way in chosen(options):
            with ways.namespaces(), way(options.clan) as address:
                if not ways.answers(address):
                    print(f"{name}: no packet arrives", file=sys.stderr)
                    continue
                turns.setdefault(name, []).append(measure(address, options))
    if options.json:
        with open(options.json, "w") as file:
            json.dump(turns, file, indent=1)
    rows = {name: {column: statistics.median(turn[column] for turn in all_of)
                   for column in all_of[0]} for name, all_of in turns.items()}
    if options.nbody:
        print(f"n-body: speed-up by a second rank, medians of {options.rounds} turns")
        show(rows, [f"n-body {n}" for n in nbody.PARTICLES], 2)
        return 0
    print(f"medians of {options.rounds} turns\n\nround trips, us (table 2: ping, one after the "
          "other and a flood); processors at work")
    show(rows, ["ping", "ping +-", "ping p50", "flood", "flood +-", "min us", "p50 us", "p99 us",
                "cores"], 1)
    print("a TCP stream by writes of each size, MB/s (figure 8); processor seconds for a GB")
    show(rows, [f"{size} B" for size in SIZES] + ["s/GB"], 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
