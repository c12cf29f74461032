#!/usr/bin/env python3
"""`clan run --with ofi`, `clan env ofi` and `clan doctor` agree about the libfabric provider, and
have a sentence for everything that goes wrong.

    ofi_test.py CLAN PROVIDER OLD_LIBFABRIC

The program and the provider are copied into a tree of their own. OLD_LIBFABRIC is a libfabric.so.1
that says it is 1.9.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FIRST = ("FI_PROVIDER_PATH", "FI_PROVIDER", "OMPI_MCA_pml", "OMPI_MCA_mtl", "OMPI_MCA_btl",
         "OMPI_MCA_osc_rdma_network_max_amo")


class Tree:
    def __init__(self, clan, provider, top, libraries=None):
        self.top = Path(top).resolve()
        self.providers = self.top / "lib" / "libfabric"
        self.providers.mkdir(parents=True)
        (self.top / "bin").mkdir()
        self.clan = shutil.copy(clan, self.top / "bin")
        self.provider = Path(shutil.copy(provider, self.providers))
        self.libraries = libraries or Path(clan).resolve().parent.parent / "lib"
        shutil.copy(self.libraries / "libclan-preload.so", self.top / "lib")

    def environment(self, more):
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("CLAN_", "FI_", "OMPI_")) and name != "LD_PRELOAD"}
        return {**kept, "LD_LIBRARY_PATH": str(self.libraries), **(more or {})}

    def run(self, *arguments, env=None):
        return subprocess.run([self.clan, *map(str, arguments)], capture_output=True, text=True,
                              timeout=60, stdin=subprocess.DEVNULL, env=self.environment(env),
                              check=False)

    def variables(self, *arguments, env=None):
        done = self.run("run", *arguments, "env", env=env)
        assert done.returncode == 0 and done.stderr == "", done
        return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def check_variables(tree):
    library = str(tree.top / "lib" / "libclan-preload.so")
    expected = dict(zip(FIRST, (str(tree.providers), "clan", "cm", "ofi", "self,ofi", "0")))
    for faces, preloaded in (("ofi", False), ("tcp,ofi", True), ("ofi,tcp", True)):
        seen = tree.variables("--with", faces, "--log", "warn",
                              env={"FI_PROVIDER": "tcp", "OMPI_MCA_pml": "ob1"})
        assert {name: seen.get(name) for name in expected} == expected, seen
        assert (seen.get("LD_PRELOAD") == library) == preloaded and seen["CLAN_LOG"] == "warn", seen
        assert preloaded or ("LD_PRELOAD" not in seen and "ASAN_OPTIONS" not in seen), seen
    plain = tree.variables("--with", "tcp")
    assert plain["LD_PRELOAD"] == library and not set(plain) & set(FIRST), plain

    ours = str(tree.providers)
    for present, after in (("/else/where", f"{ours}:/else/where"), (f"/a:{ours}:/b",
                                                                    f"{ours}:/a:/b"), ("", ours)):
        seen = tree.variables("--with", "ofi", env={"FI_PROVIDER_PATH": present})
        assert seen["FI_PROVIDER_PATH"] == after, seen

    # The preload library's settings are ignored, and the library is not needed.
    Path(library).rename(library + ".away")
    assert "FI_PROVIDER" in tree.variables("--with", "ofi", env={"CLAN_ONLY": "http"})
    assert tree.run("run", "--with", "tcp,ofi", "true").returncode == 125
    Path(library + ".away").rename(library)


def check_env(tree, top):
    """The lines do in a shell what they say, also where the path has spaces and quotes in it."""
    odd = Tree(tree.clan, tree.provider, Path(top) / "it's a $HOME `x`", tree.libraries)
    for here in (tree, odd):
        told = here.run("env", "ofi")
        assert told.returncode == 0 and told.stderr == "", told
        assert told.stdout.splitlines()[0].startswith("export FI_PROVIDER_PATH="), told
        for words in ('eval "$("$0" env ofi)"', "eval $(\"$0\" env ofi)"):
            script = words + '; printf %s "$FI_PROVIDER_PATH$OMPI_MCA_pml"'
            done = subprocess.run(["sh", "-c", script, here.clan], capture_output=True, text=True,
                                  timeout=60, check=False, env=here.environment(None))
            if here is odd and words.startswith("eval $"):
                continue  # split at its spaces: what quotes are for
            assert (done.stdout, done.stderr) == (str(here.providers), ""), done
        for name in FIRST:
            assert f" {name}=" in told.stdout, told
    assert odd.variables("--with", "ofi")["FI_PROVIDER_PATH"] == str(odd.providers)
    assert tree.run("env", "nonsense").returncode == 2


def check_errors(tree, old):
    for arguments, code, words in (
            (["--with", "ofi"], 2, "which command"),
            (["--with", "udp", "true"], 2, "udp is none of tcp"),
            (["--with", "", "true"], 2, "is none of tcp"),
            (["--with", "ofi", "--only", "80", "true"], 2, "--with tcp,ofi"),
            (["--with", "ofi", "--disable", "true"], 2, "--with tcp,ofi"),
            (["--with", "ofi", "no-such-command-here"], 127, "command not found")):
        done = tree.run("run", *arguments)
        assert done.returncode == code and words in done.stderr + done.stdout, (arguments, done)
    wrong = tree.run("run", "--with", "ofi", "true", env={"CLAN_LOG": "loud"})
    assert wrong.returncode == 2 and "CLAN_LOG=loud" in wrong.stderr, wrong

    def refused(what, words, env=None, where=tree):
        for command, code in ((["run", "--with", "ofi", "true"], 125), (["env", "ofi"], 1)):
            done = where.run(*command, env=env)
            assert done.returncode == code and words in done.stderr and done.stdout == "", (what,
                                                                                            done)
            assert done.stderr.startswith(f"clan {command[0]}: ") and done.stderr.count(
                "\n") == 1, (what, done)
        report = json.loads(where.run("doctor", "--json", env=env).stdout)
        finding, = [one for one in report["findings"] if one["name"] == "libfabric"]
        assert finding["state"] == "absent" and words in finding["seen"] and report["usable"], (
            what, finding)

    away = tree.provider.rename(tree.top / "away")
    refused("no provider", str(tree.provider))
    tree.provider.write_text("no library")
    refused("a broken provider", "cannot load the provider")
    away.rename(tree.provider)

    empty = tree.top / "empty"
    empty.mkdir()
    (empty / "libfabric.so.1").write_text("")
    refused("no libfabric", "there is no libfabric here",
            env={"LD_LIBRARY_PATH": f"{empty}:{tree.libraries}"})
    aged = tree.top / "old"
    aged.mkdir()
    shutil.copy(old, aged / "libfabric.so.1")
    refused("an old libfabric", "libfabric 1.9 is too old",
            env={"LD_LIBRARY_PATH": f"{aged}:{tree.libraries}"})
    colon = Tree(tree.clan, tree.provider, tree.top / "a:b", tree.libraries)
    refused("a colon", "a colon in it", where=colon)


def check_doctor(tree):
    def finding(**env):
        report = json.loads(tree.run("doctor", "--json", env=env).stdout)
        found, = [one for one in report["findings"] if one["name"] == "libfabric"]
        return found

    plain = finding()
    assert plain["state"] == "ok" and str(tree.providers) in plain["seen"], plain
    assert "clan env ofi" in plain["effect"], plain
    set_up = finding(FI_PROVIDER_PATH=str(tree.providers))
    assert set_up["state"] == "ok" and "clan env ofi" not in set_up["effect"], set_up


def main():
    with tempfile.TemporaryDirectory() as top:
        tree = Tree(sys.argv[1], sys.argv[2], Path(top) / "tree")
        check_variables(tree)
        check_env(tree, top)
        check_doctor(tree)
        check_errors(tree, sys.argv[3])
        told = tree.run("run", "--help").stdout
        for name in (*FIRST[:5], "--with"):
            assert name in told, (name, told)
    return 0


if __name__ == "__main__":
    sys.exit(main())
