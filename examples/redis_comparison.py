#!/usr/bin/env python3
"""A stock redis-server and redis-benchmark, over the kernel's TCP and under `clan run`.

    redis_comparison.py CLAN [REQUESTS]

Each way has a server of its own on a free port, without persistence, on one core, and
redis-benchmark on another. A measurement that other work disturbed is made again, three times at
most (once if REQUESTS says how many), and marked. While it runs under CLAN, `clan stat` is asked
what has moved into shared memory. Everything that is started ends with this program, its files with
it. Exit code 77 if redis is not installed.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from other_work import undisturbed

CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, CLIENT_CORE = CORES[0], CORES[-1]
CLIENTS = (1, 50)
SECONDS = 60  # that one redis-benchmark may take
LONGER = 10   # times as many requests under CLAN, so that both take about as long
ENOUGH = 5    # seconds of one test; on a busy machine there are fewer requests in them
# seconds between two checks of what has moved: each takes a core from what is measured for a while
LOOKS = 1


# Not started at all where the parent was killed before the program had asked for that signal.
WITH_ITS_PARENT = ("/bin/sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"')


def start(words, core, under, **more):
    """The process; clan, if given in `under`, becomes the program. It ends when this one does."""
    tied = ["setpriv", "--pdeathsig=TERM", *WITH_ITS_PARENT, str(os.getpid()), "taskset", "-c",
            str(core)]
    under = [under, "run"] if under else []
    return subprocess.Popen([*tied, *under, *map(str, words)], stdin=subprocess.DEVNULL, **more)


def end(process):
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def start_server(directory, under):
    """(server, its port), once it answers."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    log = Path(directory, "server.log")
    with open(log, "wb") as to:
        server = start([
            "redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", directory, "--save", "",
            "--appendonly", "no"
        ], SERVER_CORE, under, stdout=to, stderr=to)
    try:
        deadline = time.monotonic() + 20
        while server.poll() is None and time.monotonic() < deadline:
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    return server, port
            time.sleep(0.05)
        raise SystemExit(f"redis-server does not start: {log.read_text(errors='replace')[-500:]}")
    except BaseException:
        end(server)
        raise


def benchmark(directory, port, clients, requests, under, look):
    """{test: requests per second}; calls `look` while it runs, soon again if that saw nothing."""
    output = Path(directory, "benchmark.out")
    with open(output, "wb") as to:
        load = start([
            "redis-benchmark", "-q", "-h", "127.0.0.1", "-p", port, "-c", clients, "-n", requests,
            "-t", "get,set"
        ], CLIENT_CORE, under, stdout=to, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + SECONDS
        next_look = time.monotonic() + LOOKS / 2
        while load.poll() is None:
            if time.monotonic() > next_look:
                # Between two tests there are no connections.
                next_look = time.monotonic() + (LOOKS if look() else LOOKS / 10)
            time.sleep(0.05)
            if time.monotonic() > deadline:
                raise SystemExit(f"redis-benchmark -c {clients} had not ended after {SECONDS} s")
    finally:
        end(load)
    text = output.read_text(errors="replace")
    rates = {
        test: float(rate)
        for test, rate in re.findall(r"(GET|SET): ([\d.]+) requests per second", text)
    }
    if load.returncode != 0 or len(rates) != 2:
        raise SystemExit(f"redis-benchmark -c {clients} failed: {text.strip()[-500:]}")
    return rates


def measured(directory, port, clients, requests, under, look):
    """benchmark() with `requests`, or as many as take about ENOUGH seconds."""
    first = benchmark(directory, port, clients, max(requests // 100, 200), under, lambda: True)
    return benchmark(directory, port, clients, min(requests,
                                                   int(min(first.values()) * ENOUGH) + 200), under,
                     look)


class Look:
    """What `clan stat` says of a process, at the moment when it has the most to say."""

    def __init__(self, clan, pid):
        self.command, self.lines = [clan, "stat", str(pid)], []

    def __call__(self):
        told = subprocess.run(self.command, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=20, check=False).stdout.splitlines()
        if len(told) > 1 and len(told) >= len(self.lines):
            self.lines = told
        return len(told) > 1


def measure(clan, requests, tries, under):
    """({(clients, test): rate}, {clients: lines of `clan stat`}, {clients: what disturbed it})"""
    rates, seen, doubts = {}, {}, {}
    requests *= LONGER if under else 1
    with tempfile.TemporaryDirectory(prefix="clan-redis-") as directory:
        server, port = start_server(directory, clan if under else None)
        try:
            for clients in CLIENTS:
                look = Look(clan, server.pid)
                found, doubts[clients] = undisturbed(
                    lambda clients=clients, look=look: measured(
                        directory, port, clients, requests * (2 if clients > 1 else 1),
                        clan if under else None, look if under else lambda: True),
                    [server.pid], tries)
                rates.update({(clients, test): rate for test, rate in found.items()})
                seen[clients] = look.lines
        finally:
            end(server)
    return rates, seen, doubts


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    clan = os.path.abspath(sys.argv[1])
    requests, tries = (int(sys.argv[2]), 1) if len(sys.argv) == 3 else (100_000, 3)
    for program in ("redis-server", "redis-benchmark"):
        if shutil.which(program) is None:
            print(f"{program} is not installed (Debian packages redis-server and redis-tools)")
            return 77
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    print(
        f"redis-server on core {SERVER_CORE}, redis-benchmark on core {CLIENT_CORE}, requests per "
        "second:",
        flush=True)
    stock, _, doubts = measure(clan, requests, tries, under=False)
    moved, seen, more = measure(clan, requests, tries, under=True)
    print(f"\n  {'connections':>11}  {'test':<4}  {'TCP':>9}  {'clan run':>9}  ratio")
    for (clients, test), rate in stock.items():
        mine = moved[clients, test]
        print(f"  {clients:>11}  {test:<4}  {rate:>9.0f}  {mine:>9.0f}  {mine / rate:>5.2f}"
              f"{doubts[clients] or more[clients]}")

    for clients, lines in seen.items():
        print(f"\n`clan stat` while redis-benchmark -c {clients} ran under `clan run`:")
        for line in lines[:4]:
            print(f"  {line}")
        if len(lines) > 4:
            print(f"  ... and {len(lines) - 4} connections more")
        if not lines:
            print("  nothing: no connection of redis-server had moved into shared memory")
    return 0 if all(seen.values()) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
