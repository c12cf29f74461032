#!/usr/bin/env python3
"""Programs that others wrote, over `clan ip`, where they are installed: in namespaces of one host,
and between two.

    programs.py CLAN    (exit code 77: needs root, namespaces and /dev/net/tun)
"""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile

import devices
from devices import DEVICE, eventually


def needs(*programs):
    """Prints which are not here. False: one is not."""
    absent = [p for p in programs if shutil.which(p) is None]
    if absent:
        print(f"without {', '.join(absent)}")
    return not absent


@contextlib.contextmanager
def serving(host, *words):
    process = subprocess.Popen(host.command(*words), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def listens(host, port):
    return eventually(lambda: f":{port} " in host.must("ss", "-ltn"))


def iperf(a, b):
    if not needs("iperf3"):
        return
    for more in (), ("-R",), ("-P", "3"), ("-u", "-b", "20M"):
        with serving(b, "iperf3", "-s", "-1"):
            assert listens(b, 5201)
            said = a.must("iperf3", "-J", "-t", "1", "-c", b.address, *more)
            total = json.loads(said)["end"]
            assert total.get("sum_received", total.get("sum"))["bytes"] > 0, said
            if more[:1] == ("-u",):
                assert total["sum"]["lost_percent"] < 20, total["sum"]


def ping_floods(a, b):
    said = a.must("ping", "-q", "-f", "-c", "500", b.address)
    assert "500 received" in said, said


def traces(a, b):
    if needs("traceroute"):
        said = a.must("traceroute", "-n", "-w", "2", "-q", "1", b.address)
        assert said.splitlines()[1].split()[:2] == ["1", b.address], said


def captures(a, b):
    if not needs("tcpdump"):
        return
    words = a.command("tcpdump", "-n", "-l", "-i", DEVICE, "-c", "4", "icmp")
    with subprocess.Popen(words, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as dump:
        assert "listening" in dump.stderr.readline() + dump.stderr.readline()
        assert a.pings(b.address)
        said = dump.communicate(timeout=30)[0]
    assert said.count("ICMP echo request") == 2 and said.count("ICMP echo reply") == 2, said


def fetches(a, b):
    """A file of 30 MB by HTTP, either way, whole."""
    if not needs("curl"):
        return
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "file")
        data = os.urandom(1 << 20) * 30
        with open(path, "wb") as file:
            file.write(data)
        for client, server in ((a, b), (b, a)):
            with serving(server, sys.executable, "-m", "http.server", "8080", "--directory",
                         directory, "--bind", server.address):
                assert listens(server, 8080)
                got = path + ".got"
                client.must("curl", "-sSf", "-o", got, f"http://{server.address}:8080/file")
                with open(got, "rb") as file:
                    assert hashlib.sha1(file.read()).digest() == hashlib.sha1(data).digest()


def redis(a, b):
    if not needs("redis-server", "redis-benchmark"):
        return
    with serving(b, "redis-server", "--port", "6379", "--bind", b.address, "--save", "",
                 "--protected-mode", "no"):
        assert listens(b, 6379)
        said = a.must("redis-benchmark", "-h", b.address, "-q", "-n", "5000", "-t", "get,set",
                      "-d", "3000")
        assert "GET:" in said, said


def ssh(a, b):
    if not needs("ssh", "sshd", "ssh-keygen"):
        return
    with tempfile.TemporaryDirectory() as directory:
        host, user = os.path.join(directory, "host"), os.path.join(directory, "user")
        for key in (host, user):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        os.makedirs("/run/sshd", exist_ok=True)
        server = (shutil.which("sshd"), "-D", "-e", "-f", "/dev/null", "-p", "2222", "-h", host,
                  "-o", f"AuthorizedKeysFile={user}.pub", "-o", "StrictModes=no", "-o",
                  f"ListenAddress={b.address}", "-o", "PermitRootLogin=yes", "-o",
                  f"PidFile={directory}/pid")
        with serving(b, *server):
            assert listens(b, 2222)
            said = a.must("ssh", "-p", "2222", "-i", user, "-o", "StrictHostKeyChecking=no", "-o",
                          "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes",
                          f"root@{b.address}", "echo", "over", "ssh")
            assert "over ssh" in said, said


def over(kind, clan):
    with kind(clan) as (a, b):
        a.up()
        b.up()
        assert eventually(lambda: a.pings(b.address)), a.status()
        for case in (iperf, ping_floods, traces, captures, fetches, redis, ssh):
            case(a, b)
            print(f"{case.__name__}: right", flush=True)
        peer = a.peer(b.address)
        assert peer["malformed"] == peer["refused"] == peer["bad_source"] == 0, peer


def in_namespaces(clan):
    over(devices.namespaces, clan)


def between_hosts(clan):
    over(devices.two_hosts, clan)


if __name__ == "__main__":
    sys.exit(devices.main([in_namespaces, between_hosts]))
