#!/usr/bin/env python3
"""Connections of processes that are shut in as services are: user namespaces, filters of system
calls that kill.

    services.py LIBRARY CLAN [TEST...]

The two ends of a connection are actors, Python that does what the test tells it (containers.py),
each started by the commands that shut it in. Exit code 77 when all that was asked for was skipped.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import containers
import programs
from containers import Told, exchange, moved

CLAN = None
FIRST_USER, SECOND_USER = 1000, 1234


class Actor(containers.Actor):
    """Does what services do, too."""

    def thread(self):
        """One that stays."""
        threading.Thread(target=threading.Event().wait, daemon=True).start()

    def fork(self):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)

    def child(self):
        """Another program, which has the connection."""
        os.set_inheritable(self.socket.fileno(), True)
        pid = os.posix_spawn("/bin/true", ["true"], {})
        os.waitpid(pid, 0)
        os.set_inheritable(self.socket.fileno(), False)


class Place:
    """How an actor is started."""

    def __init__(self, *enter):
        self.enter = list(enter)


def as_user(uid):
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


class Services(containers.World):
    """No containers: all in one network namespace, and without CLAN_DIR."""

    def __enter__(self):
        return self

    def talk(self, places=((), ()), settings=({}, {}), rounds=20):
        """A connection, used; the actors and what the log says."""
        self.log.unlink(missing_ok=True)
        sides = [{"directory": False, "log": "info", **more} for more in settings]
        ends = self.pair("127.0.0.1", [Place(*place) for place in places], *sides)
        exchange(*ends, rounds)
        return ends

    def said(self):
        return self.log.read_text() if self.log.exists() else ""

    def expect(self, expected, what, *ends):
        programs.require(expected(*ends), f"{what}: not {expected.__name__}: {self.said()}")
        for end in ends:
            end("close")


def on_tcp(*actors):
    """No byte went by shared memory."""
    return all(a("pipes")[1] == 0 for a in actors)


def only_root():
    if os.geteuid() != 0:
        raise programs.Skip("only root becomes other users")


# --- users ----------------------------------------------------------------------------------------

def nobody_in_a_user_namespace_is_our_own_user(world):
    """Where no user is mapped, all read as 65534, and so do we."""
    only_root()
    first, second = as_user(FIRST_USER), as_user(SECOND_USER)
    shut_in = [*first, "unshare", "--user"]
    for places in (shut_in, second), (second, shut_in), (shut_in,
                                                         as_user(65534)), (shut_in,
                                                                           first), (first, shut_in):
        for uids in None, "65534,1000,1234,0":
            settings = {"CLAN_UIDS": uids} if uids else {}
            ends = world.talk(places, (settings, settings))
            world.expect(on_tcp, f"{places}, CLAN_UIDS={uids}", *ends)


def users_that_a_user_namespace_has_are_told_apart(world):
    only_root()
    mapped = [*as_user(FIRST_USER), "unshare", "--user", "--map-root-user"]
    # Inside, 1000 is 0; a user that is not mapped reads as 65534, which CLAN_UIDS does not let in
    # either.
    inside, outside = {"CLAN_UIDS": "0,65534"}, {"CLAN_UIDS": "0,1000"}
    for places, settings, expected in (((mapped, as_user(FIRST_USER)), (inside, outside), moved),
                                       ((as_user(FIRST_USER), mapped), (outside, inside), moved),
                                       ((mapped, as_user(SECOND_USER)), (inside, outside), on_tcp),
                                       ((as_user(SECOND_USER), mapped), (outside, inside), on_tcp)):
        ends = world.talk(places, settings)
        world.expect(expected, f"{places}", *ends)


def nobody_is_a_user_where_every_user_is_mapped(world):
    only_root()
    nobody = as_user(65534)
    world.expect(moved, "nobody", *world.talk((nobody, nobody)))
    named = {"CLAN_UIDS": "65534"}
    world.expect(moved, "nobody by CLAN_UIDS", *world.talk((nobody, ()),
                                                           ({"CLAN_UIDS": "0"}, named)))


def offer_of(client, server, user):
    """A process of that user that has taken the name of the client's offer."""
    at = [f"::ffff:{address}/{port}" for address, port in (client.getsockname(), server)]
    listens, tells = os.pipe()
    pid = os.fork()
    if pid:
        os.close(tells)
        os.read(listens, 1)
        os.close(listens)
        return pid
    try:
        client.close()
        os.setuid(user)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind("\0clan1/" + "/".join(at))
            listener.listen()
            os.write(tells, b"x")
            time.sleep(60)  # it is killed before
    finally:
        os._exit(0)


def a_peer_that_has_closed_is_no_attack(world):
    """The kernel names no owner of a socket that is closed; of one that is open it does."""
    only_root()
    for closes in True, False:
        world.log.unlink(missing_ok=True)
        server = Told(world, Place(), directory=False, log="info")
        port = server("listen", "127.0.0.1")
        server.tell("accept")
        client = socket.create_connection(("127.0.0.1", port))
        server.hear()
        offering = offer_of(client, ("127.0.0.1", port), SECOND_USER)
        client.sendall(bytes(i % 251 for i in range(251)))
        if closes:
            client.shutdown(socket.SHUT_WR)
            client.close()
        for _ in range(12):
            server("receive_slowly")
        os.kill(offering, signal.SIGKILL)
        os.waitpid(offering, 0)
        client.close()
        warning = f"user {SECOND_USER} offered shared memory for a connection of user 0; refused"
        warned = warning in world.said()
        programs.require(warned != closes, f"closes: {closes}, and said: {world.said()}")


# --- filters of system calls ----------------------------------------------------------------------

def filtered(kind, *calls):
    if os.uname().machine != "x86_64" or not (programs.HERE / "filter.py").exists():
        raise programs.Skip("the filters are made for x86-64")
    return [programs.PYTHON, "-B", str(programs.HERE / "filter.py"), kind, ",".join(calls)]


def has_ended(actor):
    return actor.process.poll() is not None


def use(world, places, evidence, preload, child, expected=None, said=""):
    """A connection between two processes, one with a filter: neither dies of it."""
    world.log.unlink(missing_ok=True)
    sides = {"directory": False, "log": "info", "preload": preload}
    ends = [Told(world, Place(*place), **sides) for place in places]
    shut_in = ends[0 if places[0] else 1]
    if evidence:
        shut_in(evidence)
    server, client = ends
    port = server("listen", "127.0.0.1")
    server.tell("accept")
    client("connect", "127.0.0.1", port, None)
    server.hear()
    exchange(server, client, 20)
    if preload:
        programs.require(said in world.said(), f"not said: {said}: {world.said()}")
        programs.require(expected(server, client), f"not {expected.__name__}: {world.said()}")
    if child:  # what goes back when a program is executed
        shut_in("child")
        exchange(server, client, 5)
    for end in ends:
        end("close")
        end.process.stdin.close()
        programs.require(end.process.wait(10) == 0, f"exit code {end.process.returncode}")


def try_filter(world, command, evidence, expected, said, child=True):
    """The server's, then the client's; and that it is not in the program's own way."""
    for places in (command, ()), ((), command):
        for preload in False, True:
            try:
                use(world, places, evidence, preload, child, expected, said)
            except programs.Wrong as wrong:
                raise programs.Wrong(
                    f"{places}, {evidence}, preload {preload}: {wrong} {world.said()}") from wrong


def filters_that_kill_for_what_the_library_calls(world):
    for call in ("memfd_create", "ftruncate", "ppoll", "sendmsg", "recvmsg", "eventfd2", "madvise",
                 "tgkill", "rt_tgsigqueueinfo", "wait4"):
        evidence = "thread" if call == "wait4" else "fork"
        try_filter(world, filtered("deny", call), evidence, on_tcp, f"{call} does not pass",
                   child=call != "wait4")


def a_filter_is_not_tried_before_the_program_has_made_a_process(world):
    makers = filtered("deny", "clone", "clone3", "fork", "vfork")
    try_filter(world, makers, None, on_tcp, "cannot be tried before", child=False)
    try_filter(world, filtered("deny", "memfd_create"), None, on_tcp, "cannot be tried before")


def a_filter_of_the_parents_has_let_it_make_a_process(world):
    """As in a container: the shell that starts the program has the filter, too."""
    started = [*filtered("deny", "reboot"), "sh", "-c", '"$@"; exit $?', "sh"]
    server, client = world.talk((started, ()))
    world.expect(moved, "a child of a shell under the filter", server, client)
    killed = [*filtered("deny", "memfd_create"), "sh", "-c", '"$@"; exit $?', "sh"]
    server, client = world.talk((killed, ()))
    world.expect(on_tcp, "likewise, with a call that kills", server, client)


def filters_that_let_everything_pass_that_is_needed(world):
    try_filter(world, filtered("deny", "reboot"), "fork", moved, "lets pass")
    try_filter(world, filtered("deny", "reboot"), "thread", moved, "lets pass")


def systemds_set_of_calls_for_services(world):
    if shutil.which("systemd-analyze") is None:
        raise programs.Skip("systemd-analyze is not installed")
    try_filter(world, filtered("allow", "@system-service"), "thread", moved, "lets pass")
    try_filter(world, filtered("allow", "@system-service"), None, on_tcp, "cannot be tried before")
    narrow = ("@basic-io", "@file-system", "@io-event", "@network-io", "@process", "@signal",
              "ioctl", "madvise", "mremap", "sysinfo")
    try_filter(world, filtered("allow", *narrow), "thread", on_tcp, "memfd_create does not pass")


# --- without sock_diag ----------------------------------------------------------------------------

NO_NETLINK = "families", str(int(socket.AF_NETLINK))


def without_netlink_the_table_of_connections_tells_the_peer(world):
    """As of Debian's redis-server.service and memcached.service; IPv4, IPv6 and both; as strict
    about users."""
    only_root()
    shut_in = filtered(*NO_NETLINK)
    both = {"CLAN_UIDS": f"0,{SECOND_USER}"}
    for places, settings, expected in (((shut_in, ()), ({}, {}),
                                        moved), (((), shut_in), ({}, {}),
                                                 moved), ((shut_in, shut_in), ({}, {}), moved),
                                       ((shut_in, as_user(SECOND_USER)), ({}, {}), on_tcp),
                                       ((as_user(SECOND_USER), shut_in), ({}, {}), on_tcp),
                                       ((shut_in, as_user(SECOND_USER)), (both, both), moved)):
        for address in "127.0.0.1", "::1", "::ffff:127.0.0.1":
            ends = [Told(world, Place(*place), directory=False, log="info", **more)
                    for place, more in zip(places, settings)]
            for end, place in zip(ends, places):
                if place:
                    end("thread")
            server, client = ends
            port = server("listen", address)
            server.tell("accept")
            client("connect", address, port, None)
            server.hear()
            exchange(server, client, 20)
            world.expect(expected, f"{places}, {settings}, {address}", *ends)


def what_is_in_the_place_of_the_table_is_not_believed(world):
    """Neither sock_diag nor procfs: nothing moves, nobody keeps anything of a try, and what is
    missing is said."""
    only_root()
    forged = world.top / "tcp"
    forged.write_text(Path("/proc/self/net/tcp").read_text())
    cover = f"mount -t tmpfs none /proc; mkdir -p /proc/self/net; cp {forged} /proc/self/net"
    blind = ["unshare", "--mount", "sh", "-ec", f'{cover}; exec "$@"', "sh", *filtered(*NO_NETLINK)]
    for places in (blind, ()), ((), blind):
        world.log.unlink(missing_ok=True)
        ends = [Told(world, Place(*place), directory=False, log="info") for place in places]
        shut_in, other = ends if places[0] else reversed(ends)
        shut_in("fork")
        server, client = ends
        port = server("listen", "127.0.0.1")
        server.tell("accept")
        client("connect", "127.0.0.1", port, None)
        server.hear()
        before = other("descriptors")
        exchange(server, client, 150)  # until an offer is given up
        programs.require(other("pipes") == [0, 0], f"{places}: moved: {world.said()}")
        programs.require(other("descriptors") == before, f"{places}: descriptors are left")
        programs.require("it takes AF_NETLINK, or /proc/self/net/tcp" in world.said(),
                         f"not said: {world.said()}")


def a_pipe_that_the_other_end_refuses_is_given_up(world):
    """The server lets the client in, and the client not the server: within a second of use the
    descriptor is gone."""
    only_root()
    server, client = world.talk(((), as_user(SECOND_USER)), ({"CLAN_UIDS": f"0,{SECOND_USER}"}, {}),
                                rounds=10)
    programs.require(server("pipes")[0] == 1, f"no pipe to be refused: {world.said()}")
    time.sleep(1)
    exchange(server, client, 15)
    programs.require(server("pipes") == [0, 0], f"the server keeps {server('pipes')}")


# --- reasons --------------------------------------------------------------------------------------

def reasons_are_told_when_they_arise(world):
    """By CLAN_LOG=info, in the words of `clan stat --all`; settings of CLAN_CONFIG's file count as
    the variables do."""
    config = world.top / "settings"
    config.write_text("# by a file\nCLAN_EXCEPT=1-65535\n")
    config.chmod(0o644)
    for settings, said in ((({}, {"CLAN_CONFIG": str(config)}),
                            "CLAN_EXCEPT; the connection stays on TCP"), (({
                                "CLAN_EXCEPT": "1-65535"
                            }, {}), "CLAN_EXCEPT; the connection stays on TCP"), (({}, {
                                "CLAN_ONLY": "1"
                            }), "CLAN_ONLY; the connection stays on TCP"), (({}, {
                                "CLAN_DISABLE": "1"
                            }), "CLAN_DISABLE; connections stay on TCP"),
                           (({"preload": False}, {}), "the other end runs without CLAN"), (({}, {
                               "preload": False
                           }), "the other end runs without CLAN")):
        ends = world.talk(((), ()), settings, rounds=200)
        programs.require(said in world.said(), f"{settings}: {world.said()}")
        world.expect(on_tcp, f"{settings}", *ends)
    # A list that does not name the connection leaves it alone: it moves.
    for settings in (({"CLAN_EXCEPT": "1"}, {}), ({}, {"CLAN_ONLY": "1-65535"})):
        world.expect(moved, f"{settings}", *world.talk(((), ()), settings, rounds=200))


# --- programs of another C library ----------------------------------------------------------------

def programs_linked_with_musl_start(world):
    """As the command itself, and as children of one under CLAN, by each way there is; the warning
    when asked for."""
    if shutil.which("musl-gcc") is None:
        raise programs.Skip("musl-gcc is not installed")
    source, program = world.top / "musl.c", world.top / "musl-program"
    source.write_text('#include <stdlib.h>\n#include <stdio.h>\nint main(void) {'
                      ' const char *p = getenv("LD_PRELOAD"); puts(p ? p : "none"); return 4; }\n')
    subprocess.run(["musl-gcc", "-o", program, source], check=True)
    script = world.top / "script"
    script.write_text(f"#!{program}\n")
    script.chmod(0o755)
    ways = ("os.execv(p, [p])", "os.execvp('musl-program', ['x'])",
            "os.execve(p, [p], dict(os.environ))", "os.execv(s, [s])",
            "os.execve(os.open(p, os.O_RDONLY), [p], os.environ)",
            "sys.exit(os.waitpid(os.posix_spawn(p, [p], os.environ), 0)[1] >> 8)",
            "sys.exit(os.waitpid(os.posix_spawnp('musl-program', [p], os.environ), 0)[1] >> 8)",
            "sys.exit(os.system(p) >> 8)", "sys.exit(subprocess.call(p))")
    for way in ways:
        for preload in None, containers.LIBRARY:
            env = {**os.environ, "PATH": f"{world.top}:{os.environ['PATH']}", "CLAN_LOG": "warn"}
            if preload:
                env["LD_PRELOAD"] = preload
            code = f"import os, subprocess, sys\np, s = {str(program)!r}, {str(script)!r}\n{way}"
            done = subprocess.run([programs.PYTHON, "-c", code], capture_output=True, text=True,
                                  timeout=30, env=env)
            warnings = done.stderr.count("is linked with musl")
            programs.require(
                (done.returncode, done.stdout, warnings) == (4, "none\n", 1 if preload else 0),
                f"{way}: {done}")


TESTS = (nobody_in_a_user_namespace_is_our_own_user, users_that_a_user_namespace_has_are_told_apart,
         nobody_is_a_user_where_every_user_is_mapped, a_peer_that_has_closed_is_no_attack,
         filters_that_kill_for_what_the_library_calls,
         a_filter_is_not_tried_before_the_program_has_made_a_process,
         a_filter_of_the_parents_has_let_it_make_a_process,
         filters_that_let_everything_pass_that_is_needed, systemds_set_of_calls_for_services,
         without_netlink_the_table_of_connections_tells_the_peer,
         what_is_in_the_place_of_the_table_is_not_believed,
         a_pipe_that_the_other_end_refuses_is_given_up, reasons_are_told_when_they_arise,
         programs_linked_with_musl_start)


def main():
    global CLAN  # pylint: disable=global-statement
    if sys.argv[1:] == ["--actor"]:
        Actor().run()
        return 0
    # Where any user may read them.
    top = Path(tempfile.mkdtemp(prefix="clan-services-"))
    top.chmod(0o755)
    (top / "lib").mkdir()
    (top / "bin").mkdir()
    containers.LIBRARY = shutil.copy(sys.argv[1], top / "lib")
    CLAN = shutil.copy(sys.argv[2], top / "bin")
    for name in "containers.py", "programs.py", "../../support/program_runner.py":
        shutil.copy(programs.HERE / name, top)
    containers.HERE = Path(shutil.copy(__file__, top))
    failed = passed = 0
    try:
        for test in TESTS:
            name = re.sub("_", " ", test.__name__)
            if sys.argv[3:] and not any(word in test.__name__ for word in sys.argv[3:]):
                continue
            start = time.monotonic()
            with Services() as world:
                try:
                    test(world)
                    passed += 1
                    print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)
                except programs.Skip as skip:
                    print(f"{name}: skipped, {skip}", flush=True)
                except (programs.Wrong, OSError, ValueError, subprocess.SubprocessError) as wrong:
                    failed += 1
                    print(f"{name}: {type(wrong).__name__}: {wrong}", flush=True)
    finally:
        shutil.rmtree(top, ignore_errors=True)
    return 1 if failed else 0 if passed else programs.SKIPPED


if __name__ == "__main__":
    sys.exit(main())
