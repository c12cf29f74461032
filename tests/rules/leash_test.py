#!/usr/bin/env python3
"""What support/leash.py starts ends with it: what has left its group and session, what ignores
signals, what is stopped."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LEASH = Path(__file__).resolve().parents[1] / "support/leash.py"
# Each says its process id in a file of its own. A shell that waits has a trap, as ./check has.
ESCAPES = r"""
cd "$1"
setsid sh -c 'echo $$ >session; exec sleep 1000' &
env -i /bin/sh -c 'trap "" INT TERM; echo $$ >deaf; while :; do /bin/sleep 1000; done' &
sh -c 'echo $$ >stopped; kill -STOP $$; sleep 1000' &
sh -c 'setsid sh -c "echo \$\$ >orphan; exec sleep 1000" & exit 0'
"""
NAMES = ("session", "deaf", "stopped", "orphan")
SHELL = ESCAPES + r"""
trap 'echo interrupted; exit 130' INT TERM
echo begun
sleep 1000
echo went on
"""


def ids(directory):
    """Returns the ids that processes have printed."""
    return [int(path.read_text()) for path in map(directory.joinpath, NAMES)
            if path.exists() and path.read_text().endswith("\n")]


def alive(pid):
    return Path(f"/proc/{pid}").exists()


def check_told(directory):
    leash = subprocess.Popen([sys.executable, "-B", LEASH, "bash", "-c", SHELL, "bash", directory],
                             stdout=subprocess.PIPE, text=True)
    assert leash.stdout.readline() == "begun\n"
    while len(ids(directory)) < len(NAMES):
        time.sleep(0.01)
    leash.send_signal(signal.SIGTERM)
    out, _ = leash.communicate()
    assert out == "interrupted\n" and leash.returncode == 130, (out, leash.returncode)


def check_end(directory):
    """Its exit code is the command's, and what it has left behind is gone, too."""
    waits = "\nuntil [ -s session -a -s deaf -a -s stopped -a -s orphan ]; do :; done\nexit 5"
    done = subprocess.run([sys.executable, "-B", LEASH, "bash", "-c", ESCAPES + waits, "bash",
                           directory], check=False)
    assert done.returncode == 5, done


def main():
    for check in check_told, check_end:
        with tempfile.TemporaryDirectory(prefix="clan-leash-") as name:
            check(Path(name))
            pids = ids(Path(name))
            left = [pid for pid in pids if alive(pid)]
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            assert len(pids) == len(NAMES) and not left, (pids, left)
    return 0


if __name__ == "__main__":
    sys.exit(main())
