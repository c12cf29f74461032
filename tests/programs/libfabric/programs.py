#!/usr/bin/env python3
"""Programs that nobody here wrote, and MPI programs of our own, over the libfabric provider: right
results, and carried by clan.

    programs.py --clan CLAN --mpi DIRECTORY NAME...   DIRECTORY: that of mpi-collectives and others
    programs.py --list

Everything runs on this host, in a private directory, on free ports; but two_hosts.py, in network
namespaces. That clan carried an MPI job is
seen from two sides: what each rank says of its choice, where Open MPI lets it, and /proc/PID/maps
of ranks, which have the provider and its segments mapped. (`clan run --with ofi` leaves no other
transport to take: see `absent`.) Exit code 1 when something is wrong, 77 when what was asked for is
not installed; the packages are CLAN_TEST_PACKAGES in cmake/packages.sh.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "support"))
import program_runner as runner  # noqa: E402, needs the path
from program_runner import Skip, Wrong, descendants, require  # noqa: E402
sys.path.insert(0, str(HERE))
import two_hosts as far  # noqa: E402, needs the path

PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
def find(program, package):
    path = shutil.which(program)
    if path is None:
        raise Skip(f"{program} is not installed (Debian: {package})")
    return path


WATCHED = re.compile(r"libclan-(?:fi|preload)\.so|memfd:clan-[a-z-]+|(?<=/)osc_[a-z0-9]+(?=\.)")


class Watch(threading.Thread):
    """Which of our libraries and segments the processes below this one have mapped, while it
    runs."""

    def __init__(self):
        super().__init__(daemon=True)
        self.seen = {}  # pid: names
        self.over = threading.Event()

    def run(self):
        begin = time.monotonic()
        # Often at first: some are short. Not for long: looking takes the processor from the
        # processes that it watches.
        while not self.over.wait(0.02 if time.monotonic() < begin + 2 else 0.2):
            for pid in descendants(os.getpid()):
                with contextlib.suppress(OSError):
                    maps = Path(f"/proc/{pid}/maps").read_text()
                    names = set(re.findall(WATCHED, maps))
                    self.seen.setdefault(pid, set()).update(names)

    def stop(self):
        self.over.set()
        self.join()

    def count(self, *names):
        return sum(1 for mapped in self.seen.values() if mapped.issuperset(names))


class Test:
    """A private directory, and what it takes to run programs in it."""

    def __init__(self, clan, mpi, directory):
        self.clan, self.mpi, self.directory = clan, mpi, Path(directory)
        self.started = []
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("CLAN_", "FI_", "OMPI_")) and name != "LD_PRELOAD"
        }
        self.environment |= {"TMPDIR": str(directory), "LC_ALL": "C"}
        if os.geteuid() == 0:
            self.environment |= {
                "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"
            }
        self.providers = str(Path(clan).resolve().parent.parent / "lib" / "libfabric")

    def start(self, *words, env=None):
        process = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   errors="replace", cwd=self.directory,
                                   env={**self.environment, **(env or {})})
        self.started.append(process)
        return process

    def end(self):
        """Whatever is left of what was started, with what that has started."""
        for process in self.started:
            if process.poll() is None:
                for pid in [*descendants(process.pid), process.pid]:
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                process.wait()

    def text(self, *words, env=None, seconds=300, code=0):
        """What it says. A Wrong where it does not end in time, or with another exit code (None:
        any).

        The time is for hangs only: eight ranks beside other work take ten times as long as alone.
        """
        process = self.start(*words, env=env)
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.end()
            said, _ = process.communicate()
            raise Wrong(
                f"{' '.join(map(str, words))}: no end after {seconds} s: {said[-600:]}") from None
        require(code is None or process.returncode == code,
                f"{' '.join(map(str, words))}: exit code {process.returncode}: {said[-1500:]}")
        return said

    def mpirun(self, ranks, *words, how="cm", faces="ofi", seconds=300):
        """An MPI program by `clan run --with FACES mpirun`; Wrong if clan has not carried it."""
        mpirun = find_mpirun()
        options = ["--oversubscribe", "-n", ranks, "--mca", "opal_common_ofi_verbose", 100,
                   *HOW[how]]
        watch = Watch()
        watch.start()
        try:
            said = self.text(self.clan, "run", "--with", faces, mpirun, *options, *words,
                             seconds=seconds)
        finally:
            watch.stop()
        # Not all of them: a rank of a short program may be over before anybody has looked.
        domains = watch.count("libclan-fi.so", "memfd:clan-nic-tables")
        require(domains > 0, f"no domain of clan's: {watch.seen}")
        chosen = re.findall(r"mtl:ofi:prov: (\S+)", said)
        require(chosen == ["clan"] * (ranks if how == "cm" else 0), f"Open MPI has chosen {chosen}")
        return said, watch

    def own(self, name, ranks, *words, **how):
        """A program of tests/programs/libfabric/mpi."""
        find_mpirun()
        program = Path(self.mpi, f"mpi-{name}")
        if not program.exists():
            raise Skip("the MPI programs were not built (Debian: libopenmpi-dev)")
        said, watch = self.mpirun(ranks, program, *words, **how)
        # What a component of Open MPI's for windows keeps in memory of the host is named after it.
        # accumulate is over too soon to be seen.
        windows = {name for names in watch.seen.values() for name in names
                   if name.startswith("osc_")}
        require(windows <= {"osc_rdma"} and (windows or name != "one_sided"),
                f"{name} had windows of {windows}: {watch.seen}")
        require(re.search(rf"^{name}: PASS, \d+ checks on {ranks} ranks$", said, re.M),
                said[-1500:])
        print(re.search(rf"^{name}: PASS.*", said, re.M)[0], how.get("how", "cm"), *words)


# What `clan run` chooses is overruled by mpirun's options.
HOW = {
    "cm": [],
    "btl": ["--mca", "pml", "ob1", "--mca", "btl_ofi_mode", 2, "--mca", "osc", "rdma"],
}


def find_mpirun():
    mpirun = find("mpirun", "openmpi-bin")
    said = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout
    if "Open MPI" not in said:
        raise Skip("mpirun is not Open MPI's")
    return mpirun


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


# --- libfabric's own programs ---------------------------------------------------------------------

def info(test):
    """fi_info lists the provider in all its forms, with its variables."""
    fi_info = find("fi_info", "libfabric-bin")
    path = {"FI_PROVIDER_PATH": test.providers}
    said = test.text(fi_info, "-p", "clan", "-v", env=path)
    for words in ("FI_EP_RDM", "FI_EP_MSG", "FI_RMA", "FI_ATOMIC", "FI_TAGGED", "prov_name: clan"):
        require(words in said, f"{words} is not in: {said[:3000]}")
    require("clan" in test.text(fi_info, "-l", env=path), "fi_info -l")
    require("FI_CLAN_RING_BYTES" in test.text(fi_info, "-e", env=path).upper(), "fi_info -e")
    first = test.text(test.clan, "run", "--with", "ofi", fi_info).splitlines()[0]
    require(first == "provider: clan", f"under clan run --with ofi: {first}")


def unchanged(test):
    """Programs that do not ask for clan get what they got before, wherever libfabric can find
    it."""
    fi_info = find("fi_info", "libfabric-bin")
    without = test.text(fi_info)
    with_path = test.text(fi_info, env={"FI_PROVIDER_PATH": test.providers})
    require(with_path.startswith(without), f"the list is another one: {without} --- {with_path}")
    rest = re.findall(r"^provider: (.*)$", with_path[len(without):], re.M)
    require(rest and set(rest) == {"clan"}, f"behind what was there: {rest}")

    program = Path(test.mpi, "mpi-collectives")
    if shutil.which("mpirun") is None or not program.exists():
        return
    said = []
    for path in ({}, {"FI_PROVIDER_PATH": test.providers}):
        watch = Watch()
        watch.start()
        try:
            text = test.text(find_mpirun(), "--oversubscribe", "-n", 2, "--mca", "pml_base_verbose",
                             10, program, 1000, env=path)
        finally:
            watch.stop()
        said.append(
            sorted(set(re.findall(r"selected (\S+) best priority|component (\S+) selected", text))))
        require("collectives: PASS" in text and said[-1], text[-800:])
        require(
            watch.count("memfd:clan-nic-tables") == 0, f"mpirun took clan unasked: {watch.seen}")
    require(said[0] == said[1], f"mpirun chooses {said[0]}, and with the path set {said[1]}")


def pingpong_of(test, kind, *prefix, provider="clan", size="all"):
    """fi_pingpong with checked contents, both ends started behind `prefix`; what both ends said."""
    fi_pingpong = find("fi_pingpong", "libfabric-bin")
    port = free_port()
    common = ["-p", provider, "-e", kind, "-I", 20 if size == "all" else 3000, "-S", size, "-c"]
    watch = Watch()
    watch.start()
    server = test.start(*prefix, fi_pingpong, *common, "-B", port)
    try:
        for attempt in range(50):  # until the server listens
            said = test.text(*prefix, fi_pingpong, *common, "-P", port, "127.0.0.1", code=None,
                             seconds=60)
            if "refused" not in said or attempt == 49 or server.poll() is not None:
                break
            threading.Event().wait(0.1)
        served, _ = server.communicate(timeout=30)
    finally:
        watch.stop()
    sizes = re.findall(r"^(\d+[km]?)\s+\d", said, re.M)
    wanted = 10 if size == "all" else 1
    require(server.returncode == 0 and len(sizes) >= wanted,
            f"{kind}: {said[-800:]} --- {served[-800:]}")
    return watch, said + served


def offered(test):
    said = test.text(find("fi_info", "libfabric-bin"), "-p", "clan",
                     env={"FI_PROVIDER_PATH": test.providers})
    return sorted(set(kind.lower() for kind in re.findall(r"type: FI_EP_(\w+)", said)))


def pingpong(test):
    kinds = offered(test)
    require({"rdm", "msg"} <= set(kinds), f"fi_info offers {kinds}")
    for kind in kinds:
        watch, _ = pingpong_of(test, kind, test.clan, "run", "--with", "ofi")
        # -p clan leaves it no choice; where it is quick the watch sees all that one end maps.
        require(watch.count("libclan-fi.so", "memfd:clan-nic-tables") >= 1, f"{kind}: {watch.seen}")
        print(f"fi_pingpong -e {kind}")
    for level, lines in (("info", 2), ("warn", 0)):
        _, said = pingpong_of(test, "rdm", test.clan, "run", "--with", "ofi", "--log", level,
                              size=65536)
        linked = re.findall(r"clan\[\d+\] info: linked with process \d+", said)
        require(len(linked) == lines, f"--log {level}: {said[:800]}")
        print(f"fi_pingpong --log {level}: {len(linked)} lines of links")


def comparison(test):
    """examples/ofi_comparison.py prints its table."""
    find("fi_pingpong", "libfabric-bin")
    said = test.text(HERE.parents[2] / "examples" / "ofi_comparison.py", test.clan, "1")
    row = r"^ +\d+ +[\d.]+ +[\d.]+ +[\d.]+(?:  busy: .*)?$"
    require(len(re.findall(row, said, re.M)) == 3, said)


# --- MPI ------------------------------------------------------------------------------------------

def collectives(test):
    for ranks in (2, 4):
        test.own("collectives", ranks)
    test.own("collectives", 8, 100_000)


def point_to_point(test):
    for ranks in (2, 4, 8):
        test.own("point_to_point", ranks)
    test.own("point_to_point", 4, "threads")


def one_sided(test):
    for ranks in (2, 4, 8):
        test.own("one_sided", ranks)
        test.own("accumulate", ranks)


def btl(test):
    """Everything by the byte transfer layer, which has matching of its own above."""
    test.own("collectives", 4, how="btl")
    test.own("collectives", 8, 16384, how="btl")
    test.own("point_to_point", 2, "ob1", how="btl")
    test.own("one_sided", 4, how="btl")


def quick(test):
    """One size of each, for the impatient."""
    test.own("collectives", 4, 16384)
    test.own("point_to_point", 2)
    test.own("one_sided", 2)


def absent(test):
    """What `clan run --with ofi` leaves to take is clan and nothing else: without it a job ends, in
    words."""
    mpirun = find_mpirun()
    program = Path(test.mpi, "mpi-collectives")
    if not program.exists():
        raise Skip("the MPI programs were not built (Debian: libopenmpi-dev)")
    # Open MPI loses one of two messages now and then ("would read past end of buffer").
    for how, any_of in (("cm", ["PML cm cannot be selected"]),
                        ("btl", ["unable to reach each other", "process is unreachable"])):
        said = test.text(test.clan, "run", "--with", "ofi", "env", "FI_PROVIDER=none", mpirun,
                         "--oversubscribe", "-n", 2, *HOW[how], program, 1000, code=None)
        require("PASS" not in said and any(words in said for words in any_of),
                f"{how}: {said[-800:]}")


def netpipe(test):
    program = find("NPopenmpi", "netpipe-openmpi")
    for words in ([], ["-a"], ["-S"], ["-z"]):
        said, _ = test.mpirun(2, program, "-i", "-n", 20, "-u", 1_000_000, "-o", "np.out", *words)
        sizes, passed = len(re.findall(r"\d+ bytes +\d+ times",
                                       said)), said.count("Integrity check passed")
        require(sizes > 30 and passed >= sizes,
                f"{words}: {passed} of {sizes} passed: {said[-500:]}")
        print(f"NPopenmpi {words}: {passed} checks passed")


HPCC = """HPLinpack benchmark input file
Made for a test
HPL.out      output file name (if any)
8            device out (6=stdout,7=stderr,file)
1            # of problems sizes (N)
400          Ns
1            # of NBs
40           NBs
0            PMAP process mapping (0=Row-,1=Column-major)
1            # of process grids (P x Q)
2            Ps
2            Qs
16.0         threshold
1            # of panel fact
2            PFACTs (0=left, 1=Crout, 2=Right)
1            # of recursive stopping criterium
4            NBMINs (>= 1)
1            # of panels in recursion
2            NDIVs
1            # of recursive panel fact.
1            RFACTs (0=left, 1=Crout, 2=Right)
1            # of broadcast
1            BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)
1            # of lookahead depth
1            DEPTHs (>=0)
2            SWAP (0=bin-exch,1=long,2=mix)
64           swapping threshold
0            L1 in (0=transposed,1=no-transposed) form
0            U  in (0=transposed,1=no-transposed) form
1            Equilibration (0=no,1=yes)
8            memory alignment in double (> 0)
0            Number of additional problem sizes for PTRANS
0            values of N
0            number of additional blocking sizes for PTRANS
0            values of NB
"""


def hpcc(test):
    """HPL, PTRANS, STREAM, RandomAccess, FFT and b_eff: solved, and errors within what the programs
    allow."""
    program = find("hpcc", "hpcc")
    (test.directory / "hpccinf.txt").write_text(HPCC)
    test.mpirun(4, program)
    said = (test.directory / "hpccoutf.txt").read_text()
    require(re.search(r"^Success=1$", said, re.M), said[-1500:])
    failed = [line for line in said.splitlines() if "FAILED" in line]
    require(not failed and said.count("PASSED") >= 2, failed)
    for name in ("StarRandomAccess", "MPIRandomAccess"):
        require(
            float(re.search(rf"^{name}_ErrorsFraction=(\S+)|$", said, re.M)[1] or 0) <= 0.01, name)
    print(*re.findall(r"^(?:HPL_Tflops|PTRANS_GBs|MPIFFT_Gflops|AvgPingPongLatency_usec)=.*$", said,
                      re.M))


def mpi4py(test):
    probe = subprocess.run([PYTHON, "-c", "import mpi4py"], capture_output=True, check=False)
    if probe.returncode != 0:
        raise Skip("mpi4py is not installed (Debian: python3-mpi4py)")
    for ranks in (2, 4):
        said, _ = test.mpirun(ranks, PYTHON, "-B", HERE / "mpi4py_checks.py")
        require(f"mpi4py: PASS on {ranks} ranks" in said, said[-1500:])


def both_faces(test):
    """The provider and the interposer in one process: messages of MPI by one, TCP by the other."""
    said, watch = test.mpirun(2, PYTHON, "-B", HERE / "mpi4py_checks.py", "tcp", faces="tcp,ofi")
    require("mpi4py: PASS on 2 ranks" in said, said[-1500:])
    both = watch.count("libclan-fi.so", "libclan-preload.so", "memfd:clan-pipe",
                       "memfd:clan-nic-tables")
    require(both >= 2, f"{both} ranks had both: {watch.seen}")
    test.own("point_to_point", 2, faces="tcp,ofi")
    for kind in ("rdm", "msg"):
        watch, _ = pingpong_of(test, kind, test.clan, "run", "--with", "tcp,ofi", size=65536)
        require(
            watch.count("libclan-fi.so", "libclan-preload.so", "memfd:clan-nic-tables") >= 2,
            watch.seen)
    # libfabric's own provider for TCP, with its connections moved.
    pingpong_of(test, "msg", test.clan, "run", provider="tcp", size=65536)


def two_hosts(test):
    """Peers on another host: network namespaces, with a key and without; a peer that dies; MPI."""
    if not far.hosts.possible():
        raise Skip("no network namespaces can be made here")
    far.run(test, require, find, find_mpirun, Path(test.mpi, "ofi-far-peer"))


def three_hosts(test):
    """MPI ranks on three hosts: network namespaces joined by a bridge."""
    if not far.three.possible():
        raise Skip("no network namespaces can be joined by a bridge here")
    far.run_three(test, require, find_mpirun)


PROGRAMS = {
    f.__name__: f
    for f in (info, unchanged, pingpong, quick, absent, comparison, collectives, point_to_point,
              one_sided, btl, netpipe, hpcc, mpi4py, both_faces, two_hosts, three_hosts)
}


def main():
    def make_test(options, directory):
        return Test(os.path.abspath(options.clan), os.path.abspath(options.mpi), directory)
    return runner.main(__doc__, PROGRAMS, "clan-ofi-", make_test, {"--clan": None, "--mpi": "."})


if __name__ == "__main__":
    sys.exit(main())
