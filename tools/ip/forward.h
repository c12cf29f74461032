// The forwarder: packets of the device into the rings of peers, and those of peers into the device.
//
//   queue of the peer --read--> its ring ~~~> --write--> queue of the device there
//
// Each packet is copied once at each end: the kernel reads from the ring and writes to it. The
// first queue has packets whose destination is no peer's yet; these are copied once more. A peer
// whose ring is full is not read for: its packets stay in its own queue, and the kernel drops what
// that does not hold. One thread, which sleeps where there is nothing to do.
#pragma once

#include "device.h"
#include "links.h"

namespace clan::ip {

class Forwarder {
 public:
  Forwarder(Device& device, Links& links, EventQueue& events, bool network)
      : device_(device), links_(links), events_(events), network_(network) {}
  ~Forwarder();

  /// Watches the device, the peers and `stop`, a descriptor that ends run() when it is readable.
  Status start(int stop);
  /// Until it is stopped (no error), or the device has gone.
  Status run();

 private:
  static constexpr int kMost = 64;  ///< packets of one, before another one has its turn

  bool turn();
  void take_ready(int timeout);
  void yield();
  Status sleep();
  void update_device();
  bool give_queue(Peer& peer);

  // From the device to peers.
  bool read_first_queue();
  bool serve(Peer& peer);
  bool pump(Peer& peer);
  bool flush(Peer& peer);
  bool turn_away(Peer& peer);
  void dispatch(std::span<const std::byte> bytes);
  bool may_go(Peer& peer, const VirtioHeader& header, const Packet& packet,
              std::span<const std::byte> bytes);
  ssize_t read_queue(unsigned queue, std::span<std::byte> room);
  void answer(const std::vector<std::byte>& packet);

  // From peers to the device.
  bool receive(Face& face);
  void deliver(Peer& peer, std::span<const std::byte> message);
  void refused(Peer& peer, const VirtioHeader& header, bool v6, int error);

  Device& device_;
  Links& links_;
  EventQueue& events_;
  const bool network_;
  int epoll_ = -1, devices_ = -1;
  bool stopped_ = false, gone_ = false;
  bool first_readable_ = false, steers_ = true;
  bool filled_ = false;                    ///< a packet has filled the MTU since the last yield
  std::size_t steered_ = ~std::size_t{0};  ///< the Links::changes() that the steering program knows
  std::vector<std::byte> scratch_ = std::vector<std::byte>(kHeader + kMostPacket);
};

}  // namespace clan::ip
