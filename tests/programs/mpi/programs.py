#!/usr/bin/env python3
"""MPI programs over mca_btl_clan.so under an unchanged mpirun: right results, and carried by clan.

    programs.py --clan CLAN --component MCA_BTL_CLAN.SO --mpi DIRECTORY NAME...
                               DIRECTORY: where mpi-shapes is
    programs.py --list

That clan carried a job is what each rank says at its end (btl_clan_verbose): how many records it
has sent to which rank. Exit code 1 when something is wrong, 77 when what was asked for is not
installed.
"""

import contextlib
import importlib.util
import json
import mmap
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
_spec = importlib.util.spec_from_file_location("ofi_programs",
                                               HERE.parent / "libfabric" / "programs.py")
ofi = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(ofi)
sys.path.insert(0, str(HERE.parents[1] / "hosts/udp"))
import hosts  # noqa: E402
from beside import computations  # noqa: E402

Skip, Wrong, require, find = ofi.Skip, ofi.Wrong, ofi.require, ofi.find

CLAN = ["--mca", "btl", "clan,self"]
SUMS = (r"btl clan: to rank (\d+): (\d+) records, (\d+) bytes; (\d+) gets, \d+ bytes; "
        r"(\d+) puts, \d+ bytes; (\d+) atomics")
SAYS = r"\[[^\]\s]*:(\d+)\] "  # Open MPI puts the process before each line


class Test(ofi.Test):
    component = ""

    def job(self, ranks, *words, options=(), seconds=300, code=0, said_by=None):
        """`clan run --with mpi mpirun`; what it says. Wrong if fewer ranks than `said_by` (all)
        have sent by clan."""
        said = self.text(self.clan, "run", "--with", "mpi", ofi.find_mpirun(), "--oversubscribe",
                         "-n", ranks, "--mca", "btl_clan_verbose", 1, *options, *words,
                         seconds=seconds, code=code)
        sums = [[int(n) for n in found] for found in re.findall(SAYS + SUMS, said)]
        used = {
            process
            for process, _, records, _, gets, puts, atomics in sums
            if records + gets + puts + atomics > 0
        }
        wanted = ranks if said_by is None else said_by
        require(
            len(used) >= wanted,
            f"{len(used)} ranks have used clan, {wanted} wanted: {said[-1500:]}")
        return said

    def own(self, name, ranks, *words, options=CLAN, seconds=300):
        program = Path(self.mpi, f"mpi-{name}")
        if not program.exists():
            raise Skip("the MPI programs were not built (Debian: libopenmpi-dev)")
        said = self.job(ranks, program, *words, options=["--mca", "osc", "rdma,sm", *options],
                        seconds=seconds)
        passed = re.search(rf"{name}: PASS, \d+ checks on {ranks} ranks", said)
        require(passed, said[-1500:])
        left = [name for name in os.listdir("/dev/shm") if "clan" in name]
        require(not left, f"left in /dev/shm: {left}")
        print(passed[0], *words)
        return said


def quick(test):
    """One of each, for the impatient."""
    test.own("collectives", 4, 16384)
    test.own("point_to_point", 2, "ob1")
    test.own("one_sided", 2)


def collectives(test):
    for ranks in (2, 3, 4):
        test.own("collectives", ranks)
    test.own("collectives", 8, 100_000)


def point_to_point(test):
    for ranks in (2, 4, 8):
        test.own("point_to_point", ranks, "ob1")
    for ranks in (2, 4):
        test.own("point_to_point", ranks, "threads")


def one_sided(test):
    for ranks in (2, 4, 8):
        test.own("one_sided", ranks)


def shapes(test):
    for ranks in (2, 3, 8):
        said = test.own("shapes", ranks)
        shared = len(
            set(re.findall(SAYS + "btl clan: [0-9]+ bytes that MPI has allocated are shared",
                           said)))
        require(shared == ranks, f"{shared} ranks have shared what MPI has allocated")


def growing(test):
    """Open MPI gives a transport the registration of another region while a dynamic window
    grows."""
    for ranks in (2, 4):
        test.own("growing", ranks)


def pieces(test):
    """More small pieces in one dynamic window than Open MPI has places."""
    for ranks in (2, 4):
        test.own("pieces", ranks)


def spawn(test):
    """Ranks of jobs that meet at run time reach each other by clan, which vader cannot."""
    program = Path(test.mpi, "mpi-spawn")
    if not program.exists():
        raise Skip("the MPI programs were not built (Debian: libopenmpi-dev)")
    said = past_pmix(lambda: test.job(2, program, options=CLAN))
    require(re.search(r"spawn: PASS, \d+ checks on 2 ranks", said), said[-1500:])
    jobs = set(re.findall(r"\(job ([0-9a-f]+)\) by shared memory", said))
    require(len(jobs) == 3, f"ranks of {len(jobs)} jobs have been met: {said[-1500:]}")
    past_pmix(lambda: test.own("spawn", 1, "in_turn"))
    # Here mpirun goes on though one is killed, also one that was stuck.
    past_pmix(lambda: test.own("spawn", 1, "killed", options=[*CLAN, "--enable-recovery"],
                               seconds=90))


class StuckInPmix(threading.Thread):
    """Kills spawned processes that have not loaded their transports in half a minute. Debian's PMIx
    loses a wake-up in PMIx_Init() now and then where jobs spawn jobs, over any transport."""

    def __init__(self):
        super().__init__(daemon=True)
        self.over, self.killed = threading.Event(), 0

    def run(self):
        since = {}
        while not self.over.wait(1):
            now = time.monotonic()
            for pid in ofi.descendants(os.getpid()):
                with contextlib.suppress(OSError):
                    program = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
                    maps = Path(f"/proc/{pid}/maps").read_text()
                    if b"mpi-spawn" not in program or "mca_btl_clan.so" in maps:
                        since.pop(pid, None)
                    elif now > since.setdefault(pid, now) + 30:
                        os.kill(pid, signal.SIGKILL)
                        self.killed += 1


def past_pmix(run):
    """Up to seven times again where it has been stuck there: beside other work that is often."""
    left = 7
    while True:
        watch = StuckInPmix()
        watch.start()
        try:
            return run()
        except Wrong:
            if watch.killed == 0 or left == 0:
                raise
            left -= 1
            print(f"{watch.killed} processes were stuck in PMIx_Init()")
        finally:
            watch.over.set()
            watch.join()


def procs(test):
    """Ranks that are named twice, one by one, let go of twice, and named again."""
    for ranks in (2, 4):
        said = test.own("procs", ranks)
        met = len(re.findall(r"rank [0-9]+ \(job [0-9a-f]+\) by shared memory", said))
        require(met == 2 * ranks * (ranks - 1), f"ranks have met {met} times: {said[-1500:]}")


def crowd(test):
    """Eight ranks on whatever processors there are, with small channels: much waits for room."""
    options = [*CLAN, "--mca", "btl_clan_channel_bytes", 65536, "--mca", "mpi_yield_when_idle", 1]
    test.own("point_to_point", 8, "ob1", options=options)
    test.own("shapes", 4, options=options)


def restricted(test):
    """Without process_vm_readv, as in a container: messages by the channel, windows by the peer's
    driver thread."""
    options = [*CLAN, "--mca", "btl_clan_direct_copy", "false"]
    # `mapped`: gets of windows on memory of MPI_Alloc_mem, which is mapped (40 rounds of each
    # rank).
    for name, ranks, words, mapped in (("collectives", 4, (100_000, ), 0),
                                       ("point_to_point", 2, ("ob1", ), 0), ("shapes", 2, (), 80)):
        said = test.own(name, ranks, *words, options=options)
        fetched = sum(int(gets) for _, _, _, gets, _, _ in re.findall(SUMS, said))
        require(fetched == mapped, f"{fetched - mapped} messages have been fetched all the same")
    test.own("one_sided", 2, options=options)


def namespaces(test):
    """Each rank in namespaces of its own, where none may copy from the other: of processes, then of
    users. Windows are left out: Open MPI's own files for them are named by process ids, which are
    the same there."""
    unshare = find("unshare", "util-linux")
    for kind in (["--pid", "--ipc", "--fork", "--kill-child"], ["--user", "--map-root-user"]):
        probe = subprocess.run([unshare, *kind, "true"], capture_output=True, text=True,
                               check=False)
        if probe.returncode != 0:
            raise Skip(f"no namespaces here: {probe.stderr.strip()}")
        for name, words in (("collectives", [100_000]), ("point_to_point", ["ob1"])):
            program = Path(test.mpi, f"mpi-{name}")
            said = test.job(2, unshare, *kind, program, *words, options=CLAN, said_by=0)
            require(f"{name}: PASS" in said, said[-1500:])
            without = len(
                re.findall("by shared memory, .*, without copies from process to process", said))
            require(without == 2,
                    f"{without} ranks have said that they copy by the channel: {said[-1500:]}")


def sandbox(test):
    """Where a filter of system calls forbids copies from process to process, as containers have it:
    each pair finds out when it meets, without a parameter, and everything else is as ever."""
    refused = [sys.executable, HERE.parents[1] / "interpose/programs/filter.py", "refuse",
               "process_vm_readv,process_vm_writev"]
    for name, *words in (["collectives", 100_000], ["point_to_point", "ob1"], ["one_sided"]):
        said = test.job(2, *refused, Path(test.mpi, f"mpi-{name}"), *words,
                        options=["--mca", "osc", "rdma,sm", *CLAN])
        require(f"{name}: PASS" in said, said[-1500:])
        without = len(re.findall("by shared memory, .*, without copies from process to process",
                                 said))
        require(without == 2, f"{without} ranks have found that they cannot copy: {said[-1500:]}")
    strace = find("strace", "strace")
    log = test.directory / "calls"
    test.job(2, strace, "-ff", "-e", "trace=process_vm_readv,process_vm_writev", "-o", log,
             *refused, Path(test.mpi, "mpi-collectives"), 100_000, options=CLAN)
    tries = sum(text.read_text().count("EPERM") for text in test.directory.glob("calls.*"))
    # the rank's, and that of the peer's driver thread when it is asked for the same bytes
    require(1 <= tries <= 4, f"{tries} tries of two ranks")


def beside(test):
    """Two ranks and eight, beside an endless computation on each processor, as mpirun would have
    them yield: every result is right."""
    options = [*CLAN, "--mca", "mpi_yield_when_idle", 1]
    with computations():
        for ranks in (2, 8):
            test.own("point_to_point", ranks, "ob1", options=options)
            test.own("collectives", ranks, 16384, options=options)


def mixed(test):
    """Ranks 0 and 1 have clan, 2 and 3 have not: each pair finds a way that both have."""
    for other in ("vader", "tcp"):
        program = [Path(test.mpi, "mpi-collectives"), 16384]
        said = test.text(test.clan, "run", "--with", "mpi", ofi.find_mpirun(), "--oversubscribe",
                         "--mca", "btl_clan_verbose", 1, "-n", 2, "env",
                         f"OMPI_MCA_btl=clan,{other},self", *program, ":", "-n", 2, "env",
                         f"OMPI_MCA_btl={other},self", *program)
        require("collectives: PASS" in said, said[-1500:])
        to = sorted(int(rank) for rank, records, *_ in re.findall(SUMS, said) if int(records) > 0)
        require(to == [0, 1], f"sent by clan to ranks {to}: {said[-1500:]}")


def uneven(test):
    """Ranks whose records do not fit into the channels of some others: a pair has clan both ways or
    not at all, and what Open MPI answers arrives."""
    program = [Path(test.mpi, "mpi-collectives"), 100_000]
    large = ["OMPI_MCA_btl_clan_channel_bytes=1048576", "OMPI_MCA_btl_clan_max_send_size=262144"]
    said = test.text(test.clan, "run", "--with", "mpi", ofi.find_mpirun(), "--oversubscribe",
                     "--mca", "btl_clan_verbose", 1, "--mca", "btl", "clan,vader,self", "-n", 1,
                     "env", *large, *program, ":", "-n", 3, *program, seconds=120)
    require("collectives: PASS" in said, said[-1500:])
    require("btl_clan_channel_bytes" in said, "no rank says why it has another way")
    to = sorted(int(rank) for rank, records, *_ in re.findall(SUMS, said) if int(records) > 0)
    require(to == [1, 1, 2, 2, 3, 3], f"sent by clan to ranks {to}: {said[-1500:]}")
    # Four channels for each rank, of which its own job may need two; six ranks meet.
    said = test.own("spawn", 2, options=["--mca", "btl", "clan,tcp,self",
                                         "--mca", "btl_clan_channels", 1])
    require("no channel is left" in said, f"none went by TCP: {said[-1500:]}")


def limited(test):
    """Ranks that may not make files as long as their channels go by another transport, and a job
    whose channels are far larger than what goes through them ends at once."""
    program = Path(test.mpi, "mpi-collectives")
    said = test.text("sh", "-c", 'ulimit -f 10000; exec "$0" "$@"', test.clan, "run", "--with",
                     "mpi", ofi.find_mpirun(), "--oversubscribe", "-n", 2, program, 5000)
    require("collectives: PASS" in said and "ulimit -f" in said, said[-1500:])
    test.own("collectives", 2, 5000, seconds=60,
             options=[*CLAN, "--mca", "btl_clan_channel_bytes", 16 << 20])
    refused = 0
    for limit in range(350_000, 700_001, 50_000):
        refused += one_limited(test, limit)
    require(refused > 0, "no rank was short of address space for the channels of another")


def one_limited(test, kilobytes):
    """A rank with so little address space, and two others: all goes, or the job says why it ends.
    Whether a rank went by another transport for it."""
    program = [Path(test.mpi, "mpi-collectives"), 5000]
    said = test.text(test.clan, "run", "--with", "mpi", ofi.find_mpirun(), "--oversubscribe",
                     "--mca", "btl", "clan,tcp,self", "-n", 1,
                     "sh", "-c", f'ulimit -v {kilobytes}; exec "$0" "$@"', *program, ":",
                     "-n", 2, *program, seconds=60, code=None)
    why = re.search("annot allocate memory|bad_alloc|out of resource|out of dynamic memory", said)
    require("collectives: PASS" in said or why, f"{kilobytes} KB: {said[-1500:]}")
    return "by another transport" in said


def senseless(test):
    """Parameters that cannot be: one sentence names each, and the job goes on."""
    for name, value, sentence in (
        ("channel_bytes", "abc", "btl_clan_channel_bytes is 0 or no number, and must be"),
        ("channel_bytes", 100_000, "131072 is used"),
        ("get_bytes", "abc", "get_bytes is 0 or no number, and must be at least 1: 262144 is used"),
        ("channels", 100_000, "btl_clan_channels is 100000, and must be at most 4096"),
        ("looks", 1_000_000, "btl_clan_looks is 1000000, and must be at most 1000"),
        ("eager_limit", 1, "btl_clan_eager_limit is 1, and must be from 1024 to half of"),
        ("network_mode", "secret", "btl_clan_network_mode=secret is none of"),
        ("key", "/no/such/key", "btl_clan_key=/no/such/key "),
    ):
        said = test.own("collectives", 2, 5000,
                        options=[*CLAN, "--mca", f"btl_clan_{name}", value])
        require(sentence in said, f"{name}={value}: {said[:1500]}")
        require(said.count(sentence) == 1, f"said by more than one rank: {said[:1500]}")


AGENT = """#!/bin/sh
# Open MPI's way to the other host: HOST COMMAND...
shift
exec ip netns exec {name} unshare --uts sh -c 'hostname other-host; exec sh -c "$0"' "$*"
"""


class TwoHosts:
    """mpirun on one host, ranks on both: network namespaces with host names of their own."""

    def __init__(self, test, names):
        self.test, self.names = test, names
        self.agent = test.directory / "agent"
        self.agent.write_text(AGENT.format(name=names[1]))
        self.agent.chmod(0o755)
        self.key = test.directory / "key"
        self.key.touch(0o600)
        self.key.write_text("5a" * 32)

    def words(self, ranks, options):
        """Ranks are dealt out in turns: of each two neighbours one is on the other host. Both
        hosts are this one: mpirun sees more slots than there are processors, and would have them
        poll."""
        return [*hosts.inside(self.names[0]), self.test.clan, "run", "--with", "mpi",
                ofi.find_mpirun(), "--host", "10.78.0.1:4,10.78.0.2:4", "--map-by", "node",
                "--oversubscribe", "-n", ranks, "--mca", "mpi_yield_when_idle", 1,
                "--mca", "plm_rsh_agent", self.agent, "--mca", "btl_clan_verbose", 1, *options]

    def run(self, ranks, *words, options=(), seconds=300):
        return self.test.text(*self.words(ranks, options), *words, seconds=seconds)

    def with_key(self):
        return ["--mca", "btl", "clan,self", "--mca", "btl_clan_key", self.key]


def two_hosts(test):
    """Two ranks on each of two hosts: by UDP with a common key, by tcp without; a rank that
    dies."""
    if not hosts.possible():
        raise Skip("no network namespaces can be made here")
    programs = [["collectives", 100_000], ["point_to_point", "ob1"], ["point_to_point", "threads"],
                ["shapes", "messages"], ["one_sided"]]
    with hosts.hosts(1500, "mpi") as names:
        case = TwoHosts(test, names)
        for name, *words in programs:
            program = Path(test.mpi, f"mpi-{name}")
            ranks = 2 if "threads" in words else 4
            # Windows need the module of Open MPI that sends messages for them, as over btl tcp.
            said = case.run(ranks, program, *words,
                            options=[*case.with_key(), "--mca", "osc", "pt2pt"])
            require(f"{name}: PASS" in said, said[-1500:])
            met = len(re.findall(r"btl clan: rank \d+ \(job [0-9a-f]+\) by UDP", said))
            require(met >= (8 if ranks == 4 else 2), f"{met} ranks have met by UDP: {said[-1500:]}")
            near = len(re.findall("by shared memory, process", said))
            require(near >= (4 if ranks == 4 else 0),
                    f"{near} ranks by shared memory: {said[-1500:]}")
            sent = [int(records) for _, records, *_ in re.findall(SUMS, said)]
            require(sum(n > 0 for n in sent) > met / 2, f"sent: {sent}")
            print(f"{name}: right on {ranks} ranks of two hosts")
        without_a_common_key(case)
        a_rank_dies(case)
        ranks_come_and_go(case)


def without_a_common_key(case):
    program = Path(case.test.mpi, "mpi-collectives")
    tcp = ["--mca", "btl", "clan,tcp,self"]
    said = case.run(4, program, 1000, options=tcp)
    require("collectives: PASS" in said and "by UDP" not in said, said[-1500:])
    said = case.run(4, program, 1000, options=[*tcp, "--mca", "btl_clan_key", "/nowhere/key"])
    require("collectives: PASS" in said and "ranks of other hosts go without CLAN" in said,
            said[-1500:])


def a_rank_dies(case):
    program = Path(case.test.mpi, "mpi-shapes")
    options = [*case.with_key(), "--enable-recovery"]
    job = case.test.start(*case.words(2, options), program, "endless")
    for line in job.stdout:
        if "exchanging" in line:
            break
    ranks = children_of(job, "mpi-shapes")
    require(len(ranks) == 2, f"ranks {ranks}")
    os.kill(ranks[0], signal.SIGKILL)
    try:
        said, _ = job.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        raise Wrong("the job goes on without one of its ranks") from None
    require(re.search(r"btl clan: rank \d+ \(job [0-9a-f]+\) of another host has died", said),
            said[-1500:])


def ranks_come_and_go(case):
    """What has ended on the other host costs a rank neither descriptors nor memory."""
    program = Path(case.test.mpi, "mpi-spawn")
    said = past_pmix(lambda: case.run(1, program, "in_turn", "10.78.0.2",
                                      options=case.with_key(), seconds=120))
    require("spawn: PASS" in said, said[-1500:])
    require(len(re.findall("by UDP", said)) >= 12, f"met elsewhere: {said[-1500:]}")


def children_of(job, name):
    return [
        pid for pid in ofi.descendants(job.pid) if Path(f"/proc/{pid}/comm").exists() and
        Path(f"/proc/{pid}/comm").read_text().strip().startswith(name)
    ]


def start_endless(test, ranks, *options):
    program = Path(test.mpi, "mpi-shapes")
    if not program.exists():
        raise Skip("the MPI programs were not built (Debian: libopenmpi-dev)")
    job = test.start(test.clan, "run", "--with", "mpi", ofi.find_mpirun(), "--oversubscribe", "-n",
                     ranks, *CLAN, *options, program, "endless")
    for line in job.stdout:
        if "exchanging" in line:
            return job, children_of(job, "mpi-shapes")
    raise Wrong("the job has ended before it exchanged")


def kill(test):
    """A rank that is killed: the job ends and says so; and when mpirun does not care, clan does."""
    before = set(os.listdir("/dev/shm"))
    for options in ((), ("--enable-recovery",)):
        job, ranks = start_endless(test, 3, *options)
        require(len(ranks) == 3, f"ranks {ranks}")
        os.kill(ranks[1], signal.SIGKILL)
        try:
            said, _ = job.communicate(timeout=40)
        except subprocess.TimeoutExpired:
            raise Wrong(f"the job goes on without one of its ranks {options}") from None
        if not options:
            require(job.returncode != 0, f"the job has ended well: {said[-1500:]}")
        else:
            require(re.search(r"btl clan: rank \d+ \(job [0-9a-f]+\) has died", said), said[-1500:])
    # All at once, and mpirun with them: nothing is left that could clean up.
    job, ranks = start_endless(test, 3)
    for pid in [job.pid, *ofi.descendants(job.pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    job.wait()
    for pid in ranks:
        for _ in range(500):
            if not Path(f"/proc/{pid}").exists():
                break
            time.sleep(0.01)
    left = {
        name
        for name in set(os.listdir("/dev/shm")) - before if "clan" in name or "vader" in name
    }
    require(not left, f"left in /dev/shm: {left}")


def segment_of(pid):
    """The memory that other ranks write to, of a rank that runs, mapped for writing; segment.h has
    its layout."""
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if "memfd:" in os.readlink(entry):
                with open(entry, "r+b") as file:
                    memory = mmap.mmap(file.fileno(), 0)
                if memory[:8] == b"cnmpisg3":
                    return memory
    raise Wrong(f"process {pid} has no segment")


def nonsense(test):
    """What no sender writes: a record of a kind that does not exist, and one of a tag that Open MPI
    does not have."""
    page, slots, kinds = 4096, 512, {"kind": (9, 65), "tag": (1, 255)}
    for what, (kind, tag) in kinds.items():
        job, ranks = start_endless(test, 2)
        memory = segment_of(ranks[0])
        until = time.monotonic() + 20
        while job.poll() is None and time.monotonic() < until:
            consumed = struct.unpack_from("<Q", memory, page + 64)[0]
            # one of them is where the receiver looks next
            for position in range(consumed, consumed + slots):
                head = (position // slots % 0xffff + 1) << 48 | kind << 40 | tag << 32 | 8
                struct.pack_into("<Q", memory, 2 * page + position % slots * 64, head)
            time.sleep(0.01)
        require(job.poll() is not None, f"the job goes on with a nonsensical {what}")
        said, _ = job.communicate(timeout=40)
        require(re.search(r"btl clan: rank 1 \(job [0-9a-f]+\) has written nonsense", said),
                f"{what}: {said[-1500:]}")


def hostile_beside(test):
    """The same, and ranks that are killed, beside an endless computation on each processor: nobody
    waits for a rank that will say nothing more, however seldom a rank runs."""
    with computations():
        nonsense(test)
        kill(test)


def unchanged(test):
    """The component on the path and another chosen: nothing of clan happens; and it is not on the
    path by itself."""
    mpirun = ofi.find_mpirun()
    program = Path(test.mpi, "mpi-collectives")
    said = test.text(test.clan, "run", "--with", "mpi", mpirun, "--oversubscribe", "-n", 2, "--mca",
                     "btl", "vader,self", "--mca", "btl_clan_verbose", 2, program, 1000)
    require("collectives: PASS" in said and "btl clan" not in said, said[-1500:])
    said = test.text(mpirun, "--oversubscribe", "-n", 2, "--mca", "btl_base_verbose", 100, program,
                     1000)
    require("collectives: PASS" in said and "clan" not in said, said[-1500:])


def refusal(test):
    """A component that was built for another Open MPI says one sentence, and the others are
    taken."""
    directory = test.directory / "other"
    directory.mkdir()
    bytes_ = Path(test.component).read_bytes()
    version = re.search(rb"\x00(4\.\d+\.\d+)\x00", bytes_)
    require(version is not None, "the component does not say what it was built for")
    (directory / "mca_btl_clan.so").write_bytes(bytes_.replace(version[0], b"\x004.0.9\x00"))
    said = test.text(ofi.find_mpirun(), "--oversubscribe", "-n", 2, "--mca", "btl",
                     "clan,vader,self", Path(test.mpi, "mpi-collectives"), 1000,
                     env={"OMPI_MCA_mca_base_component_path": f"{directory}:SYSTEM_DEFAULT"})
    require("collectives: PASS" in said and "was built for 4.0.9: not used" in said, said[-1500:])


def visible(test):
    """Parameters, the environment, the doctor's line, and ranks in `clan stat`."""
    said = test.text(test.clan, "run", "--with", "mpi", find("ompi_info", "openmpi-bin"), "--param",
                     "btl", "clan", "--level", 9)
    for name in ("verbose", "get_bytes", "channel_bytes", "eager_limit"):
        require(f"btl_clan_{name}" in said, said[:1500])
    require("SYSTEM_DEFAULT" in test.text(test.clan, "env", "mpi"), "clan env mpi")
    require("can load mca_btl_clan.so" in test.text(test.clan, "doctor", code=None), "clan doctor")
    refused = test.text(test.clan, "run", "--with", "ofi,mpi", "true", code=2)
    require("one way" in refused, refused)
    off = test.text(test.clan, "run", "--with", "mpi", "--disable", ofi.find_mpirun(), "-n", 2,
                    "--oversubscribe", "--mca", "btl_clan_verbose", 1,
                    Path(test.mpi, "mpi-collectives"), 5000)
    require("collectives: PASS" in off and "as CLAN_DISABLE says" in off and "records" not in off,
            off[-1500:])
    job, _ = start_endless(test, 2)
    lines = test.text(test.clan, "stat", code=None)
    require(
        len(re.findall(r"rank [01] \(process \d+\) to rank [01]: \d+ records", lines)) == 2, lines)
    objects = [
        o for o in json.loads(test.text(test.clan, "stat", "--json", code=None))
        if o.get("path") == "mpi"
    ]
    require(
        sorted(o["peer_rank"] for o in objects) == [0, 1] and
        all(o["records"] > 500 for o in objects), objects)
    test.end()
    job.wait()


def netpipe(test):
    program = find("NPopenmpi", "netpipe-openmpi")
    for words in ([], ["-a"], ["-S"], ["-z"]):
        said = test.job(2, program, "-i", "-n", 20, "-u", 1_000_000, "-o", "np.out", *words,
                        options=CLAN)
        sizes, passed = len(re.findall(r"\d+ bytes +\d+ times",
                                       said)), said.count("Integrity check passed")
        require(sizes > 30 and passed >= sizes,
                f"{words}: {passed} of {sizes} passed: {said[-500:]}")


def hpcc(test):
    program = find("hpcc", "hpcc")
    (test.directory / "hpccinf.txt").write_text(ofi.HPCC)
    test.job(4, program, options=CLAN)
    said = (test.directory / "hpccoutf.txt").read_text()
    require(re.search(r"^Success=1$", said, re.M), said[-1500:])
    failed = [line for line in said.splitlines() if "FAILED" in line]
    require(not failed and said.count("PASSED") >= 2, failed)


def mpi4py(test):
    probe = subprocess.run([ofi.PYTHON, "-c", "import mpi4py"], capture_output=True, check=False)
    if probe.returncode != 0:
        raise Skip("mpi4py is not installed (Debian: python3-mpi4py)")
    for ranks in (2, 4):
        said = test.job(ranks, ofi.PYTHON, "-B", HERE.parent / "libfabric" / "mpi4py_checks.py",
                        options=CLAN)
        require(f"mpi4py: PASS on {ranks} ranks" in said, said[-1500:])


PROGRAMS = {
    f.__name__: f
    for f in (quick, collectives, point_to_point, one_sided, shapes, growing, pieces, spawn,
              procs, crowd, beside, restricted, namespaces, sandbox, mixed, uneven, limited,
              senseless, two_hosts, kill, nonsense, hostile_beside, unchanged, refusal, visible,
              netpipe, hpcc, mpi4py)
}


def main():
    def make_test(options, directory):
        test = Test(os.path.abspath(options.clan), os.path.abspath(options.mpi), directory)
        test.component = os.path.abspath(options.component)
        return test
    return ofi.runner.main(__doc__, PROGRAMS, "clan-mpi-", make_test,
                           {"--clan": None, "--component": "", "--mpi": "."})


if __name__ == "__main__":
    sys.exit(main())
