// Connections of message endpoints.
//
//   client                                   server
//                                            fi_listen(): the name of a passive endpoint
//   fi_connect() ──kConnect, data──────────> FI_CONNREQ: a ConnectionRequest, in a fi_info
//                                            fi_endpoint(); fi_accept(), or fi_reject()
//   FI_CONNECTED <─kAccept, data──────────── FI_CONNECTED: the new endpoint is connected to ours
//   FI_ECONNREFUSED <─kReject, data───────── by the connection that the question came by
//
// What the server connects is what both use. When either goes, or calls fi_shutdown(), the other
// hears FI_SHUTDOWN.
#pragma once

#include <clan/event_queue.h>
#include <clan/message.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "system/address.h"
#include "system/provider.h"

namespace clan::ofi {

class Eq;
class PassiveEndpoint;

/// What requests that go without an answer tell their passive endpoint, which refuses them.
struct Unanswered {
  ForkMutex mutex;
  std::vector<PeerIndex> indices;
  EventQueue* events = nullptr;  ///< the passive endpoint's; null: it has gone
  std::uint32_t event = 0;
  const std::uint32_t forks = ForkMutex::forks();
};

/// The end that wants to connect: fi_info::handle of a FI_CONNREQ.
class ConnectionRequest final : public fid {
 public:
  using Face = fid;
  ConnectionRequest();
  ~ConnectionRequest();

  SocketAddress client;
  std::uint64_t attempt = 0;
  const PassiveEndpoint* passive = nullptr;
  PeerIndex index = 0;  ///< at the passive endpoint
  std::shared_ptr<Unanswered> unanswered;
  bool answered = false;  ///< accepted or rejected, or at least tried to

 private:
  static int close(fid_t id);
  static fi_ops ops_;
};

inline ConnectionRequest* connection_request(fid_t handle) {
  return handle != nullptr && handle->fclass == FI_CLASS_CONNREQ
             ? static_cast<ConnectionRequest*>(handle)
             : nullptr;
}

/// An event of the connection manager, as programs read it, with their data behind it.
std::vector<std::byte> connection_event(fid_t object, fi_info* info,
                                        std::span<const std::byte> data);
/// Writes one.
void write_connection_event(Eq& eq, std::uint32_t event, fid_t object,
                            std::span<const std::byte> data);

}  // namespace clan::ofi
