"""The programs that `clan bench paper` runs, and what they measured as rows of one form."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import items_others
import report
from report import Row

LIMIT_S = 900   # of one program


class Unavailable(Exception):
    """What a source needs is not here: the reason."""


class Failed(Exception):
    pass


class Listed(Exception):
    """The source would run now: all that --list asks."""


def end(process):
    """As by SIGTERM, and by force where that takes long."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()


@dataclass
class Run:
    """How the programs are run: `length` is smoke, quick or full."""
    clan: Path
    parts: Path             # lib/clan
    cores: list
    length: str
    directory: Path         # for what they write
    lists: bool = False     # nothing is measured
    skips: dict = field(default_factory=dict)   # (benchmark, variant): why there are no rows

    def program(self, name):
        """Beside clan or in lib/clan, if it is there."""
        places = (place / name for place in (self.clan.parent, self.parts))
        return next((place for place in places if place.exists()), None)

    def need(self, what, name):
        """A program() that is there."""
        found = self.program(name)
        if found is None:
            raise Unavailable(f"{what} is not built")
        return found

    def call(self, *words):
        """What it prints. It ends before this does: a script ends what it has started."""
        words = list(map(str, words))
        try:
            with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True) as process:
                try:
                    out, err = process.communicate(timeout=LIMIT_S)
                except BaseException:
                    end(process)
                    raise
        except subprocess.TimeoutExpired:
            raise Failed(f"{' '.join(words[:4])}: not done in {LIMIT_S} s") from None
        except OSError as error:
            raise Failed(f"{words[0]}: {error.strerror}") from None
        if process.returncode == 77:
            raise Unavailable(out.strip() or err.strip())
        if process.returncode != 0:
            said = (err.strip() or out.strip())[-300:]
            raise Failed(f"{' '.join(words[:4])}: exit code {process.returncode}: {said}")
        return out

    def begins(self):
        """What a source needs is there."""
        if self.lists:
            raise Listed

    def own(self, name):
        self.begins()
        directory = self.directory / name
        directory.mkdir(parents=True, exist_ok=True)
        return directory


# --- clan-bench -----------------------------------------------------------------------------------

SAMPLES = {"smoke": ["--smoke"], "quick": ["--samples", "3", "--sample-ms", "5"], "full": []}


def questions(run):
    """What this clan-bench answers."""
    runner = run.need("clan-bench", "clan-bench")
    listed = run.call(runner, "help").partition("Subcommands:")[2]
    return runner, re.findall(r"^  (\w+)\s", listed, re.M)


def question(name, without):
    """A source that is a question of clan-bench; `without` says why it may not be there."""
    def measure(run):
        runner, known = questions(run)
        if name not in known:
            raise Unavailable(without)
        out = run.own(name)
        run.call(runner, name, "--cores", ",".join(map(str, run.cores)), *SAMPLES[run.length],
                 "-o", out)
        data = json.loads((out / f"{name}.json").read_text())
        for what, why in data["skipped"].items():
            benchmark, _, variant = what.partition(", ")
            run.skips[benchmark, variant] = why
        return [row for row in report.rows_of(data) if row.value is not None]
    return measure


def cache_line(run):
    """A cache line there and back, in us."""
    return question("cacheline", "")(run)[0].value


# --- the scripts ----------------------------------------------------------------------------------

def script(run, name, switch, *words, read=report.rows_of):
    """Runs lib/clan/NAME/NAME.py and reads the rows of what it writes."""
    path = run.need(f"clan bench {name} ({switch})", f"{name}/{name}.py")
    out = run.own(name)
    run.call(sys.executable, "-B", path, "--clan", run.clan, "--cores",
             ",".join(map(str, run.cores)), *words, "-o", out)
    return read(json.loads((out / f"{name}.json").read_text()))


def ratios_of(data):
    """A row for each ratio of a line."""
    return [Row(line["text"], heading, 1, figures[0], "times", "", True, figures[1], figures[2])
            for item in data["items"].values() for line in item["lines"]
            for heading, figures in line["ratios"].items() if len(figures) > 2]


def apps(rows):
    def measure(run):
        no_smoke(run, "clan bench apps")
        length = ["--pairs", "2", "--seconds", "1"] if run.length == "quick" else []
        return script(run, "apps", "CLAN_PRELOAD", "--only", rows, *length, read=ratios_of)
    return measure


def mpi_ratios(run):
    no_smoke(run, "clan bench mpi")
    return script(run, "mpi", "CLAN_MPI", "--only", "messages,windows,crowd,beside",
                  *ROUNDS[run.length], read=ratios_of)


ROUNDS = {"smoke": ["--rounds", "1", "--ms", "1"], "quick": ["--quick"], "full": []}


def need_mpi():
    if shutil.which("mpirun") is None:
        raise Unavailable("Open MPI is not installed (Debian package openmpi-bin)")


def mpi(run):
    need_mpi()
    short = ["--most", "64"] if run.length == "smoke" else []
    rows = script(run, "mpi", "CLAN_MPI", "--only", "messages", *ROUNDS[run.length], *short)
    return [usual(row) for row in rows if row.x > 0]


def ofi(run):
    windows = [f"tagged {size}, 64 under way" for size in ("4 KB", "64 KB", "1 MB")]
    return list(map(usual, script(run, "ofi", "CLAN_LIBFABRIC", "--only",
                                  ",".join(["msg", *windows]), *ROUNDS[run.length])))


def usual(row):
    """There and back instead of one way; of many under way the bandwidth."""
    if row.benchmark in ("latency", "msg"):
        row.low, row.value = 2 * row.low, 2 * row.value
    else:
        row.value, row.unit, row.higher = row.x / row.value / 1000, "GB/s", True
        row.low = None
    return row


def orb(run):
    turns = {"smoke": ["--rounds", "1", "--ms", "20"], "quick": ["--quick"], "full": []}
    rows = script(run, "orb", "CLAN_OMNIORB", "--only", "null,many", *turns[run.length])
    for row in rows:
        if row.unit == "calls/s":
            row.value, row.unit = row.value / 1000, "k req/s"
    return rows


def rpc(run):
    rows = script(run, "rpc", "CLAN_SUNRPC", "--paper", *ROUNDS[run.length])
    probe = next(row.value for row in rows if row.benchmark == "cacheline")
    for row in rows:
        row.x, row.probe_us, row.trips = max(row.x, 1), probe, row.value / probe
    return rows


# --- examples and tools ---------------------------------------------------------------------------

def no_smoke(run, program):
    if run.length == "smoke":
        raise Unavailable(f"{program} has no short form: not part of a smoke run")


def nbody(run):
    program = run.need("the example mpi_nbody", "examples/mpi_nbody")
    need_mpi()
    short = [] if run.length == "full" else [f"--{run.length}"]
    run.begins()
    text = run.call(sys.executable, "-B", Path(__file__).resolve().parent / "speedup.py", *short,
                    run.clan, program)
    heading, *lines = text.splitlines()
    names = re.split(r"\s{2,}", heading.strip())[1:]  # behind "particles one rank us"
    return [Row("nbody", name, int(words[0]), float(times), "times", "particles", True)
            for words in map(str.split, lines) for name, times in zip(names, words[2:])]


def stream(run):
    program = run.need("the example vmmc_stream (CLAN_VMMC)", "examples/vmmc_stream")
    run.begins()
    run.call(program)   # checks what arrives; with --times nothing does
    rows = []
    for form, size, us, rate in re.findall(
            r"^(\S+) +(\d+) B +([\d.]+) us one way +([\d.]+) GB/s$",
            run.call(program, "--times", *["5"] * (run.length == "smoke")), re.M):
        rows += [Row("vmmc_stream_latency", form, int(size), 2 * float(us), "us"),
                 Row("vmmc_stream_bandwidth", form, int(size), float(rate), "GB/s", higher=True)]
    return rows


def misses(lines):
    return [Row("tlb_misses", line["trace"], line["entries"],
                sum(line[op]["non_compulsory_misses"] for op in ("r", "w", "recv")), "misses",
                "entries of the TLB") for line in lines]


def tlbsim(run):
    program = run.need("clan-tlbsim", "clan-tlbsim")
    run.begins()
    return misses(json.loads(run.call(program, "figure3", "--json")))


def traces(run):
    """Misses of real programs, whose sockets clan-tlbsim has recorded."""
    path = run.need("clan bench apps", "apps/traces.py")
    program, out = run.need("clan-tlbsim", "clan-tlbsim"), run.own("traces")
    short = ["--only", "redis", "--seconds", "1"] if run.length == "smoke" else []
    found = json.loads(run.call(sys.executable, "-B", path, "--clan", run.clan, "--tlbsim", program,
                                "--cores", ",".join(map(str, run.cores)), "--keep", out, *short))
    run.skips |= {("tlb_misses", name): why for name, why in found["skipped"].items()}
    return misses(found["results"])


def ip(run):
    """`clan ip` beside a bare forwarder and veth, between network namespaces."""
    if os.geteuid() != 0:
        raise Unavailable("needs root, to make network namespaces")
    short = {"smoke": ["--rounds", "1", "--pings", "2", "--seconds", "0.05"],
             "quick": ["--rounds", "1"], "full": []}
    rows = script(run, "ip", "CLAN_BENCH", "--only", "veth,bare,clan ip", *short[run.length])
    for row in rows:
        # The text is the way there, the variant the figure.
        row.benchmark, row.variant = row.variant, row.text
        if row.unit == "MB/s":
            row.benchmark, row.value, row.unit = "bandwidth", row.value / 1000, "GB/s"
    return rows


SOURCES = {
    **{name: question(name, "this clan-bench does not answer it") for name in (
        "bandwidth", "stream_latency", "ucx", "rdma_copy", "idle_endpoints", "offered_load")},
    "via": question("via", "plugins/via is not built (CLAN_VIA)"),
    "vmmc": question("vmmc", "plugins/vmmc is not built (CLAN_VMMC)"),
    "unet": question("unet", "plugins/unet is not built (CLAN_UNET)"),
    "mpi": mpi, "ofi": ofi, "orb": orb, "rpc": rpc, "nbody": nbody, "stream": stream,
    "tlbsim": tlbsim, "traces": traces, "ip": ip, "mpi_ratios": mpi_ratios,
    **{name: apps(rows) for name, rows in items_others.ROWS.items()},
}


def absent(run, name):
    """Why a source cannot run; empty if it can. `run` lists."""
    try:
        SOURCES[name](run)
    except (Listed, Unavailable) as why:
        return str(why)
    return ""


def measured(run, name):
    """The rows of a source. Where it has no probe of its own, those before and after it serve;
    none do if they differ."""
    before = cache_line(run)
    rows = SOURCES[name](run)
    after = cache_line(run)
    apart = max(before, after) > 1.2 * min(before, after)
    for row in rows:
        if row.unit == "us" and row.trips is None and row.probe_us is None and not apart:
            row.probe_us = (before + after) / 2
            row.trips = row.value / row.probe_us
    return rows
