"""`clan bench ofi`: CLAN's provider beside libfabric's own, and Open MPI over it beside its own transports.

See rows.py for what is measured and what is wanted of it, README.md for how to read it.
"""

import argparse
import dataclasses
import json
import os
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import arguments
import described
import loads
import processes
import report
import rows

HERE = Path(__file__).resolve().parent


def programs_of_fabtests(text):
    for path in (Path(text), Path(text, "bin")):
        if (path / "fi_rdm_pingpong").exists():
            return path.resolve()
    raise argparse.ArgumentTypeError(f'"{text}" has no fi_rdm_pingpong')


def chosen(text, known):
    """The rows that `--only TEXT` names: whole groups, or lines of them. Lines have commas in their names."""
    lines = {point.text: (row, point) for row in known.values() for point in row.points}
    words, rows_ = text.split(","), {}
    while words:
        for n in range(len(words), 0, -1):
            name = ",".join(words[:n]).strip()
            if name in known or name in lines:
                break
        else:
            raise KeyError(words[0].strip())
        row, *points = (known[name], *known[name].points) if name in known else lines[name]
        rows_.setdefault(row.name, []).extend(p for p in points if p not in rows_[row.name])
        words = words[n:]
    return [dataclasses.replace(known[name], points=points) for name, points in rows_.items()]


def parse():
    parser = argparse.ArgumentParser(
        prog="clan bench ofi", description="CLAN's libfabric provider beside shm and tcp;ofi_rxm, by "
        "libfabric's public interface, and Open MPI over CLAN beside its own transports: all in turns.")
    parser.add_argument("--list", action="store_true", help="what is measured, and what is wanted of it")
    parser.add_argument("--only", metavar="NAME,...",
                        help="only these groups (tagged) or lines (\"fetch-and-add 8 B\") of --list")
    parser.add_argument("--quick", action="store_true", help="3 rounds of 6 ms a turn instead of 5 of 12")
    parser.add_argument("--rounds", type=arguments.positive, help="how often everything is measured (5)")
    parser.add_argument("--ms", type=arguments.positive, help="length of one turn (12)")
    parser.add_argument("--fabtests", type=programs_of_fabtests, metavar="DIR",
                        help="also by the programs of fabtests, which are in DIR")
    parser.add_argument("--cores", type=arguments.cores, metavar="A,B",
                        help="the server's core and the client's (default: the first two allowed)")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="directory for ofi.md and ofi.json")
    parser.add_argument("--provider-path", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--clan", help=argparse.SUPPRESS)  # `clan bench` says where it is
    options = parser.parse_args()
    known = {row.name: row for row in rows.ROWS}
    if options.fabtests or (options.list and options.only is None):
        known[rows.FABTESTS.name] = rows.FABTESTS
    try:
        options.rows = list(known.values()) if options.only is None else chosen(options.only, known)
    except KeyError as unknown:
        name = unknown.args[0]
        why = "needs --fabtests" if name == rows.FABTESTS.name else "is no group and no line of one"
        parser.error(f'"{name}" {why}; `clan bench ofi --list` has all')
    options.rounds = options.rounds or (3 if options.quick else 5)
    options.ms = options.ms or (6 if options.quick else 12)
    options.cores = options.cores or arguments.first_cores()
    options.load, options.mpi_load = HERE / "clan-ofi-load", HERE / "clan-mpi-load"
    options.provider_path = options.provider_path or HERE.parent.parent / "libfabric"
    options.environment = {"FI_PROVIDER_PATH": str(options.provider_path)}
    return options


def print_list(options):
    for row in options.rows:
        print(f"{row.name}: {row.text}")
        for point in row.points:
            print(f"  {point.text:<46}{rows.judge(row, point, []).wanted}")


def run_row(row, options, results):
    began, failed, ended = time.monotonic(), {}, []
    try:
        with processes.Session(options.clan, options.cores, 0) as session:
            try:
                lines = rows.measure(row, session, options, failed)
            except processes.Skip as skip:
                results.missing[row.name] = str(skip)
                print(f"{row.name}: skipped: {skip}", flush=True)
                return
            finally:
                ended = processes.descendants(os.getpid())  # none, unless it was interrupted
    finally:
        for pid in ended:
            loads.remove_segments(f"{pid}:*")
    results.tables.append((row, lines))
    for what, why in failed.items():
        # A provider that has not got something is no failure.
        (results.missing if why.startswith("unavailable") else results.failed)[what] = why
    took = time.monotonic() - began
    print(f"{row.name}: {row.text} ({took:.0f} s)\n{described.table(row, lines)}", flush=True)


def main():
    options = parse()
    if options.list:
        print_list(options)
        return 0
    if not options.load.exists():
        print("clan bench ofi: clan-ofi-load was not built.", file=sys.stderr)
        return 1
    # What is measured is what this program says, not what a shell is set to.
    for name in [n for n in os.environ if n.startswith(("FI_", "OMPI_"))]:
        del os.environ[name]
    arguments.end_as_by_interrupt()
    machine = report.describe_machine(json.loads((HERE / "build.json").read_text()), options.cores)
    machine["libfabric"] = described.libfabric_version() or "unknown"
    machine["mpirun"] = described.mpi_version() if shutil.which("mpirun") else "none"
    results = SimpleNamespace(tables=[], failed={}, missing={}, machine=machine,
                              how=f"{options.rounds} rounds of {loads.TURNS} turns of {options.ms} ms")
    results.machine_text = described.machine_text(machine)
    print(f"{results.machine_text}\n{described.LEGEND}\n", flush=True)
    interrupted = False
    try:
        for row in options.rows:
            run_row(row, options, results)
    except KeyboardInterrupt:
        interrupted = True
        print("\ninterrupted: what there is so far", flush=True)
    results.machine["load_after"] = report.first_line("/proc/loadavg")
    print(described.bars(results))
    for what, entries in (("failed", results.failed), ("not available", results.missing)):
        for name, text in entries.items():
            print(f"{what}: {name}: {text}")
    if options.output:
        try:
            described.write(results, options.output)
        except OSError as error:
            print(f"clan bench ofi: cannot write to {options.output}: {error.strerror}", file=sys.stderr)
            return 1
        print(f"Written: {options.output}/ofi.md and ofi.json")
    return 130 if interrupted else 1 if results.failed else 0


if __name__ == "__main__":
    sys.exit(main())
