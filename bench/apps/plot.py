"""What `clan bench apps` makes of its lines: an item of the report for each row, and apps.svg with
a bar per ratio."""

import math
from html import escape

import report


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


# The colours of the other plots.
INK, FAINT, GRID = "#1f2933", "#7b8794", "#e4e7eb"
MET, MISSED, NEUTRAL = "#d64545", "#f0a202", "#9aa5b1"
WIDTH, LEFT, RIGHT, TOP, STEP = 900, 400, 60, 88, 24


def svg(all_lines, machine, how):
    """A bar for each ratio on a logarithmic axis, a whisker for its spread, a mark for what is
    wanted."""
    lines = [line for line in all_lines if line.ratio is not None]
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
        colour = {"met": MET, "missed": MISSED}.get(line.verdict, NEUTRAL)
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
        f"spread of {how}.")
    out.append(text(24, bottom + 32, legend, size=11, colour=FAINT))
    return "\n".join(out) + "\n</svg>\n"
