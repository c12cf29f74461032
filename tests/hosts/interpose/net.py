#!/usr/bin/env python3
"""Connections between two hosts under `clan run --net`: network namespaces joined by a veth pair,
with nothing else shared.

    net.py CLAN PEER SLEEPERS HOSTS [CASE...]

PEER is net_peer.py, SLEEPERS the program of net_sleepers.cc, HOSTS the folder of hosts.py, which
makes the namespaces. Each case is run with
both ends under `clan run --net`, and has to have moved; and, where that is asked for, with one end
that may not, and has to be right by TCP. Exit code 77: not root, or no `ip`.
"""
import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

CLAN, PEER, SLEEPERS, HOSTS = sys.argv[1:5]
sys.path.insert(0, HOSTS)
import hosts as made  # noqa: E402

PORT = "7001"
SERVER = "10.78.0.1"
MOVED = "reads the pipe after"
OFF = {"CLAN_NETWORK_MODE": "off"}


class Failed(Exception):
    pass


def environment(settings):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CLAN_")}
    return {**clean, "CLAN_LOG": "debug", **settings}


def under(host, settings, *command, net=True):
    words = [CLAN, "run", *(["--net"] if net else []), *command]
    log = tempfile.TemporaryFile("w+")
    child = subprocess.Popen(made.inside(host, *words), env=environment(settings), text=True,
                             stdout=subprocess.PIPE, stderr=log)
    child.log = log
    return child


def said(child):
    child.log.seek(0)
    return child.log.read()


def expect(good, what, *children):
    if not good:
        logs = "\n".join(f"--- {child.args}\n{said(child)[-3000:]}" for child in children)
        raise Failed(f"{what}\n{logs}")


def kill_all(*children):
    """Those that have begun, whatever they are at."""
    for child in filter(None, children):
        child.kill()
        child.wait()
        child.stdout.close()
        child.log.close()


@contextlib.contextmanager
def pair(names, case, seed, own=OFF, others=OFF, net=(True, True), host=SERVER):
    """A server and a client of net_peer.py."""
    server = under(names[0], own, sys.executable, "-B", PEER, "serve", PORT, case, str(seed),
                   net=net[0])
    client = None
    try:
        expect(server.stdout.readline() == "ready\n", "the server has not begun", server)
        client = under(names[1], others, sys.executable, "-B", PEER, "ask", host, PORT, case,
                       str(seed), net=net[1])
        yield server, client
    finally:
        kill_all(server, client)


def right(names, case, seed, moves=True, **settings):
    """`moves`: True, False or, where all may be over before it has, None."""
    with pair(names, case, seed, **settings) as (server, client):
        for child in (client, server):
            try:
                text = child.communicate(timeout=120)[0]
            except subprocess.TimeoutExpired:
                expect(False, f"{case} hangs", server, client)
            expect(child.returncode == 0 and "right" in text, f"{case}: {text!r}", server, client)
        for child in (client, server):
            expect(moves in (None, MOVED in said(child)), f"{case}: moved, or not", server, client)


def streams(names):
    for case in ("streams", "polled"):
        right(names, case, 1)
    for seed in range(4):
        right(names, "at_once", seed, moves=None)


FIREWALL = """table inet stateful { chain in { type filter hook input priority 0;
ct state established,related accept; meta l4proto udp drop; }; }"""


def other_addresses(names):
    """The server's second address, and one outside the wire's network; where its host's routes
    choose the first. Then the client's host takes only what answers what it has sent."""
    made.ip("-n", names[0], "address", "add", "10.78.0.11/24", "dev", "v0")
    made.ip("-n", names[0], "address", "add", "10.79.0.1/32", "dev", "lo")
    made.ip("-n", names[1], "route", "add", "10.79.0.1/32", "via", SERVER)
    for host in ("10.78.0.11", "10.79.0.1"):
        right(names, "streams", 13, host=host)
    if not shutil.which("nft"):
        return print("nft is not installed: no stateful firewall")
    subprocess.run(made.inside(names[1], "nft", "-f", "-"), input=FIREWALL, text=True, check=True)
    for host in (SERVER, "10.78.0.11", "10.79.0.1"):
        right(names, "streams", 14, host=host)


def sleepers(names):
    """Threads that sleep for packets: alone, several, under signals, cancelled."""
    for seed in range(2):
        server = under(names[0], OFF, SLEEPERS, "serve", PORT)
        client = None
        try:
            expect(server.stdout.readline() == "ready\n", "the server has not begun", server)
            client = under(names[1], OFF, SLEEPERS, "ask", SERVER, PORT, str(seed))
            for child in (client, server):
                text = child.communicate(timeout=120)[0]
                expect(child.returncode == 0 and "right" in text, f"it says {text!r}", client,
                       server)
                expect(said(child).count(MOVED) >= 4, "connections have not moved", client, server)
        finally:
            kill_all(server, client)


def going_back(names):
    for case in ("forks", "forks_unread", "spawns"):
        right(names, case, 2)


def last_words(names):
    right(names, "last_words", 1)


def encrypted(names):
    with tempfile.NamedTemporaryFile("w", prefix="clan-key-") as key, \
            tempfile.NamedTemporaryFile("w", prefix="clan-key-") as other:
        for file in (key, other):
            file.write(secrets.token_hex(32))
            file.flush()
        own = {"CLAN_KEY": key.name}
        right(names, "streams", 3, own=own, others=own)
        right(names, "streams", 4, moves=False, own=own, others={"CLAN_KEY": other.name})


def one_end(names):
    for net in ((True, False), (False, True)):
        right(names, "streams", 5, moves=False, net=net)
    right(names, "streams", 6, moves=False, others={**OFF, "CLAN_EXCEPT": PORT})


@contextlib.contextmanager
def losing(names, per_mille):
    """So many of a thousand packets are dropped that arrive at either host. Yields whether that is
    possible here."""
    drop = os.path.join(os.path.dirname(os.path.abspath(__file__)), "drop.py")
    droppers = [subprocess.Popen(made.inside(name, sys.executable, "-B", drop, "v0",
                                             str(per_mille)), text=True, stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE) for name in names]
    try:
        yield all(one.stdout.readline() == "drops\n" for one in droppers)
    finally:
        for one in droppers:
            one.communicate(timeout=20)


def lossy(names):
    for per_mille in (10, 100):
        with losing(names, per_mille) as loses:
            if not loses:
                return print("no XDP program here: left out")
            right(names, "lossy", 9 + per_mille)


def flowing(names, begin, deadline, case="flows"):
    """Both ends send without end, or are idle, until `begin(server, client)` has done its work.
    Answers what the others said that are left."""
    with pair(names, case, 7) as (server, client):
        for child in (server, client):
            expect(child.stdout.readline() == "flows\n", "no bytes flow", server, client)
        time.sleep(0.3)
        end = time.monotonic() + 20
        while (time.monotonic() < end and
               not all(MOVED in said(child) for child in (server, client))):
            time.sleep(0.05)
        for child in (server, client):
            expect(MOVED in said(child), "flows have not moved", server, client)
        left = begin(server, client)
        for child in left:
            try:
                text = child.communicate(timeout=deadline)[0]
            except subprocess.TimeoutExpired:
                expect(False, "an end hangs", server, client)
            expect("ended" in text, f"an end says {text!r}", server, client)


def slow_tail(names):
    """On a wire where a frame takes three seconds: TCP's end, and that of the program, come long
    before the last bytes."""
    if not shutil.which("tc"):
        return print("tc is not installed: left out")
    subprocess.run(["tc", "-n", names[1], "qdisc", "add", "dev", "v0", "root", "tbf", "rate",
                    "300kbit", "burst", "16k", "latency", "2s"], check=True)
    right(names, "tail", 1)


def killed(names):
    def kill(child, after=0):
        time.sleep(after)
        # `ip netns exec` and `clan run` have become the program.
        child.send_signal(signal.SIGKILL)

    flowing(names, lambda server, client: kill(server) or [client], 20)
    flowing(names, lambda server, client: kill(client) or [server], 20)
    # TCP says it at once, and no packet is under way that nobody takes.
    flowing(names, lambda server, client: kill(server) or [client], 8, case="idle")
    # Nor is there any room to ask by.
    flowing(names, lambda server, client: kill(server, 1) or [client], 8, case="full")


def cut(names):
    def down(server, client):
        made.ip("-n", names[0], "link", "set", "v0", "down")
        return [server, client]

    try:
        flowing(names, down, 60)
    finally:
        made.ip("-n", names[0], "link", "set", "v0", "up")


def shown(names):
    def look(server, client):
        listed = subprocess.run([CLAN, "stat", "--json"], capture_output=True, text=True,
                                env=environment({}), check=True).stdout
        paths = [one.get("path") for one in json.loads(listed)
                 if PORT in json.dumps(one)]
        expect("net" in paths, f"clan stat shows {paths}", server, client)
        client.kill()
        return [server]

    flowing(names, look, 20)


def far_host(names):
    """What `clan doctor` finds out about the server's host."""
    found = subprocess.run(made.inside(names[1], CLAN, "doctor", "--json", SERVER), text=True,
                           capture_output=True, env=environment(OFF)).stdout
    (far,) = [one for one in json.loads(found)["findings"] if one["name"] == "far_host"]
    return far


def shown_unmoved(names):
    """A connection whose other end has no --net is listed at this end, with the reason and with
    what helps; and why a path is not used is known to `clan doctor` and `clan ping`, too."""

    def look(what):
        listed = subprocess.run([CLAN, "stat", "--all", "--json", str(client.pid)], text=True,
                                capture_output=True, env=environment({}), check=True).stdout
        return [one for one in json.loads(listed) if PORT in json.dumps(one) and
                one.get("path") == "tcp" and what in one.get("reason", "")]

    with pair(names, "flows", 7, net=(False, True)) as (server, client):
        for child in (server, client):
            expect(child.stdout.readline() == "flows\n", "no bytes flow", server, client)
        end = time.monotonic() + 30
        while not look("clan ping") and time.monotonic() < end:
            time.sleep(0.2)
        expect(look("clan ping"), f"clan stat does not say why: {look('')}", server, client)
        # A host says once a second that nobody has a port, and the client has just asked often.
        far = far_host(names)
        while "no CLAN program" not in far["seen"] and time.monotonic() < end + 30:
            far = far_host(names)
        expect(far["state"] == "absent" and "no CLAN program" in far["seen"], far, client)
    with pair(names, "flows", 7, others={**OFF, "CLAN_EXCEPT": PORT}) as (server, client):
        for child in (server, client):
            expect(child.stdout.readline() == "flows\n", "no bytes flow", server, client)
        expect(len(look("CLAN_EXCEPT")) == 1, f"not the reason: {look('')}", server, client)
        far = far_host(names)
        expect(far["state"] == "ok" and "CLAN answers there" in far["seen"], far, client)


class Redis:
    """Commands whose answers are checked."""

    def __init__(self, path, port):
        self.socket = socket.create_connection((path, port))
        self.file = self.socket.makefile("rb")

    def ask(self, *words):
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(parts) +
                            b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
        line = self.file.readline()
        if line[:1] != b"$":
            return line.strip()
        size = int(line[1:])
        return self.file.read(size + 2)[:-2] if size >= 0 else None


def redis_client(path, port):
    """Run in the client's namespace, under `clan run`: values of all sizes, and forks of the server
    meanwhile, which take its connections back to TCP."""
    redis = Redis(path, port)
    values, dice = {}, random.Random(8)
    for i in range(1500):
        key = f"key{dice.randrange(100)}"
        values[key] = dice.randbytes(dice.choice((1, 30, 1000, 20000, 300000)))
        assert redis.ask("SET", key, values[key]) == b"+OK"
        if i % 7 == 0:
            some = dice.choice(list(values))
            assert redis.ask("GET", some) == values[some], some
        if i == 1000:
            print("saves", redis.ask("BGSAVE"), flush=True)
    for key, value in values.items():
        assert redis.ask("GET", key) == value, key
    print("right", flush=True)


def redis_server(names):
    if not shutil.which("redis-server"):
        return print("redis-server is not installed: left out")
    with tempfile.TemporaryDirectory() as folder:
        server = under(names[0], OFF, "redis-server", "--bind", SERVER, "--port", "7379", "--save",
                       "", "--dir", folder, "--protected-mode", "no")
        client = None
        try:
            for line in server.stdout:
                if "Ready to accept" in line:
                    break
            client = under(names[1], OFF, sys.executable, "-B", __file__, CLAN, PEER, SLEEPERS,
                           HOSTS, "--redis", SERVER, "7379")
            text = client.communicate(timeout=100)[0]
            expect(client.returncode == 0 and "right" in text, f"redis: {text}", client, server)
            expect(MOVED in said(client) and MOVED in said(server), "redis has not moved", client,
                   server)
            if shutil.which("redis-benchmark"):
                bench = under(names[1], OFF, "redis-benchmark", "-h", SERVER, "-p", "7379", "-n",
                              "20000", "-c", "20", "-t", "set,get", "-q")
                text = bench.communicate(timeout=100)[0]
                expect(bench.returncode == 0 and "GET" in text, f"redis-benchmark: {text}", bench)
                bench.log.close()
        finally:
            kill_all(server, client)


def iperf3(names):
    if not shutil.which("iperf3"):
        return print("iperf3 is not installed: left out")
    for way in ([], ["-R"], ["-P", "3"]):
        server = under(names[0], OFF, "iperf3", "-s", "-1", "--forceflush")
        client = None
        try:
            for line in server.stdout:
                if "listening" in line:
                    break
            client = under(names[1], OFF, "iperf3", "-c", SERVER, "-n", "200M", "-J", *way)
            text = client.communicate(timeout=100)[0]
            expect(client.returncode == 0, f"iperf3: {text[-500:]}", client, server)
            end = json.loads(text)["end"]
            sent, received = end["sum_sent"]["bytes"], end["sum_received"]["bytes"]
            expect(min(sent, received) > 100e6, f"iperf3: {sent} and {received}", client, server)
            expect(MOVED in said(client) or MOVED in said(server), "iperf3 has not moved", client,
                   server)
        finally:
            kill_all(server, client)


def settings(_):
    """What is wrong is one sentence, and nothing is started."""
    done = subprocess.run([CLAN, "run", "--net", "true"], env=environment({}), capture_output=True,
                          text=True)
    if done.returncode != 2 or "needs a key" not in done.stderr:
        raise Failed(f"without a key: {done.returncode} {done.stderr}")
    done = subprocess.run([CLAN, "run", "true"], env=environment({"CLAN_NET": "perhaps", **OFF}),
                          capture_output=True, text=True)
    if done.returncode != 2 or "CLAN_NET" not in done.stderr:
        raise Failed(f"CLAN_NET=perhaps: {done.returncode} {done.stderr}")


CASES = (settings, streams, other_addresses, sleepers, going_back, last_words, encrypted, one_end,
         lossy, slow_tail, killed, shown, shown_unmoved, redis_server, iperf3, cut)


def main():
    if sys.argv[5:6] == ["--redis"]:
        return redis_client(sys.argv[6], int(sys.argv[7]))
    if not made.possible():
        return 77
    wanted = sys.argv[5:]
    for case in CASES:
        if wanted and case.__name__ not in wanted:
            continue
        begin = time.time()
        with made.hosts(1500, also="net") as names:
            try:
                case(names)
            except Failed as failure:
                print(f"{case.__name__}: {failure}")
                return 1
        print(f"{case.__name__}: right, {time.time() - begin:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
