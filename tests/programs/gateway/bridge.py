#!/usr/bin/env python3
"""The paper's bridge (clan-distributed-computing, figure 10): hosts of an Ethernet reach programs
of a CLAN network by their usual TCP, and find their address unchanged in what the server sees.

    bridge.py CLAN NATIVE [TEST...]

    outside (namespace) --- veth --- gateway and servers (namespace), which speak no TCP to outside

Skipped without root, namespaces or `ip`.
"""
import contextlib
import os
import shutil
import subprocess
import sys
import time

import support
from support import CLAN, Skip, native_program, running

OUTSIDE, BRIDGE, PORT = "10.84.0.2", "10.84.0.1", 8000  # in namespaces of their own

CLIENT = """
import hashlib, os, socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60)
data = os.urandom(5_000_000)
import threading
threading.Thread(target=lambda: (s.sendall(data), s.shutdown(socket.SHUT_WR))).start()
got = b""
while more := s.recv(1 << 20):
    got += more
header, _, rest = got.partition(b"\\r\\n")
assert rest == data, (len(rest), len(data))
print(header.decode())
"""


@contextlib.contextmanager
def hosts():
    """Two hosts on one Ethernet: what runs a command in each."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise Skip("makes network namespaces: needs root and ip (iproute2)")
    names = [f"clanbr{os.getpid()}{end}" for end in "ab"]
    try:
        for name in names:
            if subprocess.run(["ip", "netns", "add", name], check=False).returncode != 0:
                raise Skip("there are no network namespaces")
            subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        subprocess.run(["ip", "link", "add", "va", "netns", names[0], "type", "veth", "peer",
                        "name", "vb", "netns", names[1]], check=True)
        for name, device, address in zip(names, ("va", "vb"), (BRIDGE, OUTSIDE)):
            subprocess.run(["ip", "-n", name, "address", "add", f"{address}/24", "dev", device],
                           check=True)
            subprocess.run(["ip", "-n", name, "link", "set", device, "up"], check=True)
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)


def outside_reaches(target, here, there):
    """A client outside gets what it sends, behind a header that has its address."""
    with running(CLAN, "gateway", "--listen", f"{BRIDGE}:{PORT}", "--to", target, "--send-proxy",
                 "v1", prefix=here, stdout=subprocess.DEVNULL):
        for _ in range(500):
            done = subprocess.run([*there, sys.executable, "-c", CLIENT, BRIDGE, str(PORT)],
                                  capture_output=True, text=True, timeout=support.WAIT, check=False)
            if "ConnectionRefusedError" not in done.stderr:
                break
            time.sleep(0.02)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"PROXY TCP4 {OUTSIDE} {BRIDGE} "), done.stdout


def outside_reaches_a_native_server():
    with hosts() as (here, there), native_program(here) as (target, _):
        outside_reaches(target, here, there)


def outside_reaches_a_name():
    server = f"""
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.socket(0x434c, socket.SOCK_STREAM, 0)
name = b"bridge-test"
address = (0x434c).to_bytes(2, "little") + name + bytes(96 - len(name))
assert libc.bind(fd, address, len(address)) == 0 and libc.listen(fd, 10) == 0
print("ready", flush=True)
while True:
    s = libc.accept(fd, None, None)
    buffer = ctypes.create_string_buffer(65536)
    while (n := libc.recv(s, buffer, 65536, 0)) > 0:
        at = 0
        while at < n:
            at += libc.send(s, buffer.raw[at:n], n - at, 0)
    libc.close(s)
"""
    with hosts() as (here, there), running(CLAN, "run", sys.executable, "-c", server, prefix=here,
                                           text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == "ready\n"
        outside_reaches("clan:bridge-test", here, there)


support.main({test.__name__: test for test in (outside_reaches_a_native_server,
                                               outside_reaches_a_name)})
