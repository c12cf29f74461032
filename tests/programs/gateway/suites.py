#!/usr/bin/env python3
"""The clients and servers of tests/interpose/programs with a gateway in between: what each
client reports must be as in the stock run, without a gateway.

    suites.py CLAN NATIVE [PROGRAM...]

The servers run under `clan run`, the clients without it, as clients of another host do. A program
that is not installed is a skip.
"""
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "interpose/programs"))
import programs  # noqa: E402
from programs import SKIPPED, Skip, Wrong, require, sha  # noqa: E402

CLAN = sys.argv[1]


class Behind(programs.Run):
    """A gateway before each server: clients get its port where they name the server's."""

    def __init__(self):
        super().__init__(clan=CLAN, server=True)
        self.ports = {}  # of servers, and of the gateways before them

    def serve(self, *argv, port=None, role="server", **more):
        process = super().serve(*argv, port=port, role=role, **more)
        if port is not None and not more.get("once"):
            before = self.ports[port] = programs.free_port()
            super().serve(CLAN, "gateway", "--listen", f"127.0.0.1:{before}", "--to",
                          f"127.0.0.1:{port}", port=before, role="nobody", out=f"gateway-{port}")
        return process

    def popen(self, argv, role, **more):
        if role == "client":
            argv = [re.sub(r"\d+", lambda n: str(self.ports.get(int(n[0]), n[0])), str(word))
                    for word in argv]
        return super().popen(argv, role, **more)

    def passed(self):
        """Connections that the gateways have carried to their end."""
        return sum(line.startswith("client=") and " out=0 " not in line
                   for log in self.directory.glob("gateway-*")
                   for line in log.read_text().splitlines())


def http(run):
    """HTTP/1.0, an upload in chunks, and many streams of HTTP/2 on each connection."""
    _, upstream, hashes = programs.start_web(run)
    base, port = f"http://127.0.0.1:{upstream}", programs.free_port()
    programs.start_nginx(run, "http2", port, f"""server {{ listen 127.0.0.1:{port} http2;
        root {run.directory}/www; }}""")
    body = programs.random_bytes(9, 3 << 20)
    said = {"1.0": sha(run.run("curl", "-sSf", "-0", f"{base}/5m")) == hashes["5m"],
            "chunked": run.text("curl", "-sSf", "-T", "-", "-w", "%{http_code}", f"{base}/put/up",
                                data=body)}
    said["arrived"] = (run.directory / "www/put/up").read_bytes() == body
    for file in ("1k", "64k"):
        text = run.text("h2load", "-n", 3000, "-c", 10, "-m", 20, f"http://127.0.0.1:{port}/{file}")
        said[f"h2load {file}"] = re.findall(r"^(?:requests|status codes):.*", text, re.MULTILINE)
    return said


SUITES = (programs.redis, programs.memcached, programs.nginx, programs.haproxy, programs.postgres,
          programs.openssl, programs.ssh, http)


def test(program):
    with programs.Run() as run:
        stock = program(run)
    programs.all_true(stock)
    with Behind() as run:
        behind = program(run)
        run.until("a connection by the gateway", run.passed)
        passed = run.passed()
    different = programs.compare(stock, behind)
    require(not different, "; ".join(different))
    return passed


def main():
    chosen = [suite for suite in SUITES if suite.__name__ in sys.argv[3:] or not sys.argv[3:]]
    bad = skipped = 0
    for program in chosen:
        begin = time.monotonic()
        try:
            said = f"as stock, {test(program)} connections"
        except Skip as skip:
            said = f"skipped: {skip}"
            skipped += 1
        except Wrong as wrong:
            said = f"WRONG: {wrong}"
            bad += 1
        print(f"{program.__name__} {time.monotonic() - begin:.0f} s: {said}", flush=True)
    return 1 if bad else SKIPPED if skipped == len(chosen) else 0


if __name__ == "__main__":
    sys.exit(main())
