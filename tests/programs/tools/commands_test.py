#!/usr/bin/env python3
"""`clan` and `clan bench` list what there is, and name the word they do not know.

    commands_test.py CLAN [bench]    (bench: the runner was built)
"""

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios


def run(*command, env=None):
    return subprocess.run(command, capture_output=True, text=True, timeout=60,
                          stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})})


def lists(answer, *words):
    assert answer.returncode == 0, answer
    assert answer.stderr == "", answer
    for word in words:
        assert word in answer.stdout, (word, answer.stdout)


def refuses(answer, *words):
    assert answer.returncode == 2, answer
    assert answer.stdout == "", answer
    for word in words:
        assert word in answer.stderr, (word, answer.stderr)


def on_terminal(columns, *command):
    """What it prints on a terminal that is so wide."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=side) as process:
        os.close(side)
        said = b""
        with contextlib.suppress(OSError):  # EIO: it has ended
            while some := os.read(main, 4096):
                said += some
    os.close(main)
    assert process.returncode == 0, (command, process.returncode)
    return said.decode().replace("\r", "")


def check_widths(clan):
    """Each line of help fits, unless it is one word; no word is lost, and columns stay."""
    for words in (["help"], ["run", "--help"], ["stat", "--help"], ["doctor", "--help"]):
        if f"\n  {words[0]} " not in run(clan, "help").stdout and words != ["help"]:
            continue  # it is not built
        wide = on_terminal(400, clan, *words)
        for columns in 50, 80, 132:
            said = on_terminal(columns, clan, *words)
            assert said.split() == wide.split(), said
            for line in said.splitlines():
                assert len(line) <= columns or len(line.split()) == 1, (columns, line)
            assert said == run(clan, *words, env={"COLUMNS": str(columns)}).stdout, (words, said)
    lines = on_terminal(80, clan, "help").splitlines()
    at = next(k for k, line in enumerate(lines) if line.startswith("  bench "))
    assert lines[at + 1].startswith(" " * lines[at].index("Measure") + "help"), lines


def main():
    clan = sys.argv[1]
    check_widths(clan)
    for words in ([], ["help"], ["--help"]):
        lists(run(clan, *words), "doctor", "bench", "run")
    lists(run(clan, "help", "doctor"), "--json")
    refuses(run(clan, "bogus"), '"bogus"', "doctor", "bench", "help")
    refuses(run(clan, "help", "bogus"), '"bogus"', "doctor")
    if "bench" not in sys.argv[2:]:
        return 0

    # The benches of programs are there with the preload library.
    kinds = re.findall(r"^clan bench (\w+) ", run(clan, "bench", "help").stdout, re.MULTILINE)
    listed = re.findall(r"\w+", run(clan, "help").stdout.partition("  bench ")[2])
    assert set(kinds) <= set(listed), (kinds, listed)
    apps = ["clan bench apps"] if "stat" in run(clan, "help").stdout.split() else []
    for words in (["bench"], ["bench", "help"], ["bench", "--help"], ["help", "bench"]):
        lists(run(clan, *words), "stream_latency", "bars", "quick", "--cores", *apps)
    refuses(run(clan, "bench", "bogus"), '"bogus"', "stream_latency", "quick", "clan bench help")
    refuses(run(clan, "bench", "quick", "bogus"), '"bogus"')
    refuses(run(clan, "bench", "quick", "--bogus"), '"--bogus"', "clan bench help")
    refuses(run(clan, "bench", "--cores", "0", "7777", "cacheline"), "no core 7777")
    return 0


if __name__ == "__main__":
    sys.exit(main())
