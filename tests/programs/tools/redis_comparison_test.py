#!/usr/bin/env python3
"""examples/redis_comparison.py prints its table, and leaves nothing behind, whatever ends it.

    redis_comparison_test.py SCRIPT CLAN
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ENDED_BY = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}


def children_of(pid):
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


def the_table_has_four_rows_and_stat_saw_both_runs(script, clan):
    with tempfile.TemporaryDirectory() as top:
        done = subprocess.run([script, clan, "20000"], capture_output=True, text=True, timeout=120,
                              stdin=subprocess.DEVNULL, env={**os.environ, "TMPDIR": top},
                              check=False)
        assert done.returncode == 0 and done.stderr == "", done
        assert len(re.findall(r"^ +(?:1|50)  (?:GET|SET) +\d+ +\d+ +[\d.]+(?:  busy: .*)?$",
                              done.stdout, re.M)) == 4, done
        assert len(re.findall(r"^  127.* shm .*redis-benchmark$", done.stdout, re.M)) >= 2, done
        assert os.listdir(top) == []


def it_ends_with_all_it_started(script, clan, number):
    with tempfile.TemporaryDirectory() as top:
        running = subprocess.Popen([script, clan], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, env={**os.environ, "TMPDIR": top})
        deadline = time.monotonic() + 60
        while len(children := children_of(running.pid)) < 2:
            assert running.poll() is None and time.monotonic() < deadline, "not both were started"
            time.sleep(0.05)
        running.send_signal(number)
        assert running.wait(60) == ENDED_BY[number]
        while alive := [pid for pid in children if os.path.exists(f"/proc/{pid}")]:
            assert time.monotonic() < deadline, (number, alive)
            time.sleep(0.05)
        assert number == signal.SIGKILL or os.listdir(top) == []


def what_other_work_disturbs_is_measured_again_and_marked(script):
    """The machine's busy seconds grow in each try by these values, none of them its own."""
    sys.path.insert(0, str(Path(script).parent))
    import other_work  # pylint: disable=import-outside-toplevel
    for grows, tries, answer in (([0], 1, 0), ([5, 0], 2, 1), ([5, 2, 9], 3, 1)):
        now, made = iter([second for k, more in enumerate(grows)
                          for second in (k * 100, k * 100 + more)]), []
        other_work.busy = lambda now=now: next(now)
        other_work.own = lambda pids: 0
        found, doubt = other_work.undisturbed(
            lambda made=made: (made.append(time.sleep(0.1)), len(made) - 1)[1])
        assert (len(made), found, doubt != "") == (tries, answer, len(grows) == 3), (made, doubt)
        assert doubt == "" or " busy: " in doubt and "for others" in doubt, doubt


def main():
    script, clan = sys.argv[1:]
    what_other_work_disturbs_is_measured_again_and_marked(script)
    for program in ("redis-server", "redis-benchmark"):
        if shutil.which(program) is None:
            print(f"{program} is not installed")
            return 77
    for number in ENDED_BY:
        it_ends_with_all_it_started(script, clan, number)
    the_table_has_four_rows_and_stat_saw_both_runs(script, clan)
    return 0


if __name__ == "__main__":
    sys.exit(main())
