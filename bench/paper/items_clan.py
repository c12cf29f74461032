"""The items of clan-distributed-computing, clan-driver-interface and via-over-clan."""

import shapes
from items import COPIES, RATES, TIMES, Item, Series, Stated, drawings

HARDWARE = "a drawing of switches and bridges, of which one host has none"
STREAM = Series("bandwidth", "bandwidth", "clan-poll", "PIO: stream")
DMA = Series("rdma_copy", "rdma_copy", "clan-poll", "DMA: RDMA write")
VIA_TIMES = (
    Series("via", "via_latency", "via-poll", "VIA"),
    Series("via", "via_latency", "clan-poll", "messages"),
    Series("via", "via_latency", "seqpacket-poll", "UNIX seqpacket, polling"),
)
VIA_STREAM = Series("via", "via_bandwidth", "via-poll", "VIA")
VIA_STREAMS = (VIA_STREAM, Series("via", "via_bandwidth", "messages", "messages"),
               Series("via", "via_bandwidth", "unix", "UNIX socket"))
VIA_PEERS = (RATES[0], *RATES[2:])   # it has the UNIX socket itself
VIA_LOAD = Series("via", "via_load", "via-poll", "VIA")
RAW_LOAD = Series("offered_load", "offered_load", "clan-poll", "streams")
TCP_LOAD = Series("offered_load", "offered_load", "tcp", "TCP")
UNIX_LOAD = Series("offered_load", "offered_load", "unix", "UNIX socket")
SMALL_VIA = (
    shapes.faster("VIA", "UNIX seqpacket, polling", 4, 3),
    shapes.at_most_trips("VIA", 40, 5),
)


def via_stated(*rows):
    return tuple(
        Stated(f"{what}, {size} B", value, "us", size, ("VIA", max(size, 1)))
        for size, *values in rows
        for what, value in zip(("CLAN, DMA", "CLAN, PIO", "Emulex cLAN 1000"), values))


def orb(figure, labels=("omniORB over CLAN", "giop:tcp", "giop:unix")):
    return tuple(Series("orb", figure, variant, label)
                 for variant, label in zip(("clan", "tcp", "unix"), labels))


CLAN = (
    *drawings("clan", "docs/architecture.md", fig1="A distributed message queue",
              fig2="RDMA cookie-based data transfer"),
    Item("clan.fig3", "Raw bandwidth against message size",
         "PIO has low overhead and wins for small messages, until the I/O bus limits it; DMA is "
         "limited by what a request costs, and wins for large ones.",
         series=(STREAM, DMA), peers=RATES, limits=COPIES, axis="bandwidth",
         stated=(Stated("PIO on a PC: less than 400 Mbit/s", 0.05, "GB/s"),
                 Stated("PIO on an Alpha: 960 Mbit/s", 0.12, "GB/s"),
                 Stated("half of that at messages of 100 B", 0.06, "GB/s", 100,
                        ("PIO: stream", 64))),
         lines=(shapes.faster("PIO: stream", "DMA: RDMA write", 64),
                shapes.faster("DMA: RDMA write", "PIO: stream", 1048576),
                shapes.half_size("PIO: stream", 1024, 65536)),
         remark="A stream stands for the distributed message queue of 50 KB. RDMA writes go one "
         "at a time."),
    Item("clan.single_word", "Round trip of one word (section 3.2)",
         "A word stored into the peer's memory and back: nearly all trips take the same time.",
         series=(Series("vmmc", "vmmc_latency", "vmmc, alias", "stores into the peer's memory"),
                 Series("vmmc", "vmmc_latency", "bare", "bare slot")), peers=TIMES, most_x=8,
         stated=(Stated("median of 100,000 single-word trips", 5.6, "us", 8,
                        ("stores into the peer's memory", 8)),),
         lines=(shapes.at_most_trips("stores into the peer's memory", 8, 2.5),
                shapes.tight("stores into the peer's memory", 8, 1.5))),
    Item("clan.fig4", "The architecture of CLAN MPI; its round trip (section 4.1)",
         "MPI_Send and MPI_Recv there and back stay near the network's own round trip.",
         series=tuple(Series("mpi", "latency", variant, label) for variant, label in (
             ("clan", "btl clan"), ("vader", "vader"), ("mtl ofi", "mtl ofi over CLAN"),
             ("btl tcp", "btl tcp"))), peers=TIMES[2:4],
         stated=(Stated("CLAN MPI", 15, "us", 8, ("btl clan", 8)),
                 Stated("MPI-BIP on Myrinet", 19, "us", 8, ("vader", 8)),
                 Stated("MPI over FM, Emulex cLAN 1000", 33, "us", 8, ("mtl ofi over CLAN", 8))),
         lines=(shapes.faster("btl clan", "btl tcp", 8, 10), shapes.at_most_trips("btl clan", 8, 3),
                shapes.level("btl clan", "vader", 8))),
    Item("clan.fig5", "n-body: speed-up by a second node",
         "For few particles latency decides, and CLAN does better than TCP; for many all gain.",
         series=tuple(Series("nbody", "nbody", name, name) for name in (
             "btl clan", "mtl ofi over clan", "vader", "btl tcp")), axis="plain",
         lines=(shapes.faster("btl clan", "btl tcp", 16, 2), shapes.rises("btl clan"),
                shapes.at_least("btl clan", 1024, 1.6)),
         remark="Two ranks on one host; the paper's networks are two hosts."),
    Item("clan.table1", "VIA: round trip",
         "CLAN VIA by PIO has the lowest latency for small messages.", series=VIA_TIMES,
         peers=TIMES, most_x=64,
         stated=via_stated((0, 10.7, 8.5, 12.6), (4, 14.5, 11.6, 14.5), (40, 15.5, 12.1, 18.3)),
         lines=SMALL_VIA, remark="Our messages of 0 B are of 1 B."),
    *drawings("clan", "docs/via.md", fig6="VIA data transfer"),
    Item("clan.fig7", "VIA: bandwidth against message size",
         "PIO has the highest throughput up to 128 B; DMA is poor for small messages.",
         series=VIA_STREAMS, peers=VIA_PEERS, limits=COPIES, axis="bandwidth",
         lines=(shapes.faster("VIA", "UNIX socket", 64), shapes.rises("VIA"))),
    Item("clan.acknowledgements", "A server of acknowledgements (section 5.3)",
         "The same server over the raw network answers seven times as many requests as over VIA.",
         series=(RAW_LOAD, VIA_LOAD, TCP_LOAD, UNIX_LOAD), axis="rate",
         stated=(Stated("Emulex VIA, 15 clients", 150, "k req/s", 15, ("VIA", 16)),
                 Stated("raw CLAN, 15 clients", 1030, "k req/s", 15, ("streams", 16))),
         lines=(shapes.faster("streams", "VIA", 16), shapes.faster("streams", "TCP", 16, 4)),
         remark="Streams stand for the raw message queues; the rival is our own VIA."),
    Item("clan.fig8", "TCP bandwidth over CLAN IP",
         "CLAN IP and Gigabit Ethernet are alike up to 512 B; above, both saturate, CLAN IP a "
         "little faster.",
         series=(Series("ip", "bandwidth", "clan ip", "CLAN IP"),
                 Series("ip", "bandwidth", "veth", "veth")), limits=COPIES, axis="bandwidth",
         lines=(shapes.rises("CLAN IP"),)),
    Item("clan.table2", "ping over CLAN IP", "CLAN IP answers sooner than Gigabit Ethernet.",
         series=tuple(Series("ip", figure, way, f"{label}{more}")
                      for figure, more in (("ping", ""), ("flood", ", flood"))
                      for way, label in (("clan ip", "CLAN IP"), ("bare", "bare forwarder"),
                                         ("veth", "veth"))),
         stated=(Stated("CLAN IP, normal", 78, "us", None, ("CLAN IP", 64)),
                 Stated("CLAN IP, flood", 54, "us", None, ("CLAN IP, flood", 64)),
                 Stated("3c985, normal", 196, "us", None, ("veth", 64)),
                 Stated("3c985, flood", 216, "us", None, ("veth, flood", 64))),
         lines=(shapes.faster("CLAN IP, flood", "bare forwarder, flood", 64),),
         remark="One host has no Ethernet. A packet to veth is a call of the other stack, by the "
         "same thread; the bare forwarder is two processes, as CLAN IP is."),
    Item("clan.fig9", "CLAN server room", missing=HARDWARE),
    Item("clan.fig10", "The prototype Gigabit Ethernet bridge", missing=HARDWARE),
    *drawings("clan", "docs/omniorb.md", fig11="The architecture of omniORB"),
    Item("clan.table3", "CORBA: round trip of small requests",
         "omniORB over CLAN answers many times sooner than over Ethernet.",
         series=orb("null call p50"), most_x=1,
         stated=(Stated("CORBA, Fast Ethernet", 128, "us", 1, ("giop:tcp", 1)),
                 Stated("CORBA, Gigabit Ethernet", 180, "us", 1, ("giop:tcp", 1)),
                 Stated("CORBA, CLAN", 20, "us", 1, ("omniORB over CLAN", 1)),
                 Stated("CORBA, Padico on Myrinet-2000", 20, "us", 1),
                 Stated("DCOM, Emulex VIA", 70, "us", 1),
                 Stated("DCOM, Emulex VIA, polling", 40, "us", 1)),
         lines=(shapes.faster("omniORB over CLAN", "giop:tcp", 1, 6.4),)),
    Item("clan.table4", "CORBA: most requests a second",
         "The server needs 9.5 us a request, with three clients, and does five times as many as "
         "over Ethernet.", series=orb("clients"), axis="rate",
         stated=(Stated("Fast Ethernet, 6 clients", 19.1, "k req/s", 6, ("giop:tcp", 6)),
                 Stated("Gigabit Ethernet, 6 clients", 21.6, "k req/s", 6, ("giop:tcp", 6)),
                 Stated("CLAN, 3 clients", 105.9, "k req/s", 3, ("omniORB over CLAN", 3))),
         lines=(shapes.faster("omniORB over CLAN", "giop:tcp", 3, 2),)),
)

DRIVER = (
    *drawings("driver", "docs/shared-memory.md", fig1="The CLAN network interface",
              fig2="Asynchronous message queue", fig3="RDMA request queues"),
    Item("driver.fig4", "Bandwidth against message size",
         "DMA and VIA are limited by the set-up of each request; PIO avoids it for small messages.",
         series=(STREAM, DMA, VIA_STREAM), peers=RATES, limits=COPIES, axis="bandwidth",
         stated=(Stated("over 900 Mbit/s on Alpha workstations", 0.1125, "GB/s"),),
         lines=(shapes.faster("PIO: stream", "DMA: RDMA write", 64),
                shapes.faster("PIO: stream", "VIA", 64))),
    Item("driver.fig5", "Round trip against number of idle connections",
         "The round trip hardly depends on the number of connections, with a busy server as with "
         "one that sleeps.",
         series=tuple(Series("idle_endpoints", "idle_endpoints", variant, label)
                      for variant, label in (
                          ("clan-poll", "server polls"), ("clan", "server waits"),
                          ("tcp-poll", "TCP, polling"), ("unix-poll", "UNIX socket, polling"))),
         lines=(shapes.flat("server polls", 1.25), shapes.flat("server waits", 1.25),
                shapes.faster("server polls", "TCP, polling", 1000, 5)),
         remark="A server that waits polls as long as that pays off; the paper's idle server "
         "sleeps."),
    Item("driver.fig6", "Throughput against offered load",
         "Throughput does not fall under load. A message costs 2.2 us over CLAN, 6.7 us over VIA.",
         series=(RAW_LOAD, VIA_LOAD, TCP_LOAD, UNIX_LOAD), axis="rate",
         stated=(Stated("CLAN, at 2.2 us a message", 454.5, "k req/s", None, ("streams", 64)),
                 Stated("VIA, at 6.7 us a message", 149.3, "k req/s", None, ("VIA", 64))),
         lines=(shapes.holds("streams", 0.7), shapes.holds("VIA", 0.7),
                shapes.faster("streams", "VIA", 64))),
)

VIA = (
    *drawings("via", "docs/via.md", fig1="VIA architectural model",
              fig2="Emulation of VIA on traditional networks", fig3="CLAN VIA architecture",
              fig4="A distributed message queue", fig5="Basic VIA data transfer"),
    Item("via.table1", "Half round-trip latency of small messages",
         "CLAN VIA by PIO is the lowest by some margin.", series=VIA_TIMES, peers=TIMES,
         most_x=64,
         stated=via_stated((0, 8.8, 6.8, 13.2), (4, 12.8, 9.2, 15.0), (40, 13.6, 9.4, 19.0)),
         lines=SMALL_VIA, remark="Doubled here, as all round trips; our messages of 0 B are of "
         "1 B."),
    Item("via.fig6", "Bandwidth against message size, four receive buffers",
         "PIO is best for very small messages, DMA for large ones.", series=VIA_STREAMS,
         peers=VIA_PEERS, limits=COPIES, axis="bandwidth",
         stated=(Stated("PIO: about 370 Mbit/s", 0.04625, "GB/s"),),
         lines=(shapes.faster("VIA", "UNIX socket", 64), shapes.rises("VIA"))),
    Item("via.buffers", "Bandwidth against the number of receive buffers (section 5)",
         "Four are where additional receive buffers give little improvement.",
         series=(Series("via", "via_buffers", "via-poll", "VIA"),), axis="plain",
         lines=(shapes.rises("VIA"), shapes.knee("VIA", 4, 0.8)),
         remark="Messages of 1 KB; a credit comes back for half of the buffers."),
    Item("via.fig7", "Throughput against offered load, one completion queue",
         "No degradation under load; 400,000 requests a second by a light protocol.",
         series=(VIA_LOAD, Series("via", "via_load", "clan-poll", "streams"),
                 Series("via", "via_load", "unix", "UNIX socket")), axis="rate",
         stated=(Stated("a lightweight message protocol", 400, "k req/s", None, ("streams", 64)),),
         lines=(shapes.holds("VIA", 0.7), shapes.faster("streams", "VIA", 64))),
)
