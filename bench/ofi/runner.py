"""What `clan bench ofi` and `clan bench mpi` do with their rows: list, measure, print, write."""

import json
import os
import shutil
import sys
import time
from types import SimpleNamespace

import arguments
import described
import processes
import report
import rows


def print_list(options):
    for row in options.rows:
        print(f"{row.name}: {row.text}")
        for point in row.points:
            print(f"  {point.text:<46}{rows.judge(row, point, []).wanted}")


def run_row(row, options, results, after_row):
    """`after_row` is called with the id of each process that an interrupted measurement has
    left."""
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
            after_row(pid)
    results.tables.append((row, lines))
    for what, why in failed.items():
        # A provider that has not got something is no failure.
        (results.missing if why.startswith("unavailable") else results.failed)[what] = why
    took = time.monotonic() - began
    print(f"{row.name}: {row.text} ({took:.0f} s)\n{described.table(row, lines)}", flush=True)


def run(name, title, here, options, how, after_row=lambda pid: None):
    """The exit code of `clan bench NAME`, whose scripts lie in `here`."""
    if options.list:
        print_list(options)
        return 0
    # What is measured is what this program says, not what a shell is set to.
    for variable in [n for n in os.environ if n.startswith(("FI_", "OMPI_"))]:
        del os.environ[variable]
    arguments.end_as_by_interrupt()
    machine = report.describe_machine(json.loads((here / "build.json").read_text()), options.cores)
    machine["libfabric"] = described.libfabric_version() or "unknown"
    machine["mpirun"] = described.mpi_version() if shutil.which("mpirun") else "none"
    results = SimpleNamespace(name=name, title=title, tables=[], failed={}, missing={},
                              machine=machine, how=how)
    results.machine_text = described.machine_text(machine)
    print(f"{results.machine_text}\n{described.LEGEND}\n", flush=True)
    interrupted = False
    try:
        for row in options.rows:
            run_row(row, options, results, after_row)
    except KeyboardInterrupt:
        interrupted = True
        print("\ninterrupted: what there is so far", flush=True)
    results.machine["load_after"] = report.first_line("/proc/loadavg")
    print(described.bars(results))
    for what, entries in (("failed", results.failed), ("not available", results.missing)):
        for entry, text in entries.items():
            print(f"{what}: {entry}: {text}")
    if options.output:
        try:
            described.write(results, options.output)
        except OSError as error:
            print(f"clan bench {name}: cannot write to {options.output}: {error.strerror}",
                  file=sys.stderr)
            return 1
        print(f"Written: {options.output}/{name}.md and {name}.json")
    return 130 if interrupted else 1 if results.failed else 0
