#!/usr/bin/env python3
"""The examples of docs/sockets.md, as far as this machine allows.

    operators.py DOCUMENT CLAN LIBRARY

Shell blocks (sh) are run, with a tree of links in the place of /opt/clan. Drop-ins (ini UNIT) are
verified by systemd-analyze, and their environment is given to redis-server, under the filters of
system calls and of address families that the distribution's unit and the drop-in together make. The
paths and names of Docker's files are checked.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import filter as seccomp
import programs

FENCE = re.compile(r"^```(\S+) ?([^\n]*)\n(.*?)^```$", re.M | re.S)
OPT, COLLECTOR = "/opt/clan", "/var/lib/prometheus/node-exporter"
UNIT = "[Unit]\nDescription=x\n[Service]\nType=simple\nExecStart=/bin/sleep 1\n"


def environment_of(drop_in):
    return dict(line.removeprefix("Environment=").split("=", 1) for line in drop_in.splitlines()
                if line.startswith("Environment="))


def check_shell(text, top):
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", text], capture_output=True, text=True,
                          timeout=60, cwd=top,
                          env={k: v
                               for k, v in os.environ.items() if not k.startswith("CLAN_")})
    programs.require(done.returncode == 0, f"{text}\n{done}")


def check_unit(name, text, top):
    """systemd understands the drop-in: it says nothing of it that it does not say of the unit
    alone."""
    if shutil.which("systemd-analyze") is None:
        return "not verified: no systemd-analyze"
    units = top / "units"
    shutil.rmtree(units, ignore_errors=True)
    (units / f"{name}.d").mkdir(parents=True)
    (units / name).write_text(UNIT)

    def verify():
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", units / name],
                              capture_output=True, text=True, timeout=60)
        return {line for line in done.stderr.splitlines() if str(units) in line or name in line}
    plain = verify()
    (units / f"{name}.d/clan.conf").write_text(text)
    programs.require(verify() <= plain, f"{text}\n{verify()}")
    (units / f"{name}.d/clan.conf").write_text(text + "NoSuchDirective=1\n")
    return "verified" if not verify(
    ) <= plain else "not verified: systemd-analyze sees nothing wrong here"


def directives(unit, name):
    """The values of all lines of this name."""
    return [line.split("=", 1)[1] for line in unit.splitlines() if line.startswith(f"{name}=")]


def confined(name, drop_in):
    """The command that puts a program under the filters of the installed unit with this drop-in."""
    unit = Path("/lib/systemd/system", name)
    if not unit.exists() or os.uname().machine != "x86_64" or shutil.which(
            "systemd-analyze") is None:
        return []
    text = unit.read_text() + drop_in
    maker = [sys.executable, "-B", Path(__file__).parent / "filter.py"]
    command = []
    if families := set(" ".join(directives(text, "RestrictAddressFamilies")).split()):
        known = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
        command += [
            *maker, "families",
            ",".join(str(number) for family, number in known.items() if family not in families)
        ]
    calls = set()
    for value in directives(text, "SystemCallFilter"):
        named = seccomp.expand(value.removeprefix("~").split())
        calls = calls - named if value.startswith("~") else calls | named
    return command + ([*maker, "allow", ",".join(sorted(calls))] if calls else [])


def check_service(unit, text, library):
    """redis-server with the drop-in's environment, and a client under CLAN: by shared memory,
    unless disabled."""
    variables = environment_of(text)
    disabled = "CLAN_DISABLE" in variables
    if disabled:
        variables["LD_PRELOAD"] = str(library)  # of the other drop-in
    server = programs.find("redis-server")
    under = [] if disabled else confined(unit, text)
    print(unit, "under its filters" if under else "without filters")

    def talk(run):
        port = programs.free_port()
        run.environment.update(variables)
        run.serve(*under, server, "--port", str(port), "--save", "", port=port, role="nobody")
        run.environment = {"LC_ALL": "C"}
        return {
            "said": "PING" in run.text("redis-benchmark", "-p", port, "-c", "2", "-n", "20000",
                                       "-t", "ping", "-q")
        }

    said, pipes, _ = programs.attempt(talk, preload=str(library), server=True, client=True,
                                      threshold=0)
    programs.require(said == {"said": True, "exit codes": []} and (pipes == 0) == disabled,
                     f"{variables}: {pipes} pipes")


def check_container(kind, text):
    programs.require(
        f"{OPT}/lib/libclan-preload.so" in text and "CLAN_DIR" in text and "/run/clan" in text,
        text)
    if kind != "yaml":
        return
    try:
        import yaml  # pylint: disable=import-outside-toplevel
    except ImportError:
        return
    parsed = yaml.safe_load(text)
    for service in parsed["services"].values():
        programs.require("clan:/run/clan" in service["volumes"], f"{service}")
    programs.require(parsed["volumes"]["clan"]["driver_opts"]["o"] == "mode=1777",
                     "the directory is not for all")


def main():
    document, clan, library = Path(sys.argv[1]).read_text(), Path(sys.argv[2]).resolve(), Path(
        sys.argv[3]).resolve()
    blocks = FENCE.findall(document)
    count = 0
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        shutil.copytree(clan.parent.parent / "lib", top / "clan/lib", symlinks=True,
                        ignore=lambda _, files: [f for f in files if not f.startswith("libclan")])
        (top / "clan/bin").mkdir()
        shutil.copy(clan, top / "clan/bin")
        (top / "collector").mkdir()
        for kind, about, text in blocks:
            here = text.replace(OPT, str(top / "clan")).replace(COLLECTOR, str(top / "collector"))
            count += 1
            if kind == "sh":
                check_shell(here, top)
            elif kind == "ini":
                print(about, check_unit(about, text, top))
                try:
                    check_service(about, here, top / "clan/lib" / library.name)
                except programs.Skip as skip:
                    print(skip)
            elif kind in ("dockerfile", "yaml"):
                check_container(kind, text)
            else:
                programs.require(kind == "text", f"what is a block of {kind}?")
                count -= 1
    print(f"{count} examples")
    return 0 if count >= 10 else 1


if __name__ == "__main__":
    sys.exit(main())
