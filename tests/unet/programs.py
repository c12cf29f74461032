#!/usr/bin/env python3
"""Endpoints of programs: on one host, as `clan stat` shows them; between two hosts, by the UDP
link.

    programs.py CLAN UNET-END CASE    (exit code 77: what the case needs is not here)
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
def serving(end, name, before=(), **settings):
    process = subprocess.Popen([*before, end, "serve", name], stdout=subprocess.PIPE, text=True,
                               **settings)
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def visible(clan, end):
    """`clan stat` shows both endpoints, with what has gone by them."""
    name = f"unet-visible{os.getpid()}"
    with serving(end, name) as server:
        client = subprocess.Popen([end, "hold", name], stdout=subprocess.PIPE, text=True)
        try:
            assert client.stdout.readline() == "held\n"
            pids = [str(server.pid), str(client.pid)]
            text = subprocess.run([clan, "stat", "--json", *pids], check=True, text=True,
                                  capture_output=True).stdout
            rows = {row["pid"]: row for row in json.loads(text) if row["path"] == "unet"}
            for pid in (server.pid, client.pid):
                row = rows[pid]
                assert row["channels"] == 1 and row["sent"] == row["received"] == 12, row
                assert row["dropped_buffer"] == row["dropped_queue"] == 0, row
            text = subprocess.run([clan, "stat", *pids], check=True, text=True,
                                  capture_output=True).stdout
            assert "U-NET ENDPOINTS" in text and "12 sent" in text, text
        finally:
            client.kill()
            client.communicate()
        assert server.wait(timeout=60) == 0
        assert server.stdout.read() == "12 messages, 104\n", "killed: ECONNRESET"


def described(clan, end):
    """`clan env unet` says how programs are linked, and `clan doctor` where the library is."""
    text = subprocess.run([clan, "env", "unet"], check=True, text=True, capture_output=True).stdout
    settings = dict(line.removeprefix("export ").split("=", 1) for line in text.splitlines())
    source = Path(__file__).resolve().parent.parent.parent / "examples/unet_ping.c"
    with tempfile.TemporaryDirectory() as directory:
        program = os.path.join(directory, "ping")
        words = [settings[name].strip("'").split() for name in ("UNET_CFLAGS", "UNET_LIBS")]
        subprocess.run(["cc", "-o", program, source, *words[0], *words[1]], check=True)
        subprocess.run([program], check=True, stdout=subprocess.DEVNULL, timeout=60)
    text = subprocess.run([clan, "doctor", "--json"], text=True, capture_output=True).stdout
    assert "libclanunet.so is in" in text, text


def far(_clan, end):
    """Messages and direct access between two hosts; then one end is killed."""
    if not hosts.possible():
        return "needs root, ip and network namespaces"
    with tempfile.NamedTemporaryFile("w", prefix="clan-key-") as key, \
            hosts.hosts(1500, "v") as names:
        key.write(secrets.token_hex(32))
        key.flush()
        variables = dict(os.environ, CLAN_KEY=key.name)
        with serving(end, "far", hosts.inside(names[0]), env=variables) as server:
            done = subprocess.run(hosts.inside(names[1], end, "ask", f"udp:{ADDRESS}/far"),
                                  env=variables, text=True, capture_output=True, timeout=100)
            assert done.stdout == "right\n", (done.stdout, done.stderr)
            assert server.wait(timeout=20) == 0
            assert server.stdout.read() == "12 messages, 0\n", "closed in order"
        with serving(end, "killed", hosts.inside(names[0]), env=variables) as server:
            client = subprocess.Popen(hosts.inside(names[1], end, "hold", f"udp:{ADDRESS}/killed"),
                                      env=variables, stdout=subprocess.PIPE, text=True)
            assert client.stdout.readline() == "held\n"
            client.kill()
            client.communicate()
            assert server.wait(timeout=60) == 0
            assert server.stdout.read().startswith("12 messages, "), "the end, and no more"
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
