#!/usr/bin/env python3
"""What ./check says of a run: cmake/check_report.py, on logs as ctest writes them."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

REPORT = Path(__file__).resolve().parent.parent.parent / "cmake" / "check_report.py"


# Only what ctest prints shows a skipped test with SKIP_RETURN_CODE.
SKIPPED = "  1/9 Test  #7: {} ...........***Skipped   0.01 sec\n"


def entry(number, name, output="", seconds=1.0, reason=""):
    return (
        f"{number}/9 Testing: {name}\n{number}/9 Test: {name}\nOutput:\n{'-' * 58}\n{output}\n<end "
        "of output>\n"
        f"Test time = {seconds:6.2f} sec\n{'-' * 58}\n" +
        (f"Test Pass Reason:\n{reason}\n" if reason else "Test Passed.\n") +
        f'"{name}" end time: now\n\n')


class Report(unittest.TestCase):
    def report(self, text, *options):
        with tempfile.NamedTemporaryFile("w", prefix="asan.", suffix=".log") as log:
            log.write("Start testing: Nov 22\n" + text)
            log.flush()
            done = subprocess.run([sys.executable, "-B", REPORT, *options, log.name],
                                  capture_output=True, text=True)
        return done.returncode, done.stdout.splitlines()

    def test_counts_and_names_what_took_longest(self):
        code, lines = self.report(entry(1, "a.B.C", seconds=3) + entry(2, "a.B.D", seconds=7))
        self.assertEqual((code, lines[-1]), (0, "2 tests"))
        self.assertEqual(lines[0], "longest: a.B.D 7 s (asan), a.B.C 3 s (asan)")

    def test_names_tests_that_were_skipped_whole(self):
        _, lines = self.report(
            SKIPPED.format("interpose.java") + entry(1, "interpose.java") +
            entry(2, "a.B.C  # GetParam() = x", "[  SKIPPED ] B.C (0 ms)",
                  reason="Skip regular expression found in output. Regex=[x]") + entry(3, "a.B.D"))
        self.assertEqual(lines[-1], "3 tests; skipped: a.B.C, interpose.java")

    def test_names_cases_that_a_passing_program_skipped(self):
        said = (
            "[  SKIPPED ] Uring.Forks (0 ms)\n[  SKIPPED ] Uring.Closes (1 ms)\n[  PASSED  ] 1 "
            "test.\n"
            "[  SKIPPED ] 2 tests, listed below:\n[  SKIPPED ] Uring.Forks\n[  SKIPPED ] "
            "Uring.Closes\n"
        )
        _, lines = self.report(entry(1, "interpose.uring", said))
        self.assertEqual(lines[-2:], ["skipped in part: interpose.uring (Uring.Closes, Forks)",
                                      "1 tests; 1 skipped in part"])

    def test_fails_where_a_test_of_the_core_list_was_skipped(self):
        text = entry(1, "interpose.redis") + SKIPPED.format("interpose.redis")
        code, lines = self.report(text, "--must", "interpose.redis,interpose.nginx")
        self.assertEqual(code, 1)
        self.assertIn("although this machine could run them: interpose.redis", "\n".join(lines))
        self.assertEqual(self.report(text, "--must", "interpose.nginx")[0], 0)

    def test_says_what_no_test_covers(self):
        _, lines = self.report(entry(1, "a"), "--without", "MPICH,UCX")
        self.assertEqual(lines[-1], "1 tests; not covered: MPICH, UCX")

    def test_names_what_has_passed_only_when_run_again(self):
        _, lines = self.report(entry(1, "a.B.C"), "--flaky", "a.B.C,a.B.D")
        self.assertEqual(lines[-1], "1 tests; flaky: a.B.C, D")


if __name__ == "__main__":
    sys.exit(unittest.main())
