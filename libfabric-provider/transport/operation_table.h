// Operations that have been started and are not complete. Their numbers travel in messages, so what
// a peer answers is looked up here and checked.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "system/info.h"
#include "transport/peer.h"
#include "wire/wire.h"

namespace clan::ofi {

class Counter;
class Endpoint;

/// One message to send.
struct SendRequest {
  WireHeader header;
  const iovec* iov = nullptr;
  std::size_t count = 0;
  std::size_t length = 0;
  void* context = nullptr;
  std::uint64_t flags = 0;  ///< of the completion: FI_SEND | FI_TAGGED and the like
  bool completion = false;
  bool inject = false;    ///< the buffer is the caller's again when the call returns
  bool delivery = false;  ///< complete only when the peer has received it
  Counter* counter = nullptr;
};

struct Operation {
  Operation* next = nullptr;  ///< of those that are free
  std::uint32_t place = 0;    ///< in the table
  /// What answers name: the place, and some bits of the generation. An answer that comes late, by
  /// another connection than its question, is none to the operation that has the place by then.
  std::uint32_t id = 0;
  bool live = false;
  bool waits_for_copy = false;  ///< the engine will say that the peer has copied the message
  bool waits_for_answer = false;
  /// kAck, kAtomicReply, kGetReply, kPlace; kPut: none, its AccessWord says it
  Op answer = Op::kAck;
  bool delivery = false;         ///< of one that waits for kPlace: then for kAck
  std::uint64_t generation = 0;  ///< counts the operations that this has been
  int err = 0;
  Endpoint* owner = nullptr;  ///< null: its completion interests nobody any more
  Peer* peer = nullptr;
  void* context = nullptr;
  std::uint64_t flags = 0;  ///< of the completion
  bool completion = false;  ///< there is to be one
  Counter* counter = nullptr;
  std::vector<std::byte> gathered;  ///< a message that was in pieces
  std::uint64_t credit = 0;         ///< part of Peer::reply_credit
  bool is_barrier = false;          ///< one of Peer::barriers
  /// of an atomic operation or a small read; of an offered message its own pieces
  iovec results[kIovLimit] = {};
  std::uint32_t result_count = 0;
};

class OperationTable {
 public:
  /// Tells the program how an operation with an owner has ended.
  using Report = void (*)(const Operation& operation, int err);
  explicit OperationTable(Report report) : report_(report) {}

  Operation& make(Endpoint* owner, Peer& peer, const SendRequest& request);
  /// The operation has been sent: its answer brings so many bytes. Until then a barrier keeps
  /// everything else from being started with that peer.
  void charge(Operation& operation, std::size_t bytes, bool is_barrier);
  /// One of the things that the operation waits for has come: ends it when that was the last.
  void settle(Operation& operation) {
    if (!operation.waits_for_copy && !operation.waits_for_answer) finish(operation, operation.err);
  }
  /// Ends it and reports that.
  void finish(Operation& operation, int err) {
    release(operation);
    if (operation.owner != nullptr) report_(operation, err);
  }
  /// Ends it without a word.
  void release(Operation& operation);
  /// The operation of that number, if it waits for such an answer of this peer; else null.
  Operation* answered(std::uint32_t id, const Peer& peer, Op answer);

  bool any_with(const Peer& peer) const;
  bool any_counted_by(const Counter& counter) const;
  void forget_owner(const Endpoint& owner);
  /// Ends all that wait for an answer of this peer.
  void fail_all(const Peer& peer, int err);
  void mark_referenced() const;

 private:
  Report report_;
  std::vector<std::unique_ptr<Operation>> operations_;
  Operation* free_ = nullptr;
};

/// Whether a peer may be asked for so many bytes more.
inline bool has_credit(const Peer& peer, std::size_t bytes) {
  return peer.reply_credit + bytes <= kMostOwed;
}

}  // namespace clan::ofi
