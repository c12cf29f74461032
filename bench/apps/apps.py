"""`clan bench apps`: programs nobody here wrote, over stock TCP and over CLAN in turns.

See table.py for what is run and what is wanted, bench/README.md for how to read it.
"""

import subprocess
import sys
from pathlib import Path

import arguments
import draw
import idle
import processes
import report
import sockmap
import table

HERE = Path(__file__).resolve().parent
LEGEND = """Each figure is the median. Ratios are pair by pair, in turns: median (smallest..
largest). `sockmap`: stock, with a BPF program in the kernel that takes what is sent past the stack.
`processors`: what server and load together had of them, on average, with stock and with CLAN."""

# Rows that are not a load in turns.
SPECIAL = {
    "idle-connections": (idle.idle_connections,
                         "10,000 idle connections: memory, time of an event loop"),
    "idle": (idle.idle_processes, "an idle redis with 50 connections: CPU time and wake-ups"),
    "after-silence": (idle.after_silence,
                      "connections that carried 4 MB and fell silent: memory, first round trip"),
    "late": (idle.late_pipe, "a pipe in a set with a connection: how late it is reported"),
}


def row_names():
    return [row.name for row in table.ROWS] + list(SPECIAL)


def print_list():
    width = max(map(len, row_names()))
    for row in table.ROWS:
        for i, bar in enumerate(row.bars):
            print(
                f"{row.name if i == 0 else '':<{width}}  {bar.text}: at least {bar.limit:g} times")
    for name, (_, text) in SPECIAL.items():
        print(f"{name:<{width}}  {text}")


def item_of(name, lines):
    """An item of the report: a column for each way, ratios to stock and to the kernel's own."""
    item = report.Item(name, lines[0].text)
    for line in lines:
        for variant, number, samples in (("stock", line.stock, line.samples.get("stock", [])),
                                         ("clan", line.clan, line.samples.get("clan", [])),
                                         ("sockmap", line.sockmap, [])):
            if number is not None:
                item.rows.append(report.Row(name, variant, 1, number, line.unit, text=line.text,
                                            samples=samples))
        ratios = {"times stock": [line.ratio, line.low, line.high]} if line.ratio else {}
        if line.ahead is not None:
            ratios["times sockmap"] = [line.ahead]
        more = {"processors": " / ".join(f"{part:.2f}" for part in line.busy or []),
                "bytes went": line.path, "remark": line.note}
        if line.ratio is None and line.low is not None:
            more["spread"] = f"{report.value(line.low)}..{report.value(line.high)}"
        item.lines.append(report.Line(line.text, line.wanted, line.verdict, ratios=ratios,
                                      more={name: text for name, text in more.items() if text}))
    return item


def svg(lines, machine, how):
    """The plot of all ratios."""
    lines = [line for line in lines if line.ratio is not None]
    foot = (f"{machine['cpu']}, {machine['cores']} cores, {machine['kernel']}, "
            f"{machine['date'][:10]}, commit {machine['commit']}, {how}")
    rows = {line.text: report.Row(line.row, "times stock", 1, line.ratio, "times", low=line.low,
                                  high=line.high) for line in lines}
    return draw.ratios("Programs under clan run, times as good as over stock TCP", rows, foot,
                       {line.text: float(line.wanted.split()[-1]) for line in lines},
                       [line.text for line in lines if line.verdict != "not judged"])


def parse():
    parser = arguments.Parser(
        "apps", "redis, nginx, memcached, PostgreSQL, iperf3 and sockperf, over stock TCP and "
        "under `clan run` in turns: how many times as good, and how good it should be.")
    parser.add_list()
    parser.add_argument("--only", metavar="NAME,...", help="only these rows")
    parser.add_lengths("{} pairs of runs of {} s for each row", pairs=(5, 3), seconds=(2, 1))
    options = parser.parse()
    options.names = parser.chosen(options.only, row_names(), "row")
    options.clan = options.clan or HERE.parent.parent.parent / "bin" / "clan"
    return options


def run_row(name, options):
    with processes.Session(options.clan, options.cores, options.seconds,
                           options.redirection) as session:
        if name in SPECIAL:
            return SPECIAL[name][0](session, options.pairs)
        row = next(row for row in table.ROWS if row.name == name)
        return table.measure(row, session, options.pairs)


def run_rows(options, results, found):
    for name in options.names:
        try:
            lines = run_row(name, options)
        except processes.Skip as skip:
            results.skipped[name] = str(skip)
            print(f"{name}: skipped: {skip}", flush=True)
            continue
        except (processes.Failed, OSError, subprocess.SubprocessError, LookupError,
                ValueError) as failed:
            text = str(failed) if isinstance(failed, processes.Failed) else repr(failed)
            results.failed[name] = text
            print(f"{name}: failed: {text}", flush=True)
            continue
        found += lines
        results.add(item_of(name, lines))


def main():
    options = parse()
    if options.list:
        print_list()
        return 0
    arguments.end_as_by_interrupt()
    try:
        options.redirection = sockmap.Redirection()
        kernels_own = "a column of its own"
    except sockmap.Refused as refused:
        options.redirection = None
        kernels_own = f"not available: {refused}"
    machine = report.describe_machine(HERE, options.cores, sockmap=kernels_own)
    results = report.Report("apps", "Programs under `clan run`", machine,
                            f"{options.pairs} pairs of {options.seconds} s", LEGEND)
    found = []
    try:
        with results.interruptible():
            run_rows(options, results, found)
    finally:
        if options.redirection is not None:
            options.redirection.close()
    return results.end(options.output, {"apps.svg": svg(found, machine, results.how)})


if __name__ == "__main__":
    sys.exit(main())
