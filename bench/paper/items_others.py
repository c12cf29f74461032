"""The items of shrimp-client-server and U-Net/MM, and of the front page."""

import shapes
from items import COPIES, RATES, TIMES, Item, Series, Stated, drawings

FORMS = ("DU+1copy", "DU+2copy", "AU+1copy")
STAGES = {"SunRPC (tcp)": "SunRPC", "vRPC direct": "Direct vRPC", "vRPC reduced": "Reduced vRPC",
          "vRPC optimized": "Optimized vRPC"}
TRACES = ("radix-small", "radix-bulk", "sample-small", "sample-bulk", "matmul-128", "matmul-16",
          "sockets")

PROGRAMS = ("redis", "nginx", "PostgreSQL", "iperf3", "x11perf")

SHRIMP = (
    Item("shrimp.fig1", "Latency of the VMMC layer",
         "Automatic update is ahead of deliberate update for small messages.",
         series=(Series("vmmc", "vmmc_latency", "vmmc, alias", "AU+1copy"),
                 Series("vmmc", "vmmc_latency", "vmmc", "DU+1copy"),
                 Series("vmmc", "vmmc_latency", "clan-poll", "messages"),
                 Series("vmmc", "vmmc_latency", "bare", "bare slot")), peers=TIMES,
         lines=(shapes.faster("AU+1copy", "DU+1copy", 8), shapes.at_most_trips("DU+1copy", 8, 4)),
         remark="The bandwidth half of the figure is figure 10."),
    *drawings("shrimp", "docs/sunrpc.md", fig2="Structure of the implementations",
              fig3="The common execution path in a call"),
    Item("shrimp.fig4", "SunRPC and vRPC: latency",
         "Without the kernel a call is many times faster, and each stage of vRPC takes off more.",
         series=tuple(Series("rpc", "echo", variant, label)
                      for variant, label in STAGES.items()),
         lines=(shapes.faster("Optimized vRPC", "SunRPC", 1, 5),
                shapes.faster("Optimized vRPC", "Direct vRPC", 1440),
                shapes.faster("Reduced vRPC", "Direct vRPC", 1440)),
         remark="Null calls stand at 1 B."),
    Item("shrimp.fig5", "Where the time of an optimized call goes",
         "For small calls control dominates, for large ones the data.",
         series=(Series("rpc", "share", "line", "a cache line there and back"),
                 Series("rpc", "share", "xdr", "XDR, both ends"),
                 Series("rpc", "share", "rest", "the rest: heads, rings, dispatch")),
         axis="plain", lines=(shapes.rises("XDR, both ends"),),
         remark="Client and server together, in us. Null calls stand at 1 B."),
    Item("shrimp.fig6", "ShrimpRPC beside vRPC",
         "More than three times faster for small arguments, about twice for large ones.",
         series=(Series("rpc", "echo", "ShrimpRPC", "ShrimpRPC"),
                 Series("rpc", "echo", "vRPC optimized", "vRPC")),
         stated=(Stated("ShrimpRPC, small", 9.5, "us", 1, ("ShrimpRPC", 1)),
                 Stated("vRPC, small", 33, "us", 1, ("vRPC", 1))),
         lines=(shapes.faster("ShrimpRPC", "vRPC", 1, 2), shapes.faster("ShrimpRPC", "vRPC", 64, 2),
                shapes.faster("ShrimpRPC", "vRPC", 3072, 2),
                shapes.at_most_trips("ShrimpRPC", 1, 3)),
         remark="Null calls stand at 1 B."),
    *drawings("shrimp", "docs/vmmc-unet.md", fig7="Implementation layers",
              fig8="Unidirectional byte stream", fig9="Simple send and receive"),
    Item("shrimp.fig10", "Stream sockets over VMMC: bandwidth",
         "All three forms are alike, close to the limit of one copy, and rise steeply.",
         series=tuple(Series("stream", "vmmc_stream_bandwidth", f, f) for f in FORMS),
         peers=RATES, limits=COPIES, axis="bandwidth",
         stated=(Stated("r_inf: 13.5 MB/s", 0.0135, "GB/s", None, ("AU+1copy", 16384)),
                 Stated("half of it at n_1/2 = 256 B", 0.00675, "GB/s", 256, ("AU+1copy", 256))),
         lines=(shapes.half_size("AU+1copy", 1024), shapes.rises("DU+1copy"))),
    Item("shrimp.fig11", "Stream sockets over VMMC: latency",
         "One way takes 11 us, 7 us above the limit of the hardware.",
         series=tuple(Series("stream", "vmmc_stream_latency", f, f) for f in FORMS), peers=TIMES,
         most_x=1024,
         stated=(Stated("one way 11 us, there and back", 22, "us", 8, ("AU+1copy", 8)),),
         lines=(shapes.at_most_trips("AU+1copy", 8, 6), shapes.faster("AU+1copy", "DU+2copy", 8))),
    Item("shrimp.fig12", "ttcp: one-way bandwidth by message size",
         "Near its peak at 7 KB, half of it at 512 B.",
         series=tuple(Series("bandwidth", "bandwidth", variant, label) for variant, label in (
             ("clan-poll", "stream"), ("clan", "stream that waits"), ("bare", "bare ring"),
             ("tcp", "TCP"), ("unix", "UNIX socket"))),
         peers=RATES[2:], limits=COPIES, axis="bandwidth", most_x=16384,
         stated=(Stated("r_inf: 12.4 MB/s at 7 KB", 0.0124, "GB/s", 7168, ("stream", 4096)),
                 Stated("half of it at n_1/2 = 512 B", 0.0062, "GB/s", 512, ("stream", 256))),
         lines=(shapes.half_size("stream", 1024), shapes.faster("stream", "TCP", 256, 4),
                shapes.faster("stream", "TCP", 16384)),
         remark="A loop of our own in place of ttcp; clan.fig3 has larger messages."),
    Item("shrimp.fig13", "netperf: one-way bandwidth", "r_inf 13 MB/s, n_1/2 256 B.",
         missing="netperf is not in Debian main; shrimp.fig12 asks the same"),
)

CASES = (("hit", "TLB hit"), ("miss, present", "miss, page present"),
         ("miss, copy-on-write", "miss, copy-on-write"), ("miss, zero-fill", "miss, zero map-in"),
         ("miss, page-in from a file", "miss, page fault"), ("unpin, by madvise", "unpin"))

UNET = (
    *drawings("unet", "docs/vmmc-unet.md", fig1="U-Net building blocks",
              fig2="Two U-Net/MM implementations"),
    Item("unet.table1", "Overheads with and without address translation in the NI",
         "A hit costs little; a miss costs the hand-shake with the kernel and what the page needs.",
         series=(*(Series("unet", "unet_table", variant, label) for variant, label in CASES),
                 Series("unet", "unet_queues", "send queue", "send queue")), axis="plain",
         stated=(Stated("queue handling of a send", 10, "us", 1, ("send queue", 1)),
                 Stated("TLB hit", 1, "us", 1, ("TLB hit", 1)),
                 Stated("miss, present: 24 + 10 + 11 us", 45, "us", 1, ("miss, page present", 1)),
                 Stated("miss, copy-on-write: 24 + 10 + 44 us", 78, "us", 1,
                        ("miss, copy-on-write", 1)),
                 Stated("miss, zero map-in: 24 + 10 + 36 us", 70, "us", 1,
                        ("miss, zero map-in", 1)),
                 Stated("miss, page fault: about 22 ms", 22000, "us", 1, ("miss, page fault", 1)),
                 Stated("unpin", 4, "us", 1, ("unpin", 1))),
         lines=(shapes.faster("TLB hit", "miss, page present", 1, 5),
                shapes.faster("miss, page present", "miss, copy-on-write", 1),
                shapes.faster("miss, zero map-in", "miss, copy-on-write", 1),
                shapes.faster("miss, copy-on-write", "miss, page fault", 1))),
    Item("unet.fig3", "Misses of the TLB by program",
         "With 1,024 entries no program has a miss that is not compulsory; with 256 those with "
         "many pages have.",
         series=tuple(Series("tlbsim", "tlb_misses", trace, trace) for trace in TRACES),
         axis="plain",
         stated=(Stated("non-compulsory misses at 1,024 entries, all programs", 0, "misses", 1024,
                        ("sockets", 1024)),),
         lines=(*(shapes.none(trace, 1024) for trace in TRACES),
                shapes.none("sample-small", 256), shapes.none("matmul-16", 256),
                shapes.some("radix-bulk", 256), shapes.some("sockets", 256))),
    Item("unet.programs", "Misses of the TLB by real programs",
         "With 1,024 entries no program has a miss that is not compulsory.",
         series=tuple(Series("traces", "tlb_misses", name, name) for name in PROGRAMS),
         axis="plain",
         lines=tuple(shapes.none(name, 1024) for name in PROGRAMS),
         remark="Servers of today in place of the paper's telnet, rlogin and FTP, recorded while "
                "their clients work, and a client of X."),
)

# The plots of the front page, which `clan bench paper --only readme -o DIR` makes: how many times
# as fast as without CLAN, the losses too. They are of no paper and nothing is judged.
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
