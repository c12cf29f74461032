"""What `clan bench ofi` and `clan bench mpi` do with their rows: list, measure, print, write."""

import os
import re
import shutil
import subprocess

import arguments
import processes
import report
import rows

LEGEND = """Microseconds per operation, minimum / median; beside them how
many times as long the others take, turn by turn: median (smallest..largest; that of the minima).
Wanted: at least that many times. CPU time: user and system, of all processes, for an operation; of
ends that poll twice what passes."""


def lines_of(command):
    try:
        return subprocess.run(command, capture_output=True, text=True,
                              timeout=20).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []


def others():
    """The libfabric that programs get, and Open MPI."""
    libfabric = "no libfabric"
    for line in lines_of(["/sbin/ldconfig", "-p"]):
        if found := re.search(r"libfabric\.so\.1 .*=> (\S+)", line):
            libfabric = os.path.basename(os.path.realpath(found[1]))
            break
    mpirun = lines_of(["mpirun", "--version"]) if shutil.which("mpirun") else []
    return f"{libfabric} · {(mpirun or ['no mpirun'])[0]}"


def print_list(options):
    for row in options.rows:
        print(f"{row.name}: {row.text}")
        for point in row.points:
            print(f"  {point.text:<46}{rows.judge(row, point, [])[1].wanted}")


def run_row(row, options, results, after_row):
    """`after_row` is called with the id of each process that an interrupted measurement has
    left."""
    failed, ended = {}, []
    try:
        with processes.Session(options.clan, options.cores, 0) as session:
            try:
                item = rows.measure(row, session, options, failed)
            except processes.Skip as skip:
                results.skipped[row.name] = str(skip)
                print(f"{row.name}: skipped: {skip}", flush=True)
                return
            finally:
                ended = processes.descendants(os.getpid())  # none, unless it was interrupted
    finally:
        for pid in ended:
            after_row(pid)
    for what, why in failed.items():
        # A provider that has not got something is no failure.
        (results.skipped if why.startswith("unavailable") else results.failed)[what] = why
    results.add(item)


def run(name, title, here, options, how, after_row=lambda pid: None):
    """The exit code of `clan bench NAME`, whose scripts lie in `here`."""
    if options.list:
        print_list(options)
        return 0
    # What is measured is what this program says, not what a shell is set to.
    for variable in [n for n in os.environ if n.startswith(("FI_", "OMPI_"))]:
        del os.environ[variable]
    arguments.end_as_by_interrupt()
    machine = report.describe_machine(here, options.cores, others=others())
    results = report.Report(name, title, machine, f"{how}, all columns in turns", LEGEND)
    interrupted = False
    try:
        for row in options.rows:
            run_row(row, options, results, after_row)
    except KeyboardInterrupt:
        interrupted = True
        print("\ninterrupted: what there is so far", flush=True)
    return results.end(options.output, interrupted=interrupted)
