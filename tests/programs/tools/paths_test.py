#!/usr/bin/env python3
"""`clan stat` shows the paths to other hosts while there are any: as text, JSON, for Prometheus.

    paths_test.py CLAN PEER     (PEER: udp-host-peer)
"""
import json
import socket
import subprocess
import sys
import time


def free_port():
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as s:
        s.bind(("::", 0))
        return str(s.getsockname()[1])


def begin(*command):
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return child, child.stdout.readline()


def stat(clan, *words):
    done = subprocess.run([clan, "stat", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    return done.stdout


def paths(clan, pid):
    return [p for p in json.loads(stat(clan, "--json", str(pid))) if p["path"] == "host"]


def check(clan, server, client):
    (here,), (there,) = paths(clan, client.pid), paths(clan, server.pid)
    assert here["pid"] == client.pid and here["peer_pid"] == server.pid, here
    assert there["pid"] == server.pid and there["peer_pid"] == client.pid, there
    assert here["peer_address"] == f"127.0.0.1:{there['port']}", (here, there)
    for path in here, there:
        assert path["mode"] == "off" and path["packets"] == "sockets", path
        assert path["packet_bytes"] >= 1200 and path["window_bytes"] > 0, path
        assert path["round_trip_ns"] >= path["least_round_trip_ns"] > 0, path
    end = time.monotonic() + 30
    while (later := paths(clan, client.pid)[0])["packets_sent"] <= here["packets_sent"]:
        assert time.monotonic() < end, (here, later)
    assert later["packets_received"] > 0, later
    text = stat(clan, str(client.pid))
    assert "OTHER HOSTS" in text, text
    assert f"to {here['peer_address']} (process {server.pid}): off" in text, text
    rows = [row for row in stat(clan, "--prometheus").splitlines() if f'pid="{client.pid}"' in row]
    for name in ("round_trip_seconds", "window_bytes", "packets_sent_total",
                 "packets_received_total", "packets_lost_total", "timeouts_total"):
        (row,) = [row for row in rows if row.startswith(f"clan_host_{name}{{")]
        assert f'peer="{here["peer_address"]}",mode="off",packets="sockets"' in row, row


def main():
    clan, peer, port = sys.argv[1], sys.argv[2], free_port()
    server, said = begin(peer, "serve", port)
    try:
        assert said == "ready\n", said
        assert paths(clan, server.pid) == [], "nobody has come yet"
        client, said = begin(peer, "push", port, "127.0.0.1")
        try:
            assert said == "begun\n", said
            check(clan, server, client)
            said, _ = client.communicate(timeout=60)
            assert said.startswith("right 0 "), said
        finally:
            client.kill()
            client.wait()
        end = time.monotonic() + 30
        while paths(clan, server.pid):
            assert time.monotonic() < end, paths(clan, server.pid)
            time.sleep(0.05)
        assert "OTHER HOSTS" not in stat(clan, str(server.pid))
    finally:
        server.kill()
        server.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
