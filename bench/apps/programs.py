"""The programs that are measured: how each is served, and how load is put on it.

serve_…(session, under) starts a server on the first core. A load is a function of (session, server,
under, core) and answers what it measured, by name, and what it saw of the connections meanwhile.
"""

import csv
import glob
import io
import json
import os
import pwd
import re
import shutil
import signal
from pathlib import Path

from processes import Failed, Skip, find

HERE = Path(__file__).resolve().parent
ROOT = os.geteuid() == 0
LOAD = HERE / "clan-app-load"


def run_load(session, server, *argv, under, core, seconds=None, **more):
    """A load that takes about `seconds`, sampled on its way: early too, as it may go faster this
    time."""
    seconds = seconds or session.seconds
    return session.run(*argv, under=under, core=core, port=server.port,
                       looks=[part * seconds for part in (0.15, 0.45, 0.8)], limit=20 + 5 * seconds,
                       **more)


def number(pattern, text, program):
    found = re.search(pattern, text)
    if found is None:
        raise Failed(f"{program} printed no figure: {text.strip()[-300:]}")
    return float(found[1])


# --- sockperf -------------------------------------------------------------------------------------

def serve_at(program, *words):
    """A server whose words have its port in them."""
    def serve(session, under, core=0):
        port = session.port()
        return session.serve(program, *(str(word).format(port=port) for word in words), port=port,
                             core=core, under=under)
    return serve


serve_sockperf = serve_at("sockperf", "sr", "--tcp", "-i", "127.0.0.1", "-p", "{port}")


def load_of(words, after="", **figures):
    """A load of a program: its words by session and server, and the pattern of each figure."""
    def load(session, server, under, core):
        argv = words(session, server)
        text, seen = run_load(session, server, *argv, under=under, core=core, after=after)
        return {name: number(pattern, text, argv[0]) for name, pattern in figures.items()}, seen
    return load


def sockperf(kind, most, **figures):
    # It measures its clock for a second or two before it begins.
    return load_of(lambda session, server: [
        "sockperf", kind, "--tcp", "-i", "127.0.0.1", "-p", server.port, "-m", 64, "--mps", most,
        "-t", session.seconds], after="Starting test", **figures)


def sockperf_ping_pong(session, server, under, core):
    # Without --mps it gives up when it reaches 600,000 messages a second; this is out of reach.
    load = sockperf("pp", 5_000_000, p50=r"percentile 50.000 = +([\d.]+)",
                    p99=r"percentile 99.000 = +([\d.]+)")
    figures, seen = load(session, server, under, core)
    # What sockperf calls latency is half a round trip.
    return {name: 2 * figure for name, figure in figures.items()}, seen


sockperf_throughput = sockperf("tp", "max", rate=r"Message Rate is ([\d.]+)")


# --- redis ----------------------------------------------------------------------------------------

def serve_redis(session, under, *more, core=0):
    port = session.port()
    return session.serve("redis-server", "--port", port, "--bind", "127.0.0.1", "--dir",
                         session.directory, "--save", "", "--appendonly", "no", "--daemonize", "no",
                         *more, port=port, core=core, under=under)


def redis_count(session, key, rate, seconds):
    """How many requests take `seconds`: redis-benchmark wants a number, not a time."""
    session.memory[key] = max(int(rate * seconds), 1000)


def redis_load(clients, pipeline):
    def load(session, server, under, core):
        # SET, then GET, each half of the time.
        each, key = session.seconds / 2, ("redis", under, server.port)

        def benchmark(count, **more):
            text, seen = run_load(session, server, "redis-benchmark", "-p", server.port, "-c",
                                  clients, "-P", pipeline, "-t", "set,get", "-n", count, "--csv",
                                  under=under, core=core, **more)
            lines = [line for line in io.StringIO(text) if line.startswith('"')]
            rows = {row["test"]: row for row in csv.DictReader(lines)}
            if set(rows) != {"SET", "GET"}:
                raise Failed(f"redis-benchmark printed no figures: {text.strip()[-300:]}")
            figures = {test: float(row["rps"]) for test, row in rows.items()}
            redis_count(session, key, min(figures.values()), each)
            # In steps of a microsecond.
            tails = {f"{test} p99": max(1000 * float(row["p99_latency_ms"]), 1)
                     for test, row in rows.items()}
            return figures | tails, seen

        if key not in session.memory:
            count = 5000 * pipeline if clients == 1 else 20_000 * pipeline
            benchmark(count, seconds=2)
            while session.memory[key] > 2 * count:  # it ended too soon to tell much of the rate
                count = session.memory[key]
                benchmark(count)
        return benchmark(session.memory[key])
    return load


# Runs N copies of a command at once: `sh -c CROWD COUNT N COMMAND...`, with COUNT requests of each.
CROWD = """n=$1; shift; pids=; begin=$(date +%s%N)
for i in $(seq "$n"); do "$@" </dev/null >/dev/null & pids="$pids $!"; done
for pid in $pids; do wait "$pid" || exit 1; done
echo "requests/s $((n * $0 * 1000000000 / ($(date +%s%N) - begin)))"
"""


def redis_crowd(processes):
    """So many redis-benchmarks of one client each, and no core of one's own for anybody."""
    def load(session, server, under, core):
        del core
        key = ("crowd", under)

        def crowd(count):
            text, seen = run_load(session, server, "sh", "-c", CROWD, count, processes,
                                  find("redis-benchmark"), "-p", server.port, "-c", 1, "-P", 1,
                                  "-t", "get", "-n", count, "-q", under=under, core=None)
            rate = number(r"requests/s ([\d.]+)", text, "redis-benchmark")
            redis_count(session, key, rate / processes, session.seconds)
            return {"rate": rate}, seen

        if key not in session.memory:
            crowd(2000)
        return crowd(session.memory[key])
    return load


# --- memcached ------------------------------------------------------------------------------------

serve_memcached = serve_at("memcached", "-p", "{port}", "-U", 0, "-l", "127.0.0.1", "-t", 1, "-m",
                           64, *(["-u", "root"] if ROOT else []))  # one user at both ends


def memcached_load(clients):
    return load_of(lambda session, server: [LOAD, "memcached", server.port, clients,
                                            session.seconds], rate=r"requests/s ([\d.]+)")


def redis_at_rate(rate):
    def load(session, server, under, core):
        # For a tail that means something: of a hundred it would be the worst one.
        seconds = max(session.seconds, (500 if rate >= 100 else 30) / rate)
        text, seen = run_load(session, server, LOAD, "rate", server.port, rate, seconds, server.pid,
                              under=under, core=core, seconds=seconds)
        return {key: number(rf"{key} ([\d.]+)", text, "clan-app-load")
                for key in ("p50", "p99", "cpu")}, seen
    return load


# --- nginx ----------------------------------------------------------------------------------------

# Without tcp_nopush: with it, one answer of 64 KB in a hundred waits 40 ms for an acknowledgement
# in the kernel, which would be measured instead.
NGINX = """
daemon off; worker_processes 1; pid {name}.pid; error_log {name}.log; {user}
events {{ worker_connections 1024; }}
http {{
  access_log off; sendfile on; tcp_nopush off; keepalive_requests 1000000000;
  open_file_cache max=16;
  client_body_temp_path {name}-body; proxy_temp_path {name}-proxy; fastcgi_temp_path {name}-fastcgi;
  uwsgi_temp_path {name}-uwsgi; scgi_temp_path {name}-scgi;
  server {{ listen 127.0.0.1:{port} backlog=4096; root {root}; }}
}}
"""


def serve_nginx(session, under, core=0):
    port = session.port()
    root = session.directory / "www"
    if not root.exists():
        root.mkdir()
        (root / "1k").write_bytes(b"x" * 1024)
        (root / "64k").write_bytes(b"x" * 65536)
    conf = session.directory / f"nginx-{port}.conf"
    conf.write_text(NGINX.format(name=f"nginx-{port}", port=port, root=root,
                                 user="user root root;" if ROOT else ""))
    return session.serve("nginx", "-p", session.directory, "-c", conf, "-e", f"nginx-{port}.early",
                         port=port, core=core, under=under)


# Without time-outs and logs; it copies itself, so that nothing is spliced past the interposed
# calls.
HAPROXY = """
global
  maxconn 1024
  nbthread 1
  nosplice
defaults
  mode tcp
  timeout connect 60s
  timeout client 60s
  timeout server 60s
listen chain
  bind 127.0.0.1:{port}
  server last 127.0.0.1:{last}
"""


def serve_chain(session, under):
    """haproxy before nginx, wherever the scheduler has them."""
    last = serve_nginx(session, under, core=None)
    port = session.port()
    conf = session.directory / f"haproxy-{port}.cfg"
    conf.write_text(HAPROXY.format(port=port, last=last.port))
    return session.serve("haproxy", "-db", "-f", conf, port=port, core=None, under=under)


def wrk(file, clients):
    def load(session, server, under, core):
        text, seen = run_load(session, server, "wrk", "-t1", f"-c{clients}",
                              f"-d{session.seconds}s", "--latency",
                              f"http://127.0.0.1:{server.port}/{file}", under=under, core=core)
        if wrong := re.search(r"Socket errors.*|Non-2xx.*", text):
            raise Failed(f"wrk: {wrong[0].strip()}")
        unit = re.search(r" 99% +[\d.]+(us|ms|s)\s", text)
        p99 = number(r" 99% +([\d.]+)", text, "wrk") * {"us": 1, "ms": 1e3, "s": 1e6}[unit[1]]
        return {"rate": number(r"Requests/sec: +([\d.]+)", text, "wrk"), "p99": p99}, seen
    return load


def percentile(times, share):
    return sorted(times)[min(int(len(times) * share), len(times) - 1)]


def h2load(file):
    """One client, one request at a time. The p99 of its log, which lists every request: wrk
    corrects its percentiles by its own mean rate, so of two that are held up for as long the faster
    one has the larger."""
    def load(session, server, under, core):
        log = session.directory / f"h2load-{server.port}"
        text, seen = run_load(session, server, "h2load", "--h1", "-c", 1, "-t", 1, "-D",
                              session.seconds, "--log-file", log,
                              f"http://127.0.0.1:{server.port}/{file}", under=under, core=core)
        rows = [line.split("\t") for line in log.read_text().splitlines()]
        log.unlink()
        times = [int(row[2]) for row in rows if row[1] == "200"]
        if not times or len(times) < len(rows):
            raise Failed(f"h2load: {len(rows) - len(times)} of {len(rows)} requests failed: "
                         f"{text.strip()[-300:]}")
        return {"h2load p99": max(percentile(times, 0.99), 1)}, seen
    return load


def wrk_and_h2load(file):
    """The rate by one, the p99 by the other, one after the other."""
    def load(session, server, under, core):
        rate, first = wrk(file, 1)(session, server, under, core)
        tail, second = h2load(file)(session, server, under, core)
        return {"rate": rate["rate"], **tail}, [*first, *second]
    return load


def ab(file, clients):
    """A new connection for each request."""
    def load(session, server, under, core):
        text, seen = run_load(session, server, "ab", "-q", "-t", session.seconds, "-n", 100_000_000,
                              "-c", clients, f"http://127.0.0.1:{server.port}/{file}", under=under,
                              core=core)
        if int(number(r"Failed requests: +(\d+)", text, "ab")) or "Non-2xx" in text:
            raise Failed(f"ab: failed requests: {text.strip()[-300:]}")
        return {"rate": number(r"Requests per second: +([\d.]+)", text, "ab")}, seen
    return load


# --- iperf3 ---------------------------------------------------------------------------------------

serve_iperf3 = serve_at("iperf3", "-s", "-B", "127.0.0.1", "-p", "{port}")


def iperf3_load(session, server, under, core):
    text, seen = run_load(session, server, "iperf3", "-c", "127.0.0.1", "-p", server.port, "-J",
                          "-t", session.seconds, under=under, core=core)
    try:
        return {"rate": json.loads(text)["end"]["sum_received"]["bits_per_second"] / 8e9}, seen
    except (ValueError, KeyError) as error:
        raise Failed(f"iperf3 printed no figure ({error!r}): {text.strip()[-300:]}") from None


# --- PostgreSQL -----------------------------------------------------------------------------------

def postgres_programs():
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"),
                   key=lambda path: float(path.split("/")[4]))
    if not found:
        find("initdb")  # elsewhere, or Skip
    return Path(found[-1]).parent if found else Path(find("initdb")).parent


def postgres_user():
    """The server refuses to run as root."""
    if not ROOT:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        raise Skip("There is no user postgres; the Debian package postgresql makes one.") from None


def postgres_environment(user):
    """Processes of these users may share memory with each other."""
    return {"CLAN_UIDS": f"{os.geteuid()},{user.pw_uid}"} if user else {}


def make_cluster(session, at, user, data):
    """With pgbench's tables in it, made once and copied for the second server."""
    data.mkdir(mode=0o700)
    if user:
        os.chown(data, user.pw_uid, user.pw_gid)
    session.run(at / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync", "-E",
                "UTF8", "--locale=C", user=user, limit=120)
    server = start_postgres(session, at, user, data, False)
    # Accepts connections some moments after it listens.
    for last in (False,) * 5 + (True,):
        try:
            session.run(at / "pgbench", "-h", "127.0.0.1", "-p", server.port, "-U", "postgres",
                        "-i", "-q", "-s", 10, "postgres", limit=120)
            break
        except Failed:
            if last:
                raise
    session.end(server.process, signal.SIGINT)


def start_postgres(session, at, user, data, under):
    port = session.port()
    return session.serve(at / "postgres", "-D", data, "-p", port, "-h", "127.0.0.1", "-k", "", "-F",
                         port=port, core=0, under=under, user=user, stop=signal.SIGINT,
                         environment=postgres_environment(user))


def serve_postgres(session, under):
    at, user = postgres_programs(), postgres_user()
    model, data = session.directory / "model", session.directory / f"data-{under}"
    if not model.exists():
        make_cluster(session, at, user, model)
    shutil.copytree(model, data)
    if user:
        for path in (data, *data.rglob("*")):
            os.chown(path, user.pw_uid, user.pw_gid)
    return start_postgres(session, at, user, data, under)


def pgbench(clients):
    def load(session, server, under, core):
        text, seen = run_load(
            session, server, postgres_programs() / "pgbench", "-h", "127.0.0.1", "-p", server.port,
            "-U", "postgres", "-n", "-S", "-M", "prepared", "-c", clients, "-j", 1, "-T",
            session.seconds, "postgres", under=under, core=core,
            environment=postgres_environment(postgres_user()))
        return {"rate": number(r"tps = ([\d.]+) \(without", text, "pgbench")}, seen
    return load
