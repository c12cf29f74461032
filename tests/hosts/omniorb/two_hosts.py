#!/usr/bin/env python3
"""CORBA between two hosts, which are network namespaces of this test's own: by UDP where both have
the key, and by TCP within the same call where they have not, or no packet of UDP gets through. What
cuts the wire for UDP alone is a routing rule. As programs.py; exit code 77 where no namespaces can
be made.
"""

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / "hosts/udp"), str(TESTS / "programs/omniorb")]
import hosts  # noqa: E402
import programs  # noqa: E402
from programs import BY_TCP, Skip, require  # noqa: E402

BY_UDP = "go by CLAN, udp"
COMES_BY_UDP = "come by CLAN, udp"
CLAN, TCP = "giop:clan:10.78.0.1:", "giop:tcp:10.78.0.1:"


def wall(name):
    """No packet of UDP comes in or goes out any more, and TCP does."""
    for rule in (["add", "pref", "5", "lookup", "local"], ["del", "pref", "0"],
                 ["add", "pref", "1", "ipproto", "udp", "blackhole"]):
        done = subprocess.run(["ip", "-n", name, "rule", *rule], capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            raise Skip(f"ip rule {' '.join(rule)}: {done.stderr.strip()}")


def directory_is_free(name):
    bind = ("from socket import *; "
            "socket(AF_INET, SOCK_DGRAM).bind(('10.78.0.1', 4790))")
    return subprocess.run(hosts.inside(name, sys.executable, "-c", bind), capture_output=True,
                          check=False).returncode == 0


class Case:
    """A server on one host, and clients on the other."""

    def __init__(self, stage, names, env, options=()):
        self.stage, self.names = stage, names
        self.server, out, self.err = stage.start(stage.programs / "omniorb-suite-server", *options,
                                                 env=env, inside=hosts.inside(names[0]))
        self.reference = stage.wait_for(out, r"IOR:\w+").group()

    def call(self, *more, env=None, wrong=False, timeout=60):
        return self.stage.run(self.stage.programs / "omniorb-suite-call", self.reference, *more,
                              env=env, wrong=wrong, timeout=timeout,
                              inside=hosts.inside(self.names[1]))

    def begin(self, *more, env=None):
        return self.stage.start(self.stage.programs / "omniorb-suite-call", self.reference, *more,
                                env=env, inside=hosts.inside(self.names[1]))

    def goes_by_tcp(self, *more, **how):
        done = self.call(*more, **how)
        require(
            done.stdout.startswith(TCP) and BY_UDP not in done.stderr, done.stdout + done.stderr)
        require(COMES_BY_UDP not in self.err.read_text(), self.err.read_text())
        return done

    def goes_by_udp(self, *more, **how):
        done = self.call(*more, **how)
        require(
            done.stdout.startswith(CLAN) and BY_UDP in done.stderr and BY_TCP not in done.stderr,
            done.stdout + done.stderr)
        require(re.search(rf"{COMES_BY_UDP} \(giop:clan:10\.78\.0\.2:", self.err.read_text()),
                self.err.read_text())
        return done


def with_the_key(stage, names, key):
    case = Case(stage, names, {"CLAN_KEY": key})
    case.goes_by_udp(env={"CLAN_KEY": key})
    case.goes_by_udp(0, 20, 300_000, env={"CLAN_KEY": key})
    # By options, and no key at all where the mode needs none.
    require(
        TCP in case.call("-ORBclientTransportRule", "10.78.0.0/255.255.255.0 tcp",
                         env={"CLAN_KEY": key}).stdout, "a rule for that host was not heard")
    case.goes_by_udp("-ORBclanKey", key, "-ORBclanNetworkMode", "encrypt")
    off = Case(stage, names, {}, ["-ORBclanNetworkMode", "off"])
    off.goes_by_udp(env={"CLAN_NETWORK_MODE": "off"})
    require(not directory_is_free(names[0]), "CLAN_KEY opens the directory")


def without_a_common_key(stage, names, key, other):
    case = Case(stage, names, {"CLAN_KEY": key})
    case.goes_by_tcp(env={})
    case.goes_by_tcp(env={"CLAN_KEY": other})
    done = case.goes_by_tcp("-ORBclanKey", "/nowhere/key")
    require("calls to other hosts go without CLAN" in done.stderr, done.stderr)
    done = case.call(env={"CLAN_KEY": "/nowhere/key"}, wrong=True)
    require(done.returncode == 2 and "/nowhere/key cannot be used" in done.stderr, done.stderr)
    rules = Case(stage, names, {"CLAN_KEY": key}, ["-ORBserverTransportRule", "localhost clan,tcp",
                                                   "-ORBserverTransportRule", "* tcp"])
    rules.goes_by_tcp(env={"CLAN_KEY": key})


def by_options_alone(stage, names, key):
    Case(stage, names, {}, ["-ORBclanKey", key]).goes_by_udp("-ORBclanKey", key)
    require(directory_is_free(names[0]), "the ORB takes a port that others may want")


def behind_a_wall(stage, names, key):
    case = Case(stage, names, {"CLAN_KEY": key})
    wall(names[0])
    case.goes_by_tcp(env={"CLAN_KEY": key})


def cut(stage, names, key):
    case = Case(stage, names, {"CLAN_KEY": key})
    client, out, err = case.begin(0, -1, env={"CLAN_KEY": key})
    stage.wait_for(out, CLAN)
    stage.wait_for(case.err, COMES_BY_UDP)
    wall(names[0])
    client.wait(120)
    lines = out.read_text().split()
    require(
        lines[-1].startswith(TCP) and all(l in ("COMM_FAILURE", "TRANSIENT") for l in lines[1:-1]),
        f"{lines} {err.read_text()}")


def killed(stage, names, key):
    case = Case(stage, names, {"CLAN_KEY": key})
    client, out, err = case.begin(0, 1_000_000_000, env={"CLAN_KEY": key})
    stage.wait_for(out, CLAN)
    pids = subprocess.run(["ip", "netns", "pids", names[0]], capture_output=True, text=True,
                          check=True).stdout.split()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    begin = time.monotonic()
    require(client.wait(120) == 1, err.read_text())
    seconds = time.monotonic() - begin
    require(seconds < 12, f"noticed after {seconds:.1f} s, as if its host had said nothing")
    require(out.read_text().split()[-1] in ("COMM_FAILURE", "TRANSIENT"), out.read_text())


def two_hosts(stage):
    """By UDP with a common key; with another one, without, behind a firewall, after a cut and a
    kill: as by TCP."""
    if not hosts.possible():
        raise Skip("no network namespaces can be made here")
    keys = []
    for name in ("one", "two"):
        keys.append(str(stage.directory / name))
        Path(keys[-1]).touch(0o600)
        Path(keys[-1]).write_text(secrets.token_hex(32))
    for number, (case, given) in enumerate(((with_the_key, keys[:1]), (without_a_common_key, keys),
                                            (by_options_alone, keys[:1]), (behind_a_wall, keys[:1]),
                                            (cut, keys[:1]), (killed, keys[:1]))):
        with hosts.hosts(1500, f"orb{number}") as names:
            case(stage, names, *given)
            print(f"{case.__name__}: right", flush=True)


if __name__ == "__main__":
    sys.exit(programs.main({"two_hosts": two_hosts}))
