#!/usr/bin/env python3
"""The UDP link beside kernel TCP and a bare UDP socket, between two network namespaces.

    clan bench net [--over veth|veth9000|loopback] [--rounds N] [--seconds S] [--only WORDS]
                   [--no-loss] [--only-loss] [--no-share] [--no-programs] [--no-mpi]
                   [--peers [N]] [-o DIR]

Makes the namespaces and the veth pair between them, and removes them (root). The two programs sit
on two processors: each row is measured once a round, and medians are printed, with the processor
time of both ends for a gigabyte or a round trip. Loss: the namespaces are joined by clan-net-relay
instead, which delays each packet by 1 ms and loses 1 % or 10 % of either direction; at 10 % the
server checks each byte. Beside: with an endless computation on each processor.
Share: ten streams through one token bucket of 400 Mbit/s, as many processes; Jain's index, of TCP's
too, and one of each. Rows with xdp go by AF_XDP, those with ofi by libfabric. Programs: redis and
iperf3 as they are, over kernel TCP and under `clan run --net` in turns. mpi: Open MPI with a rank
in each namespace. With --peers instead of all that: N (1,000) idle peers of one process, what each
takes of its memory, and a round trip of one more beside them. Run it on a quiet machine.
"""
import argparse
import contextlib
import os
import re
import secrets
import statistics
import subprocess
import sys
import tempfile
import time

import arguments
import crowd
import hosts
import jobs
import programs
import report
import sharing
from hosts import inside, namespaces, processor_seconds

HERE = os.path.dirname(os.path.abspath(__file__))
MTU = {"veth": 1500, "veth9000": 9000}
STREAMS = ("stream", "stream-adaptive", "stream-sleep", "stream-encrypt", "stream-xdp",
           "stream-xdp-sleep")
OFI = ("ofi-tcp-sleep", "ofi-sleep", "ofi-tcp-fd", "ofi-fd")
CLAN = ("clan", "clan-integrity", "clan-encrypt", "clan-xdp", *STREAMS)
ROWS = [*(("ping", path, 64) for path in ("udp", "xdp", "tcp", "tcp-block", *CLAN, *OFI)),
        *(("bulk", path, 1 << 20) for path in ("tcp", "tcp-block", *CLAN)),
        *(("rdma", path, 1 << 20)
          for path in ("stream", "stream-sleep", "stream-encrypt", "stream-xdp")),
        *(("beside", path, 64) for path in ("tcp-block", "stream-sleep"))]
# Beside the relay there is no processor for ends that poll.
LOSSY = {100: [("bulk", path) for path in ("tcp-block", "stream-adaptive", "stream-sleep")],
         1000: [("bulk", "tcp-block"), ("checked", "stream-sleep")]}
LOSSY_GB = {100: 0.06, 1000: 0.006}  # of a second asked for
DELAY_US = 1000

# What the rows are judged by: name, the row that is better if larger than 1, and the least ratio.
BARS = [("64 B: bare UDP / stream, polled", "ping udp", "ping stream", 1 / 1.2),
        ("64 B: TCP / stream, polled", "ping tcp", "ping stream", 1.3),
        ("64 B: blocking TCP / stream, polled", "ping tcp-block", "ping stream", 3),
        ("64 B: blocking TCP / stream, both asleep", "ping tcp-block", "ping stream-sleep", 1),
        ("64 B: tcp;ofi_rxm / libfabric, both asleep", "ping ofi-tcp-sleep", "ping ofi-sleep", 1),
        ("64 B: tcp;ofi_rxm / libfabric, by descriptors", "ping ofi-tcp-fd", "ping ofi-fd", 1),
        ("64 B: bare AF_XDP / stream by AF_XDP", "ping xdp", "ping stream-xdp", 1 / 1.2),
        ("64 B: TCP / stream by AF_XDP", "ping tcp", "ping stream-xdp", 1.3),
        ("bulk: stream by AF_XDP / TCP", "bulk stream-xdp", "bulk tcp", 1),
        ("bulk: stream / TCP", "bulk stream", "bulk tcp", 1),
        ("RDMA write: / TCP", "rdma stream", "bulk tcp", 1),
        ("64 B beside computations: TCP / stream, asleep", "beside tcp-block",
         "beside stream-sleep", 1),
        ("bulk: encrypted / off", "bulk stream-encrypt", "bulk stream", 0.5),
        ("1 % lost at 1 ms: stream / TCP", "1% bulk stream-sleep", "1% bulk tcp-block", 1)]


@contextlib.contextmanager
def network(over):
    """Two prefixes for commands, the address of the first's end, and the names of the
    namespaces."""
    if over == "loopback":
        yield [], [], "127.0.0.1", []
        return
    with namespaces([f"clannet{os.getpid()}{end}" for end in "ab"], ("10.77.0.1", "10.77.0.2"),
                    MTU[over]) as names:
        yield (*map(inside, names), "10.77.0.1", names)


@contextlib.contextmanager
def running(command, environment=None):
    with hosts.running(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                       env=environment) as child:
        time.sleep(0.2)
        yield child


def program_of(path):
    kind = next((k for k in ("stream", "ofi") if path.startswith(k)), "transport")
    return os.path.join(HERE, f"clan-net-{kind}")


def environment_of(path):
    """The environment tells the provider of libfabric about the network."""
    if not path.startswith("ofi"):
        return None
    return {**os.environ, "CLAN_NETWORK_MODE": "off",
            "FI_PROVIDER_PATH": os.path.join(HERE, "..", "..", "libfabric")}


@contextlib.contextmanager
def relayed(loss, seed):
    """As network(), joined by a path with that loss of 10,000 packets."""
    with namespaces([f"clannet{os.getpid()}{end}" for end in "cd"]) as names:
        command = [os.path.join(HERE, "clan-net-relay"), names[0], "10.79.0.1", names[1],
                   "10.79.0.2", str(DELAY_US), str(loss), str(seed)]
        with hosts.running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                           text=True) as relay:
            if relay.stdout.readline() != "ready\n":
                raise SystemExit("the relay has not begun")
            yield (*map(inside, names), "10.79.0.1", names)


@contextlib.contextmanager
def busy(processors):
    """An endless computation on each."""
    with contextlib.ExitStack() as stack:
        for processor in processors:
            stack.enter_context(running(["taskset", "-c", str(processor), "sh", "-c",
                                         "while :; do :; done"]))
        yield


class Runner:
    running, program_of = staticmethod(running), staticmethod(program_of)

    def __init__(self, net, seconds):
        (self.serving, self.asking, self.address,
         self.names), self.seconds, self.port = net, seconds, 4000

    def next_address(self):
        self.port += 1
        return f"{self.address}:{self.port}"

    def once(self, kind, path, size):
        """The figure of one row, and the processor seconds of both ends."""
        to = self.next_address()
        environment = environment_of(path)
        role = "ping" if kind == "beside" else kind
        serve = [*self.serving, "taskset", "-c", "0", program_of(path), "serve", path, to]
        with running(serve, environment) as server, busy((0, 1) if kind == "beside" else ()):
            before = processor_seconds(server.pid)
            command = [*self.asking, "taskset", "-c", "1", program_of(path), role, path, to,
                       str(size), str(self.seconds)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment,
                                  timeout=self.seconds * 20 + 60)
            server_time = processor_seconds(server.pid) - before
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed: {done.stdout}")
        value = re.search(r"p50 ([\d.]+)|^([\d.]+) GB/s", done.stdout, re.M)
        client_time = float(re.search(r"([\d.]+) s of processor", done.stdout)[1])
        count = re.search(r"^(\d+) round trips", done.stdout, re.M)
        figure = float(value[1] or value[2])
        # Microseconds of a round trip, or seconds of a gigabyte; bulk sends as many GB as SECONDS.
        work = int(count[1]) / 1e6 if count else self.seconds * (figure if kind == "rdma" else 1)
        return figure, (client_time + server_time) / work


def item_of(name, title, found):
    """A row for each name of `found`, {name: [(figure, processor time), ...]}."""
    item = report.Item(name, title)
    for row, values in found.items():
        ping = "ping" in row or "beside" in row
        figures = [figure for figure, _ in values]
        item.rows.append(report.Row(
            row, "median", 64 if ping else 1 << 20, statistics.median(figures),
            "us" if ping else "GB/s", higher=not ping, text=row, samples=values))
        processor = statistics.median(seconds for _, seconds in values)
        item.lines.append(report.Line(row, more={
            "processors": f"{processor:.2f} {'us' if ping else 's/GB'}",
            "rounds": " ".join(f"{figure:.2f}" for figure in figures)}))
    return item


def bars(medians):
    lines = [report.at_least(name, medians[larger] / medians[smaller], least)
             for name, larger, smaller, least in BARS if larger in medians and smaller in medians]
    if "ping stream-encrypt" in medians and "ping stream" in medians:
        lines.append(report.at_least("64 B: what encryption adds, us", medians[
            "ping stream-encrypt"] - medians["ping stream"], 1, most=True))
    return lines


def measure_loss(options, found):
    for round_number in range(options.rounds):
        for loss, rows in LOSSY.items():
            with relayed(loss, round_number + 1) as net:
                runner = Runner(net, options.seconds * LOSSY_GB[loss])
                for kind, path in rows:
                    name = f"{loss // 100}% {kind} {path}"
                    if all(word in name for word in options.only):
                        found.setdefault(name, []).append(runner.once(kind, path, 1 << 16))


def chosen(over, options):
    for kind, path, size in ROWS:
        if "xdp" in path and over == "loopback":
            continue  # has no frames
        if path in OFI and (over == "loopback" or not os.path.exists(program_of(path))):
            continue  # to it, both ends are on one host
        if all(word in f"{kind} {path}" for word in options.only):
            yield kind, path, size


def measure(over, options, results):
    found, loss = {}, {}
    with network(over) as net:
        runner = Runner(net, options.seconds)
        if options.peers:
            for path in "clan", "clan-encrypt":
                if all(word in path for word in options.only):
                    results.add(crowd.measure(runner, path, options.peers, options.rounds))
            return
        for _ in range(0 if options.only_loss else options.rounds):
            for kind, path, size in chosen(over, options):
                found.setdefault(f"{kind} {path}", []).append(runner.once(kind, path, size))
        if net[3] and not options.no_loss:
            measure_loss(options, loss)
        item = item_of(over, f"over {over}", found | loss)
        results.add(item)
        results.add(report.Item(f"{over}, bars", "ratios of these", lines=bars(
            {row.text: row.value for row in item.rows})))
        if not net[3] or options.only_loss:
            return
        if not options.no_programs and options.clan:
            results.add(programs.item_of(programs.measure(options.clan, net, options)))
        if not options.no_mpi and jobs.possible(HERE):
            results.add(jobs.item_of(jobs.measure(HERE, net, options)))
        if not options.no_share:
            results.add(sharing.measure(runner))


def main():
    parser = arguments.Parser("net", __doc__, pins=False,
                              formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--over", choices=["loopback", "veth", "veth9000"], action="append")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--only", nargs="*", default=[],
                        help="words of the rows' names, as in `bulk clan`")
    for switch in ("no-loss", "only-loss", "no-share", "no-programs", "no-mpi"):
        parser.add_argument(f"--{switch}", action="store_true")
    parser.add_argument("--peers", type=int, nargs="?", const=1000)
    options = parser.parse()
    if os.geteuid() != 0:
        raise SystemExit("clan bench net makes network namespaces, which takes root")
    with tempfile.NamedTemporaryFile("w", prefix="clan-key-") as key:  # made with mode 0600
        key.write(secrets.token_hex(32))
        key.flush()
        os.environ["CLAN_KEY_FILE"] = key.name
        results = report.Report(
            "net", "Between two hosts", report.describe_machine(HERE, [0, 1]),
            f"{options.rounds} rounds of {options.seconds:g} s in turns",
            "Medians, and each round; the processor time of both ends.")
        for over in options.over or ["veth"]:
            measure(over, options, results)
        return results.end(options.output)


if __name__ == "__main__":
    sys.exit(main())
