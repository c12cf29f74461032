"""The plots of the front page, which `clan bench paper --only readme -o DIR` makes: how many times
as fast as without CLAN, the losses too. They are of no paper and nothing is judged."""

from items import Item, Series

SOCKETS = {
    "redis GET -c 50 -P 1": "redis GET, 50 clients",
    "memcached get 100 B, 50 connections": "memcached get of 100 B, 50 connections",
    "nginx 1 KB keep-alive, wrk -c64": "nginx, a 1 KB page, 64 keep-alive connections",
    "pgbench -S -M prepared -c 8": "PostgreSQL, pgbench -S, 8 clients",
    "iperf3, one stream": "iperf3, one stream",
    "nginx 1 KB, a new connection per request, ab -c 8":
    "nginx, a new connection for each page: stays on TCP",
    "redis -c 50 -P 1 GET, only client under CLAN": "redis GET, only the client under CLAN: TCP",
}
WAITING = {
    "redis GET -c 1, one core (aim: 1.5)": "redis GET, both ends on one core",
    "8 redis-benchmark -c 1 and their server on two cores, GET":
    "redis GET, 8 clients and the server on two cores",
    "redis GET -c 50 beside 1 computation a core": "redis GET, 50 clients, every core computing",
    "redis PING, 1,000/s, p50": "redis PING, 1,000 a second, both asleep: median",
    "redis PING, 100/s, p50": "redis PING, 100 a second, both asleep: median",
    "redis PING, 100/s, p99": "redis PING, 100 a second, both asleep: p99",
    "wrk -c1, haproxy, nginx 1 KB, beside 1 computation a core":
    "one client, haproxy, nginx, every core computing",
}
MPI = {
    "latency 8 B": "8 B, one way", "latency 1 KB": "1 KB, one way", "latency 8 KB": "8 KB, one way",
    "latency 1 MB": "1 MB, one way", "64 under way, 8 B": "8 B, 64 under way",
    "64 under way, 64 KB": "64 KB, 64 under way", "put 8 B, MPI_Alloc_mem": "put of 8 B",
    "bcast 64 KB, 8 ranks": "broadcast of 64 KB, 8 ranks on two cores",
    "alltoall 8 B, 8 ranks": "all-to-all of 8 B, 8 ranks on two cores",
    "latency 8 B, beside computations": "8 B, one way, every core computing",
}
# As `clan bench apps --only` names them.
ROWS = {"apps_sockets": "redis-c50,memcached,nginx-c64,pgbench-c8,iperf3,nginx-connections,"
                        "one-sided-redis",
        "apps_waiting": "redis-one-core,crowded,redis-c50-beside-1,redis-rate-1000,redis-rate-100,"
                        "chain-beside-1"}


def ratios(name, title, source, heading, texts):
    return Item(f"readme.{name}", title, axis="ratio",
                series=tuple(Series(source, text, heading, label) for text, label in texts.items()))


README = (
    ratios("sockets", "Stock programs, times as good as over TCP", "apps_sockets", "times stock",
           SOCKETS),
    ratios("waiting", "Asleep and crowded, times as good as over TCP", "apps_waiting",
           "times stock", WAITING),
    ratios("mpi", "Open MPI, times as fast as over its own shared memory", "mpi_ratios",
           "vader/clan", MPI),
)
