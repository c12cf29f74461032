#!/usr/bin/env python3
"""`clan bench ip`: packets between two network namespaces by `clan ip`, beside a bare forwarder of
two processes, loopback, veth, VXLAN, vde2 and tinc, in turns; as root.

The paper's table 2 (pings, one after the other and a flood) and figure 8 (a TCP stream by writes of
each size), round trips of 64 bytes by UDP, and the processor time of all processes beside them.
"""

import os
import re
import shutil
import statistics
import subprocess
import sys

import arguments
import report
import ways
from hosts import inside, namespaces
from ways import A, B, HERE, WIRE

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
        return ways.nbody(options.nbody, address)
    row = {}
    row["ping"], row["ping +-"], row["ping p50"] = pings(address, "-c", str(options.pings), "-i",
                                                         str(options.interval))
    flood = pings(address, "-q", "-f", "-c", str(40 * options.pings))
    row["flood"], row["flood +-"], _ = flood
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
    parser = arguments.Parser("ip", __doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each way")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each figure")
    parser.add_argument("--pings", type=int, default=50)
    parser.add_argument("--interval", type=float, default=0.01,
                        help="seconds between pings (the paper: 100 pings, a second between)")
    parser.add_argument("--only", help="ways of these names or with these words, with commas")
    parser.add_argument("--nbody", metavar="PROGRAM",
                        help="instead, how much a second rank helps bin/examples/mpi_nbody")
    return parser.parse()


def chosen(options):
    names = [name for name, _, _ in ways.WAYS]
    words = options.only.split(",") if options.only else [""]
    for name, way, program in ways.WAYS:
        if not any(word == name if word in names else word in name for word in words):
            continue
        if program is not None and shutil.which(program) is None:
            print(f"{name}: {program} is not installed", file=sys.stderr)
            continue
        yield name, way


# Each figure's item, benchmark, x, unit, and whether more is better.
TRIPS = ("ping", "ping +-", "ping p50", "flood", "flood +-", "min us", "p50 us", "p99 us")
TITLES = {"round trips": "us (table 2: ping, one after the other and a flood); processors at work",
          "stream": "a TCP stream by writes of each size, MB/s (figure 8); processor seconds for "
          "a GB", "nbody": "n-body: speed-up by a second rank"}


def row_of(way, figure, samples):
    """(item, row)"""
    common = {"text": way, "samples": samples, "value": statistics.median(samples)}
    if figure.startswith("n-body"):
        return "nbody", report.Row("nbody", figure, int(figure.split()[1]), unit="times",
                                   x_name="particles", higher=True, **common)
    if figure in TRIPS or figure == "cores":
        unit = "us" if figure in TRIPS else ""
        return "round trips", report.Row("round trip", figure, 64, unit=unit, **common)
    size = int(figure.split()[0]) if figure.endswith(" B") else SIZES[-1]
    return "stream", report.Row("stream", figure, size, unit="" if figure == "s/GB" else "MB/s",
                                higher=figure != "s/GB", **common)


def main():
    options = parse()
    if os.geteuid() != 0 or not os.path.exists("/dev/net/tun") or not shutil.which("ping"):
        print("clan bench ip: needs root, /dev/net/tun, ip and ping", file=sys.stderr)
        return 77
    results = report.Report("ip", "`clan ip`", report.describe_machine(HERE, options.cores),
                            f"medians of {options.rounds} turns of {options.seconds:g} s")
    turns = {}
    for _ in range(options.rounds):
        for name, way in chosen(options):
            with namespaces((A, B), WIRE), way(options.clan or "clan") as address:
                if not ways.answers(address):
                    results.failed[name] = "no packet arrives"
                    continue
                for figure, number in measure(address, options).items():
                    turns.setdefault((name, figure), []).append(number)
    items = {}
    for (name, figure), samples in turns.items():
        item, row = row_of(name, figure, samples)
        items.setdefault(item, report.Item(item, TITLES[item])).rows.append(row)
    for item in items.values():
        results.add(item)
    return results.end(options.output)


if __name__ == "__main__":
    sys.exit(main())
