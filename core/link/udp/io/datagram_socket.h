// DatagramSocket: one UDP socket of the kernel, with the transport's addresses. Never waits;
// SocketIo decides which socket a packet takes. Not thread-safe.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/fd.h"
#include "link/udp/wire/socket_address.h"

namespace clan::udp {

/// Packets that came together from one address, all `segment` bytes long; the last may be shorter.
struct Arrival {
  SocketAddress from;
  std::span<std::byte> bytes;  ///< valid until the next receive(); may be written to
  std::size_t segment = 0;
  SocketAddress at{};  ///< which of our addresses they came to, without a port; all 0: not known
};

enum class Sent {
  kSent,    ///< or dropped on the way, as any packet may be
  kLater,   ///< no room: it is to be offered again
  kTooBig,  ///< larger than the device takes; or, of a train, no segmentation offload for it
  kFailed,  ///< the kernel has no way to that address
};

class DatagramSocket {
 public:
  enum class Family {
    kBoth,  ///< IPv6 that takes IPv4 as well
    kIpv6,
    kIpv4,
  };
  using Sent = udp::Sent;
  static constexpr std::size_t kMostRefusals = 16;  ///< kept; there will be more of the same

  /// Opens an unbound socket. The kernel gives `buffer_bytes` as net.core.rmem_max allows.
  static Result<DatagramSocket> open(Family family, int buffer_bytes);

  Status bind(const SocketAddress& local);
  /// Restricts later packets to that address, where send() without an address goes.
  Status connect(const SocketAddress& to);
  /// Whether another socket of the same user that says so too may bind the same port.
  bool share_port(bool on);
  bool use_gro(bool on);
  /// From now on Arrival::at is filled in.
  bool tell_destination();

  /// Sends to `to`, or where it is connected (null). `segment` shorter than `bytes`: a train.
  /// `from`: our source address, if it still is one; null: the kernel's choice.
  Sent send(const SocketAddress* to, std::span<const std::byte> bytes, std::size_t segment,
            const SocketAddress* from = nullptr);
  /// Receives one datagram, or GRO's train. 0 bytes: it is not CLAN's. False: there is none.
  bool receive(std::span<std::byte> to, Arrival* out);
  /// Receives bytes alone, for a connected socket without GRO: less work. 0 bytes: not CLAN's.
  bool receive_plain(std::span<std::byte> to, Arrival* out);
  /// Takes the errors that the kernel reports, and notes what they say of packets that have left.
  void take_errors();
  /// Where packets went of which a host has said since that nobody has the port.
  bool next_refusal(SocketAddress* to);

  int fd() const { return socket_.get(); }
  explicit operator bool() const { return static_cast<bool>(socket_); }
  void close() { socket_.reset(); }
  Family family() const { return family_; }
  Result<SocketAddress> local_address() const;
  std::optional<SocketAddress> peer_address() const;
  std::size_t receive_buffer() const;

 private:
  Fd socket_;
  Family family_ = Family::kBoth;
  std::vector<SocketAddress> refusals_;
};

/// Whether two sockets are of one network namespace: a thread may have changed its own.
bool same_network(int socket, int other);

}  // namespace clan::udp
