"""What `clan bench ofi` measures, and what is wanted of it; and what this command and `clan bench
mpi` do with their rows: list, measure, print, write.

A figure is microseconds per operation, so a ratio is another column's figure over CLAN's: above 1,
CLAN is faster. A bar is a ratio at least to be reached.
"""

import os
import re
import shutil
import statistics
import subprocess
from dataclasses import dataclass, field

import arguments
import loads
import processes
import report

SHM, TCP = "shm", "tcp;ofi_rxm"
KB, MB = 1 << 10, 1 << 20
SIZES = [1, 8, 64, KB, 4 * KB, 16 * KB, 64 * KB, 256 * KB, MB, 4 * MB]


def size(n):
    for factor, unit in ((MB, "MB"), (KB, "KB")):
        if n >= factor:
            return f"{n // factor} {unit}"
    return f"{n} B"


@dataclass
class Point:
    kind: str                 # as the load program calls it
    bytes: int
    text: str
    bars: dict = field(default_factory=dict)   # column: at least this many times as fast
    most: float = None        # CLAN's own figure, at most
    once: bool = False        # in the first round only


@dataclass
class Row:
    name: str
    text: str
    columns: list             # CLAN's is the first
    points: list
    round: object             # (row, session, options, round's number, failed) ->
    # {(kind, bytes): [{column: figure}, ...]}


# Kinds whose figure is a throughput: CPU time is printed beside it.
THROUGHPUTS = {"tagged-window", "write-window", "read-window", "write-inject", "window", "both"}


def cpu_times(point, calm):
    """{column: median} of a throughput; programs of fabtests tell none."""
    if point.kind not in THROUGHPUTS:
        return {}
    told = {c: [f[5] for f in s if f[5] is not None] for c, s in calm.items()}
    return {c: statistics.median(s) for c, s in told.items() if s}


def ping_pong(kind, text):
    return [
        Point(kind, n, f"{text} {size(n)}", {SHM: 1.2 if n in (8, 64 * KB) else 1}) for n in SIZES
    ]


def window(kind, text):
    return [
        Point(kind, n, f"{text} {size(n)}, 64 under way", {SHM: 1.2}) for n in (4 * KB, 64 * KB, MB)
    ]


def memory(kind, text, sizes=(8, 64 * KB, MB)):
    return [Point(kind, n, f"{text.format(size(n))}", {SHM: 5 if n == 8 else 1.4}) for n in sizes]


FABRIC = ["clan", SHM, TCP]

ROWS = [
    Row("tagged", "tagged ping-pong, one way; bandwidth with a window of 64", FABRIC,
        ping_pong("tagged", "tagged ping-pong") + window("tagged-window", "tagged"), loads.pairs),
    Row("msg", "message ping-pong, one way", FABRIC, ping_pong("msg", "message ping-pong"),
        loads.pairs),
    Row(
        "rma", "RMA, one at a time and 64 under way from both sides", FABRIC,
        memory("write-inject", "RMA inject_write {}, both sides", [8]) +
        memory("write-window", "RMA write {}, 64 under way, both sides") +
        memory("read-window", "RMA read {}, 64 under way, both sides") +
        memory("write", "RMA write {}, one at a time") +
        memory("read", "RMA read {}, one at a time"), loads.pairs),
    Row("atomic", "fetch-and-add, one at a time, the target polls", FABRIC,
        [Point("fetch-add", 8, "fetch-and-add 8 B", {SHM: 3})], loads.pairs),
    Row("wait", "sleeping at a completion queue's descriptor", ["clan", "eventfd", TCP], [
        Point("wake-up", 8, "wake-up by FI_WAIT_FD, one way", {"eventfd": 1}),
        Point("idle", 8, "CPU time of 2 s of waiting (us)", most=200, once=True)
    ], loads.waits),
    Row("mpi", "Open MPI: mtl ofi over CLAN beside its own transports",
        ["clan", "vader", "btl tcp"], [
            Point("latency", n, f"MPI latency {size(n)}",
                  {"vader": 1 / 1.3, **({"btl tcp": 20} if n == 8 else {})}) for n in SIZES
        ] + [
            Point("window", n, f"MPI bandwidth {size(n)}, 64 under way", {"vader": 1 / 1.3})
            for n in SIZES
        ], loads.mpi),
]

FABTESTS = Row(
    "fabtests", "the same by the programs of fabtests (--fabtests DIR)", ["clan", SHM],
    ping_pong("fi_rdm_tagged_pingpong", "fi_rdm_tagged_pingpong") +
    ping_pong("fi_rdm_pingpong", "fi_rdm_pingpong") + [
        Point("fi_rdm_tagged_bw", n, f"fi_rdm_tagged_bw {size(n)}", {SHM: 1.2})
        for n in (4 * KB, 64 * KB, MB)
    ] + memory("fi_rma_bw -o write", "fi_rma_bw -o write {}") +
    memory("fi_rma_bw -o read", "fi_rma_bw -o read {}") + [
        Point(f"fi_rdm_atomic -o {op} -z uint64", 8, f"fi_rdm_atomic -o {op} -z uint64", {SHM: 3})
        for op in ("sum", "read", "cswap")
    ], loads.fabtests)


def judge(row, point, rounds):
    """The rows and the line of a point. `rounds`: of each turn, column: what loads.figure_of()
    answers."""
    samples = {c: [r[c] for r in rounds if c in r] for c in row.columns}
    # A turn in which all slices of a column were disturbed counts only if there is no other.
    rounds = [{c: f
               for c, f in r.items() if f[2] > 0 or not any(g[2] for g in samples[c])}
              for r in rounds]
    calm = {c: [r[c] for r in rounds if c in r] for c in row.columns}
    cpu = cpu_times(point, calm)
    figures = {
        c: report.Row(point.kind, c, point.bytes, statistics.median(f[1] for f in s), "us",
                      low=min(f[0] for f in s), text=point.text, cpu=cpu.get(c), samples=samples[c])
        for c, s in calm.items() if s
    }
    ratios = {}
    clan = figures.get("clan")
    for column in row.columns[1:]:
        if column not in figures or clan is None or clan.value <= 0:
            continue
        pairs = [r[column][1] / r["clan"][1] for r in rounds if column in r and "clan" in r]
        pairs = pairs or [figures[column].value / clan.value]  # never calm in the same round
        ratios[column] = (statistics.median(pairs), min(pairs), max(pairs),
                          figures[column].low / clan.low if clan.low else 0)
    disturbed = [c for c, s in calm.items() if s and not any(f[2] for f in s)]
    line = judged(point, clan, ratios, disturbed)
    line.ratios = {f"{column}/clan": figures for column, figures in ratios.items()}
    return list(figures.values()), line


def judged(point, clan, ratios, disturbed):
    if point.most is not None:
        verdict = "not judged" if clan is None else "met" if clan.value <= point.most else "missed"
        return report.Line(point.text, f"at most {point.most:g}", verdict)
    if not point.bars:
        return report.Line(point.text)
    line = report.Line(point.text, ", ".join(f"{c} {limit:.3g}" for c, limit in point.bars.items()),
                       "not judged")
    if all(c in ratios for c in point.bars):
        met = all(ratios[c][0] >= limit for c, limit in point.bars.items())
        by_minima = all(ratios[c][3] >= limit for c, limit in point.bars.items())
        line.verdict = "met" if met else "missed"
        remarks = ["by the minima " + ("met" if by_minima else "missed")] * (met != by_minima)
        remarks += ["disturbed"] * any(c in disturbed for c in ("clan", *point.bars))
        line.more = {"remark": ", ".join(remarks)} if remarks else {}
    return line


def dropped(row, figures):
    """How many slices of which columns were dropped because another process took the processor of
    the thread that measures, and kept though another thread of its own process did, such as the one
    that drives CLAN."""
    said = []
    for what, at in (("dropped: another process had the processor", 3),
                     ("kept: another thread of the process had it", 4)):
        counts = {c: sum(f[at] for one in figures if one.variant == c for f in one.samples)
                  for c in row.columns}
        if any(counts.values()):
            said.append(f"slices {what}: " + ", ".join(f"{c} {n}" for c, n in counts.items()))
    return said


def measure(row, session, options, failed):
    """The item of a row. What does not work is added to `failed`, and has no figure."""
    rounds = {(p.kind, p.bytes): [] for p in row.points}
    for number in range(options.rounds):
        for at, figures in row.round(row, session, options, number, failed).items():
            rounds[at] += figures
    item = report.Item(row.name, row.text)
    for point in row.points:
        figures, line = judge(row, point, rounds[point.kind, point.bytes])
        item.rows += figures
        item.lines.append(line)
    item.said = dropped(row, item.rows)
    return item


# --- the commands ---------------------------------------------------------------------------------

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
            print(f"  {point.text:<46}{judge(row, point, [])[1].wanted}")


def run_row(row, options, results, after_row):
    """`after_row` is called with the id of each process that an interrupted measurement has
    left."""
    failed, ended = {}, []
    try:
        with processes.Session(options.clan, options.cores, 0) as session:
            try:
                item = measure(row, session, options, failed)
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
    with results.interruptible():
        for row in options.rows:
            run_row(row, options, results, after_row)
    return results.end(options.output)
