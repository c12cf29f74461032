#!/usr/bin/env python3
"""VIs of programs: on one host, as `clan stat` shows them and without system calls; between two
hosts, by the UDP link.

    programs.py CLAN VIA-END CASE    (exit code 77: what the case needs is not here)
"""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "udp"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import hosts  # noqa: E402
import system_calls  # noqa: E402

ADDRESS = "10.78.0.1"  # of the first host
RELIABLE = "2"


@contextlib.contextmanager
def serving(end, name, before=(), **settings):
    process = subprocess.Popen([*before, end, "serve", name], stdout=subprocess.PIPE, text=True,
                               **settings)
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def visible(clan, end):
    """`clan stat` shows both ends of a connection, with what has gone by it."""
    name = f"visible{os.getpid()}"
    with serving(end, name) as server:
        client = subprocess.Popen([end, "hold", name, "localhost"], stdout=subprocess.PIPE,
                                  text=True)
        try:
            assert client.stdout.readline() == "held\n"
            pids = [str(server.pid), str(client.pid)]
            text = subprocess.run([clan, "stat", "--json", *pids], check=True, text=True,
                                  capture_output=True).stdout
            rows = {row["pid"]: row for row in json.loads(text) if row["path"] == "via"}
            for pid, peer in ((server.pid, client.pid), (client.pid, server.pid)):
                row = rows[pid]
                assert row["peer_pid"] == peer and row["moved"] == 3, row
                assert row["sent_bytes"] >= 60_000 and row["received_bytes"] >= 60_000, row
            assert rows[client.pid]["rdma_bytes"] == 100, rows
            text = subprocess.run([clan, "stat", *pids], check=True, text=True,
                                  capture_output=True).stdout
            assert f"to process {server.pid}" in text and "3 sent by RDMA" in text, text
        finally:
            client.kill()
            client.communicate()


def described(clan, end):
    """`clan env via` says how programs are linked, and `clan doctor` where the library is."""
    text = subprocess.run([clan, "env", "via"], check=True, text=True, capture_output=True).stdout
    settings = dict(line.removeprefix("export ").split("=", 1) for line in text.splitlines())
    source = Path(__file__).resolve().parent.parent.parent / "examples/via_pingpong.c"
    with tempfile.TemporaryDirectory() as directory:
        program = os.path.join(directory, "pingpong")
        words = [settings[name].strip("'").split() for name in ("VIPL_CFLAGS", "VIPL_LIBS")]
        subprocess.run(["cc", "-o", program, source, *words[0], *words[1]], check=True)
        subprocess.run([program], check=True, stdout=subprocess.DEVNULL, timeout=60)
    text = subprocess.run([clan, "doctor", "--json"], text=True, capture_output=True).stdout
    assert "libvipl.so is in" in text, text


def quiet(_clan, end):
    """No system call while both ends poll."""
    if shutil.which("strace") is None:
        return "needs strace"
    name = f"quiet{os.getpid()}"
    with tempfile.TemporaryDirectory() as directory:
        logs = [os.path.join(directory, end) for end in "ab"]
        strace = [["strace", *system_calls.STRACE, log] for log in logs]
        with serving(end, name, strace[0]) as server:
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
    if not hosts.possible():
        return "needs root, ip and network namespaces"
    with tempfile.NamedTemporaryFile("w", prefix="clan-key-") as key, \
            hosts.hosts(1500, "v") as names:
        key.write(secrets.token_hex(32))
        key.flush()
        variables = dict(os.environ, CLAN_KEY=key.name)
        for level in ("1", "2", "4"):
            with serving(end, f"far{level}", hosts.inside(names[0]), env=variables) as server:
                done = subprocess.run(
                    hosts.inside(names[1], end, "ask", f"far{level}", ADDRESS, level),
                    env=variables, text=True, capture_output=True, timeout=100)
                assert done.stdout == "right\n", (level, done.stdout, done.stderr)
                assert server.wait(timeout=20) == 0, level
        with serving(end, "killed", hosts.inside(names[0]), env=variables) as server:
            client = subprocess.Popen(hosts.inside(names[1], end, "hold", "killed", ADDRESS),
                                      env=variables, stdout=subprocess.PIPE, text=True)
            assert client.stdout.readline() == "held\n"
            client.kill()
            client.communicate()
            assert server.wait(timeout=60) == 0, "the server has lost its connection, and no more"
    return None


def main():
    clan, end, case = sys.argv[1:4]
    why = {"visible": visible, "described": described, "quiet": quiet, "far": far}[case](clan, end)
    if why:
        print(why)
        return 77
    return 0


if __name__ == "__main__":
    begin = time.monotonic()
    code = main()
    print(f"{time.monotonic() - begin:.1f} s")
    sys.exit(code)
