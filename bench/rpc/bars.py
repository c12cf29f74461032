"""The rows and bars of `clan bench rpc`. Figures are {(kind, bytes): {column: samples}}, a sample
(minimum, median, CPU time), in turns."""

import statistics

import report

BULK = 65536  # from here on a call is a throughput: its CPU time is shown


def named(kind, size):
    return f"{kind} " + ("null" if size == 0 else f"{size} B" if size < BULK
                         else f"{size >> 10} KB")


def rows(figures):
    """A row for each point and column, microseconds a call."""
    return [report.Row(kind, name, size, statistics.median(s[1] for s in samples), "us",
                       low=min(s[0] for s in samples), text=named(kind, size), samples=samples,
                       cpu=statistics.median(s[2] for s in samples) if size >= BULK else None)
            for (kind, size), columns in figures.items() for name, samples in columns.items()
            if samples]


def ratio(figures, point, slow, fast):
    """How many times as long `slow` takes, the median of the turns; None: not measured."""
    at = figures.get(point, {})
    pairs = list(zip(at.get(slow, []), at.get(fast, [])))
    return statistics.median(a[1] / b[1] for a, b in pairs) if pairs else None


def median(figures, point, name):
    samples = figures.get(point, {}).get(name)
    return statistics.median(s[1] for s in samples) if samples else None


def limits(apart):
    """Lines of two cores that are bound by the cache line's round trip."""
    trip = median(apart, ("cacheline", 0), "ShrimpRPC")
    own, shrimp = (median(apart, ("echo", 0), name) for name in ("vRPC", "ShrimpRPC"))
    if trip and own:
        yield report.at_least(f"vRPC null, us (cache-line round trip {trip:.3f})", own,
                              0.3 + 3 * trip, most=True)
    if trip and shrimp:
        yield report.at_least("ShrimpRPC null in cache-line round trips", shrimp / trip, 3,
                              most=True)


def lines(apart, together, beside, crowd):
    """What is wanted of two cores, of one, of one beside a computation, and of the crowd's
    {column: [calls/s]}."""
    dear = (median(apart, ("echo", 0), "tcp") or 0) > 20
    bars = [
        ("vRPC null against tcp", apart, 0, "tcp", "vRPC", 40 if dear else 12),
        ("vRPC 3 KB in and out against tcp", apart, 3072, "tcp", "vRPC", 25 if dear else 8),
        ("vRPC 1 MB in and out against tcp", apart, 1 << 20, "tcp", "vRPC", 3),
        ("vRPC null against the interposer", apart, 0, "interposer", "vRPC", 1.5),
        *((f"ShrimpRPC against vRPC, {size} B", apart, size, "vRPC", "ShrimpRPC", 2)
          for size in (0, 8, 64, 256)),
        ("one core, null, against local", together, 0, "local", "vRPC", 1),
        ("one core beside a computation, null, against local", beside, 0, "local", "vRPC", 1)
    ]
    found = list(limits(apart))
    for text, figures, size, slow, fast, wanted in bars:
        value = ratio(figures, ("echo", size), slow, fast)
        if value is not None:
            found.append(report.at_least(text, value, wanted))
    if "vRPC" in crowd and "tcp" in crowd:
        found.append(report.at_least(
            "8 clients, calls/s against tcp",
            statistics.median(crowd["vRPC"]) / statistics.median(crowd["tcp"]), 3))
    return found
