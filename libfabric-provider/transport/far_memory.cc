#include "transport/far_memory.h"

#include <algorithm>
#include <cerrno>
#include <new>

#include "objects/domain.h"
#include "system/info.h"
#include "transport/operation_table.h"
#include "transport/remote_memory.h"

namespace clan::ofi {
namespace {

/// Requests of one access: pieces of both sides overlap, and so do those of a region.
constexpr std::size_t kMostRequests = 2 * kIovLimit * (kRegionPieces + 1);

// Whether the part can be reached, as far as is known here.
Status look_at(RemoteAperture& aperture, std::uint64_t offset, std::byte*, std::size_t length) {
  if (offset > aperture.size() || length > aperture.size() - offset)
    return Error{ERANGE, "beyond the end of a region"};
  return aperture.check();
}

}  // namespace

int FarMemory::register_with(EventQueue& events) {
  events_ = &events;
  for (auto& queue : queues_) {
    if (!queue) continue;
    if (auto s = queue->rdma.register_with(events, 0); !s) return failure(s.error());
  }
  return 0;
}

Result<FarMemory::Queue*> FarMemory::queue_of(const Peer& peer) {
  auto& queue = queues_[NameHash()(peer.name) % kQueues];
  if (!queue) {
    auto made = RdmaQueue::create(domain_.context(), kDepth);
    if (!made) return made.error();
    if (events_ != nullptr) {
      if (auto s = made->register_with(*events_, 0); !s) return s.error();
    }
    queue.emplace(Queue{std::move(*made)});
  }
  return &*queue;
}

// Calls use(aperture, offset, local, length) for the parts of a region that a piece lies in.
template <typename Use>
int FarMemory::visit(Peer& peer, const FarPiece& piece, Use&& use) {
  return memory_.visit(
      peer, piece.key, piece.address, piece.length,
      [&](RemoteAperture& aperture, std::uint64_t offset, std::size_t at, std::size_t length) {
        return use(aperture, offset, piece.local + at, length);
      });
}

int FarMemory::begin(Peer& peer, std::span<const FarPiece> pieces, SlowCopies copies) {
  auto found = queue_of(peer);
  if (!found) return failure(found.error());
  Queue& queue = **found;
  if (queue.requests + kMostRequests > kDepth) return -FI_EAGAIN;
  // First all is checked: what is begun ends only when it has been made.
  for (const FarPiece& piece : pieces) {
    if (int rc = visit(peer, piece, &look_at); rc != 0) return rc;
  }
  const bool write = copies.write;
  // Noted before its first request: that goes on, whatever comes next.
  queue.accesses.push_back({&peer, std::move(copies)});
  SlowCopies& begun = queue.accesses.back().copies;
  const auto post = [&](RemoteAperture& aperture, std::uint64_t offset, std::byte* local,
                        std::size_t length) {
    Status posted = write ? queue.rdma.write(aperture, offset, local, length)
                          : queue.rdma.read(aperture, offset, local, length);
    if (!posted) return posted;
    ++queue.requests;
    if (begun.left++ > 0) return posted;
    // From the first on regions of this peer have to stay.
    ++under_way_;
    ++(write ? peer.far_writes : peer.far_reads);
    return posted;
  };
  int rc = 0;
  try {
    for (const FarPiece& piece : pieces) {
      if (rc == 0) rc = visit(peer, piece, post);
    }
  } catch (const std::bad_alloc&) {
    rc = -FI_ENOMEM;
  }
  if (begun.left == 0) {
    queue.accesses.pop_back();
    return rc;
  }
  // What has been begun ends first, and then says why the rest has not.
  if (rc != 0) begun.err = rc == -FI_EAGAIN ? ETIMEDOUT : -rc;
  if (begun.data || RemoteMemory::owner_listens(peer, begun.key)) begun.tells_owner = true;
  return 0;
}

void FarMemory::begin_message(Peer& peer, FarMessage message, SlowCopies copies) {
  messages_.push_back({&peer, std::move(copies), std::move(message)});
  ++under_way_;
  start_messages();
}

void FarMemory::start_messages() {
  while (!messages_.empty()) {
    Access& next = messages_.front();
    auto found = queue_of(*next.peer);
    if (!found) {
      next.copies.err = found.error().err;
      unsent_.push_back(std::move(next));
    } else if ((*found)->requests + next.message.parts.size() > kDepth) {
      return;
    } else {
      post_message(**found, std::move(next), unsent_);
    }
    messages_.pop_front();
  }
}

void FarMemory::post_message(Queue& queue, Access access, std::deque<Access>& unsent) {
  queue.accesses.push_back(std::move(access));
  SlowCopies& copies = queue.accesses.back().copies;
  const FarMessage& message = queue.accesses.back().message;
  for (const FarMessage::Part& part : message.parts) {
    const Status posted =
        queue.rdma.write(message.places[part.place], part.offset, part.local, part.length);
    if (!posted) {
      copies.err = posted.error().err;
      break;
    }
    ++queue.requests;
    ++copies.left;
  }
  if (copies.left > 0) return;
  unsent.push_back(std::move(queue.accesses.back()));
  queue.accesses.pop_back();
}

bool FarMemory::is_abandoned(const Access& access) {
  return access.copies.operation->owner == nullptr;
}

bool FarMemory::any_abandoned(const Queue& queue) {
  return std::any_of(queue.accesses.begin(), queue.accesses.end(), &is_abandoned);
}

}  // namespace clan::ofi
