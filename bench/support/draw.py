"""The plot of an item as SVG: its series as measured, and a paper's stated numbers beside them as
numbered diamonds, or as dashed lines where the paper names no place on the x axis."""

import math
from html import escape

INK, FAINT, GRID, PAPER = "#1f2933", "#66727f", "#e4e7eb", "#1f2933"
COLOURS = ["#d64545", "#2186eb", "#199473", "#8719e0", "#b8860b", "#0e7c86", "#52606d"]
PEERS = ["#334e68", "#9446ed", "#b44d12", "#c99a2e", "#3ebd93"]   # dashed
SOLID = "none"
LIMIT, LIMITED = "#829ab1", "a cache line there and back: the limit"   # dotted
WIDTH, LEFT, RIGHT, TOP, HEIGHT, ROW = 540, 62, 22, 52, 300, 21
TRIPS = "round trips of a cache line; the paper's: of its own smallest message"
UNITS = {"GB/s": "GB/s (more is better)", "k req/s": "thousand requests a second",
         "us": "us", "times": "times as fast", "misses": "misses"}


def plain(x):
    """1048576 as 1M, as axes have it."""
    for factor, unit in ((1 << 20, "M"), (1 << 10, "K")):
        if x >= factor and x % factor == 0:
            return f"{x / factor:.0f}{unit}"
    return f"{x:g}"


def short(value):
    """Three digits, no exponent."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}".rstrip("0").rstrip(".")


class View:
    """How an item's rows and stated numbers are put on its y axis."""

    def __init__(self, result):
        item = result.item
        self.styles = styles(result)
        own = [row for label, rows in result.series.items() if self.styles[label][1] == SOLID
               for row in rows]
        self.base = item.single_word
        self.in_trips = item.axis == "latency" and self.base and all(row.trips for row in own)
        # Peers that were measured in two regimes have no trips, and no place then.
        self.series = {label: rows for label, rows in result.series.items()
                       if not self.in_trips or all(row.trips for row in rows)}
        rows = [row for rows in self.series.values() for row in rows]
        self.unit = TRIPS if self.in_trips else UNITS.get(rows[0].unit, rows[0].unit)
        if item.axis == "spread":
            self.unit = f"{rows[0].unit} ({'more' if rows[0].higher else 'less'} is better)"
        self.x_name = rows[0].x_name
        self.stated = [s for s in item.stated
                       if s.unit == rows[0].unit or (self.in_trips and s.unit == "us")]

    def of_row(self, row):
        return row.trips if self.in_trips else row.value

    def of_stated(self, stated):
        return stated.value / self.base if self.in_trips else stated.value

    def words(self, length, value):
        """What is written at a bar's end."""
        return f"{short(length)} trips, {value}" if self.in_trips else value


def styles(result):
    """Colour and dashes by label: what is measured is solid, peers are dashed, limits dotted."""
    peers = [series.label for series in result.item.peers if series.label in result.series]
    limits = [series.label for series in result.item.limits]
    found = {label: (PEERS[i % len(PEERS)], "7 4") for i, label in enumerate(peers)}
    found |= {label: (LIMIT, ("2 3", "2 7")[i % 2]) for i, label in enumerate(limits)}
    own = [label for label in result.series if label not in found]
    return found | {label: (COLOURS[i % len(COLOURS)], SOLID) for i, label in enumerate(own)}


class Axis:
    """Values to pixels; logarithmic where all are above zero and `wanted` says so."""

    def __init__(self, values, start, end, wanted=True):
        self.start, self.end = start, end
        self.log = wanted and min(values) > 0
        self.least = low = min(values)
        high = max(values)
        if self.log:
            self.low, self.high = math.log10(low), math.log10(high)
            pad = max(0.04 * (self.high - self.low), 0.05)
            self.low, self.high = self.low - pad, self.high + pad
        else:
            self.low, self.high = min(0, low), (high * 1.08 or 1)

    def __call__(self, value):
        at = math.log10(max(value, self.least)) if self.log else value
        return self.start + (at - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self):
        if not self.log:
            step = 10 ** math.floor(math.log10(self.high or 1))
            step = next(s for s in (step / 5, step / 2, step, 2 * step) if self.high / s <= 6)
            return [i * step for i in range(int(self.high / step) + 1)]
        steps = (1, 2, 5) if self.high - self.low < 2.5 else (1,)
        exponents = range(math.floor(self.low), math.ceil(self.high) + 1)
        return [m * 10.0 ** e for e in exponents for m in steps
                if self.low <= math.log10(m * 10.0 ** e) <= self.high]


def text(x, y, words, anchor="start", size=14, colour=INK, more=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
            f'fill="{colour}" {more}>{escape(words)}</text>')


def line(x1, y1, x2, y2, colour, width=1, more=""):
    return (f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
            f'stroke-width="{width}" {more}/>')


def dashes(x1, y, x2):
    return line(x1, y, x2, y, PAPER, 1.2, 'stroke-dasharray="3 3"')


def diamond(x, y, number):
    return (f'<path d="M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z" fill="#ffffff" stroke="{PAPER}" '
            f'stroke-width="1.5"/>' + text(x + 9, y - 2, number, size=12, colour=PAPER))


def frame(title, height, body, foot=""):
    if foot:
        height += 14
        body = [*body, text(14, height - 8, foot, size=11, colour=FAINT)]
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
            f'width="{WIDTH}" height="{height:.0f}" role="img" '
            'font-family="DejaVu Sans, Helvetica, Arial, sans-serif">'
            f'<title>{escape(title)}</title>'
            f'<rect width="{WIDTH}" height="{height:.0f}" fill="#ffffff"/>'
            + text(14, 24, title, size=16, more='font-weight="bold"') + "\n".join(body)
            + "</svg>\n")


def legend(view, labels, y):
    """The lines below a plot, and where they end."""
    out = []
    keys = [(label, *view.styles[label]) for label in labels]
    keys += [(LIMITED, LIMIT, "2 3")] * bool(view.in_trips)
    for label, colour, dash in keys:
        out += [line(LEFT, y - 5, LEFT + 26, y - 5, colour, 3, f'stroke-dasharray="{dash}"'),
                text(LEFT + 36, y, label)]
        y += ROW
    for number, stated in enumerate(view.stated, 1):
        if stated.x is None:
            out += [dashes(LEFT, y - 5, LEFT + 18),
                    text(LEFT + 20, y - 1, str(number), size=12, colour=PAPER)]
        else:
            out.append(diamond(LEFT + 8, y - 5, str(number)))
        out.append(text(LEFT + 36, y, f"paper: {stated.text}: {said(stated)}", colour=FAINT))
        y += ROW
    return out, y


def said(stated):
    """A stated number as the paper's text has it."""
    if stated.unit == "GB/s":
        return f"{short(stated.value * 1000)} MB/s"
    if stated.unit == "us" and stated.value >= 1000:
        return f"{short(stated.value / 1000)} ms"
    return f"{short(stated.value)} {stated.unit}"


def axes(view, x_axis, y_axis, ticks_x):
    base, out = TOP + HEIGHT, []
    for value in y_axis.ticks():
        y = y_axis(value)
        out += [line(LEFT, y, WIDTH - RIGHT, y, GRID),
                text(LEFT - 8, y + 5, short(value), "end", 13, FAINT)]
    last = -math.inf
    for value in ticks_x:
        x = x_axis(value)
        out.append(line(x, TOP, x, base, GRID))
        if x - last >= 38:
            out.append(text(x, base + 18, plain(value), "middle", 13, FAINT))
            last = x
    return out + [
        line(LEFT, base, WIDTH - RIGHT, base, INK, 1.2), line(LEFT, TOP, LEFT, base, INK, 1.2),
        text((LEFT + WIDTH - RIGHT) / 2, base + 38, view.x_name, "middle", 13),
        text(14, TOP - 10, view.unit, size=13, colour=FAINT)]


def curves(result, view, foot):
    rows = [row for rows in view.series.values() for row in rows]
    xs = sorted({row.x for row in rows})
    placed = [s for s in view.stated if s.x is not None]
    x_axis = Axis([max(x, 0.5) for x in [*xs, *(s.x for s in placed)]], LEFT + 14,
                  WIDTH - RIGHT - 14)
    values = [view.of_row(row) for row in rows] + [view.of_stated(s) for s in view.stated]
    if result.item.axis == "spread":
        values += [value for row in rows if row.low for value in (row.low, row.high)]
    y_axis = Axis(values + [1] * bool(view.in_trips), TOP + HEIGHT, TOP,
                  result.item.axis != "plain")
    out = axes(view, x_axis, y_axis, xs)
    if view.in_trips:
        out.append(line(LEFT, y_axis(1), WIDTH - RIGHT, y_axis(1), LIMIT, 2,
                        'stroke-dasharray="2 3"'))
    for label, points in view.series.items():
        colour, dash = view.styles[label]
        width, radius = (2.5, 3.5) if dash == SOLID else (1.5, 2.5)
        spots = [(x_axis(row.x), y_axis(view.of_row(row))) for row in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" '
                   f'stroke-width="{width}" stroke-dasharray="{dash}" '
                   'stroke-linejoin="round"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}"/>'
                for x, y in spots]
        if result.item.axis == "spread":
            out += [line(x_axis(row.x), y_axis(row.low), x_axis(row.x), y_axis(row.high), colour, 1,
                         'opacity="0.35"') for row in points if row.low]
    at = {}   # numbers by place: what the paper has twice is one mark
    for number, stated in enumerate(view.stated, 1):
        at.setdefault((stated.x, view.of_stated(stated)), []).append(str(number))
    for (x, value), numbers in at.items():
        y, words = y_axis(value), ", ".join(numbers)
        if x is None:
            out += [dashes(LEFT, y, WIDTH - RIGHT - 24),
                    text(WIDTH - RIGHT - 18, y + 4, words, size=12, colour=PAPER)]
        else:
            out.append(diamond(x_axis(max(x, 0.5)), y, words))
    below, end = legend(view, view.series, TOP + HEIGHT + 66)
    return frame(result.item.title, end, [*out, *below], foot)


def bars(result, view, foot):
    """A bar per row, and an empty one per number of the paper."""
    rows = [(label, row) for label, rows in view.series.items() for row in rows]
    several = len({row.x for _, row in rows}) > 1
    entries = [(f"{label}, {plain(row.x)} {row.x_name}" if several else label, view.of_row(row),
                view.words(view.of_row(row), f"{short(row.value)} {row.unit}"),
                view.styles[label][0] if view.styles[label][1] != SOLID else COLOURS[0])
               for label, row in rows]
    entries += [(f"paper: {s.text}", view.of_stated(s), view.words(view.of_stated(s), said(s)),
                 None) for s in view.stated]
    above = [value for _, value, _, _ in entries if value > 0] or [1]
    spread = max(above) / min(above) > 30
    start, end, y, out = 14, WIDTH - 150, TOP + 8, []
    axis = Axis([min(above) / 3, max(above)] if spread else [0, max(above)], start, end, spread)
    for label, value, words, colour in entries:
        length = max(axis(value) - start, 1) if value > 0 else 1
        paint = f'fill="{colour}"' if colour else f'fill="#ffffff" stroke="{PAPER}"'
        out += [text(start, y + 12, label, size=13, colour=INK if colour else FAINT),
                f'<rect x="{start}" y="{y + 18}" width="{length:.1f}" height="14" {paint}/>',
                text(start + length + 8, y + 30, words, size=13)]
        y += 42
    note = ("log bars; " if spread else "") + view.unit
    return frame(result.item.title, y + 10, [text(14, TOP - 8, note, size=13, colour=FAINT), *out],
                 foot)


HALO = 'paint-order="stroke" stroke="#ffffff" stroke-width="4"'


def ratios(title, rows, foot, wanted=None, judged=None):
    """Rows by label: a bar to the right of 1 where CLAN is ahead, and to the left where it is
    behind; a thin line for the spread, and a mark for what is `wanted`. Grey: not `judged`."""
    wanted = wanted or {}
    ends = [1, *wanted.values(),
            *(value for row in rows.values() for value in (row.low, row.value, row.high))]
    axis, bottom = Axis(ends, 24, WIDTH - 70), TOP + 42 * len(rows)
    out = [line(axis(tick), TOP, axis(tick), bottom, INK if tick == 1 else GRID)
           for tick in axis.ticks()]
    out += [text(axis(tick), bottom + 18, short(tick), "middle", 13, FAINT)
            for tick in axis.ticks()]
    for i, (label, row) in enumerate(rows.items()):
        y, (start, end) = TOP + 42 * i, sorted((axis(1), axis(row.value)))
        colour = FAINT if judged and label not in judged else COLOURS[0 if row.value < 1 else 2]
        out += [text(24, y + 14, label, size=13, more=HALO),
                f'<rect x="{start:.1f}" y="{y + 19}" width="{max(end - start, 1):.1f}" height="14" '
                f'fill="{colour}"/>',
                line(axis(row.low), y + 26, axis(row.high), y + 26, INK, 1.5),
                text(max(axis(row.high), axis(1)) + 8, y + 31, f"{row.value:.2g}" if row.value < 10
                     else f"{row.value:.0f}", size=13)]
        if label in wanted:
            out.append(line(axis(wanted[label]), y + 16, axis(wanted[label]), y + 36, INK, 2.5))
    note = "green: ahead; red: behind; thin line: the spread of the runs"
    note += "; mark: wanted" * bool(wanted)
    out.append(text(24, TOP - 8, note, size=13, colour=FAINT))
    return frame(title, bottom + 34, out, foot)


def figure(result, foot=""):
    """The SVG of a measured item."""
    if result.item.axis == "ratio":
        rows = {label: points[0] for label, points in result.series.items()}
        return ratios(result.item.title, rows, foot)
    view = View(result)
    rows = [row for rows in view.series.values() for row in rows]
    xs, counts = {row.x for row in rows}, rows[0].unit == "misses"
    return (bars if len(xs) == 1 or counts else curves)(result, view, foot)
