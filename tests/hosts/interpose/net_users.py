#!/usr/bin/env python3
"""Users of the hosts that `clan run --net` connects: servers that change theirs, and several on one
host.

    net_users.py CLAN PEER SLEEPERS HOSTS [CASE...]

The arguments and the hosts are those of net.py. The library lies in a folder that every user can
read. Exit code 77: not root, or no `ip`.
"""
import contextlib
import glob
import grp
import json
import os
import pwd
import secrets
import shutil
import subprocess
import sys
import tempfile
import time

import net
from net import MOVED, PEER, PORT, SERVER, Failed, expect, kill_all, made, said, under

FIRST, SECOND = 61001, 61002  # users without a name


@contextlib.contextmanager
def key_of(*users):
    """Files with one key, of each user one."""
    content = secrets.token_hex(32)
    with contextlib.ExitStack() as stack:
        files = []
        for user in users:
            file = stack.enter_context(tempfile.NamedTemporaryFile("w", prefix="clan-key-"))
            file.write(content)
            file.flush()
            os.chown(file.name, user, user)
            files.append({"CLAN_KEY": file.name})
        yield files


def serve(names, user, port, case, settings):
    """A server that has become that user."""
    server = under(names[0], settings, sys.executable, "-B", PEER, "serve_as", str(user), port,
                   case, "1")
    if server.stdout.readline() != "ready\n":
        kill_all(server)
        raise Failed("the server has not begun")
    return server


def ask(names, port, case, settings):
    return under(names[1], settings, sys.executable, "-B", PEER, "ask", SERVER, port, case, "1")


def have_moved(*children):
    end = time.monotonic() + 30
    while time.monotonic() < end and not all(MOVED in said(child) for child in children):
        time.sleep(0.05)
    return all(MOVED in said(child) for child in children)


def ends(*children):
    for child in children:
        text = child.communicate(timeout=120)[0]
        expect(child.returncode == 0 and "right" in text, f"it says {text!r}", *children)


def changes_user(names):
    """A server that starts as root, and serves in a child that has become another user: by a key of
    that user's, and not by one of root's, which it may not read."""
    for owner in (0, FIRST):
        with key_of(owner, 0) as (own, others):
            server = serve(names, FIRST, PORT, "streams", own)
            client = None
            try:
                client = ask(names, PORT, "streams", others)
                ends(server, client)
                expect((MOVED in said(server)) == (owner == FIRST), f"moved by a key of {owner}?",
                       client, server)
                expect(owner == FIRST or "one that this user may read" in said(server),
                       "it does not say why", server)
            finally:
                kill_all(server, client)


def second_user(names):
    """Two users of one host, with the same key: the first has the port of the directory, and the
    second one's connections are found by it. When the first has gone the second has the port, and
    a new connection of the first is found by that."""
    with key_of(FIRST, SECOND, 0) as keys, contextlib.ExitStack() as stack:
        def begin(user, port, case):
            pair = [serve(names, user, port, case, keys[(FIRST, SECOND).index(user)])]
            stack.callback(lambda: kill_all(*pair))
            pair.append(ask(names, port, case, keys[2]))
            return pair

        first = begin(FIRST, "7001", "flows")
        expect(have_moved(*first), "the first user's connection has not moved", *first)
        second = begin(SECOND, "7002", "flows")
        expect(have_moved(*second), "the second user's connection has not moved", *second)
        expect(f"belongs to user {FIRST}" in said(second[0]), "whose is the port?", *second)
        first[0].kill()
        again = begin(FIRST, "7003", "flows")
        expect(have_moved(*again), "not moved when another user had taken over", *again)
        ends(*begin(FIRST, "7004", "streams"))


def doctor(host, settings, *asked):
    text = subprocess.run(made.inside(host, net.CLAN, "doctor", "--json", *asked), text=True,
                          capture_output=True, env=net.environment(settings)).stdout
    return {one["name"]: one for one in json.loads(text)["findings"]}


def other_keys(names):
    """Two users of one host with a key each: `clan doctor` says what is wrong at both ends, and a
    port of its own for the second helps."""
    with key_of(FIRST) as (key,), key_of(SECOND) as (other,), contextlib.ExitStack() as stack:
        server = serve(names, FIRST, "7001", "flows", key)
        stack.callback(kill_all, server)
        client = ask(names, "7001", "flows", key)
        stack.callback(kill_all, client)
        expect(have_moved(server, client), "the first user's connection has not moved", server)
        seen = doctor(names[1], other, SERVER)["far_host"]
        expect(seen["state"] == "absent" and "does not take our key" in seen["seen"] and
               "another user's" in seen["seen"], seen, server)
        seen = doctor(names[0], other, "10.78.0.2")["network_port"]
        expect(seen["state"] == "limited" and f"another user, {FIRST}" in seen["seen"] and
               "CLAN_NETWORK_PORT" in seen["effect"], seen, server)
        seen = doctor(names[1], other, SERVER)["network_port"]
        expect(seen["state"] == "ok", seen, server)
        for port, moves in (("4790", False), ("4791", True)):
            settings = {**other, "CLAN_NETWORK_PORT": port}
            second = serve(names, SECOND, "7002", "streams", settings)
            stack.callback(kill_all, second)
            asking = ask(names, "7002", "streams", settings)
            stack.callback(kill_all, asking)
            ends(second, asking)
            for child in (second, asking):
                expect((MOVED in said(child)) == moves, f"port {port}: moved, or not", second,
                       asking)


NGINX = """
user nobody {group};
daemon off;
pid {folder}/pid;
error_log stderr notice;
worker_processes 1;
events {{ worker_connections 100; }}
http {{
  access_log off;
  keepalive_requests 100000;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{ listen {address}:7080; root {folder}/pages; }}
}}
"""


def http_client(host, port, path):
    """Run in the client's namespace, under `clan run`."""
    import http.client
    with open(path, "rb") as file:
        page = file.read()
    connection = http.client.HTTPConnection(host, port)
    for i in range(300):
        time.sleep(0.01)  # on a busy machine it moves a second later
        connection.request("GET", "/page")
        answer = connection.getresponse()
        assert answer.status == 200 and answer.read() == page, i
    print("right", flush=True)


def nginx(names):
    """nginx opens its port as root, and serves as nobody."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if not program:
        return print("nginx is not installed: left out")
    with tempfile.TemporaryDirectory(prefix="clan-nginx-") as folder, key_of(
            pwd.getpwnam("nobody").pw_uid) as (own,):
        os.chmod(folder, 0o755)
        os.mkdir(f"{folder}/pages")
        group = grp.getgrgid(pwd.getpwnam("nobody").pw_gid).gr_name
        page = f"{folder}/pages/page"
        with open(page, "wb") as file:
            file.write(os.urandom(20000))
        with open(f"{folder}/conf", "w") as file:
            file.write(NGINX.format(folder=folder, address=SERVER, group=group))
        server = under(names[0], own, program, "-c", f"{folder}/conf")
        client = None
        try:
            end = time.monotonic() + 30
            while "start worker process " not in said(server) and time.monotonic() < end:
                time.sleep(0.05)
            client = under(names[1], own, sys.executable, "-B", __file__, *sys.argv[1:5], "--http",
                           SERVER, "7080", page)
            text = client.communicate(timeout=100)[0]
            expect(client.returncode == 0 and "right" in text, f"nginx: {text}", client, server)
            expect(MOVED in said(client) and MOVED in said(server), "nginx has not moved", client,
                   server)
        finally:
            server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(10)
            kill_all(server, client)


CASES = (changes_user, nginx, second_user, other_keys)


@contextlib.contextmanager
def for_every_user():
    """CLAN where every user can read it, as where it is installed."""
    with tempfile.TemporaryDirectory(prefix="clan-users-") as folder:
        os.chmod(folder, 0o755)
        for part in ("bin", "lib"):
            os.mkdir(f"{folder}/{part}")
        shutil.copy(net.CLAN, f"{folder}/bin/clan")
        beside = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(net.CLAN))), "lib")
        for name in ("preload", "net", "crypto"):
            for library in glob.glob(f"{beside}/libclan-{name}.so*"):
                shutil.copy(library, f"{folder}/lib")
        built, net.CLAN = net.CLAN, f"{folder}/bin/clan"
        yield
        net.CLAN = built


def main():
    if sys.argv[5:6] == ["--http"]:
        return http_client(sys.argv[6], int(sys.argv[7]), sys.argv[8])
    if not made.possible():
        return 77
    wanted = sys.argv[5:]
    for case in CASES:
        if wanted and case.__name__ not in wanted:
            continue
        begin = time.time()
        with for_every_user(), made.hosts(1500, also="users") as names:
            try:
                case(names)
            except Failed as failure:
                print(f"{case.__name__}: {failure}")
                return 1
        print(f"{case.__name__}: right, {time.time() - begin:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
