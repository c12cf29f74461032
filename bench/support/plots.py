"""Draws a plot for each benchmark of a file that `clan-bench -o` has written, beside it.

    plots.py DIR/QUESTION.json
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import draw
import report


def plot(name, rows, foot):
    item = SimpleNamespace(title=name, axis="spread", single_word=None, peers=(), limits=(),
                           stated=())
    series = {}
    for row in sorted(rows, key=lambda row: row.x):
        series.setdefault(row.variant, []).append(row)
    return draw.figure(SimpleNamespace(item=item, series=series), foot)


def main():
    file = Path(sys.argv[1])
    data = json.loads(file.read_text())
    machine, found = data["machine"], {}
    foot = (f"{machine['cpu']}, {machine['cores']} cores, {machine['kernel']}, "
            f"{machine['date'][:10]}, commit {machine['commit']}")
    for row in report.rows_of(data):
        if row.value is not None:
            found.setdefault(row.benchmark, []).append(row)
    for name, rows in found.items():
        (file.parent / f"{name}.svg").write_text(plot(name, rows, foot))
    print(f"Written: {file} and a plot per benchmark, {file.parent}/*.svg")


if __name__ == "__main__":
    main()
