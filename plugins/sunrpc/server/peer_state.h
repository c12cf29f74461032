// What the hub knows of one client that has come over CLAN.
#pragma once

#include <clan/message.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "wire.h"

namespace clan::rpc {

class ServiceTransport;

/// Under the hub's mutex.
struct PeerState {
  ServiceTransport* transport = nullptr;  ///< null: it has not said Hello, or its transport is gone
  CallerState caller;
  bool skipping = false;  ///< fragments of a call whose arguments nobody wants
  bool unwanted = false;  ///< to be dropped once its message has been taken apart
  // A call of several fragments that is dispatched when it is whole.
  enum class Gathering : std::uint8_t { kNo, kUnderWay, kWhole };
  Gathering gathering = Gathering::kNo;
  std::vector<std::byte> gathered;
  CallHead gathered_head;
  std::uint64_t gathered_since_ns = 0;
  unsigned slow_calls = 0;  ///< so many are gathered: it has stopped in the middle of one
  // Of one whose transport is not registered: see deferred_requests.cc.
  bool deferred = false;
  bool held = false;        ///< by the endpoint
  bool ready = false;       ///< what has been gathered may be dispatched
  std::uint64_t token = 0;  ///< of one that came from another host: it may ask about its last call
  std::optional<std::uint32_t> last_xid;
  bool answered = false;    ///< the call with last_xid
  sockaddr_storage from{};  ///< of a datagram's client
  socklen_t from_length = 0;
};

}  // namespace clan::rpc
