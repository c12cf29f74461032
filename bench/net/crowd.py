"""A server with many idle peers: what each takes of its memory, and a round trip beside them. For
net.py."""
import os
import re
import statistics
import subprocess

import report

MOST_BYTES = 16 << 10  # of an idle peer
MOST_ADDED = 1.05  # round trip beside them, by that of one peer alone
PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * PAGE


def once(runner, path, peers):
    """Bytes of a peer; microseconds of a round trip alone and beside them."""
    to, program = runner.next_address(), runner.program_of(path)
    serve = [*runner.serving, "taskset", "-c", "0", program, "serve", path, to]
    ask = [*runner.asking, "taskset", "-c", "1", program, "crowd", path, to, "64",
           str(runner.seconds), str(peers)]
    with runner.running(serve) as server:
        client = subprocess.Popen(ask, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with client:
            alone = client.stdout.readline()
            before = resident(server.pid)
            if client.stdout.readline() != "idle\n":
                client.kill()
                raise SystemExit("the crowd has not come")
            grown = resident(server.pid) - before
            beside, _ = client.communicate("\n", timeout=runner.seconds * 20 + 60)
    if client.returncode != 0:
        raise SystemExit(f"the crowd: {alone} {beside}")
    return grown / peers, *(float(re.search(r"p50 ([\d.]+)", s)[1]) for s in (alone, beside))


def measure(runner, path, peers, rounds):
    found = [once(runner, path, peers) for _ in range(rounds)]
    item = report.Item(path, f"{peers} idle peers, by {path}")
    for text, unit, values in (("memory of an idle peer", "B", [size for size, _, _ in found]),
                               ("64 B alone", "us", [alone for _, alone, _ in found]),
                               ("64 B beside them", "us", [beside for _, _, beside in found])):
        item.rows.append(report.Row("peers", "median", peers, statistics.median(values), unit,
                                    "peers", low=min(values), text=text, samples=values))
    item.lines = [
        report.at_least("bytes of an idle peer", item.rows[0].value, MOST_BYTES, most=True),
        report.at_least("beside them / alone", statistics.median(b / a for _, a, b in found),
                        MOST_ADDED, most=True)]
    return item
