#!/usr/bin/env python3
"""`clan bench ofi` measures its rows, says what is missing, and leaves nothing behind. No figure is
judged.

    bench_ofi_test.py CLAN
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROWS = ("tagged", "msg", "rma", "atomic", "wait", "mpi", "fabtests")


def run(clan, *words, code=0, **more):
    done = subprocess.run([clan, "bench", "ofi", *map(str, words)], capture_output=True, text=True,
                          timeout=150, stdin=subprocess.DEVNULL, **more)
    assert done.returncode == code, done
    return done


def the_list_names_all_rows_and_what_is_wanted(clan):
    said = run(clan, "--list").stdout
    for name in ROWS:
        assert any(line.startswith(name + ": ") for line in said.splitlines()), (name, said)
    assert "shm 1.2" in said and "btl tcp 20" in said and "at most 200" in said, said


def an_unknown_row_and_a_wrong_core_are_refused(clan):
    for words in (["--only", "bogus"], ["--only", ""], ["--only", "tagged,3 B"], [
            "--only", "fabtests"
    ], ["--cores", "0,7777"], ["--rounds", "0"], ["--fabtests", "/nowhere"], ["bogus"]):
        assert words[-1].split(",")[-1] in run(clan, *words, code=2).stderr, words


def single_lines_can_be_named(clan):
    names = "tagged 4 KB, 64 under way,fetch-and-add 8 B,wait,tagged ping-pong 8 B"
    said = run(clan, "--list", "--only", names).stdout
    lines = [line.split("  ")[1] for line in said.splitlines() if line.startswith("  ")]
    assert lines[:3] == ["tagged 4 KB, 64 under way", "tagged ping-pong 8 B",
                         "fetch-and-add 8 B"], said
    assert "wake-up by FI_WAIT_FD, one way" in lines and len(lines) == 5, said
    said = run(clan, "--only", "tagged ping-pong 8 B", "--rounds", 1, "--ms", 5).stdout
    assert "Microseconds per operation" in said and "tagged ping-pong 8 B" in said, said
    assert "tagged ping-pong 64 B" not in said, said


def what_is_measured_is_written(clan):
    with tempfile.TemporaryDirectory() as top:
        out = Path(top, "results")
        # A shell that is set to another provider changes nothing.
        said = run(clan, "--only", "atomic,wait", "--rounds", 1, "--ms", 5, "-o", out,
                   env={**os.environ, "FI_PROVIDER": "sockets",
                        "FI_PROVIDER_PATH": "/nowhere"}).stdout
        results = json.loads((out / "ofi.json").read_text())
        assert not results["failed"], said
        rows = {(row["text"], row["series"]): row for item in results["items"].values()
                for row in item["rows"]}
        texts = {text for text, _ in rows}
        assert len(texts) == 3, said
        for text in texts:
            assert text in said and text in (out / "ofi.md").read_text(), text
            assert 0 <= rows[text, "clan"]["low"] <= rows[text, "clan"]["value"], rows
        for column in ("clan", "shm", "tcp;ofi_rxm"):
            assert rows["fetch-and-add 8 B", column]["low"] > 0, said
        assert rows["wake-up by FI_WAIT_FD, one way", "eventfd"]["low"] > 0, said
        assert all(row["cpu"] is None for row in rows.values()), rows  # no throughput
        for word in ("cpu", "kernel", "date", "commit", "load"):
            assert results["machine"][word], results["machine"]


def cpu_time_stands_below_a_throughput(clan):
    with tempfile.TemporaryDirectory() as top:
        said = run(clan, "--only", "tagged 4 KB, 64 under way", "--rounds", 1, "--ms", 5, "-o",
                   top).stdout
        rows = json.loads(Path(top, "ofi.json").read_text())["items"]["tagged"]["rows"]
        assert [row["series"] for row in rows if row["cpu"] > 0] == ["clan", "shm",
                                                                     "tcp;ofi_rxm"], rows
        assert said.count("  CPU time ") == 1, said


def a_provider_that_is_not_there_is_named(clan):
    with tempfile.TemporaryDirectory() as empty:
        said = run(clan, "--only", "atomic", "--rounds", 1, "--ms", 5, "--provider-path",
                   empty).stdout
    assert "not available: atomic, clan: unavailable: fi_getinfo: No data available" in said, said
    assert "0 met, 0 missed, 1 not judged" in said, said


def children_of(pid):
    """Process ids below `pid`."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *children_of(child)]
    return found


def whatever_ends_it_ends_what_it_has_started(clan, number):
    with tempfile.TemporaryDirectory() as top:
        bench = subprocess.Popen([clan, "bench", "ofi", "--only", "msg", "--ms", "1000"],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 env={**os.environ, "TMPDIR": top})
        deadline = time.monotonic() + 60
        while len(children := children_of(bench.pid)) < 6:
            assert bench.poll() is None and time.monotonic(
            ) < deadline, "three pairs were not started"
            time.sleep(0.05)
        bench.send_signal(number)
        bench.wait(60)
        while alive := [pid for pid in children if os.path.exists(f"/proc/{pid}")]:
            assert time.monotonic() < deadline, (number, alive)
            time.sleep(0.05)
        segments = [path for pid in children for path in Path("/dev/shm").glob(f"{pid}:*")]
        assert number == signal.SIGKILL or segments == [], segments
        for path in segments:  # shm's
            path.unlink()
        left = os.listdir(top)
        assert number == signal.SIGKILL or left == [], left


def main():
    clan = sys.argv[1]
    the_list_names_all_rows_and_what_is_wanted(clan)
    an_unknown_row_and_a_wrong_core_are_refused(clan)
    single_lines_can_be_named(clan)
    a_provider_that_is_not_there_is_named(clan)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        whatever_ends_it_ends_what_it_has_started(clan, number)
    what_is_measured_is_written(clan)
    cpu_time_stands_below_a_throughput(clan)
    return 0


if __name__ == "__main__":
    sys.exit(main())
