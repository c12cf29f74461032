#include "bells.h"

namespace clan::vmmc {

Bell::~Bell() {
  std::lock_guard lock(bells.mutex_);
  bells.endpoint_.disconnect(peer);
}

Result<std::shared_ptr<Bell>> Bells::connect(const Address& exporter, std::int64_t timeout_ms) {
  std::shared_ptr<Bell> bell;  // outlives the lock: its end takes it
  std::lock_guard lock(mutex_);
  std::weak_ptr<Bell>& known = known_[{exporter.node.value, exporter.endpoint}];
  bell = known.lock();
  if (bell) return bell;
  auto peer = endpoint_.connect(exporter, timeout_ms);
  if (!peer) return peer.error();
  bell = std::make_shared<Bell>(*this, *peer);
  known = bell;
  return bell;
}

Status Bells::ring(const Bell& bell, const NoticeRecord& record) {
  std::lock_guard lock(mutex_);
  return endpoint_.try_send(bell.peer, std::as_bytes(std::span(&record, 1)), {});
}

}  // namespace clan::vmmc
