"""Whether the shape of a figure holds: a line each, judged on the rows of an item's series.

A line is a pair (text, judge). judge(series) answers (met, figure), or raises NotJudged with the
reason. Times are compared in round trips of a cache line, so that a machine whose processors have
moved apart meanwhile judges as before. What is counted per second is compared as it is: if the
processors have moved between two rows, only a difference that is larger than theirs counts.
"""

import math

from draw import plain

MIXED = "mixed regimes: measure again"
NO_PROBE = "no cache-line round trip beside it"
PROBES_DIFFER = 1.2   # above that two rows are of different machines, so to speak
LEVEL = 0.95          # what is that near is level: two runs differ by as much


class NotJudged(Exception):
    pass


def line_of(series, label):
    """The points of a series by x."""
    if not series.get(label):
        raise NotJudged(f"{label}: not measured")
    return series[label]


def curve_of(series, label):
    """At least two points."""
    rows = line_of(series, label)
    if len(rows) < 2:
        raise NotJudged(f"{label}: one point only")
    return rows


def point(series, label, x):
    for row in line_of(series, label):
        if row.x == x:
            return row
    raise NotJudged(f"{label}: not measured at {plain(x)}")


def moved(rows):
    """How far the processors moved between the rows: 1, or the ratio of their probes."""
    probes = [row.probe_us for row in rows if row.probe_us]
    ratio = max(probes) / min(probes) if probes else 1
    return ratio if ratio > PROBES_DIFFER else 1


def at_least_times(ratio, wanted, apart):
    """Whether a ratio of rates is reached, however the processors moved."""
    if ratio / apart < wanted <= ratio * apart and apart > 1:
        raise NotJudged(MIXED)
    return ratio >= wanted


def times_better(one, other):
    """How many times as good `one` is as `other`, and how far the processors moved between."""
    if one.unit == "us" and one.trips and other.trips:
        return other.trips / one.trips, 1
    if one.value <= 0 or other.value <= 0:
        raise NotJudged("no figure")
    ratio = one.value / other.value if one.higher else other.value / one.value
    return ratio, moved([one, other])


def faster(label, other, x, times=1):
    """`label` is at least so many times as good as `other` at x."""
    def judge(series):
        ratio, apart = times_better(point(series, label, x), point(series, other, x))
        return at_least_times(ratio, times, apart), (
            f"{ratio:.2f} times as good, wanted {times:g}")
    return f"{label} ahead of {other} at {plain(x)}", judge


def level(label, other, x):
    """`label` is not behind `other` at x, by more than runs differ."""
    text, judge = faster(label, other, x, LEVEL)
    return text.replace("ahead of", "level with"), judge


def at_most_trips(label, x, limit):
    def judge(series):
        row = point(series, label, x)
        if not row.trips:
            raise NotJudged(NO_PROBE)
        return row.trips <= limit, f"{row.trips:.2f} cache-line trips, at most {limit:g}"
    return f"{label} near the limit at {plain(x)}", judge


def valued(text, label, x, met, figure="{:g}"):
    """A line about the value at x."""
    def judge(series):
        value = point(series, label, x).value
        return met(value), figure.format(value)
    return text, judge


def at_least(label, x, limit):
    return valued(f"{label} at {plain(x)}", label, x, lambda value: value >= limit,
                  f"{{:.2f}}, at least {limit:g}")


def none(label, x):
    return valued(f"{label}: none at {plain(x)}", label, x, lambda value: value == 0)


def some(label, x):
    return valued(f"{label}: some at {plain(x)}", label, x, lambda value: value > 0)


def tight(label, x, times):
    def judge(series):
        row = point(series, label, x)
        spread = row.high / row.value
        return spread <= times, f"p99 is {spread:.2f} of the median, at most {times:g}"
    return f"{label}: nearly all trips alike at {plain(x)}", judge


def flat(label, times):
    def judge(series):
        rows = curve_of(series, label)
        slower, apart = times_better(rows[0], rows[-1])
        return at_least_times(1 / slower, 1 / times, apart), (
            f"{plain(rows[-1].x)}: {slower:.2f} of the time at {plain(rows[0].x)}, "
            f"at most {times:g}")
    return f"{label} flat", judge


def of_the_best(text, label, share, where, said=""):
    """A line about the part of the best value that is reached at `where(series, rows)`."""
    def judge(series):
        rows = curve_of(series, label)
        there, best = where(series, rows), max(rows, key=lambda row: row.value)
        reached = there.value / best.value
        return at_least_times(reached, share, moved([best, there])), (
            f"{said.format(plain(there.x))}{reached:.2f} of the best, at least {share:g}")
    return text, judge


def holds(label, share):
    return of_the_best(f"{label} does not fall under load", label, share,
                       lambda _, rows: rows[-1], "{}: ")


def knee(label, x, share):
    return of_the_best(f"{label}: more than {plain(x)} help little", label, share,
                       lambda series, _: point(series, label, x))


def rises(label):
    def judge(series):
        rows = curve_of(series, label)
        first, last = rows[0], rows[-1]
        figure = f"{first.value:.3g} at {plain(first.x)}, {last.value:.3g} at {plain(last.x)}"
        if first.value <= 0:
            return last.value > 0, figure
        return at_least_times(last.value / first.value, 1.05, moved([first, last])), figure
    return f"{label} rises", judge


def half_of_peak(rows):
    """(r_inf, n_1/2): the peak, and where half of it is, between points by their logarithms."""
    peak = max(row.value for row in rows)
    before = None
    for row in rows:
        if row.value < peak / 2:
            before = row
            continue
        if before is None or row.value == before.value:
            return peak, row.x
        part = math.log(peak / 2 / before.value) / math.log(row.value / before.value)
        return peak, before.x * (row.x / before.x) ** part
    raise NotJudged("no peak")


def half_size(label, limit, most_x=math.inf):
    """The peak is of messages of at most `most_x`: beyond, others limit it."""
    def judge(series):
        rows = [row for row in curve_of(series, label) if row.x <= most_x]
        if moved(rows) > 1:
            raise NotJudged(MIXED)
        peak, half = half_of_peak(rows)
        return half <= limit, f"r_inf {peak:.3g} GB/s, n_1/2 {half:.0f} B, at most {limit:g}"
    return f"{label} rises steeply", judge


def judged(lines, series):
    """[(text, "met" | "missed" | "not judged", figure)] of an item's lines."""
    out = []
    for text, judge in lines:
        try:
            met, figure = judge(series)
            out.append((text, "met" if met else "missed", figure))
        except NotJudged as why:
            out.append((text, "not judged", str(why)))
        except ZeroDivisionError:   # too short a run for the digits that a program prints
            out.append((text, "not judged", "a figure is 0"))
    return out
