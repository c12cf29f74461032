// EndpointSink: what an Endpoint tells its user of its connections.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "link/udp/wire/socket_address.h"

namespace clan::udp {

class Connection;

/// The user of an Endpoint. In up-calls send() and close() are allowed, of any connection, nothing
/// else. A connection stays in memory until the endpoint's call that made the up-call has returned.
class EndpointSink {
 public:
  /// Somebody wants to connect and has shown that it is at that address. 0 and a greeting in
  /// return, or an errno.
  virtual int on_request(const SocketAddress& from, std::span<const std::byte> greeting,
                         std::span<std::byte> answer, std::size_t* answer_bytes) = 0;
  virtual void on_established(Connection& connection, std::span<const std::byte> greeting) = 0;
  /// MessageSink, with the connection.
  virtual bool on_fragment(Connection& connection, std::uint8_t channel,
                           std::span<const std::byte> header, std::uint32_t total,
                           std::uint32_t offset, std::span<const std::byte> bytes) = 0;
  virtual void on_message(Connection& connection, std::uint8_t channel,
                          std::span<const std::byte> header, std::uint32_t total,
                          std::span<const std::byte> payload) = 0;
  /// A message with `notify` has been acknowledged in full.
  virtual void on_sent(Connection& connection, std::uint8_t channel, std::uint64_t token) = 0;
  /// The last call about a connection. 0: closed in good order by the peer or by us.
  virtual void on_down(Connection& connection, int err) = 0;

 protected:
  ~EndpointSink() = default;
};

}  // namespace clan::udp
