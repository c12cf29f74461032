// Receives that wait for messages, and messages that wait for receives.
//
// A ReceiveQueue holds both, for fi_recv and fi_trecv apart. The oldest fitting one wins on either
// side. It copies nothing: that is the transport's business, which knows where a message is.
// Everything is under the domain's lock.
#pragma once

#include <clan/message.h>
#include <sys/uio.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "system/info.h"
#include "system/provider.h"
#include "wire/wire.h"

namespace clan::ofi {

class Counter;
class Endpoint;
struct Peer;

/// A doubly linked list through members of its elements.
template <typename T>
class List {
 public:
  T* first() const { return first_; }
  T* last() const { return last_; }
  bool empty() const { return first_ == nullptr; }
  std::size_t size() const { return size_; }
  void push_back(T& element) {
    ++size_;
    element.next = nullptr;
    element.previous = last_;
    (last_ != nullptr ? last_->next : first_) = &element;
    last_ = &element;
  }
  /// Calls f(list, element), which may remove it.
  template <typename F>
  void for_each(F&& f) {
    for (T* element = first_; element != nullptr;) {
      T* const next = element->next;
      f(*this, *element);
      element = next;
    }
  }
  void remove(T& element) {
    --size_;
    (element.previous != nullptr ? element.previous->next : first_) = element.next;
    (element.next != nullptr ? element.next->previous : last_) = element.previous;
  }

 private:
  T* first_ = nullptr;
  T* last_ = nullptr;
  std::size_t size_ = 0;
};

/// Elements are made in blocks and used again.
template <typename T>
class Pool {
 public:
  T* take() {
    if (free_ == nullptr) {
      blocks_.push_back(std::make_unique<T[]>(kBlock));
      for (std::size_t i = 0; i < kBlock; ++i) give_back(blocks_.back()[i]);
    }
    T* element = free_;
    free_ = element->next;
    return element;
  }
  void give_back(T& element) {
    element.next = free_;
    free_ = &element;
  }

 private:
  static constexpr std::size_t kBlock = 64;
  T* free_ = nullptr;
  std::vector<std::unique_ptr<T[]>> blocks_;
};

/// A receive that has been posted.
struct Posted {
  Posted* next = nullptr;
  Posted* previous = nullptr;
  const Peer* from = nullptr;  ///< null: anyone
  std::uint64_t tag = 0, ignore = 0;
  void* context = nullptr;
  std::uint64_t flags = 0;  ///< of the operation
  std::size_t length = 0;   ///< room, all of it
  std::size_t used = 0;     ///< FI_MULTI_RECV: by earlier messages
  std::size_t least = 0;    ///< FI_MULTI_RECV: with less room it is given back
  bool claims = false;      ///< for one message that was claimed, and for no other
  bool given_up = false;    ///< not in its list any more: its last writer gives it back
  bool cancelled = false;   ///< the same, by fi_cancel()
  unsigned writers = 0;     ///< senders of other hosts that write into it: far_receives.h
  /// deferred work: `counter` counts it, the queue hears only with FI_COMPLETION
  bool deferred = false;
  Counter* counter = nullptr;
  std::uint32_t pieces = 0;
  iovec iov[kIovLimit];  ///< the first `pieces` mean something
};

/// A message that nobody has asked for yet. Its bytes, where it has brought them, follow the
/// structure.
struct Unexpected {
  Unexpected* next = nullptr;
  Unexpected* previous = nullptr;
  Endpoint* to = nullptr;
  Peer* from = nullptr;
  WireHeader header;
  std::size_t size = 0;
  bool offered = false;        ///< it is still in its sender's memory
  SetAside aside;              ///< of this host; else of it only `from` means something
  FarOffer far;                ///< of another host; else its length is 0
  void* claimed_by = nullptr;  ///< context of the FI_CLAIM

  std::byte* bytes() { return reinterpret_cast<std::byte*>(this + 1); }
  static Unexpected* make(std::size_t bytes) {
    void* memory = std::malloc(sizeof(Unexpected) + bytes);
    return memory == nullptr ? nullptr : new (memory) Unexpected;
  }
  static void destroy(Unexpected* message) { std::free(message); }
};
static_assert(std::is_trivially_destructible_v<Unexpected>);

class ReceiveQueue {
 public:
  enum Kind : unsigned { kUntagged = 0, kTagged = 1 };

  ReceiveQueue() = default;
  ReceiveQueue(const ReceiveQueue&) = delete;
  ReceiveQueue& operator=(const ReceiveQueue&) = delete;
  ~ReceiveQueue() {
    for (auto& list : unexpected_) clear(list);
    clear(claimed_);
  }

  Posted* make_posted() {
    return new (pool_.take()) Posted;  // without braces: its pieces are not cleared
  }
  void free_posted(Posted& p) { pool_.give_back(p); }

  // A message has come: which receive is it for? It stays in the list.
  Posted* match_message(const Peer* from) {
    for (Posted* p = posted_[kUntagged].first(); p != nullptr; p = p->next) {
      if (p->from == nullptr || p->from == from) return p;
    }
    return nullptr;
  }
  Posted* match_tagged(const Peer* from, std::uint64_t tag) {
    for (Posted* p = posted_[kTagged].first(); p != nullptr; p = p->next) {
      if (((p->tag ^ tag) & ~p->ignore) == 0 && (p->from == nullptr || p->from == from)) return p;
    }
    return nullptr;
  }

  // A receive has been posted: which message is for it? It stays in the list.
  Unexpected* find(Kind kind, const Peer* from, std::uint64_t tag, std::uint64_t ignore) {
    for (Unexpected* u = unexpected_[kind].first(); u != nullptr; u = u->next) {
      if ((kind == kUntagged || ((tag ^ u->header.tag) & ~ignore) == 0) &&
          (from == nullptr || u->from == from)) {
        return u;
      }
    }
    return nullptr;
  }

  List<Posted>& posted(Kind kind) { return posted_[kind]; }
  List<Unexpected>& unexpected(Kind kind) { return unexpected_[kind]; }
  List<Unexpected>& claimed() { return claimed_; }

  template <typename F>
  void for_each_unexpected(F&& f) {
    for (List<Unexpected>* list : {&unexpected_[0], &unexpected_[1], &claimed_}) list->for_each(f);
  }

 private:
  static void clear(List<Unexpected>& list) {
    while (Unexpected* u = list.first()) {
      list.remove(*u);
      Unexpected::destroy(u);
    }
  }

  List<Posted> posted_[2];
  List<Unexpected> unexpected_[2];
  List<Unexpected> claimed_;
  Pool<Posted> pool_;
};

}  // namespace clan::ofi
