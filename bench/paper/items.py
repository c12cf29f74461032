"""What `clan bench paper` knows of a figure or table of a paper: one Item each, all in ITEMS.

An item is drawn (its subject is explained in a document), measured (its series are rows of the
programs in sources.py), or neither, and says why. Nothing of a paper is guessed: its text has
numbers, no curves, and only these stand beside ours.
"""

from dataclasses import dataclass

# A paper's own smallest round trip in us: what its times are multiples of.
SINGLE_WORD = {"clan": 5.6, "driver": 5.6, "via": 5.6, "shrimp": 8.5, "unet": None}
PAPERS = {
    "clan": "Distributed Computing with the CLAN Network",
    "driver": "A Low Overhead Application/Device-driver Interface for User-level Networking",
    "via": "VIA over the CLAN Network",
    "shrimp": "Client-Server Computing on the SHRIMP Multicomputer",
    "unet": "Incorporating Memory Management into User-Level Network Interfaces",
}


@dataclass(frozen=True)
class Stated:
    """A number that the paper's text has; `ours` is the series and x that are compared with it."""
    text: str
    value: float
    unit: str          # us (there and back), GB/s, k req/s, times, B, misses
    x: float = None    # where it belongs on the figure's x axis; None: nowhere
    ours: tuple = None


@dataclass(frozen=True)
class Series:
    source: str
    benchmark: str
    variant: str
    label: str


@dataclass(frozen=True)
class Item:
    name: str            # paper.figure, as --only takes it
    title: str
    claim: str = ""
    drawn: str = ""      # the document that explains it
    missing: str = ""    # why nothing measures it
    series: tuple = ()
    peers: tuple = ()    # series of others, drawn beside these and not judged
    limits: tuple = ()   # series that bound these
    stated: tuple = ()
    lines: tuple = ()    # of shapes.py
    axis: str = "latency"   # latency, bandwidth, rate, plain
    most_x: float = None    # points beyond it are left out
    remark: str = ""        # what we do otherwise

    @property
    def paper(self):
        return self.name.split(".", maxsplit=1)[0]

    @property
    def single_word(self):
        return SINGLE_WORD.get(self.paper)

    @property
    def sources(self):
        return list(dict.fromkeys(series.source for series in self.series))

    @property
    def others(self):
        """The sources of what is only drawn beside it."""
        found = dict.fromkeys(series.source for series in (*self.peers, *self.limits))
        return [source for source in found if source not in self.sources]


# What is drawn beside the round trips and the bandwidths of an item.
TIMES = (Series("stream_latency", "stream_latency", "tcp-poll", "TCP, polling"),
         Series("stream_latency", "stream_latency", "unix-poll", "UNIX socket, polling"),
         Series("ucx", "ucx_latency", "ucx", "UCX"),
         Series("ofi", "msg", "shm", "libfabric shm"), Series("mpi", "latency", "vader", "vader"))
RATES = (Series("bandwidth", "bandwidth", "tcp", "TCP"),
         Series("bandwidth", "bandwidth", "unix", "UNIX socket"),
         Series("ucx", "ucx_bandwidth", "ucx posix", "UCX"),
         Series("ofi", "tagged-window", "shm", "libfabric shm"),
         Series("mpi", "window", "vader", "vader"))
COPIES = (Series("rdma_copy", "rdma_copy", "memcpy", "one memcpy"),
          Series("rdma_copy", "rdma_copy", "writev", "one process_vm copy"))


def drawings(paper, where, **titles):
    return tuple(Item(f"{paper}.{name}", title, drawn=where) for name, title in titles.items())


def find(items, names):
    """The items that `names` chooses, each of which is an item or a paper; ValueError."""
    chosen = []
    for name in names:
        found = [item for item in items if name in (item.name, item.paper)]
        if not found:
            raise ValueError(f'"{name}" is no item and no paper; --list has all')
        chosen += found
    return [item for item in items if item in chosen]
