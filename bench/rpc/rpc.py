"""`clan bench rpc`: remote calls of libtirpc over CLAN beside its own transports and beside the
interposer, and clan-rpcgen's stubs, all in turns.

A figure is microseconds per call, the minimum and the median of all turns. A bar is judged by the
median of the turns' ratios.
"""

import argparse
import contextlib
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import arguments
import report
from rpc_table import bars, crowd_line, ratio, table

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
    return measure(makers, points, options, failed), list(makers)


def shares(figures):
    """Figure 5: a call's time by what it goes to. Lines and XDR are measured by themselves; the
    rest is control: heads, credentials, the rings' positions, libtirpc's dispatch."""
    line = statistics.median(s[1] for s in figures["cacheline", 0]["ShrimpRPC"])
    stage = "vRPC optimized"
    rows = [
        "| vRPC's time, us | call | a cache line there and back | XDR, both ends | the rest |",
        "|---|---|---|---|---|"
    ]
    for size in PAPER:
        whole = statistics.median(s[1] for s in figures["echo", size][stage])
        xdr = statistics.median(s[1] for s in figures["xdr", size][stage]) if size else 0.0
        rest = whole - line - xdr
        parts = " | ".join(f"{part:.2f} ({100 * part / whole:.0f} %)" for part in (line, xdr, rest))
        rows.append(f"| {'null' if size == 0 else f'{size} B'} | {whole:.2f} | {parts} |")
    return "\n".join(rows)


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
    machine = report.describe_machine(json.loads((HERE / "build.json").read_text()), options.cores)
    text = [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['kernel']}, load {machine['load']}, "
        f"commit {machine['commit']}, {machine['date']}; {options.rounds} rounds of {options.ms} "
        "ms",
        "Microseconds per call, minimum / median; CPU time is that of both ends, user and system."
    ]
    print("\n".join(text), flush=True)
    failed, found, results = {}, [], {}

    def say(part):
        text.append("\n" + part)
        print("\n" + part, flush=True)

    if options.paper:
        figures, names = paper(options, failed)
        say(
            table("stages of the paper", {p: f
                                          for p, f in figures.items() if p[0] == "echo"}, names))
        say(shares(figures))
        results["paper"] = figures
    else:
        two = options.cores[0] != options.cores[1]
        apart = measure(columns(options.cores), [("cacheline", 0)] +
                        [("echo", n) for n in SIZES], options, failed) if two else {}
        if two:
            say(table("two cores", apart, list(columns(options.cores))))
        one = [options.cores[1]] * 2
        makers = {n: m for n, m in columns(one).items() if n != "ShrimpRPC"}
        together = measure(makers, [("echo", n) for n in (0, 256, 3072)], options, failed)
        say(table("one core", together, list(makers)))
        # The scheduler changes between two rhythms there, one twice as long as the other, for all
        # of them: more turns.
        often = argparse.Namespace(**{**vars(options), "rounds": 4 * options.rounds})
        with Computation(one[0]):
            beside = measure({n: makers[n]
                              for n in ("vRPC", "local", "tcp")}, [("echo", 0)], often, failed)
        say(table("one core, beside a computation", beside, ["vRPC", "local", "tcp"]))
        told = run_crowd(options, failed)
        crowd, cpu = ({n: [t[i] for t in turns] for n, turns in told.items()} for i in (0, 1))
        if crowd:
            say(crowd_line(crowd, cpu))
        found = bars(apart, together, crowd)
        value = ratio(beside, ("echo", 0), "local", "vRPC")
        if value is not None:
            found.append(("one core beside a computation, null, against local", f"{value:.2f}",
                          "at least 1", value >= 1))
        say("\n".join(["| question | figure | wanted | |", "|---|---|---|---|"] + [
            f"| {what} | {figure} | {wanted} | {'ok' if met else 'missed'} |"
            for what, figure, wanted, met in found
        ]))
        results.update({
            "two cores": apart, "one core": together, "beside a computation": beside,
            "8 clients": {("calls/s", 8): crowd, ("CPU us a call", 8): cpu}
        })
    for name, why in failed.items():
        print(f"failed: {name}: {why}")
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "rpc.md").write_text("\n".join(text) + "\n")
        plain = {
            name: [{"kind": k, "bytes": n, "figures": f} for (k, n), f in figures.items()]
            for name, figures in results.items()
        }
        (options.output / "rpc.json").write_text(
            json.dumps({"machine": machine, "results": plain, "failed": failed}, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
