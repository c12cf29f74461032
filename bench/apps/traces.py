#!/usr/bin/env python3
"""What redis, nginx, PostgreSQL and iperf3 send and receive while their clients work, recorded by
clan-tlbsim and replayed by it: figure 3 of U-Net/MM with real programs. `clan bench paper --only
unet.programs` runs this.

    traces.py --clan CLAN --tlbsim CLAN-TLBSIM [--seconds N] [--keep DIR]
"""

import argparse
import contextlib
import json
import os
import re
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
        """Ends the server, and waits until its trace is written. How many calls are not in it."""
        for pid in descendants(server.pid):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().strip() != "strace":
                    os.kill(pid, signal.SIGTERM)
        server.process.wait(30)
        said = "".join(log.read_text(errors="replace") for log in self.directory.glob("log-*"))
        left_out = re.findall(r"clan-tlbsim: (\d+) calls with several buffers", said)
        return int(left_out[-1]) if left_out else 0


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


def record(name, options, to):
    """Calls that the trace of this program lacks."""
    with Recording(options.clan, options.cores, options.seconds) as session:
        session.directory.chmod(0o777)  # PostgreSQL's user writes there
        session.tlbsim, session.trace = options.tlbsim, session.directory / name
        left_out = session.finish(PROGRAMS[name](session))
        shutil.copy(session.trace, to / name)
        return left_out


PROGRAMS = {"redis": redis, "nginx": nginx, "PostgreSQL": postgresql, "iperf3": iperf3}


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
            find("strace")
            left_out = record(name, options, options.keep)
        except Skip as why:
            skipped[name] = str(why)
            continue
        except Failed as why:
            sys.exit(f"{name}: {why}")
        text = subprocess.run([options.tlbsim, "replay", "--json", options.keep / name], check=True,
                              stdout=subprocess.PIPE, text=True).stdout
        results += [{**line, "trace": name, "left_out": left_out} for line in json.loads(text)]
    if not results:
        print("; ".join(skipped.values()))
        sys.exit(77)
    print(json.dumps({"results": results, "skipped": skipped}, indent=1))


if __name__ == "__main__":
    main()
