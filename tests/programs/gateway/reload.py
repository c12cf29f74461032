#!/usr/bin/env python3
"""A gateway that is replaced, or reads its file anew, fails no client.

    reload.py CLAN NATIVE [TEST...]
"""
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import support
from support import CLAN, echo, free_port, listens, running, until

REPLACEMENTS = 10


class Load:
    """Clients in threads: new connections all the time, and the first thing that went wrong."""

    def __init__(self, port, threads=3):
        self.port, self.asked, self.wrong, self.stopped = port, 0, None, False
        self.threads = [threading.Thread(target=self.run) for _ in range(threads)]
        for thread in self.threads:
            thread.start()

    def run(self):
        try:
            while not self.stopped:
                with socket.create_connection(("127.0.0.1", self.port), timeout=support.WAIT) as s:
                    for _ in range(3):
                        s.sendall(b"hello")
                        assert s.recv(5, socket.MSG_WAITALL) == b"hello"
                self.asked += 1
        except Exception as error:  # whatever it is, it is the test's failure
            self.wrong = error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stopped = True
        for thread in self.threads:
            thread.join()


@contextlib.contextmanager
def by_file(text, *options, **more):
    """A gateway by a file; ends with all those that replace it."""
    with tempfile.TemporaryDirectory() as directory:
        path, log = Path(directory, "rules"), Path(directory, "log")
        path.write_text(text)
        with open(log, "w") as out, running(CLAN, "gateway", "--config", path, *options,
                                            stdout=out, stderr=out, **more) as process:
            port = int(text.split("listen=127.0.0.1:")[1].split()[0])
            until(lambda: listens(port), f"the gateway: {log.read_text()}", process)
            yield process, path, log


def said(log, *words):
    until(lambda: any(all(word in line for word in words)
                      for line in log.read_text().splitlines()), f"{words} in {log.read_text()}")


def reload(pid, wanted=0):
    done = subprocess.run([CLAN, "gateway", "reload", str(pid)], capture_output=True, text=True,
                          timeout=support.WAIT, check=False)
    assert done.returncode == wanted, done
    return done.stderr


def serving(process):
    """Returns which of a gateway and its replacements, all of one group, serves."""
    rows = json.loads(subprocess.run([CLAN, "stat", "--json"], stdout=subprocess.PIPE,
                                     check=True).stdout)
    pids = [row["pid"] for row in rows if row["path"] == "gateway" and not row["draining"]]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # of another test
            if os.getpgid(pid) == process.pid:
                return pid
    raise AssertionError(f"none of {rows}")


def replaced_under_load_nobody_fails():
    port = free_port()
    with support.Server(echo) as server, by_file(
            f"listen=127.0.0.1:{port} to=127.0.0.1:{server.port} log=off\n") as (process, _, _), \
            socket.create_connection(("127.0.0.1", port)) as old:
        old.sendall(b"x")
        assert old.recv(1) == b"x"
        with Load(port) as load:
            for _ in range(REPLACEMENTS):
                before = load.asked
                reload(serving(process))
                until(lambda before=before: load.asked > before + 5 or load.wrong, "the load")
                assert load.wrong is None, load.wrong
        assert load.wrong is None, load.wrong
        old.sendall(b"y")  # the first gateway still has it
        assert old.recv(1) == b"y" and process.poll() is None
        old.close()
        process.wait(support.WAIT)
        assert process.returncode == 0


def names_are_handed_on():
    """A listener by name, to the program that replaces it."""
    name, port = f"gateway-test-{os.getpid()}-reload", free_port()
    client = support.client_by_name(name)
    with support.Server(echo) as server, by_file(
            f"listen=127.0.0.1:{port} to=127.0.0.1:{server.port}\n"
            f"listen=clan:{name} to=127.0.0.1:{server.port}\n") as (process, _, _):
        for _ in range(2):
            subprocess.run([CLAN, "run", sys.executable, "-c", client], check=True)
            reload(serving(process))
        subprocess.run([CLAN, "run", sys.executable, "-c", client], check=True)


def a_wrong_file_replaces_nothing():
    port = free_port()
    with support.Server(echo) as server, by_file(
            f"listen=127.0.0.1:{port} to=127.0.0.1:{server.port}\n") as (process, path, log), \
            Load(port) as load:
        path.write_text("nonsense\n")
        assert "did not start" in reload(process.pid, 1)
        process.send_signal(signal.SIGHUP)
        said(log, "event=reload-failed", "nonsense has no value")
        before = load.asked
        until(lambda: load.asked > before + 5 or load.wrong, "the load")
        assert load.wrong is None, load.wrong


def a_file_is_read_anew_and_old_connections_live_on():
    port, second = free_port(), free_port()
    with support.Server(echo) as server, support.Server(lambda s: s.sendall(b"new")) as new, \
            by_file(f"listen=127.0.0.1:{port} to=127.0.0.1:{server.port}\n") as (
                process, path, log):
        with socket.create_connection(("127.0.0.1", port)) as old:
            old.sendall(b"x")
            assert old.recv(1) == b"x"
            path.write_text(f"listen=127.0.0.1:{port} to=127.0.0.1:{new.port}\n"
                            f"listen=127.0.0.1:{second} to=127.0.0.1:{server.port}\n")
            process.send_signal(signal.SIGHUP)
            said(log, "event=reload ", "rules=2")
            old.sendall(b"y")
            assert old.recv(1) == b"y"
            with socket.create_connection(("127.0.0.1", port)) as s:
                assert support.receive_all(s) == b"new"
            with socket.create_connection(("127.0.0.1", second)) as s:
                s.sendall(b"z")
                assert s.recv(1) == b"z"
            path.write_text(f"listen=127.0.0.1:{second} to=127.0.0.1:{server.port}\n")
            process.send_signal(signal.SIGHUP)
            until(lambda: not listens(port), "the first listener has gone")
            old.sendall(b"!")
            assert old.recv(1) == b"!"


def connections_of_a_rule_that_was_read_anew_count():
    port = free_port()
    with support.Server(echo) as server, by_file(
            f"listen=127.0.0.1:{port} to=127.0.0.1:{server.port}\n") as (process, path, log), \
            socket.create_connection(("127.0.0.1", port)) as old:
        old.sendall(b"x")
        assert old.recv(1) == b"x"
        path.write_text(f"listen=127.0.0.1:{port} to=127.0.0.1:{server.port} max-per-source=1\n")
        process.send_signal(signal.SIGHUP)
        said(log, "event=reload ")
        with contextlib.suppress(ConnectionResetError), \
                socket.create_connection(("127.0.0.1", port)) as s:
            raise AssertionError(s.recv(1))
        said(log, "max-per-source")
        old.close()
        said(log, "in=1 out=1")
        with socket.create_connection(("127.0.0.1", port)) as s:
            s.sendall(b"y")
            assert s.recv(1) == b"y"


@contextlib.contextmanager
def asked_while_stopped(process):
    """`clan gateway reload` has asked a gateway that cannot answer yet."""
    process.send_signal(signal.SIGSTOP)
    with subprocess.Popen([CLAN, "gateway", "reload", str(process.pid)], text=True,
                          stderr=subprocess.PIPE) as asking:
        def asked():
            status = Path(f"/proc/{process.pid}/status").read_text()
            return int(status.split("ShdPnd:")[1].split()[0], 16) >> (signal.SIGUSR2 - 1) & 1
        until(asked, "it is asked")
        yield asking


def a_reload_answers_for_itself():
    """Neither a file that is read anew nor an end of the gateway is its success."""
    port = free_port()
    text = f"listen=127.0.0.1:{port} to=127.0.0.1:{port}\n"
    with by_file(text) as (process, _, _):
        with asked_while_stopped(process) as asking:
            process.send_signal(signal.SIGHUP)
            process.send_signal(signal.SIGCONT)
            assert asking.wait(support.WAIT) == 0
        assert serving(process) != process.pid
    with by_file(text) as (process, _, _):
        with asked_while_stopped(process) as asking:
            process.kill()
            _, said_of_it = asking.communicate(timeout=support.WAIT)
            assert asking.returncode == 1 and "ended" in said_of_it, said_of_it


def a_gateway_of_another_version_is_not_waited_for():
    """Its page says nothing of what a reload has come to."""
    old = ("import os, signal, sys, time; signal.signal(signal.SIGUSR2, signal.SIG_IGN)\n"
           "page = os.memfd_create('clan-gateway')\n"
           "os.write(page, b'cln-gw01' + os.getpid().to_bytes(4, 'little') + bytes(20000))\n"
           "print('ready', flush=True); time.sleep(1000)")
    with running(sys.executable, "-c", old, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == "ready\n"
        said_of_it = reload(process.pid, 1)
        assert "of this version" in said_of_it and said_of_it.count("\n") == 1, said_of_it


def draining_has_a_limit():
    port = free_port()
    with support.Server(echo) as server, by_file(
            f"listen=127.0.0.1:{port} to=127.0.0.1:{server.port}\n", "--drain",
            "0.5") as (process, _, log), socket.create_connection(("127.0.0.1", port)) as s:
        s.sendall(b"x")
        assert s.recv(1) == b"x"
        process.send_signal(signal.SIGQUIT)
        until(lambda: not listens(port), "it listens no more")
        with contextlib.suppress(ConnectionResetError):
            raise AssertionError(s.recv(1))
        assert process.wait(support.WAIT) == 0
        said(log, "the gateway ends")


def a_service_manager_gives_the_listener_and_is_told():
    """LISTEN_FDS and sd_notify."""
    with tempfile.TemporaryDirectory() as directory, support.Server(echo) as server, \
            socket.create_server(("127.0.0.1", 0)) as listener, \
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        port = listener.getsockname()[1]
        manager.bind(f"{directory}/notify")
        manager.settimeout(support.WAIT)
        fd = listener.fileno()
        start = f'exec 3<&{fd}; [ {fd} = 3 ] || exec {fd}<&-; LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"'
        with by_file(f"listen=127.0.0.1:{port} to=127.0.0.1:{server.port}\n",
                     prefix=["sh", "-c", start, "-"], pass_fds=[fd],
                     env={**os.environ, "NOTIFY_SOCKET": f"{directory}/notify"}) as (process, _, _):
            assert manager.recv(100) == b"READY=1"
            listener.close()
            with socket.create_connection(("127.0.0.1", port)) as s:
                s.sendall(b"x")
                assert s.recv(1) == b"x"
                reload(process.pid)
                pid = serving(process)
                assert {manager.recv(100), manager.recv(100)} == {b"READY=1",
                                                                  f"MAINPID={pid}".encode()}
            with socket.create_connection(("127.0.0.1", port)) as s:
                s.sendall(b"x")
                assert s.recv(1) == b"x"


def one_that_nobody_connects_to_ends():
    rule = f"listen=127.0.0.1:{free_port()} to=127.0.0.1:{free_port()}\n"
    with by_file(rule, "--exit-idle", "1", "--drain", "0") as (process, _, _):
        assert process.wait(support.WAIT) == 0


def one_without_connections_ends():
    port = free_port()
    with support.Server(echo) as server, by_file(
            f"listen=127.0.0.1:{port} to=127.0.0.1:{server.port} check=0.05\n", "--exit-idle",
            "2") as (process, _, _):
        with socket.create_connection(("127.0.0.1", port)) as s:
            time.sleep(2.5)
            s.sendall(b"x")
            assert s.recv(1) == b"x"
        assert process.wait(support.WAIT) == 0


support.main({test.__name__: test for test in (
    replaced_under_load_nobody_fails, names_are_handed_on, a_wrong_file_replaces_nothing,
    a_file_is_read_anew_and_old_connections_live_on,
    connections_of_a_rule_that_was_read_anew_count, a_reload_answers_for_itself,
    a_gateway_of_another_version_is_not_waited_for, draining_has_a_limit,
    one_that_nobody_connects_to_ends, one_without_connections_ends,
    a_service_manager_gives_the_listener_and_is_told)})
