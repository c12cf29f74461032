// UdpLink: stores to the peer's memory, as messages of channel 0.
#include <algorithm>
#include <utility>

#include "clan/detail/clock.h"
#include "clan/detail/cpu.h"
#include "link/udp/node/udp_link.h"
#include "link/udp/node/udp_node.h"

namespace clan::udp {
namespace {

constexpr std::uint64_t kNap = 200'000;         ///< and then sleeps, between looks for room
constexpr std::uint64_t kMostQueued = 1 << 20;  ///< of channel 0, before a put waits
constexpr std::size_t kPutOverhead = kDataHeader + kWholeFrame + 32 + kTagBytes;
constexpr std::size_t kFirstWord = sizeof(std::uint64_t);
constexpr std::size_t kMostPublished = kBasePacket - kPutOverhead;  ///< a message that is not cut

}  // namespace

// Takes the mutex when there is room. False: the link has gone, and the mutex is not taken.
bool UdpLink::wait_for_room(Lock& lock) {
  std::uint64_t begin = 0;
  for (;;) {
    if (node_->abandoned()) return false;
    lock = Lock(node_->mutex_);
    const bool gone = connection_ == nullptr || !alive();
    // In a batch the mutex is held, and the driver thread must not wait for itself.
    const bool room =
        !gone && (node_->batch_ > 0 || connection_->queued_bytes(kUrgent) < kMostQueued ||
                  node_->on_driver_thread());
    if (room) [[likely]]
      return true;
    lock.unlock();
    if (gone) return false;
    node_->progress();
    const std::uint64_t now = monotonic_ns();
    if (begin == 0) begin = now;
    if (now - begin < kSpin) {
      cpu_pause();
      continue;
    }
    const std::uint32_t seen = node_->answers_.prepare_wait();
    if (!alive()) return false;
    node_->answers_.commit_wait([&](auto& news) {
      return node_->sleep({&news, seen, {}, now + kNap, this});
    });
  }
}

// What each put has to ask first.
Status UdpLink::begin_put(Lock& lock, const nic::RemoteHandle& handle, std::uint64_t offset,
                          std::uint64_t length) {
  if (!wait_for_room(lock)) return Error{ECONNRESET, "the peer is gone"};
  if (const int err = refusal(handle, offset, length, Rights::kWrite); err != 0)
    return Error{err, "write to a remote aperture"};
  node_->send_revocations();
  return {};
}

// In pieces that fill a packet, so that each is placed straight from its packet. The first piece
// leaves room for what is queued: if it were cut, so would be all others.
Status UdpLink::put(const nic::RemoteHandle& handle, std::uint64_t offset,
                    std::span<const std::byte> bytes, nic::PutOrder order) {
  return put_pieces(handle, offset, bytes, order, {});
}

Status UdpLink::put_pieces(const nic::RemoteHandle& handle, std::uint64_t offset,
                           std::span<const std::byte> bytes, nic::PutOrder order,
                           const std::shared_ptr<nic::PinnedPayload>& kept) {
  do {
    Lock lock;
    if (auto s = begin_put(lock, handle, offset, bytes.size()); !s) return s;
    if (bytes.empty()) return {};
    const std::size_t piece = connection_->mtu().current() - kPutOverhead;
    const std::uint64_t before = connection_->queued_bytes(kUrgent);
    std::size_t room = before < piece / 2 ? piece - before : piece;
    for (std::uint64_t sent = 0; sent < kMostQueued / 4 && !bytes.empty();) {
      const std::size_t n = std::min(std::exchange(room, piece), bytes.size());
      const bool last = n == bytes.size();
      send(kUrgent, access(LinkMessageType::kPut, handle, offset), bytes.first(n), !kept, false, 0,
           last ? kept : nullptr);
      bytes = bytes.subspan(n);
      offset += n;
      sent += n;
    }
    if (order == nic::PutOrder::kNoHurry && bytes.empty() && node_->may_hold()) return {};
    node_->after_call();
  } while (!bytes.empty());
  return {};
}

// One message, if a packet holds it: the peer stores the first word of each behind the rest.
Status UdpLink::publish(const nic::RemoteHandle& handle, std::uint64_t offset,
                        std::span<const std::byte> bytes,
                        const std::shared_ptr<nic::PinnedPayload>& kept) {
  if (bytes.size() > kMostPublished) {
    begin_batch();
    // Before the link can let go of it. It stays so where a piece cannot be sent any more.
    if (kept) kept->hand_over();
    Status s = put_pieces(handle, offset + kFirstWord, bytes.subspan(kFirstWord),
                          nic::PutOrder::kAny, kept);
    if (s) s = put(handle, offset, bytes.first(kFirstWord), nic::PutOrder::kAfterEarlier);
    end_batch();
    return s;
  }
  Lock lock;
  if (auto s = begin_put(lock, handle, offset, bytes.size()); !s) return s;
  send(kUrgent, access(LinkMessageType::kPut, handle, offset), bytes);
  node_->after_call();
  return {};
}

void UdpLink::begin_batch() {
  Lock lock;
  if (!wait_for_room(lock)) {
    if (node_->abandoned()) return;
    lock = Lock(node_->mutex_);
  }
  ++node_->batch_;
  (void)lock.release();  // end_batch() unlocks
}

void UdpLink::end_batch() {
  if (node_->abandoned()) return;
  --node_->batch_;
  node_->after_call();
  node_->mutex_.unlock();
}

}  // namespace clan::udp
