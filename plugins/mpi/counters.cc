#include <sys/mman.h>
#include <unistd.h>

#include "component.h"

namespace clan::mpi {

void open_page(Node& node) {
  node.page = &node.private_page;
  node.page_fd = ::memfd_create(kMpiMemfdName, MFD_CLOEXEC);
  if (node.page_fd >= 0 && ::ftruncate(node.page_fd, sizeof(MpiPage)) == 0) {
    void* memory =
        ::mmap(nullptr, sizeof(MpiPage), PROT_READ | PROT_WRITE, MAP_SHARED, node.page_fd, 0);
    if (memory != MAP_FAILED) node.page = new (memory) MpiPage;
  }
  node.page->pid = static_cast<std::uint32_t>(::getpid());
  node.page->name.store(node.name, std::memory_order_relaxed);  // relaxed: for people
}

void close_page(Node& node) {
  if (node.page != &node.private_page) ::munmap(node.page, sizeof(MpiPage));
  if (node.page_fd >= 0) ::close(node.page_fd);
}

MpiPeer* peer_counters(Node& node, std::uint64_t peer) {
  const std::uint32_t used =
      node.page->peers.load(std::memory_order_relaxed);  // relaxed: one writer, under a mutex
  const std::uint32_t row = used < MpiPage::kPeers ? used : MpiPage::kPeers - 1;
  node.page->peer[row].name.store(peer, std::memory_order_relaxed);  // relaxed: for people
  if (used < MpiPage::kPeers)
    node.page->peers.store(used + 1, std::memory_order_relaxed);  // relaxed: one writer
  return &node.page->peer[row];
}

void count_record(MpiPeer& counters, std::size_t bytes) {
  // relaxed: for people. One writer, under the endpoint's lock; those of the last row may be many,
  // and lose some
  const auto add = [](std::atomic<std::uint64_t>& counter, std::uint64_t more) {
    counter.store(counter.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  };
  add(counters.messages, 1);
  add(counters.bytes, bytes);
}

void say_sums(const opal_process_name_t& name, const MpiPeer& counters) {
  const auto of = [](const std::atomic<std::uint64_t>& counter) {
    // relaxed: for people
    return static_cast<unsigned long long>(counter.load(std::memory_order_relaxed));
  };
  log(1,
      "to rank %u: %llu records, %llu bytes; %llu gets, %llu bytes; %llu puts, %llu bytes; %llu "
      "atomics",
      static_cast<unsigned>(name.vpid), of(counters.messages), of(counters.bytes),
      of(counters.gets), of(counters.get_bytes), of(counters.puts), of(counters.put_bytes),
      of(counters.atomics));
}

}  // namespace clan::mpi
