"""How a token bucket of 400 Mbit/s is shared: ten streams, ten flows of TCP for comparison,
and one of each. For net.py."""
import contextlib
import re
import shutil
import subprocess
import time

import report

TCP = "iperf3"
FLOWS = 10
SECONDS = 4


@contextlib.contextmanager
def bucket(name):
    """In the namespace of the clients."""
    device = ["-n", name, "qdisc", "{}", "dev", "v0", "root"]
    subprocess.run(["tc", *(w.format("add") for w in device), "tbf", "rate", "400mbit", "burst",
                    "64k", "latency", "20ms"], check=True)
    try:
        yield
    finally:
        subprocess.run(["tc", *(w.format("del") for w in device)], check=True)


def serve(runner, path, stack):
    """Starts a server, and answers the client's command."""
    to = runner.next_address()
    if path == TCP:
        host, port = to.split(":")
        stack.enter_context(runner.running([*runner.serving, TCP, "-s", "-1", "-p", port]))
        return [*runner.asking, TCP, "-c", host, "-p", port, "-t", str(SECONDS), "-f", "m"]
    program = runner.program_of("stream")
    stack.enter_context(runner.running([*runner.serving, program, "serve", path, to]))
    return [*runner.asking, program, "flood", path, to, "65536", str(SECONDS)]


def rate(path, text):
    """Mbit/s"""
    if path == TCP:
        return float(re.search(r"([\d.]+) Mbits/sec +receiver", text)[1])
    return 8e3 * float(re.search(r"^([\d.]+) GB/s", text, re.M)[1])


def at_once(runner, paths):
    """Mbit/s of each."""
    with bucket(runner.names[1]), contextlib.ExitStack() as stack:
        commands = [serve(runner, path, stack) for path in paths]
        clients = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                   for command in commands]
        rates = [rate(path, client.communicate(timeout=60)[0])
                 for path, client in zip(paths, clients)]
    time.sleep(0.2)  # what is still under way belongs to nobody
    return rates


def fairness(rates):
    """Jain's index."""
    return sum(rates) ** 2 / (len(rates) * sum(r * r for r in rates))


def measure(runner):
    item = report.Item("share", "a token bucket of 400 Mbit/s")
    rates = at_once(runner, ["stream-sleep"] * FLOWS)
    item.lines.append(report.at_least("ten streams: Jain's index", fairness(rates), 0.9))
    item.said.append(f"ten streams together: {sum(rates):.0f} Mbit/s")
    if shutil.which(TCP) is None:
        return item
    rates = at_once(runner, [TCP] * FLOWS)
    item.said.append(f"ten flows of TCP: Jain's index {fairness(rates):.3f}, {sum(rates):.0f} "
                     "Mbit/s together")
    stream, tcp = at_once(runner, ["stream-sleep", TCP])
    item.lines.append(report.at_least("one of each: the lesser's part",
                                      min(stream, tcp) / (stream + tcp), 1 / 3))
    item.said.append(f"one of each: the stream {stream:.0f} Mbit/s, TCP {tcp:.0f}")
    return item
