"""Connections whose bytes somebody else's BPF program redirects past TCP (a sockmap: proxies of
meshes, accelerators): under CLAN as without, every message comes once. As root.

    sockmap.py CLAN

The kernel counts no byte of such a connection, so CLAN cannot tell where TCP ends and the pipe
begins, and leaves it on TCP.
"""
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "bench" / "apps"))
import sockmap  # noqa: E402

SKIPPED = 77
MESSAGES, SIZE = 200, 64

SERVER = f"""
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
s = listener.accept()[0]
while data := s.recv({SIZE}, socket.MSG_WAITALL):
    s.sendall(data[::-1])
"""
CLIENT = f"""
import os, socket, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
s.settimeout(20)
for i in range({MESSAGES}):
    message = i.to_bytes(4, "little") + os.urandom({SIZE} - 4)
    s.sendall(message)
    assert s.recv({SIZE}, socket.MSG_WAITALL) == message[::-1], i
maps = open("/proc/self/maps").read().count("memfd:clan-pipe")
print("moved" if maps else "stayed", flush=True)
s.close()
"""


def echo(server_prefix, client_prefix):
    """Whether the connection of one echo had moved; fails where a message was wrong."""
    server = subprocess.Popen([*server_prefix, sys.executable, "-c", SERVER], text=True,
                              stdout=subprocess.PIPE)
    try:
        port = server.stdout.readline().strip()
        client = subprocess.run([*client_prefix, sys.executable, "-c", CLIENT, port], text=True,
                                stdout=subprocess.PIPE, timeout=60, check=False)
        if client.returncode != 0:
            sys.exit(f"the echo failed: {client.returncode}")
        if server.wait(timeout=20) != 0:
            sys.exit(f"the server failed: {server.returncode}")
        return client.stdout.strip()
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def main():
    clan = [sys.argv[1], "run"]
    if os.geteuid() != 0:
        print("skipped: not root")
        return SKIPPED
    if (found := echo(clan, clan)) != "moved":
        sys.exit(f"without a redirection it {found}: this test would show nothing")
    try:
        redirection = sockmap.Redirection()
    except sockmap.Refused as refused:
        print(f"skipped: {refused}")
        return SKIPPED
    try:
        group = redirection.prefix()
        for server, client in ((clan, clan), (clan, []), ([], clan), ([], [])):
            for _ in range(3):
                if (found := echo([*group, *server], [*group, *client])) != "stayed":
                    sys.exit("a connection has moved whose bytes the kernel does not count")
    finally:
        redirection.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
