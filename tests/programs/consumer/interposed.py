"""Two processes of one host talk by TCP under `clan run`; `clan stat` has to show that their bytes
do not.

    PREFIX/bin/clan run python3 -B interposed.py PREFIX
"""

import json
import os
import socket
import subprocess
import sys

ROUNDS = 200


def ping(address):
    with socket.create_connection(address) as peer:
        for _ in range(ROUNDS):
            peer.sendall(b"ping")
            peer.recv(4)
        peer.recv(1)  # until the other end has looked


def main():
    prefix = os.path.realpath(sys.argv[1])
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        loaded = {line.split()[-1] for line in maps if "libclan-preload.so" in line}
    assert loaded == {f"{prefix}/lib/libclan-preload.so"}, loaded

    with socket.create_server(("127.0.0.1", 0)) as listener:
        child = os.fork()
        if child == 0:
            ping(listener.getsockname())
            os._exit(0)
        peer, _ = listener.accept()
    with peer:
        for _ in range(ROUNDS):
            assert peer.recv(4) == b"ping"
            peer.sendall(b"pong")
        told = subprocess.run([f"{prefix}/bin/clan", "stat", "--json",
                               str(os.getpid())], check=True, capture_output=True, text=True,
                              timeout=60).stdout
    assert os.waitpid(child, 0)[1] == 0
    moved = json.loads(told)
    assert len(moved) == 1, told
    print(f"{ROUNDS} round trips under clan run, and clan stat shows their connection")


if __name__ == "__main__":
    main()
