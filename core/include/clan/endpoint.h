// Out-of-band endpoints: small datagrams between any two contexts, without a connection: control,
// rendezvous, the exchange of cookies.
//
//   auto a = OobEndpoint::create(context, "directory");       // or without a name
//   b->send(a->address(), 7, bytes);                          // at most kOobPayload of them
//   auto m = a->recv();                                       // {from, type, payload}; answer to
//                                                             m->from
//
// Sending is a system call; receiving is not: the driver thread fills a private ring of
// ContextOptions::oob_queue messages. What arrives while it is full is discarded and counted, as is
// what a peer's socket has no room for (ENOBUFS at its sender). One peer's messages arrive in
// order. Source: clan-driver-interface sections 2 and 3.1.
//
// Thread-safety: any thread sends, one thread at a time receives.
#pragma once

#include <clan/context.h>
#include <clan/event_queue.h>
#include <clan/oob.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace clan {

namespace engine {
class OobEndpointCore;
}

/// A message as it is received.
struct OobArrival {
  Address from;
  std::uint32_t type = 0;
  std::uint32_t length = 0;
  std::array<std::byte, kOobPayload> payload{};
  std::span<const std::byte> bytes() const { return {payload.data(), length}; }
};

class CLAN_EXPORT OobEndpoint {
 public:
  /// `service` may be empty: reachable by address() only. EADDRINUSE.
  static Result<OobEndpoint> create(Context& context, const std::string& service = {});
  OobEndpoint(OobEndpoint&&) noexcept = default;
  OobEndpoint& operator=(OobEndpoint&&) noexcept = default;

  Address address() const;
  /// Where a service is, for send(). ECONNREFUSED, EACCES, ETIMEDOUT.
  Result<Address> look_up(const std::string& service, std::int64_t timeout_ms = -1,
                          std::int64_t uid = -1);

  /// Sends one message; links with the node if need be. EINVAL: a type with the top bit; EMSGSIZE;
  /// ENOBUFS: discarded for want of room; ECONNREFUSED, ECONNRESET.
  Status send(const Address& to, std::uint32_t type, std::span<const std::byte> payload,
              std::int64_t timeout_ms = -1);

  /// Takes one message. EAGAIN.
  Result<OobArrival> try_recv();
  /// The same, waiting. ETIMEDOUT, EINTR, ESHUTDOWN.
  Result<OobArrival> recv(std::int64_t timeout_ms = -1);

  /// Posts Event{tag, kOob} when a message has arrived.
  Status register_with(EventQueue& queue, std::uint64_t tag);

 private:
  explicit OobEndpoint(std::shared_ptr<engine::OobEndpointCore> core) : core_(std::move(core)) {}
  std::shared_ptr<engine::OobEndpointCore> core_;
};

}  // namespace clan
