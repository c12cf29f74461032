// An endpoint's place in the network: the engine's message endpoint, and the address it is found
// by.
#pragma once

#include <clan/message.h>

#include <optional>

#include "system/address.h"

namespace clan::ofi {

struct Channel {
  std::optional<MessageEndpoint> messages;
  SocketAddress address;
};

/// How endpoints that are not passive use the engine.
MessageOptions message_options();

/// A message endpoint of the engine under the name `wanted`, or a free one where its port is 0.
/// `taken`: the address by which others find it.
Result<MessageEndpoint> take_name(Context& context, const SocketAddress& wanted,
                                  const MessageOptions& options, SocketAddress* taken);

}  // namespace clan::ofi
