"""`clan bench mpi`: Open MPI over btl clan beside its own transports, and beside mtl ofi over
CLAN's provider.

Every column is a whole run of mpirun, all columns in turns, so that whatever else the machine does
falls on all of them. README.md says how to read the table; --list says what is wanted.
"""

import dataclasses
import shutil
import sys
from pathlib import Path

import arguments
import loads
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


def mpi_round(ranks, columns, extra=()):
    def measure(row, session, options, number, failed):
        return loads.mpi_round(
            row, session, options, number, failed, ms=options.ms, ranks=ranks, limit=200, words={
                column: ["--oversubscribe", *TRANSPORT[column].split(), "--mca", "osc", "rdma,sm",
                         *extra] for column in columns})
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
    parser = arguments.Parser("mpi", "Open MPI over btl clan beside vader, btl tcp and mtl ofi "
                              "over CLAN, all in turns.")
    parser.add_list()
    parser.add_argument("--only", metavar="NAME,...", help="only these groups of --list")
    parser.add_lengths("{} rounds of {} ms a figure", rounds=(5, 2), ms=(20, 6))
    parser.add_argument("--most", type=arguments.positive, metavar="BYTES",
                        help="only messages of at most so many bytes")
    options = parser.parse()
    known = {row.name: row for row in ROWS}
    options.rows = [dataclasses.replace(known[name], points=[
        point for point in known[name].points if point.bytes <= (options.most or point.bytes)
    ]) for name in parser.chosen(options.only, known, "group")]
    options.mpi_load, options.mpirun = HERE / "clan-mpi-load", shutil.which("mpirun")
    options.environment = {
        "FI_PROVIDER_PATH": str(HERE.parent.parent / "libfabric"),
        "OMPI_MCA_mca_base_component_path": f"{HERE.parent.parent / 'openmpi'}:SYSTEM_DEFAULT"
    }
    return options


def main():
    options = parse()
    if not options.list and (options.mpirun is None or not options.mpi_load.exists()):
        print("clan bench mpi: there is no Open MPI here, or its load program was not built.",
              file=sys.stderr)
        return 1
    return rows.run("mpi", "Open MPI over btl clan", HERE, options,
                      f"{options.rounds} rounds of {options.ms} ms a figure")


if __name__ == "__main__":
    sys.exit(main())
