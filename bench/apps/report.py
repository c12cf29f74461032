"""What is printed and written: a table, apps.md, apps.json, and apps.svg with a bar per ratio."""

import datetime
import json
import math
import os
import platform
from dataclasses import asdict
from html import escape
from pathlib import Path


def first_line(path):
    try:
        return Path(path).read_text().split("\n", 1)[0]
    except OSError:
        return ""


def describe_machine(build, cores):
    """As clan-bench describes it."""
    model = "unknown CPU"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(": ", 1)[1]
            break
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    governor = first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or "none"
    return {
        "cpu": model, "cores": len(os.sched_getaffinity(0)), "used": cores,
        "kernel": f"{platform.system()} {platform.release()}", "governor": governor, "date": date,
        "commit": build["commit"], "compiler": build["compiler"],
        "load": first_line("/proc/loadavg")
    }


def busy(machine):
    """More than half of the cores' worth of other work in the last minute."""
    return float(machine["load"].split()[0]) > 0.5 * machine["cores"]


def machine_text(machine, sockmap):
    lines = [
        f"machine   {machine['cpu']} · {machine['cores']} cores · governor {machine['governor']}",
        f"system    {machine['kernel']} · load {machine['load']}",
        f"build     {machine['compiler']} · commit {machine['commit']} · {machine['date']}",
        f"cores     {' and '.join(map(str, machine['used']))}", f"sockmap   {sockmap}"
    ]
    if busy(machine):
        lines.append("warning   other work is running here; every figure will show it")
    return "\n".join(lines) + "\n"


def value(number):
    """1234567 as 1.23M."""
    if number is None:
        return "-"
    for factor, unit in ((1e6, "M"), (1e3, "k")):
        if abs(number) >= 10 * factor or (factor == 1e6 and abs(number) >= factor):
            return f"{number / factor:.3g}{unit}"
    return f"{number:.0f}" if abs(number) >= 100 else f"{number:.3g}"


def cells(line):
    ratio = spread = "-"
    if line.ratio is not None:
        ratio, spread = f"{line.ratio:.2f}", f"{line.low:.2f}..{line.high:.2f}"
    elif line.low is not None:
        spread = f"{value(line.low)}..{value(line.high)}"
    return [
        line.text,
        value(line.stock),
        value(line.clan), line.unit, ratio, spread, line.wanted, line.verdict,
        value(line.sockmap), "-" if line.ahead is None else f"{line.ahead:.2f}",
        " / ".join(f"{part:.2f}" for part in line.busy or []) or "-", line.path,
        line.note
    ]


HEADING = [
    "", "stock", "CLAN", "unit", "ratio", "spread", "wanted", "", "sockmap", "ahead", "processors",
    "bytes went", "remark"
]


def table(lines):
    """As text, columns aligned."""
    rows = [HEADING, *map(cells, lines)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADING))]
    out = []
    for row in rows:
        aligned = [cell.rjust(width) if i in (1, 2, 4, 8, 9) else cell.ljust(width)
                   for i, (cell, width) in enumerate(zip(row, widths))]
        out.append("  " + "  ".join(aligned).rstrip())
    return "\n".join(out) + "\n"


def markdown(results):
    def row(words):
        return "| " + " | ".join(word.replace("|", "\\|") for word in words) + " |"

    lines = results.lines
    out = [
        "## Programs under `clan run`", "",
        f"What `clan bench apps` measured: {results.how}. Each figure is the median; the ratio is "
        "that of",
        "CLAN to stock TCP over loopback, run in turns, pair by pair; its spread is the smallest "
        "and the",
        "largest. `sockmap`: stock, with a BPF program in the kernel that takes what is sent past "
        "the stack;",
        "`ahead`: CLAN against that. `processors`: what server and load together had of them, on "
        "average, with",
        "stock and with CLAN.", "", "```",
        results.machine_text.rstrip("\n"), "```", "",
        row(HEADING), "|" + "---|" * len(HEADING), *(row(cells(line)) for line in lines)
    ]
    for heading, entries in (("Failed", results.failed), ("Skipped", results.skipped)):
        if entries:
            out += [
                "", f"{heading}:", "", *(f"- `{name}`: {text}" for name, text in entries.items())
            ]
    return "\n".join(out) + "\n"


def as_json(results):
    return json.dumps({"machine": results.machine, "how": results.how, "sockmap": results.sockmap,
                       "results": [asdict(line) for line in results.lines],
                       "failed": results.failed, "skipped": results.skipped}, indent=2) + "\n"


# The colours of the other plots.
INK, FAINT, GRID = "#1f2933", "#7b8794", "#e4e7eb"
CLAN, MISSED, NEUTRAL = "#d64545", "#f0a202", "#9aa5b1"
WIDTH, LEFT, RIGHT, TOP, STEP = 900, 400, 60, 88, 24


def svg(results):
    """A bar for each ratio on a logarithmic axis, a whisker for its spread, a mark for what is
    wanted."""
    lines = [line for line in results.lines if line.ratio is not None]
    limits = {id(line): float(line.wanted.split()[-1]) for line in lines}
    highest = max([line.high for line in lines] + list(limits.values()) + [10])
    lowest = min([line.low for line in lines] + [0.8])
    low, high = math.log10(lowest) - 0.05, math.log10(highest) + 0.05

    def x(ratio):
        return LEFT + (math.log10(ratio) - low) / (high - low) * (WIDTH - RIGHT - LEFT)

    def text(at, y, words, anchor="start", size=12, colour=INK, more=""):
        return (
            f'<text x="{at:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
            f'fill="{colour}" {more}>{escape(words)}</text>')

    def stroke(x1, y1, x2, y2, colour, width):
        return (f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
                f'stroke-width="{width}"/>')

    bottom = TOP + STEP * len(lines)
    machine = results.machine
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 56}" '
        f'width="{WIDTH}" height="{bottom + 56}" '
        'font-family="DejaVu Sans, Helvetica, Arial, sans-serif">',
        f'<rect width="{WIDTH}" height="{bottom + 56}" fill="#ffffff"/>',
        text(24, 32, "Programs under clan run, times as good as over stock TCP", size=18,
             more='font-weight="bold"'),
        text(
            24, 52, f"{machine['cpu']}, {machine['cores']} cores, {machine['kernel']}, "
            f"{machine['date'][:10]}, commit {machine['commit']}", size=11, colour=FAINT)
    ]
    for exponent in range(math.floor(low), math.ceil(high) + 1):
        for step in (1, 2, 5):
            tick = step * 10.0 ** exponent
            if low <= math.log10(tick) <= high:
                out.append(
                    stroke(x(tick), TOP - 8, x(tick), bottom, FAINT if tick == 1 else GRID, 1))
                out.append(text(x(tick), TOP - 14, f"{tick:g}", "middle", 11, FAINT))
    for i, line in enumerate(lines):
        y = TOP + STEP * i + STEP / 2
        colour = {"ok": CLAN, "MISSED": MISSED}.get(line.verdict, NEUTRAL)
        start, end = sorted((x(1), x(line.ratio)))
        out += [
            text(LEFT - 10, y + 4, line.text, "end", 11),
            f'<rect x="{start:.1f}" y="{y - 7:.1f}" width="{max(end - start, 1):.1f}" height="14" '
            f'fill="{colour}"/>',
            stroke(x(line.low), y, x(line.high), y, INK, 1.5),
            stroke(x(limits[id(line)]), y - 10, x(limits[id(line)]), y + 10, INK, 2.5),
            text(WIDTH - RIGHT + 8, y + 4, f"{line.ratio:.2f}", size=11)
        ]
    legend = (
        "Red: as wanted (black mark). Orange: less than wanted. Grey: does not count. Thin line: "
        f"spread of {results.how}.")
    out.append(text(24, bottom + 32, legend, size=11, colour=FAINT))
    return "\n".join(out) + "\n</svg>\n"


def write(results, directory):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "apps.md").write_text(markdown(results))
    (directory / "apps.json").write_text(as_json(results))
    (directory / "apps.svg").write_text(svg(results))
