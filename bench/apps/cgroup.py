"""A control group whose processes get a share of a processor, under cgroup v2 or v1."""

import contextlib
import os
import tempfile
import time
from pathlib import Path

from processes import Skip

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000  # the kernel's own


def parents():
    """(directory, whether it is v2) that may have groups with a limit of the processor's time."""
    if (ROOT / "cgroup.controllers").exists():
        return [(ROOT, True)]
    return [(ROOT / name, False) for name in ("cpu", "cpu,cpuacct")
            if (ROOT / name / "cpu.cfs_quota_us").exists()]


class Share:
    """`cores`: how many processors' time its processes get together, 0.5 for half of one."""

    def __init__(self, cores):
        for parent, unified in parents():
            with contextlib.suppress(OSError):
                self.directory = Path(tempfile.mkdtemp(prefix="clan-bench-", dir=parent))
                try:
                    self.limit(cores, unified)
                    return
                except OSError:
                    self.directory.rmdir()
        raise Skip(
            "No control group with a limit of processor time can be made here (root, and a cgroup "
            "file system that is mounted for writing, are needed).")

    def limit(self, cores, unified):
        quota = int(cores * PERIOD_US)
        if unified:
            (self.directory / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            (self.directory / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self.directory / "cpu.cfs_quota_us").write_text(str(quota))

    def prefix(self):
        """What a command begins with that is to run in it."""
        return ["/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', str(self.directory / "cgroup.procs")]

    def remove(self):
        """Once its processes have ended."""
        for _ in range(50):
            with contextlib.suppress(OSError):
                os.rmdir(self.directory)
                return
            time.sleep(0.1)
