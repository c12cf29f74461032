#!/usr/bin/env python3
"""The gateway beside haproxy (tcp mode), nginx (stream), socat and others; the client is in a
network namespace of its own, behind a veth pair, so that its TCP is real.

    clan bench gateway [--rounds N] [--seconds S] [--rows WORD,...] [--peers WORD,...] [--idle N]
                       [--reloads N] [-o DIR]

Makes the namespaces and removes them (root). A relay and its server are started for each row and
peer, in turns; medians are printed, with the processor time of relay and server. Peers:

    direct    no relay: the client's TCP ends in the server
    gateway   clan gateway, to a server under `clan run` by its TCP port
    named     the same, to a name of AF_CLAN
    haproxy, nginx, socat        with a stock server
    clan-haproxy                 `clan run haproxy`, to a server under `clan run`
    sockmap                      haproxy and its server, their connection redirected by BPF

Rows: one and fifty (requests and answers of 1 KB on so many connections), in and out (bulk),
renew (a connection for each request), beside (one, beside an endless computation on each core),
idle (memory of the relay, and of the machine, for each of so many connections), reload (new
connections meanwhile, and how many fail). Run it on a quiet machine.
"""
import argparse
import contextlib
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import arguments
import report
import sockmap
from hosts import inside, namespaces
from processes import Skip, descendants, find, processor_seconds, raise_descriptor_limit

HERE = Path(__file__).resolve().parent

LOAD = str(HERE / "clan-gateway-load")
ADDRESS, PORT, SERVER_PORT = "10.83.0.1", 7000, 7001  # in namespaces that are ours alone
PEERS = ("direct", "gateway", "named", "haproxy", "nginx", "socat", "clan-haproxy", "sockmap")
UNDER = ("gateway", "named", "clan-haproxy")  # whose server runs under CLAN
ROWS = {"one": ("ask", ADDRESS, PORT, 1, 1024), "fifty": ("ask", ADDRESS, PORT, 50, 1024),
        "in": ("send", ADDRESS, PORT), "out": ("receive", ADDRESS, PORT),
        "renew": ("renew", ADDRESS, PORT, 8), "beside": ("ask", ADDRESS, PORT, 1, 1024)}
TITLES = {"one": "1 KB there and back, one connection",
          "fifty": "1 KB there and back, 50 connections",
          "in": "bulk to the server", "out": "bulk from the server",
          "renew": "a connection for each request",
          "beside": "one connection, beside an endless computation on each core"}
# The least ratio of the gateway's rate to another's.
BARS = {"one": 1.3, "fifty": 1.5, "in": 1.0, "out": 1.0, "renew": 1.0, "beside": 0.95}
MOST_CPU_OF_FIFTY = 0.7

HAPROXY = f"""
global
  nbthread 1
  maxconn MOST
defaults
  mode tcp
  timeout connect 5s
  timeout client 600s
  timeout server 600s
listen relay
  bind {ADDRESS}:{PORT}
  server one 127.0.0.1:{SERVER_PORT}
"""
NGINX = """
daemon off;
worker_processes 1;
error_log stderr;
pid {directory}/nginx.pid;
{modules}
events {{ worker_connections 20500; }}
stream {{
  server {{
    listen {address}:{port} backlog=1024;
    proxy_pass 127.0.0.1:{server};
    proxy_half_close on;
  }}
}}
"""


def family(root):
    """A process and all below it."""
    return [root, *descendants(root)]


def resident(root):
    """KB of a process and all below it."""
    sum_of = 0
    for pid in family(root):
        with contextlib.suppress(OSError):
            sum_of += kilobytes("Pss", f"/proc/{pid}/smaps_rollup")
    return sum_of


def kilobytes(name, path):
    """What a line of a file below /proc says."""
    return int(re.search(rf"^{name}: +(\d+) kB", Path(path).read_text(), re.M)[1])


def listening(prefix, port):
    text = subprocess.run([*prefix, "cat", "/proc/net/tcp", "/proc/net/tcp6"], text=True,
                          stdout=subprocess.PIPE, check=True).stdout
    return re.search(rf"^ *\d+: \w+:{port:04X} \w+:0000 0A ", text, re.M) is not None


class Bench:
    def __init__(self, clan, here, there, directory):
        self.clan, self.here, self.there, self.directory = clan, here, there, Path(directory)
        self.redirection = None

    @contextlib.contextmanager
    def running(self, command, port=None, prefix=()):
        log = open(self.directory / "log", "wb")
        child = subprocess.Popen([*prefix, *self.here, *map(str, command)], stdout=log, stderr=log,
                                 stdin=subprocess.DEVNULL, start_new_session=True)
        log.close()
        try:
            for _ in range(200):
                if port is None or listening(self.here, port):
                    break
                if child.poll() is not None:
                    raise Skip((self.directory / "log").read_text(errors="replace")[-200:])
                time.sleep(0.02)
            yield child
        finally:
            for pid in family(child.pid):  # the first one would start others again
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):  # a gateway that has been reloaded is no child
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()

    def relay(self, peer):
        """The command of a relay, and what precedes it."""
        run = [self.clan, "run"]
        if peer in ("gateway", "named"):
            to = "clan:gateway-bench" if peer == "named" else f"127.0.0.1:{SERVER_PORT}"
            return [self.clan, "gateway", "--listen", f"{ADDRESS}:{PORT}", "--to", to, "--log",
                    "off"]
        if peer == "socat":
            return [find("socat"), "-b65536", f"TCP-LISTEN:{PORT},fork,reuseaddr,nodelay",
                    f"TCP:127.0.0.1:{SERVER_PORT},nodelay"]
        if peer == "nginx":
            module = Path("/usr/lib/nginx/modules/ngx_stream_module.so")
            modules = f"load_module {module};" if module.exists() else ""
            config = self.directory / "nginx.conf"
            config.write_text(NGINX.format(directory=self.directory, modules=modules,
                                           address=ADDRESS, port=PORT, server=SERVER_PORT))
            return [find("nginx"), "-c", config, "-p", self.directory]
        config = self.directory / "haproxy.cfg"
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # it takes 214 besides two for each
        config.write_text(HAPROXY.replace("MOST", str((most - 214) // 2)))
        words = [find("haproxy"), "-f", config, "-db"]
        return run + words if peer == "clan-haproxy" else words

    @contextlib.contextmanager
    def chain(self, peer):
        """Relay and server: their process ids."""
        prefix = ()
        if peer == "sockmap":
            try:
                self.redirection = self.redirection or sockmap.Redirection()
            except sockmap.Refused as refused:
                raise Skip(str(refused)) from None
            prefix = self.redirection.prefix()
        port = PORT if peer == "direct" else SERVER_PORT
        where = "clan:gateway-bench" if peer == "named" else port
        server = [LOAD, "serve", where]
        if peer in UNDER:
            server = [self.clan, "run", *server]
        with contextlib.ExitStack() as stack:
            pids = [stack.enter_context(
                self.running(server, None if peer == "named" else port, prefix)).pid]
            if peer == "named":
                time.sleep(0.3)
            if peer != "direct":
                pids.insert(0, stack.enter_context(self.running(self.relay(peer), PORT,
                                                                prefix)).pid)
            yield pids

    def load(self, *words, **more):
        return subprocess.Popen([*self.there, LOAD, *map(str, words)], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)

    def measure(self, row, peer, seconds):
        """{figure: value} of one run."""
        with self.chain(peer) as pids, contextlib.ExitStack() as stack:
            if row == "beside":
                for core in os.sched_getaffinity(0):
                    stack.enter_context(self.running(
                        ["taskset", "-c", core, sys.executable, "-c", "while True: pass"]))
                time.sleep(0.3)
            self.load(*ROWS[row], 0.3).communicate()  # to warm up
            before = processor_seconds(pids)
            client = self.load(*ROWS[row], seconds)
            out, err = client.communicate(timeout=seconds + 30)
            if client.returncode != 0:
                raise Skip(err.strip())
            figures = {name: float(value) for name, value in map(str.split, out.splitlines())}
            figures["cpu"] = ((processor_seconds(pids) - before) / seconds / figures["rate"] *
                              (1e3 if row in ("in", "out") else 1e6))
            return figures

    def idle(self, peer, count):
        with self.chain(peer) as pids:
            before, machine = resident(pids[0]), kilobytes("MemAvailable", "/proc/meminfo")
            client = self.load("hold", ADDRESS, PORT, count, stdin=subprocess.PIPE)
            try:
                if client.stdout.readline() != "ready\n":
                    raise Skip(client.stderr.read().strip())
                left = kilobytes("MemAvailable", "/proc/meminfo")
                figures = {"relay KB": (resident(pids[0]) - before) / count,
                           "machine KB": (machine - left) / count}
                out, _ = self.load(*ROWS["one"], 2).communicate()
                figures["p50 us"] = float(out.split("p50 ")[1].split()[0])
                return figures
            finally:
                client.stdin.close()
                client.wait()

    def reload(self, count):
        """Reloads while new connections come: requests that went well, or the failure."""
        with self.chain("gateway"):
            client = self.load("renew", ADDRESS, PORT, 8, 0.25 * count + 2)
            time.sleep(1)
            for _ in range(count):
                subprocess.run([self.clan, "gateway", "reload"], check=True)
                time.sleep(0.1)
            out, err = client.communicate()
            if client.returncode != 0:
                return f"failed: {err.strip()}"
            return f"0 failed in {count} reloads, {out.split()[1]} requests/s meanwhile"


def judge(medians):
    """The line of each bar."""
    def best(row, figure, peers):
        return max((medians[row, peer][figure] for peer in peers if (row, peer) in medians),
                   default=None)

    lines = []
    for row, least in BARS.items():
        bulk = row in ("in", "out")
        ours = best(row, "rate", ("gateway", "named"))
        theirs = best(row, "rate", ("haproxy", "nginx", "socat", "sockmap") if bulk
                      else ("haproxy",))
        if ours and theirs:
            lines.append(report.at_least(f"{row}, of {'the best peer' if bulk else 'haproxy'}",
                                         ours / theirs, least))
    ours, theirs = (best("fifty", "cpu", (peer,)) for peer in ("gateway", "haproxy"))
    if ours and theirs:
        lines.append(report.at_least("fifty, of haproxy's processor time", ours / theirs,
                                     MOST_CPU_OF_FIFTY, most=True))
    return lines


def item_of(row, samples):
    """A row for each peer and figure, {peer: {figure: samples}}."""
    bulk = row in ("in", "out")
    units = {"rate": "MB/s" if bulk else "per second", "p50": "us", "p99": "us",
             "cpu": "CPU, s/GB" if bulk else "CPU, us each"}
    return report.Item(row, TITLES[row], [
        report.Row(row, f"{name} {units[name]}".replace("cpu ", "").replace("rate ", ""), 1,
                   statistics.median(values), units[name], higher=name == "rate", text=peer,
                   samples=values)
        for peer, figures in samples.items() for name, values in figures.items() if name in units])


def run_rows(bench, rows, peers, options, results):
    samples = {row: {} for row in rows}
    for turn in range(options.rounds):
        for row in rows:
            for peer in peers[turn % len(peers):] + peers[:turn % len(peers)]:
                try:
                    figures = bench.measure(row, peer, options.seconds)
                except Skip as skip:
                    results.skipped[f"{row}, {peer}"] = str(skip)
                    continue
                for name, value in figures.items():
                    samples[row].setdefault(peer, {}).setdefault(name, []).append(value)
    for row in rows:
        results.add(item_of(row, samples[row]))
    results.add(report.Item("bars", "what is wanted", lines=judge(
        {(row, peer): {name: statistics.median(values) for name, values in figures.items()}
         for row, of_row in samples.items() for peer, figures in of_row.items()})))


def run_idle(bench, options):
    item = report.Item("idle", f"{options.idle} connections that carry nothing, each")
    for peer in ("gateway", "haproxy"):
        with contextlib.suppress(Skip):
            item.rows += [report.Row("idle", name, options.idle, value, name.split()[-1],
                                     "connections", text=peer)
                          for name, value in bench.idle(peer, options.idle).items()]
    return item


def main():
    parser = arguments.Parser("gateway", __doc__, pins=False,
                              formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rows", default=",".join([*ROWS, "idle", "reload"]))
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--reloads", type=int, default=50)
    options = parser.parse()
    if os.geteuid() != 0:
        sys.exit("clan bench gateway: makes network namespaces, and needs root")
    most = raise_descriptor_limit(2 * options.idle + 400)
    options.idle = min(options.idle, (most - 400) // 2)  # two sockets each
    rows, peers = options.rows.split(","), options.peers.split(",")
    results = report.Report("gateway", "`clan gateway`",
                            report.describe_machine(HERE, sorted(os.sched_getaffinity(0))),
                            f"medians of {options.rounds} rounds of {options.seconds:g} s")
    with tempfile.TemporaryDirectory(prefix="clan-bench-gateway-") as directory, \
            namespaces([f"clangw{os.getpid()}{end}" for end in "ab"],
                       (ADDRESS, "10.83.0.2")) as (here, there):
        os.chmod(directory, 0o755)
        bench = Bench(options.clan, inside(here), inside(there), directory)
        try:
            run_rows(bench, [row for row in rows if row in ROWS], peers, options, results)
            if "idle" in rows:
                results.add(run_idle(bench, options))
            if "reload" in rows:
                said = bench.reload(options.reloads)
                results.add(report.Item("reload", "reloads while new connections come", said=[said],
                                        lines=[report.Line("reload", "0 failed", "missed" if
                                                           said.startswith("failed") else "met")]))
        finally:
            if bench.redirection is not None:
                bench.redirection.close()
    return results.end(options.output)


if __name__ == "__main__":
    sys.exit(main())
