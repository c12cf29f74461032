#!/usr/bin/env python3
"""The library says of wrong settings what `clan run` says of them, and takes what `clan run` lets
pass. docs/sockets.md has the variables of `clan env`.

    settings_test.py CLAN     (with the preload library in ../lib)
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VALUES = {
    "CLAN_ONLY": [
        "80", "80, 443,8000-8010", "1-65535", "http", "80,", ",80", "0", "65536", "80-", "9-8",
        "+80", "-80", "80 443", "8" * 300, ",".join(["80"] * 64), ",".join(["80"] * 65)
    ],
    "CLAN_EXCEPT": ["22", "22,x"],
    "CLAN_UIDS": [
        "0", "33,113", "4294967294", "4294967295", "root", "-1", "33;113", "1," * 16 + "1"
    ],
    "CLAN_DISABLE": ["0", "1", "no", "No", "OFF", "yes", "TRUE", "on", "false", "n", "2"],
    "CLAN_MEMORY": ["1", "64M", "65536K", "1G", "0", "64m", "64MB", "-1", "M", "9" * 30],
    "CLAN_DIR": ["/nonexistent", "relative"],
    "CLAN_KEY": ["/nonexistent", "relative", "/" + "k" * 1022, "/" + "k" * 1023],
    "CLAN_NETWORK_MODE": ["off", "integrity", "encrypt", "Encrypt", "none"],
    "CLAN_NET": ["0", "no", "perhaps", "2"],
    "CLAN_NETWORK_PACKETS": ["sockets", "xdp", "auto", "XDP", "dpdk"],
    "CLAN_NETWORK_PORT": ["1", "4791", "65535", "0", "65536", "any", "4790,4791", "-1"],
}
LINES = [
    "", "# CLAN_ONLY=x", "  CLAN_EXCEPT=22 \r", "CLAN_ONYL=80", "CLAN_ONLY", "CLAN_DIR",
    "CLAN_ONLY = 80", "CLAN_LOG=info", "CLAN_CONFIG=/x", "=80"
]


def said(command, environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CLAN_")}
    done = subprocess.run(command, env={**clean, **environment}, capture_output=True, text=True,
                          timeout=60, stdin=subprocess.DEVNULL)
    return done.returncode, done.stderr.splitlines()


def compare(clan, library, environment):
    """What is wrong, as both say. The interposer leaves the file of a key alone."""
    code, tool = said([clan, "run", "true"], environment)
    tool = [line.removeprefix("clan run: ") for line in tool]
    _, told = said([sys.executable, "-c", "import socket; socket.socket()"],
                   {**environment, "LD_PRELOAD": str(library)})
    told = [line.split(" error: ", 1)[1].rsplit("; ", 1)[0] for line in told]
    others = [line for line in tool if "cannot be used: " not in line or "CLAN_KEY" not in line]
    assert others == told and code == (2 if tool else 0), (environment, code, tool, told)
    return tool


def check_build_without_net(clan, library, top):
    """A build without libclan-net.so says so in one sentence, and starts nothing."""
    for folder in ("bin", "lib"):
        (Path(top) / "moved" / folder).mkdir(parents=True)
    moved = Path(top) / "moved/bin/clan"
    shutil.copy2(clan, moved)
    (moved.parent.parent / "lib" / library.name).symlink_to(library)
    settings = {"CLAN_NETWORK_MODE": "off", "LD_LIBRARY_PATH": str(library.parent)}
    code, told = said([moved, "run", "--net", "true"], settings)
    assert code == 2 and len(told) == 1 and "this build has no --net" in told[0], (code, told)
    assert said([moved, "run", "true"], settings) == (0, [])


def check_keys(clan, library, top):
    """`clan doctor` checks the file that CLAN_KEY names before anybody needs it."""
    key = Path(top) / "key"
    for text, mode, why in (("k" * 32, 0o600, None), ("k" * 32 + " \n", 0o400, None),
                            ("k" * 32, 0o644, "chmod 600"), ("", 0o600, "openssl rand"),
                            ("k" * 31, 0o600, "shorter"), ("k" * 4097, 0o600, "longer"),
                            (None, 0, "not there: `openssl rand -hex 32`")):
        key.unlink(missing_ok=True)
        if text is not None:
            key.write_text(text)
            key.chmod(mode)
        variables = {"CLAN_KEY": str(key)}
        here = compare(clan, library, variables)
        assert len(here) == (why is not None) and all(why in line for line in here), (here, why)
        code, told = said([clan, "env"], variables)
        assert (code, told) == (2 if why else 0, []), (code, told)
        for face in "orb", "rpc", "mpi":
            code, told = said([clan, "env", face], variables)
            if not why:
                assert code in (0, 1) or "not in" in told[0], (code, told)  # 1: it is not there
            elif "not in" not in told[0]:  # this build has that face
                assert code == 2 and told == [line.replace("run:", "env:") for line in told], told
                assert [line.removeprefix("clan env: ") for line in told] == here, (told, here)
    # Connections of this host move all the same.
    _, told = said([sys.executable, "-c", "import socket; socket.socket()"],
                   {**variables, "CLAN_LOG": "info", "LD_PRELOAD": str(library)})
    assert not any("stay on TCP" in line or "CLAN_KEY" in line for line in told), told


def check_document(clan):
    """The table of settings has the variables that `clan env` prints, and no other."""
    done = subprocess.run([clan, "env"], env={"PATH": "/usr/bin:/bin"}, check=True,
                          capture_output=True, text=True)
    printed = set(re.findall(r"^(CLAN_\w+)", done.stdout, re.M))
    page = (Path(__file__).resolve().parents[3] / "docs/sockets.md").read_text()
    described = set(re.findall(r"^\| `(CLAN_\w+)=", page, re.M))
    assert printed and printed == described, printed ^ described


def main():
    clan = sys.argv[1]
    check_document(clan)
    library = Path(clan).resolve().parent.parent / "lib" / "libclan-preload.so"
    wrong = 0
    with tempfile.TemporaryDirectory() as top:
        config = Path(top) / "clan.conf"
        in_file = {"CLAN_CONFIG": str(config)}
        for name, values in VALUES.items():
            for value in values:
                here = compare(clan, library, {name: value})
                config.write_text(f"# ports\n{name}={value}\n")
                there = compare(clan, library, in_file)
                assert len(here) == len(there) <= 1, (here, there)
                assert all(line.startswith(f"{config}, line 2: ") for line in there), there
                wrong += len(here)
        assert wrong == 43, wrong
        check_keys(clan, library, top)
        check_build_without_net(clan, library, top)
        for value, expected in (("no", False), ("0", False), ("OFF", False), ("yes", True),
                                ("1", True), ("maybe", True)):
            _, told = said([sys.executable, "-c", "import socket; socket.socket()"],
                           {"CLAN_DISABLE": value, "CLAN_LOG": "info", "LD_PRELOAD": str(library)})
            assert any("CLAN_DISABLE; connections stay on TCP" in line
                       for line in told) == expected, (value, told)
        config.write_text("\n".join(LINES) + "\n")
        lines = compare(clan, library, in_file)
        assert [line.split(":")[0]
                for line in lines] == [f"{config}, line {n}" for n in range(4, 11)], lines
        config.write_text("CLAN_ONLY=x\nCLAN_UIDS=y\n")
        line, = compare(clan, library, {**in_file, "CLAN_ONLY": "80"})
        assert ", line 2: CLAN_UIDS=y " in line, line
        config.write_text("#" * 8192)
        assert len(compare(clan, library, in_file)) == 1
        config.unlink()
        assert len(compare(clan, library, in_file)) == 1

        _, told = said([sys.executable, "-c", "import socket; socket.socket(); socket.socket()"],
                       {"CLAN_LOG": "loud", "LD_PRELOAD": str(library)})
        assert len(told) == 1 and "CLAN_LOG=loud is not understood" in told[0], told
    return 0


if __name__ == "__main__":
    sys.exit(main())
