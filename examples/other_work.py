"""How much of the processors other work had while something was measured: beside it no figure is
what it would be alone."""

import os
import resource
import time
from pathlib import Path

MUCH = 0.2  # processors: what is measured beside more than this is measured again, and marked
TICKS = os.sysconf("SC_CLK_TCK")


def busy():
    """Seconds that the processors have been at work, or taken away by the host."""
    user, nice, system, _, _, irq, soft, stolen = map(
        int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + soft + stolen) / TICKS


def own(pids):
    """Seconds of CPU time of this process, of children that have ended, and of `pids`."""
    spent = sum(sum(resource.getrusage(who)[:2])
                for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    for pid in pids:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        spent += sum(map(int, words[11:13])) / TICKS
    return spent


def undisturbed(measure, pids=(), tries=3):
    """What measure() answers, by itself or, of so many tries, beside as little else as there was;
    and what to say of that beside its figures."""
    best, least = None, float("inf")
    for _ in range(tries):
        begin, busy_before, own_before = time.monotonic(), busy(), own(pids)
        answer = measure()
        others = busy() - busy_before - (own(pids) - own_before)
        others /= time.monotonic() - begin
        if others < least:
            best, least = answer, others
        if others <= MUCH:
            return best, ""
    return best, f"  busy: {least:.1f} processors for others"
