#!/usr/bin/env python3
"""One end of a connection whose bytes are known: for net.py.

    net_peer.py serve PORT CASE [SEED]       says "ready", serves one connection
    net_peer.py serve_as USER PORT CASE [SEED]   a child of it serves, which becomes that user
    net_peer.py ask HOST PORT CASE [SEED]

Each end sends a stream of bytes made from the seed, in pieces of all sizes, and checks the other's.
Says "right BYTES", or what was wrong.
"""
import ctypes
import hashlib
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time

TOTAL = 24 * 1024 * 1024
TAIL = 240 * 1024


def bytes_of(seed, total):
    generator = random.Random(seed)
    block = generator.randbytes(1 << 20)
    at = 0
    while at < total:
        n = min(generator.choice((1, 7, 100, 1448, 5000, 70000, 300000)), total - at, len(block))
        begin = generator.randrange(len(block) - n + 1)
        yield block[begin:begin + n]
        at += n


def digest_of(seed, total):
    digest = hashlib.sha256()
    for piece in bytes_of(seed, total):
        digest.update(piece)
    return digest.hexdigest()


class Exchange:
    """Both directions at once, and half-closed at the end of each."""

    def __init__(self, connection, own, others, total):
        self.connection, self.own, self.others, self.total = connection, own, others, total
        self.sent = self.received = 0

    def send(self):
        for piece in bytes_of(self.own, self.total):
            self.connection.sendall(piece)
            self.sent += len(piece)
        self.connection.shutdown(socket.SHUT_WR)

    def receive(self):
        digest = hashlib.sha256()
        sizes = random.Random(self.others + 1)
        while True:
            got = self.connection.recv(sizes.choice((1, 100, 4096, 65536, 1 << 20)))
            if not got:
                break
            digest.update(got)
            self.received += len(got)
        if self.received != self.total or digest.hexdigest() != digest_of(self.others, self.total):
            raise SystemExit(f"wrong: {self.received} of {self.total} bytes")

    def run(self):
        sender = threading.Thread(target=self.send)
        sender.start()
        self.receive()
        sender.join()
        print("right", self.sent + self.received, flush=True)


def polled(connection, own, others, total):
    """The same by one thread that waits in epoll, edge by edge."""
    connection.setblocking(False)
    poll = select.epoll()
    poll.register(connection, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
    pieces, piece, digest = bytes_of(own, total), b"", hashlib.sha256()
    sent = received = 0
    sends = receives = True
    while sends or receives:
        if sends:
            try:
                while True:
                    if not piece:
                        piece = next(pieces, None)
                        if piece is None:
                            connection.shutdown(socket.SHUT_WR)
                            sends = False
                            break
                    n = connection.send(piece)
                    piece, sent = piece[n:], sent + n
            except BlockingIOError:
                pass
        if receives:
            try:
                while got := connection.recv(65536):
                    digest.update(got)
                    received += len(got)
                receives = False
            except BlockingIOError:
                pass
        if sends or receives:
            if not poll.poll(60):
                raise SystemExit(f"hangs: sent {sent}, received {received} of {total}")
    if received != total or digest.hexdigest() != digest_of(others, total):
        raise SystemExit(f"wrong: {received} of {total} bytes")
    print("right", sent + received, flush=True)


def warm_up(connection, first):
    """Enough calls of both ends for the connection to move, each answered."""
    for i in range(60):
        message = b"%7d\n" % i
        if first:
            connection.sendall(message)
        got = b""
        while len(got) < len(message):
            more = connection.recv(len(message) - len(got))
            if not more:
                raise SystemExit("ended while it warmed up")
            got += more
        if got != message:
            raise SystemExit(f"wrong: {got!r} for {message!r}")
        if not first:
            connection.sendall(message)
        if i > 20:
            time.sleep(0.002)


def forks(connection, first, seed):
    """In the middle the server forks: the child goes on, and the parent closes."""
    total = TOTAL // 8
    warm_up(connection, first)
    if not first:
        child = os.fork()
        if child != 0:
            connection.close()
            os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    Exchange(connection, seed + first, seed + 1 - first, total).run()


def forks_unread(connection, first, seed):
    """As the server forks, bytes of the client's lie unread; the child reads them."""
    total = 300000
    warm_up(connection, first)
    if not first:
        time.sleep(0.3)
        child = os.fork()
        if child != 0:
            os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    Exchange(connection, seed + first, seed + 1 - first, total).run()


def spawns(connection, first, seed):
    """In the middle the server executes another program, which has the socket too and echoes."""
    warm_up(connection, first)
    if not first:
        os.set_inheritable(connection.fileno(), True)
        command = ["env", "-u", "LD_PRELOAD", "sh", "-c", "echo go; exec cat"]
        done = subprocess.run(command, stdin=connection, stdout=connection, close_fds=False)
        connection.shutdown(socket.SHUT_WR)
        print("right", done.returncode, flush=True)
        return
    if connection.recv(3, socket.MSG_WAITALL) != b"go\n":
        raise SystemExit("the program has not begun")
    data = random.Random(seed).randbytes(200000)
    threading.Thread(target=lambda: (connection.sendall(data),
                                     connection.shutdown(socket.SHUT_WR))).start()
    got = b""
    while more := connection.recv(65536):
        got += more
    if got != data:
        raise SystemExit(f"wrong: {len(got)} of {len(data)} bytes")
    print("right", len(got), flush=True)


def last_words(connection, first):
    """The server ends with bytes in a stream of the C library, which exit() writes."""
    warm_up(connection, first)
    words = b"last words"
    if not first:
        libc = ctypes.CDLL(None)
        libc.fdopen.restype = ctypes.c_void_p
        libc.fputs.argtypes = ctypes.c_char_p, ctypes.c_void_p
        libc.fputs(words, libc.fdopen(connection.detach(), b"w"))
        print("right", flush=True)
        return
    got = b""
    while more := connection.recv(100):
        got += more
    if got != words:
        raise SystemExit(f"wrong: {got!r}")
    print("right", len(got), flush=True)


def flows(connection, first, pours=True):
    """Sends and receives until the connection ends, and says how."""
    warm_up(connection, first)
    print("flows", flush=True)

    def pour():
        try:
            while True:
                connection.sendall(bytes(10000))
        except OSError as error:
            print("send ended:", error.strerror, flush=True)

    if pours:
        threading.Thread(target=pour, daemon=True).start()
    try:
        while connection.recv(65536):
            pass
        print("ended: end of file", flush=True)
    except OSError as error:
        print("ended:", error.strerror, flush=True)


def full(connection, first):
    """Sends to an end that does not read, until the connection ends."""
    warm_up(connection, first)
    print("flows", flush=True)
    try:
        while True:
            connection.sendall(bytes(10000))
    except OSError as error:
        print("ended:", error.strerror, flush=True)


def tail(connection, first, seed):
    """One end writes, closes and ends."""
    warm_up(connection, first)
    if first:
        for piece in bytes_of(seed, TAIL):
            connection.sendall(piece)
        connection.close()
        print("right", TAIL, flush=True)
        return
    digest = hashlib.sha256()
    got = 0
    try:
        while piece := connection.recv(65536):
            digest.update(piece)
            got += len(piece)
    except OSError as error:
        print(f"wrong: {error.strerror} after {got} bytes of {TAIL}", flush=True)
        return
    whole = got == TAIL and digest.hexdigest() == digest_of(seed, TAIL)
    print("right" if whole else "wrong", got, flush=True)


def run(connection, first, case, seed):
    if case == "streams":
        warm_up(connection, first)
        Exchange(connection, seed + first, seed + 1 - first, TOTAL).run()
    elif case == "lossy":
        warm_up(connection, first)
        Exchange(connection, seed + first, seed + 1 - first, TOTAL // 8).run()
    elif case == "at_once":
        Exchange(connection, seed + first, seed + 1 - first, TOTAL).run()
    elif case == "polled":
        warm_up(connection, first)
        polled(connection, seed + first, seed + 1 - first, TOTAL)
    elif case == "forks":
        forks(connection, first, seed)
    elif case == "forks_unread":
        forks_unread(connection, first, seed)
    elif case == "spawns":
        spawns(connection, first, seed)
    elif case == "last_words":
        last_words(connection, first)
    elif case == "flows":
        flows(connection, first)
    elif case == "idle":
        flows(connection, first, pours=False)
    elif case == "full":
        full(connection, first)
    elif case == "tail":
        tail(connection, first, seed)


PR_SET_PDEATHSIG = 1


def become(user):
    """The one that returns is a child of that user; this process ends when that has, and the other
    way round."""
    child = os.fork()
    if child != 0:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main():
    role, *words = sys.argv[1:]
    if role in ("serve", "serve_as"):
        user = int(words.pop(0)) if role == "serve_as" else None
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", int(words[0])))
        listener.listen(5)
        if user is not None:
            become(user)
        print("ready", flush=True)
        connection, _ = listener.accept()
        listener.close()
        run(connection, 0, words[1], int(words[2]))
    else:
        connection = socket.create_connection((words[0], int(words[1])))
        run(connection, 1, words[2], int(words[3]))


if __name__ == "__main__":
    main()
