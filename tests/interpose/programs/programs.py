#!/usr/bin/env python3
"""Real programs, without and with the interposer: the same results, and the bytes really by shared
memory.

    programs.py [--preload LIB] [--clan CLAN] [--one-sided] [NAME…]      all programs, or these
    programs.py --list

Every program runs in a private directory on free ports. Without --preload it runs twice stock,
which tests the tests. With it: stock, then both ends under LIB (with --clan started as `CLAN run
COMMAND…`), then, with --one-sided, only the servers and only the clients. What each run reports
must be equal, and in the run with both ends processes must have pipes of CLAN open through which
enough bytes went, in each direction. With one side alone only connections among its own processes
may have pipes, and must where there are such connections. A server that ends too early, that
was killed by a signal of its own making, or whose log names such a process, fails the run; so does
one that ends on request with an exit code that it does not have without the library. A program that
is not installed is skipped; the Debian packages are CLAN_TEST_PACKAGES in cmake/packages.sh. Exit
code 1 when something differs or fails, 77 when all that was asked for was skipped.
"""

import argparse
import contextlib
import glob
import hashlib
import json
import os
import pwd
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "support"))
from program_runner import SKIPPED, Skip, Wrong, descendants, require  # noqa: E402

PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
ROOT = os.geteuid() == 0
PROGRAM_SECONDS = 90


def sha(data):
    return hashlib.sha256(data).hexdigest()[:16]


def find(program):
    """Its path; daemons are in sbin."""
    path = shutil.which(program,
                        path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/local/sbin")
    if path is None:
        raise Skip(f"{program} is not installed")
    return path


# --- seeing that bytes went by shared memory ------------------------------------------------------

PIPE_LINK = "/memfd:clan-pipe (deleted)"
PIPE_MAGIC = 0x31657069702D6E63
PIPE_VERSION = 14
# core/include/clan/face/pipe_page.h: a head of 64 bytes, then two ends (sender, receiver, face).
PIPE_ENDS = (64, 64 + 512)
SENDER_BYTES = 24


def pipes_of(pid):
    """{inode: [bytes sent by the client, by the server]} of the pipes that a process has open."""
    found = {}
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{fd}"
            with contextlib.suppress(OSError):
                if os.readlink(path) != PIPE_LINK:
                    continue
                with open(path, "rb", buffering=0) as memory:
                    inode = os.fstat(memory.fileno()).st_ino
                    if inode in found:
                        continue
                    page = memory.read(4096)
                if len(page) == 4096 and struct.unpack_from("<Q", page)[0] == PIPE_MAGIC:
                    found[inode] = [
                        struct.unpack_from("<Q", page, at + SENDER_BYTES)[0] for at in PIPE_ENDS
                    ]
    return found


class PipeWatch(threading.Thread):
    """Samples the pipes of all processes below this one, as long as the test runs."""

    def __init__(self):
        super().__init__(daemon=True)
        self.most = {}
        self.finished = threading.Event()

    def run(self):
        while not self.finished.wait(0.02):
            for pid in descendants(os.getpid()):
                for inode, counts in pipes_of(pid).items():
                    self.most[inode] = list(map(max, counts, self.most.get(inode, counts)))

    def stop(self):
        self.finished.set()
        self.join()
        return len(self.most), [sum(counts) for counts in zip(*self.most.values())] or [0, 0]


# --- one run of one program -----------------------------------------------------------------------

# What a server may end with on a signal (143: of a SIGTERM that it handles), and what some do
# besides, stock too.
TOLD_TO = {0, -signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGTERM}
BY_CHANCE = {"lighttpd": {1}}

# What servers write when one of their processes has crashed, or the library complains.
DEATH = re.compile(
    r".*(?:exited on signal|exit signal|Segmentation|SIGSEGV|SIGABRT|core dumped|"
    r"clan\[\d+\] error).*"
)


class Run:
    """A private directory and the processes started in it, all of which end with it."""

    def __init__(self, preload=None, clan=None, server=False, client=False):
        self.preload, self.clan = preload, clan
        self.under = {"server": server, "client": client, "nobody": False}
        self.directory = Path(tempfile.mkdtemp(prefix="clan-programs-"))
        self.directory.chmod(0o755)
        # What processes that end by themselves have counted: connections that PipeWatch is too slow
        # for.
        self.count = self.file("count", bytes(24))
        self.count.chmod(0o666)
        self.environment = {"LC_ALL": "C", "CLAN_TEST_COUNT": str(self.count)}
        self.started = []
        self.servers = {}  # process: its name and its log
        self.told_to_end = set()  # of them
        self.ends_itself = set()
        self.transferred = None  # bytes there and back, where the clients say how many
        self.deadline = time.monotonic() + PROGRAM_SECONDS

    def __enter__(self):
        return self

    def __exit__(self, failed, *_):
        try:
            for process, (name, log) in self.servers.items():
                code = process.poll()
                early = code is not None and process not in self.told_to_end
                require(
                    failed or not early or (code == 0 and process in self.ends_itself),
                    f"{name} has ended with code {code}: {log.read_text(errors='replace')[-300:]}")
            for process in reversed(self.started):
                self.end(process)
            for _, (name, log) in self.servers.items():
                said = DEATH.search(log.read_text(errors="replace"))
                require(failed or said is None, f"{name} says: {said and said[0]}")
            for log in self.directory.glob("*error.log"):  # nginx's: a worker that dies is replaced
                said = DEATH.search(log.read_text(errors="replace"))
                require(failed or said is None, f"{log.name}: {said and said[0]}")
        finally:
            for process in reversed(self.started):
                self.end(process)
            shutil.rmtree(self.directory, ignore_errors=True)

    def end(self, process, patience=3):
        """SIGTERM, then SIGKILL, to the group that the process leads."""
        self.told_to_end.add(process)
        for number, patience in ((signal.SIGTERM, patience), (signal.SIGKILL, 5)):
            if process.poll() is not None:
                break
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # what it left behind in its group

    def odd_codes(self):
        """Exit codes of servers after a signal to end, which stock ones would have to have,
        too."""
        codes = [(Path(name).name, process.returncode)
                 for process, (name, _) in self.servers.items()]
        return sorted({f"{name}: {code}" for name, code in codes
                       if code not in TOLD_TO | BY_CHANCE.get(name, set())})

    def counted(self):
        return list(struct.unpack("<QQQ", self.count.read_bytes())[1:])

    def trust(self, *names):
        """Processes of these users and of the caller's share memory. Without it, users stay on TCP
        among each other."""
        known = []
        for name in names:
            with contextlib.suppress(KeyError):
                known.append(pwd.getpwnam(name).pw_uid)
        self.environment["CLAN_UIDS"] = ",".join(map(str, [os.geteuid(), *known]))

    def popen(self, argv, role, **more):
        argv = [str(word) for word in argv]
        argv[0] = find(argv[0])
        environment = {
            k: v
            for k, v in os.environ.items() if not k.startswith(("LD_PRELOAD", "CLAN_"))
        }
        environment.update(self.environment)
        if self.under[role]:
            if self.clan:
                argv = [self.clan, "run", *argv]
            else:
                environment["LD_PRELOAD"] = self.preload
        process = subprocess.Popen(argv, env=environment, cwd=self.directory,
                                   start_new_session=True, **more)
        self.started.append(process)
        return process

    def serve(self, *argv, port=None, role="server", stdin=subprocess.DEVNULL, out=None,
              once=False):
        """Starts a server and waits until it accepts on `port`. One that serves `once` ends by
        itself, with 0."""
        log = self.directory / (out or f"log-{len(self.started)}")
        with open(log, "wb") as to:
            process = self.popen(argv, role, stdin=stdin, stdout=to, stderr=subprocess.STDOUT)
        self.servers[process] = (str(argv[0]), log)
        if once:
            self.ends_itself.add(process)
        while port is not None:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                require(process.poll() is None and time.monotonic() < self.deadline,
                        f"{argv[0]} does not start: {log.read_text(errors='replace')[-600:]}")
                time.sleep(0.05)
        return process

    def run(self, *argv, data=None, role="client", timeout=40, check=True):
        """Runs to the end; its output as bytes."""
        process = self.popen(argv, role,
                             stdin=subprocess.PIPE if data is not None else subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            out, err = process.communicate(data, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise Wrong(f"{' '.join(map(str, argv))}: no end after {timeout} s") from None
        finally:
            self.end(process)
            self.started.remove(process)
        if check and process.returncode != 0:
            text = (out + err).decode(errors="replace")[-600:]
            raise Wrong(f"{' '.join(map(str, argv))}: exit code {process.returncode}: {text}")
        return out

    def text(self, *argv, **more):
        return self.run(*argv, **more).decode(errors="replace").strip()

    def until(self, what, condition, timeout=15):
        end = time.monotonic() + timeout
        while not condition():
            require(time.monotonic() < end, f"timed out: {what}")
            time.sleep(0.05)

    def file(self, name, contents):
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
        return path


used_ports = set()


def free_port():
    """One that nobody has now, below the range from which the kernel picks, and not used here
    before."""
    dice = random.SystemRandom()
    while True:
        port = dice.randrange(12_000, 30_000)
        if port in used_ports:
            continue
        with socket.socket() as probe:
            with contextlib.suppress(OSError):
                probe.bind(("0.0.0.0", port))
                used_ports.add(port)
                return port


def random_bytes(seed, count):
    return random.Random(seed).randbytes(count)


# --- the programs: each returns what must be the same in every run --------------------------------

def redis(run):
    port, second = free_port(), free_port()
    common = [
        "--daemonize", "no", "--save", "", "--appendonly", "no", "--enable-debug-command", "yes"
    ]
    os.mkdir(run.directory / "replica")
    run.serve("redis-server", "--port", port, "--dir", run.directory, *common, port=port)

    def cli(*words, **more):
        return run.text("redis-cli", "-p", str(port), *words, **more)

    said = {}
    entries = [(b"k%d" % i, b"v" * (i % 200 + 1)) for i in range(20_000)]
    commands = b"".join(b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(k), k, len(v), v)
                        for k, v in entries)
    said["pipe"] = cli("--pipe", data=commands).splitlines()[-1]
    said["multi"] = cli(data=b"MULTI\nINCR n\nINCRBY n 41\nSET m x\nGET m\nEXEC\nGET n\n").split()
    big = random_bytes(1, 10 << 20)
    run.file("big", big)
    said["set big"] = cli("-x", "set", "big", data=big)
    said["get big"] = run.run("redis-cli", "-p", port, "--raw", "get", "big")[:-1] == big

    run.serve("redis-cli", "-p", port, "subscribe", "news", role="client", out="subscriber")
    heard = run.directory / "subscriber"
    run.until("subscribed", lambda: b"subscribe" in heard.read_bytes())
    news = "".join(f"PUBLISH news item{i}\n" for i in range(2000))
    said["published"] = cli(data=news.encode()).split().count("1")
    run.until("all news", lambda: b"item1999\n" in heard.read_bytes())
    said["news"] = sha(heard.read_bytes())

    run.serve("redis-server", "--port", second, "--dir", run.directory / "replica", "--replicaof",
              f"127.0.0.1 {port}", *common, port=second)
    run.until("replica in step", lambda: "master_link_status:up" in
              run.text("redis-cli", "-p", second, "info", "replication"))
    load = run.popen(["redis-benchmark", "-p", port, "-n", 60_000, "-c", 20, "-t", "set,get", "-q"],
                     "client",
                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    said["bgsave"] = cli("bgsave")
    run.until("saved", lambda: "rdb_bgsave_in_progress:0" in cli("info", "persistence"))
    said["saved"] = "rdb_last_bgsave_status:ok" in cli("info", "persistence")
    said["load"] = load.wait(30)
    out = run.text("redis-benchmark", "-p", port, "-n", 100_000, "-c", 50, "-P", 16, "-t",
                   "ping,set,get", "-q")
    said["benchmark"] = re.findall(r"(\w+): [\d.]+ requests per second", out.replace("\r", "\n"))
    run.text("redis-benchmark", "-p", port, "-n", 5000, "-c", 1, "-t", "get", "-q")
    said["keys"] = cli("dbsize")
    said["digest"] = cli("debug", "digest")
    run.until("replica equal", lambda: run.text("redis-cli", "-p", second, "debug",
                                                "digest") == said["digest"])
    said["wait"] = cli("wait", "1", "5000")
    return said


def memcached(run):
    port = free_port()
    user = ["-u", "nobody"] if ROOT else []
    run.trust("nobody")
    run.serve("memcached", "-p", port, "-U", "0", "-l", "127.0.0.1", "-t", 2, "-m", 64, *user,
              port=port)
    return {"load": run.text(PYTHON, HERE / "clients.py", "memcached", port)}


NGINX = """
daemon off; worker_processes 2; pid {name}.pid; error_log {name}.error.log;
{user}
events {{ worker_connections 512; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000; client_max_body_size 50m;
  client_body_temp_path {name}-body; proxy_temp_path {name}-proxy; fastcgi_temp_path {name}-fastcgi;
  uwsgi_temp_path {name}-uwsgi; scgi_temp_path {name}-scgi;
  {http}
}}
"""


def start_nginx(run, name, port, http):
    user = f"user nobody {'nogroup' if shutil.which('getent') else 'nobody'};" if ROOT else ""
    conf = run.file(f"{name}.conf", NGINX.format(name=name, user=user, http=http))
    return run.serve("nginx", "-p", run.directory, "-c", conf, "-e", f"{name}.early.log", port=port)


def start_web(run):
    """An nginx that serves files, another in front of it; their ports and the files' hashes."""
    run.trust("nobody")
    front, upstream = free_port(), free_port()
    sizes = {"1k": 1024, "64k": 65_536, "5m": 5 << 20, "empty": 0}
    hashes = {}
    for seed, (name, size) in enumerate(sizes.items()):
        contents = random_bytes(seed, size)
        run.file(f"www/{name}", contents)
        hashes[name] = sha(contents)
    (run.directory / "www" / "put").mkdir()
    (run.directory / "www" / "put").chmod(0o777)
    start_nginx(run, "upstream", upstream, f"""server {{ listen 127.0.0.1:{upstream};
        root {run.directory}/www; location /put/ {{ dav_methods PUT DELETE; }} }}""")
    start_nginx(run, "front", front, f"""
        upstream behind {{ server 127.0.0.1:{upstream}; keepalive 16; }}
        server {{ listen 127.0.0.1:{front} reuseport; root {run.directory}/www;
          location /proxy/ {{ proxy_pass http://behind/; proxy_http_version 1.1;
                              proxy_set_header Connection ""; }} }}""")
    return front, upstream, hashes


def fetch(run, base, hashes, **more):
    """Every file by its own curl, then all over one connection."""
    said = {}
    for name, wanted in hashes.items():
        said[name] = sha(run.run("curl", "-sSf", f"{base}/{name}", **more)) == wanted
    urls = [f"{base}/{name}" for name in hashes for _ in range(10)]
    said["one connection"] = sha(run.run("curl", "-sSf", *urls, **more))
    said["range"] = sha(run.run("curl", "-sSf", "-r", "1000-60000", f"{base}/64k", **more))
    return said


def ab_report(text):
    kept = ("Complete requests", "Failed requests", "Non-2xx", "Keep-Alive requests",
            "HTML transferred")
    return [re.sub(r"\s+", " ", line) for line in text.splitlines() if line.startswith(kept)]


def wrk_report(text):
    require("requests in" in text, f"wrk: {text}")
    return [
        line.strip() for line in text.splitlines() if "Socket errors" in line or "Non-2xx" in line
    ]


def nginx(run):
    front, upstream, hashes = start_web(run)
    said = {}
    bases = {"direct": f"http://127.0.0.1:{front}", "proxy": f"http://127.0.0.1:{front}/proxy"}
    for name, base in bases.items():
        said[name] = fetch(run, base, hashes)
        said[f"{name} ab"] = ab_report(
            run.text("ab", "-q", "-k", "-n", 2000, "-c", 16, f"{base}/64k"))
        said[f"{name} wrk"] = wrk_report(run.text("wrk", "-t1", "-c32", "-d1s", f"{base}/1k"))
    body = run.file("upload", random_bytes(9, 3 << 20))
    said["put"] = run.text("curl", "-sSf", "-T", body, f"http://127.0.0.1:{front}/proxy/put/upload",
                           "-w", "%{http_code}")
    said["put arrived"] = sha(
        (run.directory / "www/put/upload").read_bytes()) == sha(body.read_bytes())
    said["close ab"] = ab_report(run.text("ab", "-q", "-n", 1000, "-c", 8,
                                          f"http://127.0.0.1:{upstream}/1k"))
    # A client that goes away in the middle does no harm.
    run.run("curl", "-s", "--max-filesize", 1000, "-o", "/dev/null",
            f"http://127.0.0.1:{front}/proxy/5m", check=False)
    said["after"] = sha(run.run("curl", "-sSf",
                                f"http://127.0.0.1:{front}/proxy/5m")) == hashes["5m"]
    return said


def haproxy(run):
    find("nginx")
    front, upstream, hashes = start_web(run)
    http, tcp = free_port(), free_port()
    conf = run.file("haproxy.cfg", f"""
global
  maxconn 500
  nbthread 2
defaults
  timeout connect 5s
  timeout client 20s
  timeout server 20s
  option splice-auto
frontend http
  mode http
  bind 127.0.0.1:{http}
  default_backend front
backend front
  mode http
  server a 127.0.0.1:{front}
  server b 127.0.0.1:{upstream}
listen tcp
  mode tcp
  bind 127.0.0.1:{tcp}
  server a 127.0.0.1:{upstream}
""")
    run.serve("haproxy", "-db", "-f", conf, port=http)
    said = {}
    for name, port in {"http": http, "tcp": tcp}.items():
        base = f"http://127.0.0.1:{port}"
        said[name] = fetch(run, base, hashes)
        said[f"{name} ab"] = ab_report(
            run.text("ab", "-q", "-k", "-n", 1000, "-c", 16, f"{base}/64k"))
        said[f"{name} wrk"] = wrk_report(run.text("wrk", "-t1", "-c16", "-d1s", f"{base}/1k"))
    return said


def postgres(run):
    binaries = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda p: int(p.split("/")[-2]))
    if not binaries:
        raise Skip("postgresql is not installed")
    at = Path(binaries[-1])
    run.trust("postgres")
    port, data = free_port(), run.directory / "data"
    sockets = run.directory / "sockets"
    as_user = []
    data.mkdir()
    sockets.mkdir()
    if ROOT:
        try:
            user = pwd.getpwnam("postgres")
        except KeyError:
            raise Skip("no user postgres") from None
        for path in (data, sockets):
            os.chown(path, user.pw_uid, user.pw_gid)
        data.chmod(0o700)
        as_user = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    run.run(*as_user, at / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync", "-E",
            "UTF8", "--locale=C", role="nobody")
    run.serve(*as_user, at / "postgres", "-D", data, "-p", port, "-h", "127.0.0.1", "-k", sockets,
              "-F", port=port)
    where = ["-h", "127.0.0.1", "-p", port, "-U", "postgres"]

    def sql(text, **more):
        return run.text(at / "psql", *where, "-X", "-At", "-v", "ON_ERROR_STOP=1", "-c", text,
                        "postgres", **more)

    def ready():
        return subprocess.run([at / "pg_isready", *map(str, where)], stdout=subprocess.DEVNULL,
                              check=False).returncode == 0

    run.until("postgres is ready", ready)
    said = {"init": run.run(at / "pgbench", *where, "-i", "-q", "-s", 1, "postgres") == b""}

    def pgbench(*words):
        out = run.text(at / "pgbench", *where, "-n", *words, "postgres")
        return re.findall(
            r"number of (?:transactions actually processed|failed transactions): (\d+\S*)", out)

    said["select"] = pgbench("-S", "-M", "prepared", "-c", 8, "-j", 2, "-t", 500)
    said["tpcb"] = pgbench("-c", 4, "-t", 100)
    said["reconnect"] = pgbench("-S", "-C", "-c", 2, "-t", 30)
    said["accounts"] = sql("select count(*), sum(aid) from pgbench_accounts")
    said["history"] = sql("select count(*) from pgbench_history")
    rows = "".join(f"{i}\t{sha(b'%d' % i)}\n" for i in range(100_000))
    sql("create table t (i int, s text)")
    said["copy in"] = sql("copy t from stdin", data=rows.encode())
    said["copy out"] = sql("copy (select * from t order by i) to stdout") == rows.strip()
    said["large"] = sha(sql("select repeat(md5('x'), 300000)").encode())
    begin = time.monotonic()
    run.run(at / "psql", *where, "-X", "-c", "set statement_timeout = 300", "-c",
            "select pg_sleep(20)", "postgres", check=False)
    said["cancelled"] = time.monotonic() - begin < 10
    return said


def iperf3(run):
    port = free_port()
    said = {}
    for name, words in {"one": [], "reverse": ["-R"], "four": ["-P", 4],
                        "both ways": ["--bidir"]}.items():
        server = run.serve("iperf3", "-s", "-1", "-p", port, once=True)
        run.until("iperf3 listens", lambda: port_is_open(port))
        report = json.loads(
            run.text("iperf3", "-c", "127.0.0.1", "-p", port, "-J", "-n", "300M", "-l", "128K",
                     *words))
        # Both ways it ends when one of them has had its share.
        received = sum(way["bytes"] for key, way in report["end"].items()
                       if key.startswith("sum_received"))
        said[name] = {"no error": "error" not in report, "server": server.wait(10),
                      "bytes": received > 100_000_000}
    return said


def port_is_open(port):
    """Listening? Asked of the kernel, since a connection would be taken for a client."""
    wanted = f":{port:04X}"
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(path).read_text().splitlines()[1:]:
            words = line.split()
            if words[1].endswith(wanted) and words[3] == "0A":
                return True
    return False


def sockperf(run):
    port, second = free_port(), free_port()
    run.serve("sockperf", "sr", "--tcp", "-i", "127.0.0.1", "-p", port)
    feed = run.file("feed", f"T:127.0.0.1:{second}\n")
    run.serve("sockperf", "sr", "-f", feed, "-F", "epoll")
    run.until("sockperf listens", lambda: port_is_open(port) and port_is_open(second))

    run.transferred = [0, 0]

    def measured(size, *words):
        """On a busy machine no message may fall between its warm-up and its end: then once more."""
        found = []
        while not found:
            require(time.monotonic() < run.deadline, "sockperf: no message between warm-up and end")
            out = run.text("sockperf", *words, "-m", size)
            for counts in re.findall(r"Total Run.*SentMessages=(\d+); ReceivedMessages=(\d+)", out):
                for way, messages in enumerate(counts):
                    run.transferred[way] += int(messages) * size
            found = re.findall(r"# (dropped|duplicated|out-of-order) messages = (\d+)", out)
        return found

    # Without a rate sockperf has room for 600 000 messages a second, and ends with an error when
    # more come.
    most = ["--mps", 4_000_000]
    to = ["--tcp", "-i", "127.0.0.1", "-p", port, "-t", 1]
    return {
        "ping-pong": measured(64, "pp", *to, *most, "--data-integrity"),
        "throughput": "Message Rate" in run.text("sockperf", "tp", *to, "-m", 64, "--mps", "max"),
        "under load": measured(200, "ul", *to, "--mps", 20_000),
        "epoll": measured(64, "pp", "-f", feed, "-F", "epoll", "-t", 1, *most),
    }


def tree_hash(root):
    total = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        total.update(str(path.relative_to(root)).encode())
        if path.is_file():
            total.update(path.read_bytes())
    return total.hexdigest()[:16]


def rsync(run):
    port = free_port()
    source = run.directory / "source"
    for i in range(300):
        run.file(f"source/d{i % 7}/f{i}", random_bytes(i, i * 37))
    large = run.file("source/large", random_bytes(1, 20 << 20))
    (run.directory / "pushed").mkdir()
    (run.directory / "pushed").chmod(0o777)
    # As root it becomes nobody for a module, unless configured otherwise, and an end that has
    # changed its user moves only if it has met the other one before: by chance.
    user = "use chroot = yes\nuid = 0\ngid = 0" if ROOT else "use chroot = no"
    conf = run.file("rsyncd.conf", f"""{user}
log file = {run.directory}/rsyncd.log
pid file = {run.directory}/rsyncd.pid
[source]
  path = {source}
[pushed]
  path = {run.directory}/pushed
  read only = no
""")
    run.serve("rsync", "--daemon", "--no-detach", f"--config={conf}", f"--port={port}",
              "--address=127.0.0.1", port=port)
    base = f"rsync://127.0.0.1:{port}"
    pulled = run.directory / "pulled"
    said = {
        "listing": sha(b"".join(line.split()[-1]
                                for line in run.run("rsync", "-r", f"{base}/source/").splitlines()))
    }
    # In a second, to be seen: it ends its children by signals, which count nothing at their end.
    slowly = "--bwlimit=20M"
    run.run("rsync", "-a", slowly, f"{base}/source/", f"{pulled}/")
    said["pull"] = tree_hash(pulled) == tree_hash(source)
    changed = bytearray(large.read_bytes())
    changed[5_000_000:5_000_100] = b"x" * 100
    large.write_bytes(changed)
    shutil.rmtree(source / "d3")
    run.run("rsync", "-a", "--delete", "--checksum", "--no-whole-file", f"{base}/source/",
            f"{pulled}/")
    said["delta"] = tree_hash(pulled) == tree_hash(source)
    run.run("rsync", "-rtOz", slowly, f"{source}/", f"{base}/pushed/")
    said["push"] = tree_hash(run.directory / "pushed") == tree_hash(source)
    return said


def openssl(run):
    web, mirror = free_port(), free_port()
    run.run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem",
            "-out", "cert.pem", "-days", "2", "-subj", "/CN=localhost", role="nobody")
    contents = random_bytes(3, 4 << 20)
    run.file("payload", contents)
    pair = ["-cert", "cert.pem", "-key", "key.pem"]
    run.serve("openssl", "s_server", *pair, "-accept", f"127.0.0.1:{web}", "-WWW", "-quiet",
              stdin=subprocess.PIPE,
              port=web)
    run.serve("openssl", "s_server", *pair, "-accept", f"127.0.0.1:{mirror}", "-rev", "-quiet",
              stdin=subprocess.PIPE,
              port=mirror)
    said = {}
    for version in ("1.2", "1.3"):
        got = run.run("curl", "-sSkf", f"--tlsv{version}", "--tls-max", version,
                      f"https://127.0.0.1:{web}/payload")
        said[f"tls {version}"] = got == contents
    answers = []
    client = run.popen(["openssl", "s_client", "-connect", f"127.0.0.1:{mirror}", "-quiet",
                        "-no_ign_eof"], "client",
                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    for i in range(300):
        client.stdin.write(f"line {i} of the talk\n".encode())
        client.stdin.flush()
        answers.append(client.stdout.readline())
        if i == 250:
            # all of the talk takes less than the time between two checks of the pipes
            time.sleep(0.2)
    client.stdin.close()
    said["end"] = client.wait(10)
    said["mirrored"] = [answers[0], answers[-1], sha(b"".join(answers))]
    return said


def python(run):
    http, echo = free_port(), free_port()
    contents = random_bytes(4, 3 << 20)
    run.file("www/payload", contents)
    run.file("www/small", "hello\n")
    run.serve(PYTHON, "-m", "http.server", "-b", "127.0.0.1", "-d", "www", "--protocol", "HTTP/1.1",
              http, port=http)
    run.serve(PYTHON, HERE / "clients.py", "asyncio-server", echo, port=echo)
    base = f"http://127.0.0.1:{http}"
    return {
        "payload": run.run("curl", "-sSf", f"{base}/payload") == contents,
        "one connection": sha(run.run("curl", "-sSf", *[f"{base}/small"] * 100)),
        "missing": run.text("curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}",
                            f"{base}/missing"),
        "asyncio": run.text(PYTHON, HERE / "clients.py", "asyncio-client", echo),
    }


NODE_SERVER = """
const crypto = require('crypto'), http = require('http');
http.createServer((request, response) => {
  const hash = crypto.createHash('sha256');
  request.on('data', piece => hash.update(piece));
  request.on('end', () => {
    response.writeHead(200, {'x-sum': hash.digest('hex')});
    response.end(Buffer.alloc(Number(request.url.slice(1)), 'n'));
  });
}).listen(Number(process.argv[2]), '127.0.0.1');
"""

NODE_CLIENT = """
const http = require('http'), crypto = require('crypto');
const agent = new http.Agent({keepAlive: true, maxSockets: 8});
const total = crypto.createHash('sha256');
const answers = [];
let left = 300;
for (let i = 0; i < 300; i++) {
  const request = http.request({port: Number(process.argv[2]), host: '127.0.0.1', agent,
                                method: 'POST', path: '/' + (i * 331 % 100000)}, response => {
    let bytes = 0;
    response.on('data', piece => bytes += piece.length);
    response.on('end', () => {
      answers[i] = response.headers['x-sum'] + ' ' + bytes;
      if (--left == 0) { console.log(total.update(answers.join()).digest('hex')); agent.destroy(); }
    });
  });
  request.end(Buffer.alloc(i * 701 % 50000, String(i)));
}
"""


def node(run):
    port = free_port()
    server, client = run.file("server.js", NODE_SERVER), run.file("client.js", NODE_CLIENT)
    run.serve("node", server, port, port=port)
    body = run.file("body", random_bytes(5, 2 << 20))
    base = f"http://127.0.0.1:{port}"
    return {
        "keep-alive": run.text("node", client, port),
        "curl": sha(run.run("curl", "-sSf", "--data-binary", f"@{body}", f"{base}/1000000")),
        "many": sha(run.run("curl", "-sSf", *[f"{base}/5000"] * 60)),
    }


# --- more that talk -------------------------------------------------------------------------------

def netpipe(run):
    """Every size and some around it, one way and back, and both ways at once. (Its options -r and
    -s end with a reset now and then, as stock.)"""
    said = {}
    for name, words in {"ping-pong": [], "both ways": ["-2"]}.items():
        port = free_port()
        # A fixed number of repeats: NetPIPE's own choice depends on how fast it goes.
        common = ["-P", port, "-i", "-n", 200, "-u", 300_000, *words]
        server = run.serve("NPtcp", *common, once=True)
        run.until("NPtcp listens", lambda port=port: port_is_open(port))
        out = run.text("NPtcp", "-h", "127.0.0.1", *common)
        said[name] = {"sizes": re.findall(r"(\d+) bytes +(\d+) times", out),
                      "passed": out.count("Integrity check passed"), "server": server.wait(10)}
    return said


def openmpi(run):
    """Open MPI's own TCP transport. (NetPIPE's -2 hangs over it, as stock.)"""
    find("NPopenmpi")
    run.environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                        "TMPDIR": str(run.directory)}
    mpirun = [
        "mpirun", "--oversubscribe", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include",
        "lo", "--mca", "pml", "ob1", "--mca", "mpi_yield_when_idle", 1
    ]

    def integrity(*words):
        out = run.text(*mpirun, "-n", 2, "NPopenmpi", "-i", "-n", 20, "-u", 1_000_000, *words)
        return [re.findall(r"(\d+) bytes +(\d+) times", out), out.count("Integrity check passed")]

    said = {"ping-pong": integrity(), "posted before": integrity("-a")}
    probe = subprocess.run([PYTHON, "-c", "import mpi4py"], capture_output=True, check=False)
    if probe.returncode == 0:
        said["four ranks"] = run.text(*mpirun, "-n", 4, PYTHON, HERE / "clients.py", "mpi", 0)
    return said


def ftp(run):
    """As Debian has it, with processes in network namespaces of their own and connections passed
    between them (those stay on TCP), and as one process per client, whose connections move."""
    find("vsftpd")
    if not ROOT:
        raise Skip("vsftpd wants to be started by root")
    try:
        user = pwd.getpwnam("ftp")
    except KeyError:
        raise Skip("no user ftp") from None
    run.trust("ftp", "nobody")
    root, empty = run.directory / "ftp", run.directory / "empty"
    empty.mkdir()
    large = random_bytes(7, 60 << 20)
    run.file("ftp/large", large)
    run.file("ftp/small", "hello\n")
    incoming = root / "incoming"
    incoming.mkdir()
    os.chown(incoming, user.pw_uid, user.pw_gid)
    said = {}
    one_process = "one_process_model=YES\nisolate_network=NO"
    for model, more in {"many processes": "", "one process": one_process}.items():
        port = free_port()
        conf = run.file(f"vsftpd{port}.conf", f"""
listen=YES
listen_address=127.0.0.1
listen_port={port}
background=NO
anonymous_enable=YES
local_enable=NO
anon_root={root}
write_enable=YES
anon_upload_enable=YES
anon_umask=022
secure_chroot_dir={empty}
connect_from_port_20=NO
xferlog_enable=NO
{more}
""")
        run.serve("vsftpd", conf, port=port)
        base = f"ftp://127.0.0.1:{port}"
        missing = run.text("curl", "-s", "-w", "%{http_code}", f"{base}/missing", check=False)
        said[model] = {"missing": missing}
        for how, words in {"passive": [], "active": ["-P", "127.0.0.1"]}.items():
            name = f"{model} {how}".replace(" ", "-")
            # Slow enough that the pipe is seen.
            run.run("curl", "-sSf", *words, "--limit-rate", "100M", "-T",
                    run.directory / "ftp/large", f"{base}/incoming/{name}")
            said[model][how] = {
                "listing": sorted(run.text("curl", "-sSfl", *words, f"{base}/").split()),
                "large": run.run("curl", "-sSf", *words, f"{base}/large") == large,
                "many": sha(run.run("curl", "-sSf", *words, *[f"{base}/small"] * 10)),
                "upload": (incoming / name).read_bytes() == large,
            }
            (incoming / name).unlink()
    return said


@contextlib.contextmanager
def directory_for_sshd():
    """Where sshd of root locks up the process that has not logged in yet; a fixed place."""
    place = Path("/run/sshd")
    made = ROOT and not place.exists()
    if made:
        place.mkdir(mode=0o755)
    try:
        yield
    finally:
        if made:
            with contextlib.suppress(OSError):
                place.rmdir()


def ssh(run):
    """A connection that passes from process to process. One of them is in a sandbox, in which
    system calls other than its own are deadly: the connection stays on TCP."""
    sshd = find("sshd")
    port = free_port()
    for name in ("host", "user"):
        run.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", name, role="nobody")
    shutil.copy(run.directory / "user.pub", run.directory / "authorized")
    conf = run.file("sshd_config", f"""
ListenAddress 127.0.0.1:{port}
HostKey {run.directory}/host
AuthorizedKeysFile {run.directory}/authorized
PidFile none
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
Subsystem sftp internal-sftp
""")
    contents = random_bytes(8, 10 << 20)
    file = run.file("payload", contents)
    options = [
        "-F", "none", "-i", run.directory / "user", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR",
        "-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={run.directory}/known"
    ]
    name = pwd.getpwuid(os.geteuid()).pw_name
    here = f"{name}@127.0.0.1"
    with directory_for_sshd():
        # sshd clears its environment, so what it executes for each client is without CLAN; -r: it
        # only forks.
        server = run.serve(sshd, "-r", "-D", "-e", "-f", conf, out="sshd.log", port=port)

        def command(text, **more):
            return run.run("ssh", *options, "-p", port, here, text, **more)

        said = {"word": command("echo hello").decode(),
                "there": sha(command("cat", data=contents)) == sha(contents),
                "code": run.text("ssh", *options, "-p", port, here, "exit 3", check=False)}
        run.run("scp", "-q", *options, "-P", port, file, f"{here}:{run.directory}/copied")
        said["copied"] = (run.directory / "copied").read_bytes() == contents
        run.run("scp", "-q", *options, "-P", port, f"{here}:{file}", "fetched")
        said["fetched"] = (run.directory / "fetched").read_bytes() == contents
        said["forwarded"] = run.text("ssh", *options, "-p", port, "-W", f"127.0.0.1:{port}", here,
                                     data=b"hello\r\n").startswith("SSH-2.0")
        run.end(server)
    return said


JAVA_PROGRAM = """
import com.sun.net.httpserver.HttpServer;
import java.io.*;
import java.net.*;
import java.net.http.*;
import java.nio.ByteBuffer;
import java.nio.channels.*;
import java.security.MessageDigest;
import java.util.*;
import java.util.concurrent.Executors;

public class Talk {
  static byte[] bytes(int n, int seed) {
    byte[] b = new byte[n];
    new Random(seed).nextBytes(b);
    return b;
  }

  static void serve(int http, int echo) throws Exception {
    HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", http), 50);
    server.setExecutor(Executors.newFixedThreadPool(4));
    server.createContext("/", exchange -> {
      int size = exchange.getRequestBody().readAllBytes().length;
      int wanted = Integer.parseInt(exchange.getRequestURI().getPath().substring(1));
      exchange.getResponseHeaders().set("X-Got", "" + size);
      exchange.sendResponseHeaders(200, wanted == 0 ? -1 : wanted);
      exchange.getResponseBody().write(bytes(wanted, wanted));
      exchange.close();
    });
    server.start();
    // An echo by a selector.
    Selector selector = Selector.open();
    ServerSocketChannel listener = ServerSocketChannel.open();
    listener.bind(new InetSocketAddress("127.0.0.1", echo));
    listener.configureBlocking(false);
    listener.register(selector, SelectionKey.OP_ACCEPT);
    for (;;) {
      selector.select();
      for (Iterator<SelectionKey> i = selector.selectedKeys().iterator(); i.hasNext();) {
        SelectionKey key = i.next();
        i.remove();
        if (key.isAcceptable()) {
          SocketChannel c = listener.accept();
          if (c == null) continue;
          c.configureBlocking(false);
          c.register(selector, SelectionKey.OP_READ, ByteBuffer.allocate(65536));
          continue;
        }
        SocketChannel c = (SocketChannel) key.channel();
        ByteBuffer b = (ByteBuffer) key.attachment();
        boolean end = b.hasRemaining() && key.isReadable() && c.read(b) < 0;
        b.flip();
        c.write(b);
        b.compact();
        if (end) { c.close(); continue; }
        key.interestOps((b.hasRemaining() ? SelectionKey.OP_READ : 0) |
                        (b.position() > 0 ? SelectionKey.OP_WRITE : 0));
      }
    }
  }

  static void talk(int http, int echo) throws Exception {
    MessageDigest digest = MessageDigest.getInstance("SHA-256");
    HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    for (int i = 0; i < 200; i++) {
      URI uri = URI.create("http://127.0.0.1:" + http + "/" + i * 601);
      HttpRequest request = HttpRequest.newBuilder(uri)
          .POST(HttpRequest.BodyPublishers.ofByteArray(bytes(i * 307, i))).build();
      HttpResponse<byte[]> response = client.send(request, HttpResponse.BodyHandlers.ofByteArray());
      digest.update(response.headers().firstValue("X-Got").get().getBytes());
      digest.update(response.body());
    }
    // Threads with blocking sockets; a time-out; an asynchronous close of a socket somebody reads.
    try (Socket socket = new Socket("127.0.0.1", echo)) {
      byte[] all = bytes(5_000_000, 1);
      Thread writer = new Thread(() -> {
        try {
          socket.getOutputStream().write(all);
        } catch (IOException e) { System.out.println(e); }
      });
      writer.start();
      digest.update(new DataInputStream(socket.getInputStream()).readNBytes(all.length));
      writer.join();
      socket.setSoTimeout(100);
      try { socket.getInputStream().read(); }
      catch (SocketTimeoutException e) { System.out.println("timeout"); }
      socket.setSoTimeout(0);
      Thread closer = new Thread(() -> {
        try { Thread.sleep(200); socket.close(); } catch (Exception e) { System.out.println(e); }
      });
      closer.start();
      try {
        socket.getInputStream().read();
      } catch (SocketException e) { System.out.println("closed"); }
      closer.join();
    }
    System.out.println(HexFormat.of().formatHex(digest.digest()));
    System.exit(0);
  }

  public static void main(String[] a) throws Exception {
    int http = Integer.parseInt(a[1]), echo = Integer.parseInt(a[2]);
    if (a[0].equals("serve")) serve(http, echo); else talk(http, echo);
  }
}
"""


def java(run):
    find("javac")  # a run-time environment alone has no compiler
    http, echo = free_port(), free_port()
    run.run("javac", "-J-XX:-UsePerfData", "-d", ".", run.file("Talk.java", JAVA_PROGRAM),
            role="nobody")
    small = ["java", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xmx256m", "-cp", "."]
    run.serve(*small, "Talk", "serve", http, echo, port=echo)
    body = run.file("body", random_bytes(6, 2 << 20))
    return {
        "talk": run.text(*small, "Talk", "talk", http, echo),
        "curl": sha(
            run.run("curl", "-sSf", "--data-binary", f"@{body}",
                    f"http://127.0.0.1:{http}/3000000")),
        "many": sha(run.run("curl", "-sSf", *[f"http://127.0.0.1:{http}/5000"] * 60)),
    }


MB = 1 << 20

# How many bytes at least go by shared memory from clients and from servers when both ends are under
# the interposer: about half of what each program transfers. HALF: of what it says itself, as it
# transfers for a time. 0: its connections stay on TCP.
HALF = "half"
PROGRAMS = {
    redis: (8 * MB, 10 * MB),
    memcached: (50 * MB, 50 * MB),
    nginx: (2 * MB, 250 * MB),
    haproxy: (2 * MB, 200 * MB),
    postgres: (2 * MB, 6 * MB),
    iperf3: (400 * MB, 250 * MB),
    sockperf: HALF,
    rsync: (1, 10 * MB),
    openssl: (1, 4 * MB),
    python: (12 * MB, 12 * MB),
    node: (3 * MB, 7 * MB),
    netpipe: (100 * MB, 100 * MB),
    openmpi: (50 * MB, 50 * MB),
    # vsftpd sends a file by one sendfile(): such a connection ends before it has been used enough
    # to move.
    ftp: (30 * MB, 0),
    ssh: 0,
    java: (3 * MB, 7 * MB),
}

# Which side has connections among its own processes: to a replica, from a proxy, between ranks.
AMONG_THEMSELVES = {
    **dict.fromkeys(PROGRAMS, None), redis: "server", nginx: "server", haproxy: "server",
    openmpi: "client",
}


# --- all of them ----------------------------------------------------------------------------------

def clan_stat(clan):
    """`clan stat --json` answers while there is something to see."""
    done = subprocess.run([clan, "stat", "--json"], capture_output=True, text=True, timeout=20,
                          stdin=subprocess.DEVNULL, check=False)
    require(done.returncode == 0, f"clan stat: exit code {done.returncode}: {done.stderr[-300:]}")
    json.loads(done.stdout)


UNSEEN = "were seen to go by shared"


def require_enough(count, least, pipes):
    """`least`: bytes from clients and from servers, or of both together."""
    enough = sum(count) >= least if isinstance(least, int) else \
        all(some >= wanted for some, wanted in zip(count, least))
    require(enough and (all(count) or not isinstance(least, int) or least == 0),
            f"only {count[0]} and {count[1]} bytes, there and back, in {pipes} pipes {UNSEEN} "
            f"memory, {least} expected")


def require_no_other_side(program, pipes, side):
    """One side alone has CLAN: its connections to the other one are the kernel's."""
    if program not in AMONG_THEMSELVES:
        return
    among = AMONG_THEMSELVES[program] == side
    require(pipes == 0 or among, f"{pipes} pipes of CLAN to a side that is without it")
    require(pipes > 0 or not among, f"no bytes between {side}s {UNSEEN} memory")


def attempt(program, threshold=None, clan=None, alone=False, **under):
    """What one run reports; with a threshold, that many bytes must have gone by shared memory."""
    watch = PipeWatch()
    watch.start()
    try:
        with Run(clan=clan, **under) as run:
            said = program(run)
            if clan and threshold:
                clan_stat(clan)
            counted = run.counted()
        said["exit codes"] = run.odd_codes()
    finally:
        pipes, count = watch.stop()
    count = list(map(max, count, counted))
    if threshold == HALF:
        threshold = [bytes_said // 2 for bytes_said in run.transferred]
    if threshold is not None:
        require_enough(count, threshold, pipes)
    elif alone:
        require_no_other_side(program, pipes, "server" if under.get("server") else "client")
    elif not any(under.get(role) for role in ("server", "client")):
        require(pipes == 0, "stock processes have pipes of CLAN")
    return said, pipes, count


def compare(stock, clan):
    return [f"{key}: stock {stock.get(key)!r}, clan {clan.get(key)!r}"
            for key in {**stock, **clan} if stock.get(key) != clan.get(key)]


def all_true(said, path=""):
    """A stock run that reports something false shows a broken test, not a broken library."""
    for key, value in said.items():
        if isinstance(value, dict):
            all_true(value, f"{path}{key}, ")
        require(value is not False, f"stock: {path}{key}")


def test(program, options):
    """Text about what went wrong, empty when nothing did; and remarks."""
    stock, _, _ = attempt(program)
    all_true(stock)
    cases = {"stock again": {}}
    if options.preload:
        given = {"preload": options.preload, "clan": options.clan}
        cases = {"both": {**given, "server": True, "client": True, "threshold": PROGRAMS[program]}}
        if options.one_sided:
            cases["only the servers"] = {**given, "server": True, "alone": True}
            cases["only the clients"] = {**given, "client": True, "alone": True}
    remarks = []
    for name, how in cases.items():
        for last in (False, True):
            try:
                clan, pipes, count = attempt(program, **how)
                break
            except Wrong as wrong:
                if last or UNSEEN not in str(wrong):
                    return f"{name}: {wrong}", remarks
        if different := compare(stock, clan):
            return f"{name}: " + "; ".join(different), remarks
        remarks.append(
            name + (f" ({count[0] / 1e6:.1f} MB there, {count[1] / 1e6:.1f} MB back, {pipes} pipes)"
                    if pipes else ""))
    return "", remarks


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--preload", help="the interposer's library")
    parser.add_argument("--clan", help="the command clan, to start programs with `clan run`")
    parser.add_argument("--one-sided", action="store_true")
    parser.add_argument("--list", action="store_true", help="print the names")
    options = parser.parse_args()
    by_name = {program.__name__: program for program in PROGRAMS}
    if options.list:
        print(" ".join(by_name))
        return 0
    if unknown := set(options.names) - set(by_name):
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    for name in ("preload", "clan"):
        if path := getattr(options, name):
            if not Path(path).is_file():
                parser.error(f"no file {path}")
            setattr(options, name, str(Path(path).resolve()))
    if options.clan and not options.preload:
        parser.error("--clan needs --preload")

    bad = skipped = 0
    for name in options.names or by_name:
        begin = time.monotonic()
        try:
            wrong, remarks = test(by_name[name], options)
        except Skip as skip:
            print(f"SKIP {name}: {skip}", flush=True)
            skipped += 1
            continue
        except Wrong as text:
            wrong, remarks = str(text), []
        except (OSError, ValueError, KeyError, IndexError, subprocess.SubprocessError) as error:
            wrong, remarks = f"{type(error).__name__}: {error}", []
        seconds = time.monotonic() - begin
        text = wrong or "as stock: " + ", ".join(remarks)
        print(f"{'FAIL' if wrong else 'ok  '} {name} {seconds:.0f} s: {text}", flush=True)
        bad += bool(wrong)
    print(f"{len(options.names or by_name) - bad - skipped} ok, {bad} failed, {skipped} skipped")
    return 1 if bad else SKIPPED if skipped == len(options.names or by_name) else 0


if __name__ == "__main__":
    sys.exit(main())
