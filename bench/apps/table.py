"""The table: what is run, and how many times as good as stock TCP it has to be.

A row runs its variants in turns, so that whatever else the machine does falls on all of them. A bar
compares one variant with another, pair by pair; the median of the ratios is the figure.
"""

import statistics
from dataclasses import dataclass, field
from functools import partial

import processes
import programs
from processes import SOCKMAP, Failed, Share

# How each is served, and a load of one client.
SOCKPERF = (programs.serve_sockperf, programs.sockperf_ping_pong)
MEMCACHED = (programs.serve_memcached, programs.memcached_load(1))
REDIS = (programs.serve_redis, programs.redis_load(1, 1))
REDIS_50 = (programs.serve_redis, programs.redis_load(50, 1))
NGINX = (programs.serve_nginx, programs.wrk("1k", 1))

# under what: (server, client)
STOCK, BOTH, SHORTCUT = (False, False), (True, True), (SOCKMAP, SOCKMAP)


@dataclass
class Bar:
    text: str
    limit: float          # times as good as the base, at least
    key: str = "rate"
    unit: str = "requests/s"
    variant: str = "clan"
    base: str = "stock"
    base_key: str = ""    # another figure of the base than `key`
    less_is_better: bool = False


@dataclass
class Row:
    name: str
    serve: object
    load: object
    bars: list
    variants: dict = field(default_factory=lambda: {"stock": STOCK, "clan": BOTH})
    client_core: object = 1   # index into the cores; None: all of them
    path: str = "ring"        # where the bytes have to go: ring, tcp, or tcp only
    beside: int = 0           # endless computations on each core
    share: float = None       # of a core, that the servers get together
    pinned: object = None     # serves on the first core, for a variant `pinned` beside this row's


@dataclass
class Line:
    """A figure of the results."""
    row: str
    text: str
    unit: str
    stock: float
    clan: float
    ratio: float = None       # None: not a ratio; `clan` itself is judged
    low: float = None
    high: float = None
    wanted: str = ""
    verdict: str = ""
    path: str = ""            # what the counters say
    note: str = ""
    samples: dict = field(default_factory=dict)
    sockmap: float = None     # the same with the kernel's own shortcut
    ahead: float = None       # of which CLAN is so many times
    busy: list = None         # processors that server and load had: with stock, with CLAN


def latency(limit, tail_limit, text):
    common = {"unit": "us", "less_is_better": True}
    bars = [Bar(f"{text}, p50", limit, key="p50", **common)]
    if tail_limit:
        bars.append(
            Bar(f"{text}, p99 against stock's p50", tail_limit, key="p99", base_key="p50",
                **common))
    return bars


# Not above stock's by more than a tenth.
TAIL = {"limit": 0.91, "unit": "us", "less_is_better": True}


def redis_bars(limit, text, tails=False):
    return ([Bar(f"redis {test} {text}", limit, key=test) for test in ("GET", "SET")] + [
        Bar(f"redis {test} {text}, p99", key=f"{test} p99", **TAIL)
        for test in ("GET", "SET") if tails
    ])


def one_sided(text, keys):
    return [Bar(f"{text}{' ' + key if key != 'rate' else ''}, {side} under CLAN", 0.99, key=key,
                variant=side) for side in ("only server", "only client") for key in keys]


def busy(beside):
    """Rows beside endless computations on each core."""
    text = f"beside {beside} computation{'s' if beside > 1 else ''} a core"
    trips, nginx = f"sockperf ping-pong 64 B {text}", "nginx 1 KB, {} -c1 " + text
    rows = [
        Row("sockperf", *SOCKPERF, [*latency(0.95, None, trips),
                                    Bar(f"{trips}, p99", key="p99", **TAIL)]),
        Row("memcached-c1", *MEMCACHED, [Bar(f"memcached get 100 B, 1 connection {text}", 0.95)]),
        Row("redis-c1", *REDIS, redis_bars(0.95, f"-c 1 {text}", True)),
        Row("redis-c50", *REDIS_50, redis_bars(0.95, f"-c 50 {text}", True)),
        Row("nginx-c1", programs.serve_nginx, programs.wrk_and_h2load("1k"), [
            Bar(nginx.format("wrk"), 0.95),
            Bar(f"{nginx.format('h2load')}, p99", key="h2load p99", **TAIL)]),
        at_rate(1000, 1.2, f" {text}"),
        chain(text, 0.95, True),
    ]
    for row in rows:
        row.name, row.beside = f"{row.name}-beside-{beside}", beside
    return rows


def chain(text, limit, tail=False):
    what = f"wrk -c1, haproxy, nginx 1 KB, {text}"
    load = programs.wrk_and_h2load("1k") if tail else programs.wrk("1k", 1)
    tails = [Bar(f"{what.replace('wrk', 'h2load')}, p99", key="h2load p99", **TAIL)] if tail else []
    return Row("chain", programs.serve_chain, load, [Bar(what, limit), *tails], client_core=None)


def unpinned(name, serve, load, bars, half):
    """Wherever the scheduler has them. `half`: not below half of what CLAN reaches pinned to two
    cores, by this figure."""
    half.variant, half.base, half.limit = "clan", "pinned", 0.5
    return Row(f"{name}-unpinned", partial(serve, core=None), load, [*bars, half],
               client_core=None, pinned=serve)


def half_a_core(name, serve, load, bars):
    """The servers get half the time of a processor, as a container with cpu.max does."""
    return Row(f"{name}-half-a-core", serve, load, bars, share=0.5)


def at_rate(rate, cpu, beside=""):
    common = {"unit": "us", "less_is_better": True}
    text = f"redis PING, {rate:,}/s{beside}"
    p50, p99 = (0.95, TAIL["limit"]) if beside else (1, 1)
    bars = [
        Bar(f"{text}, time of the processors", round(1 / cpu, 2), key="cpu", **common),
        Bar(f"{text}, p50", p50, key="p50", **common)
    ]
    if rate >= 100:  # else there are too few for a tail
        bars.append(Bar(f"{text}, p99", p99, key="p99", **common))
    return Row(f"redis-rate-{rate}", programs.serve_redis, programs.redis_at_rate(rate), bars)


ONE_SIDED = {"stock": STOCK, "only server": (True, False), "only client": (False, True)}

ROWS = [
    Row("sockperf", *SOCKPERF, latency(40, 1, "sockperf ping-pong 64 B, two cores")),
    Row("sockperf-one-core", *SOCKPERF,
        latency(1, None, "sockperf ping-pong 64 B, one core (aim: 2)"), client_core=0),
    Row("sockperf-throughput", programs.serve_sockperf, programs.sockperf_throughput,
        [Bar("sockperf throughput 64 B", 5, unit="messages/s")]),
    Row("redis-c1", *REDIS, redis_bars(8, "-c 1 -P 1")),
    Row("redis-c50", *REDIS_50, redis_bars(3, "-c 50 -P 1")),
    Row("redis-c50-p16", programs.serve_redis, programs.redis_load(50, 16),
        redis_bars(1.5, "-c 50 -P 16")),
    Row("memcached", programs.serve_memcached, programs.memcached_load(50),
        [Bar("memcached get 100 B, 50 connections", 3)]),
    Row("nginx-c1", *NGINX, [Bar("nginx 1 KB keep-alive, wrk -c1", 4)]),
    Row("nginx-c64", programs.serve_nginx, programs.wrk("1k", 64),
        [Bar("nginx 1 KB keep-alive, wrk -c64", 1.5)]),
    Row("nginx-64k", programs.serve_nginx, programs.wrk("64k", 64),
        [Bar("nginx 64 KB keep-alive, wrk -c64", 1.5)]),
    Row("nginx-connections", programs.serve_nginx, programs.ab("1k", 8),
        [Bar("nginx 1 KB, a new connection per request, ab -c 8", 0.99)], path="tcp"),
    Row("iperf3", programs.serve_iperf3, programs.iperf3_load,
        [Bar("iperf3, one stream", 3.5, unit="GB/s")]),
    Row("pgbench-c1", programs.serve_postgres, programs.pgbench(1),
        [Bar("pgbench -S -M prepared -c 1", 1.4, unit="transactions/s")]),
    Row("pgbench-c8", programs.serve_postgres, programs.pgbench(8),
        [Bar("pgbench -S -M prepared -c 8", 1.25, unit="transactions/s")]),
    Row("one-sided-redis", *REDIS_50, one_sided("redis -c 50 -P 1", ("GET", "SET")),
        variants=ONE_SIDED, path="tcp only"),
    Row("one-sided-nginx", programs.serve_nginx, programs.wrk("1k", 64),
        one_sided("nginx 1 KB, wrk -c64", ("rate", )), variants=ONE_SIDED, path="tcp only"),
    Row("crowded", partial(programs.serve_redis, core=None), programs.redis_crowd(8),
        [Bar("8 redis-benchmark -c 1 and their server on two cores, GET", 1)], client_core=None),
    # Machines as they are: both ends on one core, anywhere, beside other work, and with little to
    # do.
    Row("memcached-one-core", *MEMCACHED,
        [Bar("memcached get 100 B, 1 connection, one core (aim: 1.5)", 1)], client_core=0),
    Row("redis-one-core", *REDIS, redis_bars(1, "-c 1, one core (aim: 1.5)"), client_core=0),
    Row("nginx-one-core", *NGINX, [Bar("nginx 1 KB, wrk -c1, one core (aim: 1.5)", 1)],
        client_core=0),
    unpinned("sockperf", *SOCKPERF, latency(1, None, "sockperf ping-pong 64 B, unpinned"),
             Bar("sockperf ping-pong 64 B, unpinned against pinned, p50", 0, "p50", "us",
                 less_is_better=True)),
    unpinned("memcached", *MEMCACHED, [Bar("memcached get 100 B, 1 connection, unpinned", 1)],
             Bar("memcached get 100 B, 1 connection, unpinned against pinned", 0)),
    unpinned("redis", *REDIS, redis_bars(1, "-c 1, unpinned"),
             Bar("redis GET -c 1, unpinned against pinned", 0, "GET")),
    unpinned("nginx", *NGINX, [Bar("nginx 1 KB, wrk -c1, unpinned", 1)],
             Bar("nginx 1 KB, wrk -c1, unpinned against pinned", 0)),
    chain("unpinned", 1),
    *busy(1),
    *busy(2),
    half_a_core("redis-c1", *REDIS, redis_bars(0.95, "-c 1, half a core for the server")),
    half_a_core("redis-c50", *REDIS_50, redis_bars(0.95, "-c 50, half a core for the server")),
    half_a_core("nginx-c1", *NGINX, [Bar("nginx 1 KB, wrk -c1, half a core for the server", 0.95)]),
    at_rate(10, 1.2),
    at_rate(100, 1.2),
    at_rate(1000, 1.2),
    at_rate(10_000, 1.5),
]


def path_text(row, looks):
    """(what the counters say, whether the bytes went where they have to)"""
    moved = [seen for seen in looks if seen.ring_bytes > 0]
    if row.path == "tcp only" and moved:
        return f"by the ring: {moved[0].text()}", False
    if row.path != "ring":
        # A connection that is closed after a request may have begun to move: that is allowed, and
        # said.
        return (f"moved in {len(moved)} of {len(looks)} runs"
                if moved else "tcp, as it should"), True
    for seen in looks:
        if not seen.by_the_ring():
            return f"not by the ring: {seen.text()}", False
    return "ring", True


def processors(samples, *variants):
    """What each had of them, or None where that is not known."""
    if not all("processors" in figures for variant in variants for figures in samples[variant]):
        return None
    return [statistics.median(figures["processors"] for figures in samples[variant])
            for variant in variants]


def judge(row, bar, samples, path, counts, note=""):
    """The line of one bar."""
    base = [figures[bar.base_key or bar.key] for figures in samples[bar.base]]
    mine = [figures[bar.key] for figures in samples[bar.variant]]
    ratios = [b / m if bar.less_is_better else m / b for b, m in zip(base, mine)]
    ratio = statistics.median(ratios)
    sockmap = ahead = None
    if SOCKMAP in samples and bar.variant == "clan":
        shortcut = [figures[bar.key] for figures in samples[SOCKMAP]]
        sockmap = statistics.median(shortcut)
        ahead = statistics.median(s / m if bar.less_is_better else m / s
                                  for s, m in zip(shortcut, mine))
    verdict = "met" if ratio >= bar.limit else "missed"
    return Line(row.name, bar.text,
                bar.unit, statistics.median(base), statistics.median(mine), ratio, min(ratios),
                max(ratios), f"at least {bar.limit:g}", verdict if counts else "not judged",
                path, note, {"stock": base, "clan": mine}, sockmap, ahead,
                processors(samples, bar.base, bar.variant))


def measure(row, session, pairs):
    """The lines of a row."""
    variants = dict(row.variants)
    if row.share is not None:
        session.share = Share(row.share)
    if session.redirection is not None and "clan" in variants:
        variants[SOCKMAP] = SHORTCUT
    if row.pinned is not None:
        variants["pinned"] = BOTH
    serves = {name: row.pinned if name == "pinned" else row.serve for name in variants}
    kinds = dict.fromkeys((serves[name], under) for name, (under, _) in variants.items())
    servers = {(serve, under): serve(session, under) for serve, under in kinds}
    samples, looks = {name: [] for name in variants}, []
    for core in range(len(session.cores)):
        for _ in range(row.beside):
            session.start("sh", "-c", "while :; do :; done", core=core)
    for pair in range(pairs):
        order = list(variants.items())
        for name, (server, client) in order if pair % 2 == 0 else reversed(order):
            to = servers[serves[name], server]
            try:
                core = 1 if name == "pinned" else row.client_core
                figures, seen = row.load(session, to, client, core)
            except Failed as failed:
                code = to.process.poll()
                ended = "" if code is None else f" (the server has ended with code {code})"
                raise Failed(f"{name}, run {pair + 1} of {pairs}: {failed}{ended}") from None
            if min(figures.values()) <= 0:
                raise Failed(f"{name}, run {pair + 1} of {pairs}: a figure of 0")
            samples[name].append(figures | {"processors": session.processors})
            if name not in ("stock", SOCKMAP):
                looks.append(processes.best(seen))
    path, counts = path_text(row, looks)
    note = {"pinned": "beside CLAN pinned to two cores, not stock"}
    return [judge(row, bar, samples, path, counts, note.get(bar.base, "")) for bar in row.bars]
