#!/usr/bin/env python3
"""What a client sees of a server behind the gateway is what it would see of it: bytes, ends of
them, resets. With a server on TCP, one under `clan run`, one by name (AF_CLAN), and a native one.

    ends.py CLAN NATIVE [TEST...]
"""
import contextlib
import hashlib
import os
import socket
import subprocess
import sys
import time

import support
from support import echo_program, gateway, native_program, receive_all, running, until

NAMED = """
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.socket(0x434c, socket.SOCK_STREAM, 0)
name = sys.argv[1].encode()
address = (0x434c).to_bytes(2, "little") + name + bytes(96 - len(name))
assert fd >= 0 and libc.bind(fd, address, len(address)) == 0 and libc.listen(fd, 100) == 0
print("ready", flush=True)
while True:
    s = libc.accept(fd, None, None)
    if os.fork() == 0:
        buffer = ctypes.create_string_buffer(65536)
        while (n := libc.recv(s, buffer, 65536, 0)) > 0:
            at = 0
            while at < n:
                at += libc.send(s, buffer.raw[at:n], n - at, 0)
        os._exit(0)
    libc.close(s)
"""


@contextlib.contextmanager
def named_program():
    """A server by name that forks for each connection: nothing of TCP is in its source."""
    name = f"gateway-test-{os.getpid()}-{time.monotonic_ns()}"
    with running(sys.executable, "-c", NAMED, name, prefix=[support.CLAN, "run"], text=True,
                 stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == "ready\n"
        yield f"clan:{name}", process


KINDS = {"tcp": lambda: echo_program(False), "moved": lambda: echo_program(True),
         "named": named_program, "native": native_program}


def echoes(kind):
    """Rounds of many sizes, then bulk both ways at once, then the end of it."""
    with KINDS[kind]() as (target, _), gateway(target) as g, g.connect() as s:
        for size in [1, 100, 1024, 4000, 70_000, 300_000, *[512] * 100]:
            data = os.urandom(size)
            s.sendall(data)
            got = b""
            while len(got) < size:
                more = s.recv(1 << 20)
                assert more, "the end, in the middle of an answer"
                got += more
            assert got == data, size
        bulk = os.urandom(1 << 20) * 30
        sender = support.threading.Thread(
            target=lambda: (s.sendall(bulk), s.shutdown(socket.SHUT_WR)))
        sender.start()
        got = receive_all(s)
        sender.join()
        assert hashlib.sha256(got).digest() == hashlib.sha256(bulk).digest(), len(got)
        assert 'reason="closed"' in g.line("client=127.0.0.1"), g.lines()


def server_reads_what_a_client_sent_that_has_closed():
    got = []
    with support.Server(lambda s: got.append(receive_all(s))) as server, \
            gateway(server.port) as g:
        for i in range(20):
            with g.connect() as s:
                s.sendall(b"x" * i)
        until(lambda: len(got) == 20, "all connections")
        assert sorted(map(len, got)) == list(range(20))


def half_close_passes_both_ways():
    def answer_later(s):
        assert receive_all(s) == b"question"
        time.sleep(1.2)  # what has no timer after one end waits
        s.sendall(b"answer")

    def answer_first(s):
        s.sendall(b"answer")
        s.shutdown(socket.SHUT_WR)
        assert receive_all(s) == b"question"
        later.append(True)

    later = []
    with support.Server(answer_later) as server, gateway(server.port) as g, g.connect() as s:
        s.sendall(b"question")
        s.shutdown(socket.SHUT_WR)
        assert receive_all(s) == b"answer"
    with support.Server(answer_first) as server, gateway(server.port) as g, g.connect() as s:
        assert receive_all(s) == b"answer"
        s.sendall(b"question")
        s.shutdown(socket.SHUT_WR)
        until(lambda: later, "the server reads to the end")


def expect_reset(s):
    try:
        assert s.recv(1) != b"", "an end of file, not a reset"
        raise AssertionError("bytes")
    except ConnectionResetError:
        pass


def resets_pass_both_ways():
    seen = []

    def wait(s):
        s.sendall(b"x")
        try:
            seen.append(s.recv(1))
        except ConnectionResetError:
            seen.append("reset")

    with support.Server(lambda s: (s.recv(1), support.reset(s))) as server, \
            gateway(server.port) as g, g.connect() as s:
        s.sendall(b"x")
        expect_reset(s)
    with support.Server(wait) as server, gateway(server.port) as g:
        s = g.connect()
        assert s.recv(1) == b"x"
        support.reset(s)
        until(lambda: seen, "the server sees the end")
        assert seen == ["reset"], seen
    with native_program() as (target, _), gateway(target) as g, g.connect() as s:
        s.sendall(b"!")
        expect_reset(s)
    with native_program() as (target, process), gateway(target) as g, g.connect() as s:
        s.sendall(b"x")
        assert s.recv(1) == b"x"
        process.kill()
        expect_reset(s)


def without_a_target_a_client_is_reset():
    for target in (support.free_port(), "clan:gateway-nobody", "service:gateway-nobody"):
        with gateway(target) as g:
            with contextlib.suppress(ConnectionResetError), g.connect() as s:
                expect_reset(s)
            g.line("client=", "no target")


def a_program_reaches_outside_by_name():
    """--listen clan:NAME --to HOST:PORT."""
    name = f"gateway-test-{os.getpid()}-out"
    client = support.client_by_name(name, turns=50)
    with support.Server(support.echo) as server, \
            gateway(server.port, listen=f"clan:{name}") as g:
        def works():
            return subprocess.run([support.CLAN, "run", sys.executable, "-c", client],
                                  stderr=subprocess.DEVNULL, check=False).returncode == 0
        until(works, "the name answers")
        g.line(f"listen=clan:{name}", 'reason="closed"')


TESTS = {**{f"echoes_{kind}": (lambda kind=kind: echoes(kind)) for kind in KINDS},
         **{test.__name__: test for test in (
             server_reads_what_a_client_sent_that_has_closed, half_close_passes_both_ways,
             resets_pass_both_ways, without_a_target_a_client_is_reset,
             a_program_reaches_outside_by_name)}}
support.main(TESTS)
