#!/usr/bin/env python3
"""`clan stat` shows CORBA connections by the tables of their processes, which are written here, as
plugins/omniorb/traffic_page.h lays them out.

    stat_orb_test.py CLAN
"""

import json
import os
import re
import struct
import subprocess
import sys
import time

MAGIC = 0x31306272_6F6E6C63
HEAD = ROW = 64
CLIENT, SERVER = 1, 2


class Table:
    """A memfd as omniORB's transport makes it, of this process."""

    def __init__(self):
        self.fd = os.memfd_create("clan-orb", 0)
        self.used = 0

    def add(self, role, peer, sent):
        now = time.time_ns()
        row = struct.pack("<IIIIQQQQQQ", role, peer, os.getuid(), 0, now, sent, 0, 1, 0, 0)
        os.pwrite(self.fd, row, HEAD + ROW * self.used)
        self.used += 1
        os.pwrite(self.fd, struct.pack("<QII48x", MAGIC, os.getpid(), self.used), 0)


def stat(clan, *words):
    done = subprocess.run([clan, "stat", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    return done.stdout


def connections(clan):
    return [c for c in json.loads(stat(clan, "--json", str(os.getpid()))) if c["reason"] == "CORBA"]


def check_inherited(clan):
    """A child that has inherited the table does not take the connections out of the list."""
    table = Table()
    table.add(CLIENT, 1, 4711)
    (alone,) = connections(clan)
    assert alone["local"]["bytes"] == 4711, alone
    wait, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        os.read(wait, 1)
        os._exit(0)
    (beside,) = connections(clan)
    os.close(wait)
    os.close(go)
    os.waitpid(child, 0)
    assert beside["local"] == alone["local"], (alone, beside)
    os.close(table.fd)


def check_prometheus(clan):
    """Connections have no addresses: those of the same programs are one sample."""
    table = Table()
    for sent in 1000, 200, 30:
        table.add(SERVER, 1, sent)
    samples = [line for line in stat(clan, "--prometheus").splitlines() if not line.startswith("#")]
    labels = [re.sub(r" [^ ]*$", "", line) for line in samples]
    assert len(set(labels)) == len(labels), samples
    with open("/proc/self/comm", encoding="utf-8") as file:
        mine = f'command="{file.read().strip()}"}} '
    sums = [line.split(mine)[1] for line in samples
            if line.startswith("clan_sent_bytes_total{") and mine in line]
    assert "1230" in sums, samples
    os.close(table.fd)


def main():
    check_inherited(sys.argv[1])
    check_prometheus(sys.argv[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
