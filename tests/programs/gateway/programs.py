#!/usr/bin/env python3
"""Programs of others around the gateway, as they are: servers and proxies that read PROXY headers
show the client's address, proxies that write them are believed, and clients notice nothing.

    programs.py CLAN NATIVE [TEST...]

A program that is not installed is a skip.
"""
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import support
from support import CLAN, Skip, echo, free_port, gateway, listens, receive_all, running, until


def found(program):
    path = shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin")
    if path is None:
        raise Skip(f"{program} is not installed")
    return path


@contextlib.contextmanager
def server(*words, port, prefix=(CLAN, "run")):
    with running(*words, prefix=prefix, stdout=subprocess.DEVNULL,
                 stderr=subprocess.DEVNULL) as process:
        until(lambda: listens(port), f"{words[0]} listens", process)
        yield process


@contextlib.contextmanager
def nginx(text):
    """An nginx by this configuration: its directory."""
    program = found("nginx")
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        Path(directory, "index.html").write_text("hello\n" * 200)
        port = int(text.split("listen 127.0.0.1:")[1].split(";")[0].split()[0])
        modules = Path("/usr/lib/nginx/modules/ngx_stream_module.so")
        load = f"load_module {modules};" if "stream {" in text and modules.exists() else ""
        Path(directory, "nginx.conf").write_text(
            f"{load} daemon off; master_process off; pid {directory}/pid;"
            f"error_log {directory}/error.log; events {{}}\n{text.replace('HERE', directory)}")
        with server(program, "-p", directory, "-c", f"{directory}/nginx.conf", "-e",
                    f"{directory}/error.log", port=port):
            yield Path(directory)


def nginx_logs_the_client_by_proxy_headers():
    port = free_port()
    with nginx(f"""http {{ log_format who '$proxy_protocol_addr:$proxy_protocol_port';
        access_log HERE/access.log who; server {{ listen 127.0.0.1:{port} proxy_protocol;
        root HERE; }} }}""") as directory:
        for version in ("v1", "v2"):
            with gateway(port, "--send-proxy", version) as g, g.connect() as s:
                mine = f"127.0.0.1:{s.getsockname()[1]}\n"
                s.sendall(b"GET /index.html HTTP/1.0\r\n\r\n")
                assert receive_all(s).endswith(b"hello\n" * 200)
                until(lambda: mine in Path(directory, "access.log").read_text(), mine)


def proxies_that_send_headers_are_believed():
    """haproxy (v1 and v2) and nginx (v1) before the gateway, which passes on what they say."""
    def answer(s):
        data = b""
        while not data.endswith(b"hello") and (more := s.recv(1000)):
            data += more
        s.sendall(data)

    with support.Server(answer) as reader, gateway(
            reader.port, "--accept-proxy", "127.0.0.0/8", "--send-proxy", "v1") as g:
        def says_the_client(port):
            with socket.create_connection(("127.0.0.1", port), timeout=support.WAIT) as s:
                wanted = f"PROXY TCP4 127.0.0.1 127.0.0.1 {s.getsockname()[1]} {port}\r\n"
                s.sendall(b"hello")
                assert receive_all(s).startswith(wanted.encode())

        tried = 0
        for option in ("send-proxy", "send-proxy-v2"):
            with contextlib.suppress(Skip), tempfile.TemporaryDirectory() as directory:
                port, program = free_port(), found("haproxy")
                Path(directory, "cfg").write_text(
                    "global\n maxconn 100\ndefaults\n mode tcp\n timeout connect 9s\n"
                    " timeout client 99s\n timeout server 99s\n"
                    f"listen l\n bind 127.0.0.1:{port}\n"
                    f" server s 127.0.0.1:{g.port} {option}\n")
                with server(program, "-f", f"{directory}/cfg", "-db", port=port, prefix=()):
                    says_the_client(port)
                    tried += 1
        with contextlib.suppress(Skip):
            if not Path("/usr/lib/nginx/modules/ngx_stream_module.so").exists():
                raise Skip("nginx has no stream module")
            port = free_port()
            with nginx(f"stream {{ server {{ listen 127.0.0.1:{port}; proxy_protocol on;"
                       f"proxy_pass 127.0.0.1:{g.port}; }} }}"):
                says_the_client(port)
                tried += 1
        if tried == 0:
            raise Skip("neither haproxy nor nginx's stream module is installed")


def haproxy_reads_headers():
    port, program = free_port(), found("haproxy")
    with support.Server(echo) as target, tempfile.TemporaryDirectory() as directory:
        Path(directory, "cfg").write_text(
            "global\n maxconn 100\ndefaults\n mode tcp\n timeout connect 9s\n"
            " timeout client 99s\n timeout server 99s\n"
            f"listen l\n bind 127.0.0.1:{port} accept-proxy\n"
            f" server s 127.0.0.1:{target.port} send-proxy\n")
        with server(program, "-f", f"{directory}/cfg", "-db", port=port), \
                gateway(port, "--send-proxy", "v2") as g, g.connect() as s:
            wanted = f"PROXY TCP4 127.0.0.1 127.0.0.1 {s.getsockname()[1]} {g.port}\r\n"
            s.sendall(b"hello")
            s.shutdown(socket.SHUT_WR)
            assert receive_all(s) == wanted.encode() + b"hello"


def redis_serves_its_clients():
    port, program = free_port(), found("redis-server")
    bench = found("redis-benchmark")
    with tempfile.TemporaryDirectory() as directory, server(
            program, "--port", port, "--dir", directory, "--save", "", port=port), \
            gateway(port) as g:
        done = subprocess.run([bench, "-p", str(g.port), "-n", "20000", "-c", "20", "-q", "-t",
                               "set,get,lrange_300,mset"], capture_output=True, text=True,
                              timeout=2 * support.WAIT, check=False)
        assert done.returncode == 0 and "GET" in done.stdout, done
        big = os.urandom(3_000_000).hex()
        cli = [found("redis-cli"), "-p", str(g.port), "-x", "set", "big"]
        subprocess.run(cli, input=big, text=True, stdout=subprocess.DEVNULL, check=True)
        got = subprocess.run([cli[0], "-p", str(g.port), "get", "big"], capture_output=True,
                             text=True, check=True).stdout
        assert got.strip() == big


support.main({test.__name__: test for test in (
    nginx_logs_the_client_by_proxy_headers, proxies_that_send_headers_are_believed,
    haproxy_reads_headers, redis_serves_its_clients)})
