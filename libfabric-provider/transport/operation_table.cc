#include "transport/operation_table.h"

#include <algorithm>
#include <new>
#include <utility>

namespace clan::ofi {
namespace {

/// of a buffer for gathered bytes, for the next operation
constexpr std::size_t kMostKeptBytes = 65536;
/// of Operation::id; the others are the generation's
constexpr unsigned kPlaceBits = 22;
constexpr std::uint32_t kPlaces = 1u << kPlaceBits;

}  // namespace

Operation& OperationTable::make(Endpoint* owner, Peer& peer, const SendRequest& request) {
  if (free_ == nullptr) {
    if (operations_.size() == kPlaces) throw std::bad_alloc();
    operations_.push_back(std::make_unique<Operation>());
    operations_.back()->place = static_cast<std::uint32_t>(operations_.size() - 1);
    free_ = operations_.back().get();
  }
  Operation& operation = *free_;
  free_ = operation.next;
  operation.next = nullptr;
  operation.live = true;
  ++operation.generation;
  operation.id = operation.place | static_cast<std::uint32_t>(operation.generation << kPlaceBits);
  operation.waits_for_copy = operation.waits_for_answer = false;
  operation.err = 0;
  operation.owner = owner;
  operation.peer = &peer;
  operation.context = request.context;
  operation.flags = request.flags;
  operation.completion = request.completion;
  operation.counter = request.counter;
  operation.delivery = request.delivery;
  operation.gathered.clear();
  operation.result_count = 0;
  return operation;
}

void OperationTable::charge(Operation& operation, std::size_t bytes, bool is_barrier) {
  Peer& peer = *operation.peer;
  operation.credit = bytes;
  peer.reply_credit += bytes;
  if (!is_barrier) return;
  operation.is_barrier = true;
  ++peer.barriers;
  peer.send_by(peer.index);
}

void OperationTable::release(Operation& operation) {
  operation.live = false;
  if (operation.credit != 0) {
    Peer& peer = *operation.peer;
    peer.reply_credit -= std::exchange(operation.credit, 0);
    if (std::exchange(operation.is_barrier, false) && --peer.barriers == 0)
      peer.send_by(peer.index);
  }
  if (operation.gathered.capacity() > kMostKeptBytes)
    std::vector<std::byte>().swap(operation.gathered);
  operation.next = free_;
  free_ = &operation;
}

Operation* OperationTable::answered(std::uint32_t id, const Peer& peer, Op answer) {
  const std::uint32_t place = id % kPlaces;
  if (place >= operations_.size()) return nullptr;
  Operation& operation = *operations_[place];
  const bool waits = operation.live && operation.waits_for_answer && operation.peer == &peer;
  return waits && operation.id == id && operation.answer == answer ? &operation : nullptr;
}

// Seldom asked for, so no account is kept.
bool OperationTable::any_with(const Peer& peer) const {
  return std::any_of(operations_.begin(), operations_.end(),
                     [&](const auto& o) { return o->live && o->peer == &peer; });
}

bool OperationTable::any_counted_by(const Counter& counter) const {
  return std::any_of(operations_.begin(), operations_.end(), [&](const auto& o) {
    return o->live && o->owner != nullptr && o->counter == &counter;
  });
}

void OperationTable::forget_owner(const Endpoint& owner) {
  for (auto& operation : operations_) {
    if (operation->live && operation->owner == &owner) operation->owner = nullptr;
  }
}

void OperationTable::fail_all(const Peer& peer, int err) {
  for (auto& operation : operations_) {
    if (!operation->live || operation->peer != &peer || !operation->waits_for_answer) continue;
    operation->waits_for_answer = false;
    operation->err = err;
    settle(*operation);
  }
}

void OperationTable::mark_referenced() const {
  for (const auto& operation : operations_) {
    if (operation->live) operation->peer->referenced = true;
  }
}

}  // namespace clan::ofi
