"""`clan bench orb`: omniORB calls over CLAN beside omniORB's own transports, in turns.

Columns: clan; giop:tcp and giop:unix as they are; and giop:tcp under CLAN's interposer. Each figure
is the median of the rounds; in a round the columns take turns. README.md says how to read it.
"""

import contextlib
import json
import os
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import arguments
import report

HERE = Path(__file__).resolve().parent
LOAD = HERE / "clan-orb-load"
COLUMNS = ("clan", "tcp", "unix", "tcp+clan")
PATHS = {"clan": "giop:clan:", "tcp": "giop:tcp:", "unix": "giop:unix:", "tcp+clan": "giop:tcp:"}
POOL = ("-ORBthreadPerConnectionPolicy", "0")
IDLE = 1000


class Failed(Exception):
    pass


class Turn:
    """A server by one transport, and clients of it."""

    def __init__(self, column, cores, server_options=()):
        self.column, self.cores = column, cores
        self.directory = tempfile.mkdtemp(prefix="clan-bench-orb-")
        self.environment = {k: v for k, v in os.environ.items()
                            if not k.startswith(("CLAN_", "ORB", "OMNI", "LD_PRELOAD"))}
        preload = {"clan": "libclan-orb.so", "tcp+clan": "libclan-preload.so"}.get(column)
        if preload:
            self.environment["LD_PRELOAD"] = str(HERE.parent.parent / preload)
        endpoint = (f"giop:unix:{self.directory}/socket" if column == "unix"
                    else "giop:tcp:127.0.0.1:")
        more = ["-ORBclanEndPoint", "1"] if column == "clan" else []
        self.running = []
        self.server = self.start("server", "-ORBendPoint", endpoint, *more, *server_options,
                                 core=cores[0])
        self.reference = self.line(self.server)

    def start(self, *words, core=None, program=LOAD):
        pinned = ["taskset", "-c", str(core)] if core is not None else []
        environment = self.environment if program == LOAD else None
        process = subprocess.Popen([*pinned, program, *map(str, words)], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, env=environment, text=True)
        self.running.append(process)
        return process

    def line(self, process, seconds=60):
        if not select.select([process.stdout], [], [], seconds)[0]:
            raise Failed(f"{self.column}: no answer within {seconds} s")
        text = process.stdout.readline().strip()
        if not text:
            raise Failed(f"{self.column}: a program ended: {process.args}")
        return text

    def clients(self, count, operation="null", size=0, ms=200, core=None):
        started = [self.start("client", self.reference, operation, size, ms, self.server.pid,
                              core=core) for _ in range(count)]
        results = [json.loads(self.line(client)) for client in started]
        for client in started:
            client.wait()
        for result in results:
            if not result["path"].startswith(PATHS[self.column]):
                raise Failed(f"{self.column}: calls went by {result['path']}")
        return results

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.running:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


def cpu_us(results):
    """CPU time of a call, of the server and all clients: each says how many processors it had, and
    how many the server had meanwhile."""
    had = sum(r["processors"] for r in results) + statistics.mean(
        r["server_processors"] for r in results)
    return had / sum(r["calls_per_s"] for r in results) * 1e6


# --- what is measured: (column, options) -> {figure: number} --------------------------------------

def null(column, o):
    with Turn(column, o.cores) as turn:
        r = turn.clients(1, ms=o.ms, core=o.cores[1])[0]
        return {"null call p50, us": r["p50"], "null call p99, us": r["p99"]}


def one_core(column, o):
    with Turn(column, (o.cores[0], o.cores[0])) as turn:
        out = {"one core p50, us": turn.clients(1, ms=o.ms, core=o.cores[0])[0]["p50"]}
        turn.start("-c", "while :; do :; done", core=o.cores[0], program="sh")
        results = turn.clients(1, ms=max(o.ms, 500), core=o.cores[0])
        out["one core beside a computation, calls/s"] = results[0]["calls_per_s"]
        out["one core beside a computation, CPU us a call"] = cpu_us(results)
        return out


def many(column, o):
    out = {}
    for count in (1, 3, 6):
        with Turn(column, (None, None)) as turn:
            results = turn.clients(count, ms=o.ms)
            text = f"{count} client{'s' * (count > 1)}"
            out[f"{text}, calls/s"] = sum(r["calls_per_s"] for r in results)
            out[f"{text}, CPU us a call"] = cpu_us(results)
            if count == 3:
                out["3 clients p99, us"] = statistics.median(r["p99"] for r in results)
    return out


def bulk(column, o):
    out = {}
    with Turn(column, o.cores) as turn:
        for size, text in ((65536, "64 KB"), (1_000_000, "1 MB")):
            for operation in ("put", "get"):
                results = turn.clients(1, operation, size, o.ms, o.cores[1])
                out[f"{operation} {text}, us"] = results[0]["p50"]
                out[f"{operation} {text}, CPU us a call"] = cpu_us(results)
    return out


def idle(column, o):
    with Turn(column, (None, None), POOL) as turn:
        before = turn.clients(1, ms=o.ms)[0]["p50"]
        turn.line(turn.start("idle", turn.reference, IDLE, "-ORBmaxGIOPConnectionPerServer",
                             IDLE + 10))
        after = turn.clients(1, ms=o.ms)[0]["p50"]
        proc = Path(f"/proc/{turn.server.pid}")
        threads = len(list((proc / "task").iterdir()))
        pss = int(re.search(r"^Pss: +(\d+)", (proc / "smaps_rollup").read_text(), re.M)[1])
        return {"null call of a pool p50, us": before, f"beside {IDLE} idle connections, us": after,
                "the server's threads then": threads, "its memory then, MB": pss / 1024}


ROWS = {"null": null, "one_core": one_core, "many": many, "bulk": bulk, "idle": idle}
ITEMS = {"null": "null calls, server and client on a core each", "one_core": "both on one core",
         "many": "clients of one server, nobody pinned", "bulk": "sequences of octets",
         "idle": f"beside {IDLE} idle connections, nobody pinned"}
LEGEND = ("clan and the interposer (tcp+clan) spin before they sleep, giop:tcp and giop:unix "
          "sleep. Wanted is said of CLAN's figure")


def bars(machine):
    """figure -> (what is wanted, of the medians by column)"""
    cheap = machine["wake_up"] <= 20
    share = 0.5 if cheap else 1
    limit = 1.5 + 3 * machine["cache_line"]
    times = 5 if cheap else 15
    rules = {
        "null call p50, us": [(f"at most {limit:.2f}", lambda m: m["clan"] <= limit),
                              (f"tcp / {times}", lambda m: m["clan"] * times <= m["tcp"]),
                              ("tcp+clan / 1.5", lambda m: m["clan"] * 1.5 <= m["tcp+clan"])],
        "one core p50, us": [("unix", lambda m: m["clan"] <= m["unix"])],
        "one core beside a computation, calls/s": [("unix", lambda m: m["clan"] >= m["unix"])],
        "3 clients p99, us": [("tcp", lambda m: m["clan"] <= m["tcp"])],
        f"beside {IDLE} idle connections, us": [("that without + 10 %",
                                                 lambda m: m["clan"] <= 1.1 * m["before"])],
    }
    for count, factor in ((1, 8), (3, 4), (6, 3)):
        wanted = factor * share
        rules[f"{count} client{'s' * (count > 1)}, calls/s"] = [
            (f"{wanted:g} x tcp", lambda m, w=wanted: m["clan"] >= w * m["tcp"])]
    for operation in ("put", "get"):
        for text in ("64 KB", "1 MB"):
            rules[f"{operation} {text}, us"] = [("tcp / 4", lambda m: m["clan"] * 4 <= m["tcp"])]
    return rules


def parse():
    parser = arguments.Parser("orb", __doc__.split("\n\n", 1)[0])
    parser.add_argument("--only", metavar="ROW,...", help="only these of: " + ", ".join(ROWS))
    parser.add_lengths("{} rounds of {} ms a turn", rounds=(3, 1), ms=(300, 60))
    options = parser.parse()
    options.only = parser.chosen(options.only, ROWS, "row")
    return options


def rows_of(options, item):
    """Measures an item: a row for each figure and column, the median of the rounds."""
    figures = {}  # figure -> column -> [numbers]
    for _ in range(options.rounds):
        for column in COLUMNS:
            for figure, number in ROWS[item](column, options).items():
                figures.setdefault(figure, {}).setdefault(column, []).append(number)
    rows = []
    for figure, columns in figures.items():
        name, _, unit = figure.rpartition(", ")
        count = re.fullmatch(r"(\d) clients?", name)
        rows += [report.Row("clients" if count else name, column, int(count[1]) if count else 1,
                            statistics.median(numbers), unit, "clients", unit == "calls/s",
                            text=figure, samples=numbers) for column, numbers in columns.items()]
    return rows


def lines_of(rows, rules):
    """What is wanted of the rows, by bars()."""
    medians = {}
    for row in rows:
        medians.setdefault(row.text, {})[row.variant] = row.value
    before = medians.get("null call of a pool p50, us", {}).get("clan", 0)
    lines = []
    for figure, columns in medians.items():
        judged = [(text, holds({**columns, "before": before}))
                  for text, holds in rules.get(figure, ())]
        missed = [text for text, good in judged if not good]
        verdict = "missed" if missed else "met" if judged else ""
        line = report.Line(figure, ", ".join(text for text, _ in judged), verdict)
        line.more = {"missed": ", ".join(missed)} if 0 < len(missed) < len(judged) else {}
        lines.append(line)
    return lines


def main():
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    done = subprocess.run([LOAD, "machine", *map(str, options.cores)], capture_output=True,
                          text=True, check=True)
    costs = json.loads(done.stdout)
    machine = report.describe_machine(
        HERE, options.cores, costs=f"cache line there and back {costs['cache_line']:.2f} us, "
        f"wake-up {costs['wake_up']:.1f} us")
    results = report.Report("orb", "omniORB", machine,
                            f"Medians of {options.rounds} rounds of {options.ms} ms", LEGEND)
    for name in options.only:
        try:
            rows = rows_of(options, name)
        except Failed as failed:
            print(f"clan bench orb: {failed}", file=sys.stderr)
            return 1
        results.add(report.Item(name, ITEMS[name], rows, lines_of(rows, bars(costs))))
    return results.end(options.output)


if __name__ == "__main__":
    sys.exit(main())
