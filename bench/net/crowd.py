"""A server with many idle peers: what each takes of its memory, and a round trip beside them. For
net.py."""
import os
import re
import statistics
import subprocess

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
    size, alone, beside = (statistics.median(values) for values in zip(*found))
    ratio = statistics.median(b / a for _, a, b in found)
    print(f"  {peers} idle peers, {path}: {size:.0f} bytes of resident memory each (wanted below "
          f"{MOST_BYTES}) {'met' if size < MOST_BYTES else 'MISSED'}")
    print(f"  64 B alone {alone:.2f} us, beside them {beside:.2f}: {ratio:.2f} (wanted at most "
          f"{MOST_ADDED}) {'met' if ratio <= MOST_ADDED else 'MISSED'}  "
          f"({' '.join(f'{a:.1f}/{b:.1f}' for _, a, b in found)})", flush=True)
