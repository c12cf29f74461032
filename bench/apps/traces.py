#!/usr/bin/env python3
"""What redis, nginx, PostgreSQL and iperf3 send and receive while their clients work, and what a
client of X does, recorded by clan-tlbsim and replayed by it: figure 3 of U-Net/MM with real
programs. `clan bench paper --only unet.programs` runs this.

    traces.py --clan CLAN --tlbsim CLAN-TLBSIM [--seconds N] [--keep DIR]
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import arguments
import programs
from processes import Failed, Session, Skip, descendants, find

CLIENTS = 50


class Recording(Session):
    """Serves each program under `clan-tlbsim record`, once `trace` names the file."""
    trace = tlbsim = None

    def serve(self, *argv, port, **more):
        under = [self.tlbsim, "record", "-o", self.trace, "--"] if self.trace else []
        return super().serve(*under, find(argv[0]), *argv[1:], port=port, **more)

    def finish(self, server):
        """Ends the server, so that its trace is written."""
        for pid in descendants(server.pid):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)
        server.process.wait(30)


def redis(session):
    server = programs.serve_redis(session, False)
    session.run("redis-benchmark", "-p", server.port, "-c", CLIENTS, "-n",
                int(5000 * session.seconds), "-r", 10000, "-d", 1024, "-t", "set,get")
    return server


def nginx(session):
    server = programs.serve_nginx(session, False)
    session.run("wrk", "-t1", f"-c{CLIENTS}", f"-d{session.seconds}s",
                f"http://127.0.0.1:{server.port}/1k")
    return server


def postgresql(session):
    trace, session.trace = session.trace, None
    at, user = programs.postgres_programs(), programs.postgres_user()
    programs.make_cluster(session, at, user, session.directory / "model")
    session.trace = trace
    server = programs.serve_postgres(session, False)
    session.run(at / "pgbench", "-h", "127.0.0.1", "-p", server.port, "-U", "postgres", "-n", "-c",
                8, "-T", session.seconds, "postgres")
    return server


def iperf3(session):
    server = programs.serve_iperf3(session, False)
    session.run("iperf3", "-c", "127.0.0.1", "-p", server.port, "-t", session.seconds, "-P", 4,
                "--bidir")
    return server


def x11perf(session):
    number, to = os.pipe()
    with open(number, encoding="ascii") as display:
        session.start("Xvfb", "-displayfd", to, "-nolisten", "tcp", stdout=subprocess.DEVNULL,
                      stderr=subprocess.DEVNULL, pass_fds=(to,))
        os.close(to)
        name = f":{display.readline().strip()}"
    session.run(session.tlbsim, "record", "-o", session.trace, "--", find("x11perf"), "-display",
                name, "-repeat", 1, "-time", session.seconds, "-sync", "-rect100", "-putimage100",
                "-getimage100", "-ftext")


def record(name, options, to):
    with Recording(options.clan, options.cores, options.seconds) as session:
        session.directory.chmod(0o777)  # PostgreSQL's user writes there
        session.tlbsim, session.trace = options.tlbsim, session.directory / name
        server = PROGRAMS[name](session)
        if server is not None:
            session.finish(server)
        shutil.copy(session.trace, to / name)


PROGRAMS = {"redis": redis, "nginx": nginx, "PostgreSQL": postgresql, "iperf3": iperf3,
            "x11perf": x11perf}


def main():
    arguments.end_as_by_interrupt()
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--clan", type=Path, required=True)
    parser.add_argument("--tlbsim", type=Path, required=True)
    parser.add_argument("--cores", type=arguments.cores, default=arguments.first_cores())
    parser.add_argument("--seconds", type=arguments.positive, default=2, help="of each client")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PROGRAMS))
    parser.add_argument("--keep", type=Path, required=True, help="directory for the traces")
    options = parser.parse_args()
    options.keep.mkdir(parents=True, exist_ok=True)
    results, skipped = [], {}
    for name in options.only:
        try:
            record(name, options, options.keep)
        except Skip as why:
            skipped[name] = str(why)
            continue
        except Failed as why:
            sys.exit(f"{name}: {why}")
        text = subprocess.run([options.tlbsim, "replay", "--json", options.keep / name], check=True,
                              stdout=subprocess.PIPE, text=True).stdout
        results += [{**line, "trace": name} for line in json.loads(text)]
    if not results:
        print("; ".join(skipped.values()))
        sys.exit(77)
    skipped |= {name: "not chosen" for name in PROGRAMS if name not in options.only}
    print(json.dumps({"results": results, "skipped": skipped}, indent=1))


if __name__ == "__main__":
    main()
