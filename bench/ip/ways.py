"""The ways that packets go between two network namespaces, for `clan bench ip`: each a context
manager that gives the address of the second one."""

import contextlib
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import hosts
from hosts import agent_of, inside, ip

HERE = Path(__file__).resolve().parent
A, B = (f"clanbench{os.getpid()}{end}" for end in "ab")
FIRST, SECOND = "10.9.0.1", "10.9.0.2"
WIRE = ("10.78.0.1", "10.78.0.2")


@contextlib.contextmanager
def running(*commands, lines=0, **settings):
    """Processes, of which the first says so many lines when it is ready."""
    with contextlib.ExitStack() as stack:
        for command in commands:
            process = stack.enter_context(hosts.running(
                command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True, **settings))
            for _ in range(lines):
                process.stdout.readline()
        yield


def answers(address):
    """Waits until it answers a ping."""
    for _ in range(100):
        ping = inside(A, "ping", "-c", "1", "-W", "1", address)
        if subprocess.run(ping, stdout=subprocess.DEVNULL).returncode == 0:
            return True
        time.sleep(0.1)
    return False


@contextlib.contextmanager
def loopback(_):
    yield "127.0.0.1"


@contextlib.contextmanager
def veth(_):
    yield WIRE[1]


@contextlib.contextmanager
def vxlan(_):
    """Over the veth pair."""
    for name, own, other in ((A, *WIRE), (B, *WIRE[::-1])):
        ip("-n", name, "link", "add", "x0", "type", "vxlan", "id", "7", "dstport", "4789", "local",
           own, "remote", other, "dev", "v0")
    configure("x0")
    yield SECOND
    for name in (A, B):
        ip("-n", name, "link", "del", "x0")


def configure(device):
    """Gives the device of each namespace its address."""
    for name, address in ((A, FIRST), (B, SECOND)):
        ip("-n", name, "address", "add", f"{address}/24", "dev", device)
        ip("-n", name, "link", "set", device, "up")


def bare(*more):
    @contextlib.contextmanager
    def way(_):
        with running(inside(A, str(HERE / "clan-ip-bare"), f"/run/netns/{B}", f"{FIRST}/24",
                            f"{SECOND}/24", *more), lines=2):
            yield SECOND
    return way


def clan_ip(*more):
    @contextlib.contextmanager
    def way(clan):
        with tempfile.TemporaryDirectory() as directory:
            ends = [inside(name, clan, "ip", "up", "clan0", "--address", f"{address}/24", *more)
                    for name, address in ((A, FIRST), (B, SECOND))]
            with running(*ends, lines=1, env=dict(os.environ, CLAN_DIR=directory)):
                yield SECOND
    return way


def clan_far(mode):
    @contextlib.contextmanager
    def way(clan):
        with tempfile.NamedTemporaryFile("w") as key:
            key.write(secrets.token_hex(32))
            key.flush()
            environment = dict(os.environ, CLAN_NETWORK_MODE=mode)
            if mode != "off":
                environment["CLAN_KEY"] = key.name
            ends = [inside(name, clan, "ip", "up", "clan0", "--address", f"{own}/24", "--peer",
                           f"{other}=udp:{wire}")
                    for name, own, other, wire in ((A, FIRST, SECOND, WIRE[1]),
                                                   (B, SECOND, FIRST, WIRE[0]))]
            with running(*ends, lines=1, env=environment):
                yield SECOND
    return way


@contextlib.contextmanager
def vde(_):
    with tempfile.TemporaryDirectory() as directory:
        switch = os.path.join(directory, "switch")
        with running(["vde_switch", "-s", switch, "-M", os.path.join(directory, "manage")]):
            time.sleep(0.3)
            plugs = [inside(name, "vde_plug2tap", "-s", switch, "tap0") for name in (A, B)]
            with running(*plugs):
                time.sleep(0.3)
                configure("tap0")
                yield SECOND


def configure_tinc(directory, number):
    """Without a cipher; each host's key and address, the other one's where it is."""
    end = os.path.join(directory, "ab"[number])
    os.makedirs(os.path.join(end, "hosts"))
    files = {"tinc.conf": f"Name = {'ab'[number]}\nConnectTo = {'ba'[number]}\nInterface = tap0\n",
             f"hosts/{'ab'[number]}": f"Address = {WIRE[number]}\nCipher = none\nDigest = none\n"
                                      f"Subnet = {(FIRST, SECOND)[number]}/32\n"}
    for name, text in files.items():
        with open(os.path.join(end, name), "w") as file:
            file.write(text)
    subprocess.run(["tincd", "-c", end, "-K", "2048"], check=True, stdin=subprocess.DEVNULL,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    up = os.path.join(end, "tinc-up")
    with open(up, "w") as file:
        file.write(f"#!/bin/sh\nip address add {(FIRST, SECOND)[number]}/24 dev $INTERFACE\n"
                   "ip link set $INTERFACE up\n")
    os.chmod(up, 0o755)
    return end


@contextlib.contextmanager
def tinc(_):
    with tempfile.TemporaryDirectory() as directory:
        a, b = (configure_tinc(directory, number) for number in range(2))
        shutil.copy(os.path.join(a, "hosts/a"), os.path.join(b, "hosts"))
        shutil.copy(os.path.join(b, "hosts/b"), os.path.join(a, "hosts"))
        with running(*(inside(name, "tincd", "-c", end, "-D", "--pidfile",
                              os.path.join(end, "pid"))
                       for name, end in ((A, a), (B, b)))):
            yield SECOND


# The name, the way, the program that it takes.
WAYS = [("loopback", loopback, None), ("veth", veth, None), ("vxlan", vxlan, None),
        ("bare", bare(), None), ("bare, no offload", bare("--no-offload"), None),
        ("clan ip", clan_ip(), None), ("clan ip, MTU 65535", clan_ip("--mtu", "65535"), None),
        ("clan ip, UDP", clan_far("off"), None),
        ("clan ip, encrypted", clan_far("encrypt"), None),
        ("vde2", vde, "vde_plug2tap"), ("tinc", tinc, "tincd")]


# --- n-body ---------------------------------------------------------------------------------------

PARTICLES = (16, 128, 1024)


def step_us(program, particles, address=None):
    """Microseconds of a step: of one rank, or of two, the second one at `address`."""
    steps = str(max(20, min(4000, 2_000_000 // (particles * particles))) // 10 * 10)
    with tempfile.TemporaryDirectory(prefix="clan-nbody-") as directory:
        agent = agent_of(directory, B)
        words = ["-n", "1"]
        if address is not None:
            hosts = "localhost:2" if address.startswith("127.") else f"localhost:1,{address}:1"
            words = ["-n", "2", "--host", hosts, "--mca", "plm_rsh_agent", agent]
            if not address.startswith("127."):
                network = f"{address.rsplit('.', 1)[0]}.0/24"
                words += ["--mca", "oob_tcp_if_include", network, "--mca", "btl_tcp_if_include",
                          network]
        done = subprocess.run(
            inside(A, "mpirun", "--bind-to", "none", *words, "--mca", "pml", "ob1", "--mca", "btl",
                   "tcp,self", "--mca", "mpi_yield_when_idle", "1", program, str(particles), steps),
            check=True, text=True, stdout=subprocess.PIPE, timeout=60,
            env=dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                     TMPDIR=directory))
    return float(done.stdout.split()[2])


def nbody(program, address):
    """One turn of `clan bench ip --nbody PROGRAM`, the paper's kernel IP column: one rank at each
    end by Open MPI's btl tcp. Ranks that wait yield, as the processes that forward need the
    processors, too. The speed-up by a second rank, by the number of particles."""
    return {f"n-body {n}": step_us(program, n) / step_us(program, n, address) for n in PARTICLES}
