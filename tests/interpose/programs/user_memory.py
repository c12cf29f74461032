#!/usr/bin/env python3
"""The bound of memory is one for all processes of a user (CLAN_MEMORY).

    user_memory.py LIBRARY CLAN

In an IPC namespace of its own, so that nobody else's pipes count; as root. CLAN_MEMORY is room
for 20 connections.

 - Of a first pair of processes 12 connections move, of a second one then the other 8; `clan stat`
   says why no more do.
 - When a process of the first pair is killed, and the other one has closed, as many move again.
 - When somebody has removed the semaphores, what is there is counted anew.

Exit code 77 where no such namespace can be made.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time

SKIPPED = 77
CLONE_NEWIPC = 0x08000000
ROOM, FIRST = 20, 12
MEMORY = f"{48 * ROOM}K"

SERVER = """
import os, socket, subprocess, sys
count = int(sys.argv[1])
listener = socket.create_server(("127.0.0.1", 0))
where = [str(listener.getsockname()[1]), str(count)]
client = subprocess.Popen([sys.executable, "-c", sys.argv[2], *where], stdin=subprocess.PIPE)
connections = []
for _ in range(count):
    connection, _ = listener.accept()
    while (text := connection.recv(100)) != b"last":
        connection.sendall(text)
    connections.append(connection)
def moved():
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += "clan-pipe" in os.readlink("/proc/self/fd/" + name)
        except OSError:
            pass
    return found
print(client.pid, moved(), flush=True)
sys.stdin.readline()
"""

CLIENT = """
import socket, sys
connections = []
for _ in range(int(sys.argv[2])):
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    for _ in range(16):
        connection.sendall(b"some text")
        connection.recv(100)
    connection.sendall(b"last")
    connections.append(connection)
sys.stdin.readline()
"""


class Pair:
    def __init__(self, library, count):
        environment = {k: v for k, v in os.environ.items()
                       if not k.startswith(("LD_PRELOAD", "CLAN_"))}
        environment |= {"LD_PRELOAD": library, "CLAN_MEMORY": MEMORY}
        self.server = subprocess.Popen([sys.executable, "-c", SERVER, str(count), CLIENT],
                                       env=environment, text=True, stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE)
        self.client, self.moved = map(int, self.server.stdout.readline().split())

    def kill(self):
        """The server; its client sees the end of its standard input."""
        self.server.kill()
        self.server.wait()

    def end(self):
        self.server.communicate("\n", timeout=20)


def sets_of_semaphores():
    with open("/proc/sysvipc/sem", encoding="ascii") as table:
        return [int(line.split()[1]) for line in table.readlines()[1:]]


def counted():
    """What all sets of this namespace hold."""
    libc = ctypes.CDLL(None)
    get_value = 12
    return sum(libc.semctl(one, at, get_value) for one in sets_of_semaphores() for at in range(8))


def wait_until(what, condition):
    for _ in range(200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(what)


def check(what, good):
    print(("ok: " if good else "WRONG: ") + what, flush=True)
    if not good:
        raise AssertionError(what)


def reasons(clan, pid):
    said = subprocess.run([clan, "stat", "--json", "--all", str(pid)], capture_output=True,
                          text=True, check=True, timeout=60)
    return {c.get("reason") for c in json.loads(said.stdout) if c["path"] == "tcp"}


def main():
    library, clan = map(os.path.abspath, sys.argv[1:3])
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWIPC) != 0:
        print(f"no IPC namespace can be made: {os.strerror(ctypes.get_errno())}")
        return SKIPPED
    pairs = []

    def pair(count):
        pairs.append(Pair(library, count))
        return pairs[-1]

    try:
        first = pair(FIRST)
        check(f"{first.moved} of the first {FIRST} have moved", first.moved == FIRST)
        check(f"{counted()} are counted, each once", counted() == FIRST)
        second = pair(FIRST)
        check(f"{second.moved} of the next {FIRST} have moved", second.moved == ROOM - FIRST)
        why = reasons(clan, second.server.pid)
        check(f"clan stat says of the others: {why}", any("CLAN_MEMORY" in str(w) for w in why))
        first.kill()
        check(f"{counted()} are counted when the first is killed", counted() == ROOM - FIRST)
        third = pair(FIRST)
        check(f"{third.moved} more have moved then", third.moved == FIRST)
        for one in sets_of_semaphores():
            ctypes.CDLL(None).semctl(one, 0, 0)  # IPC_RMID
        third.end()
        fourth = pair(FIRST + 2)
        check(f"{fourth.moved} of {FIRST + 2} have moved after the semaphores were removed",
              fourth.moved == FIRST + 2)
        for one in (second, fourth):
            one.end()
        wait_until("nothing is counted in the end", lambda: counted() == 0)
        print("ok: nothing is counted in the end")
    finally:
        for one in pairs:
            if one.server.poll() is None:
                os.kill(one.client, signal.SIGKILL)
                one.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
