#!/usr/bin/env python3
"""fi_pingpong, a stock program of libfabric, over libfabric's TCP and under `clan run --with ofi`.

    ofi_comparison.py CLAN [TRIES]

Server and client on a core each, in turns over both; the better of two. A row that other work
disturbed is measured again, three times at most (TRIES), and marked. Everything that is started
ends with this program. Exit code 77 if fi_pingpong is not installed (Debian package libfabric-bin).
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading

from other_work import undisturbed

CORES = sorted(os.sched_getaffinity(0))
ROUNDS = 2
SECONDS = 30  # that one run may take
SIZES = {64: 3000, 65536: 500, 1 << 20: 100}  # bytes, messages


def start(words, core):
    """The process, which ends when this one does."""
    return subprocess.Popen(
        ["setpriv", "--pdeathsig=TERM", "taskset", "-c",
         str(core), *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def one_way(under, provider, size):
    """Microseconds of one message."""
    port = free_port()
    words = [*under, "fi_pingpong", "-p", provider, "-e", "rdm", "-I", SIZES[size], "-S", size]
    server = start([*words, "-B", port], CORES[0])
    client = None
    try:
        for _ in range(100):
            client = start([*words, "-P", port, "127.0.0.1"], CORES[-1])
            said, _ = client.communicate(timeout=SECONDS)
            if client.returncode == 0 or server.poll() is not None:
                break
            threading.Event().wait(0.05)  # the server does not listen yet
        served, _ = server.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"fi_pingpong over {provider} had not ended after {SECONDS} s") from None
    finally:
        for process in (server, client):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
    # bytes, messages, acknowledged, total, time, MB/s, microseconds, messages a second
    row = re.search(r"^\S+\s+\S+\s+=\S+\s+\S+\s+\S+\s+\S+\s+([\d.]+)", said, re.M)
    if client.returncode != 0 or server.returncode != 0 or row is None:
        raise SystemExit(f"fi_pingpong over {provider} failed: {(said + served).strip()[-500:]}")
    return float(row[1])


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    clan = os.path.abspath(sys.argv[1])
    if shutil.which("fi_pingpong") is None:
        print("fi_pingpong is not installed (Debian package libfabric-bin)")
        return 77
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    print(f"fi_pingpong on cores {CORES[0]} and {CORES[-1]}, microseconds one way:\n", flush=True)
    print(f"  {'bytes':>8}  {'tcp;ofi_rxm':>11}  {'clan':>9}  ratio")
    for size in SIZES:
        times, doubt = undisturbed(
            lambda size=size: [(one_way([], "tcp;ofi_rxm", size),
                                one_way([clan, "run", "--with", "ofi"], "clan", size))
                               for _ in range(ROUNDS)],
            tries=int(sys.argv[2]) if len(sys.argv) == 3 else 3)
        stock, ours = (min(column) for column in zip(*times))
        print(f"  {size:>8}  {stock:>11.2f}  {ours:>9.2f}  {stock / ours:>5.1f}{doubt}", flush=True)
    print("\nOpen MPI too: clan run --with ofi mpirun -n 2 PROGRAM")
    return 0


if __name__ == "__main__":
    sys.exit(main())
