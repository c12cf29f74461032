"""What the benches in Python share: the machine, the figures of a run in one form, the table that
is printed, and the files that are written.

A run has items, an item has rows and lines. A row is a figure, in the table a cell: its text names
the line of the table, its variant the column. A line is what is wanted of the rows of one text, or
of several. NAME.json has all of it (`document`), NAME.md what was printed.
"""

import contextlib
import datetime
import json
import os
import platform
import sys
import textwrap
from dataclasses import asdict, dataclass, field
from pathlib import Path

VERSION = 2   # of NAME.json, as in results.cc


@dataclass
class Row:
    benchmark: str
    variant: str
    x: float
    value: float            # the median
    unit: str               # us, GB/s, k req/s, times, misses, ...
    x_name: str = "bytes"
    higher: bool = False    # more is better
    low: float = None       # least of all samples
    high: float = None      # their 99th percentile, or the greatest
    probe_us: float = None  # a cache line there and back, around the samples
    trips: float = None     # an operation's time in these
    note: str = ""
    text: str = ""
    cpu: float = None       # processor time of all processes, for one operation
    samples: list = field(default_factory=list)


@dataclass
class Line:
    text: str
    wanted: str = ""
    verdict: str = ""       # met, missed, not judged; empty where nothing is wanted
    figure: str = ""
    ratios: dict = field(default_factory=dict)   # by heading: median, least, greatest, of minima
    more: dict = field(default_factory=dict)     # by heading


@dataclass
class Item:
    name: str
    title: str
    rows: list = field(default_factory=list)
    lines: list = field(default_factory=list)
    said: list = field(default_factory=list)     # sentences below the table


def at_least(text, figure, limit, most=False):
    """The line of a bar: at least `limit`, or at most."""
    met = figure <= limit if most else figure >= limit
    return Line(text, f"at {'most' if most else 'least'} {limit:.3g}", "met" if met else "missed",
                f"{figure:.2f}")


def first_line(path):
    try:
        return Path(path).read_text().split("\n", 1)[0]
    except OSError:
        return ""


def describe_machine(here, cores, **others):
    """As clan-bench describes it; `here` has the build.json, `others` are lines of a bench's
    own."""
    build = json.loads((Path(here) / "build.json").read_text())
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
        "load": first_line("/proc/loadavg"), "others": others
    }


def busy(machine):
    """More than half of the cores' worth of other work in the last minute."""
    return float(machine["load"].split()[0]) > 0.5 * machine["cores"]


def machine_text(machine):
    lines = {
        "machine": f"{machine['cpu']} · {machine['cores']} cores · governor {machine['governor']}",
        "system": f"{machine['kernel']} · load {machine['load']}",
        "build": f"{machine['compiler']} · commit {machine['commit']} · {machine['date']}",
        "cores": " and ".join(map(str, machine["used"])), **machine["others"]
    }
    if busy(machine):
        lines["warning"] = "other work is running here; every figure will show it"
    if "load_after" in machine:
        lines["load"] = f"{machine['load_after']} at the end"
    return "".join(f"{name:<9} {text}\n" for name, text in lines.items())


def value(number):
    """1234567 as 1.23M."""
    if number is None:
        return "-"
    for factor, unit in ((1e6, "M"), (1e3, "k")):
        if abs(number) >= 10 * factor or (factor == 1e6 and abs(number) >= factor):
            return f"{number / factor:.3g}{unit}"
    return f"{number:.0f}" if abs(number) >= 100 else f"{number:.3g}"


def cell(row):
    """A figure as a table has it: minimum / median, where a minimum is known."""
    if row is None:
        return "-"
    return value(row.value) if row.low is None else f"{value(row.low)} / {value(row.value)}"


def ratio_cell(figures):
    """The median, and in brackets the least, the greatest, and that of the minima."""
    if not figures:
        return "-"
    spread = "..".join(f"{figure:.2f}" for figure in figures[1:3])
    minima = "".join(f"; {figure:.2f}" for figure in figures[3:])
    return f"{figures[0]:.2f}" + (f" ({spread}{minima})" if spread else "")


def grid(item):
    """The heading of a table, and its lines."""
    cells, lines = {}, {line.text: line for line in item.lines}
    for row in item.rows:
        cells.setdefault(row.text, {})[row.variant] = row
    variants = list(dict.fromkeys(row.variant for row in item.rows))
    found = {row.unit for row in item.rows if not row.text.endswith(row.unit)}
    units = len(found) > 1 and all(len({one.unit for one in row.values()}) == 1
                                   for row in cells.values())
    ratios = list(dict.fromkeys(name for line in item.lines for name in line.ratios))
    more = list(dict.fromkeys(name for line in item.lines for name in line.more))
    figure = any(line.figure for line in item.lines)
    wanted = any(line.wanted for line in item.lines)
    unit = "".join(found) if len(found) == 1 else ""
    head = [unit, *variants, *["unit"] * units, *ratios, *["figure"] * figure, *more,
            *["wanted", ""] * wanted]
    body = []
    for text in dict.fromkeys((*cells, *lines)):
        row, line = cells.get(text, {}), lines.get(text, Line(text))
        unit = next((one.unit for one in row.values()), "")
        body.append([text, *(cell(row.get(name)) for name in variants), *[unit] * units,
                     *(ratio_cell(line.ratios.get(name)) for name in ratios),
                     *[line.figure] * figure, *(line.more.get(name, "") for name in more),
                     *[line.wanted, line.verdict] * wanted])
        if any(one.cpu is not None for one in row.values()):
            body.append(cpu_line(row, variants, [""] * units, ratios)
                        + [""] * (figure + len(more) + 2 * wanted))
    return head, body


def cpu_line(row, variants, units, ratios):
    """Below a figure: the processor time of it, and its ratios."""
    cpu = {name: one.cpu for name, one in row.items() if one.cpu is not None}
    pairs = [[cpu.get(name) for name in heading.split("/")] for heading in ratios]
    return ["  CPU time", *(value(cpu.get(name)) for name in variants), *units,
            *(f"{pair[0] / pair[1]:.2f}" if len(pair) == 2 and all(pair) else "-"
              for pair in pairs)]


def table(item):
    """In markdown, columns aligned."""
    head, body = grid(item)
    lines = [[word.replace("|", "\\|") for word in words] for words in (head, *body)]
    widths = [max(3, *(len(words[i]) for words in lines)) for i in range(len(head))]
    figures = [i > 0 and all(words[i][:1].isdigit() or words[i] in ("", "-") for words in body)
               for i in range(len(head))]
    lines.insert(1, ["-" * (width - 1) + (":" if right else "-")
                     for width, right in zip(widths, figures)])
    out = ["| " + " | ".join(word.rjust(width) if right else word.ljust(width)
                             for word, width, right in zip(words, widths, figures)) + " |"
           for words in lines]
    return "\n".join([*out, *[""] * bool(item.said), *item.said]) + "\n"


def counts(items):
    verdicts = [line.verdict for item in items for line in item.lines]
    return {name: verdicts.count(name) for name in ("met", "missed", "not judged")}


def document(bench, about, counted, items):
    """The one form: `about` has machine, how, warnings; `items` by name are made of plain data."""
    return json.dumps({"version": VERSION, "bench": bench, **about, **counted, "items": items},
                      indent=1) + "\n"


class Report:
    """A run of `clan bench NAME`: prints each item when it is there, and at the end what is met and
    missed."""

    def __init__(self, name, title, machine, how, legend=""):
        self.name, self.title, self.machine, self.how = name, title, machine, how
        self.items, self.failed, self.skipped, self.interrupted = [], {}, {}, False
        self.legend = textwrap.fill(f"{how}. {legend}", 100)
        print(f"{machine_text(machine)}\n{self.legend}\n", flush=True)

    @contextlib.contextmanager
    def interruptible(self):
        """^C ends what is measured here, and the report has what there is so far."""
        try:
            yield
        except KeyboardInterrupt:
            self.interrupted = True
            print("\ninterrupted: what there is so far", flush=True)

    def add(self, item):
        self.items.append(item)
        print(f"{item.name}: {item.title}\n{table(item)}", flush=True)

    def summary(self):
        numbers = counts(self.items)
        out = [", ".join(f"{number} {name}" for name, number in numbers.items())]
        for line in (line for item in self.items for line in item.lines):
            if line.verdict == "missed":
                reached = line.figure or ", ".join(
                    f"{name} {figures[0]:.2f}" for name, figures in line.ratios.items())
                out.append(f"  missed: {line.text}{': ' * bool(reached)}{reached}; wanted: "
                           f"{line.wanted}")
        for what, entries in (("failed", self.failed), ("not available", self.skipped)):
            out += [f"{what}: {name}: {why}" for name, why in entries.items()]
        return "\n".join(out) + "\n"

    def markdown(self):
        out = [f"## {self.title}", f"What `clan bench {self.name}` measured.\n{self.legend}",
               f"```\n{machine_text(self.machine)}```"]
        out += [f"### {item.name}: {item.title}\n\n{table(item)}" for item in self.items]
        return "\n\n".join([*out, f"```\n{self.summary()}```\n"])

    def as_json(self):
        items = {item.name: {"title": item.title, "state": "measured", "said": item.said,
                             "rows": [{"series": row.variant, **asdict(row)} for row in item.rows],
                             "lines": list(map(asdict, item.lines))} for item in self.items}
        return document(self.name, {"machine": self.machine, "how": self.how, "warnings": [],
                                    "failed": self.failed, "skipped": self.skipped},
                        counts(self.items), items)

    def end(self, directory, plots=None):
        """Prints the rest and writes to `directory`, if any: NAME.md, NAME.json and `plots`, texts
        by their names. The exit code."""
        self.machine["load_after"] = first_line("/proc/loadavg")
        print(self.summary(), end="")
        if directory is not None:
            files = {f"{self.name}.md": self.markdown(), f"{self.name}.json": self.as_json(),
                     **(plots or {})}
            try:
                directory.mkdir(parents=True, exist_ok=True)
                for name, text in files.items():
                    (directory / name).write_text(text)
            except OSError as error:
                print(f"clan bench {self.name}: cannot write to {directory}: {error.strerror}",
                      file=sys.stderr)
                return 1
            print(f"Written: {directory}/{', '.join(files)}")
        return 130 if self.interrupted else 1 if self.failed else 0


def rows_of(data):
    """The rows of a NAME.json; ValueError if it is of another version."""
    if data["version"] != VERSION:
        raise ValueError(f"version {data['version']} of the results, {VERSION} is known")
    return [Row(**{key: item for key, item in row.items() if key != "series"})
            for item in data["items"].values() for row in item["rows"]]
