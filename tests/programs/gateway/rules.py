#!/usr/bin/env python3
"""What rules ask of connections: PROXY headers, limits, time-outs, targets that fail; and what
`clan stat` and the log say of them.

    rules.py CLAN NATIVE [TEST...]
"""
import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import support
from support import echo, free_port, gateway, receive_all, until

V2 = b"\r\n\r\n\0\r\nQUIT\n"
V2_FOUR = V2 + b"\x21\x11\0\x0c" + bytes([9, 8, 7, 6, 5, 4, 3, 2, 0, 80, 1, 187])


def refused(g, data=b"", pause=0.0):
    """A client that sends this is reset; what it got before."""
    got = b""
    with contextlib.suppress(ConnectionResetError, BrokenPipeError), g.connect() as s:
        for i in range(len(data)) if pause else [slice(None)]:
            s.sendall(data[i:i + 1] if pause else data)
            time.sleep(pause)
        while more := s.recv(1000):
            got += more
        raise AssertionError(f"an orderly end, after {got}")
    return got


def numbers(g):
    return next(one for one in json.loads(subprocess.run(
        [support.CLAN, "stat", "--json"], stdout=subprocess.PIPE, check=True).stdout)
        if one["path"] == "gateway" and one["pid"] == g.process.pid)


def headers_are_sent_to_targets():
    for version, wanted in (("v1", lambda s: f"PROXY TCP4 127.0.0.1 127.0.0.1 "
                             f"{s.getsockname()[1]} {s.getpeername()[1]}\r\n".encode()),
                            ("v2", lambda s: V2 + b"\x21\x11\0\x0c\x7f\0\0\1\x7f\0\0\1" +
                             s.getsockname()[1].to_bytes(2, "big") +
                             s.getpeername()[1].to_bytes(2, "big"))):
        with support.Server(echo) as server, \
                gateway(server.port, "--send-proxy", version) as g, g.connect() as s:
            header = wanted(s)
            s.sendall(b"hello")
            s.shutdown(socket.SHUT_WR)
            assert receive_all(s) == header + b"hello"


def headers_are_taken_from_proxies_and_passed_on():
    with support.Server(echo) as server, gateway(
            server.port, "--accept-proxy", "127.0.0.0/8", "--send-proxy", "v1") as g:
        for header in (b"PROXY TCP4 9.8.7.6 5.4.3.2 80 443\r\n", V2_FOUR):
            for size in (1, 7, 1000):  # in pieces
                with g.connect() as s:
                    for at in range(0, len(header), size):
                        s.sendall(header[at:at + size])
                    s.sendall(b"hello")
                    s.shutdown(socket.SHUT_WR)
                    assert receive_all(s) == b"PROXY TCP4 9.8.7.6 5.4.3.2 80 443\r\nhello"
        g.line("client=9.8.7.6:80")
        with g.connect() as s:  # a health check of the proxy before
            s.sendall(V2 + b"\x20\0\0\0")
            assert s.recv(100).startswith(b"PROXY TCP4 127.0.0.1 127.0.0.1 ")
        with g.connect() as s:  # twice: the second one is what the client sends
            s.sendall(V2_FOUR + V2_FOUR)
            s.shutdown(socket.SHUT_WR)
            assert receive_all(s).endswith(b"443\r\n" + V2_FOUR)


def values_of_a_header_are_passed_on():
    """From version 2 to version 2: all but its checksum and padding."""
    kept = b"\x01\0\x02h2" + b"\xe0\0\x03own"
    more = kept[:5] + b"\x04\0\x01\0" + kept[5:]
    header = V2 + b"\x21\x11" + (12 + len(more)).to_bytes(2, "big") + V2_FOUR[16:] + more
    with support.Server(echo) as server, gateway(
            server.port, "--accept-proxy", "127.0.0.0/8", "--send-proxy", "v2") as g, \
            g.connect() as s:
        s.sendall(header + b"hello")
        s.shutdown(socket.SHUT_WR)
        wanted = V2 + b"\x21\x11" + (12 + len(kept)).to_bytes(2, "big") + V2_FOUR[16:] + kept
        assert receive_all(s) == wanted + b"hello"


def wrong_headers_are_refused():
    with support.Server(lambda s: s.sendall(b"reached")) as server, gateway(
            server.port, "--accept-proxy", "127.0.0.0/8", "--header-timeout", "0.3") as g:
        for data in (b"GET / HTTP/1.0\r\n\r\n", b"PROXY TCP4 1.2.3.4\r\n", b"PROXY " + b"x" * 200,
                     V2 + b"\x21\x11\xff\xff", V2 + b"\x21\x12\0\0", b"", b"PROXY TCP4 ",
                     V2_FOUR[:20]):
            assert refused(g, data) == b""
        assert refused(g, b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n", pause=0.05) == b""
        g.line("header time-out")
        until(lambda: numbers(g)["refused_header"] == 9, "all are counted")
    with support.Server(echo) as server, gateway(server.port, "--accept-proxy", "10.0.0.0/8") as g:
        assert refused(g, V2_FOUR + b"hello") == b""
        g.line("not of accept-proxy")


def limits_hold():
    with support.Server(echo) as server:
        with gateway(server.port, "--max-per-source", "2") as g, g.connect() as a, \
                g.connect() as b:
            for s in (a, b):
                s.sendall(b"x")
                assert s.recv(1) == b"x"
            assert refused(g) == b""
            a.close()
            until(lambda: numbers(g)["connections"] == 1, "the first has gone")
            with g.connect() as s:
                s.sendall(b"x")
                assert s.recv(1) == b"x"
        with gateway(server.port, "--max", "1") as g, g.connect() as a:
            a.sendall(b"x")
            assert a.recv(1) == b"x"
            with g.connect() as waiting:
                waiting.sendall(b"y")
                waiting.settimeout(0.3)
                with contextlib.suppress(TimeoutError):
                    raise AssertionError(waiting.recv(1))
                a.close()
                waiting.settimeout(support.WAIT)
                assert waiting.recv(1) == b"y"


def a_limit_for_each_client_counts_those_behind_a_proxy():
    with support.Server(echo) as server, gateway(
            server.port, "--accept-proxy", "127.0.0.0/8", "--max-per-source", "1") as g:
        header = b"PROXY TCP4 9.8.7.%d 5.4.3.2 80 443\r\nhello"
        with g.connect() as a, g.connect() as b:
            for i, s in enumerate((a, b)):
                s.sendall(header % i)
                assert s.recv(5, socket.MSG_WAITALL) == b"hello"
            assert refused(g, header % 1) == b""
            g.line("client=9.8.7.1:80", "max-per-source")


@contextlib.contextmanager
def of_hosts(*addresses):
    """What a program starts behind that is to find these addresses for the host `many`."""
    if os.geteuid() != 0:
        raise support.Skip("a file of hosts of its own takes root")
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "hosts").write_text("".join(f"{one} many\n" for one in addresses))
        yield ["unshare", "-m", "sh", "-c",
               f'mount --bind {directory}/hosts /etc/hosts; exec "$@"', "-"]


def all_addresses_of_a_host_are_tried():
    with of_hosts("127.0.0.3", "127.0.0.2", "127.0.0.1") as prefix:
        for host in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):
            with support.Server(named(b"a"), (host, 0)) as server, \
                    gateway(f"many:{server.port}", prefix=prefix) as g:
                assert [ask(g), ask(g)] == [b"a", b"a"], g.lines()
                target = numbers(g)["targets"][0]
                assert target["works"] and target["failures"] == 0, target


def idle_connections_end():
    with support.Server(echo) as server, gateway(server.port, "--idle-timeout", "0.4") as g, \
            g.connect() as s:
        for _ in range(6):
            time.sleep(0.15)
            s.sendall(b"x")
            assert s.recv(1) == b"x"
        with contextlib.suppress(ConnectionResetError):
            raise AssertionError(s.recv(1))
        g.line("idle time-out")


def silent_clients_are_probed():
    if shutil.which("ss") is None:
        raise support.Skip("ss is not installed")
    with support.Server(echo) as server:
        for options, wanted in (("--keep-alive", "1000"), "16min"), ((), ""):
            with gateway(server.port, *options) as g, g.connect() as s:
                s.sendall(b"x")
                assert s.recv(1) == b"x"
                said = subprocess.run(["ss", "-Htno", "sport", "=", f":{g.port}"], text=True,
                                      stdout=subprocess.PIPE, check=True).stdout
                assert f"keepalive,{wanted}" in said, said


def named(who):
    def serve(s):
        s.recv(1)
        s.sendall(who)
    return serve


def ask(g):
    with g.connect() as s:
        s.sendall(b"?")
        return receive_all(s)


def targets_take_turns_and_those_that_fail_are_left_out():
    with support.Server(named(b"a")) as a, support.Server(named(b"b")) as b:
        targets = f"127.0.0.1:{a.port},127.0.0.1:{b.port}"
        with gateway(targets, "--retry", "1000") as g:
            assert sorted(ask(g) for _ in range(4)) == [b"a", b"a", b"b", b"b"]
            a.__exit__()
            assert [ask(g) for _ in range(6)] == [b"b"] * 6  # nobody notices
            first = numbers(g)["targets"][0]
            assert not first["works"] and first["failures"] == 1, first
            with support.Server(named(b"A"), ("127.0.0.1", a.port)):
                assert [ask(g) for _ in range(3)] == [b"b"] * 3  # not yet
    with support.Server(named(b"a")) as a, support.Server(named(b"b")) as b:
        targets = f"127.0.0.1:{a.port},127.0.0.1:{b.port}"
        with gateway(targets, "--balance", "first") as g:
            assert [ask(g) for _ in range(4)] == [b"a"] * 4


@contextlib.contextmanager
def full_listener():
    """The port of one whose backlog is full: the kernel answers no connection."""
    with contextlib.ExitStack() as ends:
        listener = ends.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            s = ends.enter_context(socket.socket())
            s.setblocking(False)
            s.connect_ex(listener.getsockname())
        time.sleep(0.1)
        yield listener.getsockname()[1]


def sockets_of(process):
    n = 0
    for fd in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            n += os.readlink(fd).startswith("socket:")
    return n


def a_check_begins_when_the_one_before_has_ended():
    with full_listener() as port, \
            gateway(port, "--check", "0.05", "--connect-timeout", "1") as g:
        for failures in (1, 2):
            until(lambda: numbers(g)["targets"][0]["failures"] >= failures, "a check has failed")
            assert sockets_of(g.process) <= 4


def checks_find_what_fails_and_what_works_again():
    seen = []

    def serve(s):
        data = receive_all(s)
        seen.append(data)

    port = free_port()
    with gateway(port, "--check", "0.1", "--send-proxy", "v2") as g:
        until(lambda: not numbers(g)["targets"][0]["works"], "the check fails")
        with support.Server(serve, ("127.0.0.1", port)):
            until(lambda: numbers(g)["targets"][0]["works"], "the check works")
            until(lambda: V2 + b"\x20\0\0\0" in seen, f"LOCAL: {seen}")
        until(lambda: not numbers(g)["targets"][0]["works"], "the check fails again")
        assert numbers(g)["accepted"] == 0


def a_check_expects_an_answer():
    answer = [b"-LOADING\r\n"]

    def serve(s):
        if s.recv(6) == b"PING\r\n":
            for byte in answer[0]:
                s.sendall(bytes([byte]))

    with support.Server(serve) as server, gateway(
            server.port, "--check", "0.05", "--check-send", "PING\\r\\n",
            "--check-expect", "+PONG\\x0d\\n") as g:
        g.line("event=failed", "answered the check otherwise")
        until(lambda: not numbers(g)["targets"][0]["works"], "the check fails")
        answer[0] = b"+PONG\r\n"
        until(lambda: numbers(g)["targets"][0]["works"], "the check works")
        answer[0] = b""
        g.line("event=failed", "not answered")
    with support.native_program() as (target, _), gateway(
            target, "--check", "0.05", "--check-send", "x", "--check-expect", "y") as g:
        until(lambda: not numbers(g)["targets"][0]["works"], "the check fails")
    with support.native_program() as (target, _), gateway(
            target, "--check", "0.05", "--check-send", "x", "--check-expect", "x") as g:
        time.sleep(0.3)
        assert numbers(g)["targets"][0]["failures"] == 0, numbers(g)


def a_check_tries_all_addresses_of_a_host():
    with of_hosts("127.0.0.1", "127.0.0.2") as prefix, \
            support.Server(named(b"no")) as wrong, \
            support.Server(named(b"yes"), ("127.0.0.2", wrong.port)), \
            gateway(f"many:{wrong.port}", "--check", "0.05", "--check-send", "x",
                    "--check-expect", "yes", prefix=prefix) as g:
        until(lambda: ask(g) == b"yes", "the check has found the right one")
        target = numbers(g)["targets"][0]
        assert target["works"] and target["failures"] == 0, target


def a_target_that_does_not_answer_is_given_up():
    with full_listener() as port, support.Server(named(b"b")) as server:
        with gateway(f"127.0.0.1:{port},127.0.0.1:{server.port}", "--balance", "first",
                     "--connect-timeout", "0.3") as g:
            assert ask(g) == b"b"
            g.line("event=failed", "time-out")


def without_descriptors_clients_wait():
    with support.Server(echo) as server, gateway(
            server.port, prefix=["sh", "-c", 'ulimit -n 40; exec "$@"', "-"]) as g:
        clients = [g.connect() for _ in range(40)]
        for s in clients:
            s.sendall(b"x")
        for s in clients:
            assert s.recv(1) == b"x"
            s.close()


def what_is_wrong_is_said():
    def said(*words):
        return subprocess.run([support.CLAN, "gateway", *words], capture_output=True, text=True,
                              timeout=support.WAIT, check=False)
    wrong = said("--listen", "127.0.0.1:0", "--to", "clan:")
    assert wrong.returncode == 2 and "clan:" in wrong.stderr, wrong
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        wrong = said("--listen", where, "--to", "clan:x")
        assert wrong.returncode == 1 and f"{where}: Address already in use" in wrong.stderr, wrong
    assert said("--check-config", "--listen", "127.0.0.1:1", "--to", "clan:x").returncode == 0
    assert "--accept-proxy" in said("--help").stdout


def stat_and_prometheus_have_its_counters():
    with support.Server(echo) as server, gateway(server.port) as g, g.connect() as s:
        s.sendall(b"hello")
        assert s.recv(5) == b"hello"
        assert numbers(g)["targets"][0]["connections"] == 1
        s.shutdown(socket.SHUT_WR)
        receive_all(s)
        until(lambda: numbers(g)["ended"] == 1, "it has ended")
        one = numbers(g)
        assert one["bytes_in"] == one["bytes_out"] == 5 and one["connections"] == 0, one
        text = subprocess.run([support.CLAN, "stat", "--prometheus"], stdout=subprocess.PIPE,
                              text=True, check=True).stdout
        assert f'clan_gateway_in_bytes_total{{pid="{g.process.pid}"}} 5' in text
        assert f'target="127.0.0.1:{server.port}"}} 1' in text
        text = subprocess.run([support.CLAN, "stat"], stdout=subprocess.PIPE, text=True,
                              check=True).stdout
        assert "GATEWAYS" in text and "1 accepted, 1 ended" in text, text
        line = g.line("client=")
        for word in ("in=5", "out=5", f"target=127.0.0.1:{server.port}", 'reason="closed"'):
            assert word in line, line


support.main({test.__name__: test for test in (
    headers_are_sent_to_targets, headers_are_taken_from_proxies_and_passed_on,
    values_of_a_header_are_passed_on, wrong_headers_are_refused, limits_hold,
    a_limit_for_each_client_counts_those_behind_a_proxy, all_addresses_of_a_host_are_tried,
    idle_connections_end, silent_clients_are_probed,
    targets_take_turns_and_those_that_fail_are_left_out,
    a_check_begins_when_the_one_before_has_ended,
    checks_find_what_fails_and_what_works_again, a_check_expects_an_answer,
    a_check_tries_all_addresses_of_a_host, a_target_that_does_not_answer_is_given_up,
    without_descriptors_clients_wait, what_is_wrong_is_said,
    stat_and_prometheus_have_its_counters)})
