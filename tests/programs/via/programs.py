#!/usr/bin/env python3
"""VIs of programs: on one host, as `clan stat` shows them and without system calls; between two
hosts, by the UDP link.

    programs.py CLAN VIA-END CASE    (exit code 77: what the case needs is not here)
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
import face_programs as programs  # noqa: E402
import system_calls  # noqa: E402
from face_programs import ADDRESS, hosts, output_of, running  # noqa: E402


def visible(clan, end):
    """`clan stat` shows both ends of a connection, with what has gone by it."""
    name = f"visible{os.getpid()}"
    with running(end, "serve", name, first="ready\n") as server, \
            running(end, "hold", name, "localhost", first="held\n") as client:
        pids = [str(server.pid), str(client.pid)]
        rows = {row["pid"]: row for row in json.loads(output_of(clan, "stat", "--json", *pids))
                if row["path"] == "via"}
        for pid, peer in ((server.pid, client.pid), (client.pid, server.pid)):
            row = rows[pid]
            assert row["peer_pid"] == peer and row["moved"] == 3, row
            assert row["sent_bytes"] >= 60_000 and row["received_bytes"] >= 60_000, row
        assert rows[client.pid]["rdma_bytes"] == 100, rows
        text = output_of(clan, "stat", *pids)
        assert f"to process {server.pid}" in text and "3 sent by RDMA" in text, text


def described(clan, _end):
    """`clan env via` says how programs are linked, and `clan doctor` where the library is."""
    example = Path(__file__).resolve().parents[3] / "examples/via_pingpong.c"
    programs.is_described(clan, "via", "VIPL", "libvipl.so", example)


def quiet(_clan, end):
    """No system call while both ends poll."""
    if shutil.which("strace") is None:
        return "needs strace"
    name = f"quiet{os.getpid()}"
    with tempfile.TemporaryDirectory() as directory:
        logs = [os.path.join(directory, end) for end in "ab"]
        strace = [["strace", *system_calls.STRACE, log] for log in logs]
        with running(*strace[0], end, "serve", name, first="ready\n") as server:
            done = subprocess.run([*strace[1], end, "poll", name, "localhost"], text=True,
                                  capture_output=True, timeout=100)
            server.wait(timeout=20)
        assert done.returncode == 0, done.stderr
        times = [float(line) for line in done.stdout.split()]
        stretches, still = system_calls.quiet_stretches(times, logs)
        print(f"{still} of {stretches} stretches without a system call")
        assert still > stretches * 0.9
    return None


def far(_clan, end):
    """Messages and RDMA between two hosts, at each level; then one is killed."""
    if why := programs.why_not_two_hosts():
        return why
    with programs.two_hosts() as (names, variables):
        for level in ("1", "2", "4"):
            with programs.serving(names[0], variables, end, f"far{level}") as server:
                programs.ask(names[1], variables, end, "ask", f"far{level}", ADDRESS, level)
                assert server.wait(timeout=20) == 0, level
        with programs.serving(names[0], variables, end, "killed") as server:
            with running(*hosts.inside(names[1], end, "hold", "killed", ADDRESS), first="held\n",
                         env=variables):
                pass  # it is killed
            assert server.wait(timeout=60) == 0, "the server has lost its connection, and no more"
    return None


if __name__ == "__main__":
    sys.exit(programs.main({"visible": visible, "described": described, "quiet": quiet,
                            "far": far}))
