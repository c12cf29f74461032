"""Which way the bytes went, by the counters in shared memory that `clan stat` shows."""

import json
import subprocess
from dataclasses import dataclass

# The part of the connections and of their bytes: a move takes a few exchanges by TCP first.
ENOUGH = 0.9


@dataclass
class Seen:
    moved: int = 0        # connections that are in shared memory now
    unmoved: int = 0      # those on TCP with CLAN at one end at least
    ring_bytes: int = 0   # sent through shared memory, both directions
    tcp_bytes: int = 0    # sent before the move

    def by_the_ring(self):
        # One of several may just have been opened: redis-benchmark asks for the configuration
        # first.
        may_wait = max((1 - ENOUGH) * (self.moved + self.unmoved), 1 if self.moved > 1 else 0)
        return (self.ring_bytes > 0 and self.unmoved <= may_wait and
                self.ring_bytes >= ENOUGH * (self.ring_bytes + self.tcp_bytes))

    def text(self):
        share = 100 * self.ring_bytes / max(self.ring_bytes + self.tcp_bytes, 1)
        every = self.moved + self.unmoved
        return f"{self.moved} of {every} connections moved, {share:.0f} % of their bytes"


def connections(clan, *arguments):
    done = subprocess.run([clan, "stat", "--json", *map(str, arguments)], capture_output=True,
                          text=True, stdin=subprocess.DEVNULL, timeout=60, check=False)
    # A process that was asked for may be gone: that is said by the exit code, the list is complete.
    return json.loads(done.stdout or "[]")


def look(clan, port):
    """All connections that have `port` at one end."""
    seen = Seen()
    for connection in connections(clan, "--all"):
        # other faces of CLAN have connections without ports
        ends = [connection.get(end, {}) for end in ("local", "peer")]
        if port not in [end.get("port") for end in ends]:
            continue
        if connection["path"] != "shm":
            seen.unmoved += 1
            continue
        seen.moved += 1
        seen.ring_bytes += sum(end["bytes"] for end in ends)
        seen.tcp_bytes += sum(end["tcp_bytes"] for end in ends)
    return seen


def best(looks):
    """Returns the largest of several samples of one run: a program may open new connections on its
    way."""
    return max(looks, key=lambda seen: (seen.by_the_ring(), seen.ring_bytes), default=Seen())
