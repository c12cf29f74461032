// SocketIo: PacketIo over one UDP socket, without privilege. Trains leave by GSO and arrive by GRO where the
// kernel has them (4.18, 5.0); otherwise packet by packet. IPv6 that takes IPv4 as well, or IPv4 where there
// is no IPv6.
#pragma once

#include <memory>
#include <vector>

#include "base/fd.h"
#include "link/udp/packet_io.h"

namespace clan::udp {

class SocketIo final : public PacketIo {
 public:
  struct Options {
    bool segment_offload = true;  ///< false: as a kernel without GSO and GRO
    int buffer_bytes = 4 << 20;   ///< asked for; the kernel gives what net.core.rmem_max allows
  };

  /// A socket bound to `local`; port 0: any.
  static Result<std::unique_ptr<SocketIo>> open(const SocketAddress& local, const Options& options);

  Sent send(const Train& train, std::span<const std::byte> bytes) override;
  std::size_t receive(std::span<Arrival> out) override;
  int descriptor() const override { return socket_.get(); }
  SocketAddress local_address() const override { return local_; }
  std::size_t largest_packet() const override { return kLargestPacket; }
  /// Packets of the least size that the receive buffer holds: what peers may have under way.
  std::uint32_t packets_of_room() const { return packets_of_room_; }

 private:
  static constexpr std::size_t kSlots = 8;
  static constexpr std::size_t kSlotBytes = 65'536;
  static constexpr std::size_t kLoneBytes = 1024;  ///< shorter arrivals are handed on at once

  SocketIo() = default;
  Status prepare(const SocketAddress& local, const Options& options);
  bool receive_one(std::size_t slot, Arrival* out, bool* empty);
  Sent send_one(const SocketAddress& to, std::span<const std::byte> bytes, std::size_t segment);

  Fd socket_;
  bool ipv6_ = true;
  bool offload_ = true;
  std::uint32_t packets_of_room_ = 0;
  SocketAddress local_;
  std::vector<std::byte> slots_;
};

/// "127.0.0.1:4000", "[::1]:4000", "host:4000". Asks the resolver for names: may wait.
Result<SocketAddress> parse_address(const char* text);

}  // namespace clan::udp
