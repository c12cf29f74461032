#!/usr/bin/env python3
"""clan-tlbsim says what is wrong with its command line, and writes nothing when something is.

    tlbsim_test.py CLAN-TLBSIM
"""

import subprocess
import sys


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=60,
                          stdin=subprocess.DEVNULL)


def refuses(answer, *words):
    assert answer.returncode != 0, answer
    assert answer.stdout == "", answer.stdout
    for word in words:
        assert word in answer.stderr, (word, answer.stderr)


def main():
    tlbsim = sys.argv[1]
    refuses(run(tlbsim, "generate", "foo"), '"foo"', "radix-small", "sockets")
    refuses(run(tlbsim, "generate", "radix-small", "--nodes", "1"), "nodes 2 to 1024")
    refuses(run(tlbsim, "replay", "-", "--entries", "100"), "100",
            "power of two from 1 to 16777216")
    refuses(run(tlbsim, "replay", "-", "--entries", "256,100"), "100", "power of two")
    refuses(run(tlbsim, "replay", "-", "--victim", "-1"), "-1", "16777216")

    trace = run(tlbsim, "generate", "matmul-16", "--seed", "3")
    assert trace.returncode == 0 and trace.stdout.startswith(
        "# matmul-16 seed 3: pid op vaddr len\n"), trace
    table = subprocess.run([tlbsim, "replay", "-", "--entries", "64,128"], input=trace.stdout,
                           capture_output=True, text=True, timeout=60, check=True).stdout
    assert "accesses: requests." in table and "count pages" in table, table
    return 0


if __name__ == "__main__":
    sys.exit(main())
