#!/usr/bin/env python3
"""RPCSEC_GSS with a Kerberos realm of its own: a key distribution centre on a port that is free,
all of its files in a temporary directory.

    gss.py TESTS [LIBRARY]    (exit code 77: something is missing here)

TESTS: test_sunrpc, whose tests Gss.* it runs, with LIBRARY in LD_PRELOAD
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REALM = "CLAN.TEST"
SERVICE, CLIENT = "sunrpc/localhost", "somebody"
PROGRAMS = {"kdb5_util": "krb5-kdc", "krb5kdc": "krb5-kdc", "kadmin.local": "krb5-admin-server"}

KRB5_CONF = """[libdefaults]
  default_realm = {realm}
  dns_lookup_realm = false
  dns_lookup_kdc = false
  dns_canonicalize_hostname = false
  rdns = false
  default_client_keytab_name = FILE:{directory}/client.keytab
  default_ccache_name = FILE:{directory}/tickets
[realms]
  {realm} = {{
    kdc = 127.0.0.1:{port}
  }}
[domain_realm]
  localhost = {realm}
"""
KDC_CONF = """[realms]
  {realm} = {{
    database_name = {directory}/principal
    key_stash_file = {directory}/stash
    acl_file = {directory}/acl
    kdc_listen = 127.0.0.1:{port}
    kdc_tcp_listen = 127.0.0.1:{port}
  }}
"""


def skip(why):
    print(why)
    sys.exit(77)


def free_port():
    """One that neither TCP nor UDP uses now."""
    while True:
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            tcp.bind(("127.0.0.1", 0))
            port = tcp.getsockname()[1]
            try:
                udp.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class Realm:
    def __init__(self, directory):
        self.directory = Path(directory)
        self.environment = {
            **os.environ, "KRB5_CONFIG": str(self.directory / "krb5.conf"), "KRB5_KDC_PROFILE": str(
                self.directory / "kdc.conf"), "KRB5_KTNAME": f"FILE:{directory}/server.keytab",
            "KRB5RCACHENAME": f"dfl:{directory}/replays", "KRB5RCACHEDIR": directory
        }
        self.port = 0
        self.centre = None
        self.write(1)
        self.run("kdb5_util", "create", "-s", "-P", "no secret")
        for keytab, name in (("server", SERVICE), ("client", CLIENT)):
            self.run("kadmin.local", "addprinc", "-randkey", name)
            self.run("kadmin.local", "ktadd", "-k", str(self.directory / f"{keytab}.keytab"), name)

    def write(self, port):
        self.port = port
        for file, text in (("krb5.conf", KRB5_CONF), ("kdc.conf", KDC_CONF)):
            (self.directory / file).write_text(
                text.format(realm=REALM, directory=self.directory, port=port))

    def run(self, *command):
        done = subprocess.run(command, env=self.environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            skip(f"no realm can be made here: {' '.join(command)}: {done.stderr.strip()}")

    def answers(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return self.centre.poll() is None
        except OSError:
            return False

    def start(self):
        """Others may take a port between our look and the centre's: then another."""
        for _ in range(5):
            self.write(free_port())
            self.centre = subprocess.Popen(
                ["krb5kdc", "-n", "-P", str(self.directory / "pid")], env=self.environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for _ in range(3000):
                if self.answers():
                    return
                if self.centre.poll() is not None:
                    break
                time.sleep(0.01)
            self.end()
        skip("the key distribution centre does not start")

    def end(self):
        if self.centre is not None:
            self.centre.kill()
            self.centre.wait()


def main():
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    tests, *library = sys.argv[1:]
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            skip(f"{program} is not installed ({package})")
    with tempfile.TemporaryDirectory(prefix="clan-gss-") as directory:
        realm = Realm(directory)
        try:
            realm.start()
            environment = {**realm.environment, "CLAN_TEST_GSS": SERVICE.replace("/", "@")}
            if library:
                environment["LD_PRELOAD"] = library[0]
            done = subprocess.run([tests, "--gtest_filter=*Gss.*"], env=environment,
                                  stdout=subprocess.PIPE, text=True, check=False)
            print(done.stdout)
            return 0 if done.returncode == 0 and "[  PASSED  ] 6 tests" in done.stdout else 1
        finally:
            realm.end()


if __name__ == "__main__":
    sys.exit(main())
