#!/usr/bin/env python3
"""`clan stat --all` says of each connection why it stays on TCP, and CLAN_LOG=info says it at the
time.

    why.py PRELOAD CLAN [DEED…]

Two programs under the library have a connection. One of them, each in turn, does with it what keeps
it on TCP or takes it back there: before it has moved, and after. Then it is looked up, by its port.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PATIENCE_S = 30

# An end of the connection: runs lines of Python that it reads, and says "done" and what came of it.
END = """
import ctypes, fcntl, os, select, signal, socket, struct, sys, threading
def serve():
    global l
    l = socket.socket()
    l.bind(("127.0.0.1", 0))
    l.listen()
    return l.getsockname()[1]
def accept():
    global s
    s = l.accept()[0]
def connect(port):
    global s
    s = socket.create_connection(("127.0.0.1", port))
def set(level, name, value=1):
    s.setsockopt(level, name, value)
def splice():
    p = os.pipe()
    os.write(p[1], b"spliced")
    os.splice(p[0], s.fileno(), 7)
def sigio():
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    fcntl.fcntl(s, fcntl.F_SETFL, fcntl.fcntl(s, fcntl.F_GETFL) | os.O_ASYNC)
def standard():
    os.dup2(s.fileno(), 2)
def ring():
    global kept
    kept = ctypes.CDLL(None).syscall(425, 4, ctypes.create_string_buffer(120))
    return kept
def stream():
    ctypes.CDLL(None).fdopen(s.fileno(), b"r")
def receive_at_once():
    try:
        s.getsockopt(socket.IPPROTO_TCP, 35, 64)
    except OSError:
        pass  # of no room
def aio():
    control = ctypes.create_string_buffer(struct.pack("<QIIHhI", 0, 0, 0, 0, 0, s.fileno()), 64)
    one = ctypes.c_void_p(ctypes.addressof(control))
    return ctypes.CDLL(None).syscall(209, ctypes.c_long(0), ctypes.c_long(1), ctypes.byref(one))
def bypass():
    ctypes.CDLL("libm.so.6", mode=os.RTLD_DEEPBIND | os.RTLD_NOW)
def confine():
    allow = ctypes.create_string_buffer(struct.pack("<HBBI", 6, 0, 0, 0x7fff0000))
    ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
    program = struct.pack("<HxxxxxxQ", 1, ctypes.addressof(allow))
    return ctypes.CDLL(None).prctl(22, 2, program, 0, 0)
def small():
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
def sets():
    global kept
    e = select.epoll()
    e.register(s, select.EPOLLIN)
    e.poll(0)
    asked, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go[1])
        e.poll(0)
        os.write(asked[1], b"x")
        os.read(go[0], 1)
        os._exit(0)
    os.read(asked[0], 1)
    kept = e, go, child
    e.poll(0)
def polled():
    global kept
    kept = select.epoll()
    kept.register(s, select.EPOLLIN)
    select.select([kept], [], [], 0)
def share():
    global kept
    go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go[1])
        os.read(go[0], 1)
        os._exit(0)
    kept = None, go, child
def hand_over():
    global kept
    kept = socket.socketpair()
    socket.send_fds(kept[0], [b"x"], [s.fileno()])
def execute():
    global kept
    import subprocess
    kept = subprocess.Popen(["sleep", "60"], pass_fds=[s.fileno()], env={},
                            stderr=subprocess.DEVNULL)
def end():
    if "kept" in globals() and isinstance(kept, tuple) and len(kept) == 3:
        os.close(kept[1][1])
        os.waitpid(kept[2], 0)
    elif "kept" in globals() and hasattr(kept, "kill"):
        kept.kill()
        kept.wait()
for line in sys.stdin:
    result = eval(line)
    print("done", result, flush=True)
end()
"""

LOUD = {"CLAN_LOG": "info"}


class End:
    """A program under the library."""

    def __init__(self, preload, directory, environment=None, prefix=()):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("CLAN_")}
        clean.update(LOUD, **(environment or {}))
        self.log = tempfile.TemporaryFile(mode="w+", dir=directory)
        program = [*prefix, "env", f"LD_PRELOAD={preload}", sys.executable, "-B", "-c", END]
        self.process = subprocess.Popen(program, env=clean, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.log, text=True,
                                        bufsize=1)
        self.pid = int(self.do("os.getpid()"))

    def do(self, line):
        self.say(line)
        return self.hear()

    def say(self, line):
        self.process.stdin.write(line + "\n")

    def hear(self):
        answer = self.process.stdout.readline()
        assert answer.startswith("done "), (answer, self.logged())
        return answer.split(None, 1)[1].strip()

    def logged(self):
        self.log.seek(0)
        return self.log.read()

    def end(self):
        self.process.stdin.close()
        self.process.wait(PATIENCE_S)
        self.process.stdout.close()
        self.log.close()


class Connected:
    """Two ends, and the connection between them."""

    def __init__(self, options, directory, server=None, client=None, prefixes=((), ())):
        self.clan = options.clan
        self.ends = [End(options.preload, directory, server, prefixes[0]),
                     End(options.preload, directory, client, prefixes[1])]
        self.port = int(self.ends[0].do("serve()"))
        self.ends[1].do(f"connect({self.port})")
        self.ends[0].do("accept()")

    def talk(self, rounds=12, size=100):
        for _ in range(rounds):
            for one, other in (self.ends, self.ends[::-1]):
                one.do(f"s.sendall(bytes({size}))")
                other.do(f"s.recv({size}, socket.MSG_WAITALL) and None")

    def found(self):
        done = subprocess.run([self.clan, "stat", "--all", "--json"], capture_output=True,
                              text=True, timeout=60, check=True)
        listed = [
            c for c in json.loads(done.stdout)
            if self.port in [c.get(end, {}).get("port") for end in ("local", "peer")]
        ]
        assert len(listed) == 1, listed
        return listed[0]

    def moves(self):
        """Talks until it has moved."""
        for _ in range(20):
            self.talk()
            if self.found()["path"] == "shm":
                return
        raise AssertionError(
            ("it has not moved", self.found(), [end.logged() for end in self.ends]))

    def says(self, text, rounds=2):
        """What keeps it on TCP, in time: the other end goes back at a call of its own."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            if rounds:
                self.talk(rounds)
            one = self.found()
            if one["path"] == "tcp" and text in one["reason"]:
                return one
            assert time.monotonic() < deadline, (text, one, [end.logged() for end in self.ends])

    def end(self):
        for one in self.ends:
            one.end()


# What is done: by which line, and the words for it. `rounds` 0: the connection carries nothing
# more.
DEEDS = {
    "inq": ("set(socket.IPPROTO_TCP, 36)", "TCP_INQ", 2),
    "timestamp": ("set(socket.SOL_SOCKET, 29)", "SO_TIMESTAMP", 2),
    "user_timeout": ("s.setsockopt(socket.IPPROTO_TCP, 18, 60000)", "TCP_USER_TIMEOUT", 2),
    "pacing": ("s.setsockopt(socket.SOL_SOCKET, 47, 10**9)", "SO_MAX_PACING_RATE", 2),
    "urgent": ("s.send(b'!', socket.MSG_OOB) and None", "urgent data (MSG_OOB)", 2),
    "zerocopy": ("s.send(b'', 0x4000000) and None", "MSG_ZEROCOPY", 2),
    "zerocopy_receive": ("receive_at_once()",
                         "TCP_ZEROCOPY_RECEIVE", 2),
    "aio": ("aio() and None", "asynchronous I/O (aio_read, lio_listio, io_submit)", 2),
    "stream": ("stream() and None", "a stream of the C library (fdopen)", 2),
    "sigio": ("sigio()", "SIGIO (O_ASYNC)", 2),
    "standard": ("standard()", "it is standard input or output", 2),
    "ring": ("ring()", "an io_uring", 2),
    "bypass": ("bypass()", "a module calls the C library past CLAN (RTLD_DEEPBIND or dlmopen)", 2),
    "confined": ("confine()", "the program has put itself under a filter of system calls", 2),
    "file_limit": ("small()", "the limit of file sizes (ulimit -f)", 2),
    "set": ("sets()", "it is in an epoll set that several processes use", 2),
    "polled": ("polled()", "an epoll set that has it is polled, or in another set", 2),
    "passed": ("hand_over()", "it was passed to another process (SCM_RIGHTS)", 2),
    "executed": ("execute()", "it was handed to another program (exec, dup2)", 2),
}
# The library gives these reasons only once the connection has moved.
ONLY_LATE = {"set", "passed"}
# The log gives these reasons for the whole process, or in the child, or standard error is the
# connection by then.
QUIET = {"ring", "bypass", "confined", "file_limit", "executed", "standard", "set"}


def deed(options, directory, name, which, late):
    line, text, rounds = DEEDS[name]
    connection = Connected(options, directory)
    if late:
        connection.moves()
    doer = connection.ends[which]
    result = doer.do(line)
    if name == "ring" and result == "-1":
        connection.end()
        return "skipped: no io_uring here"
    connection.says(f"process {doer.pid}: {text}", rounds)
    log = doer.logged()
    if name not in QUIET:
        assert log.count(f"{text}; the connection stays on TCP") == 1, (text, log)
    connection.end()
    return "ok"


def spliced(options, directory):
    """Before it has moved; from a connection that has moved the library takes the bytes itself."""
    for which in (0, 1):
        connection = Connected(options, directory)
        doer, other = connection.ends[which], connection.ends[1 - which]
        doer.do("splice()")
        other.do("s.recv(7, socket.MSG_WAITALL) and None")
        connection.says(f"process {doer.pid}: splice()")
        connection.end()


def several(options, directory):
    """Until one of them has it alone; moved before, it would go on there."""
    for which in (0, 1):
        connection = Connected(options, directory)
        doer = connection.ends[which]
        doer.do("share()")
        connection.says("several processes have it")
        doer.do("end()")
        connection.moves()
        doer.do("globals().pop('kept') and None")
        connection.end()


def unused(options, directory):
    connection = Connected(options, directory)
    server, client = connection.ends
    fewer = "not used enough yet: fewer than 5 calls of 16"
    one = connection.says(fewer, rounds=0)
    assert "calls" not in one["local"], one
    client.do("s.send(bytes(10)) and None")
    for _ in range(5):
        server.do("s.recv(1) and None")
    one = connection.says(f"process {client.pid}: {fewer}", rounds=0)
    ends = {one[end]["port"]: one[end] for end in ("local", "peer")}
    assert ends[connection.port]["calls"] == 5 and ends[connection.port]["calls_needed"] == 16, one
    counted = subprocess.run([options.clan, "stat", "--all", "--prometheus"], capture_output=True,
                             text=True, timeout=60, check=True).stdout
    assert 'clan_connections{path="tcp",reason="not used enough yet"} ' in counted, counted
    connection.moves()
    assert connection.found()["reason"] == "", connection.found()
    connection.end()


OPENED = """
import socket
s, l = socket.socket(), socket.create_server(("127.0.0.1", 0))
%s
for _ in range(200):
    s.sendall(b"x")
    (a or s).recv(1)
    (a or s).sendall(b"y")
    s.recv(1)
"""


def opened(options, directory):
    """By other calls than connect() and accept()."""
    ways = {
        "its socket is connected to itself":
            's.bind(("127.0.0.1", 0)); s.connect(s.getsockname()); a = None',
        "MSG_FASTOPEN":
            's.sendto(b"z", 0x20000000, l.getsockname()); a = l.accept()[0]; a.recv(1)',
    }
    for text, way in ways.items():
        run = subprocess.run([options.clan, "run", "--log", "info", sys.executable, "-c",
                              OPENED % way], capture_output=True, text=True, timeout=60,
                             check=False)
        assert run.returncode == 0, run.stderr
        assert f"{text}; the connection stays on TCP" in run.stderr, run.stderr


def settings(options, directory):
    for environments, text in ((({"CLAN_EXCEPT": "1-65535"}, None), "CLAN_EXCEPT"),
                               ((None, {"CLAN_ONLY": "1"}), "CLAN_ONLY"),
                               (({"CLAN_MEMORY": "40K"}, None), "CLAN_MEMORY")):
        connection = Connected(options, directory, *environments)
        connection.talk()
        who = connection.ends[0 if environments[0] else 1]
        assert f"process {who.pid}" in connection.says(text)["reason"]
        assert text in who.logged(), who.logged()
        connection.end()
    for lets_through in ({"CLAN_ONLY": "1024-65535"}, {"CLAN_EXCEPT": "1-1023"}):
        connection = Connected(options, directory, lets_through, lets_through)
        connection.moves()
        connection.end()


def filters(options, directory):
    """Filters of before the program: it is made by a shell that is under them, too."""
    if os.uname().machine != "x86_64":
        return
    for kind, names, text in (("deny", "sendmsg", "the filter of system calls refuses sendmsg"),
                              ("deny", "timerfd_gettime",
                               "the filter of system calls refuses timerfd_gettime"),
                              ("families", "1",
                               "the filter of system calls refuses socket(AF_UNIX)"),
                              ("deny", "memfd_create",
                               "perhaps the filter of system calls (seccomp) of process")):
        for which in (0, 1):
            prefix = [
                sys.executable, "-B",
                str(HERE / "filter.py"), kind, names, "sh", "-c", '"$@"; exit', "sh"
            ]
            prefixes = [(), ()]
            prefixes[which] = prefix
            connection = Connected(options, directory, prefixes=prefixes)
            connection.talk()
            who = connection.ends[which]
            assert str(who.pid) in connection.says(text)["reason"]
            connection.end()


def in_front(options, directory):
    """A library that LD_PRELOAD names first, and whose connect() goes past ours."""
    source = Path(directory, "front.c")
    library = Path(directory, "libfront.so")
    source.write_text(
        "#include <sys/syscall.h>\n#include <sys/socket.h>\nlong syscall_(long, ...);\n"
        "int connect(int fd, const struct sockaddr *a, socklen_t n) {"
        "long r; register long d asm(\"rdx\") = n;"
        "asm volatile(\"syscall\" : \"=a\"(r) : \"0\"(42L), \"D\"((long)fd), \"S\"(a), \"r\"(d)"
        " : \"rcx\", \"r11\", \"memory\"); return r < 0 ? -1 : 0; }\n")
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", library, source],
                   check=True)
    preload = options.preload
    options.preload = f"{library}:{preload}"
    try:
        connection = Connected(options, directory)
        connection.talk(20)
        why = connection.found()["reason"]
        assert "libfront.so is in front of CLAN" in why, (why,
                                                          [end.logged() for end in connection.ends])
        connection.end()
    finally:
        options.preload = preload


def many(options, directory):
    """A thousand connections of one reason are not a thousand lines."""
    connection = Connected(options, directory, {"CLAN_EXCEPT": "1-65535"})
    server, client = connection.ends
    server.say(
        "[[c.recv(1) for _ in range(20)] and c.close() "
        "for _ in range(300) for c in [l.accept()[0]]] and None"
    )
    client.do(f"[c.sendall(bytes(20)) or c.recv(1) and None for _ in range(300) for c in "
              f"[socket.create_connection(('127.0.0.1', {connection.port}))]] and None")
    server.hear()
    lines = server.logged().count("CLAN_EXCEPT; the connection stays on TCP")
    assert 8 <= lines <= 8 + 9, server.logged()
    connection.end()


WHOLE = {
    "spliced": spliced, "several": several, "unused": unused, "settings": settings,
    "filters": filters, "in_front": in_front, "many": many, "opened": opened
}


class Options:
    def __init__(self, preload, clan):
        self.preload, self.clan = preload, clan


def main():
    options = Options(*sys.argv[1:3])
    wanted = sys.argv[3:] or [*DEEDS, *WHOLE]
    with tempfile.TemporaryDirectory() as directory:
        for name in wanted:
            if name in WHOLE:
                WHOLE[name](options, directory)
                print(f"{name}: ok", flush=True)
                continue
            for which in (0, 1):  # each early at one end and late at the other
                late = name in ONLY_LATE or which == list(DEEDS).index(name) % 2
                said = deed(options, directory, name, which, late)
                end, when = "client" if which else "server", "late" if late else "early"
                print(f"{name} of the {end} {when}: {said}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
