#!/usr/bin/env python3
"""`clan doctor` answers every question it asks, as text and as JSON, and agrees with itself.

    doctor_test.py CLAN
"""

import json
import os
import socket
import subprocess
import sys

EXPECTED = {"membarrier", "process_vm", "memfd", "huge_pages", "memlock", "userfaultfd", "cpus",
            "max_map_count", "ptrace_scope", "scheduler", "unix_sockets", "af_xdp", "tun"}


def run(*command, **settings):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CLAN_")}
    return subprocess.run(command, capture_output=True, text=True, timeout=60,
                          stdin=subprocess.DEVNULL, env={**clean, **settings})


def main():
    clan = sys.argv[1]
    as_json = run(clan, "doctor", "--json")
    report = json.loads(as_json.stdout)
    names = [finding["name"] for finding in report["findings"]]
    assert len(names) == len(set(names)), names
    assert EXPECTED <= set(names), EXPECTED - set(names)
    for finding in report["findings"]:
        assert finding["state"] in ("ok", "limited", "absent"), finding
        assert finding["seen"] and finding["effect"], finding
    assert (as_json.returncode == 0) == report["usable"], as_json.returncode

    as_text = run(clan, "doctor")
    assert as_text.returncode == as_json.returncode, as_text
    assert as_text.stderr == "", as_text.stderr
    for name in names:
        assert name in as_text.stdout, name

    # What is on this host goes by no wire, whatever this process may do.
    of_host = json.loads(run(clan, "doctor", "--json", "127.0.0.1").stdout)
    (xdp,) = [finding for finding in of_host["findings"] if finding["name"] == "af_xdp"]
    assert xdp["state"] == "absent" and "\n" not in xdp["seen"], xdp
    assert "127.0.0.1" in xdp["effect"], xdp

    # Whether CLAN answers there, or why it cannot: no setting, a key that cannot be used, nobody.
    def far_host(**settings):
        report = json.loads(run(clan, "doctor", "--json", "127.0.0.1", **settings).stdout)
        (far,) = [finding for finding in report["findings"] if finding["name"] == "far_host"]
        assert far["state"] in ("ok", "absent") and "127.0.0.1" in far["effect"], far
        return far["seen"]

    assert "neither CLAN_KEY nor CLAN_NETWORK_MODE is set" in far_host()
    assert "is not there" in far_host(CLAN_KEY="/no/such/file")
    seen = far_host(CLAN_NETWORK_MODE="off")  # a program of another test may hold the directory
    assert "no CLAN program has that UDP port open" in seen or "CLAN answers there" in seen or \
        "another security mode" in seen, seen
    assert "far_host" not in names and "network_port" not in names

    # Whose the port is at which other hosts find programs of this user.
    def port_of(port):
        report = json.loads(run(clan, "doctor", "--json", "127.0.0.1",
                                CLAN_NETWORK_PORT=str(port)).stdout)
        (finding,) = [one for one in report["findings"] if one["name"] == "network_port"]
        assert finding["state"] == "ok" and str(port) in finding["effect"], finding
        return finding["seen"]

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        assert "belongs to this user" in port_of(port), port_of(port)
    seen = port_of(port)  # another test may have it by now
    assert "is free" in seen or "belongs to this user" in seen, seen

    env = run(clan, "env")
    assert env.returncode == 0 and "CLAN_" in env.stdout, env
    assert run(clan, "no-such-command").returncode != 0
    assert run(clan, "--version").stdout.startswith("clan "), "version"
    print(as_text.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
