#include "engine/connection/connection_closed.h"

#include "engine/connection/connection_record.h"

namespace clan::engine {

void tell_end(nic::Link& link, std::uint32_t type, std::uint32_t to, std::uint32_t from,
              int reason) {
  OobMessage message;
  message.to = to;
  message.from = from;
  message.type = type;
  if (reason != 0) put_payload(message, reason);
  (void)link.send_oob(message);
}

void ClosedConnection::release() {
  // relaxed: only which caller is first
  if (released_.exchange(true, std::memory_order_relaxed)) return;
  if (aperture_ != shm::kMaxApertures) nic_.retire(aperture_);
  arena_->free(region_);
  if (endpoint_ != 0) context_.endpoints().remove(endpoint_);
}

void ClosedConnection::on_oob(const std::shared_ptr<nic::Link>& link, const OobMessage& message) {
  if (link != link_) return;
  if (message.type == kOobAccept) {
    // too late: nobody waits for it any more
    tell_end(*link, kOobClose, message.from, endpoint_, 0);
  } else if (message.type == kOobClose || message.type == kOobRefuse) {
    release();
  }
}

void ClosedConnection::on_link_down(const std::shared_ptr<nic::Link>& link) {
  if (link == link_) release();
}

}  // namespace clan::engine
