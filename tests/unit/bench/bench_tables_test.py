#!/usr/bin/env python3
"""What `clan bench ofi`, `mpi`, `orb` and `rpc` make of what their load programs say: figures, the
CPU time below throughputs, slices dropped and kept. Nothing is measured.

    bench_tables_test.py
"""

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path

BENCH = Path(__file__).resolve().parents[3] / "bench"
sys.path[:0] = [str(BENCH / name) for name in ("support", "apps", "ofi", "mpi", "orb", "rpc")]

import loads
import orb
import report
import rows
import rpc

COLUMNS = ["clan", "shm"]
ROW = rows.Row("some", "some row", COLUMNS, [], None)


def judged(kind, *rounds):
    point = rows.Point(kind, 8, f"{kind} 8 B", {"shm": 1})
    return rows.judge(ROW, point, [dict(zip(COLUMNS, r)) for r in rounds])


def cells(line):
    return [word.strip() for word in line.strip("|").split("|")]


def a_figure_is_read_as_the_load_program_prints_it():
    assert loads.figure_of("0.25000 0.30000 9 2 4 0.61000".split()) == (0.25, 0.3, 9, 2, 4, 0.61)
    figures = {}
    text = "noise\nwindow 8 0.10 0.20 27 1 3 0.41\nboth 8 0.3 0.4 27 0 0 0.39\nwindow 8 0.1 0.2\n"
    loads.add_of_mpi(figures, "clan", text)
    assert figures == {("window", 8): [{"clan": (0.1, 0.2, 27, 1, 3, 0.41)}],
                       ("both", 8): [{"clan": (0.3, 0.4, 27, 0, 0, 0.39)}]}, figures


def cpu_time_stands_below_a_throughput_and_no_latency():
    figures = [((0.1, 0.2, 9, 0, 0, 0.4), (0.2, 0.4, 9, 0, 0, 0.8)),
               ((0.1, 0.2, 9, 0, 0, 0.6), (0.2, 0.4, 9, 0, 0, 1.2)),
               ((0.1, 0.2, 9, 0, 0, 0.5), (0.2, 0.4, 9, 0, 0, 1.0))]
    window, line = judged("window", *figures)
    latency, other = judged("latency", *figures)
    assert [row.cpu for row in (*window, *latency)] == [0.5, 1.0, None, None], (window, latency)
    lines = report.table(report.Item("some", "", window + latency, [line, other])).splitlines()
    below = [cells(line) for line in lines if "CPU time" in line]
    assert len(below) == 1 and "CPU time" in lines[3], lines
    assert below[0][:4] == ["CPU time", "0.5", "1", "2.00"], below


def programs_that_tell_no_cpu_time_have_none():
    figures, _ = judged("window", ((0.1, 0.2, 1, 0, 0, None), (0.2, 0.4, 1, 0, 0, None)))
    assert [row.cpu for row in figures] == [None, None], figures


def slices_dropped_and_slices_kept_are_told_apart():
    figures, _ = judged("latency", ((0.1, 0.2, 9, 3, 5, 0.4), (0.2, 0.4, 9, 2, 0, 0.8)))
    said = rows.dropped(ROW, figures)
    assert said[0].endswith("another process had the processor: clan 3, shm 2"), said
    assert said[1].endswith("another thread of the process had it: clan 5, shm 0"), said
    calm, _ = judged("latency", ((0.1, 0.2, 9, 0, 0, 0.4), (0.2, 0.4, 9, 0, 0, 0.8)))
    assert rows.dropped(ROW, calm) == []


def a_bar_that_only_the_minima_reach_is_missed():
    _, line = judged("latency", ((0.1, 0.5, 9, 0, 0, 0.4), (0.2, 0.4, 9, 0, 0, 0.8)))
    assert (line.verdict, line.more) == ("missed", {"remark": "by the minima met"}), line
    assert line.ratios["shm/clan"][3] == 2, line
    _, line = judged("latency", ((0.1, 0.2, 9, 0, 0, 0.4),))
    assert line.verdict == "not judged", line


def a_table_has_a_column_for_each_variant_and_what_is_wanted_of_a_line():
    item = report.Item("some", "", [
        report.Row("a", "clan", 1, 1234567, "requests/s", text="a | b"),
        report.Row("a", "tcp", 1, 2, "us", low=1.5, text="c")],
        [report.Line("c", "at least 3", "missed", ratios={"tcp/clan": [2, 1.5, 2.5]}),
         report.Line("d", "at most 1", "met", "0.50", more={"remark": "calm"})], ["said"])
    lines = report.table(item).splitlines()
    assert cells(lines[0]) == ["", "clan", "tcp", "unit", "tcp/clan", "figure", "remark", "wanted",
                               ""], lines
    assert cells(lines[2].replace("\\|", "/")) == ["a / b", "1.23M", "-", "requests/s", "-", "",
                                                   "", "", ""], lines
    assert cells(lines[3]) == ["c", "-", "1.5 / 2", "us", "2.00 (1.50..2.50)", "", "",
                               "at least 3", "missed"], lines
    assert cells(lines[4]) == ["d", "-", "-", "", "-", "0.50", "calm", "at most 1", "met"], lines
    assert lines[5:] == ["", "said"] and len(set(map(len, lines[:5]))) <= 2, lines


def a_unit_has_a_column_only_where_lines_differ_in_it():
    def heading(*units):
        rows_ = [report.Row("a", variant, 1, 2, unit, text=text) for text, variant, unit in units]
        return cells(report.table(report.Item("some", "", rows_)).splitlines()[0])[1:]
    assert heading(("a", "clan", "us"), ("b", "clan", "B")) == ["clan", "unit"]
    assert heading(("a", "clan", "us"), ("b", "clan", "us")) == ["clan"]
    assert heading(("a", "p50", "us"), ("a", "rate", "1/s")) == ["p50", "rate"]
    assert heading(("a, us", "clan", "us"), ("b, B", "clan", "B")) == ["clan"]


def a_report_comes_back_from_what_it_writes():
    machine = {"cpu": "a", "cores": 2, "kernel": "k", "governor": "g", "load": "0 0", "commit": "c",
               "compiler": "gcc", "date": "d", "used": [0, 1], "others": {"ofi": "none"}}
    with contextlib.redirect_stdout(io.StringIO()) as out:
        results = report.Report("some", "Some", machine, "made up")
        row = report.Row("a", "clan", 8, 2.5, "us", text="a 8 B", samples=[1, 2])
        results.add(report.Item("one", "an item", [row], [report.at_least("a 8 B", 2.5, 3)]))
        results.failed["two"] = "why"
        with tempfile.TemporaryDirectory() as directory:
            assert results.end(Path(directory)) == 1
            data = json.loads(Path(directory, "some.json").read_text())
            text = Path(directory, "some.md").read_text()
    assert data["version"] == report.VERSION and (data["met"], data["missed"]) == (0, 1), data
    assert report.rows_of(data) == [row] and data["failed"] == {"two": "why"}, data
    for said in ("missed: a 8 B: 2.50; wanted: at least 3", "failed: two: why", "ofi       none"):
        assert said in text and said in out.getvalue(), (said, text)


def calls_of_corba_share_the_cpu_time_of_server_and_clients():
    one = {"calls_per_s": 250_000, "processors": 0.5, "server_processors": 1.0}
    assert orb.cpu_us([one]) == 6
    # The server is one, whichever client measures it.
    assert orb.cpu_us([one, one]) == 4


def a_bulk_call_of_rpc_has_its_cpu_time():
    figures = {("echo", 8): {"vRPC": [(1, 2, 3.5)]},
               ("echo", 65536): {"vRPC": [(10, 20, 41.5), (10, 22, 43.5), (10, 24, 42.5)],
                                 "tcp": [(30, 40, 80), (30, 44, 82), (30, 48, 84)]}}
    found = rpc.rows_of(figures)
    assert [(row.text, row.variant, row.low, row.value, row.cpu) for row in found] == [
        ("echo 8 B", "vRPC", 1, 2, None), ("echo 64 KB", "vRPC", 10, 22, 42.5),
        ("echo 64 KB", "tcp", 30, 44, 82)], found
    crowd = {"vRPC": [1000, 2000, 3000], "tcp": [1000]}
    line, = rpc.bars({}, {}, {}, crowd)
    assert (line.verdict, line.figure, line.wanted) == ("missed", "2.00", "at least 3"), line


def main():
    a_figure_is_read_as_the_load_program_prints_it()
    cpu_time_stands_below_a_throughput_and_no_latency()
    programs_that_tell_no_cpu_time_have_none()
    slices_dropped_and_slices_kept_are_told_apart()
    calls_of_corba_share_the_cpu_time_of_server_and_clients()
    a_bulk_call_of_rpc_has_its_cpu_time()
    a_bar_that_only_the_minima_reach_is_missed()
    a_table_has_a_column_for_each_variant_and_what_is_wanted_of_a_line()
    a_unit_has_a_column_only_where_lines_differ_in_it()
    a_report_comes_back_from_what_it_writes()
    return 0


if __name__ == "__main__":
    sys.exit(main())
