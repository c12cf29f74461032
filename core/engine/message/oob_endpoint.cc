#include <algorithm>

#include "clan/endpoint.h"
#include "engine/event/inbox.h"

namespace clan::engine {

class OobEndpointCore final : public Inbox<OobArrival> {
 public:
  explicit OobEndpointCore(const std::shared_ptr<ContextCore>& context)
      : Inbox(context, EventKind::kOob, context->options().oob_queue) {}

  void on_oob(const std::shared_ptr<nic::Link>& link, const OobMessage& message) override {
    if ((message.type & kOobInternal) != 0) return;
    if (is_full()) return count(context().counters().oob_discarded);
    deliver({.from = {link->remote_node(), message.from,
                      static_cast<std::uint32_t>(link->remote_uid())},
             .type = message.type,
             .length = std::min<std::uint32_t>(message.length, kOobPayload),
             .payload = message.payload});
  }
};

}  // namespace clan::engine

namespace clan {

Result<OobEndpoint> OobEndpoint::create(Context& context, const std::string& service) {
  auto core = std::make_shared<engine::OobEndpointCore>(context.core());
  if (auto s = core->endpoint().offer(core, service); !s) return s.error();
  return OobEndpoint(std::move(core));
}

Address OobEndpoint::address() const { return core_->endpoint().address(); }

Result<Address> OobEndpoint::look_up(const std::string& service, std::int64_t timeout_ms,
                                     std::int64_t uid) {
  const uid_t owner = core_->context().owner(uid);
  std::uint32_t endpoint = 0;
  auto link =
      core_->context().link_to_service(service, owner, deadline_after_ms(timeout_ms), &endpoint);
  if (!link) return link.error();
  return Address{(*link)->remote_node(), endpoint, owner};
}

Status OobEndpoint::send(const Address& to, std::uint32_t type, std::span<const std::byte> payload,
                         std::int64_t timeout_ms) {
  if ((type & kOobInternal) != 0) return Error{EINVAL, "types with the top bit set are CLAN's own"};
  if (payload.size() > kOobPayload)
    return Error{EMSGSIZE, "more than one out-of-band message holds"};
  engine::ContextCore& context = core_->context();
  if (!context.usable()) return engine::unusable_error();
  auto link = context.link_to_node(to.node, to.uid, deadline_after_ms(timeout_ms));
  if (!link) return link.error();
  OobMessage message{.to = to.endpoint,
                     .from = core_->endpoint().number(),
                     .type = type,
                     .length = static_cast<std::uint32_t>(payload.size())};
  std::copy(payload.begin(), payload.end(), message.payload.begin());
  return (*link)->send_oob(message);
}

Result<OobArrival> OobEndpoint::try_recv() { return core_->try_take(); }
Result<OobArrival> OobEndpoint::recv(std::int64_t timeout_ms) {
  return core_->take(deadline_after_ms(timeout_ms));
}
Status OobEndpoint::register_with(EventQueue& queue, std::uint64_t tag) {
  return core_->bind(queue.core(), tag);
}

}  // namespace clan
