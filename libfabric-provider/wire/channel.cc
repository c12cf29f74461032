#include "wire/channel.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "system/info.h"
#include "system/other_hosts.h"
#include "wire/wire.h"

namespace clan::ofi {
namespace {

constexpr std::uint16_t kFirstFreePort = 32768;
constexpr std::size_t kEagerBytes = 16384;
constexpr std::size_t kMostEager = 1u << 20;
constexpr int kAttempts = 1000;

}  // namespace

MessageOptions message_options() {
  MessageOptions options;
  std::size_t eager = kEagerBytes;
  (void)fi_param_get_size_t(&g_provider, "eager_bytes", &eager);
  options.eager_bytes =
      static_cast<std::uint32_t>(std::clamp(eager, kMaxDatagram, kMostEager) + sizeof(WireHeader));
  options.max_message = kMaxMessage + sizeof(WireHeader);
  return options;
}

Result<MessageEndpoint> take_name(Context& context, const SocketAddress& wanted,
                                  const MessageOptions& options, SocketAddress* taken) {
  *taken = wanted.valid() ? wanted : own_address(AF_INET);
  if (taken->is_any()) {
    const std::uint16_t port = taken->port();
    *taken = own_address(taken->family());
    taken->set_port(port);
  }
  const bool any_port = taken->port() == 0;
  for (int attempt = 0;; ++attempt) {
    if (any_port) {
      taken->set_port(
          static_cast<std::uint16_t>(kFirstFreePort + arc4random_uniform(65536 - kFirstFreePort)));
    }
    const Name name = name_of(*taken);
    if (!name.local()) return Error{EADDRNOTAVAIL, "not an address of this host"};
    auto made = MessageEndpoint::create(context, service_at(name), options);
    if (made.ok() || made.error().err != EADDRINUSE || !any_port || attempt == kAttempts) {
      if (!made) {
        FI_WARN(&g_provider, FI_LOG_EP_CTRL, "%s: %s\n", to_text(*taken).c_str(),
                made.error().message().c_str());
      }
      return made;
    }
  }
}

}  // namespace clan::ofi
