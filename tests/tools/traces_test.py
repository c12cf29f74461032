#!/usr/bin/env python3
"""Traces of stock servers: what is recorded is replayed. Without strace nothing is recorded.

    traces_test.py TRACES.PY CLAN CLAN-TLBSIM
"""

import json
import os
import subprocess
import sys
import tempfile


def run(directory, only, path):
    script, clan, tlbsim = sys.argv[1:4]
    return subprocess.run(
        [sys.executable, "-B", script, "--clan", clan, "--tlbsim", tlbsim, "--only", only,
         "--seconds", "1", "--keep", directory], env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE, text=True, timeout=100, check=False)


def the_requests_of_a_server_are_in_its_trace(directory):
    ended = run(directory, "redis", os.environ["PATH"])
    if ended.returncode == 77:
        print(ended.stdout.strip())
        sys.exit(77)
    assert ended.returncode == 0, ended
    large, small = json.loads(ended.stdout)["results"]
    assert (large["entries"], small["entries"]) == (1024, 256), (large, small)
    # 5,000 of SET and of GET, and what they are answered.
    assert min(large[op]["accesses"] for op in ("r", "recv")) > 10_000, large
    assert large["r"]["non_compulsory_misses"] == 0, large


def without_strace_nothing_is_recorded(directory):
    ended = run(directory, "redis", directory)
    assert ended.returncode == 77 and "strace" in ended.stdout, ended


def main():
    with tempfile.TemporaryDirectory() as directory:
        without_strace_nothing_is_recorded(directory)
        the_requests_of_a_server_are_in_its_trace(directory)


if __name__ == "__main__":
    main()
