#!/usr/bin/env python3
"""Servers and clients under CLAN for a while, which is not kind to them: killed, stopped, reloaded,
forked, beside computations. No byte may be wrong, nobody may hang, and nothing may be left behind.

    soak.py --preload LIB [--clan CLAN] [--seconds 60] [--seed N]

redis with a replica, nginx before nginx; clients (soak_client.py) that check every answer. At the
end servers have as many descriptors and as much memory as at the start, the replica has what its
master has, and all clients have worked. Without --preload it runs stock, which tests the test. Exit
code 1 when something is wrong, 77 without the programs.
"""

import argparse
import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import programs
from programs import HERE, PYTHON, Run, Skip, Wrong, find, free_port, require

CLIENTS = ["redis"] * 4 + ["http"] * 4 + ["fork"] * 2
# of a server, between start and end: what redis and nginx keep of large answers
MORE_MEMORY = 24 << 20
OF_A_CONNECTION = 4  # the replica's: its memfd, two bells, and a set where a call sleeps by them
REDIS = [
    "--save", "", "--appendonly", "no", "--enable-debug-command", "yes",
    "--repl-diskless-sync-delay", "0", "--maxmemory-policy", "noeviction",
    "--client-output-buffer-limit", "replica 1gb 1gb 60"
]


class Soak:
    def __init__(self, run, dice):
        self.run, self.dice = run, dice
        self.clients, self.kills = [], 0
        self.worked = {kind: 0 for kind in CLIENTS}
        self.errors = 0
        self.counts = {}
        self.port, self.second = free_port(), free_port()
        (run.directory / "replica").mkdir()
        self.master = run.serve("redis-server", "--port", self.port, "--dir", run.directory, *REDIS,
                                port=self.port)
        self.replica = None
        self.start_replica()
        self.front, _, _ = programs.start_web(run)

    def start_replica(self):
        self.replica = self.run.serve("redis-server", "--port", self.second, "--dir",
                                      self.run.directory / "replica", "--replicaof",
                                      f"127.0.0.1 {self.port}", *REDIS, port=self.second)

    def cli(self, port, *words):
        return self.run.text("redis-cli", "-p", port, *words, role="nobody")

    # --- clients ---

    def start_client(self, kind):
        port = self.front if kind == "http" else self.port
        process = self.run.popen([
            PYTHON, HERE / "soak_client.py", kind,
            self.dice.randrange(1 << 30), port, self.run.directory
        ], "client", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True)
        self.clients.append((kind, process))

    def take_count(self, kind, process):
        """Returns the exit code of a process after a signal to end."""
        try:
            out, err = process.communicate(timeout=40)
        except subprocess.TimeoutExpired:
            raise Wrong(f"a client ({kind}) hangs") from None
        self.run.started.remove(process)
        if process.returncode == -signal.SIGTERM:
            return  # it had not begun
        require(process.returncode == 0,
                f"a client ({kind}) ended with {process.returncode}: {err[-400:]}")
        done, errors = map(int, out.split())
        self.worked[kind] += done
        self.errors += errors

    def end_clients(self):
        for _, process in self.clients:
            os.killpg(process.pid, signal.SIGCONT)
            process.terminate()
        for kind, process in self.clients:
            self.take_count(kind, process)
        self.clients.clear()

    def look_at_clients(self):
        for kind, process in self.clients:
            if process.poll() is not None:
                raise Wrong(f"a client ({kind}) ended by itself: {process.communicate()[1][-400:]}")

    # --- what is done to them ---

    def kill_client(self):
        at = self.dice.randrange(len(self.clients))
        kind, process = self.clients.pop(at)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        self.run.started.remove(process)
        self.start_client(kind)

    def end_client(self):
        kind, process = self.clients.pop(self.dice.randrange(len(self.clients)))
        process.terminate()
        self.take_count(kind, process)
        self.start_client(kind)

    def stop_somebody(self):
        pids = [process.pid for _, process in self.clients] + [self.replica.pid, self.master.pid]
        pid = self.dice.choice(pids)
        os.killpg(pid, signal.SIGSTOP)
        time.sleep(self.dice.choice([0.01, 0.3, 1.2]))
        os.killpg(pid, signal.SIGCONT)

    def reload(self):
        name = self.dice.choice(["upstream", "front"])
        os.kill(int((self.run.directory / f"{name}.pid").read_text()), signal.SIGHUP)

    def fork_server(self):
        self.cli(self.port, "bgsave")

    def close_clients(self):
        self.cli(self.port, "client", "kill", "type", "normal", "skipme", "yes")

    def kill_replica(self):
        self.run.end(self.replica, patience=0.01 if self.dice.random() < 0.5 else 3)
        del self.run.servers[self.replica]
        self.run.started.remove(self.replica)
        self.start_replica()

    def compute(self):
        hog = self.run.popen([PYTHON, "-c", "while True: pass"], "nobody", stdin=subprocess.DEVNULL)
        time.sleep(1)
        self.run.end(hog)
        self.run.started.remove(hog)

    def disturb(self, seconds):
        ways = [self.kill_client] * 4 + [self.end_client] * 3 + [self.stop_somebody] * 4 + [
            self.reload, self.reload, self.fork_server, self.close_clients, self.kill_replica,
            self.compute
        ]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            way = self.dice.choice(ways)
            way()
            self.counts[way.__name__] = self.counts.get(way.__name__, 0) + 1
            self.look_at_clients()
            time.sleep(self.dice.random() * 0.3)

    # --- what is left ---

    def settled(self):
        """(descriptors, the library's, private memory) of the servers, when only they are left."""
        def in_step():
            return "master_link_status:up" in self.cli(self.second, "info", "replication") and \
                self.cli(self.port, "debug", "digest") == self.cli(self.second, "debug", "digest")

        self.run.until("the replica has what its master has", in_step, timeout=60)
        self.cli(self.port, "flushall")
        self.run.until("the replica is empty", lambda: self.cli(self.second, "dbsize") == "0",
                       timeout=30)
        self.cli(self.port, "memory", "purge")
        time.sleep(2)
        return {name: (*descriptors(pid), memory(pid)) for name, pid in
                (("redis", self.master.pid), ("replica", self.replica.pid))}


def descriptors(pid):
    """The program's, and the library's, which have high numbers (preload/table/internal_fds.h).
    Without the one memfd in which a process says why its connections stay on TCP."""
    first = min(resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] // 4 * 3, 48 * 1024)
    numbers = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            if "clan-slots" not in os.readlink(f"/proc/{pid}/fd/{name}"):
                numbers.append(int(name))
    librarys = sum(number >= first for number in numbers)
    return len(numbers) - librarys, librarys


def memory(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0


def shared_now():
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) << 10
    return 0


def connections(clan, port):
    done = subprocess.run([clan, "stat", "--json"], capture_output=True, text=True, timeout=20,
                          check=False)
    return sum(port in [one.get(end, {}).get("port") for end in ("local", "peer")]
               for one in json.loads(done.stdout or "[]"))


def soak(run, options):
    dice = random.Random(options.seed)
    it = Soak(run, dice)
    for kind in CLIENTS:
        it.start_client(kind)
    time.sleep(3)
    it.end_clients()
    before, shmem = it.settled(), shared_now()
    for kind in CLIENTS:
        it.start_client(kind)
    it.disturb(options.seconds)
    if options.clan and options.preload:
        require(connections(options.clan, it.port) > 0, "no connection of redis has moved")
    it.end_clients()
    after = it.settled()
    for name, (fds, librarys, resident) in after.items():
        had, _, was = before[name]
        require(fds <= had, f"{name} has {fds} descriptors, {had} at the start")
        require(librarys <= OF_A_CONNECTION, f"the library has {librarys} descriptors in {name}")
        require(resident <= was + MORE_MEMORY,
                f"{name} has {resident >> 20} MB, {was >> 20} at the start")
    if options.clan and options.preload:
        left = connections(options.clan, it.port)
        require(
            left <= 1,
            f"{left} connections of redis are left in shared memory, besides the replica's one")
    require(all(it.worked.values()), f"not all have worked: {it.worked}")
    print(
        f"ok: {it.worked} operations, {it.errors} answers or connections cut off, {it.counts}; "
        "descriptors and MB "
        f"{[(name, *fds, mem >> 20) for name, (*fds, mem) in after.items()]}, at the start "
        f"{[(name, *fds, mem >> 20) for name, (*fds, mem) in before.items()]}; shared "
        "memory of the machine "
        f"{(shared_now() - shmem) >> 10} KB more", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preload")
    parser.add_argument("--clan")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    programs.PROGRAM_SECONDS = options.seconds + 200
    try:
        for program in ("redis-server", "nginx"):
            find(program)
        with Run(options.preload, None, server=bool(options.preload),
                 client=bool(options.preload)) as run:
            with contextlib.suppress(KeyboardInterrupt):
                soak(run, options)
    except Skip as skip:
        print(f"SKIP {skip}")
        return programs.SKIPPED
    except Wrong as wrong:
        print(f"FAIL {wrong}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
