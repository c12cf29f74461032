"""`clan bench apps`: programs nobody here wrote, over stock TCP and over CLAN in turns.

See table.py for what is run and what is wanted, bench/README.md for how to read it.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import arguments
import idle
import late
import plot
import processes
import report
import sockmap
import table

HERE = Path(__file__).resolve().parent
LEGEND = """Each figure is the median. Ratios are pair by pair, in turns: median (smallest..
largest). `sockmap`: stock, with a BPF program in the kernel that takes what is sent past the stack.
`processors`: what server and load together had of them, on average, with stock and with CLAN."""

# Rows that are not a load in turns.
SPECIAL = {
    "idle-connections": (idle.idle_connections,
                         "10,000 idle connections: memory, time of an event loop"),
    "idle": (idle.idle_processes, "an idle redis with 50 connections: CPU time and wake-ups"),
    "after-silence": (idle.after_silence,
                      "connections that carried 4 MB and fell silent: memory, first round trip"),
    "late": (late.late_pipe, "a pipe in a set with a connection: how late it is reported"),
}


def row_names():
    return [row.name for row in table.ROWS] + list(SPECIAL)


def print_list():
    width = max(map(len, row_names()))
    for row in table.ROWS:
        for i, bar in enumerate(row.bars):
            print(
                f"{row.name if i == 0 else '':<{width}}  {bar.text}: at least {bar.limit:g} times")
    for name, (_, text) in SPECIAL.items():
        print(f"{name:<{width}}  {text}")


def parse():
    parser = argparse.ArgumentParser(
        prog="clan bench apps",
        description="redis, nginx, memcached, PostgreSQL, iperf3 and sockperf, "
        "over stock TCP and under `clan run` in turns: how many times as good, and how good it "
        "should be."
    )
    parser.add_argument("--list", action="store_true", help="what is run, and what is wanted of it")
    parser.add_argument("--only", metavar="NAME,...", help="only these rows")
    parser.add_argument("--quick", action="store_true", help="3 pairs of 1 s each")
    parser.add_argument("--pairs", type=arguments.positive, help="pairs of runs per row (5)")
    parser.add_argument("--seconds", type=arguments.positive, help="length of one run (2)")
    parser.add_argument("--cores", type=arguments.cores, metavar="A,B",
                        help="the server's core and the client's (default: the first two allowed)")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR",
                        help="directory for apps.md, apps.json and apps.svg")
    parser.add_argument("--clan", help=argparse.SUPPRESS)  # `clan bench` says where it is
    options = parser.parse_args()
    options.names = options.only.split(",") if options.only else row_names()
    if unknown := [name for name in options.names if name not in row_names()]:
        parser.error(f"there is no row \"{unknown[0]}\"; `clan bench apps --list` has all")
    options.pairs = options.pairs or (3 if options.quick else 5)
    options.seconds = options.seconds or (1 if options.quick else 2)
    options.cores = options.cores or arguments.first_cores()
    options.clan = options.clan or HERE.parent.parent.parent / "bin" / "clan"
    return options


def run_row(name, options):
    with processes.Session(options.clan, options.cores, options.seconds,
                           options.redirection) as session:
        if name in SPECIAL:
            return SPECIAL[name][0](session, options.pairs)
        row = next(row for row in table.ROWS if row.name == name)
        return table.measure(row, session, options.pairs)


def run_rows(options, results, found):
    for name in options.names:
        try:
            lines = run_row(name, options)
        except processes.Skip as skip:
            results.skipped[name] = str(skip)
            print(f"{name}: skipped: {skip}", flush=True)
            continue
        except (processes.Failed, OSError, subprocess.SubprocessError, LookupError,
                ValueError) as failed:
            text = str(failed) if isinstance(failed, processes.Failed) else repr(failed)
            results.failed[name] = text
            print(f"{name}: failed: {text}", flush=True)
            continue
        found += lines
        results.add(plot.item_of(name, lines))


def main():
    options = parse()
    if options.list:
        print_list()
        return 0
    arguments.end_as_by_interrupt()
    try:
        options.redirection = sockmap.Redirection()
        kernels_own = "a column of its own"
    except sockmap.Refused as refused:
        options.redirection = None
        kernels_own = f"not available: {refused}"
    machine = report.describe_machine(HERE, options.cores, sockmap=kernels_own)
    results = report.Report("apps", "Programs under `clan run`", machine,
                            f"{options.pairs} pairs of {options.seconds} s", LEGEND)
    interrupted, found = False, []
    try:
        run_rows(options, results, found)
    except KeyboardInterrupt:
        interrupted = True
        print("\ninterrupted: what there is so far", flush=True)
    finally:
        if options.redirection is not None:
            options.redirection.close()
    return results.end(options.output, {"apps.svg": plot.svg(found, machine, results.how)},
                       interrupted)


if __name__ == "__main__":
    sys.exit(main())
