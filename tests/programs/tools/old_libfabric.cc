// What `clan run --with ofi` meets where libfabric is older than the one it was built for.
extern "C" unsigned fi_version() { return 1U << 16 | 9U; }
