#!/usr/bin/env python3
"""More real programs, as programs.py has them: servers that share epoll sets among threads, virtual
machines, brokers, proxies.

    more_programs.py [--preload LIB] [--clan CLAN] [--one-sided] [NAME…]
    more_programs.py --list

Debian's packages are in CLAN_TEST_PACKAGES (cmake/packages.sh), but for large ones: mariadb-server,
erlang-base, default-jdk-headless, varnish (it compiles). What is not installed is skipped.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import programs
from programs import PYTHON, ROOT, Skip, ab_report, find, free_port, port_is_open, random_bytes, sha

LARGE = 30 << 20
CURLS = 50  # of one file by one connection


def user_of_servers(run):
    """The user that servers of root change to; it is trusted."""
    run.trust("www-data", "nobody", "proxy", "vcache", "mosquitto")
    return "www-data" if ROOT else None


def files(run):
    """www/1k and www/30m; their hashes."""
    hashes = {}
    for seed, (name, size) in enumerate({"1k": 1024, "30m": LARGE}.items()):
        contents = random_bytes(seed, size)
        run.file(f"www/{name}", contents)
        hashes[name] = sha(contents)
    run.directory.chmod(0o755)
    return hashes


def web_report(run, base, hashes, requests=2000, more=()):
    """What clients see of a server of files."""
    said = {
        name: sha(run.run("curl", "-sSf", *more, f"{base}/{name}")) == wanted
        for name, wanted in hashes.items()
    }
    # curl 7.88 does not take the second answer of some servers
    if "--http2-prior-knowledge" not in more:
        said["one connection"] = sha(run.run("curl", "-sSf", *more, *[f"{base}/1k"] * CURLS)) == \
            sha((run.directory / "www/1k").read_bytes() * CURLS)
    if not more:
        said["ab"] = ab_report(run.text("ab", "-q", "-k", "-n", requests, "-c", 16, f"{base}/1k"))
    return said


def h2load_report(text):
    """Requests that were answered, and how."""
    return re.findall(r"^(?:requests|status codes): .*$", text, re.MULTILINE)


# --- web servers ----------------------------------------------------------------------------------

APACHE = """
ServerRoot {directory}
DefaultRuntimeDir {directory}
ServerName localhost
LoadModule mpm_{mpm}_module /usr/lib/apache2/modules/mod_mpm_{mpm}.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
{http2}
PidFile {directory}/{mpm}.pid
ErrorLog {directory}/{mpm}.log
Listen 127.0.0.1:{port}
DocumentRoot {directory}/www
{user}
MaxKeepAliveRequests 0
KeepAliveTimeout 5
StartServers 2
<Directory {directory}/www>
  Require all granted
</Directory>
"""


def apache(run):
    """Each of its ways to serve; the event one is a poller and workers that share a set."""
    find("apache2")
    user = user_of_servers(run)
    hashes = files(run)
    said = {}
    for mpm in ("event", "worker", "prefork"):
        port = free_port()
        http2 = mpm != "prefork" and shutil.which("h2load") is not None
        conf = run.file(
            f"{mpm}.conf",
            APACHE.format(
                directory=run.directory, mpm=mpm, port=port,
                user=f"User {user}\nGroup {user}" if user else "", http2=
                "LoadModule http2_module /usr/lib/apache2/modules/mod_http2.so\nProtocols h2c "
                "http/1.1"
                if http2 else ""))
        server = run.serve("apache2", "-f", conf, "-D", "FOREGROUND", port=port)
        base = f"http://127.0.0.1:{port}"
        said[mpm] = web_report(run, base, hashes)
        if http2:
            said[mpm]["h2"] = h2load_report(
                run.text("h2load", "-n", 1000, "-c", 4, "-m", 8, f"{base}/1k"))
        run.end(server)
        said[mpm]["exit code"] = server.returncode
        log = (run.directory / f"{mpm}.log").read_text()
        said[mpm]["errors"] = re.findall(r"\w+:(?:error|crit|alert|emerg)\].*|exit signal.*", log)
    return said


# A client that says at once that it will ask no more, and then reads slowly: a server that takes it
# for gone cuts its answer.
HALF_CLOSER = """
import socket, sys, time
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
f = s.makefile("rb")
def answer(request, most):
    s.sendall(b"GET /%s HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n" % request)
    if most > 1024:
        s.shutdown(socket.SHUT_WR)
    while f.readline() not in (b"\\r\\n", b""):
        pass
    while most > 0 and (some := f.read(min(most, 65536))):
        most -= len(some)
        yield some
        time.sleep(0.002 if most > 1024 * 1024 * 25 else 0)
for _ in range(40):
    sum(map(len, answer(b"1k", 1024)))
for some in answer(b"30m", 30 << 20):
    sys.stdout.buffer.write(some)
"""


def lighttpd(run, origin=False):
    find("lighttpd")
    user = user_of_servers(run)
    hashes = files(run)
    port = free_port()
    conf = run.file("lighttpd.conf", f"""
server.document-root = "{run.directory}/www"
server.port = {port}
server.bind = "127.0.0.1"
server.max-keep-alive-requests = 100000
server.errorlog = "{run.directory}/lighttpd.log"
""" + (f'server.username = "{user}"\nserver.groupname = "{user}"\n' if user else ""))
    log = run.file("lighttpd.log", "")
    log.chmod(0o666)
    server = run.serve("lighttpd", "-D", "-f", conf, port=port)
    base = f"http://127.0.0.1:{port}"
    if origin:
        return base, port, hashes
    said = web_report(run, base, hashes)
    said["half-closed"] = sha(run.run(PYTHON, "-c", HALF_CLOSER, port)) == hashes["30m"]
    run.end(server)
    # its exit code is 0 or 1, as stock
    said["ended by a signal"] = "yes" if server.returncode < 0 else "no"
    said["errors"] = [line for line in log.read_text().splitlines() if "(server.c" not in line]
    return said


def nghttp2(run):
    """A proxy of HTTP/2 before a server of it."""
    find("nghttpx")
    user_of_servers(run)
    hashes = files(run)
    front, back = free_port(), free_port()
    run.serve("nghttpd", "--no-tls", "-d", run.directory / "www", "-n", 2, "-a", "127.0.0.1", back,
              port=back)
    run.serve("nghttpx", "-f", f"127.0.0.1,{front};no-tls", "-b",
              f"127.0.0.1,{back};;proto=h2", "--no-ocsp", "-n", 2, "--conf",
              run.file("nghttpx.conf", ""), "-k", "--errorlog-file", run.directory / "nghttpx.log",
              "--accesslog-file", "/dev/null", port=front)
    said = {}
    for name, port in {"direct": back, "proxy": front}.items():
        base = f"http://127.0.0.1:{port}"
        said[name] = web_report(run, base, hashes, more=["--http2-prior-knowledge"])
        said[f"{name} load"] = h2load_report(
            run.text("h2load", "-n", 3000, "-c", 8, "-m", 8, f"{base}/1k"))
    said["proxy by HTTP/1"] = ab_report(
        run.text("ab", "-q", "-k", "-n", 1000, "-c", 8, f"http://127.0.0.1:{front}/1k"))
    return said


def squid(run):
    find("squid")
    base, _, hashes = lighttpd(run, origin=True)
    port = free_port()
    place = run.directory / "squid"
    place.mkdir()
    place.chmod(0o777)
    conf = run.file("squid.conf", f"""
http_port 127.0.0.1:{port}
http_access allow all
cache deny all
pid_filename {place}/squid.pid
cache_log {place}/cache.log
access_log none
coredump_dir {place}
shutdown_lifetime 0 seconds
pinger_enable off
netdb_filename none
visible_hostname localhost
workers 1
""")
    run.serve("squid", "-N", "-f", conf, port=port)
    proxy = ["-x", f"http://127.0.0.1:{port}"]
    said = web_report(run, base, hashes, more=proxy)
    said["ab"] = ab_report(
        run.text("ab", "-q", "-k", "-n", 1000, "-c", 8, "-X", f"127.0.0.1:{port}", f"{base}/1k"))
    log = (place / "cache.log").read_text()
    said["errors"] = re.findall(r"(?:FATAL|ERROR|assertion).*", log)
    return said


def varnish(run):
    find("varnishd")
    if shutil.which("gcc") is None and shutil.which("cc") is None:
        raise Skip("varnishd needs a compiler")
    _, origin, hashes = lighttpd(run, origin=True)
    port = free_port()
    run.directory.chmod(0o777)
    run.serve("varnishd", "-F", "-j", "none", "-a", f"127.0.0.1:{port}", "-b",
              f"127.0.0.1:{origin}", "-n", run.directory / "varnish", "-s", "malloc,100m",
              port=port)
    return web_report(run, f"http://127.0.0.1:{port}", hashes)


# --- in languages of their own --------------------------------------------------------------------

PHP_ROUTER = """<?php
$size = (int)substr($_SERVER['REQUEST_URI'], 1);
header('X-Sum: ' . md5(file_get_contents('php://input')));
echo str_repeat('p', $size);
"""


def php(run):
    find("php")
    port = free_port()
    # It closes each connection after one answer. And it opens modules past the library
    # (RTLD_DEEPBIND): none, here.
    run.environment["CLAN_TEST_MOVE"] = "1"
    router = run.file("router.php", PHP_ROUTER)
    run.serve("php", "-n", "-d", "post_max_size=20M", "-d", "display_errors=0", "-S",
              f"127.0.0.1:{port}", router, port=port)
    base = f"http://127.0.0.1:{port}"
    body = run.file("body", random_bytes(5, 5 << 20))
    return {
        "many": sha(run.run("curl", "-sSf", *[f"{base}/5000"] * 60)),
        "large": sha(run.run("curl", "-sSf", f"{base}/{LARGE}")),
        "post": sha(
            run.run("curl", "-sSf", "-H", "Content-Type: application/octet-stream", "--data-binary",
                    f"@{body}", "-w", "%header{x-sum}", f"{base}/1000000")),
        "ab": ab_report(run.text("ab", "-q", "-n", 500, "-c", 4, f"{base}/1000")),
    }


RUBY_SERVER = """
require 'socket'
server = TCPServer.new('127.0.0.1', ARGV[0].to_i)
loop do
  Thread.new(server.accept) do |s|
    while (line = s.gets)
      s.write(line.reverse.lstrip, "\\n", s.read(line.to_i), "\\n")
    end
    s.close
  end
end
"""

RUBY_CLIENT = """
require 'socket'
require 'digest/sha2'  # at once: loaded by several threads it may be half there
digests = (0...6).map do |n|
  Thread.new do
    digest = Digest::SHA256.new
    TCPSocket.open('127.0.0.1', ARGV[0].to_i) do |s|
      100.times do |i|
        size = (i * 7919 + n * 31) % 60000
        s.write("#{size}\\n", (n.to_s * size))
        digest << s.gets << s.read(size + 1)
      end
    end
    digest.hexdigest
  end
end
puts Digest::SHA256.hexdigest(digests.map(&:value).join)
"""

PERL_SERVER = """
use IO::Socket::INET; use IO::Select;
my $l = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $ARGV[0], Listen => 50,
                              ReuseAddr => 1) or die;
my $all = IO::Select->new($l);
while (1) {
  for my $s ($all->can_read) {
    if ($s == $l) { $all->add($l->accept); next; }
    my $n = sysread($s, my $text, 65536);
    if (!$n) { $all->remove($s); close($s); next; }
    $text = uc $text;
    my $at = 0;
    while ($at < $n) { $at += syswrite($s, $text, $n - $at, $at) // die; }
  }
}
"""

PERL_CLIENT = """
use IO::Socket::INET; use Digest::SHA;
my $sum = Digest::SHA->new(256);
my @s = map { IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $ARGV[0]) or die } 1..8;
for my $i (1..150) {
  my $k = 0;
  for my $s (@s) { my $text = chr(97 + $k++) x ($i * 211 % 30000 + 1); print $s $text; $s->flush; }
  for my $s (@s) {
    my $want = $i * 211 % 30000 + 1;
    read($s, my $text, $want) == $want or die;
    $sum->add($text);
  }
}
print $sum->hexdigest, "\\n";
"""


def ruby(run):
    port = free_port()
    run.serve("ruby", run.file("server.rb", RUBY_SERVER), port, port=port)
    return {"talk": run.text("ruby", run.file("client.rb", RUBY_CLIENT), port)}


def perl(run):
    port = free_port()
    run.serve("perl", run.file("server.pl", PERL_SERVER), port, port=port)
    return {"talk": run.text("perl", run.file("client.pl", PERL_CLIENT), port)}


JAVA_ASYNC = """
import java.net.*;
import java.nio.ByteBuffer;
import java.nio.channels.*;
import java.security.MessageDigest;
import java.util.*;
import java.util.concurrent.*;

public class Async {
  static void read(AsynchronousSocketChannel c, ByteBuffer b) {
    b.clear();
    c.read(b, null, new CompletionHandler<Integer, Void>() {
      public void completed(Integer n, Void v) {
        if (n < 0) { try { c.close(); } catch (Exception e) { } return; }
        b.flip();
        write(c, b);
      }
      public void failed(Throwable t, Void v) { System.err.println(t); }
    });
  }

  static void write(AsynchronousSocketChannel c, ByteBuffer b) {
    c.write(b, null, new CompletionHandler<Integer, Void>() {
      public void completed(Integer n, Void v) {
        if (b.hasRemaining()) write(c, b); else read(c, b);
      }
      public void failed(Throwable t, Void v) { System.err.println(t); }
    });
  }

  static void serve(int port) throws Exception {
    AsynchronousChannelGroup group =
        AsynchronousChannelGroup.withFixedThreadPool(3, Executors.defaultThreadFactory());
    AsynchronousServerSocketChannel s = AsynchronousServerSocketChannel.open(group);
    s.bind(new InetSocketAddress("127.0.0.1", port));
    s.accept(null, new CompletionHandler<AsynchronousSocketChannel, Void>() {
      public void completed(AsynchronousSocketChannel c, Void v) {
        s.accept(null, this);
        read(c, ByteBuffer.allocate(32768));
      }
      public void failed(Throwable t, Void v) { System.err.println(t); }
    });
    Thread.sleep(1000000);
  }

  static void talk(int port) throws Exception {
    int count = 8;
    MessageDigest[] sums = new MessageDigest[count];
    Thread[] threads = new Thread[count];
    for (int k = 0; k < count; k++) {
      final int n = k;
      sums[k] = MessageDigest.getInstance("SHA-256");
      threads[k] = new Thread(() -> {
        try (AsynchronousSocketChannel c = AsynchronousSocketChannel.open()) {
          c.connect(new InetSocketAddress("127.0.0.1", port)).get();
          for (int i = 0; i < 80; i++) {
            byte[] out = new byte[(i * 997 + n) % 60000 + 1];
            Arrays.fill(out, (byte) (n + i));
            ByteBuffer b = ByteBuffer.wrap(out), in = ByteBuffer.allocate(out.length);
            while (b.hasRemaining()) c.write(b).get();
            while (in.hasRemaining())
              if (c.read(in).get(10, TimeUnit.SECONDS) < 0) throw new Exception("end");
            if (!Arrays.equals(out, in.array())) throw new Exception("wrong bytes");
            sums[n].update(in.array());
          }
        } catch (Exception e) { System.out.println(e); }
      });
      threads[k].start();
    }
    MessageDigest all = MessageDigest.getInstance("SHA-256");
    for (int k = 0; k < count; k++) { threads[k].join(); all.update(sums[k].digest()); }
    System.out.println(HexFormat.of().formatHex(all.digest()));
    System.exit(0);
  }

  public static void main(String[] a) throws Exception {
    if (a[0].equals("serve")) serve(Integer.parseInt(a[1])); else talk(Integer.parseInt(a[1]));
  }
}
"""


def java_async(run):
    """Channels whose threads share an epoll set, one-shot."""
    find("javac")
    port = free_port()
    run.run("javac", "-J-XX:-UsePerfData", "-d", ".", run.file("Async.java", JAVA_ASYNC),
            role="nobody")
    small = ["java", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xmx256m", "-cp", "."]
    run.serve(*small, "Async", "serve", port, port=port)
    return {"talk": run.text(*small, "Async", "talk", port)}


ERLANG_TALK = """
Node = list_to_atom("server@localhost"),
pong = net_adm:ping(Node),
Sums = [begin
  Bytes = binary:copy(<<(I rem 256)>>, I * 7001 rem 300000),
  rpc:call(Node, erlang, md5, [Bytes])
end || I <- lists:seq(1, 300)],
Same = [rpc:call(Node, binary, copy, [<<I>>, I * 1009 rem 100000]) || I <- lists:seq(1, 200)],
io:format("~s~n", [binary:encode_hex(erlang:md5([Sums, Same]))]),
halt(0).
"""


def erlang(run):
    """Two nodes. epmd, which knows their ports, is ours and has a port of its own."""
    find("erl")
    port = free_port()
    epmd = shutil.which("epmd") or "/usr/lib/erlang/bin/epmd"
    run.environment |= {
        "ERL_EPMD_PORT": str(port), "HOME": str(run.directory), "ERL_EPMD_ADDRESS": "127.0.0.1"
    }
    run.serve(epmd, "-port", port, "-address", "127.0.0.1", port=port)
    common = [
        "-noinput", "-setcookie", "secret", "-kernel", "inet_dist_use_interface", "{127,0,0,1}"
    ]
    run.serve("erl", *common, "-sname", "server@localhost")
    run.until("the node is known", lambda: b"server" in subprocess.run(
        [epmd, "-port", str(port), "-names"], capture_output=True, check=False).stdout)
    return {
        "talk": run.text("erl", *common, "-sname", "client@localhost", "-eval",
                         " ".join(ERLANG_TALK.split()))
    }


# Confirms, a consumer with acknowledgements, messages of 0 bytes to 2 MB, in two queues: what came,
# in which order.
RABBIT_CLIENT = """
import hashlib, pika, sys
def connect():
    to = pika.ConnectionParameters('127.0.0.1', int(sys.argv[1]), heartbeat=30)
    return pika.BlockingConnection(to)
sizes = [i * 7919 % 20000 for i in range(400)] + [0, 2 << 20, 1, 300000] * 3
def body(i, n):
    return hashlib.sha256(b'%d' % i).digest() * (n // 32) + bytes(n % 32)
sender, taker = connect(), connect()
out, take = sender.channel(), taker.channel()
out.confirm_delivery()
for queue, durable in (('fast', False), ('safe', True)):
    out.queue_declare(queue, durable=durable)
    for i, n in enumerate(sizes):
        out.basic_publish('', queue, body(i, n), pika.BasicProperties(message_id=str(i)),
                          mandatory=True)
    count = out.queue_declare(queue, durable=durable, passive=True).method.message_count
    sum, order = hashlib.sha256(), True
    take.basic_qos(prefetch_count=20)
    for i, (method, properties, got) in enumerate(take.consume(queue, inactivity_timeout=20)):
        order = order and properties.message_id == str(i) and got == body(i, sizes[i])
        sum.update(got)
        take.basic_ack(method.delivery_tag)
        if i == len(sizes) - 1:
            break
    take.cancel()
    print(queue, count, order, sum.hexdigest()[:16])
# An echo by two queues: each message waits for the one before.
out.queue_declare('ask'); out.queue_declare('answer')
take.basic_qos(prefetch_count=1)
back = hashlib.sha256()
asked = take.consume('ask', inactivity_timeout=20)
answers = out.consume('answer', inactivity_timeout=20)
for i in range(200):
    out.basic_publish('', 'ask', b'%d' % i)
    method, _, got = next(asked)
    take.basic_publish('', 'answer', got * 3)
    take.basic_ack(method.delivery_tag)
    method, _, got = next(answers)
    out.basic_ack(method.delivery_tag)
    back.update(got)
print('echo', back.hexdigest()[:16])
sender.close()
taker.close()
"""


def rabbitmq(run):
    """Erlang's virtual machine as a broker, and clients in Python."""
    server = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # the one in sbin changes the user
    if not server.exists() or subprocess.run([PYTHON, "-c", "import pika"], capture_output=True,
                                             check=False).returncode:
        raise Skip("rabbitmq-server or python3-pika is not installed")
    port, names, other = free_port(), free_port(), free_port()
    place = run.directory / "rabbit"
    place.mkdir()
    run.environment |= {
        "HOME": str(place), "RABBITMQ_HOME": "/usr/lib/rabbitmq", "ERL_EPMD_PORT": str(names),
        "ERL_EPMD_ADDRESS": "127.0.0.1", "RABBITMQ_NODENAME": f"rabbit{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(other), "RABBITMQ_MNESIA_BASE": str(place),
        "RABBITMQ_LOG_BASE": str(place), "RABBITMQ_LOGS": "-", "RABBITMQ_ENABLED_PLUGINS_FILE": str(
            place / "plugins"), "RABBITMQ_PID_FILE": str(place / "pid"),
        "RABBITMQ_CONFIG_FILE": str(place / "none"), "RABBITMQ_CONF_ENV_FILE": str(place / "none")
    }
    epmd = shutil.which("epmd") or "/usr/lib/erlang/bin/epmd"
    run.serve(epmd, "-port", names, "-address", "127.0.0.1", port=names)
    broker = run.serve(server, out="rabbit.log")
    log = run.directory / "rabbit.log"
    run.until("the broker has started",
              lambda: broker.poll() is not None or b"completed with" in log.read_bytes(),
              timeout=60)
    said = {
        "talk": run.text(PYTHON, run.file("client.py", RABBIT_CLIENT), port,
                         timeout=60).splitlines()
    }
    run.end(broker, patience=20)
    said["exit code"] = broker.returncode
    said["errors"] = re.findall(r"\[(?:error|critical)\].*", log.read_text(errors="replace"))
    return said


# --- brokers and databases ------------------------------------------------------------------------

BEANSTALK_CLIENT = """
import hashlib, socket, sys
def connect():
    s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
    return s, s.makefile('rb')
def ask(c, line, body=None):
    c[0].sendall(line.encode() + b'\\r\\n' + (body + b'\\r\\n' if body is not None else b''))
    answer = c[1].readline().split()
    return answer, c[1].read(int(answer[2]) + 2)[:-2] if answer[0] == b'RESERVED' else None
makers = [connect() for _ in range(3)]
taker = connect()
sums = []
for i in range(600):
    body = bytes([i % 256]) * (i * 89 % 20000)
    assert ask(makers[i % 3], f'put 0 0 60 {len(body)}', body)[0][0] == b'INSERTED'
    answer, got = ask(taker, 'reserve')
    sums.append(hashlib.sha256(got).digest())
    assert ask(taker, f'delete {answer[1].decode()}')[0] == [b'DELETED']
print(len(sums), hashlib.sha256(b''.join(sums)).hexdigest())
"""


def beanstalkd(run):
    """Behind a proxy, so each request is a chain of four."""
    find("haproxy")
    port, front = free_port(), free_port()
    run.serve("beanstalkd", "-l", "127.0.0.1", "-p", port, port=port)
    conf = run.file("haproxy.cfg", f"""
defaults
  timeout connect 5s
  timeout client 20s
  timeout server 20s
listen tcp
  mode tcp
  bind 127.0.0.1:{front}
  server a 127.0.0.1:{port}
""")
    run.serve("haproxy", "-db", "-f", conf, port=front)
    client = run.file("client.py", BEANSTALK_CLIENT)
    return {"direct": run.text(PYTHON, client, port), "proxy": run.text(PYTHON, client, front)}


def mosquitto(run):
    find("mosquitto")
    find("mosquitto_pub")
    user_of_servers(run)
    port = free_port()
    conf = run.file(
        "mosquitto.conf",
        f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n" +
        ("user root\n" if ROOT else ""))
    run.serve("mosquitto", "-c", conf, port=port)
    to = ["-h", "127.0.0.1", "-p", port]
    count = 1000
    listeners = [
        run.serve("mosquitto_sub", *to, "-t", "news/#", "-q", quality, "-C", count, role="client",
                  out=f"heard{quality}", once=True) for quality in (0, 1, 2)
    ]
    run.until("all listen", lambda: all_subscribed(port, 3))
    lines = "".join(f"{i} {sha(b'%d' % i) * (i % 20)}\n" for i in range(count))
    run.run("mosquitto_pub", *to, "-t", "news/a", "-q", 1, "-l", data=lines.encode())
    said = {f"listener {k}": each.wait(20) for k, each in enumerate(listeners)}
    for quality in (0, 1, 2):
        said[f"heard {quality}"] = (run.directory / f"heard{quality}").read_text() == lines
    return said


def all_subscribed(port, count):
    """So many connections to a port, and a moment for what they say first."""
    wanted = f":{port:04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    if sum(words[1].endswith(wanted) and words[3] == "01" for words in lines) < count:
        return False
    programs.time.sleep(0.3)
    return True


ZMQ_PROGRAM = """
import hashlib, sys, zmq
what, rep, pull, pub = sys.argv[1], *(f'tcp://127.0.0.1:{p}' for p in sys.argv[2:])
c = zmq.Context()
if what == 'serve':
    a, b, p = c.socket(zmq.REP), c.socket(zmq.PULL), c.socket(zmq.PUB)
    for s in (a, b, p): s.set_hwm(0)
    a.bind(rep); b.bind(pull); p.bind(pub)
    poller = zmq.Poller()
    poller.register(a, zmq.POLLIN); poller.register(b, zmq.POLLIN)
    while True:
        for s, _ in poller.poll():
            m = s.recv()
            a.send(m[::-1]) if s is a else p.send(m)
a, b, p = c.socket(zmq.REQ), c.socket(zmq.PUSH), c.socket(zmq.SUB)
for s in (a, b, p): s.set_hwm(0)
p.connect(pub); p.subscribe(b''); a.connect(rep); b.connect(pull)
sums = hashlib.sha256()
while True:  # until the subscription has arrived
    b.send(b'begin')
    if p.poll(100): break
for i in range(400):
    a.send(bytes([i % 256]) * (i * 97 % 30000)); sums.update(a.recv())
for i in range(2000): b.send(b'%d' % i * (i % 300))
got = 0
while got < 2000:
    assert p.poll(10000), got
    m = p.recv()
    if m == b'begin': continue
    sums.update(m); got += 1
print(got, sums.hexdigest())
"""


def zeromq(run):
    if subprocess.run([PYTHON, "-c", "import zmq"], capture_output=True,
                      check=False).returncode != 0:
        raise Skip("python3-zmq is not installed")
    ports = [free_port() for _ in range(3)]
    program = run.file("talk.py", ZMQ_PROGRAM)
    run.serve(PYTHON, program, "serve", *ports)
    run.until("it listens", lambda: all(port_is_open(port) for port in ports))
    return {"talk": run.text(PYTHON, program, "talk", *ports)}


def stunnel(run):
    """TLS at both ends of a tunnel, before a web server."""
    find("stunnel4")
    base, origin, hashes = lighttpd(run, origin=True)
    del base
    inner, outer = free_port(), free_port()
    run.run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem",
            "-out", "cert.pem", "-days", "2", "-subj", "/CN=localhost", role="nobody")
    common = "foreground = yes\npid =\ndebug = 3\n"
    server = run.file("inner.conf", common + f"""[in]
accept = 127.0.0.1:{inner}
connect = 127.0.0.1:{origin}
cert = {run.directory}/cert.pem
key = {run.directory}/key.pem
""")
    client = run.file("outer.conf", common + f"""[out]
client = yes
accept = 127.0.0.1:{outer}
connect = 127.0.0.1:{inner}
""")
    run.serve("stunnel4", server, port=inner)
    run.serve("stunnel4", client, port=outer)
    return web_report(run, f"http://127.0.0.1:{outer}", hashes, requests=1000)


def mariadb(run):
    """With its native asynchronous I/O (an io_uring: connections stay on TCP) and without."""
    find("mariadbd")
    data = run.directory / "data"
    as_user = ["--user=root"] if ROOT else []
    run.run("mariadb-install-db", "--no-defaults", f"--datadir={data}",
            "--auth-root-authentication-method=normal", "--skip-test-db", *as_user, role="nobody")
    said = {}
    for native in ("OFF", "ON"):
        port = free_port()
        server = run.serve("mariadbd", "--no-defaults", f"--datadir={data}", f"--port={port}",
                           "--bind-address=127.0.0.1", f"--socket={run.directory}/socket",
                           f"--innodb-use-native-aio={native}", "--skip-networking=0",
                           "--innodb-flush-method=fsync", "--innodb-flush-log-at-trx-commit=0",
                           *as_user, port=port)
        to = ["-h", "127.0.0.1", "-P", port, "-u", "root", "--protocol=tcp"]
        slap = run.text("mysqlslap", "--no-defaults", *to, "--concurrency=8",
                        "--number-of-queries=2000", "--auto-generate-sql",
                        "--auto-generate-sql-load-type=mixed", "--auto-generate-sql-guid-primary")
        rows = "".join(f"insert into t values ({i}, '{sha(b'%d' % i) * (i % 9)}');\n"
                       for i in range(1000))
        run.text("mariadb", "--no-defaults", *to,
                 data=("create database d; use d; create table t (i int, s text);" + rows).encode())
        said[native] = {
            "queries": re.findall(r"Average number of queries per client: \d+", slap),
            "rows": run.text("mariadb", "--no-defaults", *to, "-N", "-e",
                             "select count(*), md5(group_concat(s order by i)) from d.t"),
            "large": sha(
                run.run("mariadb", "--no-defaults", *to, "-N", "-e",
                        "select repeat(md5('x'), 300000)")),
            "drop": run.text("mariadb", "--no-defaults", *to, "-e", "drop database d"),
        }
        run.end(server, patience=15)
        said[native]["exit code"] = server.returncode
    return said


def nginx_buffers(run):
    """A proxy writes no answer to a temporary file when the client takes it as fast as it comes."""
    find("nginx")
    front, _, hashes = programs.start_web(run)
    (run.directory / "www/1m").write_bytes(random_bytes(11, 1 << 20))
    said = {
        "ab": ab_report(
            run.text("ab", "-q", "-k", "-n", 400, "-c", 4, f"http://127.0.0.1:{front}/proxy/1m")),
        "5m": sha(run.run("curl", "-sSf", f"http://127.0.0.1:{front}/proxy/5m")) == hashes["5m"]
    }
    log = run.directory / "front.error.log"
    said["no temporary files"] = "temporary file" not in (log.read_text() if log.exists() else "")
    return said


PROGRAMS = {
    apache: 30 << 20,
    lighttpd: 10 << 20,
    nghttp2: 20 << 20,
    squid: 10 << 20,
    varnish: 10 << 20,
    php: 10 << 20,
    ruby: 10 << 20,
    perl: 10 << 20,
    java_async: 10 << 20,
    erlang: 10 << 20,
    rabbitmq: 20 << 20,
    beanstalkd: 5 << 20,
    mosquitto: 100_000,
    zeromq: 1 << 20,
    stunnel: 10 << 20,
    mariadb: 1 << 20,
    nginx_buffers: 50 << 20,
}

if __name__ == "__main__":
    programs.PROGRAMS = PROGRAMS
    sys.exit(programs.main())
