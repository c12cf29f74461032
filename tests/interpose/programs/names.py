#!/usr/bin/env python3
"""iperf3, which knows nothing of AF_CLAN, by a name of it: bytes by shared memory, and no port
taken.

    names.py LIBRARY
"""

import json
import os
import subprocess
import sys

import programs


def talk(run):
    name = f"clan:perf/{os.getpid()}"
    report = None
    server = run.serve("iperf3", "-s", "-1", "-B", name, once=True)

    def served():
        nonlocal report
        programs.require(server.poll() is None, "the server has ended")
        report = json.loads(
            run.text("iperf3", "-c", name, "-J", "-n", "1G", "-l", "128K", check=False))
        return "error" not in report

    run.until("iperf3 listens", served)
    return {
        "server": server.wait(10), "bytes": report["end"]["sum_received"]["bytes"] > 100_000_000
    }


def main():
    try:
        programs.find("iperf3")
    except programs.Skip as skip:
        print(skip)
        return 77
    try:
        said, pipes, count = programs.attempt(talk, preload=sys.argv[1], server=True, client=True,
                                              threshold=50 << 20)
    except (programs.Wrong, OSError, ValueError, KeyError, subprocess.SubprocessError) as wrong:
        print(f"{type(wrong).__name__}: {wrong}")
        return 1
    print(said, f"{sum(count) / 1e6:.0f} MB in {pipes} pipes")
    return 0 if said == {"server": 0, "bytes": True, "exit codes": []} else 1


if __name__ == "__main__":
    sys.exit(main())
