#!/usr/bin/env python3
"""Endpoints of programs: on one host, as `clan stat` shows them; between two hosts, by the UDP
link.

    programs.py CLAN UNET-END CASE    (exit code 77: what the case needs is not here)
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
import face_programs as programs  # noqa: E402
from face_programs import ADDRESS, hosts, output_of, running  # noqa: E402


def visible(clan, end):
    """`clan stat` shows both endpoints, with what has gone by them."""
    name = f"unet-visible{os.getpid()}"
    with running(end, "serve", name, first="ready\n") as server:
        with running(end, "hold", name, first="held\n") as client:
            pids = [str(server.pid), str(client.pid)]
            rows = {row["pid"]: row for row in json.loads(output_of(clan, "stat", "--json", *pids))
                    if row["path"] == "unet"}
            for pid in (server.pid, client.pid):
                row = rows[pid]
                assert row["channels"] == 1 and row["sent"] == row["received"] == 12, row
                assert row["dropped_buffer"] == row["dropped_queue"] == 0, row
            text = output_of(clan, "stat", *pids)
            assert "U-NET ENDPOINTS" in text and "12 sent" in text, text
        assert server.wait(timeout=60) == 0
        assert server.stdout.read() == "12 messages, 104\n", "killed: ECONNRESET"


def described(clan, _end):
    """`clan env unet` says how programs are linked, and `clan doctor` where the library is."""
    example = Path(__file__).resolve().parents[3] / "examples/unet_ping.c"
    programs.is_described(clan, "unet", "UNET", "libclanunet.so", example)


def far(_clan, end):
    """Messages and direct access between two hosts; then one end is killed."""
    if why := programs.why_not_two_hosts():
        return why
    with programs.two_hosts() as (names, variables):
        with programs.serving(names[0], variables, end, "far") as server:
            programs.ask(names[1], variables, end, "ask", f"udp:{ADDRESS}/far")
            assert server.wait(timeout=20) == 0
            assert server.stdout.read() == "12 messages, 0\n", "closed in order"
        with programs.serving(names[0], variables, end, "killed") as server:
            with running(*hosts.inside(names[1], end, "hold", f"udp:{ADDRESS}/killed"),
                         first="held\n", env=variables):
                pass  # it is killed
            assert server.wait(timeout=60) == 0
            assert server.stdout.read().startswith("12 messages, "), "the end, and no more"
    return None


if __name__ == "__main__":
    sys.exit(programs.main({"visible": visible, "described": described, "far": far}))
