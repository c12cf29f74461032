#!/usr/bin/env python3
"""Servers of Debian's packages are neither started nor enabled by what ./check and ./quickstart
install.

    packages_test.py PACKAGES_SH

A package with a server is made and installed by apt itself, with cmake/packages.sh and without, in
a copy of this machine's files (an overlay in memory, in a mount namespace: as root). Exit code 77
where that is not to be had.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NAME = "clan-test-server"
SCRIPT = """#!/bin/sh
### BEGIN INIT INFO
# Provides: clan-test-server
# Required-Start:
# Required-Stop:
# Default-Start: 2 3 4 5
# Default-Stop:
### END INIT INFO
echo "$1" >> /server-was-told
"""
UNIT = "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"
# What debhelper puts there.
INSTALLED = f"""#!/bin/sh
set -e
update-rc.d {NAME} defaults >/dev/null
systemctl enable {NAME}.service
invoke-rc.d {NAME} start
"""
CONTROL = f"""Package: {NAME}
Version: 1
Architecture: all
Maintainer: nobody <nobody@example.org>
Description: a server that notes when it is started
"""
# In the copy: HOW says what installs. What is there afterwards is printed.
INSTALL = """
set -u
rm -f /usr/sbin/policy-rc.d /sbin/runlevel
printf '#!/bin/sh\necho N 2\n' > /sbin/runlevel  # as on a machine that has been started by init
chmod 755 /sbin/runlevel
[ "$1" != policy ] || { printf '#!/bin/sh\\n# own\\nexit 101\\n' > /usr/sbin/policy-rc.d
                        chmod 755 /usr/sbin/policy-rc.d; }
cd "$3" && . "$2"
if [ "$1" = plain ]; then apt_get install ./server.deb; else apt_install ./server.deb; fi
echo "status=$?"
[ ! -e /server-was-told ] || echo "told=$(tr '\\n' ' ' < /server-was-told)"
echo "unit=$(systemctl is-enabled clan-test-server.service)"
echo "policy=$(cat /usr/sbin/policy-rc.d 2>/dev/null | tail -n 2 | head -n 1)"
echo "installed=$(dpkg-query -W -f '${Status}' clan-test-server)"
"""


def write(path, text, mode=0o644):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def make_package(directory):
    tree = directory / "tree"
    write(tree / "DEBIAN" / "control", CONTROL)
    write(tree / "DEBIAN" / "postinst", INSTALLED, 0o755)
    write(tree / "etc" / "init.d" / NAME, SCRIPT, 0o755)
    write(tree / "lib" / "systemd" / "system" / f"{NAME}.service", UNIT)
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", "-Znone", tree,
                    directory / "server.deb"], check=True, stdout=subprocess.DEVNULL)


def in_copy(directory, script, *arguments):
    """Runs it by bash, chrooted to a copy of this machine's files that is gone afterwards."""
    prepare = f"""
set -e
mount -t tmpfs none {directory}/copy
mkdir {directory}/copy/up {directory}/copy/work {directory}/copy/tree
mount -t overlay none -o \
lowerdir=/,upperdir={directory}/copy/up,workdir={directory}/copy/work {directory}/copy/tree
mount --rbind /dev {directory}/copy/tree/dev
mount -t proc none {directory}/copy/tree/proc
mkdir -p {directory}/copy/tree/given
mount --bind {directory}/given {directory}/copy/tree/given
exec chroot {directory}/copy/tree bash -c "$0" bash "$@"
"""
    return subprocess.run(["unshare", "--mount", "--pid", "--net", "--fork", "bash", "-c", prepare,
                           script, *arguments], capture_output=True, text=True, timeout=100,
                          stdin=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C"})


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def main():
    if os.geteuid() != 0:
        skip("not root")
    if not all(map(shutil.which, ("apt-get", "dpkg-deb", "invoke-rc.d", "systemctl", "unshare"))):
        skip("no Debian with systemctl and invoke-rc.d")
    with tempfile.TemporaryDirectory(prefix="clan-packages-") as name:
        directory = Path(name)
        (directory / "copy").mkdir()
        (directory / "given").mkdir()
        make_package(directory / "given")
        shutil.copy(sys.argv[1], directory / "given" / "packages.sh")
        if (tried := in_copy(directory, "true")).returncode != 0:
            skip(f"no copy of this machine's files: {tried.stderr.strip()}")
        found = {}
        for how in ("plain", "ours", "policy"):
            done = in_copy(directory, INSTALL, how, "/given/packages.sh", "/given")
            found[how] = dict(line.split("=", 1) for line in done.stdout.splitlines()
                              if "=" in line)
            assert found[how].get("status") == "0", done
            assert found[how].get("installed") == "install ok installed", done
        print(found)
        plain, ours, policy = found["plain"], found["ours"], found["policy"]
        if "told" not in plain or plain["unit"] != "enabled":
            skip(f"apt does not start servers here: {plain}")
        for one in ours, policy:
            assert "told" not in one and one["unit"] == "disabled", found
        assert ours["policy"] == "" and policy["policy"] == "# own", found
    return 0


if __name__ == "__main__":
    sys.exit(main())
