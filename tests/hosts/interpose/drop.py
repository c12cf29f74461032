#!/usr/bin/env python3
"""Drops packets at random that arrive at a device: a network that loses, for net.py, where neither
netem nor nft need be.

    drop.py DEVICE PER_MILLE       says "drops", until its standard input ends

An XDP program of seven instructions in the kernel's stack; as root. The kernel forgets it with this
process. Exit code 77: the kernel does not take it. A train of packets that the kernel has not cut
yet is one packet here.
"""
import ctypes
import os
import socket
import struct
import sys

BPF = {"x86_64": 321}.get(os.uname().machine, 280)  # the number of the system call
PROG_LOAD, LINK_CREATE = 5, 28
PROGRAM_XDP, ATTACH_XDP, IN_STACK = 6, 37, 2
XDP_DROP, XDP_PASS = 1, 2
RANDOM = 7  # bpf_get_prandom_u32()
CALL, BELOW, MOVE, EXIT = 0x85, 0xa5, 0xb7, 0x95


def instruction(code, target=0, offset=0, number=0):
    return struct.pack("<BBhi", code, target, offset, number)


def program(per_mille):
    """r0 is a random number below 2^32: as a signed number the limit has to be below 2^31."""
    limit = per_mille * (1 << 31) // 1000
    shift_right = instruction(0x77, 0, 0, 1)
    return b"".join((instruction(CALL, number=RANDOM), shift_right,
                     instruction(BELOW, 0, 2, limit), instruction(MOVE, 0, 0, XDP_PASS),
                     instruction(EXIT), instruction(MOVE, 0, 0, XDP_DROP), instruction(EXIT)))


def bpf(command, attributes):
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b"\0"))
    fd = libc.syscall(BPF, command, buffer, len(buffer))
    if fd < 0:
        print("bpf:", os.strerror(ctypes.get_errno()))
        sys.exit(77)
    return fd


def main():
    device, per_mille = sys.argv[1], int(sys.argv[2])
    code = program(per_mille)
    instructions = ctypes.create_string_buffer(code)
    licence = ctypes.create_string_buffer(b"GPL")
    loaded = bpf(PROG_LOAD, struct.pack("<IIQQ", PROGRAM_XDP, len(code) // 8,
                                        ctypes.addressof(instructions),
                                        ctypes.addressof(licence)))
    bpf(LINK_CREATE, struct.pack("<IIII", loaded, socket.if_nametoindex(device), ATTACH_XDP,
                                 IN_STACK))
    print("drops", flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
