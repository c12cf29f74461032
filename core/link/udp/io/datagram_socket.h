// DatagramSocket: one UDP socket of the kernel, with addresses as the transport has them. Never
// waits; nothing here knows of peers or of other sockets. SocketIo decides which of its sockets a
// packet takes. Not thread-safe.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/fd.h"
#include "link/udp/wire/socket_address.h"

namespace clan::udp {

/// Packets that came together from one address: all `segment` bytes long but the last, which may be
/// shorter.
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

  /// A socket that is not bound. `buffer_bytes` is asked for; the kernel gives what
  /// net.core.rmem_max allows.
  static Result<DatagramSocket> open(Family family, int buffer_bytes);

  Status bind(const SocketAddress& local);
  /// Packets of that address only from now on, but for those that have come; send() without an
  /// address goes there.
  Status connect(const SocketAddress& to);
  /// Whether another socket of the same user that says so too may bind the same port.
  bool share_port(bool on);
  bool use_gro(bool on);
  /// From now on Arrival::at is filled in.
  bool tell_destination();

  /// To `to`, or to where it is connected (null). `segment` shorter than `bytes`: a train. `from`:
  /// which of our addresses is the source, if it still is one; null: as the kernel's routes choose.
  Sent send(const SocketAddress* to, std::span<const std::byte> bytes, std::size_t segment,
            const SocketAddress* from = nullptr);
  /// One datagram, or what GRO has made one of. 0 bytes: it is not CLAN's. False: there is
  /// none.
  bool receive(std::span<std::byte> to, Arrival* out);
  /// For a socket that is connected and has no GRO: receives bytes alone, for which the kernel does
  /// less. 0 bytes: it is not CLAN's.
  bool receive_plain(std::span<std::byte> to, Arrival* out);
  /// The kernel has reported an error of the socket: what it has noted about packets that have
  /// left.
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

/// Whether two sockets are of one network namespace, so that both would reach the same hosts: a
/// thread may have changed its own.
bool same_network(int socket, int other);

}  // namespace clan::udp
