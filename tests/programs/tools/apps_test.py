#!/usr/bin/env python3
"""`clan bench apps` runs its rows, says what is missing, and leaves nothing behind. No figure is
judged.

    apps_test.py CLAN
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROWS = ("sockperf", "redis-c1", "memcached", "nginx-c64", "iperf3", "pgbench-c8", "one-sided-redis",
        "crowded", "nginx-unpinned", "redis-rate-10", "idle-connections", "idle", "late")


def run(clan, *words, code=0, **more):
    done = subprocess.run([clan, "bench", "apps", *map(str, words)], capture_output=True, text=True,
                          timeout=150, stdin=subprocess.DEVNULL, **more)
    assert done.returncode == code, done
    return done


def the_list_names_all_rows_and_what_is_wanted(clan):
    said = run(clan, "--list").stdout
    for name in ROWS:
        assert any(line.startswith(name + " ") for line in said.splitlines()), (name, said)
    assert "at least 8 times" in said, said


def an_unknown_row_and_a_wrong_core_are_refused(clan):
    for words in (["--only", "bogus"], ["--cores", "0,7777"], ["--pairs", "0"], ["bogus"]):
        assert words[-1] in run(clan, *words, code=2).stderr, words


def a_row_of_each_kind_is_measured_and_written(clan):
    with tempfile.TemporaryDirectory() as top:
        out = Path(top, "results")
        said = run(clan, "--only", "redis-c50,nginx-connections", "--pairs", 1, "--seconds", 1,
                   "-o", out).stdout
        results = json.loads((out / "apps.json").read_text())
        assert not results["failed"], said
        expected = {
            "redis-c50": ("redis-server", "redis-benchmark"), "nginx-connections": ("nginx", "ab")
        }
        daemons = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
        here = {row for row, programs in expected.items()
                if all(shutil.which(program, path=daemons) for program in programs)}
        assert set(results["items"]) == here, said
        assert set(results["skipped"]) == set(expected) - here, said
        written = (out / "apps.md").read_text() + (out / "apps.svg").read_text()
        for item in results["items"].values():
            assert all(row["value"] > 0 for row in item["rows"]), item
            assert {"stock", "clan"} <= {row["series"] for row in item["rows"]}, item
            for line in item["lines"]:
                ratio, low, high = line["ratios"]["times stock"]
                assert low <= ratio <= high, line
                assert line["verdict"] in ("met", "missed"), line  # and not "not judged"
                assert written.count(line["text"]) >= 2, line
        for word in ("cpu", "kernel", "date", "commit", "load"):
            assert results["machine"][word], results["machine"]


def a_missing_program_is_named_with_its_package(clan):
    with tempfile.TemporaryDirectory() as top:
        for program in ("python3", "taskset", "setpriv"):
            os.symlink(shutil.which(program), Path(top, program))
        said = run(clan, "--only", "memcached", "--quick", env={**os.environ, "PATH": top}).stdout
        why = "memcached is not installed; it is in the Debian package memcached."
        assert f"skipped: {why}" in said, said


def children_of(pid):
    """Process ids below `pid`."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *children_of(child)]
    return found


def whatever_ends_it_ends_the_servers(clan, number):
    with tempfile.TemporaryDirectory() as top:
        bench = subprocess.Popen([clan, "bench", "apps", "--only", "redis-c50"],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 env={**os.environ, "TMPDIR": top})
        deadline = time.monotonic() + 60
        while bench.poll() is None and len(children := children_of(bench.pid)) < 3:
            assert time.monotonic() < deadline, "no servers and no load were started"
            time.sleep(0.05)
        if bench.poll() is not None:
            return  # redis is not installed
        bench.send_signal(number)
        bench.wait(60)
        while alive := [pid for pid in children if os.path.exists(f"/proc/{pid}")]:
            assert time.monotonic() < deadline, (number, alive)
            time.sleep(0.05)
        left = os.listdir(top)
        assert number == signal.SIGKILL or left == [], left


def main():
    clan = sys.argv[1]
    the_list_names_all_rows_and_what_is_wanted(clan)
    an_unknown_row_and_a_wrong_core_are_refused(clan)
    a_missing_program_is_named_with_its_package(clan)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        whatever_ends_it_ends_the_servers(clan, number)
    a_row_of_each_kind_is_measured_and_written(clan)
    return 0


if __name__ == "__main__":
    sys.exit(main())
