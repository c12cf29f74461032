"""Programs between the two namespaces, over kernel TCP and under `clan run --net` in turns: for
net.py. As stock; the server on one processor and the client on the other, without encryption."""
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time

import report
from hosts import processor_seconds, running

PORT = 7379
UNDER = {"tcp": None, "net": "sockets", "net-xdp": "xdp"}
# Name, the program that serves, and the clients of a redis.
ROWS = (("redis -c 1", "redis-server", 1), ("redis -c 50", "redis-server", 50),
        ("iperf3", "iperf3", 0))


def possible():
    return [row for row in ROWS if shutil.which(row[1])
            and (row[2] == 0 or shutil.which("redis-benchmark"))]


def command(clan, path):
    """What comes before the program, and its environment."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CLAN_")}
    if UNDER[path] is None:
        return [], clean
    return [clan, "run", "--net"], {**clean, "CLAN_NETWORK_MODE": "off",
                                    "CLAN_NETWORK_PACKETS": UNDER[path]}


def wait_until_it_listens(pid):
    """In its namespace."""
    for _ in range(500):
        for table in ("tcp", "tcp6"):
            with open(f"/proc/{pid}/net/{table}") as file:
                if re.search(rf":{PORT:04X} \w+:0000 0A ", file.read()):
                    return
        time.sleep(0.01)
    raise SystemExit("a server does not listen")


def client_of(row, address, seconds):
    if row[2] == 0:
        return ["iperf3", "-c", address, "-p", str(PORT), "-t", str(max(1, round(seconds)))]
    requests = round(seconds * (15000 if row[2] == 1 else 80000))
    return ["redis-benchmark", "-h", address, "-p", str(PORT), "-c", str(row[2]), "-t", "get", "-n",
            str(requests), "--csv"]


def figure_of(row, text):
    """Requests or Gbit a second, and the work that was done: requests or gigabytes."""
    if row[2] == 0:
        total, unit, rate = re.search(r"([\d.]+) (G|M)Bytes +([\d.]+) Gbits/sec +receiver",
                                      text).groups()
        return float(rate), float(total) / (1 if unit == "G" else 1024)
    return float(re.search(r'"GET","([\d.]+)"', text)[1]), None


def once(clan, net, row, path, seconds):
    """The figure, and the processor seconds of both ends for a million requests or a gigabyte."""
    serving, asking, address, _ = net
    before, environment = command(clan, path)
    with tempfile.TemporaryDirectory() as folder:
        serve = (["iperf3", "-s", "-p", str(PORT)] if row[2] == 0 else
                 ["redis-server", "--port", str(PORT), "--bind", address, "--save", "", "--dir",
                  folder, "--protected-mode", "no"])
        with running([*serving, "taskset", "-c", "0", *before, *serve], env=environment,
                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            wait_until_it_listens(server.pid)
            begin = processor_seconds(server.pid)
            words = client_of(row, address, seconds)
            usage = os.times()
            done = subprocess.run([*asking, "taskset", "-c", "1", *before, *words],
                                  env=environment, capture_output=True, text=True,
                                  timeout=60 + 20 * seconds)
            now = os.times()
            time_of_both = (processor_seconds(server.pid) - begin + now.children_user -
                            usage.children_user + now.children_system - usage.children_system)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)} failed: {done.stdout}{done.stderr}")
    figure, work = figure_of(row, done.stdout)
    if work is None:
        work = int(words[words.index("-n") + 1]) / 1e6
    return figure, time_of_both / work


def measure(clan, net, options):
    """{(row, path): [(figure, seconds of processor)]}"""
    found = {}
    for _ in range(options.rounds):
        for row in possible():
            for path in UNDER:
                name = f"program {row[0]} {path}"
                if all(word in name for word in options.only):
                    found.setdefault((row[0], path), []).append(
                        once(clan, net, row, path, options.seconds))
    return found


def item_of(found):
    """Each row as a part of kernel TCP's in the same run."""
    item = report.Item("programs", "as they are over TCP, and under `clan run --net`")
    for (row, path), values in found.items():
        bulk = row == "iperf3"
        item.rows.append(report.Row(row, path, 1, statistics.median(v for v, _ in values),
                                    "Gbit/s" if bulk else "requests/s", higher=True, text=row,
                                    cpu=statistics.median(c for _, c in values), samples=values))
    medians = {(one.text, one.variant): one.value for one in item.rows}
    for row in dict.fromkeys(row for row, path in medians if (row, "tcp") in medians):
        item.lines.append(report.Line(row, ratios={
            f"{path}/tcp": [medians[row, path] / medians[row, "tcp"]]
            for path in ("net", "net-xdp") if (row, path) in medians}))
    item.said = ["processor seconds of both ends for a million requests or a gigabyte"]
    return item
