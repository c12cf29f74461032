#!/usr/bin/env python3
"""What a server that sleeps between requests costs in system calls: fewer than by TCP.

    sleep_calls.py CLAN

A server that waits in an epoll set, its listener in it, or in recv(), makes one call that sleeps
and one that wakes the client for each request that comes while it sleeps; by TCP three and two.
Exit code 77 where strace may not be used.
"""

import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
import system_calls  # noqa: E402, needs the path

SKIPPED = 77
REQUESTS, COUNTED = 400, 200
PAUSE = 0.003  # longer than any wait that is spun for

SERVER = """
import selectors, socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
connection = listener.accept()[0]
connection.setblocking(False)
ready = selectors.EpollSelector()
ready.register(listener, selectors.EVENT_READ)
ready.register(connection, selectors.EVENT_READ)
while True:
    ready.select()
    if not (data := connection.recv(100)):
        break
    connection.send(data)
"""
BLOCKING_SERVER = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
connection = listener.accept()[0]
while data := connection.recv(100):
    connection.send(data)
"""
CLIENT = f"""
import os, socket, sys, time
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for i in range({REQUESTS}):
    time.sleep({PAUSE})
    if i >= {REQUESTS - COUNTED}:
        print(time.time())
    s.sendall(b"a request")
    assert s.recv(100) == b"a request"
print("moved" if "memfd:clan-pipe" in open("/proc/self/maps").read() else "stayed")
"""


def calls_of_a_request(prefix, program):
    """How many system calls the server makes for one, and whether the connection has moved."""
    with tempfile.TemporaryDirectory() as directory:
        log = f"{directory}/calls"
        strace = ["strace", *system_calls.STRACE, log]
        server = subprocess.Popen([*prefix, *strace, sys.executable, "-c", program], text=True,
                                  stdout=subprocess.PIPE)
        try:
            port = server.stdout.readline().strip()
            client = subprocess.run([*prefix, sys.executable, "-c", CLIENT, port], text=True,
                                    stdout=subprocess.PIPE, timeout=100, check=True)
            server.wait(timeout=20)
        finally:
            server.kill()
            server.wait()
            server.stdout.close()
        *times, where = client.stdout.split()
        counts = system_calls.counts([float(at) for at in times], log)
        return statistics.median(counts), where == "moved"


def main():
    if shutil.which("strace") is None or \
            subprocess.run(["strace", "-o", "/dev/null", "true"], check=False).returncode != 0:
        sys.exit(SKIPPED)
    servers = (("epoll", SERVER, 3, 2), ("recv", BLOCKING_SERVER, 2, 2))
    for name, program, by_tcp, most in servers:
        stock, _ = calls_of_a_request([], program)
        ours, moved = calls_of_a_request([sys.argv[1], "run"], program)
        print(f"{name}: stock {stock}, CLAN {ours}")
        if not moved:
            sys.exit("the connection did not move")
        if stock != by_tcp or ours > most:
            sys.exit(f"{name}: a request that wakes the server costs it {ours} system calls, "
                     f"by TCP {stock}")


if __name__ == "__main__":
    main()
