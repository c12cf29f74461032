#!/usr/bin/env python3
"""Devices that come, go, are killed and come again, in namespaces of one host and on two hosts.

    two_hosts.py CLAN    (exit code 77: needs root, namespaces and /dev/net/tun)
"""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import devices
from devices import DEVICE, eventually, hosts


def both_kinds(clan):
    """Where the two ends are: on one host, on two."""
    yield devices.namespaces(clan)
    yield devices.two_hosts(clan)


def reaches_in_either_order(clan):
    """Each end reaches the other, whichever was there first; connections are made on demand."""
    for kind in both_kinds(clan):
        with kind as (a, b):
            a.up()
            assert not a.pings(b.address), "nobody is there"
            b.up()
            assert eventually(lambda: a.pings(b.address)), a.status()
            assert b.pings(a.address), b.status()
            peer = a.peer(b.address)
            assert peer["up"] and peer["sent"] > 0 and peer["received"] > 0, peer


def sends_all_sizes(clan):
    """Packets of all sizes arrive whole, in pieces or not, with IPv6 too."""
    with devices.namespaces(clan) as (a, b):
        a.up("--address", "fd09::1/64")
        b.up("--address", "fd09::2/64")
        for address in (b.address, "fd09::2"):
            for size in (0, 1, 55, 1400, 1472, 1473, 9000, 65_000):
                assert a.pings(address, "-s", str(size), "-p", "a5", count=1), (address, size)
        assert a.run("ping", "-c1", "-W1", "-M", "do", "-s", "1473", b.address)[0] != 0


def clan_stat_has_its_counters(clan):
    """As text, JSON and for Prometheus: peers, packets, drops."""
    with devices.namespaces(clan) as (a, b):
        a.up()
        b.up()
        assert eventually(lambda: a.pings(b.address)), a.status()
        a.run("ping", "-c", "1", "-W", "20", "10.9.0.77")
        process = str(a.status()["pid"])
        (one,) = [row for row in json.loads(a.must(clan, "stat", "--json", process))
                  if row["path"] == "ip"]
        assert one["device"] == DEVICE and one["peers"] == one["peers_up"] == 1, one
        assert one["sent"] > 0 and one["received"] > 0 and one["dropped_sent"] > 0, one
        text = a.must(clan, "stat", process)
        assert "IP DEVICES" in text and "1 of 1 peers up" in text, text
        text = a.must(clan, "stat", "--prometheus", process)
        assert f'clan_ip_peers_up{{pid="{process}",device="{DEVICE}"}} 1\n' in text, text


def answers_for_addresses_that_nobody_has(clan):
    """An ICMP error comes at once; groups are dropped and counted."""
    with devices.namespaces(clan) as (a, b):
        a.up("--address", "fd09::1/64")
        for address in ("10.9.0.77", "fd09::77"):
            code, said = a.run("ping", "-n", "-c", "1", "-W", "20", address)
            assert code != 0 and "nreachable" in said, said
        a.run("ping", "-c", "1", "-W", "1", "-b", "10.9.0.255")
        a.run("ping", "-c", "1", "-W", "1", "-I", DEVICE, "224.0.0.1")
        status = a.status()
        assert status["nobody"] >= 2 and status["groups"] >= 2 and status["peers"] == [], status
        b.up()


def says_which_mtu_would_do(clan):
    """A sender learns that its packets are too big for a peer with a smaller MTU."""
    with devices.namespaces(clan) as (a, b):
        a.up("--mtu", "9000")
        b.up("--mtu", "1300")
        assert a.pings(b.address, "-s", "1200")
        code, said = a.run("ping", "-c", "1", "-W", "5", "-M", "do", "-s", "2000", b.address)
        assert code != 0 and "1300" in said, said
        assert a.peer(b.address)["too_big"] >= 1


def goes_on_after_a_kill(clan):
    """One end is killed and comes again, three times, each end in turn."""
    for kind in both_kinds(clan):
        with kind as ends:
            for host in ends:
                host.up()
            for turn in range(3):
                killed, other = ends[turn % 2], ends[1 - turn % 2]
                assert eventually(lambda a=killed, b=other: b.pings(a.address)), other.status()
                killed.kill()
                assert not other.pings(killed.address)
                killed.up()
                assert eventually(lambda a=killed, b=other: a.pings(b.address)), killed.status()
                assert other.pings(killed.address), other.status()


def finds_a_peer_at_its_new_address(clan):
    """A peer that comes again with another address is found there, and no more at the old one."""
    with devices.namespaces(clan) as (a, b):
        a.up()
        b.up()
        assert eventually(lambda: a.pings(b.address)), a.status()
        before, b.address = b.address, "10.9.0.77"
        b.down()
        b.up()
        assert eventually(lambda: a.pings(b.address)), a.status()
        assert b.pings(a.address) and not a.pings(before), a.status()
        assert [peer["up"] for peer in a.status()["peers"]] == [False, True], a.status()


def leaves_routes_and_devices_as_found(clan):
    """After down, and after a kill, links, addresses, routes and files are those of before."""
    with devices.namespaces(clan) as (a, b):

        def state():
            return [a.must("ip", *words) for words in
                    (["-o", "link"], ["-o", "address"], ["route", "show", "table", "all"],
                     ["-6", "route", "show", "table", "all"], ["rule"])]

        before = state()
        for end in ("down", "kill", "down"):
            a.up("--address", "fd09::1/64", "--peer", "10.9.0.2,192.168.77.0/24=local")
            assert "192.168.77.0/24" in a.must("ip", "route")
            assert state() != before
            getattr(a, end)()
            assert eventually(lambda: state() == before), (before, state())
        b.up().down()


def refuses(clan):
    """One sentence says what is wrong: a clash, a missing right, a missing key, a device that is
    there."""
    with devices.namespaces(clan) as (a, b):
        a.up()
        up = [clan, "ip", "up"]
        code, said = b.run(*up, "clan1", "--address", f"{a.address}/24")
        assert code == 1 and "offers this service already" in said, said
        code, said = a.run(*up, DEVICE, "--address", "10.9.1.1/24")
        assert code == 1 and "there is a device of that name" in said, said
        code, said = b.run(*up, "clan1", "--address", "10.9.1.1/24", "--peer",
                           "10.9.1.2=udp:198.51.100.7")
        assert code == 1 and "--key FILE or CLAN_KEY" in said, said
        code, said = b.run("setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin",
                           *up, "clan1", "--address", "10.9.1.1/24")
        assert code == 1 and "CAP_NET_ADMIN" in said and said.count("\n") == 1, said
        code, said = b.run(clan, "ip", "down", DEVICE)
        assert code == 1 and "is no device of clan ip" in said, said
        assert "clan1" not in b.must("ip", "-o", "link")


def ends_when_its_device_is_removed(clan):
    """And says so; a device that is set down loses packets and goes on."""
    with devices.namespaces(clan) as (a, b):
        a.up()
        b.up()
        assert eventually(lambda: a.pings(b.address))
        b.must("ip", "link", "set", DEVICE, "down")
        assert not a.pings(b.address)
        b.must("ip", "link", "set", DEVICE, "up")
        assert eventually(lambda: a.pings(b.address)), a.status()
        b.must("ip", "link", "del", DEVICE)
        assert b.process.wait(timeout=20) == 1


def holds_no_rights(clan):
    """Once up it has no capability but the one for steering programs, and has told its manager."""
    with devices.namespaces(clan) as (a, _), tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(path)
            manager.settimeout(20)
            a.environment = dict(a.environment, NOTIFY_SOCKET=path)
            a.up()
            assert manager.recv(100) == b"READY=1"
            for thread in Path(f"/proc/{a.process.pid}/task").iterdir():
                (held,) = re.findall(r"CapEff:\s*(\w+)", (thread / "status").read_text())
                assert int(held, 16) & ~(1 << 39) == 0, held
            a.down()
            assert manager.recv(100) == b"STOPPING=1"


def serves_a_third_while_one_is_stopped(clan):
    """Packets to a peer that takes none are lost; those to another one go on."""
    with devices.namespaces(clan, 3) as (a, b, c):
        for host in (a, b, c):
            host.up()
        assert eventually(lambda: a.pings(b.address) and a.pings(c.address))
        os.kill(b.process.pid, 19)
        try:
            flood = ("ping", "-q", "-f", "-c", "3000", "-W", "1", "-s", "65000", b.address)
            with subprocess.Popen(a.command(*flood), stdout=subprocess.DEVNULL) as flooding:
                for _ in range(5):
                    assert a.pings(c.address), a.status()
                flooding.kill()
            assert a.peer(b.address)["waits"] > 0, a.status()
        finally:
            os.kill(b.process.pid, 18)
        assert eventually(lambda: a.pings(b.address)), a.status()


def transfers(client, server, megabytes=200):
    """A TCP stream that arrives whole."""
    take = ("import socket, sys; s = socket.create_server((sys.argv[1], 5005)); print('ready', "
            "flush=True); c = s.accept()[0]; n = 0\nwhile b := c.recv(1 << 20): n += len(b)\n"
            "print(n)")
    give = ("import socket, sys; s = socket.create_connection((sys.argv[1], 5005))\n"
            "for _ in range(int(sys.argv[2])): s.sendall(bytes(1 << 20))")
    words = server.command(sys.executable, "-c", take, server.address)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as taking:
        assert taking.stdout.readline() == "ready\n"
        client.must(sys.executable, "-c", give, server.address, str(megabytes))
        assert taking.stdout.readline() == f"{megabytes << 20}\n"


def sends_without_offloads_to_one_that_has_none(clan):
    """Either way; the device takes them again where that peer has gone."""
    with devices.namespaces(clan) as (a, b):
        a.up()
        b.up("--no-offload")
        for client, server in ((a, b), (b, a)):
            transfers(client, server, 50)
        assert a.status()["offloads"] == 1, a.status()
        b.down()
        assert eventually(lambda: a.status()["offloads"] != 1), a.status()


def leaves_an_offload_that_a_kernel_refuses(clan):
    """A kernel that takes no super-packet is sent none after the first; the stream goes on."""
    if shutil.which("strace") is None:
        print("without strace")
        return
    with devices.namespaces(clan) as (a, b):
        a.up()
        b.up()
        assert eventually(lambda: a.pings(b.address))
        trace = ("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=writev", "-e",
                 "inject=writev:error=EINVAL:when=60..90", "-p", str(b.process.pid))
        with subprocess.Popen(trace) as tracing:
            with open(f"/proc/{b.process.pid}/status") as file:
                assert eventually(lambda: file.seek(0) == 0 and "TracerPid:\t0" not in file.read())
            transfers(a, b, 20)
            tracing.terminate()
        assert b.peer(a.address)["refused"] > 0, b.status()
        assert a.status()["offloads"] & 2 == 0, a.status()


def main():
    with contextlib.suppress(AttributeError):
        sys.stdout.reconfigure(line_buffering=True)
    return devices.main([
        reaches_in_either_order, sends_all_sizes, answers_for_addresses_that_nobody_has,
        says_which_mtu_would_do, goes_on_after_a_kill,
        finds_a_peer_at_its_new_address, leaves_routes_and_devices_as_found, refuses,
        ends_when_its_device_is_removed, holds_no_rights, serves_a_third_while_one_is_stopped,
        clan_stat_has_its_counters,
        sends_without_offloads_to_one_that_has_none, leaves_an_offload_that_a_kernel_refuses])


if __name__ == "__main__":
    sys.exit(main())
