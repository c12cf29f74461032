#!/usr/bin/env python3
"""VMMC of programs: on one host, as `clan stat` shows it; between two hosts, by the UDP link.

    programs.py CLAN VMMC-END CASE    (exit code 77: what the case needs is not here)
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
import face_programs as programs  # noqa: E402
from face_programs import ADDRESS, hosts, output_of, running  # noqa: E402


def visible(clan, end):
    """`clan stat` shows what both ends have done."""
    name = f"visible{os.getpid()}"
    with running(end, "serve", name, first="ready\n") as server, \
            running(end, "hold", name, first="held\n") as client:
        pids = [str(server.pid), str(client.pid)]
        rows = {row["pid"]: row for row in json.loads(output_of(clan, "stat", "--json", *pids))
                if row["path"] == "vmmc"}
        assert rows[server.pid]["buffers"] == 1, rows
        assert rows[client.pid]["remotes"] == 1 and rows[client.pid]["bindings"] == 0, rows
        assert rows[client.pid]["sent_bytes"] > 120_000, rows
        assert rows[client.pid]["notified"] == 9 and rows[client.pid]["flushes"] > 0, rows
        text = output_of(clan, "stat", *pids)
        assert "1 buffers" in text and "9 notifications sent" in text, text


def described(clan, _end):
    """`clan env vmmc` says how programs are linked, and `clan doctor` where the library is."""
    programs.is_described(clan, "vmmc", "VMMC", "libclanvmmc.so",
                          Path(__file__).resolve().parent / "header.c")


def far(_clan, end):
    """Everything but aliases between two hosts; then either end is killed."""
    if why := programs.why_not_two_hosts():
        return why
    with programs.two_hosts() as (names, variables):
        with programs.serving(names[0], variables, end, "far") as server:
            programs.ask(names[1], variables, end, "ask", "far", ADDRESS)
            assert server.stdout.readline() == "right\n"
            assert server.wait(timeout=20) == 0
        with programs.serving(names[0], variables, end, "killed") as server:
            with running(*hosts.inside(names[1], end, "hold", "killed", ADDRESS), first="held\n",
                         env=variables):
                pass  # it is killed, and the exporter goes on
            programs.ask(names[1], variables, end, "ask", "killed", ADDRESS)
        with programs.serving(names[0], variables, end, "watched") as server, \
                running(*hosts.inside(names[1], end, "watch", "watched", ADDRESS), first="held\n",
                        env=variables) as watcher:
            server.kill()
            assert watcher.stdout.readline() == "gone\n"
    return None


if __name__ == "__main__":
    sys.exit(programs.main({"visible": visible, "described": described, "far": far}))
