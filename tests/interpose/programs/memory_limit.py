#!/usr/bin/env python3
"""Many connections in a control group with little memory.

    memory_limit.py LIBRARY CLAN

2,000 connections of redis-benchmark to redis-server, both in one group of 256 MB, first without
CLAN and then with it: as many requests are answered, nobody is killed for want of memory, and with
CLAN the bytes of some go by shared memory. Exit code 77 where no such group can be made, or redis
is not installed.
"""

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SKIPPED = 77
LIMIT = 256 << 20
CONNECTIONS, REQUESTS = 2000, 60_000
ROOT = Path("/sys/fs/cgroup")


class Group:
    """A control group that may use `LIMIT` bytes, under cgroup v2 or v1."""

    def __init__(self):
        unified = (ROOT / "cgroup.controllers").exists()
        parent = ROOT if unified else ROOT / "memory"
        self.directory = Path(tempfile.mkdtemp(prefix="clan-test-", dir=parent))
        self.events = self.directory / ("memory.events" if unified else "memory.oom_control")
        try:
            (self.directory / ("memory.max" if unified else "memory.limit_in_bytes")).write_text(
                str(LIMIT))
        except OSError:
            self.directory.rmdir()
            raise

    def command(self, *words):
        return ["/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', str(self.directory / "cgroup.procs"),
                *map(str, words)]

    def killed(self):
        words = dict(line.split() for line in self.events.read_text().splitlines())
        return int(words["oom_kill"])

    def remove(self):
        for _ in range(50):
            try:
                self.directory.rmdir()
                return
            except OSError:
                time.sleep(0.1)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(port, server):
    for _ in range(200):
        if server.poll() is not None:
            raise RuntimeError(f"redis-server has ended with code {server.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError("redis-server does not listen")


def moved(clan, port):
    """(connections in shared memory, all connections) that `clan stat` sees on `port`."""
    said = subprocess.run([clan, "stat", "--json", "--all"], capture_output=True, text=True,
                          check=False, timeout=60)
    seen = [
        c for c in json.loads(said.stdout or "[]")
        if port in [c.get(end, {}).get("port") for end in ("local", "peer")]
    ]
    return sum(c["path"] == "shm" for c in seen), len(seen)


def load(library, clan, under):
    """How it went: (exit code of the load, requests that it reports, killed processes, what has
    moved)."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("LD_PRELOAD", "CLAN_"))}
    if under:
        environment["LD_PRELOAD"] = library
    group, port, server = Group(), free_port(), None
    directory = tempfile.mkdtemp(prefix="clan-memory-")
    common = {"env": environment, "stdin": subprocess.DEVNULL, "cwd": directory}
    try:
        with open(os.path.join(directory, "log"), "wb") as log:
            server = subprocess.Popen(
                group.command(shutil.which("redis-server"), "--port", port, "--bind", "127.0.0.1",
                              "--save", "", "--dir", directory, "--maxclients", 4000), stdout=log,
                stderr=log, **common)
            wait_for(port, server)
            client = subprocess.Popen(
                group.command(shutil.which("redis-benchmark"), "-p", port, "-c", CONNECTIONS, "-n",
                              REQUESTS, "-t", "set,get", "-d", 1000, "--csv"),
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **common)
            seen = (0, 0)
            while client.poll() is None and under and seen[0] == 0:
                seen = max(seen, moved(clan, port))
                time.sleep(0.05)
            text = client.communicate(timeout=120)[0]
        return client.returncode, text.count('"SET"') + text.count('"GET"'), group.killed(), seen
    finally:
        if server is not None:
            server.send_signal(signal.SIGTERM)
            server.wait(20)
        group.remove()
        shutil.rmtree(directory)


def main():
    library, clan = sys.argv[1:3]
    if shutil.which("redis-server") is None or shutil.which("redis-benchmark") is None:
        print("redis is not installed")
        return SKIPPED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3 * CONNECTIONS:
        print(f"only {hard} descriptors are allowed")
        return SKIPPED
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3 * CONNECTIONS), hard))
    try:
        Group().remove()
    except OSError as error:
        print(f"no control group with a limit of memory can be made: {error}")
        return SKIPPED
    failed = 0
    for under in (False, True):
        code, results, killed, seen = load(library, clan, under)
        print(
            f"{'with' if under else 'without'} CLAN: exit code {code}, {results} of 2 results, "
            f"{killed} killed, "
            f"{seen[0]} of {seen[1]} connections moved")
        failed += code != 0 or results != 2 or killed != 0 or (under and seen[0] == 0)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
