#!/usr/bin/env python3
"""Programs nobody here wrote, with libclanrpc and stock: rpcbind, rpcinfo, rpc.rstatd and rup, by
rpcbind's registration as ever. In a network and a mount namespace of their own. Programs made with
rpcgen's flags there, too. And what other programs say of CLAN's: strace that a call makes no system
call, setpriv that users are kept apart. And what the library says of settings that are wrong.

    programs.py CLAN SERVER CLIENT TESTS programs|flags|calls|users|settings

Exit code 77: something is missing.

SERVER, CLIENT: sunrpc-server and sunrpc-client; TESTS: test_sunrpc, of which those run here that
need a rpcbind
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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
import system_calls  # noqa: E402, needs the path

CLONE_NEWNS, CLONE_NEWNET, CLONE_NEWUSER = 0x20000, 0x40000000, 0x10000000
PROGRAM = 0x2fabc001
NEEDED_PROGRAMS = ("rpcbind", "rpcinfo", "rpc.rstatd", "rup", "ip", "mount")


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
        for file, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map",
                                                                              f"0 {gid} 1")):
            with open(f"/proc/self/{file}", "w") as out:
                out.write(text)
    for command in (["mount", "--make-rprivate", "/"], ["mount", "-t", "tmpfs", "tmpfs", "/run"],
                    ["ip", "link", "set", "lo", "up"]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            skip(f"{' '.join(command)}: {done.stderr.strip()}")


def add_broadcast_network():
    """Loopback has no broadcasts. Some kernels give us no other interface. Without IPv6, whose
    addresses cannot be sent from in their first second."""
    with open("/proc/sys/net/ipv6/conf/all/disable_ipv6", "w") as setting:
        setting.write("1")
    for kind in (["dummy"], ["veth", "peer", "name", "clan1"], ["bridge"]):
        if subprocess.run(["ip", "link", "add", "clan0", "type", *kind], capture_output=True,
                          check=False).returncode == 0:
            subprocess.run([
                "ip", "address", "add", "10.99.99.1/24", "broadcast", "10.99.99.255", "dev", "clan0"
            ], check=True)
            for end in ("clan0", "clan1"):
                subprocess.run(["ip", "link", "set", end, "up"], capture_output=True, check=False)
            return


def children(name=None):
    """Our children, and those of daemons that have gone into the background: we are their
    reaper."""
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
        # A file and not a pipe: a daemon keeps a pipe open.
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
    done = subprocess.run(["rpcinfo", "-p", "127.0.0.1"], capture_output=True, text=True,
                          timeout=60)
    return done.returncode == 0 and str(number) in done.stdout


def counters(clan, pid):
    done = subprocess.run([clan, "stat", "--json", str(pid)], capture_output=True, text=True,
                          timeout=60)
    pages = [p for p in json.loads(done.stdout or "[]") if p.get("path") == "rpc"]
    return pages[0] if pages else None


def check(clan, server, tests, preload):
    under = [clan, "run", "--with", "rpc"] if preload else []
    daemons = Daemons()
    try:
        daemons.start("rpcbind", "-f", "-r")  # -r: it passes broadcast calls on
        until("rpcbind", lambda: registered(100000))
        done = subprocess.run([*under, tests, "--gtest_filter=Creation.*"], capture_output=True,
                              text=True, timeout=120, env={**os.environ, "CLAN_TEST_RPCBIND": "1"},
                              check=False)
        assert done.returncode == 0 and "SKIPPED" not in done.stdout and "3 tests ran" in re.sub(
            "from 1 test suite ", "", done.stdout), done.stdout[-4000:] + done.stderr[-1000:]
        ours, _ = daemons.start(*under, server, "rpcbind")
        until("our server's registration", lambda: registered(PROGRAM))
        daemons.start(*under, "rpc.rstatd")
        until("rstatd's registration", lambda: registered(100001))
        for transport in ("-t", "-u"):
            done = subprocess.run([*under, "rpcinfo", transport, "127.0.0.1",
                                   str(PROGRAM), "2"], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0 and "ready and waiting" in done.stdout, done
        # Without the library, by the same server.
        done = subprocess.run(
            ["rpcinfo", "-t", "127.0.0.1", str(PROGRAM), "2"], capture_output=True, text=True,
            timeout=60)
        assert done.returncode == 0 and "ready and waiting" in done.stdout, done
        for _ in range(3):
            done = subprocess.run([*under, "rup", "127.0.0.1"], capture_output=True, text=True,
                                  timeout=60)
            assert done.returncode == 0 and re.search(r"up .*load ", done.stdout), done
        # Broadcasts stay what they are, and reach a server that has the library.
        done = subprocess.run([
            *under, "timeout", "-s", "INT", "3", "stdbuf", "-oL", "rpcinfo", "-b",
            str(PROGRAM), "2"
        ], capture_output=True, text=True, timeout=60, check=False)
        answered = re.search(r"^(10\.99\.99\.1|127\.0\.0\.1)[. ]", done.stdout, re.M) is not None
        if preload:
            daemon = children("rpc.rstatd")[-1]  # it forks; its parent is our zombie
            # A client of one call gets Welcome in time on a machine that is not too busy: most of
            # them.
            for pid in (ours.pid, daemon):
                page = counters(clan, pid)
                assert page is not None and page["clients"] > 0 and page["served_clan"] > 0, (
                    pid, page, ours.pid)
        return answered
    finally:
        daemons.end()


def programs(clan, server, _, tests):
    for program in NEEDED_PROGRAMS:
        if shutil.which(program) is None:
            skip(f"{program} is not installed")
    enter_namespaces()
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    add_broadcast_network()
    stock = check(clan, server, tests, False)
    assert check(clan, server, tests, True) == stock, f"a broadcast was answered: stock {stock}"
    print("with broadcasts"
          if stock else "without broadcasts: no network that has them can be made here")


PAIR = """struct pair { int a; int b; };
program SUM { version SUM_ONE { int ADD(pair) = 1; } = 1; } = 0x2fabc055;
"""
TWO = "program SUM { version SUM_ONE { int ADD(int, int) = 1; } = 1; } = 0x2fabc055;\n"
# What a program of each kind has of its own: its .x file, its procedure, how its client calls that.
PLAIN = (
    PAIR,
    "int *add_1_svc(pair *p, struct svc_req *r) { static int sum; sum = p->a + p->b; return &sum; "
    "}",
    "pair p = {i, 2}; int *result = add_1(&p, client); int sum = result ? *result : -1;")
FLAGS = {
    "-C": PLAIN,
    "-b": PLAIN,
    "-N": (
        TWO,
        "int *add_1_svc(int a, int b, struct svc_req *r) { static int sum; sum = a + b; return "
        "&sum; }",
        "int *result = add_1(i, 2, client); int sum = result ? *result : -1;"),
    "-M": (
        PAIR,
        "bool_t add_1_svc(pair *p, int *sum, struct svc_req *r) { *sum = p->a + p->b; return TRUE; "
        "}\n"
        "int sum_1_freeresult(SVCXPRT *t, xdrproc_t x, caddr_t r) { xdr_free(x, r); return 1; }",
        "pair p = {i, 2}; int sum = -1; if (add_1(&p, &sum, client) != RPC_SUCCESS) sum = -1;"),
}
MAIN = """#include <stdio.h>
#include "sum.h"
int main(int argc, char **argv) {
  CLIENT *client = clnt_create(argv[1], SUM, SUM_ONE, "tcp");
  if (client == NULL) { clnt_pcreateerror(argv[1]); return 1; }
  for (int i = 0; i < 200; ++i) {
    CALL
    if (sum != i + 2) { clnt_perror(client, "add"); return 1; }
  }
  clnt_destroy(client);
  return 0;
}
"""


def build(directory, flag):
    """Has rpcgen make a program with a flag; with -a its samples are the program."""
    def compiled(program, *sources):
        done = subprocess.run(
            ["cc", "-w", "-I/usr/include/tirpc", "-o", program, *sources, "-ltirpc"], cwd=directory,
            capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, (flag, done.stderr)
        return f"{directory}/{program}"

    source, procedure, call = FLAGS.get(flag, PLAIN)
    Path(directory, "sum.x").write_text(source)
    done = subprocess.run(
        ["rpcgen", flag, "sum.x"] if flag == "-C" else ["rpcgen", "-C", flag, "sum.x"],
        cwd=directory, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, (flag, done.stderr)
    if flag != "-a":
        Path(directory, "sum_server.c").write_text('#include "sum.h"\n' + procedure)
        Path(directory, "sum_client.c").write_text(MAIN.replace("CALL", call))
    types = ["sum_xdr.c"] if Path(directory, "sum_xdr.c").exists() else []
    return (compiled("server", "sum_svc.c", "sum_server.c", *types),
            compiled("client", "sum_clnt.c", "sum_client.c", *types))


def flags(clan, *_):
    """Programs made with each of rpcgen's flags, over CLAN and stock, by rpcbind."""
    for program in ("rpcbind", "rpcinfo", "rpcgen", "cc"):
        if shutil.which(program) is None:
            skip(f"{program} is not installed")
    enter_namespaces()
    for flag in (*FLAGS, "-a"):
        with tempfile.TemporaryDirectory(prefix="clan-rpcgen-") as directory:
            server, client = build(directory, flag)
            for under in ([], [clan, "run", "--with", "rpc", "--log", "info"]):
                daemons = Daemons()
                try:
                    daemons.start("rpcbind", "-f")
                    until("rpcbind", lambda: registered(100000))
                    daemons.start(*under, server)
                    until("the server's registration", lambda: registered(0x2fabc055))
                    def over_clan():
                        done = subprocess.run([*under, client, "127.0.0.1"], capture_output=True,
                                              text=True, timeout=60)
                        assert done.returncode == 0, (flag, done)
                        return not under or "go over CLAN" in done.stderr
                    until(f"calls over CLAN, {flag}", over_clan)
                finally:
                    daemons.end()
        print(f"rpcgen {flag}: over the socket and over CLAN")


class Served:
    """A server of the tests, under commands that come before it, and where it listens."""

    def __init__(self, *command):
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        text=True)
        self.port = re.match(r"ready tcp=(\d+)", self.process.stdout.readline()).group(1)

    def end(self, number=signal.SIGKILL):
        for pid in descendants(self.process.pid) or [self.process.pid]:
            os.kill(pid, number)
        self.process.communicate(timeout=60)


def descendants(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as text:
        return [int(child) for child in text.read().split()]


def stretches(clan, server, client, directory):
    """How many stretches of calls there were, and how many of them without a system call at either
    end."""
    strace = ["strace", *system_calls.STRACE]
    served = Served(clan, "run", "--with", "rpc", *strace, f"{directory}/server", server, "tcp")
    try:
        done = subprocess.run([
            clan, "run", "--with", "rpc", *strace, f"{directory}/client", client, served.port,
            "1000000", "3"
        ], check=True, timeout=60, stdout=subprocess.PIPE, text=True)
    finally:
        served.end(signal.SIGTERM)
    times = [float(line) for line in done.stdout.splitlines()]
    return system_calls.quiet_stretches(times, (f"{directory}/client", f"{directory}/server"))


def calls(clan, server, client, _):
    """That a call makes no system call. On a busy machine some do, as a long wait sleeps; but if
    each had to, there would be no stretch of hundreds without any."""
    if shutil.which("strace") is None:
        skip("strace is not installed")
    if len(os.sched_getaffinity(0)) < 2:
        skip("both ends on one processor: it is handed over by system calls")
    with tempfile.TemporaryDirectory(prefix="clan-rpc-") as directory:
        for _ in range(10):
            try:
                made, quiet = stretches(clan, server, client, directory)
            except (subprocess.CalledProcessError, AttributeError) as why:
                skip(f"strace does not work here: {why}")
            print(f"{quiet} of {made} stretches of 200 calls without a system call")
            if quiet > 0:
                return
    if os.getloadavg()[0] > os.cpu_count():
        skip("others want the processors: waits sleep")
    raise AssertionError("calls make system calls")


def users(clan, server, client, _):
    """A server of another user: by its socket, or with CLAN_UIDS at both ends over CLAN."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        skip("only root can start a process of another user (setpriv)")
    other = ["setpriv", "--reuid", "65534", "--clear-groups"]
    if subprocess.run([*other, clan, "--version"], capture_output=True,
                      check=False).returncode != 0:
        skip("another user cannot read the build tree")
    for uids, expected in (("", False), ("0,65534", True)):
        os.environ["CLAN_UIDS"] = uids
        served = Served(*other, clan, "run", "--with", "rpc", server, "tcp")
        try:
            done = subprocess.run(
                [clan, "run", "--with", "rpc", "--log", "info", client, served.port, "300"],
                capture_output=True, text=True, timeout=60)
            assert done.returncode == 0 and ("go over CLAN" in done.stderr) == expected, (uids,
                                                                                          done)
        finally:
            served.end()


def settings(clan, server, client, _):
    """A key that cannot be used is said, though nobody asks for a log; calls of this host go over
    CLAN all the same. A program with AddressSanitizer may start behind the library."""
    seen = subprocess.run([clan, "run", "--with", "rpc", "env"], capture_output=True, text=True,
                          check=True, timeout=60).stdout.splitlines()
    assert any(line.startswith("ASAN_OPTIONS=") for line in seen), seen
    library = Path(clan).resolve().parent.parent / "lib" / "libclanrpc.so"
    served = Served(clan, "run", "--with", "rpc", server, "tcp")
    try:
        for log in {}, {"CLAN_LOG": "info"}:
            done = subprocess.run([client, served.port, "300"], capture_output=True, text=True,
                                  timeout=60, check=True,
                                  env={**os.environ, **log, "CLAN_KEY": "/nonexistent",
                                       "LD_PRELOAD": str(library)})
            said, *more = done.stderr.splitlines()
            assert ": CLAN_KEY=/nonexistent cannot be used: " in said and "openssl" in said, said
            assert any("go over CLAN" in line for line in more) == bool(log), done.stderr
            assert log or not more, more
    finally:
        served.end()


def main():
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    *paths, name = sys.argv[1:]
    {"programs": programs, "flags": flags, "calls": calls, "users": users,
     "settings": settings}[name](*paths)


if __name__ == "__main__":
    main()
