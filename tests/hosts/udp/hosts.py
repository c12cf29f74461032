#!/usr/bin/env python3
"""Two programs on two hosts: network namespaces joined by a veth pair, with nothing else shared.

    hosts.py PROGRAM [crypto]

Streams, messages and RDMA, by the directory; over MTU 1500 and 9000; without and with a key; and
with 1 % of the packets dropped by nft where that is installed. Then a client that talks with two
servers by turns, forks, and sees one of them begin anew. Makes its namespaces and removes them.
Exit code 77: not root, or no `ip`.
"""
import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile

PORT = "4791"


def ip(*words):
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def hosts(mtu, also="", queues=1):
    """Two hosts of that MTU; `also` tells those of one process apart."""
    names = [f"clanhost{os.getpid()}{also}{end}" for end in "ab"]
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        rings = ["numtxqueues", str(queues), "numrxqueues", str(queues)]
        ip("link", "add", "v0", "netns", names[0], *rings, "type", "veth", "peer", "name", "v0",
           "netns", names[1], *rings)
        for name, address in zip(names, ("10.78.0.1/24", "10.78.0.2/24")):
            ip("-n", name, "link", "set", "v0", "mtu", str(mtu))
            ip("-n", name, "address", "add", address, "dev", "v0")
            ip("-n", name, "link", "set", "v0", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)


def inside(name, *command):
    return ["ip", "netns", "exec", name, *command]


@contextlib.contextmanager
def server(name, program, key):
    child = subprocess.Popen(inside(name, program, "serve", PORT, *key), stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    try:
        if child.stdout.readline() != "ready\n":
            raise SystemExit("the server has not begun")
        yield child
    finally:
        child.kill()
        child.wait()


def drop(name):
    """1 % of what arrives is dropped, by a hash of the packet's number: seeded, whatever the
    time."""
    rules = ("table inet loss { chain in { type filter hook input priority 0; "
             "udp dport > 0 jhash @th,192,32 mod 100 seed 0x2a == 0 drop; }; }")
    subprocess.run(inside(name, "nft", "-f", "-"), input=rules, text=True, check=True)


def ask(names, program, key, expected=0):
    done = subprocess.run(inside(names[1], program, "ask", PORT, "10.78.0.1", *key), timeout=90)
    if done.returncode != expected:
        raise SystemExit(f"the client ended with {done.returncode}")


def take_turns(program):
    """One client of two servers, on its own host and on the other, which is killed meanwhile and
    begins anew."""
    with hosts(1500) as names, server(names[1], program, []):
        with server(names[0], program, []):
            client = subprocess.Popen(
                inside(names[1], program, "turns", PORT, "10.78.0.1", "10.78.0.2"),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            try:
                said = client.stdout.readline()
            except BaseException:
                client.kill()
                raise
        with server(names[0], program, []):
            if said == "begun\n":
                client.communicate("\n", timeout=90)
            client.kill()
            if said != "begun\n" or client.wait() != 0:
                raise SystemExit(f"taking turns: said {said!r}, ended with {client.returncode}")
    print("two servers by turns, one of which begins anew: right")


def possible():
    """Whether this machine lets us make hosts; says why not."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        print("needs root and ip")
        return False
    if subprocess.run(["ip", "netns", "add", f"clanhost{os.getpid()}a"]).returncode != 0:
        print("no network namespaces here")
        return False
    ip("netns", "del", f"clanhost{os.getpid()}a")
    return True


def main():
    program, crypto = sys.argv[1], len(sys.argv) > 2
    if not possible():
        return 77
    with tempfile.NamedTemporaryFile("w", prefix="clan-key-") as file:
        file.write(secrets.token_hex(32))
        file.flush()
        for mtu, key, loss in ((1500, [], False), (9000, [], False), (1500, [file.name], False),
                               (1500, [], True)):
            if (key and not crypto) or (loss and not shutil.which("nft")):
                continue
            with hosts(mtu) as names, server(names[0], program, key):
                if loss:
                    drop(names[0])
                    drop(names[1])
                ask(names, program, key)
            print(
                f"mtu {mtu}, {'encrypted' if key else 'off'}{', 1 % lost' if loss else ''}: right")
    take_turns(program)
    return 0


if __name__ == "__main__":
    sys.exit(main())
