"""`clan bench rpc`: remote calls of libtirpc over CLAN beside its own transports and beside the
interposer, and clan-rpcgen's stubs, all in turns.

A figure is microseconds per call, the minimum and the median of all turns. A bar is judged by the
median of the turns' ratios.
"""

import argparse
import contextlib
import os
import select
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import arguments
import bars
import report

HERE = Path(__file__).resolve().parent
LIBRARIES = HERE.parent.parent
SIZES = [0, 8, 64, 256, 1440, 3072, 65536, 1 << 20]
PAPER = [0, 8, 64, 256, 1440, 3072]
STAGES = ["direct", "reduced", "optimized"]


class Failed(Exception):
    pass


class Pair:
    """A server and a client of one column, asked by lines."""

    def __init__(self, name, program, transport, cores, preload=None, stage=None):
        environment = {
            k: v
            for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("CLAN_")
        }
        if preload:
            environment["LD_PRELOAD"] = str(LIBRARIES / preload)
        if stage:
            environment["CLAN_RPC_STAGE"] = stage
        self.name = name
        self.process = subprocess.Popen(
            [HERE / program, transport, *map(str, cores)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1, env=environment)
        self.line(30)

    def line(self, limit):
        if not select.select([self.process.stdout], [], [], limit)[0]:
            raise Failed(f"{self.name}: no answer in {limit} s")
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"{self.name}: ended: {self.process.stderr.read()[-200:].strip()}")
        return line

    def ask(self, kind, size, ms):
        self.process.stdin.write(f"{kind} {size} {ms}\n")
        self.process.stdin.flush()
        low, median, *_, cpu = map(float, self.line(60).split())
        return low, median, cpu

    def end(self):
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def columns(cores):
    return {
        "vRPC": lambda: Pair("vRPC", "clan-rpc-load", "tcp", cores, "libclanrpc.so"),
        "tcp": lambda: Pair("tcp", "clan-rpc-load", "tcp", cores),
        "local": lambda: Pair("local", "clan-rpc-load", "local", cores),
        "udp": lambda: Pair("udp", "clan-rpc-load", "udp", cores),
        "interposer": lambda: Pair("interposer", "clan-rpc-load", "tcp", cores, "libclan-preload.so"
                                   ),
        "ShrimpRPC": lambda: Pair("ShrimpRPC", "clan-shrimp-load", "shrimp", cores),
    }


def can(column, kind, size):
    if kind == "cacheline":
        return column == "ShrimpRPC"
    if kind == "xdr":
        return column == "vRPC optimized"
    if column == "ShrimpRPC":
        return size in PAPER
    return column != "udp" or size <= 3072


def measure(makers, points, options, failed):
    """{(kind, size): {column: [(low, median, CPU time), ...]}}: in turns, by pairs that are all
    there at once."""
    figures = {point: {} for point in points}
    for number in range(options.rounds):
        pairs = {}
        try:
            for name, make in makers.items():
                try:
                    pairs[name] = make()
                except (Failed, OSError) as reason:
                    failed[name] = str(reason)
            for kind, size in points:
                order = list(pairs) if number % 2 == 0 else list(reversed(pairs))
                for name in order:
                    if not can(name, kind, size):
                        continue
                    try:
                        figures[kind, size].setdefault(name, []).append(pairs[name].ask(
                            kind, size, options.ms))
                    except (Failed, OSError) as reason:
                        failed[name] = str(reason)
                        pairs.pop(name).end()
        finally:
            for pair in pairs.values():
                pair.end()
    return figures


def one_crowd(preload, ms):
    """Calls per second, and microseconds of CPU time a call, of all processes."""
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    if preload:
        environment["LD_PRELOAD"] = str(LIBRARIES / preload)
    done = subprocess.run([HERE / "clan-rpc-load", "tcp", "crowd", "8",
                           str(ms)], env=environment, text=True, capture_output=True, timeout=60)
    if done.returncode != 0:
        raise Failed(done.stderr[-200:].strip())
    return tuple(map(float, done.stdout.split()))


def run_crowd(options, failed):
    figures = {}
    for number in range(options.rounds):
        names = [("vRPC", "libclanrpc.so"), ("tcp", None)]
        for name, preload in names if number % 2 == 0 else reversed(names):
            try:
                figures.setdefault(name, []).append(one_crowd(preload, options.ms * 5))
            except (Failed, subprocess.TimeoutExpired) as reason:
                failed[f"8 clients, {name}"] = str(reason)
    return figures


class Computation:
    """Something that never sleeps, on one core."""

    def __init__(self, core):
        self.process = subprocess.Popen([
            sys.executable, "-c", f"import os\nos.sched_setaffinity(0, [{core}])\nwhile True: pass"
        ])

    def __enter__(self):
        time.sleep(0.2)
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def paper(options, failed):
    """Figures 4 to 6: the three stages of vRPC, and ShrimpRPC, by size; and what vRPC's time is
    made of."""
    makers = {
        f"vRPC {s}":
        (lambda s=s: Pair(f"vRPC {s}", "clan-rpc-load", "tcp", options.cores, "libclanrpc.so", s))
        for s in STAGES
    }
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
            found += [report.Row("share", part, size, us, "us", text=bars.named("share", size))
                      for part, us in parts.items()]
    return found


def parse():
    parser = argparse.ArgumentParser(prog="clan bench rpc",
                                     description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--list", action="store_true",
                        help="what is measured, and what is wanted of it")
    parser.add_argument("--paper", action="store_true",
                        help="the paper's stages and sizes instead (figures 4 to 6)")
    parser.add_argument("--quick", action="store_true",
                        help="3 rounds of 9 ms a turn instead of 5 of 18")
    parser.add_argument("--rounds", type=arguments.positive)
    parser.add_argument("--ms", type=arguments.positive)
    parser.add_argument("--cores", type=arguments.cores, metavar="A,B",
                        help="the server's core and the client's")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR",
                        help="directory for rpc.md and rpc.json")
    parser.add_argument("--clan", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.rounds = options.rounds or (3 if options.quick else 5)
    options.ms = options.ms or (9 if options.quick else 18)
    options.cores = options.cores or arguments.first_cores()
    return options


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
        rows = bars.rows(paper(options, results.failed))
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
        results.add(report.Item("two cores", "a core each", bars.rows(apart)))
    one = [options.cores[1]] * 2
    makers = {n: m for n, m in columns(one).items() if n != "ShrimpRPC"}
    together = measure(makers, [("echo", n) for n in (0, 256, 3072)], options, failed)
    results.add(report.Item("one core", "both on one core", bars.rows(together)))
    # The scheduler changes between two rhythms there, one twice as long as the other, for all of
    # them: more turns.
    often = argparse.Namespace(**{**vars(options), "rounds": 4 * options.rounds})
    with Computation(one[0]):
        beside = measure({n: makers[n] for n in ("vRPC", "local", "tcp")}, [("echo", 0)], often,
                         failed)
    results.add(report.Item("beside", "one core, beside a computation", bars.rows(beside)))
    told = run_crowd(options, failed)
    results.add(report.Item("crowd", "8 clients, calls/s; CPU us a call, of all processes", [
        report.Row("crowd", name, 8, statistics.median(t[0] for t in turns), "calls/s", "clients",
                   True, text="8 clients", cpu=statistics.median(t[1] for t in turns),
                   samples=turns) for name, turns in told.items()]))
    results.add(report.Item("bars", "what is wanted", lines=bars.lines(
        apart, together, beside, {n: [t[0] for t in turns] for n, turns in told.items()})))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
