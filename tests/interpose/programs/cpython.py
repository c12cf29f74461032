#!/usr/bin/env python3
"""CPython's own tests of everything that uses sockets, stock and under the interposer.

    cpython.py [--preload LIB] [--move-at-once] [--quick] [TEST…]

Runs /usr/bin/python3.11 -m test (Debian's libpython3.11-testsuite), each test module stock and, at
the same time, with LIB preloaded, and compares test case by test case. Reported are, of cases that
pass stock:
  - those without a result under the interposer, in a run that crashed, hung or went on
  - those that are skipped under it, also when they are tried again by themselves
  - those that fail, also when they are tried twice more by themselves: some of these tests time
    out on a busy machine whatever is preloaded. One that passes then is flaky; more than MOST_FLAKY
    in all are reported.
Without --preload: stock only, says what passes. Exit code 1 when something is reported, 77 when
there is no such Python.

Most of these connections are short. With --move-at-once they move at their first call
(CLAN_TEST_MOVE), and a module of USES_TCP by which nothing went through shared memory is reported.
"""

import argparse
import contextlib
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PYTHON = "/usr/bin/python3.11"

# Module, how long it may take in seconds; the longest first. Those of --quick:
QUICK = {
    "test_socket": 300, "test_xmlrpc": 120, "test_selectors": 120, "test_ftplib": 120,
    "test_poll": 120, "test_select": 60, "test_epoll": 60, "test_socketserver": 60,
    "test_httplib": 120, "test_smtplib": 120, "test_telnetlib": 60
}
SLOW = {"test_ssl": 300, "test_asyncio": 600, "test_multiprocessing_fork": 600,
        "test_multiprocessing_forkserver": 600, "test_multiprocessing_spawn": 600}

# Those in which processes of one test talk by TCP.
USES_TCP = {
    "test_socket", "test_socketserver", "test_httplib", "test_ftplib", "test_smtplib",
    "test_xmlrpc", "test_ssl", "test_asyncio", "test_multiprocessing_fork",
    "test_multiprocessing_forkserver", "test_multiprocessing_spawn"
}

# "test_x (test.test_socket.GeneralModuleTests.test_x) ... ok", the result possibly after other
# output.
CASE = re.compile(r"^(\w+) \(([\w.<>]+)\)(?:\s*\[[^\]]*\])?(.*)$")
RESULT = re.compile(
    r"\b(ok|FAIL|ERROR|skipped|expected failure|unexpected success)\b(?: ['\"].*)?$")
VERDICT = re.compile(r"^(FAIL|ERROR|UNEXPECTED SUCCESS): (\w+) \(([\w.<>]+)\)")
LOST = {"FAIL", "ERROR", "unexpected success", "lost"}
MOST_FLAKY = 3
MOST_RETRIED = 20  # of one module
SIDE_BY_SIDE = 3  # modules: they sleep most of their time


class Library:
    """What is preloaded, and how many bytes went by it (CLAN_TEST_COUNT)."""

    def __init__(self, path, at_once, count):
        self.count = Path(count)
        self.environment = {"LD_PRELOAD": path, "CLAN_TEST_COUNT": count}
        if at_once:
            self.environment["CLAN_TEST_MOVE"] = "1"
        self.count.write_bytes(bytes(24))

    def moved(self):
        """Streams and bytes since the start."""
        streams, *counted = struct.unpack("<QQQ", self.count.read_bytes())
        return streams, sum(counted)


def run(module, library, limit, cases=()):
    """Output of one run of a module, or of some of its cases, and how it ended."""
    environment = {k: v for k, v in os.environ.items()
                   if k != "LD_PRELOAD" and not k.startswith(("PYTHON", "CLAN_"))}
    if library:
        environment |= library.environment
    command = [PYTHON, "-m", "test", "-v", "-u", "network", "-i", "*VSOCK*"]
    for case in cases:
        command += ["-m", case]
    directory = tempfile.mkdtemp(prefix="clan-cpython-")
    environment["TMPDIR"] = directory
    process = subprocess.Popen([*command, module], cwd=directory, env=environment,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, start_new_session=True)
    try:
        out, _ = process.communicate(timeout=limit)
        ended = f"exit code {process.returncode}"
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        ended = f"no end after {limit} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        shutil.rmtree(directory, ignore_errors=True)
    return out.decode(errors="replace"), ended


def timed(function, *arguments):
    """Its answer, and how many seconds it took."""
    begin = time.monotonic()
    answer = function(*arguments)
    return answer, time.monotonic() - begin


def results(text):
    """{case: result} of a verbose run. A case without a result is "lost"."""
    found = {}
    current = None
    for line in text.splitlines():
        if verdict := VERDICT.match(line):
            # A failed subtest or clean-up says so only here.
            found[full_name(verdict[2], verdict[3])] = "FAIL" if verdict[1] == "FAIL" else \
                "ERROR" if verdict[1] == "ERROR" else "unexpected success"
            continue
        rest = line
        if case := CASE.match(line):
            current = full_name(case[1], case[2])
            found.setdefault(current, "lost")
            rest = case[3]
        if current and (result := RESULT.search(rest)) and (" ... " in rest or result.start() == 0
                                                            or found[current] == "lost"):
            if found[current] == "lost":
                found[current] = result[1]
            current = None
    return found


def full_name(name, where):
    """setUpClass and the like have no case of their own: the class stands for them."""
    return where if where.endswith("." + name) else f"{where}.{name}"


def tell(counts):
    order = ["ok", "skipped", "expected failure", "FAIL", "ERROR", "lost"]
    return ", ".join(f"{counts[key]} {key}" for key in order if counts.get(key)) or "nothing ran"


def count(found):
    counts = {}
    for result in found.values():
        counts[result] = counts.get(result, 0) + 1
    return counts


def worse(stock, clan):
    """Cases that passed stock and did not under the interposer."""
    return [case for case, result in sorted(stock.items())
            if result not in LOST and (clan.get(case, "lost") in LOST or
                                       (clan[case] == "skipped" and result == "ok"))]


def fails_again(module, case, library, limit, stock_result):
    """Tried by itself: what it printed when it is as bad twice, and is not so stock; else empty."""
    good = {"ok", "expected failure"
            } if stock_result == "ok" else {"ok", "skipped", "expected failure"}
    for _ in range(2):
        out, how = run(module, library, limit, [case.rpartition(".")[2]])
        if results(out).get(case) in good and how == "exit code 0":
            return ""
    stock, _ = run(module, None, limit, [case.rpartition(".")[2]])
    if results(stock).get(case, "lost") not in good:
        return ""
    at = out.find("=" * 70)
    return out[at if at >= 0 else -2000:][:2500] or how


def crashed(how):
    """A run that was ended by a signal, or did not end."""
    return how.startswith(("exit code -", "no end"))


def test(module, limit, preload, at_once):
    """Whether nothing is worse (and `at_once`: bytes went by shared memory), the cases that were
    flaky, and what to print of it."""
    with tempfile.NamedTemporaryFile(prefix="clan-cpython-count-") as count_file:
        library = Library(preload, at_once, count_file.name) if preload else None
        said, flaky = [], []
        good = compare(module, limit, library, at_once, flaky, said.append)
        return good, flaky, "\n".join(said)


def compare(module, limit, library, at_once, flaky, say):
    """True when nothing is worse. Adds to `flaky`."""
    with ThreadPoolExecutor() as beside:  # most of these tests sleep: both runs at once
        under = beside.submit(timed, run, module, library, limit) if library else None
        (out, ended), took = timed(run, module, None, limit)
        clan_run = under.result() if under else None
    stock = results(out)
    line = f"{module}: stock {tell(count(stock))} ({ended}, {took:.0f} s)"
    if not library:
        passed = ended == "exit code 0" and count(stock).get("ok", 0) > 0
        say(("ok   " if passed else "FAIL ") + line)
        for case, result in stock.items():
            if result in LOST:
                say(f"       {case}: {result}")
        return passed
    (out, how), took = clan_run
    clan = results(out)
    connections, by_memory = library.moved()
    line += f"; under CLAN {tell(count(clan))} ({how}, {took:.0f} s, " \
            f"{by_memory} bytes of {connections} streams by shared memory)"
    if at_once and module in USES_TCP and by_memory == 0:
        say("FAIL " + line + ": nothing moved")
        return False
    if not stock or count(stock).get("ok", 0) == 0:
        say("FAIL " + line + ": the stock run shows nothing")
        return False
    suspects = worse(stock, clan)
    lost = [case for case in suspects if clan.get(case, "lost") == "lost"]
    others = [case for case in suspects if case not in lost]
    reasons = {
        case: fails_again(module, case, library, limit, stock[case])
        for case in others[:MOST_RETRIED]
    }
    bad = lost + [case for case in others if reasons.get(case, "not tried again")]
    flaky += [case for case in suspects if case not in bad]
    # A crash after the last case (leaked threads, changed environment) belongs to no case.
    broken = (crashed(how) and not crashed(ended)) or (not suspects and ended == "exit code 0" and
                                                       how != ended)
    say(("FAIL " if bad or broken else "ok   ") + line)
    for case in suspects:
        say(f"       {case}: {clan.get(case, 'lost')}, stock {stock[case]}" +
              ("" if case in bad else ", by itself as stock: flaky"))
    for case in bad:
        if reasons.get(case):
            say("\n".join("       | " + text for text in reasons[case].splitlines()))
    if broken or lost or len(others) > MOST_RETRIED:
        say("\n".join("       | " + text for text in out.splitlines()[-15:]))
    return not bad and not broken


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tests", nargs="*", metavar="TEST")
    parser.add_argument("--preload")
    parser.add_argument("--move-at-once", action="store_true",
                        help="connections move at their first call")
    parser.add_argument("--quick", action="store_true",
                        help="only the modules that take less than a minute")
    options = parser.parse_args()
    if options.preload:
        if not Path(options.preload).is_file():
            parser.error(f"no library {options.preload}")
        options.preload = str(Path(options.preload).resolve())
    probe = [PYTHON, "-c", "import test.test_socket"]
    if not os.path.exists(PYTHON) or subprocess.run(probe, capture_output=True,
                                                    check=False).returncode != 0:
        print(f"SKIP: no {PYTHON} with its tests (Debian's libpython3.11-testsuite)")
        return 77
    modules = QUICK if options.quick else {**QUICK, **SLOW}
    if options.tests:
        modules = {name: {**QUICK, **SLOW}.get(name, 600) for name in options.tests}
    bad, flaky = [], []
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        running = {
            name: pool.submit(test, name, limit, options.preload, options.move_at_once)
            for name, limit in modules.items()
        }
        for name, answer in running.items():
            good, flaky_here, said = answer.result()
            print(said, flush=True)
            flaky += flaky_here
            bad += [] if good else [name]
    print(f"{len(modules) - len(bad)} modules ok" + (f", failed: {' '.join(bad)}" if bad else "") +
          (f", {len(flaky)} flaky cases, at most {MOST_FLAKY} are allowed: {' '.join(flaky)}"
           if flaky else ""))
    return 1 if bad or len(flaky) > MOST_FLAKY else 0


if __name__ == "__main__":
    sys.exit(main())
