#!/usr/bin/env python3
"""Servers as operators treat them: beside computations, reloaded under load, behind each other.

    busy_programs.py [--preload LIB] [--clan CLAN] [--one-sided] [NAME…]
    busy_programs.py --list

As programs.py has it, whose options these are: each runs stock and under CLAN and says the same.
"""

import os
import re
import signal
import subprocess
import sys
import time

import programs
from programs import PYTHON, ab_report, find, free_port, random_bytes, sha

COMPUTATIONS = 2  # for each processor
# What stock has been seen to give: 1 to 6 for each reload.
BAD_GATEWAYS_OF_RELOAD = 6


def compute(run):
    """Endless computations beside what the test runs; they end with it."""
    for _ in range(COMPUTATIONS * (os.cpu_count() or 1)):
        run.popen([PYTHON, "-c", "while True: pass"], "nobody", stdin=subprocess.DEVNULL)


def redis_replica(run):
    """A replica stays in sync though it gets the processor late: what it has not read is buffered
    as TCP would, before the server counts it against the replica's limit."""
    port, second = free_port(), free_port()
    common = ["--save", "", "--appendonly", "no", "--enable-debug-command", "yes",
              "--client-output-buffer-limit", "replica 24mb 12mb 10"]
    os.mkdir(run.directory / "replica")
    run.serve("redis-server", "--port", port, "--dir", run.directory, *common, port=port)

    def cli(to, *words):
        return run.text("redis-cli", "-p", to, *words)

    def number(to, name):
        return int(re.search(rf"^{name}:(\d+)", cli(to, "info"), re.MULTILINE)[1])

    run.serve("redis-server", "--port", second, "--dir", run.directory / "replica", "--replicaof",
              f"127.0.0.1 {port}", *common, port=second)
    run.until("replica in step", lambda: "master_link_status:up" in cli(second, "info"))
    compute(run)
    load = run.text("redis-benchmark", "-p", port, "-n", 200_000, "-c", 20, "-P", 16, "-d", 200,
                    "-r", 10_000, "-t", "set", "--csv", timeout=60)
    said = {"load": '"SET"' in load}
    run.until("replica has all",
              lambda: cli(port, "debug", "digest") == cli(second, "debug", "digest"), timeout=30)
    said["full syncs"] = number(port, "sync_full")
    said["partial syncs"] = number(port, "sync_partial_ok")
    said["link"] = "master_link_status:up" in cli(second, "info")
    return said


def nginx_reload(run):
    """An upstream is reloaded again and again under load: no more 502 than stock gives."""
    front, _, _ = programs.start_web(run)
    master = int((run.directory / "upstream.pid").read_text())
    load = run.popen(["wrk", "-t1", "-c8", "-d5s", f"http://127.0.0.1:{front}/proxy/1k"], "client",
                     stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    reloads = 0
    time.sleep(0.5)
    while load.poll() is None and reloads < 10:
        os.kill(master, signal.SIGHUP)
        reloads += 1
        time.sleep(0.4)
    text = load.communicate(timeout=20)[0].decode()
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    bad = int(bad[1]) if bad else 0
    print(f"nginx_reload: {bad} of {reloads} reloads; {re.search('Requests/sec.*', text)[0]}",
          file=sys.stderr)
    run.transferred = [0, 1024 * int(re.search(r"(\d+) requests in", text)[1])]
    most = BAD_GATEWAYS_OF_RELOAD * reloads
    return {"bad answers": "few" if bad <= most else bad,
            "socket errors": re.findall(r"Socket errors.*", text)}


PHP = """<?php
$body = file_get_contents('php://input');
echo md5($body), "\\n", str_repeat(substr(md5($_SERVER['QUERY_STRING']), 0, 8), 32768);
"""


def php_fpm(run):
    """nginx before PHP's FastCGI server, by connections that stay open."""
    find("php-fpm8.2")
    find("nginx")
    run.trust("nobody")
    front, back = free_port(), free_port()
    run.file("www/answer.php", PHP)
    body = run.file("body", random_bytes(3, 300_000))
    user = "user = nobody\ngroup = nogroup\n" if programs.ROOT else ""
    conf = run.file("fpm.conf", f"""[global]
error_log = {run.directory}/fpm.log
daemonize = no
[www]
{user}listen = 127.0.0.1:{back}
pm = static
pm.max_children = 12
pm.max_requests = 200
""")
    # Without its modules, which are opened past the library.
    run.serve("php-fpm8.2", "-n", "-R", "-y", conf, port=back)
    programs.start_nginx(run, "front", front, f"""
        upstream php {{ server 127.0.0.1:{back}; keepalive 4; }}
        server {{ listen 127.0.0.1:{front};
          location / {{ fastcgi_pass php; fastcgi_keep_conn on;
                        fastcgi_param SCRIPT_FILENAME {run.directory}/www/answer.php;
                        fastcgi_param QUERY_STRING $query_string;
                        fastcgi_param REQUEST_METHOD $request_method;
                        fastcgi_param CONTENT_TYPE $content_type;
                        fastcgi_param CONTENT_LENGTH $content_length; }} }}""")
    base = f"http://127.0.0.1:{front}/"
    said = {"get": sha(run.run("curl", "-sSf", f"{base}?one")),
            "post": sha(run.run("curl", "-sSf", "--data-binary", f"@{body}", f"{base}?two"))}
    said["ab"] = ab_report(run.text("ab", "-q", "-k", "-n", 1000, "-c", 4, f"{base}?three"))
    said["after"] = sha(run.run("curl", "-sSf", f"{base}?four"))
    log = (run.directory / "fpm.log").read_text()
    said["errors"] = re.findall(r"(?:WARNING|ERROR|ALERT).*", log)
    return said


PROGRAMS = {redis_replica: 30 << 20, nginx_reload: programs.HALF, php_fpm: 100 << 20}

if __name__ == "__main__":
    programs.PROGRAMS = PROGRAMS
    sys.exit(programs.main())
