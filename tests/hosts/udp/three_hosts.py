#!/usr/bin/env python3
"""Three programs on three hosts: network namespaces joined by a bridge, with nothing else shared.

    three_hosts.py PROGRAM [crypto]

Each host serves, and asks both others at the same time, by streams, messages and RDMA: every byte
right, without and with a key. One process talks with two others by turns and forks meanwhile. Two
hosts push to the third through the bridge, and the port of one is down for a while. Makes its
namespaces and removes them. Exit code 77: not root, no `ip`, or no bridges.
"""
import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import time

import hosts

ADDRESSES = ("10.78.0.1", "10.78.0.2", "10.78.0.3")


@contextlib.contextmanager
def bridged(mtu, also=""):
    """The names of three hosts, and of the namespace that the bridge is in, with a port p0, p1, p2
    for each."""
    names = [f"clanhost{os.getpid()}{also}{end}" for end in "abc"]
    middle = f"clanhost{os.getpid()}{also}m"
    try:
        for name in (*names, middle):
            hosts.ip("netns", "add", name)
            hosts.ip("-n", name, "link", "set", "lo", "up")
        hosts.ip("-n", middle, "link", "add", "bridge", "type", "bridge")
        hosts.ip("-n", middle, "link", "set", "bridge", "up")
        for i, (name, address) in enumerate(zip(names, ADDRESSES)):
            hosts.ip("link", "add", "v0", "netns", name, "type", "veth", "peer", "name", f"p{i}",
                     "netns", middle)
            hosts.ip("-n", middle, "link", "set", f"p{i}", "mtu", str(mtu), "master", "bridge",
                     "up")
            hosts.ip("-n", name, "address", "add", f"{address}/24", "dev", "v0")
            hosts.ip("-n", name, "link", "set", "v0", "mtu", str(mtu), "up")
        yield names, middle
    finally:
        for name in (*names, middle):
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)


def possible():
    """Whether this machine lets us; says why not."""
    if not hosts.possible():
        return False
    name = f"clanhost{os.getpid()}b"
    hosts.ip("netns", "add", name)
    made = subprocess.run(["ip", "-n", name, "link", "add", "bridge", "type", "bridge"]).returncode
    hosts.ip("netns", "del", name)
    if made != 0:
        print("no bridges here")
    return made == 0


def finish(children, expected=""):
    """All of them end well; with `expected`, each says that first."""
    try:
        for what, child in children:
            said, _ = child.communicate(timeout=120)
            if child.returncode != 0 or not said.startswith(expected):
                raise SystemExit(f"{what} said {said!r} and ended with {child.returncode}")
    finally:
        for _, child in children:
            child.kill()
            child.wait()


def begin(name, program, *words):
    return subprocess.Popen(hosts.inside(name, program, *words), stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True)


def all_to_all(program, names, key):
    finish([(f"{name} that asked {to}", begin(name, program, "ask", hosts.PORT, to, *key))
            for i, name in enumerate(names) for j, to in enumerate(ADDRESSES) if i != j], "right")


def turns(program, names):
    """A process with two peers, on two other hosts; then the first of them begins anew."""
    with hosts.server(names[1], program, []):
        with hosts.server(names[0], program, []):
            client = begin(names[2], program, "turns", hosts.PORT, *ADDRESSES[:2])
            if client.stdout.readline() != "begun\n":
                client.kill()
                raise SystemExit("a process that talks with two others has not begun")
        with hosts.server(names[0], program, []):
            client.stdin.write("\n")
            client.stdin.flush()
            finish([("a process that talks with two others", client)])


def port_goes_down(program, names, middle):
    """Two hosts push to one; the one that keeps its port goes on, and both bring every byte."""
    clients = [(name, begin(name, program, "push", hosts.PORT, ADDRESSES[0]))
               for name in names[1:]]
    for name, client in clients:
        if client.stdout.readline() != "begun\n":
            raise SystemExit(f"{name} has not begun")
    hosts.ip("-n", middle, "link", "set", "p2", "down")
    time.sleep(1.5)
    hosts.ip("-n", middle, "link", "set", "p2", "up")
    time.sleep(0.5)
    finish(clients, "right 0 ")


def main():
    program, crypto = sys.argv[1], len(sys.argv) > 2
    if not possible():
        return 77
    with tempfile.NamedTemporaryFile("w", prefix="clan-key-") as file:
        file.write(secrets.token_hex(32))
        file.flush()
        for key in [[]] + ([[file.name]] if crypto else []):
            with bridged(1500) as (names, middle), contextlib.ExitStack() as stack:
                for name in names:
                    stack.enter_context(hosts.server(name, program, key))
                all_to_all(program, names, key)
                print(f"all to all, {'encrypted' if key else 'off'}: right", flush=True)
                if not key:
                    port_goes_down(program, names, middle)
                    print("a port of the bridge that goes down and comes back: right", flush=True)
    with bridged(1500) as (names, _):
        turns(program, names)
    print("two others by turns: right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
