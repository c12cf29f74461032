"""Servers and load programs: started on their cores, under CLAN or not, and ended whatever
happens."""

import contextlib
import itertools
import json
import os
import random
import resource
import select
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

# Where the package is not called as the program is.
PACKAGES = {
    "ab": "apache2-utils", "h2load": "nghttp2-client", "initdb": "postgresql",
    "nginx": "nginx-light", "pgbench": "postgresql", "redis-benchmark": "redis-tools",
    "setpriv": "util-linux", "taskset": "util-linux",
}


class Skip(Exception):
    """What a row needs is not here; the text says what to install."""


class Failed(Exception):
    """A program has not done what it should; the text says which and what."""


def find(program):
    """Its path; daemons are in sbin, and a path is taken as it is."""
    path = shutil.which(str(program),
                        path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/local/sbin")
    if path is None:
        name = Path(program).name
        raise Skip(
            f"{name} is not installed; it is in the Debian package {PACKAGES.get(name, name)}.")
    return path


def listens(port):
    """Asked of the kernel: some servers would take a connection for a client."""
    wanted = f":{port:04X}"
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(path).read_text().splitlines()[1:]:
                words = line.split()
                if words[1].endswith(wanted) and words[3] == "0A":
                    return True
    return False


def descendants(root):
    """Process ids below `root`."""
    children = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError):
            stat = Path("/proc", entry, "stat").read_text()
            children.setdefault(int(stat[stat.rindex(")") + 2:].split()[1]), []).append(int(entry))
    found, left = [], [root]
    while left:
        more = children.get(left.pop(), [])
        found += more
        left += more
    return found


def processor_seconds(roots):
    """Sums these processes, and all below them, also those that have ended."""
    used = 0
    for pid in {pid for root in roots for pid in (root, *descendants(root))}:
        with contextlib.suppress(OSError, ValueError):
            stat = Path("/proc", str(pid), "stat").read_text()
            used += sum(map(int, stat[stat.rindex(")") + 2:].split()[11:15]))
    return used / os.sysconf("SC_CLK_TCK")


def raise_descriptor_limit(wanted):
    """As many descriptors as may be had, up to `wanted`; children inherit it. The limit there is
    now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        # Only root may lift the hard limit.
        for limits in ((wanted, max(hard, wanted)), (min(hard, wanted), hard)):
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                break
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


CGROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 100_000  # the kernel's own


def parents():
    """(directory, whether it is v2) that may have groups with a limit of the processor's time."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [(CGROUPS, True)]
    return [(CGROUPS / name, False) for name in ("cpu", "cpu,cpuacct")
            if (CGROUPS / name / "cpu.cfs_quota_us").exists()]


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


EARLIEST_LOOK = 0.02  # seconds

# Not started at all where the parent was killed before the program had asked for that signal.
WITH_ITS_PARENT = ("/bin/sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"')

SOCKMAP = "sockmap"  # under which programs may run, besides CLAN


# --- which way the bytes went, by the counters in shared memory that `clan stat` shows ------------

# The part of the connections and of their bytes: a move takes a few exchanges by TCP first.
ENOUGH = 0.9


@dataclass
class Seen:
    moved: int = 0        # connections that are in shared memory now
    unmoved: int = 0      # those on TCP with CLAN at one end at least
    ring_bytes: int = 0   # sent through shared memory, both directions
    tcp_bytes: int = 0    # sent before the move

    def by_the_ring(self):
        # One of several may just have been opened: redis-benchmark asks for the configuration
        # first.
        may_wait = max((1 - ENOUGH) * (self.moved + self.unmoved), 1 if self.moved > 1 else 0)
        return (self.ring_bytes > 0 and self.unmoved <= may_wait and
                self.ring_bytes >= ENOUGH * (self.ring_bytes + self.tcp_bytes))

    def text(self):
        share = 100 * self.ring_bytes / max(self.ring_bytes + self.tcp_bytes, 1)
        every = self.moved + self.unmoved
        return f"{self.moved} of {every} connections moved, {share:.0f} % of their bytes"


def connections(clan, *arguments):
    done = subprocess.run([clan, "stat", "--json", *map(str, arguments)], capture_output=True,
                          text=True, stdin=subprocess.DEVNULL, timeout=60, check=False)
    # A process that was asked for may be gone: that is said by the exit code, the list is complete.
    return json.loads(done.stdout or "[]")


def look(clan, port):
    """All connections that have `port` at one end."""
    seen = Seen()
    for connection in connections(clan, "--all"):
        # other faces of CLAN have connections without ports
        ends = [connection.get(end, {}) for end in ("local", "peer")]
        if port not in [end.get("port") for end in ends]:
            continue
        if connection["path"] != "shm":
            seen.unmoved += 1
            continue
        seen.moved += 1
        seen.ring_bytes += sum(end["bytes"] for end in ends)
        seen.tcp_bytes += sum(end["tcp_bytes"] for end in ends)
    return seen


def best(looks):
    """Returns the largest of several samples of one run: a program may open new connections on its
    way."""
    return max(looks, key=lambda seen: (seen.by_the_ring(), seen.ring_bytes), default=Seen())


class Server:
    def __init__(self, process, port, stop=signal.SIGTERM):
        self.process, self.port, self.stop = process, port, stop

    @property
    def pid(self):
        return self.process.pid  # setpriv, sh, taskset and `clan run` become the program

    def pause(self, paused):
        os.killpg(self.pid, signal.SIGSTOP if paused else signal.SIGCONT)


class Session:
    """A private directory and the processes of one row, all of which end with it."""

    def __init__(self, clan, cores, seconds, redirection=None):
        self.clan, self.cores, self.seconds = str(clan), cores, seconds
        self.redirection = redirection
        self.directory = Path(tempfile.mkdtemp(prefix="clan-bench-apps-"))
        self.directory.chmod(0o755)  # servers may run as another user
        self.started = []
        self.servers = []
        self.processors = 0  # that servers and load had of the last run, on average
        self.memory = {}  # what a row keeps between its runs
        self.share = None  # that servers get
        self.ports = set()
        self.schedules_apart = True  # autogroup: each program has a share of its own

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # A second ^C must not leave half of them.
        handlers = {number: signal.signal(number, signal.SIG_IGN)
                    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        for process, stop in reversed(self.started):
            self.end(process, stop)
        if self.share is not None:
            self.share.remove()
        shutil.rmtree(self.directory, ignore_errors=True)
        for number, handler in handlers.items():
            signal.signal(number, handler)

    @staticmethod
    def end(process, stop):
        """`stop`, then SIGKILL, to the process, its group and what else descends from it."""
        family = []
        for pid in descendants(process.pid):  # PostgreSQL's have groups of their own
            with contextlib.suppress(OSError):
                family.append(os.pidfd_open(pid))
        if process.poll() is None:
            process.send_signal(stop)
            process.send_signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(3)
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        for fd in family:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            os.close(fd)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)

    def start(self, *argv, core=None, under=False, user=None, environment=None, stop=signal.SIGTERM,
              share=None, **more):
        """A process in a group of its own; `core` None: any that this program has. `under`: False,
        True (CLAN) or SOCKMAP. Ends with this program, even if that is killed (a change of user
        takes that away)."""
        cores = self.cores if core is None else [self.cores[core]]
        words = [find("setpriv"), "--pdeathsig=TERM", *WITH_ITS_PARENT, str(os.getpid())]
        words += self.redirection.prefix() if under == SOCKMAP else []
        words += share.prefix() if share is not None else []
        words += [find("taskset"), "-c", ",".join(map(str, cores))]
        if user:
            words += [find("setpriv"), f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}",
                      "--clear-groups"]
        if under is True:
            words += [self.clan, "run"]
        words += [find(argv[0]), *map(str, argv[1:])]
        clean = {k: v for k, v in os.environ.items()
                 if not k.startswith(("LD_PRELOAD", "CLAN_", "PG"))}
        group = {"start_new_session": True} if self.schedules_apart else {"preexec_fn": os.setpgrp}
        process = subprocess.Popen(words, env={**clean, "LC_ALL": "C", **(environment or {})},
                                   cwd=self.directory, **group, **more)
        self.started.append((process, stop))
        return process

    def port(self):
        """One that nobody has now, below the range from which the kernel picks."""
        dice = random.SystemRandom()
        while True:
            port = dice.randrange(12_000, 30_000)
            if port not in self.ports and not listens(port):
                self.ports.add(port)
                return port

    def serve(self, *argv, port, **more):
        """Starts a server and waits until it listens on `port`."""
        log = self.directory / f"log-{len(self.started)}"
        with open(log, "wb") as to:
            process = self.start(*argv, stdin=subprocess.DEVNULL, stdout=to,
                                 stderr=subprocess.STDOUT, share=self.share, **more)
        deadline = time.monotonic() + 20
        while not listens(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise Failed(
                    f"{Path(argv[0]).name} does not start: {log.read_text(errors='replace')[-300:]}"
                )
            time.sleep(0.05)
        self.servers.append(process.pid)
        return Server(process, port, more.get("stop", signal.SIGTERM))

    @staticmethod
    def early(looks, seen):
        """Times before the first of `looks`, until something has been seen: on a busy machine a
        program that measures by a number of requests may be done long before it is expected."""
        at = EARLIEST_LOOK
        while looks and at < looks[0] and not any(one.by_the_ring() for one in seen):
            yield at
            at *= 2

    def run(self, *argv, limit=60, looks=(), port=None, after="", **more):
        """Runs to the end. What it printed, and what `clan stat` said of `port` at the times
        `looks`, which count from when it has printed `after`."""
        name = f"{Path(argv[0]).name} {' '.join(map(str, argv[1:]))}"
        path = self.directory / f"output-{len(self.started)}"
        with open(path, "wb") as to:
            process = self.start(*argv, stdin=subprocess.DEVNULL, stdout=to,
                                 stderr=subprocess.STDOUT, **more)
        began, seen = time.monotonic(), []
        started, before = began, processor_seconds(self.servers)
        waiting = os.pidfd_open(process.pid)

        def ended_by(seconds):
            left = began + seconds - time.monotonic()
            return bool(select.select([waiting], [], [], max(left, 0))[0])

        try:
            while after and after not in path.read_text(errors="replace"):
                waited = time.monotonic() - began
                if waited > limit or ended_by(waited + 0.05):
                    break
            began = time.monotonic()
            for at in itertools.chain(self.early(looks, seen), looks):
                if ended_by(at):
                    break
                seen.append(look(self.clan, port))
            if not ended_by(limit):
                raise Failed(f"`{name}' had not ended after {limit:.0f} s")
            used = processor_seconds([*self.servers, process.pid]) - before  # it waits for us
            self.processors = used / (time.monotonic() - started)
            process.wait(10)
        finally:
            os.close(waiting)
            self.end(process, signal.SIGTERM)
            self.started = [entry for entry in self.started if entry[0] is not process]
        text = path.read_text(errors="replace")
        path.unlink()
        if process.returncode != 0:
            raise Failed(f"`{name}' ended with code {process.returncode}: {text.strip()[-300:]}")
        return text, seen
