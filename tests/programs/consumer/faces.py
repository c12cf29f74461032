"""Calls of omniORB's programs and of libtirpc's, and messages of Open MPI's, go over CLAN from the
installed tree, and from nowhere else.

    faces.py PREFIX orb SERVER CALL      SERVER, CALL: omniorb-suite-server and -call of the build
    faces.py PREFIX rpc SERVER CLIENT    SERVER, CLIENT: sunrpc-server and -client
    faces.py PREFIX mpi PROGRAM             PROGRAM: mpi-collectives
"""

import os
import subprocess
import sys
import tempfile


def under_clan(prefix, face, *command):
    kept = {
        k: v
        for k, v in os.environ.items()
        if k != "LD_PRELOAD" and not k.startswith(("CLAN_", "ORB", "OMPI_"))
    }
    kept |= dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
    return subprocess.Popen(
        [f"{prefix}/bin/clan", "run", "--with", face, "--log", "info", *command], env=kept,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)


def loaded(pid, prefix, library):
    with open(f"/proc/{pid}/maps", encoding="ascii", errors="replace") as maps:
        found = {line.split()[-1] for line in maps if library in line}
    assert found == {f"{prefix}/lib/{library}"}, found


def calls(prefix, face, server_words, library, client_words, said):
    """`client_words` of the server's first line make the client's command; `said`: what it says
    when CLAN is used."""
    server = under_clan(prefix, face, *server_words)
    try:
        first = server.stdout.readline().strip()
        loaded(server.pid, prefix, library)
        client = under_clan(prefix, face, *client_words(first))
        _, text = client.communicate(timeout=60)
        assert client.returncode == 0 and said in text, text
    finally:
        server.kill()
        server.communicate()


def orb(prefix, server, call):
    calls(prefix, "orb", [server, "-ORBendPoint", "giop:tcp:127.0.0.1:"], "libomniclanTP4.so",
          lambda reference: [call, reference, "0"], "CORBA calls to process")


def rpc(prefix, server, client):
    calls(prefix, "rpc", [server, "tcp"], "libclanrpc.so",
          lambda ready: [client, ready.split("tcp=")[1].split()[0], "500"], "go over CLAN")


def mpi(prefix, program):
    with tempfile.TemporaryDirectory(prefix="clan-mpi-") as directory:
        os.environ["TMPDIR"] = directory  # where mpirun keeps what its ranks share
        job = under_clan(prefix, "mpi", "mpirun", "--oversubscribe", "-n", "2", "--mca", "btl",
                         "clan,self", "--mca", "btl_clan_verbose", "1", program, "16384")
        said = "".join(job.communicate(timeout=60))
    assert job.returncode == 0 and "collectives: PASS" in said and "by shared memory" in said, said
    # Where its component comes from: ranks end too soon to check what they have mapped.
    path = under_clan(prefix, "mpi", "printenv",
                      "OMPI_MCA_mca_base_component_path").communicate(timeout=60)[0]
    assert path.split(":")[0] == f"{prefix}/lib/openmpi", path


def main():
    {"orb": orb, "rpc": rpc, "mpi": mpi}[sys.argv[2]](os.path.realpath(sys.argv[1]), *sys.argv[3:])
    print(f"{sys.argv[2]}: went over CLAN")


if __name__ == "__main__":
    main()
