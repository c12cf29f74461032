#!/usr/bin/env python3
"""Connections between containers that share a directory (CLAN_DIR), and between addresses of one
host.

    containers.py LIBRARY [TEST...]

Two containers are made of namespaces, network and process ids each, with a veth pair between them.
In them run actors: Python, which knows nothing of CLAN, doing what the test tells it by lines on
its standard input. Exit code 77 when namespaces are not to be had.
"""

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import programs

HERE = Path(__file__).resolve()
LIBRARY = None
NETLINK_SOCK_DIAG = 4
OTHER_USER = 4321
NEW = ["unshare", "--net", "--pid", "--fork", "--mount-proc"]
SMALL = "size=64k,nr_inodes=32,mode=755"
VETH = ["ip", "link", "add", "clan-first", "type", "veth", "peer", "name", "clan-second"]


# --- in a container -------------------------------------------------------------------------------

class Actor:
    """Executes commands: one line of JSON in, one out."""

    def __init__(self):
        self.listener = self.socket = None

    def user(self, uid):
        os.setuid(uid)

    def listen(self, address):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.listener = socket.socket(family)
        self.listener.bind((address, 0))
        self.listener.listen()
        return self.listener.getsockname()[1]

    def accept(self):
        self.socket, _ = self.listener.accept()
        self.socket.settimeout(30)

    def connect(self, address, port, source=None):
        self.socket = socket.create_connection((address, port), timeout=30,
                                               source_address=source and (source, 0))

    def send(self, count):
        self.socket.sendall(bytes(i % 251 for i in range(count)))

    def receive(self, count):
        got = b""
        while len(got) < count:
            piece = self.socket.recv(count - len(got))
            if not piece:
                break
            got += piece
        assert got == bytes(i % 251 for i in range(len(got))), "wrong bytes"
        return len(got)

    def receive_hex(self, count):
        return self.socket.recv(count, socket.MSG_WAITALL).hex()

    def receive_slowly(self):
        """A byte"""
        return len(self.socket.recv(1))

    def pipes(self):
        """How many, and the bytes in both directions"""
        found = programs.pipes_of(os.getpid())
        return [len(found), sum(map(sum, found.values()))]

    def descriptors(self):
        """Without the one memfd in which a process says why its connections stay on TCP."""
        links = []
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                links.append(os.readlink("/proc/self/fd/" + name))
        return sum("clan-slots" not in link for link in links)

    def close(self):
        self.socket.close()

    def become(self, *argv):
        """Another program, without the library, with the connection as its standard input and
        output."""
        os.dup2(self.socket.fileno(), 0)
        os.dup2(self.socket.fileno(), 1)
        os.set_blocking(0, True)
        environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        os.execve(argv[0], argv, environment)

    def run(self):
        for line in sys.stdin:
            name, *arguments = json.loads(line)
            try:
                said = [getattr(self, name)(*arguments)]
            except (OSError, AssertionError) as wrong:
                said = [None, f"{type(wrong).__name__}: {wrong}"]
            print(json.dumps(said), flush=True)


# --- the containers -------------------------------------------------------------------------------

class Told:
    """An actor, from outside."""

    def __init__(self, world, where, *, directory=True, preload=True, log=None, **environment):
        words = [f"{k}={v}" for k, v in environment.items()]
        if preload:
            words += [f"LD_PRELOAD={LIBRARY}"]
        if directory:
            words += [f"CLAN_DIR={world.directory}"]
        if log:
            words += [f"CLAN_LOG={log}"]
        inside = where.enter if where else []
        argv = [*inside, "/usr/bin/env", *words, programs.PYTHON, "-B", str(HERE), "--actor"]
        # pylint: disable-next=consider-using-with
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, stderr=open(world.log, "a"))
        world.started.append(self.process)

    def tell(self, *words):
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def hear(self):
        line = self.process.stdout.readline()
        programs.require(line, "the actor has ended")
        return json.loads(line)

    def __call__(self, *words):
        self.tell(*words)
        said = self.hear()
        programs.require(len(said) == 1, f"{words}: {said[-1]}")
        return said[0]

    def pid(self):
        """As we see it: nsenter makes it a child of its own."""
        return (programs.descendants(self.process.pid) or [self.process.pid])[-1]

    def kill(self):
        os.kill(self.pid(), signal.SIGKILL)


class Container:
    def __init__(self):
        # pylint: disable=consider-using-with
        self.process = subprocess.Popen([*NEW, "--kill-child", "sleep", "300"])
        deadline = time.monotonic() + 10
        while not (inside := programs.descendants(self.process.pid)):
            programs.require(self.process.poll() is None and time.monotonic() < deadline,
                             "no namespaces")
            time.sleep(0.02)
        self.pid = inside[-1]
        while Path(f"/proc/{self.pid}/comm").read_text() != "sleep\n":  # --mount-proc is over
            programs.require(time.monotonic() < deadline, "no program in the namespaces")
            time.sleep(0.02)
        self.enter = ["nsenter", "-t", str(self.pid), "--net", "--pid", "--mount"]

    def ip(self, *words):
        subprocess.run([*self.enter, "ip", *words], check=True)


class World:
    """Two containers with a network and a directory."""

    small = None  # a file system for the directory that can be full soon, if there is one

    def __init__(self):
        self.top = Path(tempfile.mkdtemp(prefix="clan-containers-"))
        self.top.chmod(0o755)
        self.directory = (self.small or self.top) / "shared"
        self.directory.mkdir()
        self.directory.chmod(0o1777)
        self.log = self.top / "log"
        self.started = []
        self.containers = []

    def __enter__(self):
        for _ in range(2):
            self.containers.append(Container())
        first, second = self.containers
        subprocess.run(VETH, check=True)
        for name, container, number in (("clan-first", first, 1), ("clan-second", second, 2)):
            subprocess.run(["ip", "link", "set", name, "netns", str(container.pid)], check=True)
            container.ip("link", "set", "lo", "up")
            container.ip("addr", "add", f"10.99.0.{number}/24", "dev", name)
            container.ip("addr", "add", f"fd99::{number}/64", "dev", name, "nodad")
            container.ip("link", "set", name, "up")
        return self

    def __exit__(self, *_):
        for process in self.started + [c.process for c in self.containers]:
            process.kill()
            process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.rmtree(self.top, ignore_errors=True)

    def offers(self):
        return sorted(self.directory.iterdir())

    def until(self, what, true, seconds=10):
        deadline = time.monotonic() + seconds
        while not true():
            programs.require(time.monotonic() < deadline, f"not within {seconds} s: {what}")
            time.sleep(0.02)

    def actors(self, places=None, server=None, client=None, users=(0, 0)):
        """For a server in the first container, and a client in the second."""
        places = places or self.containers
        ends = Told(self, places[0], **(server or {})), Told(self, places[1], **(client or {}))
        for actor, user in zip(ends, users):
            if user:
                actor("user", user)
        return ends

    def connected(self, one, other, address="10.99.0.1", source=None):
        port = one("listen", address)
        one.tell("accept")
        other("connect", address, port, source)
        one.hear()
        return one, other

    def pair(self, address="10.99.0.1", places=None, server=None, client=None, source=None,
             users=(0, 0)):
        """Both, connected."""
        return self.connected(*self.actors(places, server, client, users), address, source)


def exchange(server, client, count, size=1000):
    for _ in range(count):
        client("send", size)
        programs.require(server("receive", size) == size, "the request is short")
        server("send", size)
        programs.require(client("receive", size) == size, "the answer is short")


def moved(*actors):
    """Both have the one pipe, and bytes went by it."""
    return all(a("pipes")[0] == 1 and a("pipes")[1] > 2000 for a in actors)


def on_tcp(*actors):
    return all(a("pipes") == [0, 0] for a in actors)


# --- tests ----------------------------------------------------------------------------------------

def a_connection_between_containers_moves(world):
    for address in "10.99.0.1", "fd99::1", "::ffff:10.99.0.1":
        server, client = world.pair(address)
        exchange(server, client, 20)
        programs.require(moved(server, client), f"{address}: not moved")
        programs.require(world.offers() == [], f"{address}: offers are left")
        client("close")
        programs.require(server("receive", 1) == 0, "no end of file")


def without_the_directory_it_stays_on_tcp(world):
    for sides in ({"directory": False}, {}), ({}, {"directory": False
                                                   }), ({"directory": False}, ) * 2:
        server, client = world.pair(server=sides[0], client=sides[1])
        exchange(server, client, 20)
        programs.require(on_tcp(server, client), f"{sides}: moved")
        client("close")
        world.until("the offer is gone", lambda: world.offers() == [])


def stock_programs_move_in_containers(world):
    """An HTTP server and curl, which asks for many files by one connection."""
    (world.top / "file").write_bytes(bytes(range(256)) * 4096)
    programs.find("curl")
    environment = ["/usr/bin/env", f"LD_PRELOAD={LIBRARY}", f"CLAN_DIR={world.directory}"]
    first, second = world.containers
    with open(world.log, "a") as log:
        argv = [
            programs.PYTHON, "-m", "http.server", "8000", "--protocol", "HTTP/1.1", "--bind",
            "10.99.0.1", "--directory",
            str(world.top)
        ]
        # pylint: disable=consider-using-with
        server = subprocess.Popen([*first.enter, *environment, *argv], stdout=log, stderr=log)
        world.started.append(server)
        ask = [*second.enter, "curl", "-sf", "-o", "/dev/null", "http://10.99.0.1:8000/log"]
        world.until("the server listens", lambda: subprocess.run(ask, check=False).returncode == 0)
        watch = programs.PipeWatch()
        watch.start()
        urls = ["http://10.99.0.1:8000/file"] * 200
        got = subprocess.run([*second.enter, *environment, "curl", "-sf", *urls],
                             stdout=subprocess.PIPE, timeout=60, check=True).stdout
        _, count = watch.stop()
    programs.require(
        len(got) == 200 << 20 and got == bytes(range(256)) * (len(got) // 256), "wrong bytes")
    programs.require(sum(count) > 50 << 20, f"{sum(count)} bytes by shared memory")


def a_server_that_sleeps_sees_the_end_of_a_client_that_is_killed(world):
    """At each step of the rendezvous, also with what is on its way between the two."""
    for steps in range(1, 8):
        server, client = world.pair()
        for step in range(steps):
            client("send", 100)
            server("receive", 100)
            if step % 2:
                server("send", 100)
                client("receive", 100)
        server.tell("receive", 1)
        time.sleep(0.05)
        client.kill()
        start = time.monotonic()
        said = server.hear()
        programs.require(said == [0] or "reset" in said[-1].lower(), f"after {steps} steps: {said}")
        programs.require(time.monotonic() - start < 2, f"after {steps} steps: too late")


def what_a_killed_client_leaves_the_next_one_removes(world):
    server, client = world.pair(server={"preload": False})
    exchange(server, client, 3)
    left = world.offers()
    programs.require(len(left) == 1, f"offers: {left}")
    client.kill()
    time.sleep(3.1)
    programs.require(world.offers() == left, "the file of a killed client is gone by itself")
    server, client = world.pair(server={"preload": False})
    exchange(server, client, 3)
    now = world.offers()
    programs.require(len(now) == 1 and now != left, f"offers: {left}, then {now}")
    client.process.stdin.close()  # it ends
    client.process.wait(10)
    programs.require(world.offers() == [], "an offer is left after exit")


def another_user_stays_on_tcp_unless_named(world):
    for uids, expected in (None, on_tcp), (f"0,{OTHER_USER}", moved):
        sides = {"CLAN_UIDS": uids} if uids else {}
        for users in (0, OTHER_USER), (OTHER_USER, 0):
            server, client = world.pair(server=sides, client=sides, users=users)
            exchange(server, client, 20)
            programs.require(expected(server, client),
                             f"CLAN_UIDS={uids}, users {users}: not {expected.__name__}")
            client("close")
            server("close")
            world.until("the offer is gone", lambda: world.offers() == [])


class Forger:
    """Takes the place of an offer: a window into some namespace, and a pipe that nobody else
    has."""

    def __init__(self, path, namespace=None, user=None):
        path.rename(path.with_name("elsewhere"))
        listens, tells = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(tells)
            os.read(listens, 1)
            os.close(listens)
            return
        try:
            if namespace:
                with open(f"/proc/{namespace}/ns/net") as file:
                    programs.require(ctypes.CDLL(None).setns(file.fileno(), 0) == 0, "setns")
            window = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_SOCK_DIAG)
            if user:
                os.setuid(user)
            memory = os.memfd_create("clan-pipe", os.MFD_ALLOW_SEALING)
            os.write(memory, struct.pack("<QII", programs.PIPE_MAGIC, programs.PIPE_VERSION, 4096))
            os.ftruncate(memory, 3 * 4096)
            ctypes.CDLL(None).fcntl(memory, 1033, 6)  # F_ADD_SEALS: shrinking, growing
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(str(path))
                path.chmod(0o666)
                listener.listen()
                os.write(tells, b"x")
                taker, _ = listener.accept()
                taker.recv(1000)
                socket.send_fds(taker, [b"clandir1" + bytes(8)], [window.fileno(), memory])
                time.sleep(1)
        finally:
            os._exit(0)

    def end(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def forge(world, forgery, settings):
    server, client = world.pair(server={"log": "info", **settings}, client=settings)
    for _ in range(2):
        client("send", 100)
    world.until("there is an offer", world.offers)
    forger = Forger(world.offers()[0], **forgery)
    for _ in range(2):
        server("receive", 100)
    exchange(server, client, 20)
    forger.end()
    programs.require(on_tcp(server, client), f"{forgery}: moved")
    for path in world.offers():
        path.unlink()


def a_forged_offer_is_refused(world):
    """In its place another process's: without our connection in its namespace, and of another user
    that sees it."""
    both = {"CLAN_UIDS": f"0,{OTHER_USER}"}
    other = {"namespace": world.containers[1].pid, "user": OTHER_USER}
    forgeries = (({}, {}, "knows of no such connection"), (other, {}, "CLAN_UIDS does not name"),
                 (other, both, "for a connection of user 0"))
    for forgery, settings, why in forgeries:
        for _ in range(4):  # an end that has asked waits some milliseconds for what a forger says
            forge(world, forgery, settings)
            if why in world.log.read_text():
                break
        programs.require(why in world.log.read_text(),
                         f"{forgery}: not \"{why}\" in {world.log.read_text()}")


def a_stranger_at_an_offer_does_not_keep_the_other_end_away(world):
    server, client = world.pair()
    for _ in range(2):
        client("send", 100)
    world.until("there is an offer", world.offers)
    pid = os.fork()
    if pid == 0:
        os.setuid(OTHER_USER)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            os._exit(0 if stranger.connect_ex(str(world.offers()[0])) != 0 else 1)
    programs.require(os.waitpid(pid, 0)[1] == 0, "another user can connect to an offer")
    # root can, but has nothing to say
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(str(world.offers()[0]))
        stranger.send(b"hello")
        client("send", 100)
    for _ in range(3):
        server("receive", 100)
    exchange(server, client, 20)
    programs.require(moved(server, client), "not moved")


def a_program_without_the_library_gets_the_connection(world):
    """By exec, in a pid namespace that the other end does not see; then bytes go both ways by
    TCP."""
    for who in 0, 1:
        ends = world.pair()
        exchange(*ends, 20)
        programs.require(moved(*ends), "not moved")
        leaver, other = ends[who], ends[1 - who]
        leaver.tell("become", "/bin/cat")
        other("send", 5000)
        start = time.monotonic()
        programs.require(other("receive", 5000) == 5000, "cat has not answered")
        programs.require(time.monotonic() - start < 15, "it took too long")
        other("close")
        leaver.process.wait(10)


def bytes_from_before_the_move_are_read_by_a_new_program(world):
    """What came by TCP before the move and was not read, and what lies in the pipe behind it."""
    server, client = world.pair()
    server("send", 251)
    got = 0
    for _ in range(15):
        got += client("receive_slowly")
        client("send", 10)
        server("receive", 10)
        server("send", 10)
    programs.require(server("pipes")[0] == 1, "not moved")
    client.tell("become", "/bin/cat")
    rest = (bytes(range(251)) + 15 * bytes(range(10)))[got:]
    programs.require(server("receive_hex", len(rest)) == rest.hex(), "not what was sent")
    server("close")
    programs.require(client.process.wait(15) == 0, "cat still runs")


def addresses_of_one_host_move(world):
    """Without a directory, though they differ."""
    first = world.containers[0]
    first.ip("addr", "add", "10.98.0.1/24", "dev", "lo")
    first.ip("addr", "add", "fd98::1/64", "dev", "lo", "nodad")
    pairs = (("10.98.0.1", "127.0.0.5"), ("10.98.0.1", "10.99.0.1"), ("127.0.0.7", "10.98.0.1"),
             ("::ffff:10.98.0.1", "::ffff:127.0.0.5"), ("fd98::1", "::1"), ("fd98::1", "fd99::1"))
    for address, source in pairs:
        plain = {"directory": False}
        server, client = world.pair(address, (first, first), plain, plain, source)
        exchange(server, client, 20)
        programs.require(moved(server, client), f"{source} to {address}: not moved")


def a_directory_that_cannot_be_used_is_told_and_left_alone(world):
    plain = world.top / "plain"
    plain.mkdir()
    plain.chmod(0o777)
    file = world.top / "file"
    file.touch()
    good = world.directory
    for path, why, spoilt, user in (
        (world.top / "nowhere", "is no directory", None, 0),
        (file, "is no directory, but something else", None, 0),
        (plain, "no sticky bit", None, 0), (world.top / ("x" * 80), "is too long", None, 0),
        ("relative", "absolute", None, 0), (good, "is read-only here", read_only(world), 0),
        (good, "cannot be written to by this user", of_root_alone(world), OTHER_USER)):
        sides = {"directory": False, "CLAN_DIR": path}
        before = len(world.log.read_text().splitlines()) if world.log.exists() else 0
        with spoilt or contextlib.nullcontext():
            ends = world.pair(server=sides, client=sides, users=(user, user))
            exchange(*ends, 5)
            programs.require(on_tcp(*ends), f"{path}: moved")
        lines = [line for line in world.log.read_text().splitlines()[before:]
                 if f"CLAN_DIR={path} " in line and why in line]
        programs.require(len(lines) == 2, f"{path}: {lines}")
    programs.require(list(plain.iterdir()) == [], "an offer in a directory of everybody")


@contextlib.contextmanager
def no_inodes(world):
    files = []
    with contextlib.suppress(OSError):
        while True:
            files.append(world.small / f"full-{len(files)}")
            files[-1].touch()
    programs.require(len(files) > 1 and not files[-1].exists(), "never full")
    yield
    for file in files[:-1]:
        file.unlink()


@contextlib.contextmanager
def read_only(world):
    remount = ["mount", "-o"]
    subprocess.run([*remount, "remount,ro", world.small], check=True)
    yield
    subprocess.run([*remount, "remount,rw", world.small], check=True)


@contextlib.contextmanager
def moved_away(world, *, to=None, file=False):
    """With something else in its place, or nothing."""
    away = world.directory.rename(world.directory.with_name("away"))
    if file:
        world.directory.touch()
    if to:
        world.directory.symlink_to(to)
    yield
    if file or to:
        world.directory.unlink()
    away.rename(world.directory)


@contextlib.contextmanager
def of_root_alone(world):
    world.directory.chmod(0o755)
    yield
    world.directory.chmod(0o1777)


@contextlib.contextmanager
def of_another_user(world):
    os.chown(world.directory, OTHER_USER, OTHER_USER)
    yield
    os.chown(world.directory, 0, 0)


def begun(world, users):
    """Two actors that have read their settings, and so have read the directory."""
    loud = {"log": "info"}
    ends = world.actors(server=loud, client=loud, users=users)
    for end in ends:
        end("listen", "127.0.0.1")
    return ends


def a_directory_that_becomes_unusable_leaves_connections_on_tcp(world):
    """With a sentence that says what it is; those that have moved go on, and what comes later
    moves."""
    fine = world.pair()
    exchange(*fine, 20)
    for spoilt, users, why in (
        (no_inodes(world), (0, 0), "no inodes"), (read_only(world), (0, 0), "read-only"),
        (moved_away(world), (0, 0), "has been removed"),
        (moved_away(world, file=True), (0, 0), "something else is in its place"),
        (of_root_alone(world), (OTHER_USER, OTHER_USER), "cannot write to it any more")):
        waiting = world.pair(server={"preload": False})
        exchange(*waiting, 3)
        ends = begun(world, users)
        before = len(world.log.read_text().splitlines())
        with spoilt:
            world.connected(*ends)
            exchange(*ends, 20)
            programs.require(on_tcp(*ends), f"{why}: moved")
            exchange(*fine, 5)
            programs.require(moved(*fine), f"{why}: what had moved has not stayed")
            exchange(*waiting, 5)
            waiting[1]("close")  # its offer has gone with the directory, or stays
            programs.require(waiting[0]("receive", 1) == 0, f"{why}: no end of file")
        lines = world.log.read_text().splitlines()[before:]
        said = [line for line in lines if "no offer can be made in CLAN_DIR: " in line]
        programs.require(len(said) == 1 and why in said[0] and "stays on TCP" in said[0],
                         f"{why}: {lines}")
        for end in ends:
            end("close")
        ends = world.pair(users=users)
        exchange(*ends, 20)
        programs.require(moved(*ends), f"{why}: later ones do not move")


def a_directory_of_somebody_else_or_behind_a_link_serves(world):
    for changed in of_another_user(world), moved_away(world, to="away"):
        with changed:
            for users in (0, 0), (OTHER_USER, OTHER_USER):
                ends = world.pair(users=users)
                exchange(*ends, 20)
                programs.require(moved(*ends), f"users {users}: not moved")


TESTS = (a_connection_between_containers_moves, without_the_directory_it_stays_on_tcp,
         stock_programs_move_in_containers,
         a_server_that_sleeps_sees_the_end_of_a_client_that_is_killed,
         what_a_killed_client_leaves_the_next_one_removes, another_user_stays_on_tcp_unless_named,
         a_forged_offer_is_refused, a_stranger_at_an_offer_does_not_keep_the_other_end_away,
         a_program_without_the_library_gets_the_connection,
         bytes_from_before_the_move_are_read_by_a_new_program, addresses_of_one_host_move,
         a_directory_that_cannot_be_used_is_told_and_left_alone,
         a_directory_that_becomes_unusable_leaves_connections_on_tcp,
         a_directory_of_somebody_else_or_behind_a_link_serves)


def why_not_here():
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    for program in "unshare", "nsenter", "ip":
        if shutil.which(program) is None:
            return f"{program} is not installed"
    tried = subprocess.run([*NEW, *VETH], capture_output=True, text=True, check=False)
    return tried.stderr.strip() if tried.returncode else None


def main():
    global LIBRARY  # pylint: disable=global-statement
    if sys.argv[1:] == ["--actor"]:
        Actor().run()
        return 0
    why = why_not_here()
    if why:
        print(f"skipped: {why}")
        return programs.SKIPPED
    if "CLAN_TEST_NAMESPACE" not in os.environ:
        # The veth pair and the small file system are made in namespaces of our own.
        new = ["unshare", "--net", "--mount", "--kill-child"]
        return subprocess.run([*new, sys.executable, "-B", *sys.argv],
                              env={**os.environ, "CLAN_TEST_NAMESPACE": "1"},
                              check=False).returncode
    LIBRARY = os.path.abspath(sys.argv[1])
    World.small = Path(tempfile.mkdtemp(prefix="clan-small-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", SMALL, "clan-test", World.small], check=True)
    failed = 0
    for test in TESTS:
        name = re.sub("_", " ", test.__name__)
        if sys.argv[2:] and not any(word in test.__name__ for word in sys.argv[2:]):
            continue
        start = time.monotonic()
        with World() as world:
            try:
                test(world)
                print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)
            except programs.Skip as skip:
                print(f"{name}: skipped, {skip}", flush=True)
            except (programs.Wrong, OSError, ValueError, subprocess.SubprocessError) as wrong:
                failed += 1
                print(f"{name}: {type(wrong).__name__}: {wrong}", flush=True)
                if world.log.exists():
                    print(world.log.read_text()[-2000:])
    subprocess.run(["umount", World.small], check=True)
    World.small.rmdir()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
