"""Two network namespaces that stand in for two hosts, and programs in them. As root."""

import contextlib
import os
import subprocess


def ip(*words):
    subprocess.run(["ip", *map(str, words)], check=True)


def inside(name, *words):
    return ["ip", "netns", "exec", name, *words]


@contextlib.contextmanager
def namespaces(names, addresses=(), mtu=1500):
    """Namespaces of these names; joined by a veth pair of devices v0 where they get addresses."""
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        if addresses:
            ip("link", "add", "v0", "netns", names[0], "type", "veth", "peer", "name", "v0",
               "netns", names[1])
        for name, address in zip(names, addresses):
            ip("-n", name, "link", "set", "v0", "mtu", mtu)
            ip("-n", name, "address", "add", f"{address}/24", "dev", "v0")
            ip("-n", name, "link", "set", "v0", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)


@contextlib.contextmanager
def running(command, **settings):
    """A process, until it is left."""
    process = subprocess.Popen(command, **settings)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def processor_seconds(pid):
    """That a process has had, without its children."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def agent_of(folder, name):
    """A program by which mpirun starts a rank in that namespace, which has a host name of its
    own: AGENT HOST COMMAND..."""
    agent = os.path.join(folder, "agent")
    with open(agent, "w", encoding="ascii") as file:
        file.write(f"#!/bin/sh\nshift\nexec {' '.join(inside(name, 'unshare', '--uts'))} "
                   "sh -c 'hostname other-host; exec sh -c \"$0\"' \"$*\"\n")
    os.chmod(agent, 0o755)
    return agent
