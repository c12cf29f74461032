#!/usr/bin/env python3
"""Programs that nobody here wrote, over the transport for omniORB: right results, and by the
expected path.

    programs.py --clan CLAN [--programs DIRECTORY] NAME...   DIRECTORY: that of omniorb-suite-server
    programs.py --list

Everything runs on this host, in a private directory, on free ports. The path is what the processes
themselves say with CLAN_LOG=info, and `clan stat` in `stat`. Exit code 1 when something is wrong,
77 when what was asked for is not installed; the packages are CLAN_TEST_PACKAGES in
cmake/packages.sh.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
import system_calls  # noqa: E402, needs the path

EXAMPLES = Path("/usr/lib/omniorb/examples")
PYTHON = "/usr/bin/python3"
SKIPPED = 77
BY_CLAN = "CORBA calls to process"
COMES_BY_CLAN = "come by CLAN"
BY_TCP = "go without CLAN"


class Skip(Exception):
    pass


class Wrong(Exception):
    pass


def require(condition, text):
    if not condition:
        raise Wrong(text)


def find(program, package):
    path = str(program) if os.access(program, os.X_OK) else shutil.which(str(program))
    if path is None:
        raise Skip(f"{program} is not installed (Debian: {package})")
    return path


def example(name):
    return find(EXAMPLES / name, "omniorb-doc")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Stage:
    """A private directory, and processes that end with it."""

    def __init__(self, clan, programs):
        self.clan, self.programs = clan, programs
        self.directory = Path(tempfile.mkdtemp(prefix="clan-orb-"))
        self.running = []
        self.count = 0

    def environment(self, more=None):
        kept = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("CLAN_", "ORB", "OMNI")) and k != "LD_PRELOAD"
        }
        # Where omniORB's giop:unix and Tango's logs would otherwise leave directories in /tmp.
        ours = {
            "ORBunixTransportDirectory": str(self.directory / "unix"),
            "TANGO_LOG_PATH": str(self.directory)
        }
        return {**kept, **ours, **(more or {})}

    def command(self, arguments, under):
        return [self.clan, "run", "--with", "orb", "--log", "info", *map(str, arguments)
                ] if under else list(map(str, arguments))

    def run(self, *arguments, under=True, env=None, wrong=False, timeout=60, inside=()):
        done = subprocess.run([*inside, *self.command(arguments, under)], capture_output=True,
                              text=True, timeout=timeout, stdin=subprocess.DEVNULL,
                              env=self.environment(env), cwd=self.directory, check=False)
        require(
            wrong or done.returncode == 0,
            f"{arguments[0]} ended with {done.returncode}: {done.stdout[-500:]} "
            f"{done.stderr[-1500:]}")
        return done

    def start(self, *arguments, under=True, env=None, inside=()):
        """A process, and the files of its output. `inside`: words before the command, of another
        host's."""
        self.count += 1
        out, err = (self.directory / f"{self.count}.{kind}" for kind in ("out", "err"))
        with open(out, "wb") as o, open(err, "wb") as e:
            process = subprocess.Popen(
                [*inside, *self.command(arguments, under)], stdin=subprocess.DEVNULL, stdout=o,
                stderr=e, env=self.environment(env), cwd=self.directory, start_new_session=True)
        self.running.append(process)
        return process, out, err

    def wait_for(self, path, pattern, seconds=30):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = re.search(pattern, path.read_text(errors="replace"), re.M)
            if found:
                return found
            time.sleep(0.02)
        raise Wrong(
            f"no {pattern} within {seconds} s in: {path.read_text(errors='replace')[-1000:]}")

    def end(self):
        for process in self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


def by_clan(*texts):
    for text in texts:
        require((BY_CLAN in text or COMES_BY_CLAN in text) and BY_TCP not in text,
                f"not by CLAN: {text[-1500:]}")


def echo(stage):
    """The matrix: with and without the transport at either end."""
    server, client = example("echo/eg2_impl"), example("echo/eg2_clt")
    for server_under in (True, False):
        process, out, err = stage.start(server, under=server_under)
        ior = stage.wait_for(out if not re.search("IOR", err.read_text()) else err,
                             r"IOR:\w+").group()
        for client_under in (True, False):
            done = stage.run(client, ior, under=client_under)
            require(done.stdout.count('replied, "Hello!"') == 10, done.stdout)
            if server_under and client_under:
                by_clan(done.stderr)
            elif client_under:
                require(BY_TCP in done.stderr and BY_CLAN not in done.stderr, done.stderr)
        if server_under:
            text = err.read_text()
            require(text.count(COMES_BY_CLAN) == 1 and text.count("come without CLAN") == 1, text)
        process.send_signal(signal.SIGTERM)


def rules(stage):
    """Options of the ORB's, of the command and of the environment, are respected, and what they
    mean is said."""
    server, client = example("echo/eg2_impl"), example("echo/eg2_clt")
    _, out, err = stage.start(server)
    ior = stage.wait_for(out, r"IOR:\w+").group()
    done = stage.run(client, ior, "-ORBclientTransportRule", "* unix,tcp")
    require("clientTransportRule does not name clan" in done.stderr and BY_TCP in done.stderr,
            done.stderr)
    done = stage.run(client, ior, env={"ORBclientTransportRule": "* clan,tcp"})
    by_clan(done.stderr)
    done = stage.run(client, ior, env={"CLAN_DISABLE": "1"})
    require(BY_CLAN not in done.stderr and "replied" in done.stdout, done.stderr)
    _, out, err = stage.start(server, env={"ORBclanEndPoint": "0"})
    ior = stage.wait_for(out, r"IOR:\w+").group()
    done = stage.run(client, ior)
    require(BY_TCP in done.stderr, done.stderr)
    _, out, err = stage.start(server, "-ORBserverTransportRule", "* tcp")
    ior = stage.wait_for(out, r"IOR:\w+").group()
    require("serverTransportRule does not name clan" in err.read_text(), err.read_text())
    require(BY_TCP in stage.run(client, ior).stderr,
            "a server whose rule does not name clan was used by it")
    # It says which there are, and goes on.
    _, out, err = stage.start(server, "-ORBhelp")
    stage.wait_for(out, r"IOR:\w+")
    require("-ORBclanEndPoint" in out.read_text() + err.read_text(),
            out.read_text()[-2000:] + err.read_text()[-500:])


def callbacks(stage):
    """The packaged examples of calls back, in both ways."""
    rule = "* clan,unix,tcp,bidir"
    for name, at_server, at_client in (
            ("call_back/cb", [], []),
            ("bidir/bd", ["-ORBacceptBiDirectionalGIOP", "1", "-ORBserverTransportRule", rule],
             ["-ORBofferBiDirectionalGIOP", "1", "-ORBclientTransportRule", rule])):
        _, out, err = stage.start(example(name + "_server"), *at_server)
        ior = stage.wait_for(out, r"IOR:\w+").group()
        # The client also leaves call-backs behind for ten seconds or so, on purpose.
        _, client_out, client_err = stage.start(example(name + "_client"), ior, *at_client)
        stage.wait_for(client_out, r"call_back\(\"Hello!\"\)")
        stage.wait_for(client_out, r"Returned")
        by_clan(client_err.read_text(), err.read_text())
        require("come without CLAN" not in err.read_text(), err.read_text())


def data(stage):
    """The packaged examples of anys, dynamic calls and asynchronous ones."""
    _, out, _ = stage.start(example("anyExample/anyExample_impl"))
    ior = stage.wait_for(out, r"IOR:\w+").group()
    done = stage.run(example("anyExample/anyExample_clt"), ior)
    by_clan(done.stderr)
    _, out, _ = stage.start(example("echo/eg2_impl"))
    ior = stage.wait_for(out, r"IOR:\w+").group()
    done = stage.run(example("dii/echo_diiclt"), ior)
    by_clan(done.stderr)
    for name in ("echo_poller", "echo_callback", "echo_pollable_set"):
        done = stage.run(example("ami/" + name), ior)
        by_clan(done.stderr)


def names(stage, root_by_clan=True):
    """omniNames and nameclt by corbaloc, and a client that gets its object there."""
    port = free_port()
    names_program, nameclt = find("omniNames", "omniorb-nameserver"), find("nameclt", "omniorb")
    _, out, err = stage.start(names_program, "-start", port, "-datadir", stage.directory)
    stage.wait_for(err, r"Root context is|Wrote initial log|Checkpointing")
    reference = ["-ORBInitRef", f"NameService=corbaloc::127.0.0.1:{port}/NameService"]
    done = stage.run(nameclt, *reference, "bind_new_context", "test")
    by_clan(done.stderr)
    done = stage.run(nameclt, *reference, "list")
    require("test" in done.stdout, f"nameclt list: {done}")
    by_clan(done.stderr)
    # Somebody without CLAN sees the same names.
    require("test" in stage.run(nameclt, *reference, "list", under=False).stdout,
            "nameclt without CLAN saw another list")
    stage.start(example("echo/eg3_impl"), *reference)
    for _ in range(100):
        listed = stage.run(nameclt, *reference, "list", "test.my_context", wrong=True)
        if "Echo" in listed.stdout:
            break
        time.sleep(0.05)
    done = stage.run(example("echo/eg3_clt"), *reference)
    require('replied, "Hello!"' in done.stdout + done.stderr, f"eg3_clt: {done}")
    by_clan(done.stderr)


def events(stage):
    """omniEvents, with a supplier and a consumer that it ships."""
    port, event_port = free_port(), free_port()
    server = find("/usr/sbin/omniEvents", "omnievents")
    eventc, events_program = find("eventc", "omnievents"), find("events", "omnievents")
    _, _, err = stage.start(find("omniNames", "omniorb-nameserver"), "-start", port, "-datadir",
                            stage.directory)
    stage.wait_for(err, r"Root context is|Wrote initial log|Checkpointing")
    reference = ["-ORBInitRef", f"NameService=corbaloc::127.0.0.1:{port}/NameService"]
    logs = stage.directory / "events"
    logs.mkdir()
    # In the foreground; its TCP endpoint as it likes.
    _, out, err = stage.start(server, "-f", "-l", logs, "-p", event_port, *reference)
    end = time.monotonic() + 20
    while "EventChannel" not in stage.run(find("nameclt", "omniorb"), *reference, "list",
                                          wrong=True).stdout:
        require(time.monotonic() < end,
                "omniEvents did not bind: " + err.read_text()[-800:] + out.read_text()[-500:])
        time.sleep(0.1)
    _, consumer_out, consumer_err = stage.start(eventc, *reference)
    _, supplier_out, supplier_err = stage.start(events_program, *reference)
    for log in consumer_err, supplier_err, err:  # both talk through the third process
        stage.wait_for(log, f"{BY_CLAN}|{COMES_BY_CLAN}")
    time.sleep(0.5)
    by_clan(consumer_err.read_text(), supplier_err.read_text(), err.read_text())


def tango(stage):
    """TangoTest and PyTango, without a database: commands, attributes of all types and sizes,
    exceptions; events of a device in Python. Stock, at either end alone, and over CLAN."""
    find("/usr/lib/tango/TangoTest", "tango-test")
    if subprocess.run([PYTHON, "-c", "import tango, numpy"], capture_output=True,
                      check=False).returncode != 0:
        raise Skip("python3-tango is not installed")
    here = Path(__file__).resolve().parent
    servers = (("/usr/lib/tango/TangoTest", "t1"), (PYTHON, "-u", here / "tango_device.py", "t1"))
    for (server, client) in ((True, True), (True, False), (False, True), (False, False)):
        for number, words in enumerate(servers):
            port = free_port()
            process, out, err = stage.start(*words, "-nodb", "-dlist", "a/b/c", "-ORBendPoint",
                                            f"giop:tcp:127.0.0.1:{port}", under=server)
            stage.wait_for(out, "Ready to accept request", 60)
            for _ in range(4):  # PyTango has a second for a connection, and CLAN half of that
                done = stage.run(PYTHON, here / "tango_client.py", ("device", "events")[number],
                                 port, under=client, timeout=150)
                if "the peer did not answer" not in done.stderr:
                    break
            require("served" in done.stdout, done.stdout + done.stderr)
            if server and client:
                by_clan(done.stderr, err.read_text())
            else:
                require(BY_CLAN not in done.stderr and COMES_BY_CLAN not in err.read_text(),
                        done.stderr)
            process.terminate()


def stat(stage):
    """`clan stat` shows the connection, with both processes."""
    server, suite_out, _ = stage.start(stage.programs / "omniorb-suite-server", "-ORBendPoint",
                                       "giop:tcp:127.0.0.1:")
    reference = stage.wait_for(suite_out, r"IOR:\w+").group()
    client, _, client_err = stage.start(stage.programs / "omniorb-suite-call", reference, "20")
    stage.wait_for(client_err, BY_CLAN)
    end = time.monotonic() + 30
    while True:
        stated = subprocess.run([stage.clan, "stat", "--json"], capture_output=True, text=True,
                                check=False, timeout=30)
        rows = [row for row in json.loads(stated.stdout) if row.get("reason") == "CORBA"]
        ours = [row for row in rows if client.pid in [p["pid"] for p in row["local"]["processes"]]]
        if any(row["local"]["messages"] for row in ours) or time.monotonic() > end:
            break
        time.sleep(0.05)
    pids = [([p["pid"]
              for p in row["local"]["processes"]], [p["pid"] for p in row["peer"]["processes"]])
            for row in rows]
    require(([client.pid], [server.pid]) in pids, stated.stdout)
    row = rows[pids.index(([client.pid], [server.pid]))]
    require(row["path"] == "shm" and row["local"]["messages"] >= 1 and row["peer"]["bytes"] > 0,
            str(row))
    plain = subprocess.run([stage.clan, "stat"], capture_output=True, text=True, check=False,
                           timeout=30)
    require(re.search(rf"client +server +shm \(CORBA\).*{client.pid}/", plain.stdout), plain.stdout)


def refusal(stage):
    """Another version of omniORB: said, and calls go by TCP."""
    server, client = example("echo/eg2_impl"), example("echo/eg2_clt")
    library = stage.programs.parent / "lib" / "libother-omniorb.so"
    _, out, err = stage.start(server)
    ior = stage.wait_for(out, r"IOR:\w+").group()
    done = stage.run(client, ior, env={"LD_PRELOAD": str(library)})
    require(
        'replied, "Hello!"' in done.stdout and BY_CLAN not in done.stderr and
        "libomniclanTP4 was built for omniORB" in done.stderr and "9.9.9" in done.stderr,
        done.stderr)
    require("come without CLAN" in err.read_text(), err.read_text())


def ssl(stage):
    """omniORB's SSL transport in the same process."""
    server, client = example("echo/eg2_impl"), example("echo/eg2_clt")
    library = next(Path("/usr/lib").glob("*/libomnisslTP4.so.2"), None)
    if library is None:
        raise Skip("libomnisslTP4.so.2 is not installed (Debian: libomniorb4-2)")
    pem = EXAMPLES / "ssl_echo"
    ca, key = pem / "root.pem", pem / "server.pem"
    if not ca.exists():
        raise Skip("the packaged certificates are not there (Debian: omniorb-doc)")
    with_ssl = {
        "LD_PRELOAD": str(library), "ORBsslCAFile": str(ca), "ORBsslKeyFile": str(key),
        "ORBsslKeyPassword": "password"
    }
    _, out, err = stage.start(server, "-ORBendPoint", "giop:ssl:127.0.0.1:", "-ORBendPoint",
                              "giop:tcp:127.0.0.1:", env=with_ssl)
    ior = stage.wait_for(out, r"IOR:\w+").group()
    done = stage.run(client, ior, env=with_ssl)
    require('replied, "Hello!"' in done.stdout, done.stdout)
    by_clan(done.stderr)


def unchanged(stage):
    """Programs without CORBA, and their children, do not load omniORB."""
    done = stage.run("sh", "-c", "cat /proc/self/maps")
    require("libclan-orb" in done.stdout and "libomniORB" not in done.stdout, done.stdout)


def users(stage):
    """A server of another user: by TCP, or with CLAN_UIDS at both ends by CLAN."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        raise Skip("only root can start a process of another user (setpriv)")
    server, client = example("echo/eg2_impl"), example("echo/eg2_clt")
    as_other = ["setpriv", "--reuid", "65534", "--clear-groups"]
    if subprocess.run([*as_other, stage.clan, "--version"], capture_output=True,
                      check=False).returncode != 0:
        raise Skip("another user cannot read the build tree")
    for uids, expected in (({}, False), ({"CLAN_UIDS": "0,65534"}, True)):
        _, out, _ = stage.start(*as_other, server, env=uids)
        ior = stage.wait_for(out, r"IOR:\w+").group()
        done = stage.run(client, ior, env=uids)
        require('replied, "Hello!"' in done.stdout and (BY_CLAN in done.stderr) == expected,
                done.stderr)


def calls(stage):
    """That a call makes no system call. On a busy machine some do, as a long wait sleeps; but if
    each had to, there would be no stretch of hundreds without any."""
    strace = [find("strace", "strace"), *system_calls.STRACE]
    if len(os.sched_getaffinity(0)) < 2:
        raise Skip("both ends on one processor: it is handed over by system calls")
    logs = [stage.directory / f"{end}.strace" for end in ("server", "client")]
    for _ in range(10):
        server, out, _ = stage.start(*strace, logs[0], stage.programs / "omniorb-suite-server",
                                     "-ORBendPoint", "giop:tcp:127.0.0.1:")
        reference = stage.wait_for(out, r"IOR:\w+").group()
        done = stage.run(*strace, logs[1], stage.programs / "omniorb-suite-call", reference, "0",
                         "1000000", "0", "3")
        by_clan(done.stderr)
        for pid in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split():
            os.kill(int(pid), signal.SIGTERM)
        server.wait(30)
        times = [float(line) for line in done.stdout.splitlines()[1:]]
        made, quiet = system_calls.quiet_stretches(times, logs)
        print(f"{quiet} of {made} stretches of 200 calls without a system call")
        if quiet > 0:
            return
    if os.getloadavg()[0] > os.cpu_count():
        raise Skip("others want the processors: waits sleep")
    raise Wrong("calls make system calls")


ALL = {
    f.__name__: f
    for f in (echo, rules, callbacks, data, names, events, tango, stat, refusal, ssl, unchanged,
              users, calls)
}


def main(tests=ALL):
    parser = argparse.ArgumentParser()
    parser.add_argument("--clan")
    parser.add_argument("--programs", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(tests))
        return 0
    status = 0
    for name in arguments.names:
        stage = Stage(str(Path(arguments.clan).resolve()), Path(arguments.programs).resolve())
        try:
            tests[name](stage)
            print(f"{name}: well")
        except Skip as skip:
            print(f"{name}: skipped: {skip}")
            status = status or SKIPPED
        except (Wrong, subprocess.TimeoutExpired) as wrong:
            print(f"{name}: WRONG: {wrong}")
            status = 1
        finally:
            stage.end()
    return status


if __name__ == "__main__":
    sys.exit(main())
