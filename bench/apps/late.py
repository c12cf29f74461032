"""How late a plain descriptor is reported in a set with a connection that has moved."""

import statistics

import counters
import programs
from table import Line

LATER_US = 2


def late_run(session, under):
    """(median time that a byte lies in a pipe, what the counters saw)"""
    port = session.port()
    text, seen = session.run(programs.LOAD, "late", port, session.seconds, under=under, port=port,
                             looks=[0.5 * session.seconds, 0.8 * session.seconds],
                             limit=20 + 5 * session.seconds)
    return programs.number(r"p50 ([\d.]+)", text, "clan-app-load"), counters.best(seen)


def late_pipe(session, pairs):
    samples, looks = {False: [], True: []}, []
    for pair in range(pairs):
        for under in (False, True) if pair % 2 == 0 else (True, False):
            median, seen = late_run(session, under)
            samples[under].append(median)
            if under:
                looks.append(seen)
    missing = [seen for seen in looks if not seen.by_the_ring()]
    stock, clan = (statistics.median(samples[under]) for under in (False, True))
    verdict = "not judged" if missing else "met" if clan <= stock + LATER_US else "missed"
    return [
        Line("late", "a pipe beside a connection, told of by epoll after, p50", "us", stock, clan,
             low=min(samples[True]), high=max(samples[True]),
             wanted=f"at most stock + {LATER_US}", verdict=verdict,
             path=f"not by the ring: {missing[0].text()}" if missing else "ring", samples={
                 "stock": samples[False], "clan": samples[True]
             })
    ]
