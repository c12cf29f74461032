"""What connections cost that have moved and are not used: memory, the event loop's time, CPU and
wake-ups; and how late a plain descriptor is reported in a set with one that is."""

import contextlib
import os
import select
import statistics
import subprocess
import time
from pathlib import Path

import processes
import programs
from processes import Failed
from table import Bar, Line, Row, judge

CONNECTIONS = 10_000
BYTES_WANTED = 10 * 1024     # per connection and side
BUSY_CONNECTIONS = 50
# An idle redis wakes up by itself ten times a second; nothing may come on top of that but chance.
MORE_WAKEUPS = 2
MORE_CPU_MS = 1.0
SILENT_CONNECTIONS = 100        # that have carried 4 MB each
SILENCE_S = 6
MORE_AFTER_SILENCE_US = 20
BYTES_OF_SILENT = 16 * 1024     # of shared memory, for both sides together
LATER_US = 2


def holder(session, server, count, under):
    """A client with `count` connections that have been used and are not any more."""
    return load_of_ours(session, 30 + count / 100, "hold", server.port, count, under=under)


@contextlib.contextmanager
def load_of_ours(session, limit, *words, under):
    """clan-app-load, when it has said that its connections are ready."""
    process = session.start(programs.LOAD, *words, core=1, under=under, stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        if not select.select([process.stdout], [], [], limit)[0]:
            raise Failed(f"its connections were not opened and used within {limit:.0f} s: {words}")
        if not process.stdout.readline().startswith(b"ready"):
            raise Failed(f"clan-app-load {words}: {process.stderr.read()[-300:].decode()}")
        yield process
    finally:
        process.kill()
        process.wait(10)


def status(pid, field):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise Failed(f"/proc/{pid}/status has no {field}")


def shared_memory_bytes(pid):
    """Pages in the memfds of this process's connections."""
    total, inodes = 0, set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        with contextlib.suppress(OSError):
            if os.readlink(path).startswith("/memfd:clan-pipe"):
                about = os.stat(path)
                if about.st_ino not in inodes:
                    inodes.add(about.st_ino)
                    total += about.st_blocks * 512
    return total


def memory(pid):
    """(private resident bytes, page tables)"""
    return 1024 * status(pid, "RssAnon"), 1024 * status(pid, "VmPTE")


def settle(pid):
    """redis gives back what it has allocated for clients that are idle, in steps of some
    seconds."""
    last = memory(pid)[0]
    for _ in range(6):
        time.sleep(3)
        now = memory(pid)[0]
        if abs(now - last) < 1 << 20:
            break
        last = now


class Growth:
    """The memory per connection by which a server grows while connections come."""

    def __init__(self, server, client, count, before):
        after = memory(server.pid)
        idle_client = memory(client.pid)
        self.server = (after[0] - before[0]) / count
        self.client = idle_client[0] / count
        self.shared = shared_memory_bytes(server.pid) / count
        self.tables = max(after[1] - before[1], 0) / count, idle_client[1] / count


def connections_by_limit():
    """How many, and why not more."""
    # Redis keeps some for itself. The library takes no more of them than the upper half, and stays
    # away from those in use.
    limit = processes.raise_descriptor_limit(2 * CONNECTIONS + 1000)
    count = min(CONNECTIONS, limit // 2 - limit // 64 - 100)
    return count, "" if count == CONNECTIONS else f"RLIMIT_NOFILE of {limit} allows {count}"


def serve_for_many(session, under, count):
    return programs.serve_redis(session, under, "--maxclients", 2 * count + 100, "--tcp-backlog",
                                511)


def idle_connections(session, pairs):
    """10,000 connections: their memory, and whether an event loop notices them."""
    count, note = connections_by_limit()
    row = Row("idle-connections", None, programs.redis_load(1, 1), [])
    servers, growth = {}, {}
    with contextlib.ExitStack() as stack:
        for under in (False, True):
            servers[under, 0] = serve_for_many(session, under, count)
            crowd = servers[under, count] = serve_for_many(session, under, count)
            before = memory(crowd.pid)
            client = stack.enter_context(holder(session, crowd, count, under))
            settle(crowd.pid)
            growth[under] = Growth(crowd, client, count, before)
            if under:
                seen = processes.look(session.clan, crowd.port)
        samples = {"stock": [], "clan": [], "stock, idle": [], "clan, idle": []}
        for pair in range(pairs):
            names = [("stock", False, 0), ("stock, idle", False, count), ("clan", True, 0),
                     ("clan, idle", True, count)]
            for name, under, idle in names if pair % 2 == 0 else reversed(names):
                # The others would use the core, too.
                for key, server in servers.items():
                    server.pause(key != (under, idle))
                figures, _ = row.load(session, servers[under, idle], under, 1)
                samples[name].append(figures)
    counts = seen.moved >= 0.99 * count
    path = "ring" if counts else f"not by the ring: {seen.moved} of {count} connections moved"
    lines = [memory_line(side, growth, count, note, path, counts) for side in ("server", "client")]
    for key in ("GET", "SET"):
        bar = Bar(f"redis {key} -c 1 beside {count} idle connections, against none", 0.9, key=key,
                  variant="clan, idle", base="clan")
        stock = judge(row, Bar("", 0, key=key, variant="stock, idle"), samples, "", True)
        note = f"stock TCP: {stock.ratio:.2f}; both columns CLAN"
        lines.append(judge(row, bar, samples, path, counts, note))
    return lines


def memory_line(side, growth, count, note, path, counts):
    """CLAN's part: what a process grows by more than it does on stock TCP, and half of the shared
    pages."""
    stock, clan = growth[False], growth[True]
    anonymous = getattr(clan, side) - getattr(stock, side)
    each = max(anonymous, 0) + clan.shared / 2  # below 0: redis happened to give back more
    which = ("server", "client").index(side)
    tables = clan.tables[which] - stock.tables[which]
    text = (f"{anonymous:.0f} B private, {clan.shared:.0f} B shared by the two sides; besides, "
            f"page tables {tables:.0f} B")
    verdict = ("met" if each <= BYTES_WANTED else "missed") if counts else "not judged"
    return Line("idle-connections",
                f"memory of one of {count} idle connections, {side}, beyond stock's", "B",
                getattr(stock, side), each, wanted=f"at most {BYTES_WANTED}", verdict=verdict,
                path=path, note="; ".join(filter(None, (text, note))))


def at_most(row, text, unit, stock, clan, limit, wanted, not_by_the_ring, note=""):
    """The line of samples whose median is `wanted` to be at most `limit`; not judged if it was not
    by the ring."""
    median = statistics.median(clan)
    verdict = "not judged" if not_by_the_ring else "met" if median <= limit else "missed"
    path = f"not by the ring: {not_by_the_ring[0].text()}" if not_by_the_ring else "ring"
    return Line(row, text, unit, statistics.median(stock), median, low=min(clan), high=max(clan),
                wanted=wanted, verdict=verdict, path=path, note=note,
                samples={"stock": stock, "clan": clan})


def in_turns(pairs, run):
    """What `run(under)` answers, (figures, what the counters saw): {under: figures}, and what was
    seen under CLAN that was not by the ring."""
    samples, looks = {False: [], True: []}, []
    for pair in range(pairs):
        for under in (False, True) if pair % 2 == 0 else (True, False):
            figures, seen = run(under)
            samples[under].append(figures)
            if under:
                looks.append(seen)
    return samples, [seen for seen in looks if not seen.by_the_ring()]


def spent(pid):
    """(CPU time in ms, times it went to sleep by itself) of all threads, ever."""
    cpu_ns = sleeps = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            cpu_ns += int((task / "schedstat").read_text().split()[0])
            for line in (task / "status").read_text().splitlines():
                if line.startswith("voluntary_ctxt_switches"):
                    sleeps += int(line.split()[1])
    return cpu_ns / 1e6, sleeps


def idle_processes(session, pairs):
    """A redis with 50 connections that have moved, and their client, both idle: CPU time and
    wake-ups."""
    window = 5 if session.seconds > 1 else 2
    servers = {under: programs.serve_redis(session, under) for under in (False, True)}
    gained = {}  # (side, under) -> [(cpu ms, wake-ups)] per window
    with contextlib.ExitStack() as stack:
        pids = {}
        for under, server in servers.items():
            client = stack.enter_context(holder(session, server, BUSY_CONNECTIONS, under))
            pids["server", under], pids["client", under] = server.pid, client.pid
        seen = processes.look(session.clan, servers[True].port)
        time.sleep(1)
        for _ in range(pairs):
            before = {key: spent(pid) for key, pid in pids.items()}
            time.sleep(window)  # stock and CLAN in the same window
            for key, pid in pids.items():
                now = spent(pid)
                gained.setdefault(key, []).append([now[i] - before[key][i] for i in (0, 1)])
    missing = [] if seen.by_the_ring() else [seen]
    lines = []
    for side in ("server", "client"):
        for which, (what, unit, more) in enumerate((("CPU time", "ms", MORE_CPU_MS),
                                                    ("wake-ups", "times", MORE_WAKEUPS))):
            stock, clan = ([one[which] for one in gained[side, under]] for under in (False, True))
            lines.append(at_most(
                "idle", f"idle {side} with {BUSY_CONNECTIONS} connections, {what} in {window} s",
                unit, stock, clan, statistics.median(stock) + more, f"at most stock + {more:g}",
                missing, "redis has timers of its own" if side == "server" else ""))
    return lines


def silent_run(session, server, under):
    """What clan-app-load measured and the bytes of shared memory of a connection at the end of the
    silence, and what the counters saw."""
    with load_of_ours(session, 90, "silence", server.port, SILENT_CONNECTIONS, SILENCE_S,
                      under=under) as process:
        time.sleep(SILENCE_S - 1)
        seen = processes.look(session.clan, server.port) if under else None
        left = shared_memory_bytes(server.pid) / SILENT_CONNECTIONS
        text = process.stdout.read().decode() + process.stderr.read().decode()
    return {key: programs.number(rf"{key} ([\d.]+)", text, "clan-app-load")
            for key in ("first", "first90", "second")} | {"left": left}, seen


def after_silence(session, pairs):
    """Connections that have carried 4 MB and fell silent: what is left of their memory, and their
    first round trip."""
    servers = {under: programs.serve_redis(session, under) for under in (False, True)}
    samples, missing = in_turns(pairs, lambda under: silent_run(session, servers[under], under))

    def values(key, under):
        return [figures[key] for figures in samples[under]]

    def medians(key):
        stock, clan = (statistics.median(values(key, under)) for under in (False, True))
        return f"{stock:.0f} and {clan:.0f}"

    what = f"a connection that carried 4 MB, {SILENCE_S} s after"
    stock = values("first", False)
    return [
        at_most("after-silence", f"first round trip of {what}", "us", stock, values("first", True),
                statistics.median(stock) + MORE_AFTER_SILENCE_US,
                f"at most stock + {MORE_AFTER_SILENCE_US}", missing,
                f"nine of ten within {medians('first90')}; the one after: {medians('second')}"),
        at_most("after-silence", f"shared memory of {what}", "B", [0.0], values("left", True),
                BYTES_OF_SILENT, f"at most {BYTES_OF_SILENT}", missing,
                f"{SILENT_CONNECTIONS} connections, both sides together")
    ]


def late_run(session, under):
    """(median time that a byte lies in a pipe, what the counters saw)"""
    port = session.port()
    text, seen = session.run(programs.LOAD, "late", port, session.seconds, under=under, port=port,
                             looks=[0.5 * session.seconds, 0.8 * session.seconds],
                             limit=20 + 5 * session.seconds)
    return programs.number(r"p50 ([\d.]+)", text, "clan-app-load"), processes.best(seen)


def late_pipe(session, pairs):
    samples, missing = in_turns(pairs, lambda under: late_run(session, under))
    stock = samples[False]
    return [at_most("late", "a pipe beside a connection, told of by epoll after, p50", "us", stock,
                    samples[True], statistics.median(stock) + LATER_US,
                    f"at most stock + {LATER_US}", missing)]
