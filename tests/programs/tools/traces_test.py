#!/usr/bin/env python3
"""Traces of stock programs: what is recorded is replayed.

    traces_test.py TRACES.PY CLAN CLAN-TLBSIM
"""

import json
import subprocess
import sys
import tempfile


def the_requests_of_a_server_are_in_its_trace(directory):
    script, clan, tlbsim = sys.argv[1:4]
    ended = subprocess.run(
        [sys.executable, "-B", script, "--clan", clan, "--tlbsim", tlbsim, "--only", "redis",
         "--seconds", "1", "--keep", directory],
        stdout=subprocess.PIPE, text=True, timeout=100, check=False)
    if ended.returncode == 77:
        print(ended.stdout.strip())
        sys.exit(77)
    assert ended.returncode == 0, ended
    large, small = json.loads(ended.stdout)["results"]
    assert (large["entries"], small["entries"]) == (1024, 256), (large, small)
    # 5,000 of SET and of GET, and what they are answered.
    assert min(large[op]["accesses"] for op in ("r", "recv")) > 10_000, large
    assert large["r"]["non_compulsory_misses"] == 0, large


def main():
    with tempfile.TemporaryDirectory() as directory:
        the_requests_of_a_server_are_in_its_trace(directory)


if __name__ == "__main__":
    main()
