"""How a row of `clan bench ofi` is measured: by pairs of our own program, one per provider and all
there at once, asked in turns; by Open MPI; by the programs of fabtests."""

import contextlib
import os
import re
import select
import subprocess
import time
from pathlib import Path

from processes import Failed, Skip, find


# of each provider at each point in a round: the cores of a virtual machine move apart any time
TURNS = 4


def figure_of(words):
    """(minimum, median, slices kept, dropped, kept though shared, CPU time), as slices.h prints
    it."""
    low, median, *slices, cpu = words
    return float(low), float(median), *map(int, slices), float(cpu)


def in_turns(names, number):
    return list(names) if number % 2 == 0 else list(reversed(names))


def remove_segments(pattern):
    """What shm leaves behind when it is killed."""
    for path in Path("/dev/shm").glob(pattern):
        with contextlib.suppress(OSError):
            path.unlink()


class Pair:
    """Two processes that measure one column, asked by lines. The first says that they are ready,
    and the id of the second."""

    def __init__(self, session, name, argv, environment=None):
        self.session, self.name, self.text = session, name, b""
        self.log = session.directory / f"pair-{len(session.started)}"
        with open(self.log, "wb") as errors:
            self.process = session.start(*argv, stderr=errors, stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, environment=environment)
        self.pids = [self.process.pid]
        try:
            first = self.line(30)
        except Failed:
            self.end()
            raise
        if not first.startswith("ready "):
            self.end()
            raise Skip(first)
        self.pids.append(int(first.split()[1]))

    def line(self, limit):
        deadline = time.monotonic() + limit
        out = self.process.stdout.fileno()
        while b"\n" not in self.text:
            left = deadline - time.monotonic()
            more = b""
            if left > 0 and select.select([out], [], [], left)[0]:
                more = os.read(out, 4096)
            if not more:
                ended = "was not ready in time" if left <= 0 else "ended"
                said = self.log.read_text(errors="replace").strip()[-200:]
                raise Failed(f"{self.name}: the load program {ended}. {said}")
            self.text += more
        line, _, self.text = self.text.partition(b"\n")
        return line.decode()

    def ask(self, kind, size, ms):
        try:
            self.process.stdin.write(f"{kind} {size} {ms}\n".encode())
            self.process.stdin.flush()
        except OSError:
            pass  # line() says why
        return figure_of(self.line(60).split())

    def end(self):
        """In good order, where it can."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self.process.stdout.close()
        self.session.end(self.process, 15)
        self.session.started = [e for e in self.session.started if e[0] is not self.process]
        for pid in self.pids:
            remove_segments(f"{pid}:*")


def open_pairs(row, providers, session, options, failed):
    found = {}
    for provider in providers:
        try:
            found[provider] = Pair(session, provider,
                                   [options.load, provider, row.name, *session.cores],
                                   options.environment)
        except Skip as skip:
            failed.setdefault(f"{row.name}, {provider}", str(skip))
        except Failed as reason:
            failed[f"{row.name}, {provider}"] = str(reason)
    return found


def ask_all(row, found, number, options, failed, asks):
    """{(kind, bytes): [{column: figure}, ...]}, one for each turn. `asks`: point -> all of (column,
    provider, kind)."""
    figures = {}
    for point in row.points:
        if point.once and number > 0:
            continue
        turns = figures.setdefault((point.kind, point.bytes), [])
        for turn in range(1 if point.once else TURNS):
            turns.append({})
            for column, provider, kind in in_turns(asks(point), number + turn):
                if provider not in found:
                    continue
                try:
                    turns[-1][column] = found[provider].ask(kind, point.bytes, options.ms)
                except Failed as reason:
                    failed[f"{point.text}, {provider}"] = str(reason)
                    found.pop(provider).end()
    return figures


def pairs(row, session, options, number, failed):
    found = open_pairs(row, in_turns(row.columns, number), session, options, failed)
    try:
        return ask_all(row, found, number, options, failed,
                       lambda p: [(c, c, p.kind) for c in row.columns])
    finally:
        for pair in found.values():
            pair.end()


def waits(row, session, options, number, failed):
    """Beside the wake-up by a queue that by an eventfd alone, of the same two processes."""
    providers = ["clan", "tcp;ofi_rxm"]
    found = open_pairs(row, in_turns(providers, number), session, options, failed)

    def asks(point):
        own = [(p, p, point.kind) for p in providers]
        return own if point.kind == "idle" else [("eventfd", "clan", "eventfd"), *own]

    try:
        return ask_all(row, found, number, options, failed, asks)
    finally:
        for pair in found.values():
            pair.end()


MPI = {
    "clan": "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include clan",
    "vader": "--mca pml ob1 --mca btl self,vader",
    "btl tcp": "--mca pml ob1 --mca btl self,tcp",
}


def add_of_mpi(figures, column, text):
    """What clan-mpi-load has printed: KIND BYTES and the figure, a line each."""
    for line in re.findall(r"^\S+ \d+ [\d.]+ [\d.]+ \d+ \d+ \d+ [\d.]+$", text, re.M):
        kind, size, *figure = line.split()
        figures.setdefault((kind, int(size)), [{}])[0][column] = figure_of(figure)


def mpi_round(row, session, options, number, failed, ms, words, ranks=2, limit=120):
    """A run of mpirun for each column, with these words of its own."""
    figures = {}
    kinds = [f"{kind}:{','.join(str(p.bytes) for p in row.points if p.kind == kind)}"
             for kind in dict.fromkeys(p.kind for p in row.points)]
    environment = {**options.environment, "TMPDIR": str(session.directory),
                   "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    for column in in_turns(words, number):
        try:
            text, _ = session.run(
                find("mpirun"), "-np", ranks, "--host", f"localhost:{ranks}", "--bind-to", "none",
                "-x", "FI_PROVIDER_PATH", *words[column], options.mpi_load, ms,
                ",".join(map(str, session.cores)), *kinds, limit=limit, environment=environment)
        except Failed as reason:
            failed[f"{row.name}, {column}"] = str(reason)
            continue
        add_of_mpi(figures, column, text)
    return figures


def mpi(row, session, options, number, failed):
    if not options.mpi_load.exists():
        raise Skip("built without MPI (Debian: libopenmpi-dev)")
    if "Open MPI" not in subprocess.run([find("mpirun"), "--version"], capture_output=True,
                                        text=True).stdout:
        raise Skip("mpirun is not Open MPI's")
    return mpi_round(row, session, options, number, failed, ms=TURNS * options.ms,
                     words={column: MPI[column].split() for column in row.columns})


def iterations(size):
    return 10_000 if size <= 16 << 10 else 2_000 if size <= 256 << 10 else 200


def fabtest(session, options, provider, kind, size):
    """Microseconds per transfer, of one run."""
    words = kind.split()
    program = options.fabtests / words[0]
    if not program.exists():
        raise Skip(f"{program} is not there")
    common = [program, *words[1:], "-p", provider, "-I", str(iterations(size))]
    if words[0] == "fi_rdm_atomic":
        pattern = r"^\S+_lat\s+(?:\S+\s+){5}([\d.]+)\s"
    else:
        common += ["-S", str(size)] + (["-e", "rdm"] if words[0] == "fi_rma_bw" else [])
        pattern = r"^\d\S*\s+(?:\S+\s+){4}([\d.]+)\s"
    port = session.port()
    nothing = subprocess.DEVNULL
    server = session.start(*common, "-B", port, "-s", "127.0.0.1", core=0, stdin=nothing,
                           stdout=nothing, stderr=nothing, environment=options.environment)
    try:
        time.sleep(0.3)  # it says nothing when it is there
        text, _ = session.run(*common, "-P", port, "127.0.0.1", core=1, limit=20,
                              environment=options.environment)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(5)
    finally:
        session.end(server, 15)
        session.started = [e for e in session.started if e[0] is not server]
        remove_segments(f"127.0.0.1:{port}")
    found = re.search(pattern, text, re.M)
    if not found:
        raise Failed(f"{words[0]}: no figure in {text[-200:]!r}")
    return float(found[1])


def fabtests(row, session, options, number, failed):
    figures = {}
    for point in row.points:
        at = {}
        figures[point.kind, point.bytes] = [at]
        for provider in in_turns(row.columns, number):
            for attempt in (1, 2, 3):  # a client that comes before its server fails
                try:
                    us = fabtest(session, options, provider, point.kind, point.bytes)
                    at[provider] = (us, us, 1, 0, 0, None)
                    break
                except Failed as reason:
                    if attempt == 3:
                        failed[f"{point.text}, {provider}"] = str(reason)
    return figures
