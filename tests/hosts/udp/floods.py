#!/usr/bin/env python3
"""A host that is flooded by strangers while it serves.

    floods.py PROGRAM [crypto]

Two network namespaces, as in hosts.py. A client streams through an echo and checks every byte; an
attacker beside it writes raw frames to both ports of the server, as fast as it can: garbage;
packets with a right check and an unknown connection; HELLOs without a cookie from forged addresses;
and the client's own packets again. The stream has to go on, every byte right; the server may answer
with a small part of what it gets, may not grow, and has to serve the next client. Without a key,
with one, and by AF_XDP where that is possible. Says what a packet of each flood cost the server.
Not in builds with sanitizers, whose memory grows. Exit code 77: not root, or no `ip`.
"""
import contextlib
import os
import random
import secrets
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

import cut_wires
import hosts
import xdp_hosts

FLOOD_SECONDS = 1
MOST_GROWTH = 16 << 20  # bytes of resident memory, of a server that streams meanwhile
OFF, ENCRYPT = 0, 2
HELLO, RETRY, DATA, RESET = 1, 2, 5, 6
MOST_RESETS = 2 * 1000 * (FLOOD_SECONDS + 1)  # of each port, 1000 a second
FORGED = [f"10.78.0.{last}" for last in range(100, 108)]
CLIENT, SERVER = "10.78.0.2", "10.78.0.1"
HEADERS = 42  # Ethernet, IPv4, UDP


def crc_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82f63b78 if byte & 1 else 0)
        table.append(byte)
    return table


TABLE = crc_table()


def with_check(packet):
    crc = 0xffffffff
    for byte in packet[:4] + bytes(4) + packet[8:]:
        crc = TABLE[(crc ^ byte) & 0xff] ^ crc >> 8
    return packet[:4] + struct.pack("!I", crc ^ 0xffffffff) + packet[8:]


def common(kind, mode):
    return struct.pack("!BBHI", 1 << 4 | kind, mode, 0, 0)


def garbage(rng, _):
    return rng.randbytes(rng.choice([1, 7, 8, 31, 64, 300, 1200, 1472]))


def unknown(rng, mode):
    number = struct.pack("!Q", rng.randrange(1, 99))
    return with_check(common(DATA, mode) + rng.randbytes(8) + number +
                      bytes(rng.choice([1, 24, 40])))


def hello(rng, mode):
    share = b"" if mode == OFF else rng.randbytes(32)
    packet = (common(HELLO, mode) + rng.randbytes(24) + bytes(16) +
              struct.pack("!II4Q", 2048, 65000, *[1 << 18] * 4) +
              struct.pack("!BBH", len(share), 0, 0) + share + rng.randbytes(16 if share else 0))
    return with_check(packet + bytes(1200 - len(packet)))


def frame(macs, source, source_port, port, payload):
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28 + len(payload), 1, 0x4000, 64, 17, 0,
                     socket.inet_aton(source), socket.inet_aton(SERVER))
    ip = ip[:10] + struct.pack("!H", xdp_hosts.checksum(ip)) + ip[12:]
    return macs + b"\x08\0" + ip + struct.pack("!HHHH", source_port, port, 8 + len(payload),
                                               0) + payload


def mac_of(name):
    shown = subprocess.run(["ip", "-n", name, "link", "show", "v0"], stdout=subprocess.PIPE,
                           text=True, check=True).stdout
    return bytes.fromhex(shown.split("link/ether ")[1].split()[0].replace(":", ""))


def ports_of(pid):
    """Returns the ports of its UDP sockets: the directory's and its own."""
    with open(f"/proc/{pid}/net/udp") as v4, open(f"/proc/{pid}/net/udp6") as v6:
        lines = v4.read().splitlines()[1:] + v6.read().splitlines()[1:]
    return sorted({int(line.split()[1].rsplit(":", 1)[1], 16) for line in lines})


def resident(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        words = file.read().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def wire_of(name):
    """A raw socket at that host's device, opened there."""
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        with open(f"/run/netns/{name}") as there:
            xdp_hosts.set_namespace(there.fileno())
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        xdp_hosts.set_namespace(here)
    finally:
        os.close(here)
    with raw:
        raw.bind(("v0", 3))
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        yield raw


class Listener(threading.Thread):
    """What the server sends to forged addresses, by the kind of packet; frames of the client."""

    def __init__(self, raw):
        super().__init__()
        self.raw, self.over = raw, False
        self.answered, self.client = {}, []
        raw.settimeout(0.1)

    def run(self):
        while not self.over:
            try:
                got = self.raw.recv(1 << 16)
            except OSError:
                continue
            if len(got) < HEADERS + 8 or got[12:14] != b"\x08\0" or got[23] != 17:
                continue
            source, to = (socket.inet_ntoa(got[at:at + 4]) for at in (26, 30))
            if to in FORGED:
                kind = got[HEADERS] & 15
                count, size = self.answered.get(kind, (0, 0))
                self.answered[kind] = count + 1, size + len(got) - HEADERS
            elif (source, to) == (CLIENT, SERVER) and len(got) <= 1514 and len(self.client) < 4000:
                self.client.append(got)

    def settled(self):
        """What has been answered, when no more comes."""
        before = None
        while before != self.answered:
            before = dict(self.answered)
            time.sleep(0.3)
        return before

    def stop(self):
        self.over = True
        self.join()


def flood(raw, frames):
    """Sends them round and round; how many, and their bytes of payload."""
    sent = size = 0
    end = time.monotonic() + FLOOD_SECONDS
    while time.monotonic() < end:
        for one in frames[sent % len(frames):][:256]:
            try:
                raw.send(one)
            except OSError:
                continue
            sent += 1
            size += len(one) - HEADERS
    return sent, size


def made(rng, maker, macs, ports, mode):
    return [frame(macs, rng.choice(FORGED), rng.randrange(1024, 65536), rng.choice(ports),
                  maker(rng, mode)) for _ in range(1000)]


def floods(names, peer, mode):
    pid = peer.child.pid
    rng = random.Random(7)
    macs = mac_of(names[0]) + mac_of(names[1])
    there = ":".join(f"{byte:02x}" for byte in mac_of(names[1]))
    for address in FORGED:
        hosts.ip("-n", names[0], "neighbour", "add", address, "lladdr", there, "dev", "v0", "nud",
                 "permanent")
    ports = ports_of(pid)
    xdp_hosts.require(len(ports) == 2, f"the server has the ports {ports}")
    with wire_of(names[1]) as raw, wire_of(names[1]) as ears:
        listener = Listener(ears)
        listener.start()
        try:
            time.sleep(0.5)  # of the client's packets, to be repeated
            before = resident(pid)
            for maker in garbage, unknown, hello, None:
                frames = made(rng, maker, macs, ports, mode) if maker else list(listener.client)
                if not frames:
                    continue  # AF_XDP passes our ears
                listener.answered.clear()
                cpu = cpu_seconds(pid)
                sent, size = flood(raw, frames)
                cpu = cpu_seconds(pid) - cpu
                answered = listener.settled()
                grown = resident(pid) - before
                what = maker.__name__ if maker else "again"
                print(f"  {what}: {sent} packets, {cpu / sent * 1e6:.1f} us each beside the "
                      f"stream, answered {answered}, {grown >> 10} KB more", flush=True)
                check(what, answered, size, grown)
        finally:
            listener.stop()


def check(what, answered, size, grown):
    count, told = (sum(values) for values in zip((0, 0), *answered.values()))
    # Few packets get through on a busy machine, and each of them may have its RESET.
    xdp_hosts.require(told * 8 <= size or set(answered) == {RESET} and count <= MOST_RESETS,
                      f"{what}: {told} bytes in answer to {size}")
    xdp_hosts.require(what != "hello" or list(answered) == [RETRY], f"{what}: {answered}")
    xdp_hosts.require(what in ("hello", "unknown") or count == 0, f"{what}: {answered}")
    xdp_hosts.require(grown < MOST_GROWTH, f"{what}: the server has grown by {grown} bytes")


def run(program, mode, xdp, key):
    case = cut_wires.Case(program, 0, "floods")
    with hosts.hosts(1500) as names:
        with xdp_hosts.Peer(names[0], xdp, program, "serve", hosts.PORT, *key) as peer:
            xdp_hosts.require(peer.said == "ready\n", peer.logged())
            with xdp_hosts.Peer(names[1], xdp, program, "push", hosts.PORT, SERVER, *key) as client:
                xdp_hosts.require(client.said == "begun\n", client.logged())
                floods(names, peer, mode)
                total = case.finish(client.child)
            hosts.ask(names, program, key)
            xdp_hosts.require(peer.child.poll() is None, f"the server has ended: {peer.logged()}")
    kind = "AF_XDP" if xdp else "with a key" if key else "without a key"
    print(f"{kind}: {total / 1e6:.0f} MB among floods, all right", flush=True)


def main():
    program, crypto = sys.argv[1], len(sys.argv) > 2
    if not hosts.possible():
        return 77
    run(program, OFF, False, [])
    if crypto:
        with tempfile.NamedTemporaryFile("w", prefix="clan-key-") as file:
            file.write(secrets.token_hex(32))
            file.flush()
            run(program, ENCRYPT, False, [file.name])
    if xdp_hosts.possible(program):
        run(program, OFF, True, [])
    return 0


if __name__ == "__main__":
    sys.exit(main())
