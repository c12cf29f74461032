#!/usr/bin/env python3
"""Two programs on two hosts whose wire is cut, slowed or filtered while they talk.

    cut_wires.py PROGRAM

Each case has two network namespaces of its own, as in hosts.py; all run at once, as most of them
wait. A client sends through a stream that echoes; both ends check every byte. A wire that comes
back must lose nothing; one that does not must end the stream with an error in bounded time, and
leave the server able to serve the next. Exit code 77: not root, or no `ip`.
"""
import concurrent.futures
import errno
import os
import shutil
import subprocess
import sys
import threading
import time

import hosts

DEAD = 15  # seconds without an answer after which a peer is dead: Options::dead
LATE = 15  # what a loaded machine may add


class Case:
    def __init__(self, program, number, name):
        self.program, self.number, self.name = program, number, name
        self.problem = None

    def require(self, right, what):
        if not right:
            raise AssertionError(f"{self.name}: {what}")

    def push(self, names):
        """A client that has begun to send."""
        client = subprocess.Popen(
            hosts.inside(names[1], self.program, "push", hosts.PORT, "10.78.0.1"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        line = client.stdout.readline()
        if line != "begun\n":
            client.kill()
            client.wait()
            raise AssertionError(f"{self.name}: the client said {line!r}")
        return client

    def result(self, client, seconds):
        """What the client says at its end: whether all was right, errno, bytes, and after how many
        seconds."""
        begin = time.monotonic()
        timer = threading.Timer(seconds, client.kill)
        timer.start()
        out = client.stdout.read()
        client.wait()
        timer.cancel()
        words = out.split()
        self.require(len(words) == 3, f"no end within {seconds} s, said {out!r}")
        self.require(words[0] == "right", f"wrong bytes: {out!r}")
        return int(words[1]), int(words[2]), time.monotonic() - begin

    def finish(self, client):
        client.stdin.close()
        err, total, _ = self.result(client, 60)
        self.require(err == 0,
                     f"the stream ended with {errno.errorcode.get(err, err)} after {total} bytes")
        return total

    def serves_again(self, names):
        hosts.ask(names, self.program, [])

    def run(self, work):
        with hosts.hosts(1500, f"{self.number}") as names, hosts.server(names[0], self.program, []):
            text = work(self, names)
            print(f"{self.name}: {text}", flush=True)


def down_and_up(case, names):
    client = case.push(names)
    for seconds in (0.3, 1.5):
        hosts.ip("-n", names[0], "link", "set", "v0", "down")
        time.sleep(seconds)
        hosts.ip("-n", names[0], "link", "set", "v0", "up")
        time.sleep(0.5)
    return f"{case.finish(client) / 1e6:.0f} MB, all right"


def limited(case, names):
    """A token bucket: packets beyond the rate wait, and are dropped where the queue is full."""
    client = case.push(names)
    for name in names:
        subprocess.run([
            "tc", "-n", name, "qdisc", "add", "dev", "v0", "root", "tbf", "rate", "100mbit",
            "burst", "32k", "latency", "5ms"
        ], check=True)
    time.sleep(3)
    begin = time.monotonic()
    total = case.finish(client)
    waited = time.monotonic() - begin
    return f"{total / 1e6:.0f} MB, all right, the last {waited:.1f} s after the end was asked for"


def filter_all(name):
    rules = ("table inet wall { chain in { type filter hook input priority 0; "
             "udp dport > 0 drop; }; }")
    subprocess.run(hosts.inside(name, "nft", "-f", "-"), input=rules, text=True, check=True)


def walled(case, names):
    client = case.push(names)
    filter_all(names[0])
    filter_all(names[1])
    err, total, seconds = case.result(client, DEAD + LATE)
    case.require(err in (errno.ECONNRESET, errno.ETIMEDOUT), f"ended with {err}")
    for name in names:
        subprocess.run(hosts.inside(name, "nft", "delete", "table", "inet", "wall"), check=True)
    case.serves_again(names)
    return f"{errno.errorcode[err]} after {seconds:.1f} s and {total / 1e6:.0f} MB; served again"


def walled_off(case, names):
    """A firewall from the beginning: the caller's time is the bound; the log says why."""
    filter_all(names[0])
    begin = time.monotonic()
    done = subprocess.run(hosts.inside(names[1], case.program, "ask", hosts.PORT, "10.78.0.1"),
                          timeout=60, stderr=subprocess.PIPE, text=True)
    seconds = time.monotonic() - begin
    case.require(done.returncode != 0 and "no answer from that host" in done.stderr, done.stderr)
    case.require(9 < seconds < 10 + LATE, f"the connection was given up after {seconds:.1f} s")
    return f"given up after {seconds:.1f} s: {done.stderr.strip()}"


def torn_down(case, names):
    """The peer's end of the wire goes, and its namespace with all that is in it."""
    client = case.push(names)
    hosts.ip("-n", names[0], "link", "del", "v0")
    hosts.ip("netns", "del", names[0])
    err, total, seconds = case.result(client, DEAD + LATE)
    case.require(err in (errno.ECONNRESET, errno.ETIMEDOUT), f"ended with {err}")
    return f"{errno.errorcode[err]} after {seconds:.1f} s and {total / 1e6:.0f} MB"


def killed(case, names):
    """The peer's process dies: its host answers for it."""
    client = case.push(names)
    pids = subprocess.run(["ip", "netns", "pids", names[0]], stdout=subprocess.PIPE, text=True,
                          check=True)
    for pid in pids.stdout.split():
        os.kill(int(pid), 9)
    # The port is nobody's then, and no process sends RESET: the host tells, by ICMP.
    err, total, seconds = case.result(client, DEAD + LATE)
    case.require(err == errno.ECONNRESET, f"ended with {err}")
    case.require(seconds < DEAD - 3, f"known after {seconds:.1f} s only")
    return f"{errno.errorcode[err]} after {seconds:.1f} s and {total / 1e6:.0f} MB"


def main():
    program = sys.argv[1]
    if not hosts.possible():
        return 77
    work = [down_and_up, torn_down, killed]
    if shutil.which("tc"):
        work.append(limited)
    if shutil.which("nft"):
        work += [walled, walled_off]
    cases = [Case(program, i, f.__name__.replace("_", " ")) for i, f in enumerate(work)]
    with concurrent.futures.ThreadPoolExecutor(len(work)) as pool:
        running = [pool.submit(case.run, f) for case, f in zip(cases, work)]
        failures = [str(r.exception()) for r in running if r.exception()]
    print("\n".join(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
