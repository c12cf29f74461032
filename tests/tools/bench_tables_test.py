#!/usr/bin/env python3
"""What `clan bench ofi`, `mpi`, `orb` and `rpc` make of what their load programs say: figures, the
CPU time below throughputs, slices dropped and kept. Nothing is measured.

    bench_tables_test.py
"""

import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path[:0] = [str(BENCH / name) for name in ("apps", "ofi", "mpi", "orb", "rpc")]

import described
import loads    
import orb      
import rows     
import rpc_table

COLUMNS = ["clan", "shm"]
ROW = rows.Row("some", "some row", COLUMNS, [], None)


def line_of(kind, *rounds):
    point = rows.Point(kind, 8, f"{kind} 8 B", {"shm": 1})
    return rows.judge(ROW, point, [dict(zip(COLUMNS, r)) for r in rounds])


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
    window, latency = line_of("window", *figures), line_of("latency", *figures)
    assert window.cpu == {"clan": 0.5, "shm": 1.0} and latency.cpu == {}, (window, latency)
    lines = described.table(ROW, [window, latency]).splitlines()
    below = [line for line in lines if "CPU time of both ends" in line]
    assert len(below) == 1 and lines.index(below[0]) == 2, lines
    assert below[0].split()[-3:] == ["0.50", "1.00", "2.00"], below


def programs_that_tell_no_cpu_time_have_none():
    figures = ((0.1, 0.2, 1, 0, 0, None), (0.2, 0.4, 1, 0, 0, None))
    assert line_of("window", figures).cpu == {}


def slices_dropped_and_slices_kept_are_told_apart():
    line = line_of("latency", ((0.1, 0.2, 9, 3, 5, 0.4), (0.2, 0.4, 9, 2, 0, 0.8)))
    assert line.dropped == {"clan": 3, "shm": 2} and line.shared == {"clan": 5, "shm": 0}, line
    said = described.dropped(ROW, [line])
    assert "another process had the processor: clan 3, shm 2\n" in said, said
    assert "another thread of the process had it: clan 5, shm 0\n" in said, said
    calm = line_of("latency", ((0.1, 0.2, 9, 0, 0, 0.4), (0.2, 0.4, 9, 0, 0, 0.8)))
    assert described.dropped(ROW, [calm]) == ""


def calls_of_corba_share_the_cpu_time_of_server_and_clients():
    one = {"calls_per_s": 250_000, "processors": 0.5, "server_processors": 1.0}
    assert orb.cpu_us([one]) == 6
    # The server is one, whichever client looks at it.
    assert orb.cpu_us([one, one]) == 4


def a_bulk_call_of_rpc_has_its_cpu_time_below_it():
    figures = {("echo", 8): {"vRPC": [(1, 2, 3.5)]},
               ("echo", 65536): {"vRPC": [(10, 20, 41.5), (10, 22, 43.5), (10, 24, 42.5)],
                                 "tcp": [(30, 40)]}}  # older: without
    lines = rpc_table.table("two cores", figures, ["vRPC", "tcp"]).splitlines()
    assert lines[2:] == ["| echo 8 B | 1.00 / 2.00 | - |", "| echo 64 KB | 10.00 / 22.00 | 30.00 / "
                         "40.00 |", "| echo 64 KB, CPU time | 42.50 | - |"], lines
    said = rpc_table.crowd_line({"vRPC": [1000, 2000, 3000]}, {"vRPC": [5, 6, 7]})
    assert said.endswith("vRPC 2000 (6.00)"), said


def main():
    a_figure_is_read_as_the_load_program_prints_it()
    cpu_time_stands_below_a_throughput_and_no_latency()
    programs_that_tell_no_cpu_time_have_none()
    slices_dropped_and_slices_kept_are_told_apart()
    calls_of_corba_share_the_cpu_time_of_server_and_clients()
    a_bulk_call_of_rpc_has_its_cpu_time_below_it()
    return 0


if __name__ == "__main__":
    sys.exit(main())
