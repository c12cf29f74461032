#!/usr/bin/env python3
"""Wireshark's dissector reads what two hosts say to each other: tshark on the wire of hosts.py.

    dissector.py PROGRAM DISSECTOR [crypto]

Exit code 77: not root, or no `ip` or tshark.
"""
import collections
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time

import hosts

PACKETS = 1500  # of a capture
HELLO, RETRY, ACCEPT, DATA = "1", "2", "3", "5"
ACK, WHOLE = "2", "4"


def capture(names, program, key, path):
    """The first packets of a conversation."""
    tshark = subprocess.Popen(
        hosts.inside(names[1], "tshark", "-q", "-i", "v0", "-w", path, "-c", str(PACKETS), "-a",
                     "duration:60", "-f", "udp"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True)
    while "Capturing" not in tshark.stderr.readline():
        if tshark.poll() is not None:
            raise SystemExit("tshark does not capture")
    time.sleep(0.5)
    hosts.ask(names, program, key)
    tshark.stderr.close()
    tshark.wait()


def read(path, dissector, *fields):
    options = [word for field in fields for word in ("-e", field)]
    done = subprocess.run([
        "tshark", "-r", path, "-X", f"lua_script:{dissector}", "--enable-heuristic", "clan_udp",
        "-o", "udp.try_heuristic_first:TRUE", "-T", "fields", "-E", "separator=;", *options
    ], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 0 and "rror" not in done.stderr, done.stderr
    return [line.split(";") for line in done.stdout.splitlines()]


def check(path, dissector, mode):
    rows = read(path, dissector, "udp.srcport", "clan.type", "clan.mode", "clan.id", "clan.number",
                "clan.frame", "_ws.expert", "clan.message")
    types = collections.Counter(row[1] for row in rows)
    assert "" not in types, f"{types['']} of {len(rows)} packets were not known"
    for kind in (HELLO, RETRY, ACCEPT, DATA):
        assert types[kind] > 0, f"no packet of type {kind} in {types}"
    assert {row[2] for row in rows} == {mode}, "the mode"
    # One of the chosen ports may be among those of traceroute.
    wrong = [row for row in rows if row[6] and "traceroute" not in row[6]]
    assert not wrong, wrong[:3]
    newest = collections.defaultdict(int)
    for _, kind, _, ident, number, *_ in rows:
        if kind == DATA:
            assert int(number) > newest[ident], "packet numbers that do not count up"
            newest[ident] = int(number)
    frames = collections.Counter(f for row in rows for f in row[5].split(",") if f)
    if mode == "2":
        assert not frames, f"frames seen in what is encrypted: {frames}"
    else:
        assert frames[ACK] > 0 and frames[WHOLE] > 0, frames
        assert any("1" in row[7].split(",") for row in rows), "no PUT among the messages"
    print(f"mode {mode}: {len(rows)} packets, types {dict(types)}, frames {dict(frames)}")


def main():
    program, dissector, crypto = sys.argv[1], sys.argv[2], len(sys.argv) > 3
    if not hosts.possible():
        return 77
    if not shutil.which("tshark"):
        print("needs tshark")
        return 77
    with tempfile.TemporaryDirectory(prefix="clan-dissector-") as directory:
        os.chmod(directory, 0o777)  # tshark captures as a user of its own on some hosts
        key = os.path.join(directory, "key")
        with open(key, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(secrets.token_hex(32))
        for mode, words in (("0", []), ("2", [key])):
            if words and not crypto:
                continue
            path = os.path.join(directory, f"{mode}.pcapng")
            with hosts.hosts(1500) as names, hosts.server(names[0], program, words):
                # one datagram a packet, as on a wire: not the trains of veth's offloads
                for name in names:
                    hosts.ip("-n", name, "link", "set", "v0", "gso_max_segs", "1")
                capture(names, program, words, path)
            check(path, dissector, mode)
    return 0


if __name__ == "__main__":
    sys.exit(main())
