#!/usr/bin/env python3
"""`clan` and `clan bench` list what there is, and name the word they do not know.

    commands_test.py CLAN [bench]    (bench: the runner was built)
"""

import os
import subprocess
import sys


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


def main():
    clan = sys.argv[1]
    for words in ([], ["help"], ["--help"]):
        lists(run(clan, *words), "doctor", "bench", "run")
    lists(run(clan, "help", "doctor"), "--json")
    refuses(run(clan, "bogus"), '"bogus"', "doctor", "bench", "help")
    refuses(run(clan, "help", "bogus"), '"bogus"', "doctor")
    if "bench" not in sys.argv[2:]:
        return 0

    # The benches of programs are there with the preload library.
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
