"""What `clan bench paper -o DIR` writes: paper.json, a plot per measured item as SVG and, if a
converter is installed, as PNG, index.html."""

import contextlib
import shutil
import subprocess
from dataclasses import asdict
from html import escape

import draw
import found
import report
from draw import plain
from items import PAPERS

STYLE = """
:root{color:#1f2933;background:#fff;font:16px/1.5 system-ui,"DejaVu Sans",Arial,sans-serif}
body{margin:0 auto;padding:16px;max-width:760px;overflow-wrap:break-word}
h1{font-size:1.5rem;line-height:1.25}h2{margin-top:3rem;border-bottom:2px solid #d64545}
h3{margin:2.5rem 0 .25rem}p{margin:.4rem 0}.faint{color:#66727f;font-size:.9rem}
svg{display:block;width:100%;max-width:640px;height:auto;margin:.75rem 0;border:1px solid #e4e7eb}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.875rem;margin:.5rem 0}
td,th{padding:.25rem .6rem;border-bottom:1px solid #e4e7eb;text-align:left;vertical-align:top}
td{overflow-wrap:anywhere}td.n,th.n{text-align:right;white-space:nowrap}
td:first-child,th:first-child{min-width:6rem;position:sticky;left:0;background:#fff}
td.n small{white-space:normal;color:#66727f}ul{padding-left:1.2rem;margin:.4rem 0}
.met,.missed,.unjudged{font-weight:600}.met{color:#0b6b4f}.missed{color:#b42318}
@media(max-width:600px){svg{width:calc(100% + 32px);margin:.75rem -16px;border-width:1px 0}}
.unjudged{color:#66727f}summary{cursor:pointer;padding:.4rem 0}a{color:#0b5cad}
"""
CLASS = {"met": "met", "missed": "missed", "not judged": "unjudged"}


def as_json(results, about):
    met, missed, skipped = found.counts(results)
    counted = {"met": met, "missed": missed, "skipped": skipped}
    items = {}
    for result in results:
        item = result.item
        items[item.name] = {
            "title": item.title, "state": result.state, "reason": result.reason,
            "claim": item.claim, "remark": item.remark, "times": result.times,
            "stated": [{"text": s.text, "value": s.value, "unit": s.unit, "x": s.x}
                       for s in item.stated],
            "rows": [{"series": label, **asdict(row)}
                     for label, rows in result.series.items() for row in rows],
            "without": result.absent,
            "lines": [{"text": text, "verdict": verdict, "figure": figure}
                      for text, verdict, figure in result.lines],
        }
    return report.document("paper", about, counted, items)


def cells(words, tag="td", numbers=0):
    """A table's row; the cells from `numbers` on are figures."""
    return "<tr>" + "".join(
        f'<{tag}{" class=n" if i >= numbers else ""}>{word}</{tag}>'
        for i, word in enumerate(words)) + "</tr>"


def table(head, rows, numbers):
    return ('<div class="wide"><table>' + cells(head, "th", numbers)
            + "".join(cells(row, "td", numbers) for row in rows) + "</table></div>")


def in_trips(value):
    return "" if value is None else f"{draw.short(value)} trips"


def value_of(row):
    """A row's value and, where it is a time, its cache-line round trips."""
    words = f"{draw.short(row.value)} {row.unit}"
    return f"{words}<br>{in_trips(row.trips)}" if row.trips and row.unit == "us" else words


def stated_table(result):
    base, rows = result.item.single_word, []
    for stated in result.item.stated:
        label, x = stated.ours or ("", None)
        ours = next((row for row in result.series.get(label, ()) if row.x == x), None)
        theirs = draw.said(stated)
        if stated.unit == "us" and base:
            theirs += f"<br>{in_trips(stated.value / base)}"
        mine = f"{value_of(ours)}<br><small>{escape(label)}, {plain(x)}</small>" if ours else ""
        rows.append([escape(stated.text), theirs, mine])
    return table(["the paper", "its number", "ours"], rows, 1) if rows else ""


def rows_table(result):
    xs = sorted({row.x for rows in result.series.values() for row in rows})
    by_x = {label: {row.x: row for row in rows} for label, rows in result.series.items()}
    x_name = next(iter(result.series.values()))[0].x_name
    body = [[plain(x), *(value_of(at[x]) if x in at else "" for at in by_x.values())] for x in xs]
    return table([escape(x_name), *map(escape, by_x)], body, 1)


def section(result):
    item = result.item
    out = [f'<h3 id="{item.name}">{escape(item.title)}</h3>',
           f'<p class="faint">{item.name}</p>']
    if item.claim:
        out.append(f"<p><b>The paper:</b> {escape(item.claim)}</p>")
    if item.remark:
        out.append(f"<p><b>Here:</b> {escape(item.remark)}</p>")
    out.append(draw.figure(result))
    out.append("<ul>" + "".join(
        f'<li><span class="{CLASS[verdict]}">{verdict}</span> {escape(text)}: {escape(figure)}</li>'
        for text, verdict, figure in result.lines) + "</ul>")
    out.append(stated_table(result))
    out.append(f"<details><summary>All figures</summary>{rows_table(result)}</details>")
    notes = dict.fromkeys(row.note for rows in result.series.values() for row in rows if row.note)
    noted = [f"Some points: {'; '.join(notes)}"] * bool(notes)
    again = [f"Measured {result.times} times: the best counts"] * (result.times > 1)
    for words in (*result.absent, *noted, *again):
        out.append(f'<p class="faint">{escape(words)}</p>')
    return "\n".join(out)


def overview(results):
    rows = []
    for result in results:
        item, name = result.item, result.item.name
        said = f"{result.state}: {escape(result.reason)}"
        if result.state == "measured":
            verdicts = [verdict for _, verdict, _ in result.lines]
            said = ", ".join(f'<span class="{CLASS[v]}">{verdicts.count(v)} {v}</span>'
                             for v in CLASS if v in verdicts)
            name = f'<a href="#{name}">{name}</a>'
        rows.append([f"{name}<br>{escape(item.title)}", said])
    return table(["item", ""], rows, 2)


def html(results, about):
    machine = about["machine"]
    out = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>The five papers, measured</title><style>{STYLE}</style></head><body>",
        "<h1>The figures and tables of the five papers, measured</h1>",
        f"<p><b>{found.summary(results)}</b></p>",
        f'<p class="faint">{escape(machine["cpu"])}, {machine["cores"]} cores, '
        f'{escape(machine["kernel"])}, load {machine["load"].split()[0]}, commit '
        f'{escape(machine["commit"])}, {machine["date"]}; {escape(about["how"])}.</p>',
    ]
    out += [f'<p class="missed">{escape(words)}</p>' for words in about["warnings"]]
    out += [
        "<p>Diamonds and dashed lines are the numbers that a paper's text states; it has no "
        "curves. A time is shown in round trips of a cache line between our two cores; the "
        "paper's in its own smallest round trip.</p>", overview(results)]
    for paper, title in {**PAPERS, "readme": "Programs as they are"}.items():
        measured = [r for r in results if r.item.paper == paper and r.state == "measured"]
        if measured:
            out += [f"<h2>{escape(title)}</h2>", *map(section, measured)]
    return "\n".join([*out, "</body></html>", ""])


# What makes PNG of SVG, the best first.
CONVERTERS = (("rsvg-convert", "-z", "2", "-o", "{png}", "{svg}"),
              ("inkscape", "-d", "192", "-o", "{png}", "{svg}"),
              ("convert", "-density", "192", "{svg}", "{png}"))


def write_png(svg):
    """Writes a plot as PNG beside it, if a converter is installed that can."""
    png = svg.with_suffix(".png")
    for words in (words for words in CONVERTERS if shutil.which(words[0])):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run([word.format(svg=svg, png=png) for word in words], timeout=60,
                           check=True, capture_output=True)
            return
        png.unlink(missing_ok=True)


def write(results, about, directory):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "paper.json").write_text(as_json(results, about))
    (directory / "index.html").write_text(html(results, about))
    machine = about["machine"]
    foot = (f"{machine['cpu']}, {machine['cores']} cores, {machine['kernel']}, "
            f"{machine['date'][:10]}, {about['how'].split(',')[0]}")
    for result in results:
        if result.state == "measured":
            svg = directory / f"{result.item.name}.svg"
            svg.write_text(draw.figure(result, foot))
            write_png(svg)
