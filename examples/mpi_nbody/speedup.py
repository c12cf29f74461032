#!/usr/bin/env python3
"""How much a second processor helps the n-body program next to this file, by transport (figure 5 of
the CLAN paper).

    speedup.py [--quick | --smoke] CLAN PROGRAM   PROGRAM: bin/examples/mpi_nbody

One rank, then two ranks over btl tcp, vader, mtl ofi over CLAN and btl clan, all in turns; the
fastest of all turns. The speed-up is one rank's time over two ranks' time. Exit code 77 where Open
MPI is not installed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

CLAN_MPI = ["run", "--with", "mpi"]
CLAN_OFI = ["run", "--with", "ofi"]
TRANSPORTS = {  # name: words for clan, words for mpirun
    "btl tcp": ([], ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]),
    "vader": ([], ["--mca", "pml", "ob1", "--mca", "btl", "vader,self"]),
    "mtl ofi over clan": (CLAN_OFI, []),
    "btl clan": (CLAN_MPI, ["--mca", "btl", "clan,self"]),
}
PARTICLES = [16, 32, 64, 128, 256, 512, 1024, 2048]


class Failed(Exception):
    pass


def microseconds(command, environment):
    """Returns the time of a step, and the sum, which does not depend on the number of ranks."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120,
                          check=False)
    found = re.search(r"^\d+ \d+ ([\d.]+) (\S+)$", done.stdout, re.M)
    if done.returncode != 0 or not found:
        raise Failed(
            f"{' '.join(command)}: exit code {done.returncode}: "
            f"{(done.stdout + done.stderr)[-500:]}"
        )
    return float(found[1]), found[2]


def measure(options, environment):
    """Prints a line for each number of particles."""
    for n in options.particles:
        steps = str(max(20, min(20_000, 4_000_000 // (n * n)) // 10 * 10))
        column, sums = {}, set()
        for _ in range(options.rounds):
            for name, (clan, mpirun) in [("one rank", ([], [])), *TRANSPORTS.items()]:
                ranks = "1" if name == "one rank" else "2"
                command = [
                    *([options.clan, *clan] if clan else []), "mpirun", "--host", "localhost:2",
                    "--bind-to", "core", "-n", ranks, *mpirun, options.program,
                    str(n), steps
                ]
                took, total = microseconds(command, environment)
                column[name] = min(took, column.get(name, took))
                sums.add(total)
        if len(sums) != 1:
            raise Failed(f"{n} particles: the results differ: {sums}")
        print(f"{n:>9} {column['one rank']:>11.1f}"
              + "".join(f"{column['one rank'] / column[t]:>19.2f}" for t in TRANSPORTS), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one turn, three sizes")
    parser.add_argument("--smoke", action="store_true", help="one turn, one size")
    parser.add_argument("clan")
    parser.add_argument("program")
    options = parser.parse_args()
    options.clan, options.program = os.path.abspath(options.clan), os.path.abspath(options.program)
    options.particles = ([128] if options.smoke else [16, 128, 1024] if options.quick
                         else PARTICLES)
    options.rounds = 1 if options.quick or options.smoke else 3
    if shutil.which("mpirun") is None or len(os.sched_getaffinity(0)) < 2:
        print("it takes Open MPI (Debian package openmpi-bin) and two processors")
        return 77
    environment = {
        name: value
        for name, value in os.environ.items() if not name.startswith(("OMPI_", "FI_"))
    }
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    print(f"{'particles':>9} {'one rank us':>11}" + "".join(f"{t:>19}" for t in TRANSPORTS),
          flush=True)
    with tempfile.TemporaryDirectory(prefix="clan-nbody-") as directory:
        try:
            measure(options, environment | {"TMPDIR": directory})
        except (Failed, subprocess.TimeoutExpired) as why:
            print(why)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
