"""The kernel's own shortcut for TCP over loopback: a BPF sockmap that redirects what one socket
sends to the other end's receive queue, past the stack.

Two programs of a few instructions each, without a compiler. One is attached to a cgroup and puts
both ends of each IPv4 connection that its processes establish into a hash of sockets, by their
addresses; the other one is run for each message that a socket of the hash sends, finds the other
end there and redirects. Layouts and numbers: <linux/bpf.h>.
"""

import contextlib
import ctypes
import os
import struct
import tempfile
import time
from pathlib import Path

BPF_CALL = 321
MAP_CREATE, PROG_LOAD, PROG_ATTACH, PROG_DETACH = 0, 5, 8, 9
SOCKHASH = 18                                     # type of map
SOCK_OPS, SK_MSG = 13, 16                         # types of program
CGROUP_SOCK_OPS, SK_MSG_VERDICT = 3, 7            # where they are attached
SOCK_HASH_UPDATE, MSG_REDIRECT_HASH = 70, 71      # helpers
ACTIVE_ESTABLISHED, PASSIVE_ESTABLISHED = 4, 5    # the events of sock_ops
AF_INET, INGRESS, ANY, PASS = 2, 1, 0, 1
MOST = 65536                                      # sockets
PREFIX = "clan-bench-"                            # of our cgroup's name


class Refused(Exception):
    """The kernel, or the machine, does not allow it."""


def instruction(code, to=0, source=0, offset=0, immediate=0):
    return struct.pack("<BBhi", code, source << 4 | to, offset, immediate)


def load(to, source, offset):                     # 32 bits
    return instruction(0x61, to, source, offset)


def move(to, source):
    return instruction(0xbf, to, source)


def constant(to, value):
    return instruction(0xb7, to, immediate=value)


def unequal(register, value, skip):
    return instruction(0x55, register, offset=skip, immediate=value)


def key(fields):
    """On the stack, from the context in r6: local address, remote address, local port, remote
    port."""
    out = b""
    for i, (offset, big_endian) in enumerate(fields):
        out += load(2, 6, offset)
        if big_endian:
            out += instruction(0xdc, 2, immediate=32)
        out += instruction(0x63, 10, 2, 4 * i - 16)
    return out


def call_with_key(helper, hash_fd, flags):
    return (move(1, 6) + instruction(0x18, 2, 1, immediate=hash_fd) + instruction(0) +
            move(3, 10) + instruction(0x07, 3, immediate=-16) + constant(4, flags) +
            instruction(0x85, immediate=helper))


def length(code):
    return len(code) // 8


def note_sockets(hash_fd):
    """struct bpf_sock_ops: op at 0, family 20, remote_ip4 24, local_ip4 28, remote_port 64 (network
    order), local_port 68 (host order)."""
    note = key([(28, False), (24, False), (68, False), (64, True)])
    note += call_with_key(SOCK_HASH_UPDATE, hash_fd, ANY)
    note = load(2, 6, 20) + unequal(2, AF_INET, length(note)) + note
    established = (instruction(0x15, 2, offset=1, immediate=ACTIVE_ESTABLISHED) +
                   unequal(2, PASSIVE_ESTABLISHED, length(note)))
    return move(6, 1) + load(2, 6, 0) + established + note + constant(0, PASS) + instruction(0x95)


def redirect(hash_fd):
    """struct sk_msg_md: family at 16, remote_ip4 20, local_ip4 24, remote_port 60, local_port 64.
    The other end's key is ours the other way round. An end that is not there gets the
    message by TCP."""
    send = key([(20, False), (24, False), (60, True), (64, False)])
    send += call_with_key(MSG_REDIRECT_HASH, hash_fd, INGRESS)
    return (move(6, 1) + load(2, 6, 16) + unequal(2, AF_INET, length(send)) + send +
            constant(0, PASS) + instruction(0x95))


def bpf(command, attributes):
    libc = ctypes.CDLL(None, use_errno=True)
    memory = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    result = libc.syscall(BPF_CALL, command, memory, len(memory))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def load_program(kind, code, attach_type):
    instructions, licence = ctypes.create_string_buffer(code), ctypes.create_string_buffer(
        b"Dual BSD/GPL")
    log = ctypes.create_string_buffer(65536)
    attributes = struct.pack("<IIQQIIQII16sII", kind, length(code), ctypes.addressof(instructions),
                             ctypes.addressof(licence), 1, len(log), ctypes.addressof(log), 0, 0,
                             b"clan_bench", 0, attach_type)
    try:
        return bpf(PROG_LOAD, attributes)
    except OSError as error:
        said = log.value.decode(errors="replace").strip().split("\n")[-1]
        why = f": {said}" if said else ""
        raise Refused(f"the kernel refuses the program: {error.strerror}{why}") from None


def cgroup_root():
    for line in Path("/proc/mounts").read_text().splitlines():
        fields = line.split()
        if fields[2] == "cgroup2":
            return Path(fields[1])
    raise Refused("no cgroup2 is mounted")


class Redirection:
    """Redirects for the processes that `prefix` starts, until it is closed."""

    def __init__(self):
        self.fds, self.group = [], None
        try:
            hash_fd = self.keep(bpf(MAP_CREATE, struct.pack("<IIIII", SOCKHASH, 16, 4, MOST, 0)))
            verdict = self.keep(load_program(SK_MSG, redirect(hash_fd), SK_MSG_VERDICT))
            note = self.keep(load_program(SOCK_OPS, note_sockets(hash_fd), CGROUP_SOCK_OPS))
            bpf(PROG_ATTACH, struct.pack("<IIII", hash_fd, verdict, SK_MSG_VERDICT, 0))
            root = cgroup_root()
            for left in root.glob(f"{PREFIX}*"):  # by one that was killed
                with contextlib.suppress(OSError):
                    left.rmdir()
            self.group = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
            group_fd = self.keep(os.open(self.group, os.O_RDONLY | os.O_DIRECTORY))
            bpf(PROG_ATTACH, struct.pack("<IIII", group_fd, note, CGROUP_SOCK_OPS, 0))
        except OSError as error:
            self.close()
            raise Refused(f"the kernel refuses it: {error.strerror}") from None
        except Refused:
            self.close()
            raise

    def keep(self, fd):
        self.fds.append(fd)
        return fd

    def prefix(self):
        """Words to put in front of a command."""
        return ["/bin/sh", "-c", f'echo $$ > {self.group}/cgroup.procs && exec "$@"', "sh"]

    def close(self):
        for fd in reversed(self.fds):
            os.close(fd)
        self.fds.clear()
        deadline = time.monotonic() + 5
        while self.group is not None and time.monotonic() < deadline:
            with contextlib.suppress(OSError):  # its processes are on their way out
                self.group.rmdir()
                self.group = None
                return
            time.sleep(0.05)
