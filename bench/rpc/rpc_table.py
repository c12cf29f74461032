"""What `clan bench rpc` prints: tables, and the bars."""

import statistics

BULK = 65536  # from here on a call is a throughput: CPU time stands below it


def shown(samples):
    if not samples:
        return "-"
    least, median = min(s[0] for s in samples), statistics.median(s[1] for s in samples)
    return f"{least:.2f} / {median:.2f}"


def cpu_shown(samples):
    """Older results have no CPU time."""
    told = [s[2] for s in samples if len(s) > 2]
    return f"{statistics.median(told):.2f}" if told else "-"


def ratio(figures, point, slow, fast):
    """How many times as long `slow` takes, the median of the turns; None: not measured."""
    pairs = list(zip(figures[point].get(slow, []), figures[point].get(fast, [])))
    return statistics.median(a[1] / b[1] for a, b in pairs) if pairs else None


def table(title, figures, names):
    lines = [f"| {title} | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for (kind, size), samples in figures.items():
        if any(n in samples for n in names) and kind != "cacheline":
            what = "null" if size == 0 else f"{size} B" if size < BULK else f"{size >> 10} KB"
            rows = {f"{kind} {what}": shown}
            if size >= BULK:
                rows[f"{kind} {what}, CPU time"] = cpu_shown
            for text, cell in rows.items():
                lines.append(f"| {text} | " + " | ".join(cell(samples.get(n, [])) for n in names) +
                             " |")
    return "\n".join(lines)


def crowd_line(crowd, cpu):
    return "8 clients, calls/s (CPU us a call, of all processes): " + ", ".join(
        f"{n} {statistics.median(rates):.0f} ({statistics.median(cpu[n]):.2f})"
        for n, rates in crowd.items())


def bars(apart, together, crowd):
    """(text, figure, wanted, met) of each bar of two cores, of one, and of the crowd."""
    found = []

    def at_least(text, value, wanted):
        if value is not None:
            found.append((text, f"{value:.2f}", f"at least {wanted:g}", value >= wanted))

    line = apart.get(("cacheline", 0), {}).get("ShrimpRPC", [])
    if line:
        trip = statistics.median(s[1] for s in line)
        vrpc = apart["echo", 0].get("vRPC")
        if vrpc:
            most, own = 0.3 + 3 * trip, statistics.median(s[1] for s in vrpc)
            found.append((f"vRPC null, us (cache-line round trip {trip:.3f})", f"{own:.3f}",
                          f"at most {most:.3f}", own <= most))
        shrimp = apart["echo", 0].get("ShrimpRPC")
        if shrimp:
            own = statistics.median(s[1] for s in shrimp) / trip
            found.append(
                ("ShrimpRPC null in cache-line round trips", f"{own:.2f}", "at most 3", own <= 3))
    if apart:
        dear = statistics.median(s[1] for s in apart["echo", 0].get("tcp", [(0, 0)])) > 20
        at_least("vRPC null against tcp", ratio(apart, ("echo", 0), "tcp", "vRPC"),
                 40 if dear else 12)
        at_least("vRPC 3 KB in and out against tcp", ratio(apart, ("echo", 3072), "tcp", "vRPC"),
                 25 if dear else 8)
        at_least("vRPC 1 MB in and out against tcp", ratio(apart, ("echo", 1 << 20), "tcp", "vRPC"),
                 3)
        at_least("vRPC null against the interposer", ratio(apart, ("echo", 0), "interposer",
                                                           "vRPC"), 1.5)
        for size in (0, 8, 64, 256):
            at_least(f"ShrimpRPC against vRPC, {size} B",
                     ratio(apart, ("echo", size), "vRPC", "ShrimpRPC"), 2)
    if together:
        at_least("one core, null, against local", ratio(together, ("echo", 0), "local", "vRPC"), 1)
    if crowd and "vRPC" in crowd and "tcp" in crowd:
        at_least("8 clients, calls/s against tcp",
                 statistics.median(crowd["vRPC"]) / statistics.median(crowd["tcp"]), 3)
    return found
