"""Devices of `clan ip` in network namespaces: of one host, which share CLAN_DIR, and of two hosts,
joined by a veth pair and a key."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
import face_programs  # noqa: E402
from face_programs import hosts  # noqa: E402

DEVICE = "clan0"
ADDRESSES = ("10.9.0.1", "10.9.0.2", "10.9.0.3")


def why_not():
    """What keeps this machine from having such devices."""
    if not os.path.exists("/dev/net/tun"):
        return "no /dev/net/tun"
    return face_programs.why_not_two_hosts()


class Host:
    """A network namespace, and how a device comes up there."""

    def __init__(self, clan, name, environment, address, options=()):
        self.clan, self.name, self.environment = clan, name, environment
        self.address, self.options, self.process = address, options, None

    def command(self, *words):
        return hosts.inside(self.name, *words)

    def done(self, words, seconds):
        return subprocess.run(self.command(*words), text=True, capture_output=True,
                              timeout=seconds, env=self.environment, stdin=subprocess.DEVNULL)

    def run(self, *words, seconds=60):
        """What a program says there, and its exit code."""
        done = self.done(words, seconds)
        return done.returncode, done.stdout + done.stderr

    def must(self, *words, seconds=60):
        """What a program says on its standard output; it must succeed."""
        done = self.done(words, seconds)
        assert done.returncode == 0, (words, done)
        return done.stdout

    def up(self, *more):
        words = [self.clan, "ip", "up", DEVICE, "--address", f"{self.address}/24", *self.options]
        self.process = subprocess.Popen(self.command(*words, *more), stdout=subprocess.PIPE,
                                        text=True, env=self.environment)
        line = self.process.stdout.readline()
        assert line.startswith(f"{DEVICE} is up: {self.address}/24"), line
        return self

    def kill(self):
        self.process.kill()
        self.process.wait()

    def down(self):
        self.must(self.clan, "ip", "down", DEVICE)
        assert self.process.wait(timeout=20) == 0

    def end(self):
        if self.process is not None:
            self.process.kill()
            self.process.communicate()

    def status(self):
        (device,) = json.loads(self.must(self.clan, "ip", "status", "--json"))
        return device

    def peer(self, address):
        (found,) = [p for p in self.status()["peers"] if p["address"] == address]
        return found

    def pings(self, address, *more, count=2):
        """Whether that address answers within a second."""
        code, _ = self.run("ping", "-n", "-c", str(count), "-i", "0.2", "-W", "1", *more, address)
        return code == 0


@contextlib.contextmanager
def namespaces(clan, count=2):
    """Network namespaces, one for each host."""
    names = [f"clanip{os.getpid()}{end}" for end in "abc"[:count]]
    with tempfile.TemporaryDirectory(prefix="clan-ip-") as directory:
        environment = dict(os.environ, CLAN_DIR=directory)
        made = [Host(clan, name, environment, address)
                for name, address in zip(names, ADDRESSES)]
        try:
            for name in names:
                hosts.ip("netns", "add", name)
                hosts.ip("-n", name, "link", "set", "lo", "up")
            yield made
            left = os.listdir(directory)
        finally:
            for host in made:
                host.end()
            for name in names:
                subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
    if all(host.process is not None and host.process.returncode == 0 for host in made):
        assert not left, left


@contextlib.contextmanager
def two_hosts(clan):
    """With a key."""
    with face_programs.two_hosts() as (names, environment):
        wires = ("10.78.0.1", "10.78.0.2")
        made = [Host(clan, names[i], environment, ADDRESSES[i],
                     ("--peer", f"{ADDRESSES[1 - i]}=udp:{wires[1 - i]}")) for i in range(2)]
        try:
            yield made
        finally:
            for host in made:
                host.end()


def eventually(holds, seconds=20):
    """For what another process does by itself."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.05)
    return False


def main(cases):
    """Runs them in turn; exit code 77: what they need is not here, as it says."""
    if why := why_not():
        print(why)
        return 77
    for case in cases:
        case(sys.argv[1])
        print(f"{case.__name__}: right", flush=True)
    return 0
