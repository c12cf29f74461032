// The sending side of notifications: one connection to each exporting process, for all its buffers.
// A notification is a message of 24 bytes, which follows the data.
#pragma once

#include <clan/message.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace clan::vmmc {

/// A notice to the exporter, which does not trust it: the key may be of no buffer.
struct NoticeRecord {
  std::uint64_t key = 0;
  std::uint64_t offset = 0, bytes = 0;
};
static_assert(sizeof(NoticeRecord) == 24);

class Bells;

/// A connection, shared by the remotes of one exporter.
struct Bell {
  Bell(Bells& of, PeerIndex number) : bells(of), peer(number) {}
  ~Bell();
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;
  Bells& bells;
  PeerIndex peer;
};

/// Thread-safe.
class Bells {
 public:
  explicit Bells(MessageEndpoint endpoint) : endpoint_(std::move(endpoint)) {}
  Result<std::shared_ptr<Bell>> connect(const Address& exporter, std::int64_t timeout_ms);
  /// Sends a notice. EAGAIN: the ring is full.
  Status ring(const Bell& bell, const NoticeRecord& record);

 private:
  friend struct Bell;
  std::mutex mutex_;
  MessageEndpoint endpoint_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::weak_ptr<Bell>> known_;
};

}  // namespace clan::vmmc
