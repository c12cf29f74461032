#!/usr/bin/env python3
"""clan-tlbsim says what is wrong with its command line, and writes nothing when something is.

    tlbsim_test.py CLAN-TLBSIM
"""

import subprocess
import sys
import tempfile

# What a program does with a pair of sockets and a file. It closes the trace in the end, and opens
# a file of its own under that number.
TALK = """
import os, socket, sys
a, b = socket.socketpair()
os.writev(a.fileno(), [b"abc", b"", b"defgh"])
assert b.recv(100, socket.MSG_PEEK) == b"abcdefgh"
first, second = bytearray(2), bytearray(20)
assert os.readv(b.fileno(), [first, second]) == 8
b.sendmsg([b"12", b"345678"])
assert a.recv(100) == b"12345678"
b.send(b"x" * 30)
assert os.read(a.fileno(), 100) == b"x" * 30
with open(sys.argv[1], "wb", buffering=0) as file:
    file.write(b"no socket")
    trace = int(os.environ["CLAN_RECORD"].split(":")[0])
    os.dup2(file.fileno(), trace)
    a.send(b"not recorded")
    print(open(sys.argv[1]).read())
"""


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=60,
                          stdin=subprocess.DEVNULL)


def refuses(answer, *words):
    assert answer.returncode != 0, answer
    assert answer.stdout == "", answer.stdout
    for word in words:
        assert word in answer.stderr, (word, answer.stderr)


def records_each_buffer_of_a_socket(tlbsim):
    with tempfile.TemporaryDirectory() as directory:
        trace, other = f"{directory}/trace", f"{directory}/other"
        done = run(tlbsim, "record", "-o", trace, "--", sys.executable, "-c", TALK, other)
        assert done.returncode == 0 and done.stdout.strip() == "no socket", done
        with open(trace, encoding="ascii") as lines:
            head, *lines = lines.read().splitlines()
        assert head == f"# recorded of {sys.executable}: pid op vaddr len", head
        accesses = [(op, int(length)) for _, op, _, length in map(str.split, lines)]
        assert accesses == [("r", 3), ("r", 5), ("recv", 2), ("recv", 6), ("r", 2), ("r", 6),
                            ("recv", 8), ("r", 30), ("recv", 30)], accesses
        refuses(run(tlbsim, "record", "-o", trace, "--", f"{directory}/nothing"), "nothing")
        refuses(run(tlbsim, "record", "-o", f"{directory}/no/trace", "--", "true"), "output file")


def main():
    tlbsim = sys.argv[1]
    records_each_buffer_of_a_socket(tlbsim)
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
