#!/usr/bin/env python3
"""Deaths and slowness at each place: what is left works, memory stays bounded, nothing is lost that
was not the dead one's.

    faults.py CLAN NATIVE [TEST...]
"""
import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import support
from support import echo, echo_program, gateway, native_program, until

DESCRIPTORS = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
IDLE = min(10_000, DESCRIPTORS // 2 - 100)  # the gateway takes two descriptors for each
ANSWERS_MANY = """
import selectors, socket
listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
print(listener.getsockname()[1], flush=True)
ends = selectors.DefaultSelector()
ends.register(listener, selectors.EVENT_READ)
while True:
    for key, _ in ends.select():
        if key.fileobj is listener:
            ends.register(listener.accept()[0], selectors.EVENT_READ)
        elif data := key.fileobj.recv(100):
            key.fileobj.sendall(data)
        else:
            ends.unregister(key.fileobj)
            key.fileobj.close()
"""
MOST_KB_OF_SLOW = 400  # of the gateway's memory: its buffer of 64 KB, and what libraries take


def memory_kb(pid):
    """Returns a process's own memory in KB: rings of moved connections have limits of their own."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1])
    raise AssertionError("no smaps_rollup")


def talk(s, times=30):
    for i in range(times):
        s.sendall(b"%4d" % i)
        assert s.recv(4, socket.MSG_WAITALL) == b"%4d" % i


def ends(s):
    """The other end has gone: a reset, or an end."""
    try:
        while s.recv(65536):
            pass
    except ConnectionResetError:
        return "reset"
    return "end"


def the_gateway_is_killed():
    for kind in (lambda: echo_program(True), native_program):
        with kind() as (target, server):
            for rounds in (0, 1, 40):
                with gateway(target) as g, g.connect() as s:
                    talk(s, rounds)
                    g.process.kill()
                    ends(s)
            with gateway(target) as g, g.connect() as s:  # the server serves on
                assert server.poll() is None
                talk(s)


def the_server_is_killed():
    for kind in (lambda: echo_program(True), native_program):
        for rounds in (1, 40):
            with kind() as (target, server), gateway(target) as g, g.connect() as s:
                talk(s, rounds)
                server.kill()
                server.wait()  # its socket accepts until then
                ends(s)
                with contextlib.suppress(ConnectionResetError), g.connect() as other:
                    ends(other)
                g.line("no target")
                assert g.process.poll() is None


def a_server_that_is_killed_with_bytes_unread_is_a_reset():
    with native_program() as (target, server), gateway(target) as g, g.connect() as s:
        talk(s, 2)
        server.send_signal(signal.SIGSTOP)
        s.sendall(b"unread")
        server.kill()
        assert ends(s) == "reset"


def clients_are_killed():
    client = """
import socket, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for i in range(int(sys.argv[2])):
    s.sendall(b"x")
    s.recv(1)
print("there", flush=True)
while True:
    s.sendall(b"x" * 100000)
"""
    with echo_program(True) as (port, server), gateway(port) as g:
        for rounds in (0, 1, 30):
            with support.running(sys.executable, "-c", client, g.port, rounds, text=True,
                                 stdout=subprocess.PIPE) as one:
                assert one.stdout.readline() == "there\n"
                time.sleep(0.05)
        until(lambda: sum("client=" in line for line in g.lines()) == 3, "all have ended")
        assert server.poll() is None
        with g.connect() as s:
            talk(s)


def a_slow_reader_costs_bounded_memory_and_gets_everything():
    size = 40 << 20
    for kind in (lambda: echo_program(True), native_program):
        with kind() as (target, _), gateway(target) as g:
            with g.connect() as quick:
                talk(quick)
                before = memory_kb(g.process.pid)
                with g.connect() as slow:
                    slow.setblocking(False)
                    sent = 0
                    deadline = time.monotonic() + 2
                    while time.monotonic() < deadline and sent < size:
                        with contextlib.suppress(BlockingIOError):
                            sent += slow.send(b"x" * 65536)
                    talk(quick)  # others are served meanwhile
                    grown = memory_kb(g.process.pid) - before
                    assert grown < MOST_KB_OF_SLOW, f"{grown} KB"
                    assert sent < size, "nothing has held the sender up"
                    slow.setblocking(True)
                    got = 0
                    while got < sent:
                        got += len(slow.recv(1 << 20))
                    slow.shutdown(socket.SHUT_WR)
                    assert slow.recv(1) == b""


def a_stopped_server_holds_up_its_own_clients_only():
    with native_program() as (stopped, process), support.Server(echo) as server:
        with gateway(f"{stopped},127.0.0.1:{server.port}", "--connect-timeout", "0.5") as g:
            process.send_signal(signal.SIGSTOP)
            for _ in range(4):
                with g.connect() as s:
                    talk(s, 3)
            process.send_signal(signal.SIGCONT)


def a_client_resets_while_its_server_does_not_read():
    with native_program() as (target, process), gateway(target) as g:
        s = g.connect()
        talk(s, 1)
        process.send_signal(signal.SIGSTOP)
        s.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                s.send(b"x" * 65536)
        time.sleep(0.1)
        support.reset(s)
        g.line("client=127.0.0.1", "reset")
        process.send_signal(signal.SIGCONT)
        with g.connect() as other:
            talk(other)


def idle_connections_cost_little_and_nothing_is_slower():
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    with support.running(sys.executable, "-c", ANSWERS_MANY, text=True,
                         stdout=subprocess.PIPE) as server, \
            gateway(int(server.stdout.readline())) as g:
        with g.connect() as s:
            talk(s)
            before = memory_kb(g.process.pid)
            idle = [g.connect() for _ in range(IDLE)]
            for one in idle:
                one.sendall(b"x")
            for one in idle:
                assert one.recv(1) == b"x"
            each = (memory_kb(g.process.pid) - before) / IDLE
            assert each < 16, f"{each} KB each"
            print(f"{IDLE} connections, {each:.1f} KB each")
            talk(s)
            for one in idle:
                one.close()


def it_ends_at_once_when_told_to():
    with support.Server(echo) as server, gateway(server.port) as g, g.connect() as s:
        talk(s, 1)
        g.process.send_signal(signal.SIGTERM)
        assert ends(s) == "reset"
        assert g.process.wait(support.WAIT) == 0


support.main({test.__name__: test for test in (
    the_gateway_is_killed, the_server_is_killed,
    a_server_that_is_killed_with_bytes_unread_is_a_reset, clients_are_killed,
    a_slow_reader_costs_bounded_memory_and_gets_everything,
    a_stopped_server_holds_up_its_own_clients_only,
    a_client_resets_while_its_server_does_not_read,
    idle_connections_cost_little_and_nothing_is_slower, it_ends_at_once_when_told_to)})
