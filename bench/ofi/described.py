"""What `clan bench ofi` and `mpi` print and write: a table per row, the bars, NAME.md and
NAME.json."""

import json
import os
import re
import subprocess
from dataclasses import asdict

import report


def lines_of(command):
    try:
        return subprocess.run(command, capture_output=True, text=True,
                              timeout=20).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []


def libfabric_version():
    """Of the library that programs get."""
    for line in lines_of(["/sbin/ldconfig", "-p"]):
        if found := re.search(r"libfabric\.so\.1 .*=> (\S+)", line):
            return os.path.basename(os.path.realpath(found[1]))
    return ""


def mpi_version():
    return (lines_of(["mpirun", "--version"]) or ["unknown"])[0]


LEGEND = """\
Microseconds per operation, minimum / median; beside them how many times as long the others take,
turn by turn: median (smallest..largest; that of the minima). Wanted: at least that many times. CPU
time: user and system, of all processes, for an operation; of ends that poll twice what passes.
"""


def machine_text(machine):
    lines = [
        f"machine   {machine['cpu']} · {machine['cores']} cores · governor {machine['governor']}",
        f"system    {machine['kernel']} · load {machine['load']}",
        f"build     {machine['compiler']} · commit {machine['commit']} · {machine['date']}",
        f"others    {machine['libfabric']} · {machine['mpirun']}",
        f"cores     {' and '.join(map(str, machine['used']))}"
    ]
    if report.busy(machine):
        lines.append("warning   other work is running here; every figure will show it")
    return "\n".join(lines) + "\n"


def number(us):
    return f"{us:.0f}" if us >= 100 else f"{us:.1f}" if us >= 10 else f"{us:.2f}"


def heading(row):
    return [
        "", *(f"{c}" for c in row.columns), *(f"{c}/clan" for c in row.columns[1:]), "wanted", ""
    ]


def cells(row, line):
    out = [line.text]
    for column in row.columns:
        figure = line.figures.get(column)
        out.append(f"{number(figure[0])} / {number(figure[1])}" if figure else "-")
    for column in row.columns[1:]:
        ratio = line.ratios.get(column)
        out.append(
            f"{ratio[0]:.2f} ({ratio[1]:.2f}..{ratio[2]:.2f}; {ratio[3]:.2f})" if ratio else "-")
    return [*out, line.wanted, line.verdict]


def cpu_cells(row, line):
    """Below a throughput: CPU time, and how many times as much the others take."""
    others = row.columns[1:]
    out = ["  CPU time of both ends"]
    out += [number(line.cpu[c]) if c in line.cpu else "-" for c in row.columns]
    clan = line.cpu.get("clan", 0)
    out += [f"{line.cpu[c] / clan:.2f}" if clan > 0 and c in line.cpu else "-" for c in others]
    return [*out, "", ""]


def body_of(row, lines):
    for line in lines:
        yield cells(row, line)
        if line.cpu:
            yield cpu_cells(row, line)


def table(row, lines):
    """As text, columns aligned."""
    body = [heading(row), *body_of(row, lines)]
    widths = [max(len(r[i]) for r in body) for i in range(len(body[0]))]
    figures = range(1, 2 * len(row.columns))
    text = ""
    for words in body:
        aligned = [
            words[i].rjust(w) if i in figures else words[i].ljust(w) for i, w in enumerate(widths)
        ]
        text += "  " + "  ".join(aligned).rstrip() + "\n"
    return text + dropped(row, lines)


def dropped(row, lines):
    """How many slices of which columns were dropped because another process took the processor of
    the thread that measures, and kept though another thread of its own process did, such as the one
    that drives CLAN."""
    text = ""
    for what, of in (("dropped: another process had the processor",
                      "dropped"), ("kept: another thread of the process had it", "shared")):
        counts = {c: sum(getattr(line, of).get(c, 0) for line in lines) for c in row.columns}
        if any(counts.values()):
            shown = ", ".join(f"{c} {n}" for c, n in counts.items())
            text += f"slices {what}: {shown}\n"
    return text


def verdicts(results):
    return [(line, line.verdict) for _, lines in results.tables for line in lines if line.wanted]


def bars(results):
    all_ = verdicts(results)
    met = sum(v.startswith("met") for _, v in all_)
    missed = [line for line, v in all_ if v.startswith("not met")]
    text = f"bars: {met} met, {len(missed)} not met, {len(all_) - met - len(missed)} not measured\n"
    for line in missed:
        ratios = ", ".join(f"{c} {r[0]:.2f} (minima {r[3]:.2f})" for c, r in line.ratios.items()
                           if c in line.wanted)
        reached = ratios or number(line.figures['clan'][1])
        text += f"  not met: {line.text}: {reached}, wanted {line.wanted}\n"
    return text


def markdown(results):
    def row_of(words):
        return "| " + " | ".join(word.replace("|", "\\|") for word in words) + " |"

    out = [
        f"## {results.title}", "",
        f"What `clan bench {results.name}` measured: {results.how}, all columns in turns.", LEGEND,
        "", "```",
        results.machine_text.rstrip("\n"),
        f"load      {results.machine.get('load_after', '')} at the end", "```"
    ]
    for row, lines in results.tables:
        out += [
            "", f"### {row.name}: {row.text}", "",
            row_of(heading(row)), "|" + "---|" * len(heading(row)),
            *map(row_of, body_of(row, lines))
        ]
        if said := dropped(row, lines):
            out += ["", said.rstrip("\n")]
    out += ["", "```", bars(results).rstrip("\n"), "```"]
    for title, entries in (("Failed", results.failed), ("Not available", results.missing)):
        if entries:
            out += ["", f"{title}:", "", *(f"- {name}: {text}" for name, text in entries.items())]
    return "\n".join(out) + "\n"


def as_json(results):
    lines = [asdict(line) for _, lines in results.tables for line in lines]
    return json.dumps({"machine": results.machine, "how": results.how, "failed": results.failed,
                       "missing": results.missing, "results": lines}, indent=2) + "\n"


def write(results, directory):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{results.name}.md").write_text(markdown(results))
    (directory / f"{results.name}.json").write_text(as_json(results))
