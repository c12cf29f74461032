#!/usr/bin/env python3
"""Peers that lie, claim what is another's and send nonsense: the kernel gets none of it, and the
others notice nothing.

    hostile.py CLAN IP-HOSTILE    (exit code 77: needs root, namespaces and /dev/net/tun)
"""

import contextlib
import signal
import subprocess
import sys

import devices
from devices import eventually

PROGRAM = sys.argv[2]


@contextlib.contextmanager
def hostile(host, own, peer, mode):
    words = host.command(PROGRAM, own, peer, mode)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          env=host.environment) as process:
        try:
            assert process.stdout.readline() == "done\n"
            yield
        finally:
            process.kill()


def lies_reach_no_kernel(clan):
    """What a peer sends wrong is dropped and counted; what is right of it arrives."""
    with devices.namespaces(clan, 3) as (a, b, c):
        a.up()
        b.up()
        assert eventually(lambda: a.pings(b.address))
        with hostile(c, c.address, a.address, "lies"):
            assert a.pings(b.address)
            peer = a.peer(c.address)
            assert peer["malformed"] > 1000 and peer["bad_source"] > 1000, peer
            assert peer["refused"] == 0, peer
        assert a.pings(b.address)
        assert a.process.poll() is None


def claims_of_anothers_address_are_refused(clan):
    """A process that says it is a peer is not believed: that is found elsewhere."""
    with devices.namespaces(clan, 3) as (a, b, c):
        a.up()
        b.up()
        assert eventually(lambda: a.pings(b.address))
        take = ("import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); "
                "s.bind((sys.argv[1], 7777)); print('ready', flush=True); print(s.recv(100))")
        words = a.command(sys.executable, "-c", take, a.address)
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as taking:
            assert taking.stdout.readline() == "ready\n"
            for _ in range(3):
                with hostile(c, b.address, a.address, "claims"):
                    assert eventually(lambda: a.pings(b.address)), a.status()
                assert a.pings(b.address)
            assert taking.poll() is None, "a datagram from it has arrived"
            give = ("import socket, sys; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)"
                    ".sendto(b'right', (sys.argv[1], 7777))")
            b.must(sys.executable, "-c", give, a.address)
            assert taking.communicate(timeout=20)[0] == "b'right'\n"
        b.down()
        for claimed in (b.address, "10.9.0.99"):
            with hostile(c, claimed, a.address, "claims"):
                assert not a.pings(claimed)
        assert [peer["address"] for peer in a.status()["peers"]] == [b.address], a.status()


def claims_of_a_verified_peers_address_interrupt_nothing(clan):
    """Its packets go on meanwhile; and a peer that has been started anew is found."""
    with devices.namespaces(clan, 3) as (a, b, c):
        a.up()
        b.up()
        assert eventually(lambda: a.pings(b.address))
        words = a.command("ping", "-n", "-q", "-c", "400", "-i", "0.005", b.address)
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as pinging:
            for _ in range(5):
                with hostile(c, b.address, a.address, "claims"):
                    pass
            said = pinging.communicate(timeout=60)[0]
        assert " 400 received" in said, said
        assert a.status()["strangers"] >= 5, a.status()
        with hostile(c, b.address, a.address, "claims"):
            b.kill()
            b.up()
            assert eventually(lambda: b.pings(a.address)), a.status()


def a_claim_interrupts_no_opening(clan):
    """A peer has greeted and does not answer yet, as it is stopped, when another process claims its
    address: its connection stays, and the device finds it when it goes on."""
    with devices.namespaces(clan, 3) as (a, _, c):
        a.up()
        with subprocess.Popen(c.command(PROGRAM, c.address, a.address, "late"), text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              env=c.environment) as peer:
            try:
                assert peer.stdout.readline() == "connected\n"
                a.process.send_signal(signal.SIGSTOP)
                peer.stdin.write("\n")
                peer.stdin.flush()
                assert peer.stdout.readline() == "done\n"
                peer.send_signal(signal.SIGSTOP)
                a.process.send_signal(signal.SIGCONT)
                assert eventually(lambda: a.status()["peers"]), a.status()
                with hostile(c, c.address, a.address, "claims"):
                    assert eventually(lambda: a.status()["strangers"] == 1), a.status()
                    peer.send_signal(signal.SIGCONT)
                    assert eventually(lambda: a.peer(c.address)["up"]), a.status()
            finally:
                a.process.send_signal(signal.SIGCONT)
                peer.kill()


def peers_that_have_gone_make_room(clan):
    """More peers come than there are places for, one after the other; no counter decreases."""
    with devices.namespaces(clan, 3) as (a, b, c):
        a.up("--address", "10.10.255.254/16")
        b.up()
        assert eventually(lambda: b.pings(a.address)), a.status()
        b.down()

        def received():
            return sum(peer["received"] for peer in a.status()["peers"])

        before = received()
        with hostile(c, "10.10.0.1", "10.10.255.254", "crowd"):
            assert received() >= before > 0, (before, received())
            b.up()
            assert eventually(lambda: b.pings(a.address)), a.status()
            assert len(a.status()["peers"]) == 255


def a_peer_takes_fewer_offloads_later(clan):
    """Then the device hands out none that it lacks, until it has gone."""
    with devices.namespaces(clan, 3) as (a, _, c):
        a.up()
        before = a.status()["offloads"]
        with hostile(c, c.address, a.address, "fewer"):
            assert eventually(lambda: a.status()["offloads"] == 1), a.status()
        assert eventually(lambda: a.status()["offloads"] == before), a.status()


def noise_ends_the_connection(clan):
    """Messages without a Hello, and a Hello of this end's own address."""
    with devices.namespaces(clan, 3) as (a, b, c):
        a.up()
        b.up()
        with hostile(c, c.address, a.address, "noise"), \
                hostile(c, a.address, a.address, "claims"):
            assert eventually(lambda: a.status()["strangers"] >= 2), a.status()
            assert eventually(lambda: a.pings(b.address))
            assert len(a.status()["peers"]) == 1


if __name__ == "__main__":
    sys.exit(devices.main([lies_reach_no_kernel, claims_of_anothers_address_are_refused,
                           claims_of_a_verified_peers_address_interrupt_nothing,
                           a_claim_interrupts_no_opening, peers_that_have_gone_make_room,
                           a_peer_takes_fewer_offloads_later, noise_ends_the_connection]))
