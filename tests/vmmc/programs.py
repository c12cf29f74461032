#!/usr/bin/env python3
"""VMMC of programs: on one host, as `clan stat` shows it; between two hosts, by the UDP link.

    programs.py CLAN VMMC-END CASE    (exit code 77: what the case needs is not here)
"""

import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "udp"))
import hosts  # noqa: E402

ADDRESS = "10.78.0.1"  # of the first host


@contextlib.contextmanager
def running(*command, first, **settings):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **settings)
    try:
        line = process.stdout.readline()
        assert line == first, line
        yield process
    finally:
        process.kill()
        process.communicate()


def visible(clan, end):
    """`clan stat` shows what both ends have done."""
    name = f"visible{os.getpid()}"
    with running(end, "serve", name, first="ready\n") as server, \
            running(end, "hold", name, first="held\n") as client:
        pids = [str(server.pid), str(client.pid)]
        text = subprocess.run([clan, "stat", "--json", *pids], check=True, text=True,
                              capture_output=True).stdout
        rows = {row["pid"]: row for row in json.loads(text) if row["path"] == "vmmc"}
        assert rows[server.pid]["buffers"] == 1, rows
        assert rows[client.pid]["remotes"] == 1 and rows[client.pid]["bindings"] == 0, rows
        assert rows[client.pid]["sent_bytes"] > 120_000, rows
        assert rows[client.pid]["notified"] == 9 and rows[client.pid]["flushes"] > 0, rows
        text = subprocess.run([clan, "stat", *pids], check=True, text=True,
                              capture_output=True).stdout
        assert "1 buffers" in text and "9 notifications sent" in text, text


def described(clan, end):
    """`clan env vmmc` says how programs are linked, and `clan doctor` where the library is."""
    text = subprocess.run([clan, "env", "vmmc"], check=True, text=True, capture_output=True).stdout
    settings = dict(line.removeprefix("export ").split("=", 1) for line in text.splitlines())
    source = Path(__file__).resolve().parent / "header.c"
    with tempfile.TemporaryDirectory() as directory:
        program = os.path.join(directory, "program")
        words = [settings[name].strip("'").split() for name in ("VMMC_CFLAGS", "VMMC_LIBS")]
        subprocess.run(["cc", "-o", program, source, *words[0], *words[1]], check=True)
        subprocess.run([program], check=True, timeout=60)
    text = subprocess.run([clan, "doctor", "--json"], text=True, capture_output=True).stdout
    assert "libclanvmmc.so is in" in text, text


def far(_clan, end):
    """Everything but aliases between two hosts; then either end is killed."""
    if not hosts.possible():
        return "needs root, ip and network namespaces"
    with tempfile.NamedTemporaryFile("w", prefix="clan-key-") as key, \
            hosts.hosts(1500, "v") as names:
        key.write(secrets.token_hex(32))
        key.flush()
        variables = dict(os.environ, CLAN_KEY=key.name)

        def serving(name):
            return running(*hosts.inside(names[0], end, "serve", name), first="ready\n",
                           env=variables)

        with serving("far") as server:
            done = subprocess.run(hosts.inside(names[1], end, "ask", "far", ADDRESS),
                                  env=variables, text=True, capture_output=True, timeout=100)
            assert done.stdout == "right\n", (done.stdout, done.stderr)
            assert server.stdout.readline() == "right\n"
            assert server.wait(timeout=20) == 0
        with serving("killed") as server:
            with running(*hosts.inside(names[1], end, "hold", "killed", ADDRESS), first="held\n",
                         env=variables):
                pass  # it is killed, and the exporter goes on
            done = subprocess.run(hosts.inside(names[1], end, "ask", "killed", ADDRESS),
                                  env=variables, text=True, capture_output=True, timeout=100)
            assert done.stdout == "right\n", (done.stdout, done.stderr)
        with serving("watched") as server, \
                running(*hosts.inside(names[1], end, "watch", "watched", ADDRESS), first="held\n",
                        env=variables) as watcher:
            server.kill()
            assert watcher.stdout.readline() == "gone\n"
    return None


def main():
    clan, end, case = sys.argv[1:4]
    why = {"visible": visible, "described": described, "far": far}[case](clan, end)
    if why:
        print(why)
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
