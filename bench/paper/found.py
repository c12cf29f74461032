"""What a run found: an item's series as measured, its lines as judged, and the counts of them."""

from dataclasses import dataclass, field

import shapes


@dataclass
class Result:
    item: object
    state: str                  # measured, drawn or skipped
    reason: str = ""            # where it is drawn, or why it is skipped
    series: dict = field(default_factory=dict)    # label: rows by x
    lines: list = field(default_factory=list)     # (text, verdict, figure)
    absent: list = field(default_factory=list)    # "label: reason" of series that have no rows
    times: int = 1              # that it was measured


NO_ROWS = "no rows"


def result_of(item, rows, reasons, skips):
    """`rows` and `reasons` are by source, as run; `skips` are the reasons of single variants."""
    if item.drawn:
        return Result(item, "drawn", item.drawn)
    if item.missing:
        return Result(item, "skipped", item.missing)
    series, absent = {}, []
    for wanted in (*item.series, *item.peers, *item.limits):
        points = [row for row in rows.get(wanted.source, ())
                  if (row.benchmark, row.variant) == (wanted.benchmark, wanted.variant)
                  and (item.most_x is None or row.x <= item.most_x)]
        if points:
            series[wanted.label] = sorted(points, key=lambda row: row.x)
        else:
            why = skips.get((wanted.benchmark, wanted.variant))
            if why is None and wanted in item.peers:   # one reason for all that it has
                why = next((w for (name, _), w in skips.items() if name == wanted.benchmark), None)
            why = why or NO_ROWS
            absent.append(f"{wanted.label}: {reasons.get(wanted.source, why)}")
    if not any(own.label in series for own in item.series):
        why = dict.fromkeys(reasons.get(name, NO_ROWS) for name in item.sources)
        return Result(item, "skipped", "; ".join(why), absent=absent)
    return Result(item, "measured", "", series, shapes.judged(item.lines, series), absent)


def missing(results):
    """Series that a source ran for and has no rows of: it calls them otherwise by now."""
    return [f"{result.item.name}: {series.label}: {NO_ROWS}" for result in results
            for series in result.item.series if f"{series.label}: {NO_ROWS}" in result.absent]


def spoilt(result):
    """How many lines are missed, or two regimes have kept from being judged."""
    return sum(verdict == "missed" or figure in (shapes.MIXED, shapes.NO_PROBE)
               for _, verdict, figure in result.lines)


def busy(results):
    """How many points a program has marked."""
    return len({id(row) for result in results for rows in result.series.values() for row in rows
                if row.note})


def counts(results):
    """(lines met, lines missed, lines that could not be judged and items that were skipped)"""
    verdicts = [verdict for result in results for _, verdict, _ in result.lines]
    skipped = sum(result.state == "skipped" for result in results)
    return verdicts.count("met"), verdicts.count("missed"), verdicts.count("not judged") + skipped


def summary(results):
    met, missed, skipped = counts(results)
    return f"{met} met, {missed} missed, {skipped} skipped"
