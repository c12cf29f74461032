#!/usr/bin/env python3
"""`clan ping` reports the path to a program, and says in one sentence why there is none.

    ping_test.py CLAN PEER [crypto]     (PEER: udp-host-peer)
"""
import os
import socket
import subprocess
import sys
import tempfile


def free_port():
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as s:
        s.bind(("::", 0))
        return s.getsockname()[1]


def ping(clan, *words, **settings):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CLAN_")}
    return subprocess.run([clan, "ping", *words], capture_output=True, text=True, timeout=60,
                          env={**clean, **settings})


def complains(done, *words):
    assert done.returncode == 1 and done.stdout == "", done
    for word in words:
        assert word in done.stderr, (word, done.stderr)


def key_file(directory, name, letter, mode):
    path = os.path.join(directory, name)
    with open(path, "w") as file:
        file.write(letter * 64)
    os.chmod(path, mode)
    return path


def answers(clan, peer, words, key):
    port = free_port()
    child = subprocess.Popen([peer, "serve", str(port), *key], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "ready\n"
        done = ping(clan, f"127.0.0.1:{port}", "--count", "3", "--interval", "1", *words)
        assert done.returncode == 0 and done.stderr == "", done
        for word in ("3 round trips", "packets by sockets", "packets of up to", "lost", "window",
                     f"127.0.0.1:{port}"):
            assert word in done.stdout, (word, done.stdout)
        if key:
            other = key_file(os.path.dirname(key[0]), "other", "b", 0o600)
            complains(ping(clan, f"127.0.0.1:{port}", "--timeout", "500", "--key", other),
                      "does not take our key")
            complains(ping(clan, f"127.0.0.1:{port}", "--timeout", "3000", "--mode", "off"),
                      "another security mode")
    finally:
        child.stdin.close()
        child.wait()


def takes_settings(clan, peer, key):
    """Without --key and --mode it asks as programs under `clan run` there would."""
    port = free_port()
    set_so = {"CLAN_KEY": key[0]} if key else {"CLAN_NETWORK_MODE": "off"}
    child = subprocess.Popen([peer, "serve", str(port), *key], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "ready\n"
        asked = (f"127.0.0.1:{port}", "--count", "1")
        done = ping(clan, *asked, **set_so)
        assert done.returncode == 0 and f"mode {'encrypt' if key else 'off'}" in done.stdout, done
        with tempfile.NamedTemporaryFile("w", prefix="clan-ping-") as file:
            for name, value in set_so.items():
                print(f"{name}={value}", file=file, flush=True)
            done = ping(clan, *asked, CLAN_CONFIG=file.name)
            assert done.returncode == 0, done
        if key:
            os.chmod(key[0], 0o644)
            complains(ping(clan, *asked, **set_so), "chmod 600")
            os.chmod(key[0], 0o600)
    finally:
        child.stdin.close()
        child.wait()


def main():
    clan, peer, crypto = sys.argv[1], sys.argv[2], len(sys.argv) > 3
    answers(clan, peer, ["--mode", "off"], [])
    takes_settings(clan, peer, [])
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as silent:
        silent.bind(("::", 0))
        nobody = f"127.0.0.1:{silent.getsockname()[1]}"
        complains(ping(clan, nobody, "--mode", "off", "--timeout", "1000"), "no answer", "firewall")
    # Its host refuses twice within 0.3 s, which is believed, long before the time-out.
    complains(ping(clan, nobody, "--mode", "off", "--timeout", "20000"),
              "no CLAN program has that UDP port open")
    complains(ping(clan, nobody), "no file with the pre-shared key was named", "--key")
    complains(ping(clan, "no-such-host.invalid", "--mode", "off"), "no such host")
    # An address of IPv6 needs no brackets: "::1" is no host with a port.
    done = ping(clan, "::1", "--mode", "off", "--timeout", "1000")
    assert "no such host" not in done.stderr, done
    with tempfile.TemporaryDirectory(prefix="clan-ping-") as directory:
        complains(ping(clan, nobody, "--key", key_file(directory, "open", "a", 0o644)), "chmod 600")
        if crypto:
            answers(clan, peer, ["--key", os.path.join(directory, "key")],
                    [key_file(directory, "key", "a", 0o600)])
            takes_settings(clan, peer, [os.path.join(directory, "key")])
    return 0


if __name__ == "__main__":
    sys.exit(main())
