"""The n-body program of examples/mpi_nbody over a way, for `clan bench ip --nbody PROGRAM`: the
paper's kernel IP column. One rank at each end, by Open MPI's btl tcp; ranks that wait yield, as the
processes that forward need the processors, too."""

import os
import subprocess
import tempfile

from hosts import agent_of, inside
from ways import A, B

PARTICLES = (16, 128, 1024)


def step_us(program, particles, address=None):
    """Microseconds of a step: of one rank, or of two, the second one at `address`."""
    steps = str(max(20, min(4000, 2_000_000 // (particles * particles))) // 10 * 10)
    with tempfile.TemporaryDirectory(prefix="clan-nbody-") as directory:
        agent = agent_of(directory, B)
        words = ["-n", "1"]
        if address is not None:
            hosts = "localhost:2" if address.startswith("127.") else f"localhost:1,{address}:1"
            words = ["-n", "2", "--host", hosts, "--mca", "plm_rsh_agent", agent]
            if not address.startswith("127."):
                network = f"{address.rsplit('.', 1)[0]}.0/24"
                words += ["--mca", "oob_tcp_if_include", network, "--mca", "btl_tcp_if_include",
                          network]
        done = subprocess.run(
            inside(A, "mpirun", "--bind-to", "none", *words, "--mca", "pml", "ob1", "--mca", "btl",
                   "tcp,self", "--mca", "mpi_yield_when_idle", "1", program, str(particles), steps),
            check=True, text=True, stdout=subprocess.PIPE, timeout=60,
            env=dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                     TMPDIR=directory))
    return float(done.stdout.split()[2])


def measure(program, address):
    """One turn: the speed-up by a second rank, by the number of particles."""
    return {f"n-body {n}": step_us(program, n) / step_us(program, n, address) for n in PARTICLES}
