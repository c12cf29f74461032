#!/usr/bin/env python3
"""`clan stat` shows what is in the shared page of a connection, joins its two ends, and changes
nothing.

    stat_test.py CLAN

The connections are real TCP connections between processes of this test; their shared pages are
written here, byte by byte, as core/include/clan/face/pipe.h and socket_face.h lay them out.
"""

import json
import mmap
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MAGIC = 0x31657069702D6E63
VERSION = 14
PAGE = 4096
END = 64, 64 + 512  # offsets of the two ends in the page
SENDER_BYTES, SENDER_MESSAGES, FACE = 24, 32, 384  # in an end
STATE, SWITCH_AT, PROCESS, PORTS, LOCAL, REMOTE, SLEEPS, WAKEUPS = 0, 1, 2, 4, 5, 7, 9, 10
ATTACHED, SENDING, LEAVING, GONE = 1, 2, 4, 8
BROKEN = 56  # in the head


class SharedPage:
    """A memfd as the interposer makes it."""

    def __init__(self, magic=MAGIC, version=VERSION, size=PAGE):
        self.fd = os.memfd_create("clan-pipe", 0)
        os.ftruncate(self.fd, size)
        os.pwrite(self.fd, struct.pack("<QIIQ", magic, version, 4096, time.time_ns()), 0)

    def put(self, end, offset, value):
        os.pwrite(self.fd, struct.pack("<Q", value), END[end] + offset)

    def face(self, end, word, value):
        self.put(end, FACE + 8 * word, value)

    def describe(self, end, sock_name, peer_name, family, pid, state):
        def address(name):
            return socket.inet_pton(family, name[0]).ljust(16, b"\0")
        self.face(end, PORTS, family << 32 | sock_name[1] << 16 | peer_name[1])
        os.pwrite(self.fd, address(sock_name), END[end] + FACE + 8 * LOCAL)
        os.pwrite(self.fd, address(peer_name), END[end] + FACE + 8 * REMOTE)
        self.face(end, PROCESS, pid << 32 | os.getuid())
        self.face(end, STATE, state)

    def contents(self):
        return os.pread(self.fd, PAGE, 0)


class Child:
    """A fork of this process that runs `work`, then keeps its descriptors until the test ends."""

    alive = []

    def __init__(self, work=lambda: None):
        ready, said = os.pipe()
        wait, self.go = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                for go in [self.go] + [child.go for child in Child.alive]:
                    os.close(go)
                work()
                os.write(said, b"x")
                os.read(wait, 1)
            finally:
                os._exit(0)
        os.close(said)
        os.close(wait)
        Child.alive.append(self)
        assert os.read(ready, 1) == b"x", "a child failed"
        os.close(ready)

    def end(self):
        Child.alive.remove(self)
        os.close(self.go)
        os.waitpid(self.pid, 0)


def eventually(look, wanted):
    """Returns what look() does once `wanted` accepts it. One read of /proc/net/tcp may omit an end
    while other connections come and go."""
    deadline = time.monotonic() + 20
    while True:
        seen = look()
        if wanted(seen):
            return seen
        assert time.monotonic() < deadline, seen
        time.sleep(0.05)


class Clan:
    def __init__(self, path):
        self.path = path

    def stat(self, *arguments, code=0, **more):
        done = subprocess.run([self.path, "stat", *map(str, arguments)], capture_output=True,
                              text=True, timeout=60, stdin=subprocess.DEVNULL, **more)
        assert done.returncode == code, done
        return done

    def connections(self, port, *arguments):
        """Those with `port` at one end: others may be alive on this machine."""
        listed = json.loads(self.stat("--json", *arguments).stdout)
        return [
            c for c in listed if port in [c.get(end, {}).get("port") for end in ("local", "peer")]
        ]

    def connection(self, port, *arguments, wanted=lambda one: True):
        """Returns the only connection with `port` once `wanted` accepts it."""
        found, = eventually(lambda: self.connections(port, *arguments),
                            lambda listed: len(listed) == 1 and wanted(listed[0]))
        return found


def pids(end):
    return {process["pid"] for process in end["processes"]}


def is_whole(one):
    return None not in (one["local"]["network"], one["peer"]["network"])


def connected(family, host):
    """A listener's accepted socket here, and a child that connected to it."""
    listener = socket.socket(family)
    listener.bind((host, 0))
    listener.listen()
    client = Child(lambda: keep.append(socket.create_connection(listener.getsockname()[:2])))
    accepted, _ = listener.accept()
    listener.close()
    return accepted, client


keep = []  # what children hold open


def check_connection(clan, family, host):
    page = SharedPage()
    server, client = connected(family, host)
    sharer = Child()  # holds the accepted socket and the memfd, too
    here, there = server.getsockname(), server.getpeername()
    port = here[1]
    page.describe(0, here, there, family, os.getpid(), ATTACHED | SENDING)
    page.describe(1, there, here, family, client.pid, ATTACHED | SENDING)
    counted = [(1000, 10, 3, 4, 77), (2**40, 7, 5, 6, 0)]
    for end, (sent, messages, sleeps, wakeups, by_tcp) in enumerate(counted):
        page.put(end, SENDER_BYTES, sent)
        page.put(end, SENDER_MESSAGES, messages)
        page.face(end, SLEEPS, sleeps)
        page.face(end, WAKEUPS, wakeups)
        page.face(end, SWITCH_AT, by_tcp)
    before = page.contents()

    sharers = {os.getpid(), sharer.pid}
    one = clan.connection(port, wanted=lambda one: pids(one["local"]) == sharers)
    assert (one["path"], one["reason"]) == ("shm", ""), one
    local, peer = one["local"], one["peer"]
    assert local["network"] == peer["network"] == os.stat("/proc/self/ns/net").st_ino, one
    assert (local["address"], local["port"]) == (host, port), one
    assert (peer["address"], peer["port"]) == (host, there[1]), one
    assert pids(local) == sharers and pids(peer) == {client.pid}, one
    counters = ("bytes", "messages", "sleeps", "wakeups", "tcp_bytes")
    assert [local[name] for name in counters] == [1000, 10, 3, 4, 77], one
    assert [peer[name] for name in counters] == [2**40, 7, 5, 6, 0], one
    with open("/proc/self/comm") as comm:
        assert local["processes"][0]["comm"] == comm.read().strip(), one

    # A process that is asked for is at the local end.
    other = clan.connection(port, client.pid, wanted=lambda other: other["peer"] == local)
    assert other["local"] == peer, other
    clan.connection(port, os.getpid(), sharer.pid, wanted=lambda found: found == one)
    stranger = Child(lambda: (os.close(page.fd), server.close()))
    assert clan.connections(port, stranger.pid) == []
    stranger.end()

    shown = f"[{host}]:{port}" if family == socket.AF_INET6 else f"{host}:{port}"
    words = "shm", "1000/1099.5G", "10/7", "3/5", "4/6", f"{client.pid}/", f"{sharer.pid}/"
    eventually(
        lambda: [text for text in clan.stat().stdout.splitlines() if text.startswith(shown + " ")],
        lambda lines: len(lines) == 1 and all(word in lines[0] for word in words))

    assert page.contents() == before, "clan stat has written into the page"
    check_states(clan, page, port)
    check_watch(clan, page, port)

    # The end that has not attached yet is known from the other's words.
    os.pwrite(page.fd, bytes(8 * 16), END[0] + FACE)
    clan.connection(port, wanted=lambda one: (one["local"]["port"], pids(one["local"])) ==
                    (port, {os.getpid(), sharer.pid}))
    client.end()
    sharer.end()
    server.close()
    os.close(page.fd)
    assert clan.connections(port) == []


def check_states(clan, page, port):
    def path(first, second):
        page.face(0, STATE, first)
        page.face(1, STATE, second)
        one = clan.connection(port, wanted=is_whole)
        return one["path"], one["reason"]
    moved = ATTACHED | SENDING
    assert path(ATTACHED, ATTACHED) == ("tcp", "about to move")
    assert path(ATTACHED, moved) == ("shm", "")
    assert path(moved | LEAVING, moved) == ("shm", "going back")
    assert path(moved | LEAVING | GONE, moved | LEAVING | GONE) == ("tcp", "gone back")
    assert "tcp (gone back)" in clan.stat(os.getpid()).stdout
    os.pwrite(page.fd, struct.pack("<I", 1), BROKEN)
    assert path(moved, moved) == ("tcp", "broken")
    os.pwrite(page.fd, struct.pack("<I", 0), BROKEN)
    assert path(moved, moved) == ("shm", "")


def check_watch(clan, page, port):
    watch = subprocess.Popen([clan.path, "stat", "--json", "--watch", "0.2"],
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                             bufsize=1)
    try:
        looks = []
        while len(looks) < 3:
            assert select.select([watch.stdout], [], [], 30)[0], "no further line"
            line = json.loads(watch.stdout.readline())
            looks += [
                c for c in line
                if port in [c.get(end, {}).get("port") for end in ("local", "peer")]
            ]
            if len(looks) == 1:
                page.put(0, SENDER_BYTES, 1000 + 50000)
                page.put(0, SENDER_MESSAGES, 10 + 500)
    finally:
        watch.send_signal(signal.SIGINT)
        watch.wait(30)
    assert "bytes_per_s" not in looks[0]["local"], looks[0]
    rates = [look["local"]["bytes_per_s"] for look in looks[1:]]
    assert 0 < max(rates) <= 50000 / 0.19, looks
    assert max(look["local"]["messages_per_s"] for look in looks[1:]) > 0, looks
    assert all(look["peer"]["bytes_per_s"] == 0 for look in looks[1:]), looks


def check_strangers(clan):
    """Files that are no pipes, whatever they are called, do no harm; a newer pipe is mentioned."""
    for page in (SharedPage(magic=1), SharedPage(size=0), SharedPage(size=100)):
        done = clan.stat("--json", os.getpid())
        assert done.stdout == "[]\n" and "another version" not in done.stderr, done
        os.close(page.fd)
    newer = SharedPage(version=VERSION + 1)
    done = clan.stat("--json", os.getpid())
    assert done.stdout == "[]\n" and done.stderr.count("another version") == 1, done
    os.close(newer.fd)
    assert "no process 4194305" in clan.stat(4194305, code=1).stderr


def check_all(clan):
    """A TCP connection of a process with the library mapped is listed with --all, and only then."""
    with tempfile.TemporaryDirectory() as top:
        server, client = connected(socket.AF_INET, "127.0.0.1")
        port = server.getsockname()[1]
        assert clan.connections(port, "--all") == [], "nobody is under CLAN"
        with open(os.path.join(top, "libclan-preload.so"), "w+b") as library:
            library.write(bytes(PAGE))
            library.flush()
            with mmap.mmap(library.fileno(), PAGE, prot=mmap.PROT_READ):
                assert clan.connections(port) == []
                one = clan.connection(port, "--all", wanted=is_whole)
                why = f"the other end, process {client.pid}, runs without CLAN"
                assert (one["path"], one["reason"]) == ("tcp", why), one
                ends = {one[end]["port"]: pids(one[end]) for end in ("local", "peer")}
                assert ends == {port: {os.getpid()}, server.getpeername()[1]: {client.pid}}, one
                assert "bytes" not in one["local"], one
        client.end()
        server.close()


CHURN = """a = ("127.0.0.1", {}); print("", flush=True)
while True:
    if os.fork() == 0:
        try:
            c = socket.socket(); c.connect(a); time.sleep(0.1)
        finally: os._exit(0)
    time.sleep(0.002)
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0: break
        except ChildProcessError: break"""


def check_clients_that_end(clan):
    """A process that ends while it is read is not said to run without CLAN."""
    with tempfile.TemporaryDirectory() as top:
        library = shutil.copy(any_library(), os.path.join(top, "libclan-preload.so"))
        server = Program(library, SERVER_OF_MANY, {})
        clients = Program(library, CHURN.format(server.said), {})
        seen, looks = set(), 0
        while looks < 30 or (not seen and looks < 1000):
            looks += 1
            seen |= {one["reason"] for one in clan.connections(int(server.said), "--all")}
        clients.process.kill()
        clients.process.wait(30)
        server.process.kill()
        server.process.wait(30)
        assert seen, "no connection was there when it was looked for"
        assert not any("without CLAN" in reason for reason in seen), seen


def any_library():
    """A shared library of this machine that does no harm when it is preloaded."""
    with open("/proc/self/maps") as maps:
        return next(line.split()[-1] for line in maps if "/libm.so" in line or "/libm-" in line)


class Program:
    """A process that sees a harmless library of the right name, and takes part in connections."""

    def __init__(self, library, source, environment, user=None, limit=None, prefix=()):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("CLAN_")}
        clean.update(environment)
        if library:
            clean["LD_PRELOAD"] = library
        if limit:
            source = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n{source}"
        if user:
            source = f"os.setuid({user})\n{source}"
        source = f"import os, resource, socket, sys, time\n{source}"
        self.process = subprocess.Popen([*prefix, sys.executable, "-c", source], env=clean,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid
        self.said = self.process.stdout.readline().strip()

    def end(self):
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


SERVER = """l = socket.socket(); l.bind(("127.0.0.1", 0)); l.listen()
print(l.getsockname()[1], flush=True)
a = l.accept(); print("accepted", flush=True); sys.stdin.read()"""
SERVER_OF_MANY = """l = socket.socket(); l.bind(("127.0.0.1", 0)); l.listen(100)
print(l.getsockname()[1], flush=True)
while True: a = l.accept()[0]; a.recv(1)"""
CLIENT = """c = socket.socket(); c.connect(("127.0.0.1", {})); print(c.getsockname()[1], flush=True)
sys.stdin.read()"""


def check_reasons(clan):
    """What keeps a connection on TCP is reported: users, settings, limits; what is not known is not
    claimed."""
    with tempfile.TemporaryDirectory() as top:
        os.chmod(top, 0o755)
        library = os.path.join(top, "libclan-preload.so")
        shutil.copy(any_library(), library)
        config = os.path.join(top, "clan.conf")

        def reason(server=None, client=None, users=(None, None), lines="", page=False,
                   client_first="", server_prefix=(), **more):
            with open(config, "w") as file:
                file.write(lines)
            one = Program(library, SERVER, server or {}, users[0], prefix=server_prefix)
            port = int(one.said)
            two = Program(library, f"{client_first}\n{CLIENT.format(port)}", client or {}, users[1],
                          **more)
            shared = None
            if page:  # as one end makes it, and the other has not taken it
                shared = SharedPage()
                shared.describe(1, ("127.0.0.1", port), ("127.0.0.1", int(two.said)),
                                socket.AF_INET, one.pid, ATTACHED)

            def look():
                listed = clan.connections(port, "--all")
                return listed, [
                    line for line in clan.stat("--all", one.pid).stdout.splitlines()
                    if f":{port} " in line
                ]

            def agree(seen):
                listed, lines = seen
                return (len(listed) == len(lines) == 1 and listed[0]["peer"]["network"] is not None
                        and f"tcp ({listed[0].get('reason')})" in lines[0])

            (found,), _ = eventually(look, agree)
            assert found["path"] == "tcp", found
            if page:
                os.close(shared.fd)
            one.end()
            two.end()
            if (why := found["reason"]).endswith("fewer than 5 calls of 16"):
                return re.sub(f"{one.pid}|{two.pid}", "ONE", why)
            return why.replace(str(one.pid), "SERVER").replace(str(two.pid), "CLIENT")

        unused = "process ONE: not used enough yet: fewer than 5 calls of 16"
        assert reason() == unused
        filtered = (
            "import ctypes; ctypes.CDLL(None).prctl(38, 1, 0, 0, 0); ctypes.CDLL(None).prctl(22, "
            "2, "
            "b'\\1\\0\\0\\0\\0\\0\\0\\0' + ctypes.addressof(b).to_bytes(8, 'little'))")
        allow_all = ("b = __import__('ctypes').create_string_buffer("
                     "b'\\6\\0\\0\\0\\0\\0\\xff\\x7f'); ") + filtered
        assert reason(client_first=allow_all) == (
            "perhaps the filter of system calls (seccomp) of process CLIENT, "
            "which may refuse memfd_create too, by which it would say so; "
            "CLAN_LOG=info says which call")
        assert reason({"CLAN_ONLY": "1-65535", "CLAN_DISABLE": "0"}, {"CLAN_EXCEPT": ""}) == unused
        assert reason({"CLAN_ONLY": "1"}) == "CLAN_ONLY of process SERVER"
        assert reason({}, {"CLAN_EXCEPT": "1-65535"}) == "CLAN_EXCEPT of process CLIENT"
        assert reason({}, {"CLAN_DISABLE": "1"}) == "CLAN_DISABLE of process CLIENT"
        assert reason(
            {},
            {"CLAN_MEMORY": "40K"}) == "the memory for connections (CLAN_MEMORY) of process CLIENT"
        assert reason({"CLAN_ONLY": "http"}) == "a setting that is not understood of process SERVER"
        assert reason({"CLAN_CONFIG": config},
                      lines="CLAN_ONLY=1\n") == "CLAN_ONLY of process SERVER"
        absent = {"CLAN_CONFIG": config + ".absent", "CLAN_ONLY": "1"}
        assert reason(absent) == unused, "it may have been there"
        assert reason(limit=1 << 20) == "the limit of file sizes (ulimit -f) of process CLIENT"
        standard = ("import os; s = socket.socket; "
                    "socket.socket = lambda: (os.dup2((t := s()).fileno(), 2), t)[1]")
        assert reason(client_first=standard) == "it is standard input or output of process CLIENT"
        if os.getuid() != 0:
            return
        other, root = 65534, {"CLAN_UIDS": "0"}
        users = f"users 0 and {other}, see CLAN_UIDS"
        for server, client in ((None, other), (other, None)):
            assert reason(users=(server, client)) == users
        named = {"CLAN_UIDS": f"1,{other}"}
        assert reason(named, {}, (None, other)) == users, "named by one only"
        assert reason({}, root, (None, other)) == users, "named by the other only"
        assert reason(named, root, (None, other)) == unused
        assert reason(named, {}, (None, other), page=True) == users
        assert reason(named, root, (None, other), page=True) == "about to move"
        shut_in = ["unshare", "--user", "--map-root-user"]
        if subprocess.run([*shut_in, "true"], capture_output=True).returncode == 0:
            found = reason({"CLAN_UIDS": "65534"}, root, (None, other), server_prefix=shut_in)
            assert found == f"user {other} is not in the user namespace of process SERVER", found


# core/include/clan/face/reasons.h
WORDS, WORDS_SIZE, BUCKETS, WAYS = 8 << 20, (8 << 20) + (64 << 10), 1024, 8
REASONS = (Path(__file__).resolve().parents[3] / "core/include/clan/face/reasons.h").read_text()
WHYS = re.findall(r"^  (k\w+),", REASONS.split("enum class Why")[1].split("};")[0], re.M)
UNUSED, INQ = WHYS.index("kUnused"), WHYS.index("kInq")


def check_words(clan):
    """What a process says of its sockets is shown; of others it is not believed, and any bytes do
    no harm."""
    with tempfile.TemporaryDirectory() as top:
        library = os.path.join(top, "libclan-preload.so")
        shutil.copy(any_library(), library)
        one = Program(library, SERVER, {})
        port = int(one.said)
        makes = f"m = os.memfd_create('clan-slots-12'); os.ftruncate(m, {WORDS_SIZE})"
        two = Program(library, f"{makes}\n{CLIENT.format(port)}", {})

        def links(pid):
            for name in os.listdir(f"/proc/{pid}/fd"):
                yield f"/proc/{pid}/fd/{name}", os.readlink(f"/proc/{pid}/fd/{name}")

        def inode(pid):
            numbers = [int(link[8:-1]) for _, link in links(pid) if link.startswith("socket:[")]
            return max(numbers)  # the listener is older

        path, = (path for path, link in links(two.pid) if "clan-slots-12" in link)

        def why(words, size=WORDS_SIZE):
            with open(path, "r+b") as file:
                file.truncate(0)
                file.truncate(size)
                for of, kind, number in words:
                    file.seek(WORDS + of % BUCKETS * WAYS * 8)
                    file.write(struct.pack("<Q", number << 40 | kind << 32 | of))
            return clan.connection(port, "--all", wanted=is_whole)

        fewer = "not used enough yet: fewer than 5 calls of 16"
        assert why([])["reason"].endswith(fewer)
        assert why([(inode(two.pid), INQ, 0)])["reason"] == f"process {two.pid}: TCP_INQ"
        assert why([(inode(
            one.pid), INQ, 0)])["reason"].endswith(fewer), "it does not hold that socket"
        assert why([(inode(two.pid), 127, 5)])["reason"].endswith(fewer), "there is no such reason"
        calls = why([(inode(two.pid), UNUSED, 9)])
        assert calls["reason"] == f"process {one.pid}: {fewer}", calls
        assert [calls[end].get("calls") for end in ("local", "peer")].count(9) == 1, calls
        assert why([(inode(two.pid), INQ, 0)],
                   100_000)["reason"].endswith(fewer), "it has another size"
        with open(path, "r+b") as file:
            file.truncate(WORDS_SIZE)
            file.write(os.urandom(WORDS_SIZE))
        found = clan.connection(port, "--all", wanted=is_whole)
        assert found["path"] == "tcp" and found["reason"], found
        one.end()
        two.end()


def check_unread_settings(clan):
    """A process that has written over its environment, as nginx does, may refuse another user: that
    is said as a guess, and not where it tells its reasons itself."""
    if os.getuid() != 0:
        return
    with tempfile.TemporaryDirectory() as top:
        os.chmod(top, 0o755)
        library = os.path.join(top, "libclan-preload.so")
        shutil.copy(any_library(), library)
        overwrites = ("import ctypes; f = open('/proc/self/stat').read().rsplit(')', 1)[1].split();"
                      " ctypes.memset(int(f[47]), 88, int(f[48]) - int(f[47]) - 1);"
                      " os.setuid(65534)")
        tells = f"m = os.memfd_create('clan-slots-12'); os.ftruncate(m, {WORDS_SIZE})"
        for first, wanted in ((overwrites, "perhaps users 0 and 65534, see CLAN_UIDS"),
                              (f"{overwrites}\n{tells}", "fewer than 5 calls of 16")):
            one = Program(library, SERVER, {"CLAN_UIDS": "65534"})
            port = int(one.said)
            two = Program(library, f"{first}\n{CLIENT.format(port)}", {})
            found = clan.connection(port, "--all", wanted=is_whole)
            one.end()
            two.end()
            assert found["reason"].endswith(wanted), found


def check_refused(clan):
    """Another user's processes are counted, in one line, if they have connections that are not
    listed."""
    if os.getuid() != 0:
        return
    server, client = connected(socket.AF_INET, "127.0.0.1")
    try:
        done = clan.stat("--json", user=65534, group=65534)
        assert done.stderr.count("could not be looked into") == 1, done
    except PermissionError:
        return  # the build tree is closed to others
    finally:
        client.end()
        server.close()
    alone = ["unshare", "--net", "setpriv", "--reuid=65534", "--clear-groups", clan.path, "stat"]
    done = subprocess.run(alone, capture_output=True, text=True, timeout=60)
    if "unshare" not in done.stderr:
        assert (done.returncode, done.stderr) == (0, ""), done


def check_prometheus(clan):
    """Each line is a comment or a sample, of all connections."""
    page = SharedPage()
    server, client = connected(socket.AF_INET, "127.0.0.1")
    here, there = server.getsockname(), server.getpeername()
    page.describe(0, here, there, socket.AF_INET, os.getpid(), ATTACHED | SENDING)
    page.describe(1, there, here, socket.AF_INET, client.pid, ATTACHED | SENDING)
    page.put(0, SENDER_BYTES, 12345)
    page.put(1, SENDER_MESSAGES, 7)
    text = clan.stat("--prometheus").stdout
    sample = re.compile(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? \d+(\.\d+)?(e-\d+)?')
    for line in text.splitlines():
        assert re.match(r"# (HELP|TYPE) clan_[a-z_]+ ", line) or sample.fullmatch(line), line
    network = os.stat("/proc/self/ns/net").st_ino
    ends = f'local="127.0.0.1:{here[1]}",peer="127.0.0.1:{there[1]}",network="{network}",command="'
    back = f'local="127.0.0.1:{there[1]}",peer="127.0.0.1:{here[1]}",network="{network}",command="'
    assert any(line.startswith(f"clan_sent_bytes_total{{{ends}") and line.endswith(" 12345")
               for line in text.splitlines()), text
    assert any(line.startswith(f"clan_messages_total{{{back}") and line.endswith(" 7")
               for line in text.splitlines()), text
    count = re.search(r'clan_connections\{path="shm",reason=""\} (\d+)', text)
    assert count and int(count[1]) >= 1, text
    assert "--watch" in clan.stat("--prometheus", "--watch", code=2).stderr
    client.end()
    server.close()
    os.close(page.fd)


def main():
    clan = Clan(sys.argv[1])
    check_connection(clan, socket.AF_INET, "127.0.0.1")
    if os.path.exists("/proc/net/tcp6"):
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
            check_connection(clan, socket.AF_INET6, "::1")
        except OSError as error:
            print("no IPv6 here:", error)
    check_strangers(clan)
    check_all(clan)
    check_clients_that_end(clan)
    check_reasons(clan)
    check_words(clan)
    check_unread_settings(clan)
    check_refused(clan)
    check_prometheus(clan)
    return 0


if __name__ == "__main__":
    sys.exit(main())
