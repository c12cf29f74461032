#!/usr/bin/env python3
"""A client of soak.py: works until SIGTERM, then prints its counts. A wrong byte ends it at once,
with code 1.

    soak_client.py redis|http|fork SEED PORT PATH
"""

import hashlib
import http.client
import os
import random
import signal
import socket
import sys
import time

BROKEN = (OSError, EOFError, http.client.HTTPException)
done = errors = 0


def end(*_):
    print(done, errors, flush=True)
    os._exit(0)


def wrong(text):
    print(f"wrong: {text}", file=sys.stderr, flush=True)
    os._exit(1)


class Redis:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.file = self.socket.makefile("rb")

    def ask(self, *words):
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w)
                                                               for w in words))
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError
        if line[:1] != b"$" or line == b"$-1\r\n":
            return line
        size = int(line[1:])
        body = self.file.read(size + 2)
        if len(body) != size + 2:
            raise EOFError
        return body[:-2]


def talk_redis(dice, port, _):
    """Sets values of its own and reads them back, by one connection for a while."""
    global done
    name = b"%d-%d" % (os.getpid(), dice.randrange(1 << 30))
    server = Redis(port)
    for _ in range(dice.randrange(5, 400)):
        value = dice.randbytes(dice.choice([1, 20, 100, 3000, 50_000, 700_000]))
        was_set = server.ask(b"SET", name, value, b"EX", b"60") == b"+OK\r\n"
        if was_set and server.ask(b"GET", name) not in (value, b"$-1\r\n"):
            wrong(f"redis answers {name!r} with other bytes")
        done += 1
        if dice.random() < 0.02:
            time.sleep(dice.random() * 1.5)  # long enough for memory to be given back
    server.socket.close()


def talk_http(dice, port, path):
    global done, errors
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    for _ in range(dice.randrange(3, 100)):
        name = dice.choice(["1k", "1k", "64k", "5m", "empty"])
        connection.request("GET", f"/proxy/{name}")
        answer = connection.getresponse()
        body = answer.read()
        with open(f"{path}/www/{name}", "rb") as file:
            right = file.read()
        if answer.status == 200 and hashlib.sha256(body).digest() != hashlib.sha256(right).digest():
            wrong(f"{name}: {len(body)} other bytes")
        errors += answer.status != 200
        done += 1
    connection.close()


def talk_fork(dice, port, path):
    """Parent and child have one connection, and use it in turns."""
    del path
    global done
    server = Redis(port)
    for _ in range(30):
        server.ask(b"PING")
    for turn in range(dice.randrange(1, 4)):
        value = dice.randbytes(dice.choice([10, 5000, 200_000]))
        name = b"fork-%d" % os.getpid()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            try:
                os._exit(0 if server.ask(b"SET", name, value, b"EX", b"60") == b"+OK\r\n" else 3)
            except BROKEN:
                os._exit(3)
        if os.waitpid(child, 0)[1] != 0:
            raise EOFError
        if server.ask(b"GET", name) not in (value, b"$-1\r\n"):
            wrong(f"what a child has set comes back as other bytes, turn {turn}")
        done += 1
    server.socket.close()


def main():
    global errors
    what = {"redis": talk_redis, "http": talk_http, "fork": talk_fork}[sys.argv[1]]
    dice = random.Random(int(sys.argv[2]))
    signal.signal(signal.SIGTERM, end)
    while True:
        try:
            what(dice, int(sys.argv[3]), sys.argv[4])
        except BROKEN:
            errors += 1
            time.sleep(0.05)


main()
