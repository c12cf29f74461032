// The hub: calls and replies of several fragments.
//
// A call of several fragments is dispatched with its first one, and decoded while the others come.
// A service cannot be interrupted, so a client that stops in between holds the process up: for what
// patience_ has left. A client that has done so is slow. Its calls, and everyone's while half of
// the patience is used up, are gathered in the server's memory and dispatched when they are whole:
// a call that is dispatched early fails when the patience ends, so there is to be some.
#include <clan/detail/clock.h>
#include <clan/detail/log.h>

#include <algorithm>
#include <ctime>
#include <new>

#include "log_rate_limit.h"
#include "server/server.h"

namespace clan::rpc {
namespace {

constexpr std::uint64_t kReadNs = 2'000'000'000;  ///< with a client that does not read its replies
constexpr std::uint64_t kStallNs = 20'000'000;    ///< one that waits so long for a fragment is slow
constexpr unsigned kSlowCalls = 16;               ///< without a stall: then it is not any more
constexpr std::uint64_t kAwakeNs = 1'000'000;     ///< then it sleeps between two looks
constexpr std::uint64_t kNsPerByte = 10;          ///< that a fragment may take at no cost
constexpr timespec kPause = {0, 50'000};

// A further fragment of the call with `xid`; `bytes` are left without its head. False: it makes no
// sense.
bool take_more(std::span<const std::byte>* bytes, std::uint32_t xid, GoOn* go_on) {
  ReplyHead head;
  const bool good = take_front(bytes, &head) && head.kind == kMore && head.xid == xid &&
                    head.go_on <= kGivenUp && (head.go_on != kFollows || !bytes->empty());
  *go_on = good ? static_cast<GoOn>(head.go_on) : kGivenUp;
  return good;
}

bool append(std::vector<std::byte>* to, std::span<const std::byte> bytes) {
  if (to->size() + bytes.size() > kMostBytes) return false;
  try {
    to->insert(to->end(), bytes.begin(), bytes.end());
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace

// --- gathered ------------------------------------------------------------------------------------

bool Hub::is_gathered_first(const PeerState& peer) {
  return peer.slow_calls > 0 || patience_.left_ns(monotonic_ns()) < kPatienceNs / 2;
}

// The first fragment. The caller has the mutex, here and below.
void Hub::begin_gathering(PeerIndex from, const Front& front) {
  PeerState& peer = *peers_[from];
  peer.gathering = PeerState::Gathering::kUnderWay;
  peer.gathered_head = front.head;
  peer.gathered_since_ns = monotonic_ns();
  const bool room = append(&peer.gathered, front.bytes);
  endpoint_->drop();
  if (!room) drop_peer(from, false);
}

// One more. True: the call is whole, and `front` it.
bool Hub::gather(PeerIndex from, std::span<const std::byte> bytes, Front* front) {
  PeerState& peer = *peers_[from];
  GoOn go_on;
  const bool good = take_more(&bytes, peer.gathered_head.xid, &go_on);
  const bool room = good && append(&peer.gathered, bytes);
  endpoint_->drop();
  if (!room) drop_peer(from, !good);
  if (!room || go_on == kFollows) return false;
  const bool quick = monotonic_ns() - peer.gathered_since_ns < kStallNs;
  if (quick && peer.slow_calls > 0) --peer.slow_calls;
  peer.gathering = PeerState::Gathering::kWhole;
  *front = {from, peer.gathered_head, peer.gathered};
  front->head.go_on = kLast;  // one that is given up is garbage
  return true;
}

// --- decoded while they come ---------------------------------------------------------------------

bool Hub::await_more(PeerIndex from, std::uint32_t xid, std::vector<PeerIndex>* held, GoOn* go_on,
                     std::span<const std::byte>* bytes) {
  const std::uint64_t begin = monotonic_ns();
  std::unique_lock lock(mutex_);
  const std::uint64_t end = begin + patience_.left_ns(begin);
  endpoint_->drop();
  bool there = false;
  for (bool waits = true; waits && peer(from) != nullptr && !peer(from)->unwanted;) {
    auto message = endpoint_->peek();
    const std::uint64_t now = message.ok() ? begin : monotonic_ns();
    if (message.ok() && message->from != from) {
      held->push_back(message->from);
      endpoint_->hold();
    } else if (message.ok()) {
      *bytes = message->bytes;
      there = true;
      break;
    } else if (message.error().err != EAGAIN || now >= end ||
               (endpoint_->has_gone(from) && !endpoint_->peek().ok())) {
      waits = false;
    } else if (now - begin >= kAwakeNs ||
               !endpoint_->spin()) {  // others' calls end each spin at once
      lock.unlock();
      nanosleep(&kPause, nullptr);
      lock.lock();
    }
  }
  const std::uint64_t now = monotonic_ns(), waited = now - begin,
                      free = there ? bytes->size() * kNsPerByte : 0;
  patience_.spend(now, waited - std::min(waited, free));
  if (waited >= kStallNs && peer(from) != nullptr) peer(from)->slow_calls = kSlowCalls;
  if (!there) return false;
  if (take_more(bytes, xid, go_on)) return *go_on != kGivenUp;
  endpoint_->drop();
  drop_peer(from, true);
  return false;
}

// --- replies -------------------------------------------------------------------------------------

bool Hub::await_room(PeerIndex to, std::uint64_t since) {
  if (peer(to) == nullptr || peer(to)->unwanted || endpoint_->has_gone(to)) return false;
  (void)endpoint_->poll_sent({});
  if (monotonic_ns() - since >= kReadNs) {
    static LogRateLimit limit;
    if (limit.allows())
      CLAN_WARN("a client does not read its replies: it is not served over CLAN any more");
    drop_peer_later(to);
    return false;
  }
  mutex_.unlock();  // the caller has it
  nanosleep(&kPause, nullptr);
  mutex_.lock();
  return true;
}

}  // namespace clan::rpc
