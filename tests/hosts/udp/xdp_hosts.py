#!/usr/bin/env python3
"""Two hosts whose packets go by AF_XDP at both ends, or at one of them, which the other end must
not notice.

    xdp_hosts.py PROGRAM [CLAN]

The cases of hosts.py and cut_wires.py, with CLAN_NETWORK_PACKETS=xdp: every byte right; a wire that
is cut and comes back; a device that goes; a process that is killed, after which nothing is left at
the device and the next one begins; two processes at one device, with a queue each and with one for
both; frames that are no datagrams, injected at the other end of the wire; what `clan stat` and
`clan doctor` say. Exit code 77: no root, no `ip`, or no AF_XDP here.
"""
import concurrent.futures
import ctypes
import errno
import json
import os
import random
import socket
import struct
import subprocess
import sys
import time

import cut_wires
import hosts

QUIET_WITHIN = 10  # seconds in which a program leaves its device


def by_xdp(program):
    return ["env", "CLAN_NETWORK_PACKETS=xdp", "CLAN_LOG=info", program]


def devices_with_xdp(name):
    shown = subprocess.run(["ip", "-n", name, "link", "show"], stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, text=True, check=True).stdout
    return [line for line in shown.splitlines() if " xdp" in line]


def wait_for_none(names):
    end = time.monotonic() + QUIET_WITHIN
    while any(devices_with_xdp(name) for name in names):
        if time.monotonic() > end:
            raise SystemExit(f"left behind: {[devices_with_xdp(name) for name in names]}")
        time.sleep(0.05)
    time.sleep(0.3)  # the kernel gives the queues back behind that


def require(right, what):
    if not right:
        raise SystemExit(what)


class Peer:
    """A server, or a client that pushes, in the background; what it logs goes to a file."""

    def __init__(self, name, xdp, program, *words):
        command = by_xdp(program) if xdp else [program]
        self.log = open(f"/proc/self/fd/{os.memfd_create('log')}", "w+")
        self.child = subprocess.Popen(hosts.inside(name, *command, *words), stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.said = self.child.stdout.readline()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()
        self.log.close()

    def logged(self):
        with open(f"/proc/self/fd/{self.log.fileno()}") as file:
            return file.read()

    def took_device(self):
        return "by AF_XDP" in self.logged() and "not by AF_XDP" not in self.logged()

    def takes_device(self):
        """A peer earns its way by packets."""
        for _ in range(10 * QUIET_WITHIN):
            if self.took_device():
                return True
            time.sleep(0.1)
        return False


def server(name, xdp, program):
    peer = Peer(name, xdp, program, "serve", hosts.PORT)
    require(peer.said == "ready\n", f"the server has not begun: {peer.logged()}")
    return peer


def ask(name, xdp, program):
    command = by_xdp(program) if xdp else [program]
    done = subprocess.run(hosts.inside(name, *command, "ask", hosts.PORT, "10.78.0.1"), timeout=90,
                          stderr=subprocess.PIPE, text=True)
    require(done.returncode == 0, f"the client ended with {done.returncode}: {done.stderr}")
    return done.stderr


def either_end(program):
    for mtu in 1500, 9000:
        for here, there in ((True, True), (True, False), (False, True)):
            with hosts.hosts(mtu) as names:
                with server(names[0], here, program) as peer:
                    logged = ask(names[1], there, program)
                    require(peer.takes_device() if here else not peer.took_device(),
                            f"the server: {peer.logged()}")
                    require(("by AF_XDP" in logged) == there, f"the client: {logged}")
                wait_for_none(names)
            print(f"mtu {mtu}, AF_XDP at {'both ends' if here and there else 'one end'}: right")


def push(name, xdp, program):
    peer = Peer(name, xdp, program, "push", hosts.PORT, "10.78.0.1")
    require(peer.said == "begun\n", f"the client said {peer.said!r}: {peer.logged()}")
    return peer


def cut(program):
    case = cut_wires.Case(program, 0, "a wire that is cut")
    with hosts.hosts(1500) as names, server(names[0], True, program):
        with push(names[1], True, program) as client:
            for seconds in (0.3, 1.5):
                hosts.ip("-n", names[0], "link", "set", "v0", "down")
                time.sleep(seconds)
                hosts.ip("-n", names[0], "link", "set", "v0", "up")
                time.sleep(0.5)
            require(client.takes_device(), client.logged())
            total = case.finish(client.child)
            print(f"a wire that is cut and comes back: {total / 1e6:.0f} MB, all right")


def device_goes(program):
    case = cut_wires.Case(program, 0, "a device that goes")
    with hosts.hosts(1500, "gone") as names, server(names[0], True, program):
        with push(names[1], True, program) as client:
            require(client.takes_device(), client.logged())
            hosts.ip("-n", names[0], "link", "del", "v0")
            err, total, seconds = case.result(client.child, cut_wires.DEAD + cut_wires.LATE)
            require(err != 0, "the stream ended as if nothing had happened")
            print(f"a device that goes: {os.strerror(err)} after {seconds:.1f} s")


def killed(program):
    with hosts.hosts(1500) as names:
        with server(names[0], True, program) as peer:
            with push(names[1], True, program) as client:
                require(peer.takes_device() and client.takes_device(), client.logged())
                require(devices_with_xdp(names[0]) and devices_with_xdp(names[1]), "no program")
        wait_for_none(names)
        with server(names[0], True, program) as peer, push(names[1], True, program) as client:
            require(peer.takes_device() and client.takes_device(), client.logged())
            peer.child.kill()
            case = cut_wires.Case(program, 0, "a server that is killed")
            err, _, seconds = case.result(client.child, cut_wires.DEAD + cut_wires.LATE)
            require(err == errno.ECONNRESET, f"ended with {err}")
            require(seconds < cut_wires.DEAD - 3, f"known after {seconds:.1f} s only")
        wait_for_none(names)
        with server(names[0], True, program) as again:
            ask(names[1], True, program)
            require(again.takes_device(), again.logged())
        wait_for_none(names)
    print("killed with kill -9 while they talked: nothing left, and the next ones begin")


def told(program, clan):
    """`clan stat` shows which way packets leave, `clan doctor` which they could."""
    with hosts.hosts(1500) as names, server(names[0], False, program) as peer:
        with push(names[1], True, program) as client:
            require(client.takes_device(), client.logged())
            for name, packets in (names[0], "sockets"), (names[1], "xdp-stack"):
                said = subprocess.run(hosts.inside(name, clan, "stat", "--json"), check=True,
                                      stdout=subprocess.PIPE, text=True).stdout
                here = [path for path in json.loads(said) if path["path"] == "host" and
                        path["pid"] == (peer if name == names[0] else client).child.pid]
                require([path["packets"] for path in here] == [packets], f"{name}: {said}")
        for host, state, word in (("10.78.0.1", "ok", "Ethernet"), ("10.78.0.2", "absent", ""),
                                  ("[::1]", "absent", "IPv6")):
            said = subprocess.run(hosts.inside(names[1], clan, "doctor", "--json", host),
                                  check=True, stdout=subprocess.PIPE, text=True).stdout
            found = [f for f in json.loads(said)["findings"] if f["name"] == "af_xdp"]
            require(len(found) == 1 and found[0]["state"] == state and word in found[0]["seen"],
                    f"{host}: {found}")
    print("clan stat and clan doctor: right")


def two_at_one_device(program):
    """Two clients on one host. A queue takes packets for one process: with one queue the second has
    the UDP sockets."""
    for queues in 1, 2:
        with hosts.hosts(1500, queues=queues) as names, server(names[0], False, program):
            with push(names[1], True, program) as first:
                require(first.takes_device(), first.logged())
                logged = ask(names[1], True, program)
                require(("not by AF_XDP" in logged) == (queues == 1), logged)
                require(devices_with_xdp(names[1]), "the second has taken the program with it")
                case = cut_wires.Case(program, 0, "the first of two")
                total = case.finish(first.child)
            wait_for_none(names)
            print(f"two processes, {queues} queues: {total / 1e6:.0f} MB, all right")


def checksum(header):
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    total = (total >> 16) + (total & 0xffff)
    return ~((total >> 16) + total) & 0xffff


def frame(mac, port, payload, rng):
    """A datagram for the server, changed somewhere, mostly with a right checksum."""
    length = 28 + len(payload) + rng.choice([0, 0, 0, -1, 1, 7, 1000, -28])
    ip = bytearray(
        struct.pack("!BBHHHBBH4s4s", rng.choice([0x45] * 6 + [0x46, 0x4f, 0x65]), 0,
                    length & 0xffff, 1, rng.choice([0x4000] * 4 + [0x2000, 0x2001, 1, 0x1fff]), 64,
                    rng.choice([17] * 8 + [6, 1]), 0,
                    socket.inet_aton(rng.choice(["10.78.0.2"] * 4 + ["127.0.0.1", "224.0.0.1"])),
                    socket.inet_aton("10.78.0.1")))
    if rng.random() < 0.9:
        ip[10:12] = struct.pack("!H", checksum(bytes(ip)))
    udp = struct.pack("!HHHH", rng.choice([0, 9, 5000]), port,
                      (8 + len(payload) + rng.choice([0, 0, 0, -8, 1, 900])) & 0xffff, 0)
    whole = mac + b"\x02\0\0\0\0\x09" + b"\x08\0" + bytes(ip) + udp + payload
    return whole[:rng.choice([len(whole)] * 6 + [14, 33, 34, 41, 42, 43, 60])]


def hostile(program):
    case = cut_wires.Case(program, 0, "hostile frames")
    rng = random.Random(5)
    with hosts.hosts(1500) as names, server(names[0], True, program) as peer:
        with push(names[1], True, program) as client:
            require(peer.takes_device(), peer.logged())
            shown = subprocess.run(["ip", "-n", names[0], "link", "show", "v0"],
                                   stdout=subprocess.PIPE, text=True, check=True).stdout
            mac = bytes.fromhex(shown.split("link/ether ")[1].split()[0].replace(":", ""))
            port = int(peer.logged().split("UDP port ")[1].split(",")[0].split()[0])
            here = os.open("/proc/self/ns/net", os.O_RDONLY)
            with open(f"/run/netns/{names[1]}") as there:
                set_namespace(there.fileno())
            with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
                raw.bind(("v0", 0))
                for _ in range(20_000):
                    try:
                        raw.send(frame(mac, port, rng.randbytes(rng.choice([1, 8, 24, 64, 1400])),
                                       rng))
                    except OSError:
                        pass  # a queue that is full, or too short to be a frame
            set_namespace(here)
            os.close(here)
            total = case.finish(client.child)
            require(peer.child.poll() is None, f"the server has ended: {peer.logged()}")
        ask(names[1], True, program)
    print(f"20000 hostile frames among {total / 1e6:.0f} MB: all right")


def set_namespace(fd):
    if ctypes.CDLL(None, use_errno=True).setns(fd, 0x40000000) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def possible(program):
    with hosts.hosts(1500) as names:
        peer = Peer(names[0], True, program, "serve", hosts.PORT)
        with peer:
            if peer.said == "ready\n":
                return True
            print(f"no AF_XDP here: {peer.logged()}")
            return False


def main():
    program, clan = sys.argv[1], list(filter(None, sys.argv[2:]))
    if not hosts.possible() or not possible(program):
        return 77
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(device_goes, program)  # most of a quarter of a minute
        for case in either_end, cut, killed, two_at_one_device, hostile:
            case(program)
            sys.stdout.flush()
        if clan:
            told(program, clan[0])
        waiting.result()
    return 0


if __name__ == "__main__":
    sys.exit(main())
