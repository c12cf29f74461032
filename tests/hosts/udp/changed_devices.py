#!/usr/bin/env python3
"""Two programs on two hosts whose devices, addresses and neighbours change while they talk.

    changed_devices.py PROGRAM

Each case has two network namespaces of its own, as in hosts.py; a client sends through a stream
that echoes, and both ends check every byte. Nothing here lasts: the stream has to go on in the end.
By UDP sockets, and by AF_XDP where that is possible. Exit code 77: not root, or no `ip`.
"""
import concurrent.futures
import ctypes
import fcntl
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

import cut_wires
import hosts
import xdp_hosts

SIOCETHTOOL = 0x8946
TSO, GSO, GRO, CHECKSUMS, SEGMENTS = 0x1f, 0x24, 0x2c, 0x17, 0x19  # ETHTOOL_S...
GET_CHANNELS, SET_CHANNELS = 0x3c, 0x3d
BPF = 321  # the system call
BPF_OBJ_GET_INFO_BY_FD, BPF_LINK_GET_FD_BY_ID, BPF_LINK_GET_NEXT_ID = 15, 30, 31
BPF_LINK_DETACH = 34
AT_ONCE = 4
HERE, THERE = "10.78.0.1/24", "10.78.0.2/24"


def ip(name, *words):
    hosts.ip("-n", name, *words)


def device(name, *words):
    ip(name, "link", "set", "v0", *words)


def ask_driver(name, command):
    """Asks the device at that host; returns its answer, or nothing if it refuses."""
    buffer = ctypes.create_string_buffer(command)
    request = struct.pack("16sQ16x", b"v0", ctypes.addressof(buffer))
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        with open(f"/run/netns/{name}") as there:
            xdp_hosts.set_namespace(there.fileno())
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            fcntl.ioctl(asked, SIOCETHTOOL, request)
        return buffer.raw
    except OSError:
        return None
    finally:
        xdp_hosts.set_namespace(here)
        os.close(here)


def set_feature(name, feature, on):
    ask_driver(name, struct.pack("II", feature, on))


def sizes(names, *_):
    for mtu in 9000, 1300, 1500, 576, 9000, 1280:
        for name in names:
            device(name, "mtu", str(mtu))
        time.sleep(0.4)
    for name in names:
        device(name, "mtu", "1500")


def addresses(names, *_):
    for _ in range(2):
        for name, address in zip(names, (HERE, THERE)):
            ip(name, "address", "delete", address, "dev", "v0")
            time.sleep(0.4)
            ip(name, "address", "add", address, "dev", "v0")
            time.sleep(0.4)


def another_address(names, *_):
    """The client is followed."""
    ip(names[1], "address", "delete", THERE, "dev", "v0")
    ip(names[1], "address", "add", "10.78.0.3/24", "dev", "v0")
    time.sleep(2)


def neighbours(names, *_):
    for last in range(1, 6):
        device(names[0], "address", f"02:00:00:00:00:{last:02x}")
        ip(names[1], "neighbour", "flush", "dev", "v0")
        time.sleep(0.3)


def offloads(names, *_):
    for turn in range(6):
        for name in names:
            for feature in TSO, GSO:
                set_feature(name, feature, False)
            set_feature(name, GRO, turn % 2)
            set_feature(name, CHECKSUMS, turn % 3 != 0)
        time.sleep(0.2)
        for name in names:
            for feature in CHECKSUMS, SEGMENTS, TSO, GSO:
                set_feature(name, feature, True)
        time.sleep(0.2)


def queues(names, *_):
    for count in 1, 2, 1, 2:
        for name in names:
            words = ask_driver(name, struct.pack("9I", GET_CHANNELS, *[0] * 8))
            if words:
                kept = struct.unpack("9I", words[:36])
                ask_driver(name, struct.pack("9I", SET_CHANNELS, *kept[1:5], count, count, 0, 0))
        time.sleep(0.3)


def flaps(names, *_):
    for turn in range(30):
        device(names[turn % 2], "down")
        time.sleep(0.02)
        device(names[turn % 2], "up")
        time.sleep(0.05)


def slow(names, *_):
    """Far less than what is under way, of which most is lost; where there is `tc`."""
    for name in names:
        subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", "v0", "root", "tbf",
                                  "rate", "1mbit", "burst", "16k", "latency", "50ms"], check=True)
    time.sleep(3)
    for name in names:
        subprocess.run(["tc", "-n", name, "qdisc", "delete", "dev", "v0", "root"],
                                 check=True)


def stopped(_, server, __):
    server.child.send_signal(signal.SIGSTOP)
    time.sleep(5)
    server.child.send_signal(signal.SIGCONT)


def bpf(command, attributes):
    attributes = attributes.ljust(64, b"\0")
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    got = ctypes.CDLL(None, use_errno=True).syscall(BPF, command, buffer, len(attributes))
    return got, buffer.raw


def take_program(name):
    """Takes the link of that device's program away from it; those of other devices stay."""
    shown = subprocess.run(["ip", "-n", name, "-d", "link", "show", "v0"], stdout=subprocess.PIPE,
                           text=True, check=True).stdout
    program = int(re.search(r"prog/xdp\S* id (\d+)", shown)[1])
    link = 0
    while True:
        got, answer = bpf(BPF_LINK_GET_NEXT_ID, struct.pack("I", link))
        xdp_hosts.require(got == 0, "the program has no link")
        link = struct.unpack("II", answer[:8])[1]
        fd, _ = bpf(BPF_LINK_GET_FD_BY_ID, struct.pack("I", link))
        if fd < 0:
            continue
        info = ctypes.create_string_buffer(64)
        bpf(BPF_OBJ_GET_INFO_BY_FD, struct.pack("IIQ", fd, len(info), ctypes.addressof(info)))
        found = struct.unpack("III", info.raw[:12])[2] == program
        if found:
            got, _ = bpf(BPF_LINK_DETACH, struct.pack("I", fd))
            xdp_hosts.require(got == 0, "the program is still there")
        os.close(fd)
        if found:
            return


def program_taken(names, server, client):
    """By somebody else, from both devices."""
    for name, peer in zip(names, (server, client)):
        xdp_hosts.require(peer.takes_device(), peer.logged())
        take_program(name)
    time.sleep(1)


def run(program, number, change, xdp):
    kind = f"{change.__name__.replace('_', ' ')}, {'AF_XDP' if xdp else 'sockets'}"
    case = cut_wires.Case(program, number, kind)
    with hosts.hosts(1500, f"{number}", queues=2) as names:
        with xdp_hosts.server(names[0], xdp, program) as server:
            with xdp_hosts.push(names[1], xdp, program) as client:
                change(names, server, client)
                time.sleep(0.3)
                total = case.finish(client.child)
            xdp_hosts.require(server.child.poll() is None, server.logged())
        print(f"{kind}: {total / 1e6:.0f} MB, all right", flush=True)


def main():
    program = sys.argv[1]
    if not hosts.possible():
        return 77
    changes = [sizes, addresses, another_address, neighbours, offloads, queues, flaps, stopped]
    if shutil.which("tc"):
        changes.append(slow)
    work = [(change, False) for change in changes]
    if xdp_hosts.possible(program):
        work += [(change, True) for change in changes + [program_taken]]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        running = [(change, xdp, pool.submit(run, program, number, change, xdp))
                   for number, (change, xdp) in enumerate(work)]
        failures = [f"{change.__name__}, AF_XDP {xdp}: {done.exception()}"
                    for change, xdp, done in running if done.exception()]
    print("\n".join(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
