"""What the tests of the gateway with programs share: gateways, servers and clients that end with
their test."""
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

SKIPPED = 77
CLAN = sys.argv[1]
NATIVE = sys.argv[2]
WAIT = 120  # seconds, until something counts as never


class Skip(Exception):
    pass


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def until(holds, what, process=None):
    deadline = time.monotonic() + WAIT
    while not holds():
        if time.monotonic() > deadline or (process is not None and process.poll() is not None):
            raise AssertionError(f"never: {what}")
        time.sleep(0.01)


def listens(port):
    rows = [line.split() for path in ("tcp", "tcp6")
            for line in Path("/proc/net", path).read_text().splitlines()[1:]]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


@contextlib.contextmanager
def running(*words, prefix=(), **more):
    """A program; it and what it has started end with the block."""
    child = subprocess.Popen([*map(str, prefix), *map(str, words)], start_new_session=True, **more)
    try:
        yield child
    finally:
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


class Gateway:
    def __init__(self, process, port, log):
        self.process, self.port, self.log = process, port, log

    def lines(self):
        return self.log.read_text().splitlines()

    def line(self, *words):
        """The first line of the log with these words, once there is one."""
        until(lambda: any(all(word in line for word in words) for line in self.lines()),
              f"a line with {words} in {self.lines()}")
        return next(line for line in self.lines() if all(word in line for word in words))

    def connect(self):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s


@contextlib.contextmanager
def gateway(to, *options, listen=None, prefix=(), environment=None):
    """A gateway from a port of loopback; `to` a port, or a target."""
    port = free_port()
    target = f"127.0.0.1:{to}" if isinstance(to, int) else to
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory, "log")
        with open(log, "w") as file, running(
                CLAN, "gateway", "--listen", listen or f"127.0.0.1:{port}", "--to", target,
                *options, prefix=prefix, stdout=file, stderr=file,
                env={**os.environ, **(environment or {})}) as process:
            if listen is None:
                until(lambda: listens(port), f"the gateway: {log.read_text()}", process)
            yield Gateway(process, port, log)


class Server:
    """A server in a thread of this program: each connection is served by `serve`."""

    def __init__(self, serve, address=("127.0.0.1", 0)):
        self.listener = socket.create_server(address, backlog=1024)
        self.port = self.listener.getsockname()[1]
        self.serve, self.errors = serve, []
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while True:
            try:
                s, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.one, args=(s,), daemon=True).start()

    def one(self, s):
        with s:
            try:
                self.serve(s)
            except OSError as error:
                self.errors.append(error)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()


def echo(s):
    while data := s.recv(65536):
        s.sendall(data)
    s.shutdown(socket.SHUT_WR)


def reset(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def client_by_name(name, turns=1):
    """The text of a program that says hello to an AF_CLAN name, and wants it back."""
    return f"""
import ctypes, socket
libc = ctypes.CDLL(None)
name = {name!r}.encode()
address = (0x434c).to_bytes(2, "little") + name + bytes(96 - len(name))
fd = libc.socket(0x434c, socket.SOCK_STREAM, 0)
assert libc.connect(fd, address, len(address)) == 0
for i in range({turns}):
    assert libc.send(fd, b"hello", 5, 0) == 5
    buffer = ctypes.create_string_buffer(5)
    assert libc.recv(fd, buffer, 5, socket.MSG_WAITALL) == 5 and buffer.raw == b"hello"
"""


def receive_all(s):
    data = b""
    while more := s.recv(1 << 20):
        data += more
    return data


ECHO_PROGRAM = """
import socket, sys, threading
name = sys.argv[1]
def serve(s):
    with s:
        while data := s.recv(65536):
            s.sendall(data)
listener = socket.create_server(("127.0.0.1", int(name)))
print("ready", flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


@contextlib.contextmanager
def echo_program(under_clan):
    """A server that is a process of its own: its port, and the process."""
    port = free_port()
    prefix = [CLAN, "run"] if under_clan else []
    with running(sys.executable, "-c", ECHO_PROGRAM, port, prefix=prefix, text=True,
                 stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == "ready\n"
        yield port, process


@contextlib.contextmanager
def native_program(prefix=()):
    """A native server: its target, and the process."""
    name = f"gateway-test-{os.getpid()}-{time.monotonic_ns()}"
    with running(NATIVE, name, prefix=prefix, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == "ready\n"
        yield f"service:{name}", process


def main(tests):
    """Runs the tests of a script, those of the command line or all of them."""
    chosen = sys.argv[3:] or list(tests)
    skipped = 0
    for name in chosen:
        try:
            tests[name]()
        except Skip as skip:
            skipped += 1
            print(f"{name}: skipped: {skip}")
        else:
            print(f"{name}: passed")
        sys.stdout.flush()
    sys.exit(SKIPPED if skipped == len(chosen) else 0)
