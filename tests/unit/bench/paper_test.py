#!/usr/bin/env python3
"""`clan bench paper` knows every figure and table of the five papers, and judges shapes by what
was measured. Nothing is measured here.

    paper_test.py
"""

import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import types
import unittest.mock
import xml.etree.ElementTree
from pathlib import Path

BENCH = Path(__file__).resolve().parents[3] / "bench"
sys.path[:0] = [str(BENCH / name) for name in ("support", "paper")]

import draw
import found
import items
import items_others
import page
import paper
import report
import shapes
import sources
from sources import Row

# As the papers count them; single_word, acknowledgements and buffers are sections with numbers of
# their own, and programs is figure 3 once more.
EXPECTED = {
    "clan": [f"fig{n}" for n in range(1, 12)] + [f"table{n}" for n in range(1, 5)] +
    ["single_word", "acknowledgements"],
    "driver": [f"fig{n}" for n in range(1, 7)],
    "via": [f"fig{n}" for n in range(1, 8)] + ["table1", "buffers"],
    "shrimp": [f"fig{n}" for n in range(1, 14)],
    "unet": ["fig1", "fig2", "fig3", "table1", "programs"],
}


def times(*points, **more):
    return [Row("b", "v", x, us, "us", probe_us=0.1, trips=us / 0.1, **more) for x, us in points]


def rates(*points, unit="k req/s", probe=0.1):
    return [Row("b", "v", x, rate, unit, higher=True, probe_us=probe) for x, rate in points]


def verdict(line, **series):
    return shapes.judged([line], series)[0][1]


def every_figure_and_table_is_an_item_once():
    names = [item.name for item in paper.ITEMS]
    wanted = [f"{short}.{what}" for short, whats in EXPECTED.items() for what in whats]
    assert sorted(names) == sorted(wanted), set(names) ^ set(wanted)
    assert set(EXPECTED) == set(items.PAPERS) == set(items.SINGLE_WORD)


def an_item_is_drawn_measured_or_says_why_not():
    root = BENCH.parent
    for item in paper.ITEMS:
        assert bool(item.drawn) + bool(item.missing) + bool(item.series) == 1, item.name
        assert not item.drawn or (root / item.drawn).is_file(), f"{item.name}: {item.drawn}"
        if item.series:
            assert item.claim and item.lines, item.name
        labels = {series.label for series in item.series}
        for stated in item.stated:
            assert stated.ours is None or stated.ours[0] in labels, (item.name, stated)
        assert all(name in sources.SOURCES for name in item.sources), item.name


def every_measured_item_has_a_smoke_run():
    text = (BENCH / "paper/CMakeLists.txt").read_text()
    groups = dict(re.findall(r"set\(of_(\w+) (\S+)\)", text))
    run = re.search(r"foreach\(name IN ITEMS (.*)\)", text)[1].split()
    assert sorted(groups) == sorted(run), set(groups) ^ set(run)
    chosen = [item for names in groups.values() for item in items.find(paper.ITEMS,
                                                                       names.split(","))]
    assert len(chosen) == len(set(chosen)), "an item is in two smoke runs"
    without = {item.name for item in paper.ITEMS if item.series and item not in chosen}
    assert not without, without


def lines_name_series_of_their_item():
    for item in paper.ITEMS:
        series = {s.label: rates(*((x, x + 1.0) for x in range(1, 4))) for s in item.series}
        for text, _, why in shapes.judged(item.lines, series):
            assert not why.endswith(": not measured"), (item.name, text, why)


def a_slower_series_is_not_ahead():
    line = shapes.faster("a", "b", 8, 2)
    assert verdict(line, a=times((8, 1)), b=times((8, 2))) == "met"
    assert verdict(line, a=times((8, 1.1)), b=times((8, 2))) == "missed"
    assert verdict(line, a=rates((8, 20)), b=rates((8, 10))) == "met"
    assert verdict(line, a=rates((8, 10)), b=rates((8, 20))) == "missed"
    line = shapes.level("a", "b", 8)
    assert verdict(line, a=rates((8, 19.1)), b=rates((8, 20))) == "met"
    assert verdict(line, a=rates((8, 18.9)), b=rates((8, 20))) == "missed"


def a_series_that_was_not_measured_is_not_judged():
    line = shapes.faster("a", "b", 8)
    assert verdict(line, a=times((8, 1))) == "not judged"
    assert verdict(line, a=times((8, 1)), b=times((16, 1))) == "not judged"


def a_round_trip_that_grows_is_not_flat():
    line = shapes.flat("a", 1.25)
    assert verdict(line, a=times((1, 1), (10000, 1.2))) == "met"
    assert verdict(line, a=times((1, 1), (10000, 1.3))) == "missed"
    assert verdict(line, a=times((1, 1))) == "not judged"


def a_throughput_that_falls_does_not_hold():
    line = shapes.holds("a", 0.7)
    assert verdict(line, a=rates((1, 10), (16, 100), (1000, 80))) == "met"
    assert verdict(line, a=rates((1, 10), (16, 100), (1000, 60))) == "missed"


def a_curve_that_still_rises_behind_its_knee_has_none():
    line = shapes.knee("a", 4, 0.8)
    assert verdict(line, a=rates((1, 2), (4, 9), (16, 10))) == "met"
    assert verdict(line, a=rates((1, 2), (4, 7), (16, 10))) == "missed"
    assert verdict(line, a=rates((1, 2), (16, 10))) == "not judged"


def half_of_the_peak_is_found_between_points():
    rows = rates((64, 1), (256, 4), (1024, 8), (4096, 8), unit="GB/s")
    assert shapes.half_of_peak(rows) == (8, 256), shapes.half_of_peak(rows)
    rows = rates((64, 2), (256, 8), unit="GB/s")
    assert abs(shapes.half_of_peak(rows)[1] - 128) < 1e-6, shapes.half_of_peak(rows)
    assert verdict(shapes.half_size("a", 127), a=rows) == "missed"
    assert verdict(shapes.half_size("a", 129), a=rows) == "met"
    rows = rates((64, 2), (256, 8), (1024, 32), unit="GB/s")
    assert verdict(shapes.half_size("a", 129), a=rows) == "missed"
    assert verdict(shapes.half_size("a", 129, 256), a=rows) == "met"


def a_figure_of_0_is_not_judged():
    nothing = rates((64, 0), (256, 8), unit="GB/s")
    assert verdict(shapes.half_size("a", 129), a=nothing) == "not judged"
    assert verdict(shapes.holds("a", 0.7), a=rates((1, 0), (2, 0))) == "not judged"


def limits_and_counts_can_be_missed():
    assert verdict(shapes.at_most_trips("a", 8, 2.5), a=times((8, 0.25))) == "met"
    assert verdict(shapes.at_most_trips("a", 8, 2.5), a=times((8, 0.26))) == "missed"
    assert verdict(shapes.at_most_trips("a", 8, 2.5), a=rates((8, 1))) == "not judged"
    assert verdict(shapes.tight("a", 8, 1.5), a=times((8, 1), high=1.4)) == "met"
    assert verdict(shapes.tight("a", 8, 1.5), a=times((8, 1), high=1.6)) == "missed"
    assert verdict(shapes.none("a", 8), a=rates((8, 1))) == "missed"
    assert verdict(shapes.some("a", 8), a=rates((8, 0))) == "missed"
    assert verdict(shapes.at_least("a", 8, 2), a=rates((8, 1.9))) == "missed"
    assert verdict(shapes.rises("a"), a=rates((1, 2), (2, 1))) == "missed"


def rates_of_two_regimes_are_compared_only_where_they_differ_by_more():
    line = shapes.faster("a", "b", 8)
    assert verdict(line, a=rates((8, 1.9)), b=rates((8, 1), probe=0.2)) == "not judged"
    assert verdict(line, a=rates((8, 1)), b=rates((8, 1.9), probe=0.2)) == "not judged"
    assert verdict(line, a=rates((8, 2.1)), b=rates((8, 1), probe=0.2)) == "met"
    assert verdict(line, a=rates((8, 1)), b=rates((8, 2.1), probe=0.2)) == "missed"
    mixed = [*rates((64, 1)), *rates((256, 8), probe=0.2)]
    assert verdict(shapes.half_size("a", 1024), a=mixed) == "not judged"
    slow = [Row("b", "v", 8, 3.0, "us", probe_us=0.2, trips=15.0)]
    assert verdict(line, a=slow, b=times((8, 2))) == "met"


def a_line_and_an_item_without_figures_count_as_skipped():
    item = items.Item("clan.some", "some", "claims", series=(
        items.Series("s", "b", "v", "a"), items.Series("t", "b", "w", "b")),
        lines=(shapes.at_most_trips("a", 8, 2), shapes.at_most_trips("a", 8, 1),
               shapes.faster("a", "b", 8)))
    result = found.result_of(item, {"s": times((8, 0.2))}, {"t": "not built"}, {})
    assert [said for _, said, _ in result.lines] == ["met", "missed", "not judged"], result.lines
    assert result.absent == ["b: not built"], result.absent
    nothing = found.result_of(item, {}, {"s": "no s", "t": "no t"}, {})
    assert (nothing.state, nothing.reason) == ("skipped", "no s; no t"), nothing
    assert found.summary([result, nothing]) == "1 met, 1 missed, 2 skipped"


def what_is_missed_is_measured_again_and_the_best_counts():
    item = items.Item("clan.some", "some", "claims", series=(items.Series("s", "b", "v", "a"),),
                      lines=(shapes.at_most_trips("a", 8, 2),))
    good = items.Item("clan.good", "good", "claims", series=(items.Series("t", "b", "v", "a"),),
                      lines=(shapes.at_most_trips("a", 8, 2),))

    class Measured(paper.Measured):
        def __init__(self, *trips):
            super().__init__(types.SimpleNamespace(skips={}))
            self.trips, self.asked = list(trips), []

        def measure(self, names):
            self.asked.append(list(names))
            for name in names:
                trips = 0.1 if name == "t" else self.trips.pop(0)
                self.rows[name] = times((8, trips)) if trips else [
                    Row("b", "v", 8, 1.0, "us", probe_us=None, trips=None)]

    def run(*trips, length="full"):
        measured = Measured(*trips)
        some, fine = paper.run_items(
            types.SimpleNamespace(length=length, items=[item, good]), measured)
        assert fine.times == 1 and measured.asked[1:] == [["s"]] * (some.times - 1), measured.asked
        return some.lines[0][1], some.times

    assert run(0.1) == ("met", 1)
    assert run(0.3, 0.1) == ("met", 2)
    assert run(None, 0.1) == ("met", 2)
    assert run(0.3, 0.4, 0.3) == ("missed", 3)
    assert run(0.3, length="smoke") == ("missed", 1)


def a_series_that_nobody_has_skipped_is_missing():
    item = items.Item("clan.some", "some", "claims", series=(
        items.Series("s", "b", "v", "a"), items.Series("s", "b", "w", "b")))
    rows = {"s": times((8, 0.2))}
    assert found.missing([found.result_of(item, rows, {}, {})]) == ["clan.some: b: no rows"]
    skipped = found.result_of(item, rows, {}, {("b", "w"): "not on this kernel"})
    assert skipped.absent == ["b: not on this kernel"] and not found.missing([skipped])


def made_up(item):
    """A result of an item with rows that a run might have had."""
    unit = next((s.unit for s in item.stated if s.unit != "B"), "us")
    unit = {"bandwidth": "GB/s", "rate": "k req/s"}.get(item.axis, unit)
    rows = {}
    for number, s in enumerate(item.series, 1):
        for x in (1, 64, 1024):
            rows.setdefault(s.source, []).append(Row(
                s.benchmark, s.variant, x, number * x / 10.0, unit, higher=unit != "us",
                low=0.1, high=2.0, probe_us=0.1, trips=number * x if unit == "us" else None))
    return found.result_of(item, rows, {}, {})


class Page(html.parser.HTMLParser):
    """Elements that are open, and what a page would fetch or run."""

    VOID = {"meta", "br"}

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.fetched = [], [], []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids += [attrs["id"]] if "id" in attrs else []
        self.fetched += [(tag, attrs[a]) for a in ("src", "href") if a in attrs
                         and not attrs[a].startswith("#")]
        self.fetched += [(tag, "")] if tag in ("script", "link", "img", "iframe") else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, (tag, self.open, self.getpos())


def written(results):
    """(the directory's files by name)"""
    about = {"machine": {"cpu": "a & b", "cores": 2, "kernel": "k", "load": "0 0", "commit": "c",
                         "date": "d"}, "how": "made up", "warnings": ["<busy>"]}
    no_converter = unittest.mock.patch.dict(os.environ, PATH="")
    with tempfile.TemporaryDirectory() as directory, no_converter:
        page.write(results, about, Path(directory))
        return {path.name: path.read_text() for path in Path(directory).iterdir()}


def a_plot_is_a_png_too_where_a_converter_can():
    converter = '#!/bin/sh\nread line < "$5" && echo made > "$4"\n'
    with tempfile.TemporaryDirectory() as top:
        svg, png = Path(top, "a.b.svg"), Path(top, "a.b.png")
        svg.write_text("<svg/>\n")
        with unittest.mock.patch.dict(os.environ, PATH=top):
            page.write_png(svg)
            assert not png.exists()
            for name, text in (("rsvg-convert", "#!/bin/sh\necho half > \"$4\"; exit 1\n"),
                               ("inkscape", converter)):
                Path(top, name).write_text(text)
                Path(top, name).chmod(0o755)
                page.write_png(svg)
                assert png.exists() == (name == "inkscape"), name
        assert png.read_text() == "made\n", png.read_text()


def plots_are_xml_and_have_every_series_and_stated_number():
    for item in (item for item in paper.ITEMS if item.series):
        svg = written([made_up(item)])[f"{item.name}.svg"]
        root = xml.etree.ElementTree.fromstring(svg)
        words = " ".join(root.itertext())
        assert all(s.label in words for s in item.series), item.name
        assert svg.count("paper: ") == len(item.stated), item.name
        assert "nan" not in svg and "inf\"" not in svg, item.name


def some_latency(**rows):
    """A plot of an item with the peer UCX and the limit `memcpy`."""
    item = items.Item("clan.some", "some", "claims", series=(items.Series("s", "b", "v", "a"),),
                      peers=(items.Series("u", "b", "v", "UCX"),),
                      limits=(items.Series("m", "b", "v", "memcpy"),))
    return found.result_of(item, rows, {}, {})


def peers_and_limits_are_drawn_by_lines_of_their_own():
    result = some_latency(s=times((1, 0.2), (8, 0.3)), u=times((1, 0.5), (8, 0.6)),
                          m=times((1, 0.1), (8, 0.1)))
    svg = draw.figure(result)
    for dash, count in (("7 4", 2), ("2 3", 4), ("none", 2)):   # a line, and one in the legend
        assert svg.count(f'stroke-dasharray="{dash}"') == count, (dash, svg)
    assert draw.LIMITED in svg and "UCX" in svg and "memcpy" in svg, svg


def a_bar_has_its_trips_and_its_time():
    item = items.Item("clan.some", "some", "claims", series=(items.Series("s", "b", "v", "a"),),
                      stated=(items.Stated("theirs", 11.2, "us"),))
    svg = draw.figure(found.result_of(item, {"s": times((8, 0.3))}, {}, {}))
    assert ">3 trips, 0.3 us<" in svg and ">2 trips, 11.2 us<" in svg, svg


def a_peer_of_two_regimes_is_not_drawn_in_trips():
    mixed = [Row("b", "v", 8, 0.5, "us")]
    svg = draw.figure(some_latency(s=times((1, 0.2), (8, 0.3)), u=mixed))
    assert "UCX" not in svg and "round trips of a cache line" in svg, svg


def what_is_only_drawn_beside_an_item_does_not_make_it_measured():
    result = some_latency(u=times((1, 0.5), (8, 0.6)))
    assert result.state == "skipped", result
    assert result.item.sources == ["s"] and result.item.others == ["u", "m"], result.item


def a_peer_that_is_not_there_is_said_and_fails_nothing():
    result = some_latency(s=times((8, 0.2)), u=[])
    assert "UCX: no rows" in result.absent and found.missing([result]) == [], result
    skips = {("b", "other"): "not installed"}
    result = found.result_of(result.item, {"s": times((8, 0.2))}, {}, skips)
    assert "UCX: not installed" in result.absent, result


def every_plot_against_size_has_its_peers_and_limits():
    of_size = [item for item in paper.ITEMS if item.series and item.axis == "bandwidth"]
    assert of_size and all(item.limits for item in of_size), [i.name for i in of_size]
    named = {series.label for item in paper.ITEMS for series in item.peers}
    assert {"UCX", "libfabric shm", "vader", "TCP", "UNIX socket"} <= named, named
    for item in paper.ITEMS:
        labels = [s.label for s in (*item.series, *item.peers, *item.limits)]
        assert len(labels) == len(set(labels)), item.name
        assert all(name in sources.SOURCES for name in item.others), item.name


def plots_of_the_front_page_show_gains_and_losses():
    for item in items_others.README:
        rows = [Row(s.benchmark, s.variant, 1, 0.5 if i else 4.0, "times", low=0.4, high=8.0)
                for i, s in enumerate(item.series)]
        svg = draw.figure(found.result_of(item, {item.sources[0]: rows}, {}, {}))
        words = " ".join(xml.etree.ElementTree.fromstring(svg).itertext())
        assert all(s.label in words for s in item.series), item.name
        assert svg.count(f'fill="{draw.COLOURS[2]}"') == 1, item.name   # ahead
        assert svg.count(f'fill="{draw.COLOURS[0]}"') == len(item.series) - 1, item.name
        assert item.sources[0] in sources.SOURCES and len(item.sources) == 1, item.name


def ratios_are_read_from_lines():
    data = {"items": {"one": {"lines": [
        {"text": "a", "ratios": {"times stock": [2.0, 1.0, 3.0], "times sockmap": [1.5]}},
        {"text": "b", "ratios": {}}]}}}
    row, = sources.ratios_of(data)
    assert (row.benchmark, row.variant, row.value, row.low, row.high) == (
        "a", "times stock", 2.0, 1.0, 3.0), row


def the_page_is_well_formed_and_needs_nothing_else():
    results = [made_up(item) if item.series else found.result_of(item, {}, {}, {})
               for item in paper.ITEMS]
    reader = Page()
    reader.feed(written(results)["index.html"])
    assert reader.open == [] and reader.fetched == [], (reader.open, reader.fetched)
    measured = [item.name for item in paper.ITEMS if item.series]
    assert sorted(reader.ids) == sorted(measured), set(measured) ^ set(reader.ids)


def the_json_has_a_version_every_item_and_its_verdicts():
    results = [made_up(item) if item.series else found.result_of(item, {}, {}, {})
               for item in paper.ITEMS]
    data = json.loads(written(results)["paper.json"])
    assert data["version"] == report.VERSION
    assert list(data["items"]) == [item.name for item in paper.ITEMS]
    verdicts = [line["verdict"] for item in data["items"].values() for line in item["lines"]]
    assert data["met"] == verdicts.count("met") and data["missed"] == verdicts.count("missed")


def the_list_says_what_cannot_be_measured_and_why():
    by_name = {item.name: item for item in paper.ITEMS}
    absent = {name: "" for name in sources.SOURCES} | {"ip": "needs clan ip", "via": "no via"}
    said = {name: paper.listed(item, absent) for name, item in by_name.items()}
    assert said["clan.fig8"] == "skipped    needs clan ip", said["clan.fig8"]
    assert said["shrimp.fig13"].startswith("skipped    netperf"), said["shrimp.fig13"]
    assert said["driver.fig6"] == "measured   by offered_load; no via", said["driver.fig6"]
    assert said["via.fig1"] == "drawn      docs/via.md", said["via.fig1"]
    with tempfile.TemporaryDirectory() as directory:
        nothing = sources.Run(Path(directory) / "clan", Path(directory), [0, 1], "full",
                              Path(directory), True)
        assert all(sources.absent(nothing, name) for name in sources.SOURCES)


class Told(sources.Run):
    """A run in which every program is there and says the same."""

    def __init__(self, text):
        super().__init__(Path("clan"), Path("parts"), [0, 1], "full", Path("."))
        self.text = text

    def program(self, *names):
        return Path(names[0])

    def call(self, *words):
        return self.text


def programs_without_a_smoke_run_are_read_as_they_print():
    shutil.which = lambda name: name
    heading = f"{'particles':>9} {'one rank us':>11}{'btl tcp':>19}{'mtl ofi over clan':>19}"
    rows = sources.nbody(Told(f"{heading}\n{16:>9} {2.5:>11.1f}{0.05:>19.2f}{1.25:>19.2f}\n"))
    assert [(r.variant, r.x, r.value, r.unit) for r in rows] == [
        ("btl tcp", 16, 0.05, "times"), ("mtl ofi over clan", 16, 1.25, "times")], rows
    rows = sources.stream(Told("DU+1copy       8 B     0.146 us one way    0.062 GB/s\n"))
    assert [(r.benchmark, r.variant, r.x, r.value, r.unit) for r in rows] == [
        ("vmmc_stream_latency", "DU+1copy", 8, 0.292, "us"),
        ("vmmc_stream_bandwidth", "DU+1copy", 8, 0.062, "GB/s")], rows


def a_program_that_has_to_end_may_end_what_it_has_started():
    script = ("import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
              "print('ready', flush=True)\ntime.sleep(60)")
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE,
                          text=True) as process:
        process.stdout.readline()
        sources.end(process)
    assert process.returncode == 7, process.returncode


def only_takes_items_and_papers():
    chosen = items.find(paper.ITEMS, ["unet", "clan.fig3"])
    assert [item.name for item in chosen] == [
        "clan.fig3", *(f"unet.{what}" for what in ("fig1", "fig2", "table1", "fig3", "programs"))
    ], chosen
    try:
        items.find(paper.ITEMS, ["clan.fig99"])
    except ValueError as why:
        assert "clan.fig99" in str(why)
    else:
        raise AssertionError("clan.fig99 was found")


def main():
    every_figure_and_table_is_an_item_once()
    an_item_is_drawn_measured_or_says_why_not()
    every_measured_item_has_a_smoke_run()
    lines_name_series_of_their_item()
    a_slower_series_is_not_ahead()
    a_series_that_was_not_measured_is_not_judged()
    a_round_trip_that_grows_is_not_flat()
    a_throughput_that_falls_does_not_hold()
    a_curve_that_still_rises_behind_its_knee_has_none()
    half_of_the_peak_is_found_between_points()
    a_figure_of_0_is_not_judged()
    limits_and_counts_can_be_missed()
    rates_of_two_regimes_are_compared_only_where_they_differ_by_more()
    a_line_and_an_item_without_figures_count_as_skipped()
    what_is_missed_is_measured_again_and_the_best_counts()
    a_series_that_nobody_has_skipped_is_missing()
    plots_are_xml_and_have_every_series_and_stated_number()
    a_plot_is_a_png_too_where_a_converter_can()
    peers_and_limits_are_drawn_by_lines_of_their_own()
    a_bar_has_its_trips_and_its_time()
    a_peer_of_two_regimes_is_not_drawn_in_trips()
    what_is_only_drawn_beside_an_item_does_not_make_it_measured()
    a_peer_that_is_not_there_is_said_and_fails_nothing()
    every_plot_against_size_has_its_peers_and_limits()
    plots_of_the_front_page_show_gains_and_losses()
    ratios_are_read_from_lines()
    the_page_is_well_formed_and_needs_nothing_else()
    the_json_has_a_version_every_item_and_its_verdicts()
    the_list_says_what_cannot_be_measured_and_why()
    programs_without_a_smoke_run_are_read_as_they_print()
    a_program_that_has_to_end_may_end_what_it_has_started()
    only_takes_items_and_papers()
    return 0


if __name__ == "__main__":
    sys.exit(main())
