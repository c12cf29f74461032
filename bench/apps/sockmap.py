"""Whether a BPF sockmap could take loopback TCP past the stack here: the kernel's own shortcut."""

import ctypes
import os
import platform

BPF_CALL = {"x86_64": 321, "aarch64": 280}
BPF_MAP_CREATE, SOCKHASH = 0, 18


def sockmap():
    """Text for the heading. There is no column of figures: setting up a redirect takes a BPF program."""
    call = BPF_CALL.get(platform.machine())
    if call is None:
        return f"not available: bpf() is not known on {platform.machine()}"
    attributes = (ctypes.c_uint32 * 32)(SOCKHASH, 4, 4, 1)  # type, size of key, of value, entries
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(call, BPF_MAP_CREATE, attributes, ctypes.sizeof(attributes))
    if fd < 0:
        return f"not available: the kernel refuses the map: {os.strerror(ctypes.get_errno())}"
    os.close(fd)
    return "not available: the kernel would allow it, but `clan bench apps' has no BPF program to set it up"
