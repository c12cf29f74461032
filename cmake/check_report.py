#!/usr/bin/env python3
"""What the tests of ./check came to, read from ctest's logs.

    check_report.py [--must NAME,...] [--without NAME,...] [--flaky NAME,...] LOG...

Each LOG is a LastTest.log with what ctest has printed behind it: only that shows a test that skips
by its exit code.

Prints what took longest, and where, the tests that skipped some of their cases (GTEST_SKIP), with
those cases, and as the last line `TESTS tests[; flaky: NAME, ...]
[; skipped: NAME, ...][; N skipped in part][; not covered: NAME, ...]`. Exit code 1 when a test of
--must was skipped.
"""

import argparse
import re
import sys
from pathlib import Path

TEST = re.compile(r"^(\d+)/(\d+) Testing: (.+)$", re.M)
SECONDS = re.compile(r"^Test time = +([\d.]+) sec$", re.M)
WHOLE = re.compile(r"^Skip (?:regular expression|return code)", re.M)
PRINTED = re.compile(r"^ *\d+/\d+ Test +#\d+: (.+?) \.*\*\*\*Skipped", re.M)
CASE = re.compile(r"^\[  SKIPPED \] ([\w/<>:., ]+?)(?: \(\d+ ms\)|, listed below:)?$", re.M)
SLOWEST = 10


class Test:
    def __init__(self, name, text, preset):
        self.name, self.preset = name, preset
        seconds = SECONDS.search(text)
        self.seconds = float(seconds.group(1)) if seconds else 0.0
        self.skipped = bool(WHOLE.search(text))
        # Without the sum ("1 test") and its list, which repeats them.
        self.cases = sorted({case for case in CASE.findall(text) if "." in case})


def tests_of(text, preset):
    starts = list(TEST.finditer(text))
    printed = {name.split("  #")[0] for name in PRINTED.findall(text)}
    for start, end in zip(starts, [*starts[1:], None]):
        test = Test(start.group(3).split("  #")[0],
                    text[start.end():end.start() if end else len(text)], preset)
        test.skipped = test.skipped or test.name in printed
        yield test


def short(names):
    """a.B.C, a.B.D -> a.B.C, D: what many tests of one suite share is said once."""
    said, last = [], ""
    for name in names:
        head, _, tail = name.rpartition(".")
        said.append(tail if head and head == last else name)
        last = head
    return ", ".join(said)


def main():
    names = lambda text: [name for name in text.split(",") if name]  # noqa: E731
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--must", type=names, default=[])
    parser.add_argument("--without", type=names, default=[])
    parser.add_argument("--flaky", type=names, default=[])
    parser.add_argument("logs", nargs="+", type=Path)
    options = parser.parse_args()
    tests = [test for log in options.logs
             for test in tests_of(log.read_text(errors="replace"), log.name.split(".")[0])]
    slowest = sorted(tests, key=lambda test: -test.seconds)[:SLOWEST]
    print("longest: " + ", ".join(f"{test.name} {test.seconds:.0f} s ({test.preset})"
                                  for test in slowest))
    skipped = {test.name: None for test in tests if test.skipped}
    partly = {
        f"{test.name} ({short(test.cases)})": None
        for test in tests if test.cases and not test.skipped
    }
    missed = [name for name in options.must if name in skipped]
    if missed:
        print("skipped, although this machine could run them: " + ", ".join(missed))
    line = f"{len(tests)} tests"
    if options.flaky:
        line += "; flaky: " + short(options.flaky)
    if skipped:
        line += "; skipped: " + short(sorted(skipped))
    if partly:
        print("skipped in part: " + ", ".join(sorted(partly)))
        line += f"; {len(partly)} skipped in part"
    if options.without:
        line += "; not covered: " + ", ".join(options.without)
    print(line)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
