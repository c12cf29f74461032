#!/usr/bin/env python3
"""The same random socket calls with and without the interposer say the same.

    differential.py PROGRAM LIB [--seeds A-B,C] [--steps S] [--jobs N] [--sides both,server,client]
                    [--move-at-once] [--sets] [--linked PROGRAM2] [--only-ends]

PROGRAM is interpose-differential, LIB the library to preload ("none" compares PROGRAM with itself).
Each seed runs without the library and then once for each of --sides: `both` ends under it, or only
that end (the other has CLAN_DISABLE=1). With --sets it is the threads that share epoll sets that
run (differential_sets.cc), in one process. The first difference is printed with what came before
it. Exit code 1 when there is one, or when nothing of all seeds went by shared memory. Nothing of
one seed may do so: its processes may share all connections that are used enough.

With --linked it is PROGRAM2 that runs instead of PROGRAM with a library: it has the interposer
linked in, as builds with sanitizers have it (linked). With --only-ends it has to end
well, whatever it says: instrumented threads may get events in another order.

With --move-at-once connections move at their first call (CLAN_TEST_MOVE), not when they have been
used.
"""

import argparse
import concurrent.futures
import os
import signal
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

CONTEXT = 12
SIDES = {"both": [], "server": ["--disable-client"], "client": ["--disable-server"]}


def transcript(options, seed, extra, program, library):
    """(lines, how it ended, bytes by shared memory); the second is None when it ended well."""
    environment = {k: v for k, v in os.environ.items()
                   if k not in ("LD_PRELOAD", "DIFFERENTIAL_PRELOAD") and not k.startswith("CLAN_")}
    if library:
        environment["LD_PRELOAD"] = library
    if options.move_at_once:
        # stock, too: what a step says of the order depends on what may move
        environment["CLAN_TEST_MOVE"] = "1"
    with tempfile.NamedTemporaryFile(prefix="clan-differential-") as count:
        count.write(bytes(24))
        count.flush()
        environment["CLAN_TEST_COUNT"] = count.name
        lines, ended = run(
            [program, str(seed), str(options.steps), *extra], environment, options.timeout)
        return lines, ended, sum(struct.unpack("<QQQ", Path(count.name).read_bytes())[1:])


def run(command, environment, timeout):
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               start_new_session=True)
    try:
        out, _ = process.communicate(timeout=timeout)
        ended = None if process.returncode == 0 else f"exit code {process.returncode}"
    except subprocess.TimeoutExpired:
        # The actors have asked to die with their director; the group makes sure of it.
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        ended = f"still running after {timeout} s"
    return out.decode(errors="replace").splitlines(), ended


def difference(stock, clan):
    """Index of the first line in which they differ, None when there is none."""
    for i, (a, b) in enumerate(zip(stock, clan)):
        if a != b:
            return i
    return None if len(stock) == len(clan) else min(len(stock), len(clan))


def compare(options, seed):
    """Text about the first difference of this seed, or an empty one; how many lines were compared;
    and how many bytes went by shared memory."""
    library = None if options.lib == "none" else os.path.abspath(options.lib)
    program = options.linked or options.program
    lines = moved = 0
    sets = ["--sets"] if options.sets else []
    stock, ended, _ = transcript(options, seed, sets, options.program, None)
    if ended:
        return f"seed {seed}: the stock run fails: {ended}\n  " + "\n  ".join(
            stock[-CONTEXT:]), 0, 0
    for side in options.sides:
        for _ in range(options.tries):
            clan, ended, count = transcript(
                options, seed, [*sets, *SIDES[side]], program, library)
            lines += len(clan)
            moved += count
            at = None if options.only_ends else difference(stock, clan)
            same = at is None and not ended
            if same:
                break
        if same:
            continue
        again = " ".join([
            f"LD_PRELOAD={library}" if library else "", "CLAN_TEST_MOVE=1" * options.move_at_once,
            program,
            str(seed),
            str(options.steps), *sets, *SIDES[side]
        ]).strip()
        text = [f"seed {seed}, under the library: {side} ({again})"]
        if ended:
            text.append(f"  ended with {ended}")
        if at is None:
            at = len(stock)
        text += ["    " + line for line in stock[max(0, at - CONTEXT):at]]
        text += ["  stock: " + line for line in stock[at:at + 2]]
        text += ["  clan:  " + line for line in clan[at:at + 2]]
        return "\n".join(text), lines, moved
    return "", lines, moved


def seeds_of(text):
    seeds = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("lib")
    parser.add_argument("--seeds", type=seeds_of, default=seeds_of("1-20"), metavar="A-B,C")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one run")
    parser.add_argument("--sides", type=lambda text: text.split(","), default=list(SIDES))
    parser.add_argument("--move-at-once", action="store_true",
                        help="connections move at their first call")
    parser.add_argument("--sets", action="store_true",
                        help="threads that share epoll sets, in one process")
    parser.add_argument("--tries", type=int, default=1,
                        help="so often a seed may differ before it is reported")
    parser.add_argument("--linked", type=os.path.abspath, metavar="PROGRAM2",
                        help="has the interposer linked in; LIB is none")
    parser.add_argument("--only-ends", action="store_true", help="compare nothing")
    parser.add_argument("--keep-going", action="store_true", help="report every seed that differs")
    options = parser.parse_args()
    options.program = os.path.abspath(options.program)
    if options.sets:
        options.sides = ["both"]
    if unknown := set(options.sides) - set(SIDES):
        parser.error(f"no such sides: {', '.join(sorted(unknown))}")
    if options.lib != "none" and not Path(options.lib).is_file():
        parser.error(f"no library {options.lib}")

    bad = lines = moved = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        pending = {seed: pool.submit(compare, options, seed) for seed in options.seeds}
        for seed, future in pending.items():
            text, n, count = future.result()
            lines += n
            moved += count
            if not text:
                continue
            bad += 1
            print(text, flush=True)
            if not options.keep_going:
                pool.shutdown(cancel_futures=True)
                break
    accelerated = options.linked or options.lib != "none"
    if bad == 0 and accelerated and "both" in options.sides and moved == 0:
        bad = 1
        print("nothing went by shared memory")
    if bad == 0:
        print(
            f"{len(options.seeds)} seeds, {lines} lines: no difference; {moved / 1e6:.1f} MB by "
            "shared memory"
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
