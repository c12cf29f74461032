"""The libfabric provider between two hosts, network namespaces joined by a veth pair, and between
three, joined by a bridge.

A part of programs.py (`two_hosts`, `three_hosts`); skipped where no namespaces can be made.
"""

import contextlib
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "hosts/udp"))
import hosts  # noqa: E402
import three_hosts as three  # noqa: E402

FAR, NEAR = "10.78.0.1", "10.78.0.2"
PORT = "7471"  # of the namespaces' own
NO_WAY = "No route to host"
AGENT = """#!/bin/sh
# Open MPI's way to another host: HOST COMMAND...
case $1 in
{cases}
esac
shift
exec ip netns exec $name unshare --uts sh -c "hostname $host;"' exec sh -c "$0"' "$*"
"""


class Case:
    """Two hosts, and programs on them with a key, another one or none."""

    def __init__(self, test, names, require, find_mpirun):
        self.test, self.names = test, names
        self.require, self.find_mpirun = require, find_mpirun
        self.keys = [test.directory / "key", test.directory / "other-key"]
        for key, content in zip(self.keys, ("5a", "a5")):
            key.touch(0o600)
            key.write_text(content * 32)

    def with_key(self, which=0):
        return {"FI_PROVIDER_PATH": self.test.providers, "FI_PROVIDER": "clan",
                "CLAN_KEY": str(self.keys[which])}

    def without(self):
        return {"FI_PROVIDER_PATH": self.test.providers, "FI_PROVIDER": "clan"}

    def words(self, host, *words):
        return [*hosts.inside(self.names[host]), *words]

    @contextlib.contextmanager
    def server(self, host, program, env):
        child = subprocess.Popen(self.words(host, program, "serve", PORT), stdout=subprocess.PIPE,
                                 text=True, env={**self.test.environment, **env})
        try:
            self.require(child.stdout.readline() == "ready\n", "the server has not begun")
            yield child
        finally:
            child.kill()
            child.wait()

    def ask(self, *words, env, code=0, seconds=200):
        return self.test.text(*self.words(1, *words), env=env, code=code, seconds=seconds)


def run(test, require, find, find_mpirun, peer):
    with hosts.hosts(1500, "ofi") as names:
        case = Case(test, names, require, find_mpirun)
        data(case, peer)
        refusals(case, peer)
        death(case, peer)
        pingpong(case, find)
        ranks(case)


def data(case, peer):
    """Messages, RMA and atomic operations, with a peer on each host by one endpoint."""
    env = case.with_key()
    with case.server(0, peer, env), case.server(1, peer, env):
        for to in ([FAR], [FAR, NEAR], [FAR]):
            said = case.ask(peer, "ask", PORT, *to, env=env)
            case.require(re.search(r"^right, \d+ checks$", said, re.M), said)
            print(*to, said.strip())
    env = {**case.without(), "CLAN_NETWORK_MODE": "off", "FI_CLAN_DIRECTORY_PORT": "4791"}
    with case.server(0, peer, env):
        said = case.ask(peer, "ask", PORT, FAR, env=env)
        case.require("right" in said, said)
        print("neither checked nor encrypted:", said.strip())


def refusals(case, peer):
    """The send fails. No key, another one: a sentence says what to do, whatever CLAN_LOG is.
    Nobody there, which time may mend: one where the log asks."""
    with case.server(0, peer, case.with_key()):
        said = case.ask(peer, "ask", PORT, FAR, env=case.without(), code=1)
        case.require(NO_WAY in said and f"no way to {FAR}: other hosts are reached when" in said,
                     said)
        said = case.ask(peer, "ask", PORT, FAR, env=case.with_key(1), code=1)
        case.require("fi_tsend: Connection timed out" in said, said)
        case.require(said.count(f"no way to {FAR}: nothing has answered: `clan ping`") == 1, said)
        said = case.ask(peer, "ask", "7472", FAR, env=case.with_key(), code=1)
        case.require("fi_tsend: Connection refused" in said and "no way" not in said, said)
        said = case.ask(peer, "ask", "7472", FAR, env={**case.with_key(), "CLAN_LOG": "warn"},
                        code=1)
        case.require(said.count(f"no way to {FAR}: no process there has that endpoint") == 1, said)
    print("without a common key, and where nobody is: refused")


def death(case, peer):
    """A peer that is killed ends what is under way, and one that begins anew is reached."""
    env = case.with_key()
    with case.server(0, peer, env) as server:
        client = case.test.start(*case.words(1, peer, "use", PORT, FAR), env=env)
        case.require(client.stdout.readline() == "connected\n", "the client has not begun")
        server.send_signal(signal.SIGKILL)
        said, _ = client.communicate(timeout=90)
        case.require(
            re.search(r"read failed: .*\nsend failed: Connection (refused|reset|timed out)", said),
            said)
    with case.server(0, peer, env):
        said = case.ask(peer, "ask", PORT, FAR, env=env)
        case.require("right" in said, said)
    print("a peer that dies:", *said.splitlines())


def pingpong(case, find):
    """fi_pingpong with checked contents, by every type of endpoint."""
    program = find("fi_pingpong", "libfabric-bin")
    env = case.with_key()
    for kind in ("rdm", "msg", "dgram"):
        common = [program, "-p", "clan", "-e", kind, "-I", "20", "-S", "all", "-c"]
        server = case.test.start(*case.words(0, *common, "-B", "7473"), env=env)
        for attempt in range(100):  # until the server listens
            said = case.ask(*common, "-P", "7473", FAR, env=env, code=None, seconds=120)
            if "refused" not in said or attempt == 99 or server.poll() is not None:
                break
            time.sleep(0.1)
        served, _ = server.communicate(timeout=30)
        sizes = re.findall(r"^(\d+[km]?)\s+\d", said, re.M)
        case.require(server.returncode == 0 and len(sizes) >= 8,
                     f"{kind}: {said[-800:]} --- {served[-800:]}")
        print(f"fi_pingpong -e {kind}: {len(sizes)} sizes")


def agent_for(case, others):
    """How mpirun begins its daemons in these namespaces, by their addresses."""
    agent = case.test.directory / "agent"
    agent.write_text(AGENT.format(cases="\n".join(
        f"  {address}) name={name} host=other-host-{i} ;;"
        for i, (address, name) in enumerate(others.items()))))
    agent.chmod(0o755)
    return agent


def job(case, agent, count, how, name, words, hosts_of_job):
    """The program `name` on `count` ranks of those hosts passes, by our provider."""
    said = case.test.text(
        *case.words(0, case.test.clan, "run", "--with", "ofi", case.find_mpirun()), "--host",
        ",".join(f"{host}:4" for host in hosts_of_job), "--map-by", "node", "--oversubscribe", "-n",
        count, "--mca", "plm_rsh_agent", agent, "--mca", "opal_common_ofi_verbose", 100, *how, "-x",
        "CLAN_KEY", Path(case.test.mpi, f"mpi-{name}"), *words,
        env={"CLAN_KEY": str(case.keys[0])}, seconds=400)
    case.require(f"{name}: PASS" in said, said[-1500:])
    chosen = re.findall(r"mtl:ofi:prov: (\S+)", said)
    # By btl ofi there is no other way to take: FI_PROVIDER names clan alone.
    by_btl = "btl_ofi_mode" in how
    case.require(chosen == ["clan"] * (0 if by_btl else count), f"Open MPI has chosen {chosen}")


def ranks(case):
    """Two MPI ranks on each of two hosts: messages, and windows by osc rdma over btl ofi, as `clan
    run --with ofi` has them; windows of every kind by messages (osc rdma hangs at dynamic ones:
    docs/libfabric.md); then everything by btl ofi."""
    agent = agent_for(case, {NEAR: case.names[1]})
    by_btl = ["--mca", "pml", "ob1", "--mca", "btl", "self,ofi", "--mca", "btl_ofi_mode", 2]
    by_messages = ["--mca", "osc", "pt2pt"]
    for how, name, *words in (([], "collectives", 100_000), ([], "point_to_point"),
                              ([], "accumulate"), (by_messages, "one_sided"),
                              (by_btl, "collectives", 16_384)):
        if not Path(case.test.mpi, f"mpi-{name}").exists():
            print("the MPI programs were not built (Debian: libopenmpi-dev)")
            return
        job(case, agent, 4, how, name, words, (FAR, NEAR))
        print(f"{name}: right on 4 ranks of two hosts{', by btl ofi' if how is by_btl else ''}")


def run_three(test, require, find_mpirun):
    """Two MPI ranks on each of three hosts: each has peers on its own host and on two others."""
    with three.bridged(1500, "ofi") as (names, _):
        case = Case(test, names, require, find_mpirun)
        agent = agent_for(case, dict(zip(three.ADDRESSES[1:], names[1:])))
        for name, *words in (("collectives", 16_384), ("point_to_point",), ("accumulate",)):
            if not Path(test.mpi, f"mpi-{name}").exists():
                print("the MPI programs were not built (Debian: libopenmpi-dev)")
                return
            job(case, agent, 6, [], name, words, three.ADDRESSES)
            print(f"{name}: right on 6 ranks of three hosts", flush=True)
