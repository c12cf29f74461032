// UdpLink: what it asks the peer, whose answer a thread waits for: reads and imports.
#include <algorithm>

#include "clan/detail/clock.h"
#include "link/udp/node/udp_link.h"
#include "link/udp/node/udp_node.h"

namespace clan::udp {
namespace {

constexpr std::uint64_t kAnswerTimeout = 10 * kSecond;
/// by get() at once: with what transfers ask for, well below what the peer serves to one link
constexpr std::uint64_t kMostAsked = 8 << 20;

}  // namespace

// Polls, then sleeps, until `done()` (under the mutex), the link's end or the deadline.
template <typename Done>
void UdpLink::wait_until(std::uint64_t deadline, Done&& done) {
  const std::uint64_t begin = monotonic_ns();
  for (std::uint64_t now = begin; now < deadline; now = monotonic_ns()) {
    const std::uint32_t seen = node_->answers_.prepare_wait();
    {
      std::lock_guard lock(node_->mutex_);
      if (done() || !alive()) return;
    }
    if (now - begin < kSpin) {
      node_->progress();
    } else {
      node_->answers_.commit_wait([&](auto& news) {
        return node_->sleep({&news, seen, {}, deadline});
      });
    }
  }
}

Result<UdpLink::Pending> UdpLink::wait(std::uint64_t request) {
  wait_until(monotonic_ns() + kAnswerTimeout, [&] { return pending_[request].answered; });
  std::lock_guard lock(node_->mutex_);
  const Pending p = pending_[request];
  pending_.erase(request);
  end_turn(p.length);
  if (p.answered) return p;
  if (!alive()) return Error{ECONNRESET, "the peer is gone"};
  return Error{ETIMEDOUT, "the peer did not answer within 10 s"};
}

// A peer ends a connection that asks for more than it serves, so of many readers some wait. Without
// the mutex; ask for the bytes when it returns.
void UdpLink::wait_for_turn(std::uint64_t bytes) {
  wait_until(kNever, [&] {
    if (alive() && asked_bytes_ + bytes > kMostAsked) return false;
    asked_bytes_ += bytes;
    return true;
  });
}

// Under the mutex.
void UdpLink::end_turn(std::uint64_t bytes) {
  // Another thread may wait for that.
  if (bytes > 0 && asked_bytes_ > kMostAsked - kMostRead) node_->announce();
  asked_bytes_ -= bytes;
}

Status UdpLink::get_piece(const nic::RemoteHandle& handle, std::uint64_t offset,
                          std::span<std::byte> bytes) {
  std::uint64_t request;
  wait_for_turn(bytes.size());
  {
    std::lock_guard lock(node_->mutex_);
    if (const int err = refusal(handle, offset, bytes.size(), Rights::kRead); err != 0) {
      end_turn(bytes.size());
      return Error{err, "read from a remote aperture"};
    }
    node_->send_revocations();
    request = next_request_++;
    pending_[request] = {.local = bytes.data(), .length = bytes.size()};
    LinkHeader h = access(LinkMessageType::kRead, handle, offset);
    h.length = bytes.size();
    h.request = request;
    send(kUrgent, h);
    node_->after_call();
  }
  auto answer = wait(request);
  if (!answer) return answer.error();
  if (answer->err != 0) return Error{answer->err, "read from a remote aperture"};
  return {};
}

Status UdpLink::get(const nic::RemoteHandle& handle, std::uint64_t offset,
                    std::span<std::byte> bytes) {
  if (node_->on_driver_thread()) return Error{EDEADLK, "the driver thread cannot wait for itself"};
  if (!alive()) return Error{ECONNRESET, "the peer is gone"};
  do {
    const std::size_t n = std::min<std::size_t>(bytes.size(), kMostRead);
    if (auto s = get_piece(handle, offset, bytes.first(n)); !s) return s;
    bytes = bytes.subspan(n);
    offset += n;
  } while (!bytes.empty());
  return {};
}

Result<nic::RemoteHandle> UdpLink::import(const RdmaCookie& cookie, bool may_wait) {
  if (!alive()) return Error{ECONNRESET, "the peer is gone"};
  if (cookie.node != remote_node()) return Error{ESTALE, "RDMA cookie of another node"};
  if (may_wait && node_->on_driver_thread()) {
    return Error{EDEADLK, "the driver thread cannot wait for itself"};
  }
  nic::RemoteHandle handle;
  handle.length = cookie.length;
  handle.aperture = cookie.aperture;
  handle.generation_wanted = cookie.generation;
  handle.rights = cookie.rights;
  handle.key_image = nic::key_image(cookie);
  std::uint64_t request = 0;
  {
    std::lock_guard lock(node_->mutex_);
    // Known before the answer comes: a revocation may be close behind it.
    ++imported_[{handle.aperture, handle.generation_wanted}].references;
    if (!may_wait) return handle;  // the owner checks every packet anyway
    request = next_request_++;
    pending_[request].kind = Pending::Kind::kImport;
    send(kUrgent, {.type = LinkMessageType::kImport, .request = request},
         std::as_bytes(std::span(&cookie, 1)));
    node_->after_call();
  }
  auto answer = wait(request);
  if (answer.ok() && answer->err == 0) return handle;
  release(handle);
  if (!answer) return answer.error();
  return Error{answer->err, "the owner of the aperture refused the import"};
}

void UdpLink::release(const nic::RemoteHandle& handle) {
  if (node_->abandoned()) return;
  std::lock_guard lock(node_->mutex_);
  auto it = imported_.find({handle.aperture, handle.generation_wanted});
  if (it != imported_.end() && --it->second.references <= 0) imported_.erase(it);
}

}  // namespace clan::udp
