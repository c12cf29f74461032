"""`clan bench mpi`: Open MPI over btl clan beside its own transports, and beside mtl ofi over
CLAN's provider.

Every column is a whole run of mpirun, all columns in turns, so that whatever else the machine does
falls on all of them. README.md says how to read the table; --list says what is wanted.
"""

import argparse
import dataclasses
import shutil
import sys
from pathlib import Path

import arguments
import loads
import processes
import runner
from rows import KB, MB, Point, Row, size

HERE = Path(__file__).resolve().parent
COLUMNS = ["clan", "vader", "btl tcp", "mtl ofi"]
TRANSPORT = {
    "clan": "--mca pml ob1 --mca btl clan,self",
    "vader": "--mca pml ob1 --mca btl vader,self",
    "btl tcp": "--mca pml ob1 --mca btl tcp,self",
    "mtl ofi": "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include clan",
}


def mpi_round(ranks, columns, extra=()):
    def measure(row, session, options, number, failed):
        figures = {}
        kinds = [f"{kind}:{','.join(str(p.bytes) for p in row.points if p.kind == kind)}"
                 for kind in dict.fromkeys(p.kind for p in row.points)]
        environment = {
            "TMPDIR": str(session.directory), "FI_PROVIDER_PATH": str(options.provider_path),
            "OMPI_MCA_mca_base_component_path": f"{options.component_path}:SYSTEM_DEFAULT",
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"
        }
        cores = ",".join(map(str, options.cores))
        for column in columns if number % 2 == 0 else reversed(columns):
            try:
                text, _ = session.run(options.mpirun, "-np", ranks, "--host", f"localhost:{ranks}",
                                      "--bind-to", "none", "--oversubscribe", "-x",
                                      "FI_PROVIDER_PATH", *TRANSPORT[column].split(), "--mca",
                                      "osc", "rdma,sm", *extra, options.load, options.ms, cores,
                                      *kinds, limit=200, environment=environment)
            except processes.Failed as reason:
                failed[f"{row.name}, {column}"] = str(reason)
                continue
            loads.add_of_mpi(figures, column, text)
        return figures
    return measure


LATENCY_BARS = {8: 1.15, 8 * KB: 2, 64 * KB: 1.2, MB: 1.6}
STREAM_BARS = {8: 1.2, KB: 1.1, 8 * KB: 1.1, 64 * KB: 1.4, MB: 1.4}
LATENCIES = [0, 1, 8, 64, 256, KB, 4 * KB, 8 * KB, 16 * KB, 64 * KB, 256 * KB, MB, 4 * MB]
STREAMS = [1, 8, 64, KB, 8 * KB, 64 * KB, MB]
COLLECTIVES = ("allreduce", "alltoall", "bcast")


# as mpirun sets it by itself where ranks outnumber processors
YIELD = ["--mca", "mpi_yield_when_idle", "1"]


def collectives(ranks, wanted=1):
    return [
        Point(kind, n, f"{kind} {size(n)}, {ranks} ranks", {"vader": wanted})
        for kind in COLLECTIVES for n in (8, 64 * KB)
    ]


def beside_computations(measure):
    """The round, with an endless computation on each core."""
    def measured(row, session, options, number, failed):
        busy = [
            session.start("sh", "-c", "while :; do :; done", core=core)
            for core in range(len(options.cores))
        ]
        try:
            return measure(row, session, options, number, failed)
        finally:
            for computation in busy:
                computation.kill()
                computation.wait()
    return measured


ROWS = [
    Row("messages", "ping-pong, one way; 64 messages at once, one way and both", COLUMNS, [
        Point("latency", n, f"latency {size(n)}", {"vader": LATENCY_BARS.get(n, 1)})
        for n in LATENCIES
    ] + [
        Point("window", n, f"64 under way, {size(n)}", {"vader": STREAM_BARS.get(n, 1)})
        for n in STREAMS
    ] + [
        Point("both", n, f"64 under way both ways, {size(n)}",
              {"vader": STREAM_BARS.get(n, 1)} if n >= KB else {}) for n in STREAMS
    ], mpi_round(2, COLUMNS)),
    Row(
        "windows",
        "one-sided on the program's own memory and on MPI_Alloc_mem's, one at a time, flushed; "
        "the target waits in a barrier", COLUMNS[:2], [
            Point(prefix + kind, n, f"{kind} {size(n)}{text}", {"vader": 3} if n == 8 else {})
            for prefix, text in (("", ""), ("allocated-", ", MPI_Alloc_mem"))
            for kind, n in (("put", 8), ("put", 64 * KB), ("get", 8), ("get", 64 * KB),
                            ("fetch-add", 8))
        ], mpi_round(2, COLUMNS[:2])),
    Row("collectives", "collectives of two ranks", COLUMNS, collectives(2), mpi_round(2, COLUMNS)),
    Row("crowd", "eight ranks on two cores, which yield when idle", COLUMNS[:2], collectives(8),
        mpi_round(8, COLUMNS[:2], YIELD)),
    Row("four", "four ranks on two cores, which yield when idle", COLUMNS[:2], collectives(4),
        mpi_round(4, COLUMNS[:2], YIELD)),
    Row("beside", "two ranks beside an endless computation on each core; they yield when idle",
        COLUMNS[:2], [
            Point("latency", n, f"latency {size(n)}, beside computations", {"vader": 1})
            for n in (8, KB, 64 * KB, MB)
        ] + [Point("allreduce", 8, "allreduce 8 B, beside computations", {"vader": 1})],
        beside_computations(mpi_round(2, COLUMNS[:2], YIELD))),
]


def parse():
    parser = argparse.ArgumentParser(
        prog="clan bench mpi", description="Open MPI over btl clan beside vader, btl tcp and "
        "mtl ofi over CLAN, all in turns.")
    parser.add_argument("--list", action="store_true",
                        help="what is measured, and what is wanted of it")
    parser.add_argument("--only", metavar="NAME,...", help="only these groups of --list")
    parser.add_argument("--quick", action="store_true",
                        help="2 rounds of 6 ms a figure instead of 5 of 20")
    parser.add_argument("--rounds", type=arguments.positive,
                        help="how often everything is measured (5)")
    parser.add_argument("--ms", type=arguments.positive,
                        help="length of one figure's measurement (20)")
    parser.add_argument("--most", type=arguments.positive, metavar="BYTES",
                        help="only messages of at most so many bytes")
    parser.add_argument("--cores", type=arguments.cores, metavar="A,B",
                        help="the cores (default: the first two allowed)")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR",
                        help="directory for mpi.md and mpi.json")
    parser.add_argument("--clan", help=argparse.SUPPRESS)  # `clan bench` says where it is
    options = parser.parse_args()
    known = {row.name: row for row in ROWS}
    names = list(known) if options.only is None else [
        name.strip() for name in options.only.split(",")
    ]
    for name in names:
        if name not in known:
            parser.error(f'"{name}" is no group; `clan bench mpi --list` has all')
    options.rows = [dataclasses.replace(known[name], points=[
        point for point in known[name].points if point.bytes <= (options.most or point.bytes)
    ]) for name in names]
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.ms = options.ms or (6 if options.quick else 20)
    options.cores = options.cores or arguments.first_cores()
    options.load = HERE / "clan-mpi-load"
    options.provider_path = HERE.parent.parent / "libfabric"
    options.component_path = HERE.parent.parent / "openmpi"
    options.mpirun = shutil.which("mpirun")
    return options


def main():
    options = parse()
    if not options.list and (options.mpirun is None or not options.load.exists()):
        print("clan bench mpi: there is no Open MPI here, or its load program was not built.",
              file=sys.stderr)
        return 1
    return runner.run("mpi", "Open MPI over btl clan", HERE, options,
                      f"{options.rounds} rounds of {options.ms} ms a figure")


if __name__ == "__main__":
    sys.exit(main())
