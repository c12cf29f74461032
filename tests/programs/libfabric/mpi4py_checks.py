"""MPI from Python: objects of any size, buffers, windows; with the word tcp, TCP connections
besides.

    mpirun -n RANKS python3 mpi4py_checks.py [tcp]
"""

import hashlib
import socket
import sys
import time
from array import array

from mpi4py import MPI

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
LEFT, RIGHT = (RANK - 1) % SIZE, (RANK + 1) % SIZE


def thing(rank, n):
    return {
        "rank": rank, "bytes": bytes((rank + i) % 256 for i in range(n)), "list": list(range(rank))
    }


def objects():
    for n in (0, 100, 30_000, 2_000_000):
        assert WORLD.sendrecv(thing(RANK, n), RIGHT, source=LEFT) == thing(LEFT, n)
        assert WORLD.bcast(thing(1, n) if RANK == 1 else None, 1) == thing(1, n)
        request = WORLD.isend(thing(RANK, n), RIGHT, tag=n % 1000)
        message = WORLD.mprobe(source=LEFT, tag=n % 1000)
        assert message.recv() == thing(LEFT, n)
        request.wait()
    assert WORLD.allgather(RANK * RANK) == [r * r for r in range(SIZE)]
    assert WORLD.alltoall([(RANK, to) for to in range(SIZE)]) == [(by, RANK) for by in range(SIZE)]
    assert WORLD.allreduce({RANK}, lambda a, b: a | b) == set(range(SIZE))
    gathered = WORLD.gather("x" * RANK, 0)
    assert RANK != 0 or gathered == ["x" * r for r in range(SIZE)]


def buffers():
    out, into = array("d", (RANK + i / 2 for i in range(50_000))), array("d", bytes(8 * 50_000))
    WORLD.Sendrecv(out, RIGHT, recvbuf=into, source=LEFT)
    assert into == array("d", (LEFT + i / 2 for i in range(50_000)))
    total = array("l", [0] * 1000)
    WORLD.Allreduce(array("l", [RANK + 1] * 1000), total, MPI.SUM)
    assert total == array("l", [SIZE * (SIZE + 1) // 2] * 1000)
    requests = [WORLD.Irecv(into, LEFT, 5), WORLD.Issend(out, RIGHT, 5)]
    MPI.Request.Waitall(requests)


def windows():
    memory = array("l", [RANK] * 100)
    window = MPI.Win.Create(memory, 8, comm=WORLD)
    got = array("l", [0] * 100)
    window.Fence()
    window.Get(got, RIGHT)
    window.Fence()
    assert got == array("l", [RIGHT] * 100)
    window.Lock(RIGHT)
    window.Put(array("l", [7] * 50), RIGHT)
    window.Unlock(RIGHT)
    WORLD.Barrier()
    window.Lock(RANK)
    assert memory == array("l", [7] * 50 + [RANK] * 50)
    window.Unlock(RANK)
    window.Free()


def tcp():
    """Rank 0 serves, the others send; meanwhile messages go by MPI."""
    data = bytes(i * 7 % 256 for i in range(100_000)) * 40
    if RANK == 0:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            WORLD.bcast(listener.getsockname(), 0)
            for _ in range(SIZE - 1):
                peer, _ = listener.accept()
                with peer:
                    for _ in range(200):  # to and fro, until it is worth while to move
                        assert peer.recv(1) == b"?"
                        peer.sendall(b"!")
                    digest = hashlib.sha256()
                    for k in range(5):
                        left = len(data)
                        while left:
                            part = peer.recv(min(left, 1 << 20))
                            assert part, "the connection ended"
                            digest.update(part)
                            left -= len(part)
                        assert WORLD.recv(tag=k) == k
                        peer.sendall(b"+")
                    time.sleep(0.3)  # for the test that reads this process's maps
                    peer.sendall(digest.digest())
                    peer.recv(1)
    else:
        with socket.create_connection(tuple(WORLD.bcast(None, 0))) as peer:
            for _ in range(200):
                peer.sendall(b"?")
                assert peer.recv(1) == b"!"
            for k in range(5):
                peer.sendall(data)
                WORLD.send(k, 0, tag=k)
                assert peer.recv(1) == b"+"
            assert peer.recv(32) == hashlib.sha256(data * 5).digest()


def main():
    objects()
    buffers()
    windows()
    if sys.argv[1:] == ["tcp"]:
        tcp()
    WORLD.Barrier()
    if RANK == 0:
        print(f"mpi4py: PASS on {SIZE} ranks", flush=True)


main()
