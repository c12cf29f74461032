#!/usr/bin/env python3
"""Small clients and servers that programs.py runs under the interposer.

    clients.py memcached PORT | asyncio-server PORT | asyncio-client PORT | mpi 0

Each prints what must not depend on timing: counts and hashes.
"""

import asyncio
import hashlib
import random
import selectors
import socket
import sys

CONNECTIONS = 50
ROUNDS = 40


class MemcachedConnection:
    """One non-blocking connection that sets and gets values, and checks what comes back."""

    def __init__(self, port, number):
        self.dice = random.Random(number)
        self.name = f"key{number}"
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setblocking(False)
        self.left = ROUNDS
        self.digest = hashlib.sha256()
        self.received = b""
        self.next_value()

    def next_value(self):
        size = self.dice.choice([1, 10, 100, 1000, 5000, 60_000, 300_000])
        self.value = self.dice.randbytes(size)
        header = f"{size}\r\n".encode()
        self.out = (f"set {self.name} 0 0 ".encode() + header + self.value + b"\r\n" +
                    f"get {self.name}\r\n".encode())
        self.wanted = (b"STORED\r\n" + f"VALUE {self.name} 0 ".encode() + header + self.value +
                       b"\r\nEND\r\n")

    def proceed(self):
        """One turn; False when all rounds are done."""
        if self.out:
            try:
                self.out = self.out[self.socket.send(self.out):]
            except BlockingIOError:
                pass
        try:
            data = self.socket.recv(1 << 16)
            if not data:
                raise SystemExit("memcached: connection lost")
            self.received += data
        except BlockingIOError:
            pass
        if len(self.received) < len(self.wanted):
            return True
        if self.received != self.wanted:
            raise SystemExit("memcached: wrong answer")
        self.digest.update(self.received)
        self.received = b""
        self.left -= 1
        if self.left:
            self.next_value()
        return self.left > 0

    def events(self):
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self.out else 0)


def memcached(port):
    selector = selectors.DefaultSelector()
    connections = [MemcachedConnection(port, i) for i in range(CONNECTIONS)]
    for connection in connections:
        selector.register(connection.socket, connection.events(), connection)
    active = len(connections)
    while active:
        ready = selector.select(20)
        if not ready:
            raise SystemExit("memcached: no answer")
        for key, _ in ready:
            if key.data.proceed():
                selector.modify(key.fileobj, key.data.events(), key.data)
            else:
                selector.unregister(key.fileobj)
                key.data.socket.close()
                active -= 1
    total = hashlib.sha256(b"".join(c.digest.digest() for c in connections)).hexdigest()
    print(f"{CONNECTIONS} connections, {ROUNDS} rounds each: {total}")


async def echo(reader, writer):
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
    writer.close()


async def asyncio_server(port):
    server = await asyncio.start_server(echo, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


async def conversation(port, number):
    dice = random.Random(number)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    digest = hashlib.sha256()
    for _ in range(100):
        message = dice.randbytes(dice.choice([1, 30, 1000, 20_000, 100_000]))
        writer.write(message)
        answer = await reader.readexactly(len(message))
        if answer != message:
            raise SystemExit("asyncio: wrong echo")
        digest.update(answer)
    writer.write_eof()
    if await reader.read():
        raise SystemExit("asyncio: bytes after the end")
    writer.close()
    await writer.wait_closed()
    return digest.digest()


async def asyncio_client(port):
    digests = await asyncio.gather(*(conversation(port, i) for i in range(10)))
    print(f"{len(digests)} conversations: {hashlib.sha256(b''.join(digests)).hexdigest()}")


def mpi():
    """Every rank: collective calls of growing size, and messages all at once to everybody."""
    from mpi4py import MPI  # pylint: disable=import-outside-toplevel
    world = MPI.COMM_WORLD
    digest = hashlib.sha256()
    for exponent in range(0, 21, 2):
        mine = random.Random(world.rank * 100 + exponent).randbytes(1 << exponent)
        for part in world.allgather(mine):
            digest.update(part)
        digest.update(world.bcast(mine if world.rank == 1 else None, root=1))
        requests = [world.isend(mine, to, tag=exponent) for to in range(world.size)]
        for sender in range(world.size):
            digest.update(world.recv(source=sender, tag=exponent))
        for request in requests:
            request.wait()
        world.barrier()
    digests = world.gather(digest.hexdigest())
    if world.rank == 0:
        print(world.size, "ranks agree" if len(set(digests)) == 1 else "ranks differ", digests[0])


def main():
    what, port = sys.argv[1], int(sys.argv[2])
    if what == "memcached":
        memcached(port)
    elif what == "asyncio-server":
        asyncio.run(asyncio_server(port))
    elif what == "asyncio-client":
        asyncio.run(asyncio_client(port))
    elif what == "mpi":
        mpi()
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
