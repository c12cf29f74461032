#!/usr/bin/env python3
"""Programs nobody here wrote, with libclanrpc and stock: rpcbind, rpcinfo, rpc.rstatd and rup, by rpcbind's
registration as ever. In a network and a mount namespace of their own.

    programs.py CLAN SERVER        (exit code 77: something is missing here)
"""

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

CLONE_NEWNS, CLONE_NEWNET, CLONE_NEWUSER = 0x20000, 0x40000000, 0x10000000
PROGRAM = 0x2fabc001
NEEDED = ("rpcbind", "rpcinfo", "rpc.rstatd", "rup", "ip", "mount")


def skip(why):
    print(why)
    sys.exit(77)


def enter_namespaces():
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    flags = CLONE_NEWNS | CLONE_NEWNET | (0 if uid == 0 else CLONE_NEWUSER)
    if libc.unshare(flags) != 0:
        skip(f"no namespaces here: {os.strerror(ctypes.get_errno())}")
    if uid != 0:
        for file, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{file}", "w") as out:
                out.write(text)
    for command in (["mount", "--make-rprivate", "/"], ["mount", "-t", "tmpfs", "tmpfs", "/run"],
                    ["ip", "link", "set", "lo", "up"]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            skip(f"{' '.join(command)}: {done.stderr.strip()}")


def children(name=None):
    """Our children, and those of daemons that have gone into the background: we are their reaper."""
    with open(f"/proc/self/task/{os.getpid()}/children") as text:
        pids = [int(pid) for pid in text.read().split()]
    found = []
    for pid in pids:
        with open(f"/proc/{pid}/comm") as comm:
            if name is None or comm.read().strip() == name:
                found.append(pid)
    return found


class Daemons:
    def __init__(self):
        self.started = []

    def start(self, *command):
        # A file and not a pipe: who daemonizes keeps a pipe open.
        log = tempfile.TemporaryFile()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.started.append(process)
        return process, log

    def end(self):
        for process in self.started:
            process.kill()
            process.wait()
        self.started = []
        for pid in children():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def until(what, condition):
    for _ in range(1000):
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"not in time: {what}")


def registered(number):
    done = subprocess.run(["rpcinfo", "-p", "127.0.0.1"], capture_output=True, text=True, timeout=60)
    return done.returncode == 0 and str(number) in done.stdout


def counters(clan, pid):
    done = subprocess.run([clan, "stat", "--json", str(pid)], capture_output=True, text=True, timeout=60)
    pages = [p for p in json.loads(done.stdout or "[]") if p.get("path") == "rpc"]
    return pages[0] if pages else None


def check(clan, server, preload):
    under = [clan, "run", "--with", "rpc"] if preload else []
    daemons = Daemons()
    try:
        daemons.start("rpcbind", "-f")
        until("rpcbind", lambda: registered(100000))
        ours, _ = daemons.start(*under, server, "rpcbind")
        until("our server's registration", lambda: registered(PROGRAM))
        daemons.start(*under, "rpc.rstatd")
        until("rstatd's registration", lambda: registered(100001))
        for transport in ("-t", "-u"):
            done = subprocess.run([*under, "rpcinfo", transport, "127.0.0.1", str(PROGRAM), "2"], capture_output=True,
                                  text=True, timeout=60)
            assert done.returncode == 0 and "ready and waiting" in done.stdout, done
        # Without the library, by the same server.
        done = subprocess.run(["rpcinfo", "-t", "127.0.0.1", str(PROGRAM), "2"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and "ready and waiting" in done.stdout, done
        for _ in range(3):
            done = subprocess.run([*under, "rup", "127.0.0.1"], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0 and re.search(r"up .*load ", done.stdout), done
        if preload:
            daemon = children("rpc.rstatd")[-1]  # it forks; its parent is a zombie of ours
            # A client of one call gets Welcome in time on a machine that is not too busy: most of them.
            for pid in (ours.pid, daemon):
                page = counters(clan, pid)
                assert page is not None and page["clients"] > 0 and page["served_clan"] > 0, (pid, page, ours.pid)
    finally:
        daemons.end()


def main():
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    clan, server = sys.argv[1:3]
    for program in NEEDED:
        if shutil.which(program) is None:
            skip(f"{program} is not installed")
    enter_namespaces()
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    check(clan, server, False)
    check(clan, server, True)


if __name__ == "__main__":
    main()
