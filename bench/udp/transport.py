#!/usr/bin/env python3
"""clan-udp-transport and clan-udp-stream beside a bare UDP socket and kernel TCP, over loopback and over a veth pair.

    bench/udp/transport.py build/release/bin/clan-udp-transport [--over loopback|veth] [--rounds N]

Makes two network namespaces joined by a veth pair for itself and removes them at the end (root). The two
programs sit on two processors and take turns: every row is measured once per round, and the medians are
printed. Run it on a quiet machine.
"""
import argparse
import contextlib
import os
import re
import secrets
import statistics
import subprocess
import sys
import tempfile
import time

PORT = 4000
MTU = {"veth": 1500, "veth9000": 9000}
CLAN = ("clan", "clan-integrity", "clan-encrypt", "stream", "stream-adaptive", "stream-sleep",
        "stream-encrypt")
ROWS = [*(("ping", path, 64) for path in ("udp", "tcp", "tcp-block", *CLAN)),
        *(("bulk", path, 1 << 20) for path in ("tcp", "tcp-block", *CLAN))]


def ip(*words):
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def network(over):
    """Two prefixes for commands, and the address of the first's end."""
    if over == "loopback":
        yield [], [], "127.0.0.1"
        return
    names = [f"clanudp{os.getpid()}{end}" for end in "ab"]
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("link", "add", "va", "netns", names[0], "type", "veth", "peer", "name", "vb", "netns", names[1])
        for name, device, address in zip(names, ("va", "vb"), ("10.77.0.1/24", "10.77.0.2/24")):
            ip("-n", name, "link", "set", device, "mtu", str(MTU[over]))
            ip("-n", name, "address", "add", address, "dev", device)
            ip("-n", name, "link", "set", device, "up")
        yield (*[["ip", "netns", "exec", name] for name in names], "10.77.0.1")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def running(command):
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        time.sleep(0.2)
        yield child
    finally:
        child.kill()
        child.wait()


def once(program, prefixes, address, row, port, seconds):
    kind, path, size = row
    to = f"{address}:{port}"
    if path.startswith("stream"):
        program = program.replace("clan-udp-transport", "clan-udp-stream")
    with running([*prefixes[0], "taskset", "-c", "0", program, "serve", path, to]):
        command = [*prefixes[1], "taskset", "-c", "1", program, kind, path, to, str(size), str(seconds)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=seconds * 10 + 20)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed: {done.stdout}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--over", choices=["loopback", "veth", "veth9000"], action="append")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--only", help="a part of a row's name, as in 'bulk clan'")
    parser.add_argument("--verbose", action="store_true", help="what the programs print, too")
    options = parser.parse_args()
    port = PORT
    key = tempfile.NamedTemporaryFile("w", prefix="clan-key-")  # made with mode 0600
    key.write(secrets.token_hex(32))
    key.flush()
    os.environ["CLAN_KEY_FILE"] = key.name
    for over in options.over or ["loopback", "veth"]:
        found = {}
        with network(over) as (serving, asking, address):
            for _ in range(options.rounds):
                for row in ROWS:
                    name = f"{row[0]} {row[1]}"
                    if options.only and options.only not in name:
                        continue
                    port += 1
                    text = once(options.program, (serving, asking), address, row, port, options.seconds)
                    if options.verbose:
                        print(name, text, end="")
                    value = re.search(r"p50 ([\d.]+)|^([\d.]+) GB/s", text, re.M)
                    cpu = re.search(r"([\d.]+) s of processor", text)
                    found.setdefault(name, []).append((float(value[1] or value[2]), float(cpu[1])))
        for name, values in found.items():
            unit = "us" if name.startswith("ping") else "GB/s"
            spread = " ".join(f"{v:.2f}" for v, _ in values)
            print(f"{over:9} {name:20} {statistics.median(v for v, _ in values):8.2f} {unit:5}"
                  f" sender's processor {statistics.median(c for _, c in values):.2f} s  ({spread})")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
