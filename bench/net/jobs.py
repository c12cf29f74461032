"""Open MPI with one rank in each of the two namespaces, over btl tcp and btl clan in turns: for
net.py. Both ranks poll, each on its processor; one way, by clan-mpi-load of `clan bench mpi`."""
import os
import re
import shutil
import statistics
import subprocess
import tempfile

import report
from hosts import agent_of

OTHER = "10.77.0.2"
CLAN = ["--mca", "btl", "clan,self", "--mca", "btl_clan_network_mode"]
# Name, options, environment.
PATHS = (("tcp", ["--mca", "btl", "tcp,self"], {}), ("clan", [*CLAN, "off"], {}),
         ("clan-xdp", [*CLAN, "off"], {"CLAN_NETWORK_PACKETS": "xdp"}),
         ("clan-encrypt", [*CLAN, "encrypt", "--mca", "btl_clan_key", "{key}"], {}))
# Bytes, and how much faster than btl tcp is wanted.
SIZES = {8: 1.3, 64 << 10: 1, 1 << 20: 1}


def files(here):
    """The load program and the folder of the component, both as built and as installed."""
    return os.path.join(here, "..", "mpi", "clan-mpi-load"), os.path.join(here, "..", "..",
                                                                          "openmpi")


def possible(here):
    return shutil.which("mpirun") is not None and all(map(os.path.exists, files(here)))


def once(here, net, folder, options, environment, milliseconds):
    """{bytes: microseconds one way}, medians."""
    serving, _, address, names = net
    load, component = files(here)
    agent = agent_of(folder, names[1])
    words = [word.format(key=os.environ["CLAN_KEY_FILE"]) for word in options]
    exported = [word for name in environment for word in ("-x", name)]
    done = subprocess.run(
        [*serving, "mpirun", "--host", f"{address}:1,{OTHER}:1", "-np", "2", "--map-by", "node",
         "--bind-to", "none", "--mca", "plm_rsh_agent", agent, "--mca", "pml", "ob1",
         "--mca", "mpi_yield_when_idle", "0", *words, *exported, load, str(milliseconds), "0,1",
         "latency:" + ",".join(map(str, SIZES))],
        env={**os.environ, "TMPDIR": folder, "OMPI_ALLOW_RUN_AS_ROOT": "1",
             "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
             "OMPI_MCA_mca_base_component_path": f"{component}:SYSTEM_DEFAULT", **environment},
        capture_output=True, text=True, timeout=200)
    if done.returncode != 0:
        raise SystemExit(f"mpirun failed: {done.stdout}{done.stderr}")
    found = re.findall(r"^latency (\d+) [\d.]+ ([\d.]+)(?: [\d.]+)+$", done.stdout, re.M)
    if len(found) != len(SIZES):
        raise SystemExit(f"clan-mpi-load has not printed a figure of each size: {done.stdout}")
    return {int(size): float(median) for size, median in found}


def measure(here, net, options):
    """{(path, bytes): [microseconds]}"""
    found = {}
    with tempfile.TemporaryDirectory(prefix="clan-net-") as folder:
        for _ in range(options.rounds):
            for path, words, environment in PATHS:
                if not all(word in f"mpi {path}" for word in options.only):
                    continue
                for size, value in once(here, net, folder, words, environment,
                                        max(2, round(20 * options.seconds))).items():
                    found.setdefault((path, size), []).append(value)
    return found


def item_of(found):
    """The rows, and how many times as fast as btl tcp is wanted."""
    item = report.Item("mpi", "Open MPI, a rank in each namespace, one way")
    for (path, size), values in found.items():
        item.rows.append(report.Row("mpi", path, size, statistics.median(values), "us",
                                    low=min(values), text=f"Open MPI, {size} B", samples=values))
    medians = {(row.variant, row.x): row.value for row in item.rows}
    for size, wanted in SIZES.items():
        ratios = {path: medians["tcp", size] / medians[path, size]
                  for path in ("clan", "clan-xdp")
                  if ("tcp", size) in medians and (path, size) in medians}
        for path, ratio in ratios.items():
            item.lines.append(report.at_least(f"btl tcp / {path}, {size} B", ratio, wanted))
    return item
