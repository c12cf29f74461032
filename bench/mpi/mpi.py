"""`clan bench mpi`: Open MPI over btl clan beside its own transports, and beside mtl ofi over CLAN's provider.

Every column is a whole run of mpirun, all columns in turns, so that whatever else the machine does falls on all of
them. README.md says how to read the table; --list says what is wanted.
"""

import argparse
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import arguments
import described
import processes
import report
import rows
from rows import KB, MB, Point, Row, size

HERE = Path(__file__).resolve().parent
COLUMNS = ["clan", "vader", "btl tcp", "mtl ofi"]
TRANSPORT = {
    "clan": "--mca pml ob1 --mca btl clan,self",
    "vader": "--mca pml ob1 --mca btl vader,self",
    "btl tcp": "--mca pml ob1 --mca btl tcp,self",
    "mtl ofi": "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include clan",
}


def mpi_round(kinds, ranks, columns, extra=()):
    def measure(row, session, options, number, failed):
        figures = {}
        environment = {"TMPDIR": str(session.directory), "FI_PROVIDER_PATH": str(options.provider_path),
                       "OMPI_MCA_mca_base_component_path": f"{options.component_path}:SYSTEM_DEFAULT",
                       "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        cores = ",".join(map(str, options.cores))
        for column in columns if number % 2 == 0 else reversed(columns):
            try:
                text, _ = session.run(
                    options.mpirun, "-np", ranks, "--host", f"localhost:{ranks}", "--bind-to", "none",
                    "--oversubscribe", "-x", "FI_PROVIDER_PATH", *TRANSPORT[column].split(), "--mca", "osc", "rdma,sm",
                    *extra, options.load, options.ms, cores, *kinds, limit=200, environment=environment)
            except processes.Failed as reason:
                failed[f"{row.name}, {column}"] = str(reason)
                continue
            for line in re.findall(r"^\S+ \d+ [\d.]+ [\d.]+ \d+ \d+$", text, re.M):
                kind, bytes_, low, median, *slices = line.split()
                at = figures.setdefault((kind, int(bytes_)), [{}])[0]
                at[column] = float(low), float(median), *map(int, slices)
        return figures
    return measure


LATENCY_BARS = {8: 1.15, 8 * KB: 2, 64 * KB: 1.2, MB: 1.6}
STREAM_BARS = {8: 1.2, KB: 1.1, 8 * KB: 1.1, 64 * KB: 1.4, MB: 1.4}
LATENCIES = [0, 1, 8, 64, 256, KB, 4 * KB, 8 * KB, 16 * KB, 64 * KB, 256 * KB, MB, 4 * MB]
STREAMS = [1, 8, 64, KB, 8 * KB, 64 * KB, MB]
COLLECTIVES = ("allreduce", "alltoall", "bcast")


def collectives(ranks, wanted=1):
    return [Point(kind, n, f"{kind} {size(n)}, {ranks} ranks", {"vader": wanted}) for kind in COLLECTIVES
            for n in (8, 64 * KB)]


ROWS = [
    Row("messages", "ping-pong, one way; 64 messages at once, one way and both", COLUMNS,
        [Point("latency", n, f"latency {size(n)}", {"vader": LATENCY_BARS.get(n, 1)}) for n in LATENCIES]
        + [Point("window", n, f"64 under way, {size(n)}", {"vader": STREAM_BARS.get(n, 1)}) for n in STREAMS]
        + [Point("both", n, f"64 under way both ways, {size(n)}", {"vader": STREAM_BARS.get(n, 1)} if n >= KB else {})
           for n in STREAMS],
        mpi_round(["latency", "window", "both"], 2, COLUMNS)),
    Row("windows", "one-sided on the program's own memory and on MPI_Alloc_mem's, one at a time, flushed; "
        "the target waits in a barrier", COLUMNS[:2],
        [Point(prefix + kind, n, f"{kind} {size(n)}{text}", {"vader": 3} if n == 8 else {})
         for prefix, text in (("", ""), ("allocated-", ", MPI_Alloc_mem"))
         for kind, n in (("put", 8), ("put", 64 * KB), ("get", 8), ("get", 64 * KB), ("fetch-add", 8))],
        mpi_round([prefix + kind for prefix in ("", "allocated-") for kind in ("put", "get", "fetch-add")],
                  2, COLUMNS[:2])),
    Row("collectives", "collectives of two ranks", COLUMNS, collectives(2), mpi_round(COLLECTIVES, 2, COLUMNS)),
    Row("crowd", "eight ranks on two cores, which yield when idle", COLUMNS[:2], collectives(8),
        mpi_round(COLLECTIVES, 8, COLUMNS[:2], ["--mca", "mpi_yield_when_idle", "1"])),
]


def parse():
    parser = argparse.ArgumentParser(prog="clan bench mpi", description="Open MPI over btl clan beside vader, btl tcp and "
                                     "mtl ofi over CLAN, all in turns.")
    parser.add_argument("--list", action="store_true", help="what is measured, and what is wanted of it")
    parser.add_argument("--only", metavar="NAME,...", help="only these groups of --list")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 6 ms a figure instead of 5 of 20")
    parser.add_argument("--rounds", type=arguments.positive, help="how often everything is measured (5)")
    parser.add_argument("--ms", type=arguments.positive, help="length of one figure's measurement (20)")
    parser.add_argument("--cores", type=arguments.cores, metavar="A,B", help="the cores (default: the first two allowed)")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="directory for mpi.md and mpi.json")
    parser.add_argument("--clan", help=argparse.SUPPRESS)  # `clan bench` says where it is
    options = parser.parse_args()
    known = {row.name: row for row in ROWS}
    names = list(known) if options.only is None else [name.strip() for name in options.only.split(",")]
    for name in names:
        if name not in known:
            parser.error(f'"{name}" is no group; `clan bench mpi --list` has all')
    options.rows = [known[name] for name in names]
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.ms = options.ms or (6 if options.quick else 20)
    options.cores = options.cores or arguments.first_cores()
    options.load = HERE / "clan-mpi-transport-load"
    options.provider_path = HERE.parent.parent / "libfabric"
    options.component_path = HERE.parent.parent / "openmpi"
    options.mpirun = shutil.which("mpirun")
    return options


def run_row(row, options, results):
    began, failed = time.monotonic(), {}
    with processes.Session(options.clan, options.cores, 0) as session:
        lines = rows.measure(row, session, options, failed)
    results.tables.append((row, lines))
    results.failed.update(failed)
    print(f"{row.name}: {row.text} ({time.monotonic() - began:.0f} s)\n{described.table(row, lines)}", flush=True)


def write(results, directory):
    directory.mkdir(parents=True, exist_ok=True)
    text = described.markdown(results).replace("## libfabric and Open MPI", "## Open MPI over btl clan")
    (directory / "mpi.md").write_text(text.replace("clan bench ofi", "clan bench mpi"))
    (directory / "mpi.json").write_text(described.as_json(results))
    print(f"Written: {directory}/mpi.md and mpi.json")


def main():
    options = parse()
    if options.list:
        for row in options.rows:
            print(f"{row.name}: {row.text}")
            for point in row.points:
                print(f"  {point.text:<40}{rows.judge(row, point, []).wanted}")
        return 0
    if options.mpirun is None or not options.load.exists():
        print("clan bench mpi: there is no Open MPI here, or its load program was not built.", file=sys.stderr)
        return 1
    for name in [n for n in os.environ if n.startswith(("FI_", "OMPI_"))]:
        del os.environ[name]
    arguments.end_as_by_interrupt()
    machine = report.describe_machine(json.loads((HERE / "build.json").read_text()), options.cores)
    machine["libfabric"] = described.libfabric_version() or "unknown"
    machine["mpirun"] = described.mpi_version()
    results = SimpleNamespace(tables=[], failed={}, missing={}, machine=machine,
                              how=f"{options.rounds} rounds of {options.ms} ms a figure")
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
    for name, text in results.failed.items():
        print(f"failed: {name}: {text}")
    if options.output:
        write(results, options.output)
    return 130 if interrupted else 1 if results.failed else 0


if __name__ == "__main__":
    sys.exit(main())
