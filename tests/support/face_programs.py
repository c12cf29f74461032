"""Programs that are linked with a face's library, each end a process: on one host, and on two."""

import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "hosts/udp"))
import hosts  # noqa: E402

ADDRESS = "10.78.0.1"  # of the first host


@contextlib.contextmanager
def running(*command, first, **settings):
    """A process that has said its first line."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **settings)
    try:
        line = process.stdout.readline()
        assert line == first, line
        yield process
    finally:
        process.kill()
        process.communicate()


def output_of(*command):
    return subprocess.run(command, check=True, text=True, capture_output=True).stdout


def is_described(clan, face, variables, library, source):
    """`clan env` says how a program is linked, which then runs; `clan doctor` names the library."""
    settings = dict(line.removeprefix("export ").split("=", 1)
                    for line in output_of(clan, "env", face).splitlines())
    with tempfile.TemporaryDirectory() as directory:
        program = os.path.join(directory, "program")
        words = [word for name in ("CFLAGS", "LIBS")
                 for word in settings[f"{variables}_{name}"].strip("'").split()]
        subprocess.run(["cc", "-o", program, source, *words], check=True)
        subprocess.run([program], check=True, stdout=subprocess.DEVNULL, timeout=60)
    text = subprocess.run([clan, "doctor", "--json"], text=True, capture_output=True).stdout
    assert f"{library} is in" in text, text


@contextlib.contextmanager
def two_hosts():
    """The names of two hosts, and the environment of programs there, which share a key."""
    with tempfile.NamedTemporaryFile("w", prefix="clan-key-") as key, \
            hosts.hosts(1500, "v") as names:
        key.write(secrets.token_hex(32))
        key.flush()
        yield names, dict(os.environ, CLAN_KEY=key.name)


def why_not_two_hosts():
    return None if hosts.possible() else "needs root, ip and network namespaces"


def serving(name, variables, end, service):
    """A server on a host, which is ready."""
    return running(*hosts.inside(name, end, "serve", service), first="ready\n", env=variables)


def ask(name, variables, *command):
    """What a program on a host says: that all was right."""
    done = subprocess.run(hosts.inside(name, *command), env=variables, text=True,
                          capture_output=True, timeout=100)
    assert done.stdout == "right\n", (command, done.stdout, done.stderr)


def main(cases):
    """CLAN END CASE; exit code 77: what the case needs is not here, as it says."""
    clan, end, case = sys.argv[1:4]
    if why := cases[case](clan, end):
        print(why)
        return 77
    return 0
