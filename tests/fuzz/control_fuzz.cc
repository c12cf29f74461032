// Fuzzes what a link does with control messages: the input is a sequence of datagrams that a hostile
// peer sends after its handshake. The link may go down; it must not crash, leak or wait.
//
// Input: byte 0 of each step chooses type and length, the rest overwrites a well-formed message.
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "link/shm_link.h"

namespace {

struct Sink final : clan::nic::LinkSink {
  void on_oob(const std::shared_ptr<clan::nic::Link>&, const clan::OobMessage&) override {}
  void on_transfer_done(std::uint64_t, int, std::uint64_t) override {}
  void on_link_down(const std::shared_ptr<clan::nic::Link>&) override {}
};

clan::nic::Nic& nic(std::uint64_t node) {
  return *clan::nic::Nic::create({node}, ::geteuid()).value().release();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using clan::Mapping;
  using clan::link::ControlMessage;
  static clan::nic::Nic& ours = nic(1);
  static clan::nic::Nic& theirs = nic(2);
  static clan::Reactor& reactor = *new clan::Reactor;
  static Sink sink;

  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair) != 0) return 0;
  clan::Fd peer_end(pair[1]);
  clan::link::ShmPeer peer;
  peer.node = {2};
  peer.credentials = {::getpid(), ::geteuid()};
  peer.socket = clan::Fd(pair[0]);
  peer.tables =
      Mapping::map(theirs.tables_memfd(), clan::shm::kTablesBytes, Mapping::Access::kRead).value();
  peer.signals =
      Mapping::map(theirs.signals_memfd(), clan::shm::kSignalsBytes, Mapping::Access::kReadWrite).value();
  peer.doorbell = clan::create_eventfd().value();
  peer.my_slot = theirs.add_peer_slot().value();
  peer.peer_slot = ours.add_peer_slot().value();
  const std::uint32_t my_slot = peer.my_slot;
  {
    auto link = std::make_shared<clan::link::ShmLink>(std::move(peer), ours, sink, reactor,
                                                      clan::link::ShmLink::Options{false});
    for (std::size_t at = 0; at < size && link->alive();) {
      ControlMessage message;
      const std::uint8_t step = data[at++];
      message.type = static_cast<clan::link::ControlType>(step % 13);
      const std::size_t n = std::min<std::size_t>(size - at, step & 0x3f);
      const std::size_t where = (step * 7u) % (sizeof message - 64);
      std::memcpy(reinterpret_cast<char*>(&message) + where, data + at, n);
      at += n;
      const bool with_fd = (step & 0x80) != 0;
      clan::Fd fd;
      if (with_fd) fd = clan::create_memfd("fuzz", 4096).value();
      int number = fd.get();
      (void)clan::send_datagram(peer_end.get(),
                                std::as_bytes(std::span(&message, 1)).first((step & 0x40) != 0
                                                                                ? sizeof message - n
                                                                                : sizeof message),
                                with_fd ? std::span<const int>(&number, 1) : std::span<const int>(),
                                false);
      link->on_ready(0);
      (void)link->help();
    }
  }
  theirs.remove_peer_slot(my_slot);
  return 0;
}
