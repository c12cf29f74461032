#!/usr/bin/env python3
"""Remote calls between two hosts: by the UDP link where both have the key, by the socket where not;
and what becomes of calls when that link is filtered, cut or its server killed while they are under
way.

    far.py CLAN SERVER CLIENT    (exit code 77: not root, or no `ip`)

Each case has two network namespaces of its own, as tests/hosts/udp/hosts.py makes them; all run at
once, as most of them wait. Counters say by which path calls went. CLIENT: sunrpc-far-client.
"""

import concurrent.futures
import contextlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "udp"))
import hosts  # noqa: E402

ADDRESS = "10.78.0.1"  # of the first host
SUCCESS, CANTRECV, TIMEDOUT = 0, 4, 5  # clnt_stat
DEAD = 15  # seconds without an answer after which the link is dead
LATE = 20  # what a loaded machine may add


class Client:
    """A program that makes calls by command."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        self.far = self.stock = 0

    def begin(self, what, number=0):
        self.process.stdin.write(f"{what} {number}\n")
        self.process.stdin.flush()

    def end_of(self):
        """Status and value of the call that has begun, and how many went by each path."""
        line = self.process.stdout.readline()
        status, value, far, clan, stock = (int(word) for word in line.split())
        paths = far - self.far, stock - self.stock
        assert clan == far, line  # nothing else is reached by CLAN
        self.far, self.stock = far, stock
        return status, value, paths

    def call(self, what, number=0):
        self.begin(what, number)
        return self.end_of()

    def end(self):
        self.process.kill()
        self.process.communicate()


class Case:
    def __init__(self, programs, number, directory):
        self.clan, self.server, self.client = programs
        self.number, self.directory = number, directory
        self.keys = []
        for name in ("key", "other"):
            path = Path(directory, f"{name}{number}")
            path.write_text(secrets.token_hex(32))
            path.chmod(0o600)
            self.keys.append({"CLAN_KEY": str(path)})

    def under(self, name, settings, *command):
        variables = [f"{variable}={value}" for variable, value in settings.items()]
        # `clan run` refuses settings of which the library complains.
        runner = [] if "LD_PRELOAD" in settings else [self.clan, "run", "--with", "rpc"]
        return hosts.inside(name, "env", "-u", "CLAN_KEY", "-u", "CLAN_NETWORK_MODE", *variables,
                            *runner, *command)

    @contextlib.contextmanager
    def serving(self, name, settings):
        """A server on that host: its process, and its ports of TCP and UDP."""
        process = subprocess.Popen(self.under(name, settings, self.server, "any", "tcp", "udp"),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        try:
            ports = re.match(r"ready tcp=(\d+) udp=(\d+)", process.stdout.readline()).groups()
            yield process, ports
        finally:
            process.kill()
            process.communicate()

    @contextlib.contextmanager
    def calling(self, name, settings, ports, kind="tcp"):
        client = Client(self.under(name, settings, self.client, ADDRESS, ports[kind == "udp"],
                                   kind))
        try:
            yield client
        finally:
            client.end()

    def served_far(self, process):
        done = subprocess.run(
            [self.clan, "stat", "--json", str(process.pid)], capture_output=True, text=True,
            timeout=60, check=False)
        return sum(page["served_far"] for page in json.loads(done.stdout or "[]")
                   if page.get("path") == "rpc")


def warm_up(client):
    """The first calls may go by the socket, until the server has said Welcome."""
    for i in range(1000):
        status, value, (far, _) = client.call("negate", i)
        assert (status, value) == (SUCCESS, -i), (status, value)
        if far == 1:
            return
        time.sleep(0.01)
    raise AssertionError("calls do not go to the other host over CLAN")


def expect_stock(client, seconds=LATE):
    begin = time.monotonic()
    for i in range(20):
        status, value, paths = client.call("negate", i)
        # A process that has met nobody over CLAN has no counters that others see.
        assert (status, value, paths[0]) == (SUCCESS, -i, 0) and paths[1] <= 1, (status, value,
                                                                                 paths)
    assert time.monotonic() - begin < seconds, "calls waited for a path that is not there"


@contextlib.contextmanager
def met(case, names, timeout_ms, kind="tcp"):
    """A server and a client whose calls go by UDP."""
    key = case.keys[0]
    with case.serving(names[0], key) as (process, ports), case.calling(names[1], key, ports,
                                                                       kind) as client:
        client.call("timeout", timeout_ms)
        warm_up(client)
        yield process, client


def filter_udp(name):
    """What comes by UDP is dropped: by a rule of routing, before the one for addresses of this
    host."""
    for words in (["add", "pref", "1", "lookup", "local"], ["del", "pref", "0"],
                  ["add", "pref", "0", "iif", "v0", "ipproto", "udp", "blackhole"]):
        hosts.ip("-n", name, "rule", *words)


def unfilter(name):
    hosts.ip("-n", name, "rule", "del", "pref", "0")


def with_a_key(case, names, settings=None):
    settings = settings or case.keys[0]
    with case.serving(names[0], settings) as (process, ports):
        for kind in ("tcp", "udp"):
            with case.calling(names[1], settings, ports, kind) as client:
                warm_up(client)
                for i in range(200):
                    assert client.call("negate", i) == (SUCCESS, -i, (1, 0))
                for size in (0, 1, 1400, 9000, 100_000, 3_000_000):
                    assert client.call("echo", size) == (SUCCESS, 1, (1, 0)), size
        assert case.served_far(process) > 400
    return "all calls by UDP"


def checked_alone(case, names):
    return with_a_key(case, names, {**case.keys[0], "CLAN_NETWORK_MODE": "integrity"})


def in_the_clear(case, names):
    return with_a_key(case, names, {"CLAN_NETWORK_MODE": "off"})


def with_other_settings(case, names):
    """Another key, another mode, a key that others may read, and none at one end."""
    key, other = case.keys
    loose = Path(case.directory, f"loose{case.number}")
    loose.write_text(secrets.token_hex(32))
    loose.chmod(0o644)
    library = Path(case.clan).resolve().parent.parent / "lib" / "libclanrpc.so"
    for here, there in ((key, other), (key, {"CLAN_NETWORK_MODE": "off"}), (key, {}), ({}, key),
                        ({"CLAN_KEY": str(loose), "LD_PRELOAD": str(library)}, key)):
        with case.serving(names[0], here) as (process, ports), case.calling(names[1], there,
                                                                            ports) as client:
            expect_stock(client)
            assert case.served_far(process) == 0
    return "all calls by TCP"


def filtered(case, names):
    filter_udp(names[0])
    key = case.keys[0]
    with case.serving(names[0], key) as (_, ports):
        for _ in range(2):
            with case.calling(names[1], key, ports) as client:
                expect_stock(client)
    return "all calls by TCP"


def filtered_under_way(case, names):
    """A call that the server has not taken is made by TCP, once; one that it has taken is not made
    again."""
    with met(case, names, 60_000) as (_, client):
        _, before, _ = client.call("served")
        for name in names:
            filter_udp(name)
        begin = time.monotonic()
        assert client.call("negate", 5) == (SUCCESS, -5, (0, 1))
        seconds = time.monotonic() - begin
        assert seconds < DEAD + LATE, seconds
        status, after, _ = client.call("served")
        assert (status, after) == (SUCCESS, before + 2), (status, before, after)
        expect_stock(client)
    return f"by TCP after {seconds:.1f} s"


def filtered_after_the_call(case, names):
    with met(case, names, 60_000) as (process, client):
        _, before, _ = client.call("served")
        taken = case.served_far(process)
        client.begin("sleep", 2000)
        while case.served_far(process) == taken:
            time.sleep(0.01)
        for name in names:
            filter_udp(name)
        status, _, _ = client.end_of()
        assert status == CANTRECV, status
        status, after, _ = client.call("served")
        assert (status, after) == (SUCCESS, before + 2), (status, before, after)
    return "failed, and made once"


def filtered_for_a_while(case, names):
    with met(case, names, 1000) as (_, client):
        filter_udp(names[0])
        assert client.call("negate", 5)[0] == TIMEDOUT
        client.call("timeout", 25_000)
        for i in range(5):
            assert client.call("negate", i)[:2] == (SUCCESS, -i)
        unfilter(names[0])
        begin = time.monotonic()
        while client.call("negate", 7)[2] != (1, 0):  # asked again after 30 s
            assert time.monotonic() - begin < 100, "calls do not go by UDP again"
            time.sleep(0.1)
    return "by TCP, later by UDP again"


def killed(case, names):
    # A datagram's call is repeated by the socket, and its host may say that the port is closed, not
    # always.
    for kind, expected in (("tcp", (CANTRECV,)), ("udp", (CANTRECV, TIMEDOUT))):
        with met(case, names, 20_000, kind) as (process, client):
            taken = case.served_far(process)
            client.begin("sleep", 100_000)
            while case.served_far(process) == taken:
                time.sleep(0.01)
            process.kill()
            begin = time.monotonic()
            status, _, _ = client.end_of()
            assert status in expected, (kind, status)
            assert kind == "udp" or time.monotonic(
            ) - begin < 10, "the end of the socket was not seen"
    return "as by the socket"


def cut(case, names):
    with met(case, names, 2000) as (_, client):
        hosts.ip("-n", names[0], "link", "set", "v0", "down")
        begin = time.monotonic()
        assert client.call("negate", 5)[0] == TIMEDOUT
        assert time.monotonic() - begin < 2 + LATE
        hosts.ip("-n", names[0], "link", "set", "v0", "up")
        client.call("timeout", 25_000)
        for i in range(5):
            assert client.call("negate", i)[:2] == (SUCCESS, -i)
        warm_up(client)
    return "timed out, and went on"


def run(case, work):
    with hosts.hosts(1500, f"r{case.number}") as names:
        text = work(case, names)
        print(f"{work.__name__}: {text}", flush=True)


def main():
    if os.geteuid() != 0 or shutil.which("ip") is None or not hosts.possible():
        print("needs root, ip and network namespaces")
        return 77
    cases = [
        with_a_key, checked_alone, in_the_clear, with_other_settings, filtered, filtered_under_way,
        filtered_after_the_call, filtered_for_a_while, killed, cut
    ]
    programs = sys.argv[1:4]
    wanted = sys.argv[4:]
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="clan-far-") as directory, \
            concurrent.futures.ThreadPoolExecutor(len(cases)) as pool:
        runs = {pool.submit(run, Case(programs, number, directory), work): work.__name__
                for number, work in enumerate(cases) if not wanted or work.__name__ in wanted}
        for done in concurrent.futures.as_completed(runs):
            if done.exception() is not None:
                print(f"{runs[done]}: WRONG: {done.exception()!r}", flush=True)
                wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
