"""`clan bench rpc`: remote calls of libtirpc over CLAN beside its own transports and beside the
interposer, and clan-rpcgen's stubs, all in turns.

A figure is microseconds per call, the minimum and the median of all turns. A bar is judged by the
median of the turns' ratios.
"""

import argparse
import os
import signal
import statistics
import sys
import time
from pathlib import Path

import arguments
import report
from loads import Pair, in_turns
from processes import Failed, Session, Skip

HERE = Path(__file__).resolve().parent
LIBRARIES = HERE.parent.parent
SIZES = [0, 8, 64, 256, 1440, 3072, 65536, 1 << 20]
PAPER = [0, 8, 64, 256, 1440, 3072]
STAGES = ["direct", "reduced", "optimized"]


def pair(session, name, cores, transport="tcp", preload=None, stage=None,
         program="clan-rpc-load"):
    words = [f"LD_PRELOAD={LIBRARIES / preload}"] if preload else []
    words += [f"CLAN_RPC_STAGE={stage}"] if stage else []
    return Pair(session, name, ["env", *words, HERE / program, transport, *cores])


def columns(cores):
    """What starts the pair of each, in a session."""
    more = {"vRPC": {"preload": "libclanrpc.so"}, "tcp": {}, "local": {"transport": "local"},
            "udp": {"transport": "udp"}, "interposer": {"preload": "libclan-preload.so"},
            "ShrimpRPC": {"transport": "shrimp", "program": "clan-shrimp-load"}}
    return {name: lambda session, name=name: pair(session, name, cores, **more[name])
            for name in more}


def can(column, kind, size):
    if kind == "cacheline":
        return column == "ShrimpRPC"
    if kind == "xdr":
        return column == "vRPC optimized"
    if column == "ShrimpRPC":
        return size in PAPER
    return column != "udp" or size <= 3072


def measure(makers, points, options, failed, busy=None):
    """{(kind, size): {column: [(low, median, CPU time), ...]}}: in turns, by pairs that are all
    there at once; beside a computation on the core `busy`."""
    figures = {point: {} for point in points}
    for number in range(options.rounds):
        with Session(options.clan, options.cores, 0) as session:
            session.schedules_apart = False
            if busy is not None:
                session.start("sh", "-c", "while :; do :; done", core=options.cores.index(busy))
                time.sleep(0.2)
            pairs = {}
            for name, make in makers.items():
                try:
                    pairs[name] = make(session)
                except (Failed, Skip) as reason:
                    failed[name] = str(reason)
            for kind, size in points:
                for name in in_turns(pairs, number):
                    if not can(name, kind, size):
                        continue
                    try:
                        low, median, *_, cpu = pairs[name].ask(kind, size, options.ms)
                        figures[kind, size].setdefault(name, []).append((low, median, cpu))
                    except Failed as reason:
                        failed[name] = str(reason)
                        pairs.pop(name).end()
            for left in pairs.values():
                left.end()
    return figures


def run_crowd(options, failed):
    """Calls per second, and microseconds of CPU time a call, of all processes: {column: turns}"""
    figures = {}
    for number in range(options.rounds):
        for name in in_turns(["vRPC", "tcp"], number):
            words = [f"LD_PRELOAD={LIBRARIES / 'libclanrpc.so'}"] * (name == "vRPC")
            try:
                with Session(options.clan, sorted(os.sched_getaffinity(0)), 0) as session:
                    text, _ = session.run("env", *words, HERE / "clan-rpc-load", "tcp", "crowd", 8,
                                          options.ms * 5)
                figures.setdefault(name, []).append(tuple(map(float, text.split())))
            except Failed as reason:
                failed[f"8 clients, {name}"] = str(reason)
    return figures


def paper(options, failed):
    """Figures 4 to 6: the three stages of vRPC, and ShrimpRPC, by size; and what vRPC's time is
    made of."""
    makers = {f"vRPC {s}": lambda session, s=s: pair(session, f"vRPC {s}", options.cores,
                                                     preload="libclanrpc.so", stage=s)
              for s in STAGES}
    makers["SunRPC (tcp)"] = columns(options.cores)["tcp"]
    makers["ShrimpRPC"] = columns(options.cores)["ShrimpRPC"]
    points = [("cacheline", 0)] + [(kind, n) for n in PAPER for kind in ("echo", "xdr")]
    return measure(makers, points, options, failed)


def shares(rows):
    """Figure 5: what an optimized call's time goes to, rows beside those measured. Lines and XDR
    are measured by themselves; the rest is control: heads, credentials, the rings' positions,
    libtirpc's dispatch."""
    at = {(row.benchmark, row.x, row.variant): row.value for row in rows}
    line, found = at.get(("cacheline", 0, "ShrimpRPC")), []
    for size in PAPER if line else ():
        whole = at.get(("echo", size, "vRPC optimized"))
        # A null call's look-up measures no data.
        xdr = at.get(("xdr", size, "vRPC optimized"), 0.0) if size else 0.0
        if whole is not None:
            parts = {"line": line, "xdr": xdr, "rest": whole - line - xdr}
            found += [report.Row("share", part, size, us, "us", text=named("share", size))
                      for part, us in parts.items()]
    return found


BULK = 65536  # from here on a call is a throughput: its CPU time is shown


def named(kind, size):
    return f"{kind} " + ("null" if size == 0 else f"{size} B" if size < BULK
                         else f"{size >> 10} KB")


def rows_of(figures):
    """A row for each point and column, microseconds a call. A sample is (minimum, median, CPU
    time)."""
    return [report.Row(kind, name, size, statistics.median(s[1] for s in samples), "us",
                       low=min(s[0] for s in samples), text=named(kind, size), samples=samples,
                       cpu=statistics.median(s[2] for s in samples) if size >= BULK else None)
            for (kind, size), columns in figures.items() for name, samples in columns.items()
            if samples]


def ratio(figures, point, slow, fast):
    """How many times as long `slow` takes, the median of the turns; None: not measured."""
    at = figures.get(point, {})
    pairs = list(zip(at.get(slow, []), at.get(fast, [])))
    return statistics.median(a[1] / b[1] for a, b in pairs) if pairs else None


def median(figures, point, name):
    samples = figures.get(point, {}).get(name)
    return statistics.median(s[1] for s in samples) if samples else None


def limits(apart):
    """Lines of two cores that are bound by the cache line's round trip."""
    trip = median(apart, ("cacheline", 0), "ShrimpRPC")
    own, shrimp = (median(apart, ("echo", 0), name) for name in ("vRPC", "ShrimpRPC"))
    if trip and own:
        yield report.at_least(f"vRPC null, us (cache-line round trip {trip:.3f})", own,
                              0.3 + 3 * trip, most=True)
    if trip and shrimp:
        yield report.at_least("ShrimpRPC null in cache-line round trips", shrimp / trip, 3,
                              most=True)


def bars(apart, together, beside, crowd):
    """What is wanted of two cores, of one, of one beside a computation, and of the crowd's
    {column: [calls/s]}."""
    dear = (median(apart, ("echo", 0), "tcp") or 0) > 20
    wanted_of = [
        ("vRPC null against tcp", apart, 0, "tcp", "vRPC", 40 if dear else 12),
        ("vRPC 3 KB in and out against tcp", apart, 3072, "tcp", "vRPC", 25 if dear else 8),
        ("vRPC 1 MB in and out against tcp", apart, 1 << 20, "tcp", "vRPC", 3),
        ("vRPC null against the interposer", apart, 0, "interposer", "vRPC", 1.5),
        *((f"ShrimpRPC against vRPC, {size} B", apart, size, "vRPC", "ShrimpRPC", 2)
          for size in (0, 8, 64, 256)),
        ("one core, null, against local", together, 0, "local", "vRPC", 1),
        ("one core beside a computation, null, against local", beside, 0, "local", "vRPC", 1)
    ]
    found = list(limits(apart))
    for text, figures, size, slow, fast, wanted in wanted_of:
        value = ratio(figures, ("echo", size), slow, fast)
        if value is not None:
            found.append(report.at_least(text, value, wanted))
    if "vRPC" in crowd and "tcp" in crowd:
        found.append(report.at_least(
            "8 clients, calls/s against tcp",
            statistics.median(crowd["vRPC"]) / statistics.median(crowd["tcp"]), 3))
    return found


def parse():
    parser = arguments.Parser("rpc", __doc__.split("\n\n", maxsplit=1)[0])
    parser.add_list()
    parser.add_argument("--paper", action="store_true",
                        help="the paper's stages and sizes instead (figures 4 to 6)")
    parser.add_lengths("{} rounds of {} ms a turn", rounds=(5, 3), ms=(18, 9))
    return parser.parse()


def main():
    options = parse()
    if options.list:
        print(
            "echo, in and out, 0 B to 1 MB: vRPC beside tcp, local, udp, tcp under the interposer, "
            "and ShrimpRPC\n"
            "the same on one core, idle and beside an endless computation\n8 clients of one server")
        return 0
    arguments.end_as_by_interrupt()
    results = report.Report(
        "rpc", "SunRPC", report.describe_machine(HERE, options.cores),
        f"{options.rounds} rounds of {options.ms} ms", "Microseconds per call, minimum / median; "
        "CPU time is that of both ends, user and system. vRPC, ShrimpRPC and the interposer spin "
        "before they sleep; tcp, local and udp sleep.")
    if options.paper:
        rows = rows_of(paper(options, results.failed))
        results.add(report.Item("paper", "stages of the paper",
                                [row for row in rows if row.benchmark != "cacheline"]))
        results.add(report.Item("shares", "what vRPC's time goes to: a cache line there and back, "
                                "XDR at both ends, the rest", shares(rows)))
        results.add(report.Item("cacheline", "a cache line there and back",
                                [row for row in rows if row.benchmark == "cacheline"]))
    else:
        measure_all(options, results)
    return results.end(options.output)


def measure_all(options, results):
    failed, apart = results.failed, {}
    if options.cores[0] != options.cores[1]:
        apart = measure(columns(options.cores), [("cacheline", 0)] + [("echo", n) for n in SIZES],
                        options, failed)
        results.add(report.Item("two cores", "a core each", rows_of(apart)))
    one = [options.cores[1]] * 2
    makers = {n: m for n, m in columns(one).items() if n != "ShrimpRPC"}
    together = measure(makers, [("echo", n) for n in (0, 256, 3072)], options, failed)
    results.add(report.Item("one core", "both on one core", rows_of(together)))
    # The scheduler changes between two rhythms there, one twice as long as the other, for all of
    # them: more turns.
    often = argparse.Namespace(**{**vars(options), "rounds": 4 * options.rounds})
    beside = measure({n: makers[n] for n in ("vRPC", "local", "tcp")}, [("echo", 0)], often, failed,
                     busy=one[0])
    results.add(report.Item("beside", "one core, beside a computation", rows_of(beside)))
    told = run_crowd(options, failed)
    results.add(report.Item("crowd", "8 clients, calls/s; CPU us a call, of all processes", [
        report.Row("crowd", name, 8, statistics.median(t[0] for t in turns), "calls/s", "clients",
                   True, text="8 clients", cpu=statistics.median(t[1] for t in turns),
                   samples=turns) for name, turns in told.items()]))
    results.add(report.Item("bars", "what is wanted", lines=bars(
        apart, together, beside, {n: [t[0] for t in turns] for n, turns in told.items()})))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
